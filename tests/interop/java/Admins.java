import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs one mqadmin command per line of standard input in one JVM, with "### command" before each
 * command's output.
 */
public class Admins {
    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            System.out.println("\n### " + line); // some commands end without a line feed
            try {
                MQAdminStartup.main0(line.trim().split("\\s+"), null);
            } catch (Throwable e) {
                e.printStackTrace(System.out);
            }
            System.out.flush();
        }
        System.exit(0); // the client's threads would keep the process alive
    }
}
