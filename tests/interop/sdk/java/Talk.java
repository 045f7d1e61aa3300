import java.io.BufferedReader;
import java.io.Closeable;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.ArrayList;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.shaded.com.google.gson.Gson;
import org.apache.rocketmq.shaded.com.google.gson.JsonElement;
import org.apache.rocketmq.shaded.com.google.gson.JsonObject;

/** Carries out the commands of sdks.py, one JSON object a line, with the official Java SDK. */
public class Talk {
    private static final Gson GSON = new Gson();
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Map<String, Closeable> CLIENTS = new HashMap<>();
    private static final Map<String, MessageView> HELD = new HashMap<>();
    /** Deliveries to push consumers, by message. */
    private static final Map<String, Integer> DELIVERIES = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        BufferedReader commands =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            JsonObject command = GSON.fromJson(line, JsonObject.class);
            Map<String, Object> answer;
            try {
                answer = carryOut(command);
            } catch (Throwable error) {
                answer = new LinkedHashMap<>();
                answer.put("error", error.toString());
            }
            answer.put("id", command.get("id").getAsInt());
            print(answer);
        }
        System.exit(0);
    }

    private static synchronized void print(Map<String, Object> line) {
        System.out.println(GSON.toJson(line));
        System.out.flush();
    }

    private static Map<String, Object> carryOut(JsonObject command) throws Exception {
        Map<String, Object> answer = new LinkedHashMap<>();
        String name = text(command, "name");
        switch (text(command, "do")) {
            case "producer":
                CLIENTS.put(name, producer(command));
                break;
            case "simple":
                CLIENTS.put(name, PROVIDER.newSimpleConsumerBuilder()
                    .setClientConfiguration(configuration(command))
                    .setConsumerGroup(text(command, "group"))
                    .setAwaitDuration(Duration.ofSeconds(5))
                    .setSubscriptionExpressions(subscription(command))
                    .build());
                break;
            case "push":
                CLIENTS.put(name, PROVIDER.newPushConsumerBuilder()
                    .setClientConfiguration(configuration(command))
                    .setConsumerGroup(text(command, "group"))
                    .setSubscriptionExpressions(subscription(command))
                    .setMessageListener(message -> consume(name, message))
                    .build());
                break;
            case "send":
                send((Producer) CLIENTS.get(name), command, answer);
                break;
            case "recall":
                answer.put("message_id", ((Producer) CLIENTS.get(name))
                    .recallMessage(text(command, "topic"), text(command, "handle"))
                    .getMessageId().toString());
                break;
            case "receive":
                List<Map<String, Object>> messages = new ArrayList<>();
                for (MessageView message : ((SimpleConsumer) CLIENTS.get(name)).receive(
                        command.get("max").getAsInt(), seconds(command, "invisible_s"))) {
                    String key = "m" + HELD.size();
                    HELD.put(key, message);
                    Map<String, Object> seen = view(message);
                    seen.put("message", key);
                    messages.add(seen);
                }
                answer.put("messages", messages);
                break;
            case "ack":
                ((SimpleConsumer) CLIENTS.get(name)).ack(HELD.get(text(command, "message")));
                break;
            case "change":
                ((SimpleConsumer) CLIENTS.get(name)).changeInvisibleDuration(
                    HELD.get(text(command, "message")), seconds(command, "invisible_s"));
                break;
            case "close":
                CLIENTS.remove(name).close();
                break;
            default:
                throw new IllegalArgumentException(command.toString());
        }
        return answer;
    }

    private static Producer producer(JsonObject command) throws Exception {
        ProducerBuilder builder =
            PROVIDER.newProducerBuilder().setClientConfiguration(configuration(command));
        for (JsonElement topic : command.getAsJsonArray("topics")) {
            builder.setTopics(topic.getAsString());
        }
        if (command.has("check")) {
            builder.setTransactionChecker(message -> {
                Map<String, Object> event = view(message);
                event.put("event", "check");
                print(event);
                return TransactionResolution.valueOf(text(command, "check").toUpperCase());
            });
        }
        return builder.build();
    }

    private static void send(Producer producer, JsonObject command, Map<String, Object> answer)
            throws Exception {
        MessageBuilder builder = PROVIDER.newMessageBuilder().setTopic(text(command, "topic"));
        byte[] body = text(command, "body").getBytes(StandardCharsets.UTF_8);
        if (command.has("size")) {
            byte[] filled = new byte[command.get("size").getAsInt()];
            for (int i = 0; i < filled.length; i++) {
                filled[i] = body[i % body.length];
            }
            body = filled;
        }
        builder.setBody(body);
        if (command.has("tag")) {
            builder.setTag(text(command, "tag"));
        }
        if (command.has("key")) {
            builder.setKeys(text(command, "key"));
        }
        if (command.has("group")) {
            builder.setMessageGroup(text(command, "group"));
        }
        if (command.has("delay_s")) {
            builder.setDeliveryTimestamp(
                System.currentTimeMillis() + seconds(command, "delay_s").toMillis());
        }
        if (command.has("priority")) {
            builder.setPriority(command.get("priority").getAsInt());
        }
        if (command.has("properties")) {
            for (Map.Entry<String, JsonElement> each :
                    command.getAsJsonObject("properties").entrySet()) {
                builder.addProperty(each.getKey(), each.getValue().getAsString());
            }
        }
        Message message = builder.build();
        SendReceipt receipt;
        if (command.has("end")) {
            Transaction transaction = producer.beginTransaction();
            receipt = producer.send(message, transaction);
            if (text(command, "end").equals("commit")) {
                transaction.commit();
            } else if (text(command, "end").equals("rollback")) {
                transaction.rollback();
            }
        } else {
            receipt = producer.send(message);
        }
        answer.put("message_id", receipt.getMessageId().toString());
        answer.put("recall_handle", receipt.getRecallHandle());
    }

    /** Fails as often as the message's property "fail" says. */
    private static ConsumeResult consume(String name, MessageView message) {
        Map<String, Object> event = view(message);
        event.put("event", "delivery");
        event.put("name", name);
        print(event);
        String fail = message.getProperties().getOrDefault("fail", "0");
        int count = DELIVERIES.merge(message.getMessageId().toString(), 1, Integer::sum);
        return count <= Integer.parseInt(fail)
            ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    }

    private static Map<String, Object> view(MessageView message) {
        ByteBuffer buffer = message.getBody();
        byte[] body = new byte[buffer.remaining()];
        buffer.get(body);
        Map<String, Object> seen = new LinkedHashMap<>();
        seen.put("message_id", message.getMessageId().toString());
        seen.put("topic", message.getTopic());
        seen.put("body", new String(body, 0, Math.min(body.length, 100), StandardCharsets.UTF_8));
        seen.put("size", body.length);
        try {
            StringBuilder digest = new StringBuilder();
            for (byte each : MessageDigest.getInstance("MD5").digest(body)) {
                digest.append(String.format("%02x", each));
            }
            seen.put("md5", digest.toString());
        } catch (java.security.NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
        seen.put("tag", message.getTag().orElse(null));
        seen.put("keys", new ArrayList<>(message.getKeys()));
        seen.put("group", message.getMessageGroup().orElse(null));
        seen.put("properties", message.getProperties());
        seen.put("attempt", message.getDeliveryAttempt());
        return seen;
    }

    private static ClientConfiguration configuration(JsonObject command) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
            .setEndpoints(text(command, "endpoints"))
            .enableSsl(command.has("tls"));
        if (command.has("access_key")) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(
                text(command, "access_key"), text(command, "secret_key")));
        }
        return builder.build();
    }

    private static Map<String, FilterExpression> subscription(JsonObject command) {
        FilterExpression filter = command.has("sql")
            ? new FilterExpression(text(command, "sql"), FilterExpressionType.SQL92)
            : new FilterExpression(command.has("tag") ? text(command, "tag") : "*");
        return Collections.singletonMap(text(command, "topic"), filter);
    }

    private static String text(JsonObject command, String key) {
        return command.has(key) ? command.get(key).getAsString() : null;
    }

    private static Duration seconds(JsonObject command, String key) {
        return Duration.ofMillis((long) (command.get(key).getAsDouble() * 1000));
    }
}
