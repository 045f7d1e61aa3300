import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;

/**
 * Puts SQL92 expressions to Apache's classes: file=JSON object {"contexts": [{name: value}],
 * "expressions": [text]}. Prints one line for each expression, {"refused": true} or {"results":
 * [true, false, null or "error"]}.
 */
public final class Filter {
    public static void main(String[] args) throws Exception {
        Map<String, Object> input =
                JSON.parseObject(Files.readString(Path.of(new Options(args).text("file"))));
        List<Map<String, String>> contexts = cast(input.get("contexts"));
        List<String> expressions = cast(input.get("expressions"));
        for (String text : expressions) print(answer(text, contexts));
        System.exit(0);
    }

    private static Map<String, Object> answer(String text, List<Map<String, String>> contexts) {
        Expression compiled;
        try {
            compiled = FilterFactory.INSTANCE.get("SQL92").compile(text);
        } catch (Throwable refused) {
            return Map.of("refused", true);
        }
        List<Object> results = new ArrayList<>();
        for (Map<String, String> context : contexts) {
            try {
                results.add(compiled.evaluate(new EvaluationContext() {
                    @Override
                    public Object get(String name) {
                        return context.get(name);
                    }

                    @Override
                    public Map<String, Object> keyValues() {
                        return new HashMap<>(context);
                    }
                }));
            } catch (Throwable failed) {
                results.add("error");
            }
        }
        return Map.of("results", results);
    }

    private static void print(Map<String, Object> line) {
        System.out.println(JSON.toJSONString(line, JSONWriter.Feature.WriteNulls));
    }

    @SuppressWarnings("unchecked")
    private static <T> T cast(Object value) {
        return (T) value;
    }
}
