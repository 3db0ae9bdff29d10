// SPDX-License-Identifier: Apache-2.0
import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.RuntimeExecutionMode;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.legacy.RichSinkFunction;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.IntType;
import org.apache.flink.table.types.logical.LocalZonedTimestampType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.VarBinaryType;
import org.apache.flink.table.types.logical.VarCharType;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;

/**
 * Reads topics to their ends with Flink's Kafka source, all columns as rows, into a sink that counts them.
 *
 * <p>Arguments: the brokers and the parallelism. Each line of the standard input is a mode (batch or streaming) and a
 * topic; for each, a line with rows, seconds by the clock and seconds of CPU is printed. Source and sink are chained, so
 * that rows are never serialized.
 */
public final class KafkaReadJob {
    private static final InternalTypeInfo<RowData> ROWS =
            InternalTypeInfo.of(
                    RowType.of(
                            new VarBinaryType(VarBinaryType.MAX_LENGTH),
                            new VarBinaryType(VarBinaryType.MAX_LENGTH),
                            VarCharType.STRING_TYPE,
                            new IntType(),
                            new BigIntType(),
                            new LocalZonedTimestampType(3),
                            new IntType()));
    private static final AtomicLong COUNTED = new AtomicLong();

    public static void main(String[] arguments) throws Exception {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        OperatingSystemMXBean process = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            COUNTED.set(0);
            long began = System.nanoTime();
            long cpu = process.getProcessCpuTime();
            read(arguments[0], Integer.parseInt(arguments[1]), words[0], words[1]);
            double seconds = (System.nanoTime() - began) / 1e9;
            System.out.println(COUNTED.get() + " " + seconds + " " + (process.getProcessCpuTime() - cpu) / 1e9);
        }
    }

    private static void read(String brokers, int parallelism, String mode, String topic) throws Exception {
        StreamExecutionEnvironment job = StreamExecutionEnvironment.createLocalEnvironment(parallelism);
        job.setRuntimeMode(RuntimeExecutionMode.valueOf(mode.toUpperCase()));
        job.getConfig().enableObjectReuse();
        KafkaSource<RowData> source =
                KafkaSource.<RowData>builder()
                        .setBootstrapServers(brokers)
                        .setTopics(topic)
                        .setStartingOffsets(OffsetsInitializer.earliest())
                        .setBounded(OffsetsInitializer.latest())
                        .setDeserializer(new Rows())
                        .build();
        job.fromSource(source, WatermarkStrategy.noWatermarks(), "kafka", ROWS).addSink(new Counting());
        job.execute();
    }

    private static final class Rows implements KafkaRecordDeserializationSchema<RowData> {
        private transient String topic;
        private transient StringData name;

        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<RowData> out) {
            if (record.topic() != topic) {
                topic = record.topic();
                name = StringData.fromString(topic);
            }
            out.collect(
                    GenericRowData.of(
                            record.key(),
                            record.value(),
                            name,
                            record.partition(),
                            record.offset(),
                            TimestampData.fromEpochMillis(record.timestamp()),
                            record.timestampType().id));
        }

        @Override
        public TypeInformation<RowData> getProducedType() {
            return ROWS;
        }
    }

    private static final class Counting extends RichSinkFunction<RowData> {
        private long count;

        @Override
        public void invoke(RowData row, Context context) {
            count++;
        }

        @Override
        public void close() {
            COUNTED.addAndGet(count);
        }
    }
}
