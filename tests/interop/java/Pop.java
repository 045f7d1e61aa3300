import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.constant.ConsumeInitMode;
import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.test.client.rmq.RMQPopClient;

/**
 * One request by RMQPopClient, the client of Apache's own tests of POP; for Serve only.
 * request=pop|ack|batchAck|change|notify address= brokerName= topic= group=
 * pop: [max=32] [invisible=60000] [poll=15000, 0 does not wait] [queue=-1] [order=false] [attempt=]
 * [expression=*] [decompress=true] [forwardTo=name of a broker: send each message to its queue 0,
 * nameServer=]; prints {"status", "rest"} and the messages
 * ack: handle= change: handle= invisible= batchAck: handles=, separated by commas
 * notify: [poll=15000] [queue=-1] [order=false] [attempt=] [expression=*] [count=1: requests that
 * wait at the same time; prints a line for each]
 */
final class Pop {
    private static final long SLACK_MS = 60_000;
    private static final Map<Boolean, RMQPopClient> CLIENTS = new LinkedHashMap<>();

    private final Options options;
    private final RMQPopClient client;
    private final String address, brokerName, topic, group;

    private Pop(Options options) {
        this.options = options;
        client = CLIENTS.computeIfAbsent(flag("decompress", "true"), Pop::start);
        address = options.text("address");
        brokerName = options.text("brokerName");
        topic = options.text("topic");
        group = options.text("group");
    }

    private static RMQPopClient start(boolean decompress) {
        System.setProperty(ClientConfig.DECODE_DECOMPRESS_BODY, Boolean.toString(decompress));
        try {
            RMQPopClient client = new RMQPopClient();
            client.create();
            client.start();
            return client;
        } finally {
            System.clearProperty(ClientConfig.DECODE_DECOMPRESS_BODY);
        }
    }

    static int run(Options options) throws Exception {
        Pop pop = new Pop(options);
        String handle = options.text("handle", "");
        switch (options.text("request")) {
            case "pop" -> pop.pop();
            case "ack" ->
                    pop.show(
                            pop.client.ackMessageAsync(
                                    pop.address, pop.topic, pop.group, handle));
            case "batchAck" ->
                pop.show(pop.client.batchAckMessageAsync(pop.address, pop.topic, pop.group,
                        Arrays.asList(options.text("handles").split(","))));
            case "change" ->
                pop.show(pop.client.changeInvisibleTimeAsync(pop.address, pop.brokerName, pop.topic,
                        pop.group, handle, options.number("invisible", 60_000)));
            case "notify" -> pop.await();
            default -> throw new IllegalArgumentException(options.text("request"));
        }
        return 0;
    }

    private boolean flag(String key, String otherwise) {
        return Boolean.parseBoolean(options.text(key, otherwise));
    }

    private void pop() throws Exception {
        int pollMs = options.number("poll", 15_000);
        MessageQueue queue = new MessageQueue(topic, brokerName, options.number("queue", -1));
        PopResult result =
                client.popMessageAsync(address, queue, options.number("invisible", 60_000),
                              options.number("max", 32), group, pollMs > 0 ? pollMs : SLACK_MS,
                              pollMs > 0, ConsumeInitMode.MIN, flag("order", "false"),
                              ExpressionType.TAG, options.text("expression", "*"),
                              options.text("attempt", null))
                        .get();
        options.show(Map.of("status", result.getPopStatus().name(), "rest", result.getRestNum()));
        if (result.getMsgFoundList() == null) return;
        for (MessageExt message : result.getMsgFoundList()) {
            show(message);
            if (!options.text("forwardTo", "").isEmpty()) forward(message);
        }
    }

    private void show(MessageExt message) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("id", message.getMsgId());
        line.put("topic", message.getTopic());
        line.put("queueId", message.getQueueId());
        line.put("queueOffset", message.getQueueOffset());
        line.put("size", message.getBody().length);
        line.put("text", new String(message.getBody(), 0, Math.min(40, message.getBody().length)));
        line.put("sysFlag", message.getSysFlag());
        line.put("reconsumeTimes", message.getReconsumeTimes());
        line.put("priority", message.getPriority());
        line.put("handle", message.getProperty(MessageConst.PROPERTY_POP_CK));
        options.show(line);
    }

    private void forward(MessageExt message) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("forwarding");
        producer.setNamesrvAddr(options.text("nameServer"));
        producer.setSendMsgTimeout(60_000);
        producer.start();
        try {
            producer.send(message, new MessageQueue(topic, options.text("forwardTo"), 0));
        } finally {
            producer.shutdown();
        }
    }

    private void await() throws Exception {
        var waiting =
                IntStream.range(0, options.number("count", 1)).mapToObj(i -> await1()).toList();
        for (CompletableFuture<Boolean> one : waiting) {
            options.show(Map.of("hasMessage", one.get()));
        }
    }

    private CompletableFuture<Boolean> await1() {
        int pollMs = options.number("poll", 15_000);
        return client.notification(address, topic, group, options.number("queue", -1),
                flag("order", "false"), options.text("attempt", null), pollMs,
                System.currentTimeMillis(), pollMs + SLACK_MS, ExpressionType.TAG,
                options.text("expression", "*"));
    }

    private void show(CompletableFuture<AckResult> answer) throws Exception {
        AckResult found = answer.get();
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("status", found.getStatus().name());
        line.put("handle", found.getExtraInfo());
        options.show(line);
    }
}
