import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends count transactional messages with the bodies "<plan> N", and prints a JSON line for each,
 * and one for each question of the broker.
 * nameServer= topic= group= count= [first=0]
 * [plans=commit,rollback,check-commit,check-rollback,check-twice] [checks=0] [hang=false]
 * The plans are taken in turn. "check-..." says "unknown" at first; "check-twice" says it once more
 * when it is asked. The program ends when it has decided about "checks" transactions that it was
 * asked about, however often: a broker repeats a question whose answer is on its way. hang=true
 * lets it print {"hanging":true} after the sends, know no answer, and wait for its end.
 */
public class Transact implements TransactionListener {
    private final Options options;
    private final boolean hang;
    private final Map<String, Integer> asked = new ConcurrentHashMap<>();
    private final Set<String> decided = ConcurrentHashMap.newKeySet();
    private final Semaphore decisions = new Semaphore(0);

    Transact(Options options) {
        this.options = options;
        this.hang = options.text("hang", "false").equals("true");
    }

    public static void main(String[] args) {
        int exit = 1;
        try {
            exit = new Transact(new Options(args)).run();
        } catch (Throwable e) {
            e.printStackTrace();
        }
        System.exit(exit);
    }

    private int run() throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(options.text("group"));
        producer.setNamesrvAddr(options.text("nameServer"));
        producer.setSendMsgTimeout(60_000);
        producer.setTransactionListener(this);
        ExecutorService answers = Executors.newSingleThreadExecutor();
        producer.setExecutorService(answers);
        producer.start();
        String[] plans =
                options.text("plans", "commit,rollback,check-commit,check-rollback,check-twice")
                        .split(",");
        int first = options.number("first", 0);
        for (int i = first; i < first + options.number("count", 1); i++) {
            String body = plans[(i - first) % plans.length] + " " + i;
            Message message =
                    new Message(options.text("topic"), "tag", "key-" + i, body.getBytes());
            TransactionSendResult result = producer.sendMessageInTransaction(message, null);
            print("body", body, "id", result.getMsgId(), "status", result.getSendStatus().name(),
                    "state", result.getLocalTransactionState().name());
        }
        if (hang) {
            print("hanging", true);
            Thread.sleep(600_000);
        }
        boolean enough = decisions.tryAcquire(options.number("checks", 0), 100, TimeUnit.SECONDS);
        answers.shutdown();
        enough &= answers.awaitTermination(60, TimeUnit.SECONDS);
        Thread.sleep(500); // nothing tells when a one-way request has left
        producer.shutdown();
        return enough ? 0 : 1;
    }

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
        return switch (plan(message)) {
            case "commit" -> LocalTransactionState.COMMIT_MESSAGE;
            case "rollback" -> LocalTransactionState.ROLLBACK_MESSAGE;
            default -> LocalTransactionState.UNKNOW;
        };
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        int times = asked.merge(message.getTransactionId(), 1, Integer::sum);
        print("asked", new String(message.getBody()), "times", times, "topic", message.getTopic(),
                "transactionId", message.getTransactionId());
        String plan = plan(message);
        if (hang || plan.equals("check-twice") && times < 2) return LocalTransactionState.UNKNOW;
        if (decided.add(message.getTransactionId())) decisions.release();
        return plan.equals("check-rollback") ? LocalTransactionState.ROLLBACK_MESSAGE
                                             : LocalTransactionState.COMMIT_MESSAGE;
    }

    private static String plan(Message message) {
        return new String(message.getBody()).split(" ")[0];
    }

    private static void print(Object... pairs) {
        Map<String, Object> line = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) line.put((String) pairs[i], pairs[i + 1]);
        Options.print(line);
    }
}
