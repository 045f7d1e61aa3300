import java.io.FileInputStream;
import java.io.InputStream;
import java.util.Properties;

/**
 * Reads each file that is named as java.util.Properties, and prints names and values in hexadecimal
 * digits of UTF-16, a file a line.
 */
public class Settings {
    public static void main(String[] args) throws Exception {
        for (String file : args) {
            Properties found = new Properties();
            StringBuilder line = new StringBuilder("{\"settings\": {");
            try (InputStream in = new FileInputStream(file)) {
                found.load(in);
                String before = "";
                for (String name : found.stringPropertyNames()) {
                    line.append(before)
                            .append('"')
                            .append(hex(name))
                            .append("\": \"")
                            .append(hex(found.getProperty(name)))
                            .append('"');
                    before = ", ";
                }
                line.append("}}");
            } catch (IllegalArgumentException e) {
                line = new StringBuilder("{\"settings\": null}");
            }
            System.out.println(line);
        }
        System.exit(0);
    }

    private static String hex(String text) {
        StringBuilder digits = new StringBuilder();
        for (char unit : text.toCharArray()) digits.append(String.format("%04x", (int) unit));
        return digits.toString();
    }
}
