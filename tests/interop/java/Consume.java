import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/**
 * Consumes from the first offset, prints a JSON line per delivery, and ends after the given number
 * of deliveries, failed ones included.
 * nameServer= topic=a,b group= deliveries= [mode=concurrent|orderly|broadcast] [expression=*]
 * [failures=0] [maxReconsume=-1] [timeout=100] [sql=an SQL92 expression, which takes the place of
 * the tags] [strategy=AVG|AVG_BY_CIRCLE|CONSISTENT_HASH] [accessKey= secretKey=] [heartbeat=30000,
 * in milliseconds] [clientRebalance=true, else the broker assigns queues and chooses between pull
 * and POP]
 * A delivery fails ("later") while the message's reconsumeTimes is below failures. Prints
 * {"ready":true} when started. Exit 1 at the timeout.
 */
public class Consume {
    public static void main(String[] args) {
        int exit = 1;
        try {
            exit = run(new Options(args));
        } catch (Throwable e) {
            e.printStackTrace();
        }
        System.exit(exit); // the client's threads would keep the process alive
    }

    static int run(Options options) throws Exception {
        int failures = options.number("failures", 0);
        CountDownLatch left = new CountDownLatch(options.number("deliveries", 1));
        DefaultMQPushConsumer consumer =
                new DefaultMQPushConsumer(options.text("group"), options.hook());
        consumer.setNamesrvAddr(options.text("nameServer"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setClientRebalance(Boolean.parseBoolean(options.text("clientRebalance", "true")));
        consumer.setHeartbeatBrokerInterval(options.number("heartbeat", 30_000));
        consumer.setMaxReconsumeTimes(options.number("maxReconsume", -1));
        consumer.setSuspendCurrentQueueTimeMillis(100);
        // the last delivery's progress counts too
        consumer.setAwaitTerminationMillisWhenShutdown(5000);
        String sql = options.text("sql", "");
        for (String topic : options.text("topic").split(",")) {
            if (sql.isEmpty()) consumer.subscribe(topic, options.text("expression", "*"));
            else consumer.subscribe(topic, MessageSelector.bySql(sql));
        }
        consumer.setAllocateMessageQueueStrategy(strategy(options.text("strategy", "AVG")));
        String mode = options.text("mode", "concurrent");
        switch (mode) {
            case "concurrent", "broadcast" ->
                consumer.registerMessageListener(
                        (MessageListenerConcurrently) (messages, context)
                                -> deliver(options, messages, failures, left)
                                ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                                : ConsumeConcurrentlyStatus.RECONSUME_LATER);
            case "orderly" ->
                consumer.registerMessageListener(
                        (MessageListenerOrderly) (messages, context)
                                -> deliver(options, messages, failures, left)
                                ? ConsumeOrderlyStatus.SUCCESS
                                : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
            default -> throw new IllegalArgumentException("mode=" + mode);
        }
        if (mode.equals("broadcast")) consumer.setMessageModel(MessageModel.BROADCASTING);
        try {
            consumer.start();
            options.show(Map.of("ready", true));
            return left.await(options.number("timeout", 100), TimeUnit.SECONDS) ? 0 : 1;
        } finally {
            consumer.shutdown();
        }
    }

    private static AllocateMessageQueueStrategy strategy(String name) {
        return switch (name) {
            case "AVG" -> new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE" -> new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH" -> new AllocateMessageQueueConsistentHash();
            default -> throw new IllegalArgumentException("strategy=" + name);
        };
    }

    private static boolean deliver(
            Options options, List<MessageExt> messages, int failures, CountDownLatch left) {
        boolean done = true;
        for (MessageExt message : messages) {
            boolean fails = message.getReconsumeTimes() < failures;
            Map<String, Object> line = new LinkedHashMap<>();
            line.put("topic", message.getTopic());
            line.put("brokerName", message.getBrokerName());
            line.put("queueId", message.getQueueId());
            line.put("queueOffset", message.getQueueOffset());
            line.put("reconsumeTimes", message.getReconsumeTimes());
            line.put("id", message.getMsgId());
            line.put("tags", message.getTags());
            line.put("keys", message.getKeys());
            line.put("body", new String(message.getBody()));
            line.put("properties", message.getProperties());
            line.put("at", System.currentTimeMillis());
            line.put("outcome", fails ? "later" : "done");
            options.show(line);
            left.countDown();
            done &= !fails;
        }
        return done;
    }
}
