// SPDX-License-Identifier: Apache-2.0
import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedInputStream;
import java.io.DataInputStream;
import java.io.InputStream;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.functions.source.legacy.RichParallelSourceFunction;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.runtime.generated.GeneratedRecordEqualiser;
import org.apache.flink.table.runtime.generated.RecordEqualiser;
import org.apache.flink.table.runtime.operators.sink.SinkUpsertMaterializer;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.runtime.typeutils.RowDataSerializer;
import org.apache.flink.table.runtime.util.StateConfigUtil;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.VarCharType;
import org.apache.flink.types.RowKind;

/**
 * Runs Flink's SinkUpsertMaterializer (V1, no upsert key) in a local job, and prints its seconds by the
 * clock and of CPU.
 *
 * <p>Arguments: the state backend (hashmap or rocksdb), the parallelism, a directory to warm up with, and the directory
 * to measure. A directory has one file for each subtask of the source: kind (1 byte), key and value (8 bytes each,
 * big-endian). Changes of a key are in one file. There are no checkpoints.
 */
public final class MaterializerJob {
    private static final LogicalType[] TYPES = {new BigIntType(), new BigIntType(), VarCharType.STRING_TYPE};
    private static final InternalTypeInfo<RowData> ROWS = InternalTypeInfo.of(RowType.of(TYPES));
    private static final InternalTypeInfo<RowData> KEYS = InternalTypeInfo.of(RowType.of(TYPES[0]));

    public static void main(String[] arguments) throws Exception {
        run(arguments[0], Integer.parseInt(arguments[1]), arguments[2]);
        System.out.println(run(arguments[0], Integer.parseInt(arguments[1]), arguments[3]));
    }

    private static String run(String backend, int parallelism, String directory) throws Exception {
        Configuration configuration = new Configuration();
        configuration.setString("state.backend.type", backend);
        configuration.setString("taskmanager.memory.managed.size", "512m");
        StreamExecutionEnvironment job =
                StreamExecutionEnvironment.createLocalEnvironment(parallelism, configuration);
        job.getConfig().enableObjectReuse();
        SinkUpsertMaterializer operator =
                new SinkUpsertMaterializer(
                        StateConfigUtil.createTtlConfig(0), new RowDataSerializer(TYPES), new Equaliser(), null, null);
        job.addSource(new Events(directory), "events", ROWS)
                .keyBy((KeySelector<RowData, RowData>) row -> GenericRowData.of(row.getLong(0)), KEYS)
                .transform("materializer", ROWS, operator)
                .sinkTo(new DiscardingSink<>());
        OperatingSystemMXBean process = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long began = System.nanoTime();
        long cpu = process.getProcessCpuTime();
        job.execute();
        return (System.nanoTime() - began) / 1e9 + " " + (process.getProcessCpuTime() - cpu) / 1e9;
    }

    private static final class Events extends RichParallelSourceFunction<RowData> {
        private final String directory;

        Events(String directory) {
            this.directory = directory;
        }

        @Override
        public void run(SourceContext<RowData> context) throws Exception {
            Path file = Path.of(directory, getRuntimeContext().getTaskInfo().getIndexOfThisSubtask() + ".bin");
            try (InputStream bytes = new BufferedInputStream(Files.newInputStream(file), 1 << 20);
                    DataInputStream input = new DataInputStream(bytes)) {
                for (int kind = input.read(); kind >= 0; kind = input.read()) {
                    long key = input.readLong();
                    long value = input.readLong();
                    StringData name = StringData.fromString("name " + value);
                    context.collect(GenericRowData.ofKind(RowKind.fromByteValue((byte) kind), key, value, name));
                }
            }
        }

        @Override
        public void cancel() {}
    }

    private static final class Equaliser extends GeneratedRecordEqualiser {
        Equaliser() {
            super("", "", new Object[0]);
        }

        @Override
        public RecordEqualiser newInstance(ClassLoader loader) {
            return (left, right) ->
                    left.getRowKind() == right.getRowKind()
                            && left.getLong(0) == right.getLong(0)
                            && left.getLong(1) == right.getLong(1)
                            && left.getString(2).equals(right.getString(2));
        }
    }
}
