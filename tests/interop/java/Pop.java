import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.impl.ClientRemotingProcessor;
import org.apache.rocketmq.client.impl.mqclient.MQClientAPIExt;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ChangeInvisibleTimeRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.remoting.protocol.header.NotificationRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;

/**
 * One request of POP consumption by the client that Apache's proxy uses, as its RMQPopClient does;
 * for Serve only.
 * request=pop|ack|batchAck|change|notify address= brokerName= topic= group=
 * pop: [max=32] [invisible=60000] [poll=15000] [queue=-1] [order=false] [attempt=] [expression=*]
 * [forward=false: send each message to the dead letters]; prints {"status", "rest"} and the messages
 * ack: handle= change: handle= invisible= notify: [poll=15000] [queue=-1] [order=false]
 * batchAck: handles=, separated by commas
 */
final class Pop {
    private static final long SLACK_MS = 60_000;
    private static MQClientAPIExt client;

    private final Options options;
    private final String address, brokerName, topic, group;

    private Pop(Options options) {
        this.options = options;
        address = options.text("address");
        brokerName = options.text("brokerName");
        topic = options.text("topic");
        group = options.text("group");
    }

    static int run(Options options) throws Exception {
        if (client == null) {
            client = new MQClientAPIExt(new ClientConfig(), new NettyClientConfig(),
                    new ClientRemotingProcessor(null), null);
            client.start();
        }
        Pop pop = new Pop(options);
        switch (options.text("request")) {
            case "pop" -> pop.pop();
            case "ack" -> pop.ack();
            case "batchAck" -> pop.batchAck();
            case "change" -> pop.change();
            case "notify" -> pop.await();
            default -> throw new IllegalArgumentException(options.text("request"));
        }
        return 0;
    }

    private boolean order() { return Boolean.parseBoolean(options.text("order", "false")); }

    private void pop() throws Exception {
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(topic);
        header.setQueueId(options.number("queue", -1));
        header.setMaxMsgNums(options.number("max", 32));
        header.setInvisibleTime(options.number("invisible", 60_000));
        header.setPollTime(options.number("poll", 15_000));
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(0);
        header.setExpType("TAG");
        header.setExp(options.text("expression", "*"));
        header.setOrder(order());
        if (!options.text("attempt", "").isEmpty()) header.setAttemptId(options.text("attempt"));
        CompletableFuture<PopResult> found = new CompletableFuture<>();
        client.popMessageAsync(
                brokerName, address, header, header.getPollTime() + SLACK_MS, new PopCallback() {
                    @Override
                    public void onSuccess(PopResult result) {
                        found.complete(result);
                    }

                    @Override
                    public void onException(Throwable e) {
                        found.completeExceptionally(e);
                    }
                });
        PopResult result = found.get();
        options.show(Map.of("status", result.getPopStatus().name(), "rest", result.getRestNum()));
        if (result.getMsgFoundList() == null) return;
        for (MessageExt message : result.getMsgFoundList()) {
            if (Boolean.parseBoolean(options.text("forward", "false")))
                client.consumerSendMessageBack(
                        address, brokerName, message, group, -1, SLACK_MS, 16);
            Map<String, Object> line = new LinkedHashMap<>();
            line.put("id", message.getMsgId());
            line.put("topic", message.getTopic());
            line.put("queueId", message.getQueueId());
            line.put("queueOffset", message.getQueueOffset());
            line.put("size", message.getBody().length);
            line.put("text", new String(message.getBody(), 0, Math.min(40, message.getBody().length)));
            line.put("reconsumeTimes", message.getReconsumeTimes());
            line.put("priority", message.getPriority());
            line.put("handle", message.getProperty(MessageConst.PROPERTY_POP_CK));
            options.show(line);
        }
    }

    private void ack() throws Exception {
        String[] handle = ExtraInfoUtil.split(options.text("handle"));
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(ExtraInfoUtil.getRealTopic(handle, topic, group));
        header.setQueueId(ExtraInfoUtil.getQueueId(handle));
        header.setOffset(ExtraInfoUtil.getQueueOffset(handle));
        header.setExtraInfo(options.text("handle"));
        Outcome outcome = new Outcome();
        client.ackMessageAsync(address, SLACK_MS, outcome, header);
        outcome.show();
    }

    private void batchAck() throws Exception {
        List<String> handles = Arrays.asList(options.text("handles").split(","));
        Outcome outcome = new Outcome();
        client.batchAckMessageAsync(address, SLACK_MS, outcome, topic, group, handles);
        outcome.show();
    }

    private void change() throws Exception {
        String[] handle = ExtraInfoUtil.split(options.text("handle"));
        ChangeInvisibleTimeRequestHeader header = new ChangeInvisibleTimeRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(ExtraInfoUtil.getRealTopic(handle, topic, group));
        header.setQueueId(ExtraInfoUtil.getQueueId(handle));
        header.setOffset(ExtraInfoUtil.getQueueOffset(handle));
        header.setExtraInfo(options.text("handle"));
        header.setInvisibleTime((long) options.number("invisible", 60_000));
        Outcome outcome = new Outcome();
        client.changeInvisibleTimeAsync(brokerName, address, header, SLACK_MS, outcome);
        outcome.show();
    }

    private void await() throws Exception {
        NotificationRequestHeader header = new NotificationRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(topic);
        header.setQueueId(options.number("queue", -1));
        header.setPollTime(options.number("poll", 15_000));
        header.setBornTime(System.currentTimeMillis());
        header.setOrder(order());
        boolean has = client.notification(address, header, header.getPollTime() + SLACK_MS)
                              .get(SLACK_MS, TimeUnit.MILLISECONDS);
        options.show(Map.of("hasMessage", has));
    }

    private final class Outcome implements AckCallback {
        private final CompletableFuture<AckResult> result = new CompletableFuture<>();

        @Override
        public void onSuccess(AckResult found) {
            result.complete(found);
        }

        @Override
        public void onException(Throwable e) {
            result.completeExceptionally(e);
        }

        void show() throws Exception {
            AckResult found = result.get();
            Map<String, Object> line = new LinkedHashMap<>();
            line.put("status", found.getStatus().name());
            line.put("handle", found.getExtraInfo());
            options.show(line);
        }
    }
}
