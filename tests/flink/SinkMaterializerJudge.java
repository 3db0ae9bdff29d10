// SPDX-License-Identifier: Apache-2.0
import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.streaming.util.KeyedOneInputStreamOperatorTestHarness;
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
 * Runs Flink's SinkUpsertMaterializer (V1, state on the heap) on cases, and writes what it emits after each event.
 *
 * <p>Arguments: a file of cases and a file of results, both JSON lines. A case has {@code types} (BIGINT or STRING of
 * each column), {@code key} and {@code upsert_key} (indexes; the latter may be null), {@code ttl} in milliseconds (0
 * for none), and {@code events}: {@code [kind, [values]]} for a row, or a number to set the processing time. A result
 * is a list with the rows emitted after each event.
 */
public final class SinkMaterializerJudge {
    private static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] arguments) throws Exception {
        try (BufferedReader cases = Files.newBufferedReader(Path.of(arguments[0]));
                BufferedWriter results = Files.newBufferedWriter(Path.of(arguments[1]))) {
            for (String line = cases.readLine(); line != null; line = cases.readLine()) {
                results.write(JSON.writeValueAsString(run(JSON.readTree(line))));
                results.newLine();
            }
        }
    }

    private static ArrayNode run(JsonNode judged) throws Exception {
        LogicalType[] types = types(judged.get("types"));
        int[] key = indexes(judged.get("key"));
        int[] upsertKey = indexes(judged.get("upsert_key"));
        SinkUpsertMaterializer operator =
                new SinkUpsertMaterializer(
                        StateConfigUtil.createTtlConfig(judged.get("ttl").asLong()),
                        new RowDataSerializer(types),
                        equaliser(types),
                        upsertKey == null ? null : equaliser(of(types, upsertKey)),
                        upsertKey);
        InternalTypeInfo<RowData> keyType = InternalTypeInfo.of(RowType.of(of(types, key)));
        ArrayNode emitted = JSON.createArrayNode();
        try (KeyedOneInputStreamOperatorTestHarness<RowData, RowData, RowData> harness =
                new KeyedOneInputStreamOperatorTestHarness<>(operator, keyOf(types, key), keyType)) {
            harness.open();
            for (JsonNode event : judged.get("events")) {
                if (event.isNumber()) {
                    harness.setStateTtlProcessingTime(event.asLong());
                } else {
                    harness.processElement(new StreamRecord<>(row(event, types)));
                }
                ArrayNode step = emitted.addArray();
                for (Object output : harness.getOutput()) {
                    write(step.addArray(), (RowData) ((StreamRecord<?>) output).getValue(), types);
                }
                harness.getOutput().clear();
            }
        }
        return emitted;
    }

    private static LogicalType[] types(JsonNode names) {
        List<LogicalType> types = new ArrayList<>();
        for (JsonNode name : names) {
            types.add(name.asText().equals("BIGINT") ? new BigIntType() : VarCharType.STRING_TYPE);
        }
        return types.toArray(new LogicalType[0]);
    }

    private static int[] indexes(JsonNode list) {
        return list.isNull() ? null : JSON.convertValue(list, int[].class);
    }

    private static LogicalType[] of(LogicalType[] types, int[] indexes) {
        LogicalType[] some = new LogicalType[indexes.length];
        for (int at = 0; at < indexes.length; at++) {
            some[at] = types[indexes[at]];
        }
        return some;
    }

    private static RowData row(JsonNode event, LogicalType[] types) {
        GenericRowData row = new GenericRowData(kind(event.get(0).asText()), types.length);
        for (int at = 0; at < types.length; at++) {
            JsonNode value = event.get(1).get(at);
            if (!value.isNull()) {
                row.setField(at, types[at] instanceof BigIntType ? value.asLong() : StringData.fromString(value.asText()));
            }
        }
        return row;
    }

    private static RowKind kind(String shortString) {
        for (RowKind kind : RowKind.values()) {
            if (kind.shortString().equals(shortString)) {
                return kind;
            }
        }
        throw new IllegalArgumentException(shortString);
    }

    private static void write(ArrayNode change, RowData row, LogicalType[] types) {
        change.add(row.getRowKind().shortString());
        ArrayNode values = change.addArray();
        for (int at = 0; at < types.length; at++) {
            if (row.isNullAt(at)) {
                values.addNull();
            } else if (types[at] instanceof BigIntType) {
                values.add(row.getLong(at));
            } else {
                values.add(row.getString(at).toString());
            }
        }
    }

    private static KeySelector<RowData, RowData> keyOf(LogicalType[] types, int[] key) {
        return row -> {
            GenericRowData selected = new GenericRowData(key.length);
            for (int at = 0; at < key.length; at++) {
                selected.setField(at, value(row, types[key[at]], key[at]));
            }
            return selected;
        };
    }

    private static Object value(RowData row, LogicalType type, int at) {
        return row.isNullAt(at) ? null : type instanceof BigIntType ? (Object) row.getLong(at) : row.getString(at);
    }

    /** Stands for the equaliser that Flink's planner generates: kinds and all fields are equal, NULL equals NULL. */
    private static GeneratedRecordEqualiser equaliser(LogicalType[] types) {
        return new GeneratedRecordEqualiser("", "", new Object[0]) {
            @Override
            public RecordEqualiser newInstance(ClassLoader loader) {
                return (left, right) -> {
                    boolean equal = left.getRowKind() == right.getRowKind();
                    for (int at = 0; equal && at < types.length; at++) {
                        Object one = value(left, types[at], at);
                        Object other = value(right, types[at], at);
                        equal = one == null ? other == null : one.equals(other);
                    }
                    return equal;
                };
            }
        };
    }
}
