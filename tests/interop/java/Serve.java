import com.alibaba.fastjson2.JSON;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Map;

/**
 * Runs Send, Consume and Pop one after the other in one JVM, each but Pop with a client of its own:
 * a line of standard input is a JSON array, the class and its arguments, one of them run=N. What a
 * run prints has "run": N; at its end comes {"run": N, "exit": code}. Ends with standard input.
 */
public class Serve {
    public static void main(String[] args) throws Exception {
        BufferedReader in =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null;) {
            String[] words = JSON.parseArray(line).toArray(String[]::new);
            Options options = new Options(Arrays.copyOfRange(words, 1, words.length));
            options.show(Map.of("exit", run(words[0], options)));
        }
        System.exit(0); // the clients' threads would keep the process alive
    }

    private static int run(String name, Options options) {
        try {
            return switch (name) {
                case "Send" -> new Send(options).run();
                case "Consume" -> Consume.run(options);
                case "Pop" -> Pop.run(options);
                default -> throw new IllegalArgumentException(name);
            };
        } catch (Throwable e) {
            e.printStackTrace();
            return 1;
        }
    }
}
