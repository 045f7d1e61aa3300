import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends count messages with the bodies "message 0", "message 1", ... and prints a JSON line per
 * result.
 * nameServer= topic= count= [mode=sync|async|oneway|batch|orderly] [first=0] [size=0] [tags=a,b]
 * [delay=0] [batch=10] [shards=4] [delayMs=0] [deliverAt=milliseconds since 1970] [priority=];
 * mode=recall handle= takes a timed message back. [accessKey= secretKey=]
 * size pads the body with dots; tags are given in turn; every message has the key "key-N" and the
 * user property index=N; orderly chooses queue (N modulo shards) modulo queues.
 * -Drocketmq.serialize.type=ROCKETMQ switches to binary headers.
 */
public class Send {
    private final Options options;
    private final DefaultMQProducer producer;
    private final AtomicInteger failed = new AtomicInteger();

    Send(Options options) {
        this.options = options;
        producer = new DefaultMQProducer("interop-producer", options.hook());
    }

    public static void main(String[] args) {
        int exit = 1;
        try {
            exit = new Send(new Options(args)).run();
        } catch (Throwable e) {
            e.printStackTrace();
        }
        System.exit(exit); // the client's threads would keep the process alive
    }

    int run() throws Exception {
        producer.setNamesrvAddr(options.text("nameServer"));
        producer.setSendMsgTimeout(60_000);
        try {
            producer.start();
            send(options.number("first", 0), options.number("count", 1));
        } finally {
            producer.shutdown();
        }
        return failed.get() == 0 ? 0 : 1;
    }

    private void send(int first, int count) throws Exception {
        switch (options.text("mode", "sync")) {
            case "sync" -> {
                for (int i = first; i < first + count; i++) print(i, producer.send(message(i)));
            }
            case "orderly" -> {
                int shards = options.number("shards", 4);
                for (int i = first; i < first + count; i++) {
                    print(i,
                            producer.send(message(i),
                                    (queues, m, shard)
                                            -> queues.get((Integer) shard % queues.size()),
                                    i % shards));
                }
            }
            case "oneway" -> {
                for (int i = first; i < first + count; i++) producer.sendOneway(message(i));
                Thread.sleep(1000); // nothing tells when a one-way request has left
            }
            case "batch" -> {
                int size = options.number("batch", 10);
                for (int i = first; i < first + count; i += size) {
                    List<Message> batch = new ArrayList<>();
                    for (int j = i; j < Math.min(i + size, first + count); j++)
                        batch.add(message(j));
                    print(i, producer.send(batch));
                }
            }
            case "async" -> sendAsync(first, count);
            case "recall" ->
                options.show(Map.of("id",
                        producer.recallMessage(options.text("topic"), options.text("handle"))));
            default -> throw new IllegalArgumentException("mode=" + options.text("mode"));
        }
    }

    private void sendAsync(int first, int count) throws Exception {
        CountDownLatch left = new CountDownLatch(count);
        for (int i = first; i < first + count; i++) {
            int index = i;
            producer.send(message(i), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    print(index, result);
                    left.countDown();
                }

                @Override
                public void onException(Throwable e) {
                    failed.incrementAndGet();
                    options.show(Map.of("index", index, "error", e.toString()));
                    left.countDown();
                }
            });
        }
        if (!left.await(60, TimeUnit.SECONDS))
            throw new IllegalStateException(left.getCount() + " sends have no answer after 60 s");
    }

    private Message message(int index) {
        StringBuilder body = new StringBuilder("message " + index);
        while (body.length() < options.number("size", 0)) body.append('.');
        Message message = new Message(options.text("topic"), body.toString().getBytes());
        String[] tags = options.text("tags", "").split(",");
        if (!tags[0].isEmpty()) message.setTags(tags[index % tags.length]);
        if (options.number("delay", 0) > 0) message.setDelayTimeLevel(options.number("delay", 0));
        if (options.number("delayMs", 0) > 0) message.setDelayTimeMs(options.number("delayMs", 0));
        if (!options.text("priority", "").isEmpty())
            message.setPriority(options.number("priority", 0));
        if (!options.text("deliverAt", "").isEmpty())
            message.setDeliverTimeMs(Long.parseLong(options.text("deliverAt")));
        message.setKeys("key-" + index);
        message.putUserProperty("index", Integer.toString(index));
        return message;
    }

    private void print(int index, SendResult result) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("index", index);
        line.put("status", result.getSendStatus().name());
        line.put("id", result.getMsgId());
        line.put("offsetId", result.getOffsetMsgId());
        line.put("brokerName", result.getMessageQueue().getBrokerName());
        line.put("queueId", result.getMessageQueue().getQueueId());
        line.put("queueOffset", result.getQueueOffset());
        if (result.getRecallHandle() != null) line.put("handle", result.getRecallHandle());
        options.show(line);
    }
}
