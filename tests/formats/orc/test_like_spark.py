# SPDX-License-Identifier: Apache-2.0
"""ORC against Spark's own reader, value for value."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pytest
from py4j.java_gateway import get_field, set_field
from pyarrow import orc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from forebay.errors import ConfigurationError
from forebay.formats.orc.format import OrcFormat, OrcOptions

ZONE = "America/St_Johns"
OPTIONS = OrcOptions(time_zone=ZONE)


class LocalFile:
    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.size = path.stat().st_size

    def open(self) -> BinaryIO:
        return open(self.path, "rb", buffering=0)


def parts(path: Path) -> list[LocalFile]:
    return [LocalFile(one) for one in sorted(path.glob("*.orc"))] if path.is_dir() else [LocalFile(path)]


def ours(path: Path, schema: pa.Schema | None = None, options: OrcOptions = OPTIONS) -> pa.Table:
    reader = OrcFormat(options)
    files = parts(path)
    schema = reader.infer_schema(files) if schema is None else schema
    batches = [batch for file in files for batch, _ in reader.read(file, schema)]
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches, schema)


def columns(table: pa.Table) -> dict[str, list[str]]:
    """Values as text by column, so that NaN equals NaN and -0.0 does not equal 0.0."""
    plain = table.cast(pa.schema([pa.field(field.name, _plain(field.type)) for field in table.schema]))
    return {name: [repr(value) for value in plain.column(name).to_pylist()] for name in plain.schema.names}


def _plain(kind: pa.DataType) -> pa.DataType:
    """Times as numbers, because some of Python's objects do not cover all values."""
    if isinstance(kind, pa.StructType):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in kind])
    if isinstance(kind, pa.MapType):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if isinstance(kind, pa.ListType):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) else kind


def arrow_schema(frame: DataFrame) -> pa.Schema:
    return to_arrow_schema(frame.schema, timezone="UTC")


def check(spark: SparkSession, path: Path, schema: str | None = None, options: OrcOptions = OPTIONS) -> int:
    """Compare schema and values; return how many columns there were."""
    reader = spark.read.option("mergeSchema", options.merge_schema)
    theirs = (reader if schema is None else reader.schema(schema)).orc(str(path))
    if schema is None:
        found = OrcFormat(options).infer_schema(parts(path))
        assert found.names == theirs.columns
        assert found.types == arrow_schema(theirs).types
    mine = columns(ours(path, None if schema is None else arrow_schema(theirs), options))
    for name, values in columns(theirs.toArrow()).items():
        assert mine[name] == values, name
    return len(mine)


EVERYTHING = """
    select id, cast(id % 128 as tinyint) b, cast(id as smallint) s, cast(id as int) i, id * 1.5D d,
    cast(id / 3 as float) f,
    if(id % 3 = 0, null, concat('text ', id)) t, concat('é', id % 5) dictionary, cast(concat('bin', id) as binary) bin,
    id % 2 = 0 flag, date_add(date'1890-01-01', cast(id * 97 as int)) day,
    timestamp_micros(id * 86400000123456 - 2000000000000000) ts, timestamp_micros(id * 36000000000) hours,
    if(id % 2 = 0, timestamp'1900-01-03 00:00:00', timestamp'9999-12-31 23:59:59.999999') far,
    cast(timestamp_micros(id * 86400000123456 - 2000000000000000) as timestamp_ntz) ntz,
    cast(id * 1.01 as decimal(7, 2)) d7, cast(id * 1.01 as decimal(17, 5)) d17, cast(id * -1.01 as decimal(38, 18)) d38,
    array(id, null, id + 1) l, array(named_struct('x', id, 'y', array(cast(id as string)))) ls,
    cast(array() as array<int>) nothing,
    map(concat('k', id), named_struct('v', id)) m, named_struct('a', id, 'b', map(id, array(id))) st,
    if(id % 4 = 0, null, named_struct('t', timestamp_micros(id * 1000001), 'd', date'1500-01-01')) inside,
    array(timestamp_micros(id), null, timestamp'2600-01-01 00:00:00') lt,
    make_dt_interval(cast(id as int), 1, 2, 3.5) dur,
    cast(null as int) n, double('NaN') nan, -0.0D zero, cast('' as string) empty,
    date_add(date'0001-01-01', cast(id * 1111 as int)) old, repeat('x', cast(id % 300 as int)) long,
    cast('a  ' as char(5)) c, cast('abc' as varchar(3)) v
    from range(0, 650)
"""


@pytest.mark.soak("SNAPPY", "LZ4")
@pytest.mark.parametrize(
    "writer",
    [
        pytest.param({"orc.compress": "ZSTD"}, marks=pytest.mark.soak),
        {"orc.compress": "ZLIB", "orc.dictionary.key.threshold": "1.0", "orc.stripe.size": "1024"},
        {"orc.compress": "SNAPPY", "orc.dictionary.key.threshold": "0"},
        {"orc.compress": "LZ4", "orc.write.format": "0.11"},
        pytest.param({"orc.compress": "NONE", "orc.row.index.stride": "1000"}, marks=pytest.mark.soak),
    ],
    ids=lambda options: options["orc.compress"],
)
def test_what_spark_writes_is_read_back(spark_in_zone: SparkSession, tmp_path: Path, writer: dict[str, str]) -> None:
    spark_in_zone.sql(EVERYTHING).coalesce(1).write.options(**writer).orc(str(tmp_path / "w"))
    assert check(spark_in_zone, tmp_path / "w") > 30


def micros(chosen: random.Random, most: int) -> int:
    value = chosen.randrange(-most, most)
    return value if value >= 0 else value // 1_000_000 * 1_000_000


VALUES: dict[str, tuple[pa.DataType, Any]] = {
    "bool": (pa.bool_(), lambda r: r.random() < 0.5),
    "int8": (pa.int8(), lambda r: r.randrange(-128, 128)),
    "int16": (pa.int16(), lambda r: r.randrange(-(2**15), 2**15)),
    "int32": (pa.int32(), lambda r: r.randrange(-(2 ** r.randrange(1, 32)), 2 ** r.randrange(1, 32))),
    "int64": (pa.int64(), lambda r: r.randrange(-(2 ** r.randrange(1, 64)), 2 ** r.randrange(1, 64))),
    "float": (pa.float32(), lambda r: r.choice([0.5, float("inf"), float("nan"), -0.0, r.gauss(0, 1e6)])),
    "double": (pa.float64(), lambda r: r.choice([0.1, -float("inf"), float("nan"), -0.0, r.gauss(0, 1e60)])),
    "text": (pa.string(), lambda r: "".join(r.choices("aé😀\0 ", k=r.randrange(9)))),
    "names": (pa.string(), lambda r: r.choice(["red", "green", "", "blue"])),
    "binary": (pa.binary(), lambda r: r.randbytes(r.randrange(9))),
    "date": (pa.date32(), lambda r: r.randrange(-719_000, 2_000_000)),
    # Arrow writes fractions of seconds before 1970 so that Spark cannot read them.
    "near": (pa.timestamp("us", "UTC"), lambda r: micros(r, 100_000_000_000)),
    "ms": (pa.timestamp("ms", "UTC"), lambda r: micros(r, 2 * 10**15) // 1000),
    "instant": (pa.timestamp("us", "UTC"), lambda r: max(micros(r, 9 * 10**15), -2 * 10**15)),
    "decimal 5": (pa.decimal128(5, 2), lambda r: Decimal(r.randrange(-99999, 99999)).scaleb(-2)),
    "decimal 18": (pa.decimal128(18, 0), lambda r: Decimal(r.randrange(-(10**18) + 1, 10**18))),
    "decimal 38": (pa.decimal128(38, 6), lambda r: Decimal(r.randrange(-(10**37), 10**37)).scaleb(-6)),
}


def typed(chosen: random.Random, depth: int) -> tuple[pa.DataType, Any]:
    """A type and what makes its values, null among them."""
    kind = chosen.choice(["simple", "list", "struct", "map"] if depth else ["simple"])
    some: Any
    if kind == "simple":
        data_type, make = VALUES[chosen.choice(list(VALUES))]
        return data_type, lambda r: None if r.random() < 0.1 else make(r)
    inner, value = typed(chosen, depth - 1)
    if kind == "list":
        data_type, some = pa.list_(inner), lambda r: [value(r) for _ in range(r.randrange(4))]
    elif kind == "map":
        data_type = pa.map_(pa.string(), inner)
        some = lambda r: [(key, value(r)) for key in "abc"[: r.randrange(4)]]  # noqa: E731 - one of three
    else:
        second, other = typed(chosen, depth - 1)
        data_type, some = pa.struct([("x", inner), ("Y", second)]), lambda r: {"x": value(r), "Y": other(r)}
    return data_type, lambda r: None if r.random() < 0.1 else some(r)


def generated(seed: int) -> pa.Table:
    """A table with a column of each simple type, and some nested ones."""
    chosen = random.Random(seed)
    rows = chosen.choice([1, 50, 700, 1500])
    made = [*VALUES.values(), *(typed(chosen, 2) for _ in range(6))]
    return pa.table(
        {
            f"c{place}": pa.array([make(chosen) for _ in range(rows)], data_type)
            for place, (data_type, make) in enumerate(made)
        }
    )


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(5, 30))])
def test_generated_tables_are_read_as_by_spark(spark_in_zone: SparkSession, tmp_path: Path, seed: int) -> None:
    codec = ["uncompressed", "zlib", "snappy", "lz4", "zstd"][seed % 5]
    path = tmp_path / "f.orc"
    orc.write_table(
        generated(seed),
        path,
        compression=codec,
        dictionary_key_size_threshold=seed % 2,
        stripe_size=1 << 14 if seed % 3 else 1 << 26,
        compression_block_size=1 << 16 if seed % 2 else 1 << 18,
        batch_size=100,
    )
    assert check(spark_in_zone, path) == len(VALUES) + 6


STORED = {
    "boolean": ("true", "false", "null"),
    "tinyint": ("1Y", "-128Y", "null"),
    "smallint": ("1S", "300S", "null"),
    "int": ("1", "70000", "-5", "0", "null"),
    "bigint": ("1L", "5000000000L", "9223372036854775807L", "-1L", "null"),
    "float": ("1.1F", "3e38F", "float('NaN')", "-0.0F", "1e10F", "-7.9F", "null"),
    "double": ("1.1D", "1e300D", "double('NaN')", "-0.0D", "1e10D", "300.7D", "9223372036854775807D", "null"),
    "string": ("'1'", "'x'", "'2020-01-01'", "' 7 '", "null"),
    "binary": ("X'61'", "X'FF'", "null"),
    "date": ("date'2020-01-01'", "date'1500-01-01'", "null"),
    "timestamp": ("timestamp'2020-01-01 12:00:00.123456'", "timestamp'1969-12-31 23:59:59.5'", "null"),
    "timestamp_ntz": ("timestamp_ntz'2020-01-01 12:00:00.123456'", "null"),
    "decimal(9,2)": ("1.23BD", "-9999999.99BD", "0.05BD", "-0.05BD", "null"),
    "decimal(10,3)": ("-357.143BD", "1.005BD", "123456.789BD", "0.100BD", "null"),
    "decimal(38,10)": ("1.25BD", "123456789012345678.9BD", "9999999999999999999999999999.9999999999BD", "null"),
    "array<int>": ("array(1, null)", "null"),
    "struct<a:int>": ("named_struct('a', 1)", "null"),
    "map<string,int>": ("map('a', 1)", "null"),
}
ASKED = (
    *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date", "timestamp"),
    *("timestamp_ntz", "decimal(9,2)", "decimal(5,1)", "decimal(20,0)", "decimal(38,10)", "decimal(38,12)"),
    *("interval day to second", "array<bigint>", "struct<a: bigint, z: int>", "struct<A: int>", "map<string, bigint>"),
)


@pytest.mark.soak
def test_every_pair_of_types_we_read_is_read_as_by_spark(spark_in_zone: SparkSession, tmp_path: Path) -> None:
    values = [
        f"cast(get(array({', '.join(given)}), cast(id as int)) as {stored}) c{place}_{copy}"
        for place, (stored, given) in enumerate(STORED.items())
        for copy in range(len(ASKED))
    ]
    spark_in_zone.range(8).selectExpr(*values).coalesce(1).write.orc(str(tmp_path / "w"))
    # One column of each type, because each question reads the whole footer.
    once = spark_in_zone.read.orc(str(tmp_path / "w")).selectExpr(
        *(f"c{place}_0 c{place}" for place in range(len(STORED)))
    )
    once.coalesce(1).write.orc(str(tmp_path / "once"))
    pairs = {f"c{place}_{copy}": text for place in range(len(STORED)) for copy, text in enumerate(ASKED)}
    fields = arrow_schema(
        spark_in_zone.createDataFrame([], ", ".join(f"{name} {text}" for name, text in pairs.items()))
    )
    readable = [
        f"{name} {text}"
        for name, text in pairs.items()
        if reads(tmp_path / "once", fields.field(name).with_name(name.partition("_")[0]))
    ]
    assert len(readable) >= 85
    # With more columns Spark reads row by row, which fails for more pairs.
    for first in range(0, len(readable), 90):
        check(spark_in_zone, tmp_path / "w", ", ".join(readable[first : first + 90]))


def reads(path: Path, field: pa.Field) -> bool:
    try:
        ours(path, pa.schema([field]))
    except ConfigurationError:
        return False
    return True


SHAPES = {
    "case and missing": "s struct<B: string, z: int, a: bigint>, x int",
    "no field at all": "s struct<z: int>",
    "nested missing": "s struct<c: struct<q: int>>",
    "wider inside": "l array<bigint>, m map<string, bigint>, ls array<struct<b: bigint, q: int>>",
    "all missing in list": "ls array<struct<zz: int>>",
    "nothing but missing": "zz int, yy array<int>",
    "other order": "m map<string, int>, s struct<c: struct<d: int>, a: int>",
}


@pytest.mark.soak
def test_a_schema_of_other_shape_is_filled_as_by_spark(spark_in_zone: SparkSession, tmp_path: Path) -> None:
    table = pa.table(
        {
            "s": pa.array([{"a": 1, "b": "x", "c": {"d": 1}}, None, {"a": None, "b": None, "c": None}]),
            "l": pa.array([[1, None], [], None], pa.list_(pa.int32())),
            "m": pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int32())),
            "ls": pa.array([[{"a": 1, "B": 2}], None, [None]]),
        }
    )
    orc.write_table(table, tmp_path / "f.orc")
    for schema in SHAPES.values():
        check(spark_in_zone, tmp_path / "f.orc", schema)


def test_merged_schemas_have_sparks_columns(spark_in_zone: SparkSession, tmp_path: Path) -> None:
    numbers = [pa.array([Decimal(1)], pa.decimal128(digits, 2)) for digits in (9, 12)]
    orc.write_table(pa.table({"X": numbers[0], "l": pa.array([[{"a": 1}]])}), tmp_path / "b.orc")
    orc.write_table(pa.table({"n": pa.array(["t"]), "x": numbers[1], "l": pa.array([[{"b": 1}]])}), tmp_path / "a.orc")
    mine = ours(tmp_path, None, OrcOptions(time_zone=ZONE, merge_schema=True))
    theirs = spark_in_zone.read.option("mergeSchema", "true").orc(str(tmp_path))
    # Spark merges in the order in which the directory lists its files, which is any.
    assert mine.schema.names == ["n", "x", "l"]
    assert unordered(mine) == unordered(theirs.toArrow())


def unordered(table: pa.Table) -> list[str]:
    """Rows as text, without the order of rows, columns and fields, and without the case of names."""
    return sorted(json.dumps(fold(row), sort_keys=True, default=str) for row in table.to_pylist())


def fold(value: Any) -> Any:
    if isinstance(value, dict):
        return {name.lower(): fold(inside) for name, inside in value.items()}
    return [fold(inside) for inside in value] if isinstance(value, list) else value


def test_names_that_differ_in_case(spark_in_zone: SparkSession, tmp_path: Path) -> None:
    orc.write_table(pa.table({"a": [1], "A": ["x"]}), tmp_path / "f.orc")
    with pytest.raises(ConfigurationError, match="two columns have the same name"):
        ours(tmp_path)
    with pytest.raises(ConfigurationError, match="column 'a' of the schema matches several columns of .*: 'a', 'A'"):
        ours(tmp_path, pa.schema([("a", pa.int64())]))
    spark_in_zone.conf.set("spark.sql.caseSensitive", "true")
    try:
        options = OrcOptions(time_zone=ZONE, case_sensitive=True)
        assert check(spark_in_zone, tmp_path / "f.orc", options=options) == 2
        assert check(spark_in_zone, tmp_path / "f.orc", "A string, a int", options=options) == 2
    finally:
        spark_in_zone.conf.unset("spark.sql.caseSensitive")


def test_a_file_spark_refuses_is_refused(spark_in_zone: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "f.orc").write_bytes(b"ORC this is not a whole file ORC")
    with pytest.raises(Exception, match="Exception"):
        spark_in_zone.read.schema("a int").orc(str(tmp_path)).collect()
    with pytest.raises(Exception, match="not a complete ORC file"):
        ours(tmp_path, pa.schema([("a", pa.int32())]))


def set_jvm_zone(session: SparkSession, zone: str) -> None:
    jvm: Any = session._jvm
    jvm.java.util.TimeZone.setDefault(jvm.java.util.TimeZone.getTimeZone(zone))


def jvm_file(spark: SparkSession, path: Path, schema: str, rows: list[list[Any]], **settings: str) -> None:
    """Write a file by ORC's own writer for Java, with types that Spark does not write."""
    jvm: Any = spark._jvm
    conf = jvm.org.apache.hadoop.conf.Configuration()
    for name, value in settings.items():
        conf.set(name.replace("_", "."), value)
    description = jvm.org.apache.orc.TypeDescription.fromString(schema)
    options = jvm.org.apache.orc.OrcFile.writerOptions(conf).setSchema(description)
    writer = jvm.org.apache.orc.OrcFile.createWriter(jvm.org.apache.hadoop.fs.Path(str(path)), options)
    batch = description.createRowBatch()
    for place, row in enumerate(rows):
        for column, value in enumerate(row):
            vector = get_field(batch, "cols")[column]
            if value is None:
                set_field(vector, "noNulls", False)
                get_field(vector, "isNull")[place] = True
            elif isinstance(value, str):
                vector.setVal(place, value.encode())
            elif isinstance(value, tuple):
                vector.set(place, jvm.java.sql.Timestamp.valueOf(*value))
            else:
                get_field(vector, "vector")[place] = value
    set_field(batch, "size", len(rows))
    writer.addRowBatch(batch)
    writer.close()


def test_types_that_spark_does_not_write(spark_in_zone: SparkSession, tmp_path: Path) -> None:
    schema = "struct<v:varchar(3),i:timestamp with local time zone,t:timestamp,d:date>"
    rows = [
        ["xyz", ("2020-07-01 12:00:00.5",), ("2020-07-01 12:00:00.5",), -141_430],
        ["éüö", ("1900-03-01 00:00:00",), ("9999-03-01 00:00:00",), -719_000],
        [None, None, None, None],
        [" ", ("1969-12-31 23:59:58.7",), ("1910-01-01 00:00:00.25",), 20_000],
    ]
    jvm_file(spark_in_zone, tmp_path / "f.orc", schema, rows)
    assert ours(tmp_path / "f.orc").schema.names == ["v", "i", "t", "d"]
    assert check(spark_in_zone, tmp_path / "f.orc", "v string, i timestamp, t timestamp, d date") == 4
    assert check(spark_in_zone, tmp_path / "f.orc", "v binary") == 1


def test_a_union_is_refused_unless_it_is_left_out(spark_in_zone: SparkSession, tmp_path: Path) -> None:
    jvm_file(spark_in_zone, tmp_path / "f.orc", "struct<u:uniontype<int,string>,a:int>", [[None, 7]])
    with pytest.raises(ConfigurationError, match=r"column 'u' of .* has the type uniontype<int,string>"):
        ours(tmp_path / "f.orc")
    assert ours(tmp_path / "f.orc", pa.schema([("a", pa.int32())])).to_pylist() == [{"a": 7}]


def test_a_char_is_refused_unless_it_is_left_out(spark_in_zone: SparkSession, tmp_path: Path) -> None:
    """Spark pads it, or not, by the schema."""
    jvm_file(spark_in_zone, tmp_path / "f.orc", "struct<c:char(5),a:int>", [["ab", 7]])
    for schema in (None, pa.schema([("c", pa.string())]), pa.schema([("c", pa.binary())])):
        with pytest.raises(ConfigurationError, match=r"column 'c' of .* has the type char\(5\)") as raised:
            ours(tmp_path / "f.orc", schema)
        assert "spark.read.format('orc')" in (raised.value.advice or "")
    assert ours(tmp_path / "f.orc", pa.schema([("a", pa.int32())])).to_pylist() == [{"a": 7}]


def test_clock_times_are_read_in_the_zone_of_their_writer(spark_in_zone: SparkSession, tmp_path: Path) -> None:
    # Every 5 hours 47 minutes of a year, so also the hours that a change of the clocks skips or repeats, and far times.
    query = (
        "select timestamp_micros(1577836800000000 + id * 20820000000) t, "
        "timestamp_micros(2200000000000000 + id * 9999999999999) n from range(0, 1520)"
    )
    spark_in_zone.sql(query).coalesce(1).write.orc(str(tmp_path / "w"))
    check(spark_in_zone, tmp_path / "w")
    with pytest.raises(ConfigurationError, match="column 't' of .* has clock times of the zone America/St_Johns"):
        ours(tmp_path / "w", options=OrcOptions(time_zone="UTC"))


@pytest.mark.parametrize("proleptic", ["true", "false"])
def test_calendars(spark_in_zone: SparkSession, tmp_path: Path, proleptic: str) -> None:
    days = [[day] for day in (-719_000, -500_000, -141_428, -141_427, -141_437, 0)]
    settings = {"orc_proleptic_gregorian": proleptic, "orc_proleptic_gregorian_default": proleptic}
    jvm_file(spark_in_zone, tmp_path / "f.orc", "struct<d:date>", days, **settings)
    check(spark_in_zone, tmp_path / "f.orc")
