import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * Arguments of the form key=value, with defaults; and one JSON line per result on standard output.
 */
final class Options {
    private final Map<String, String> values = new HashMap<>();

    Options(String[] args) {
        for (String arg : args) {
            int equals = arg.indexOf('=');
            if (equals < 1) throw new IllegalArgumentException("not key=value: " + arg);
            values.put(arg.substring(0, equals), arg.substring(equals + 1));
        }
    }

    String text(String key) {
        String value = values.get(key);
        if (value == null) throw new IllegalArgumentException("missing " + key + "=");
        return value;
    }

    String text(String key, String otherwise) { return values.getOrDefault(key, otherwise); }

    /** Signs with accessKey= and secretKey=; null without them. */
    org.apache.rocketmq.remoting.RPCHook hook() {
        if (!values.containsKey("accessKey")) return null;
        return new org.apache.rocketmq.acl.common.AclClientRPCHook(
                new org.apache.rocketmq.acl.common.SessionCredentials(
                        text("accessKey"), text("secretKey")));
    }

    int number(String key, int otherwise) {
        return Integer.parseInt(text(key, Integer.toString(otherwise)));
    }

    /** Prints the line; with run=N it says so, see Serve. */
    void show(Map<String, Object> line) {
        Map<String, Object> named = new LinkedHashMap<>(line);
        if (values.containsKey("run")) named.put("run", number("run", 0));
        print(named);
    }

    static synchronized void print(Map<String, Object> line) {
        System.out.println(com.alibaba.fastjson2.JSON.toJSONString(line));
        System.out.flush();
    }
}
