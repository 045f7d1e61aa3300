import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Requests and replies. mode=ask sends count requests, one after the other, with the bodies "0",
 * "1", ... and prints each reply. mode=answer consumes until it has answered count requests, each
 * with "re " and the request's body. Exit 1 at the timeout.
 * nameServer= topic= group= mode=ask|answer [count=1] [timeout=100]. mode=answer prints
 * {"ready":true} when started.
 */
public class Talk {
    public static void main(String[] args) {
        int exit = 1;
        try {
            Options options = new Options(args);
            exit = options.text("mode").equals("ask") ? ask(options) : answer(options);
        } catch (Throwable e) {
            e.printStackTrace();
        }
        System.exit(exit); // the client's threads would keep the process alive
    }

    private static DefaultMQProducer producer(Options options) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(options.text("group") + "-p");
        producer.setNamesrvAddr(options.text("nameServer"));
        producer.start();
        return producer;
    }

    private static int ask(Options options) throws Exception {
        DefaultMQProducer producer = producer(options);
        for (int i = 0; i < options.number("count", 1); i++) {
            Message request = new Message(options.text("topic"), Integer.toString(i).getBytes());
            Message reply = producer.request(request, options.number("timeout", 100) * 1000L);
            Map<String, Object> line = new HashMap<>();
            line.put("reply", new String(reply.getBody()));
            line.put("topic", reply.getTopic());
            line.put("tags", reply.getTags());
            line.put("properties", reply.getProperties());
            Options.print(line);
        }
        producer.shutdown();
        return 0;
    }

    private static int answer(Options options) throws Exception {
        DefaultMQProducer producer = producer(options);
        CountDownLatch left = new CountDownLatch(options.number("count", 1));
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("nameServer"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(options.text("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt request : messages) {
                try {
                    Message reply = MessageUtil.createReplyMessage(
                            request, ("re " + new String(request.getBody())).getBytes());
                    Options.print(
                            Map.of("sent", producer.send(reply, 30_000).getSendStatus().name()));
                } catch (Exception e) {
                    e.printStackTrace();
                }
                left.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Options.print(Map.of("ready", true));
        boolean all = left.await(options.number("timeout", 100), TimeUnit.SECONDS);
        consumer.shutdown();
        producer.shutdown();
        return all ? 0 : 1;
    }
}
