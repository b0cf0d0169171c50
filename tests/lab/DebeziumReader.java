import io.debezium.embedded.Connect;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import io.debezium.engine.format.SerializationFormat;
import java.io.BufferedOutputStream;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Properties;

/**
 * Debezium's embedded engine as a program: {@code DebeziumReader PROPERTIES [EVENTS]}.
 *
 * <p>Without EVENTS each change event is a line of JSON on standard output, until standard input ends. With it, events
 * go to the file that the property {@code reader.output} names (none: they are counted, and not serialised); so many of
 * them later it prints the wall and CPU seconds since the first ones came, and ends.
 */
public final class DebeziumReader {
    private static final long START = System.nanoTime();

    private DebeziumReader() {
    }

    private interface Sink<T> {
        void take(List<ChangeEvent<T, T>> events) throws IOException;
    }

    public static void main(String[] words) throws Exception {
        Properties properties = new Properties();
        try (FileInputStream file = new FileInputStream(words[0])) {
            properties.load(file);
        }
        String path = properties.getProperty("reader.output", "");
        if (words.length == 1) {
            OutputStream out = new BufferedOutputStream(System.out, 1 << 16);
            Thread ender = new Thread(DebeziumReader::endWithInput);
            ender.setDaemon(true);
            ender.start();
            run(Json.class, properties, events -> {
                for (ChangeEvent<String, String> event : events) {
                    write(out, "{\"key\":" + event.key() + ",\"value\":" + event.value() + "}");
                }
                out.flush();
            });
        } else if (path.isEmpty()) {
            Stopwatch watch = new Stopwatch(Long.parseLong(words[1]));
            run(Connect.class, properties, events -> {
                if (watch.counts(events.size())) {
                    watch.end();
                }
            });
        } else {
            raceIntoFile(properties, path, new Stopwatch(Long.parseLong(words[1])));
        }
    }

    private static void raceIntoFile(Properties properties, String path, Stopwatch watch) throws Exception {
        FileOutputStream file = new FileOutputStream(path);
        OutputStream out = new BufferedOutputStream(file, 1 << 16);
        run(Json.class, properties, events -> {
            boolean isLast = watch.counts(events.size());
            for (ChangeEvent<String, String> event : events) {
                write(out, event.value());
            }
            if (isLast) {
                out.flush();
                file.getFD().sync();
                watch.end();
            }
        });
    }

    private static <T> void run(Class<? extends SerializationFormat<T>> format, Properties properties, Sink<T> sink) {
        DebeziumEngine.ChangeConsumer<ChangeEvent<T, T>> consumer = (events, committer) -> {
            try {
                sink.take(events);
            } catch (IOException error) {
                throw new java.io.UncheckedIOException(error);
            }
            for (ChangeEvent<T, T> event : events) {
                committer.markProcessed(event);
            }
            committer.markBatchFinished();
        };
        DebeziumEngine.create(format).using(properties).using((isFine, message, error) -> {
            System.err.println("Debezium ended: " + message + " " + error);
            Runtime.getRuntime().halt(isFine ? 0 : 1);
        }).notifying(consumer).build().run();
    }

    private static void write(OutputStream out, String line) throws IOException {
        out.write(line.getBytes(StandardCharsets.UTF_8));
        out.write('\n');
    }

    /** Whoever started it has ended, or has enough: what was not taken is nobody's. */
    private static void endWithInput() {
        try {
            while (System.in.read() >= 0) {
                continue;
            }
        } catch (IOException error) {
            System.err.println(error);
        }
        Runtime.getRuntime().halt(0);
    }

    /** What the wanted number of events took since the first of them came. */
    private static final class Stopwatch {
        private final long wanted;
        private long count;
        private long start;
        private long startCpu;

        Stopwatch(long wanted) {
            this.wanted = wanted;
        }

        boolean counts(int events) {
            if (count == 0) {
                start = System.nanoTime();
                startCpu = cpu();
            }
            count += events;
            return count >= wanted;
        }

        void end() {
            System.out.println("{\"events\":" + count + ",\"wall\":" + (System.nanoTime() - start) / 1e9
                + ",\"cpu\":" + (cpu() - startCpu) / 1e9 + ",\"first\":" + (start - START) / 1e9 + "}");
            System.out.flush();
            Runtime.getRuntime().halt(0);
        }

        private static long cpu() {
            return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
                .getProcessCpuTime();
        }
    }
}
