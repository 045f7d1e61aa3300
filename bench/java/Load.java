import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.LongStream;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Loads of bench/sdk.py, with the official Java SDK: arguments ENDPOINTS TOPIC GROUP, and then a
 * line "sync MS", "async MS" or "receive MS" for each. The answer is a line: the number of
 * messages, the seconds they took, and the p50 and p99 of one call in milliseconds.
 */
public class Load {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final int THREADS = 32;
    private static final int IN_FLIGHT = 1024;
    private static final byte[] BODY = new byte[1024];
    private static final ExecutorService POOL = Executors.newFixedThreadPool(THREADS);
    private static String topic;
    private static Producer producer;
    private static SimpleConsumer consumer;

    public static void main(String[] arguments) throws Exception {
        topic = arguments[1];
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(arguments[0])
            .enableSsl(false)
            .build();
        producer = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration)
            .setTopics(topic)
            .build();
        consumer = PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(arguments[2])
            .setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
            .build();
        // a new group begins at the end: it must be there before the messages
        consumer.receive(1, Duration.ofSeconds(60));
        System.out.println("ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            long began = System.nanoTime();
            long end = began + Long.parseLong(words[1]) * 1_000_000;
            long[] took = words[0].equals("async") ? sendAsync(end)
                : inThreads(words[0].equals("sync") ? () -> sendSync(end) : () -> receive(end));
            double seconds = (System.nanoTime() - began) / 1e9;
            Arrays.sort(took);
            System.out.println(took.length + " " + seconds + " " + at(took, 0.5) + " " + at(took, 0.99));
        }
        System.exit(0);
    }

    private static double at(long[] sorted, double part) {
        return sorted.length == 0 ? 0 : sorted[(int) (part * (sorted.length - 1))] / 1e6;
    }

    private static Message message() {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(BODY).build();
    }

    private static long[] inThreads(Callable<long[]> work) throws Exception {
        List<Future<long[]>> all = POOL.invokeAll(Collections.nCopies(THREADS, work));
        LongStream.Builder took = LongStream.builder();
        for (Future<long[]> one : all) {
            for (long each : one.get()) {
                took.add(each);
            }
        }
        return took.build().toArray();
    }

    private static long[] sendSync(long end) throws Exception {
        LongStream.Builder took = LongStream.builder();
        for (long at = System.nanoTime(); at < end;) {
            producer.send(message());
            long now = System.nanoTime();
            took.add(now - at);
            at = now;
        }
        return took.build().toArray();
    }

    private static long[] sendAsync(long end) throws Exception {
        Semaphore room = new Semaphore(IN_FLIGHT);
        AtomicLong failed = new AtomicLong();
        LongStream.Builder took = LongStream.builder();
        while (System.nanoTime() < end) {
            room.acquire();
            long at = System.nanoTime();
            producer.sendAsync(message()).whenComplete((receipt, error) -> {
                if (error != null) {
                    failed.incrementAndGet();
                } else {
                    synchronized (took) {
                        took.add(System.nanoTime() - at);
                    }
                }
                room.release();
            });
        }
        room.acquire(IN_FLIGHT);
        if (failed.get() > 0) {
            throw new IllegalStateException(failed + " sends failed");
        }
        return took.build().toArray();
    }

    /** Receives and acknowledges, until the end or until a receive comes back empty. */
    private static long[] receive(long end) throws Exception {
        LongStream.Builder took = LongStream.builder();
        while (System.nanoTime() < end) {
            long at = System.nanoTime();
            List<MessageView> messages = consumer.receive(32, Duration.ofSeconds(60));
            if (messages.isEmpty()) {
                break;
            }
            for (MessageView message : messages) {
                consumer.ack(message);
                took.add(System.nanoTime() - at);
            }
        }
        return took.build().toArray();
    }
}
