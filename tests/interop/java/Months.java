import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.Map;
import java.util.TimeZone;
import com.alibaba.fastjson2.JSON;
import org.apache.rocketmq.common.message.MessageClientIDSetter;

/**
 * Asks Apache's class from when on it counts the milliseconds in unique keys: zones=NAME,NAME
 * times=MS,MS. Prints one line for each zone and time, {"zone": name, "time": ms, "start": ms}.
 */
public final class Months {
    public static void main(String[] args) throws Exception {
        Options options = new Options(args);
        Method begin = MessageClientIDSetter.class.getDeclaredMethod("setStartTime", long.class);
        Field start = MessageClientIDSetter.class.getDeclaredField("startTime");
        begin.setAccessible(true);
        start.setAccessible(true);
        for (String zone : options.text("zones").split(",")) {
            TimeZone.setDefault(TimeZone.getTimeZone(zone));
            for (String time : options.text("times").split(",")) {
                begin.invoke(null, Long.parseLong(time));
                System.out.println(JSON.toJSONString(Map.of(
                        "zone", zone, "time", Long.parseLong(time), "start", start.getLong(null))));
            }
        }
        System.exit(0);
    }
}
