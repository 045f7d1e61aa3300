import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Polls, prints a JSON line per message, commits and ends after the given number.
 * nameServer= topic= group= count= [mode=subscribe|assign] [expression=*] [seek=an offset in every
 * queue, for assign] [timeout=60]
 * Exit 1 at the timeout.
 */
public class Poll {
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
        String topic = options.text("topic");
        DefaultLitePullConsumer consumer =
                new DefaultLitePullConsumer(options.text("group"), options.hook());
        consumer.setNamesrvAddr(options.text("nameServer"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAutoCommit(false);
        boolean assigned = options.text("mode", "subscribe").equals("assign");
        if (!assigned) consumer.subscribe(topic, options.text("expression", "*"));
        consumer.start();
        try {
            if (assigned) {
                Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
                consumer.assign(queues);
                for (MessageQueue queue : queues) consumer.seek(queue, options.number("seek", 0));
            }
            int left = options.number("count", 1);
            long deadline = System.currentTimeMillis() + 1000L * options.number("timeout", 60);
            while (left > 0 && System.currentTimeMillis() < deadline) {
                List<MessageExt> messages = new ArrayList<>(consumer.poll(1000));
                for (MessageExt message : messages) {
                    Map<String, Object> line = new LinkedHashMap<>();
                    line.put("queueId", message.getQueueId());
                    line.put("queueOffset", message.getQueueOffset());
                    line.put("tags", message.getTags());
                    line.put("body", new String(message.getBody()));
                    options.show(line);
                }
                left -= messages.size();
            }
            consumer.commit();
            return left > 0 ? 1 : 0;
        } finally {
            consumer.shutdown(); // sends what was committed
        }
    }
}
