# SPDX-License-Identifier: Apache-2.0
"""Parquet against Spark's own reader, value for value."""

from __future__ import annotations

import datetime as dt
import itertools
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from forebay.errors import ConfigurationError, DataError, ForebayError
from forebay.formats.parquet.format import ParquetFormat, ParquetOptions

ZONE = "America/St_Johns"


class LocalFile:
    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.size = path.stat().st_size

    def open(self) -> BinaryIO:
        return open(self.path, "rb", buffering=0)


def parts(directory: Path) -> list[LocalFile]:
    return (
        [LocalFile(path) for path in sorted(directory.glob("*.parquet"))]
        if directory.is_dir()
        else [LocalFile(directory)]
    )


def ours(path: Path, schema: pa.Schema | None = None, options: ParquetOptions | None = None) -> pa.Table:
    reader = ParquetFormat(options or ParquetOptions())
    files = parts(path)
    schema = reader.infer_schema(files) if schema is None else schema
    batches = [batch for file in files for batch, _ in reader.read(file, schema)]
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches, schema)


def rows(table: pa.Table) -> list[str]:
    """Rows as text, so that NaN equals NaN and -0.0 does not equal 0.0."""
    return [repr(row) for row in table.cast(plain(table.schema)).to_pylist()]


def plain(schema: pa.Schema) -> pa.Schema:
    """Durations and days as numbers, because some of Arrow's objects do not cover all values."""
    return pa.schema([pa.field(field.name, _plain(field.type)) for field in schema])


def _plain(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.StructType):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in kind])
    if isinstance(kind, pa.MapType):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if isinstance(kind, pa.ListType):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) else kind


SIMPLE: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bool": (pa.bool_(), st.booleans()),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int16": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "int32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint8": (pa.uint8(), st.integers(0, 255)),
    "uint16": (pa.uint16(), st.integers(0, 2**16 - 1)),
    "uint32": (pa.uint32(), st.integers(0, 2**32 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float": (pa.float32(), st.floats(width=32)),
    "double": (pa.float64(), st.floats()),
    "text": (pa.string(), st.text(st.characters(exclude_categories=["Cs"]))),
    "binary": (pa.binary(), st.binary()),
    "fixed": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "date": (pa.date32(), st.dates()),
    "ms": (pa.timestamp("ms", "UTC"), st.integers(-(2**48), 2**48)),
    "us": (pa.timestamp("us", "Europe/Berlin"), st.datetimes(timezones=st.just(dt.UTC))),
    "local ms": (pa.timestamp("ms"), st.integers(-(2**48), 2**48)),
    "local us": (pa.timestamp("us"), st.datetimes()),
    "decimal 5": (pa.decimal128(5, 2), st.decimals(-999, 999, places=2)),
    "decimal 18": (pa.decimal128(18, 0), st.decimals(-(10**18) + 1, 10**18 - 1, places=0)),
    "decimal 38": (pa.decimal128(38, 6), st.decimals(-(10**30), 10**30, places=6)),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["", "a", "é", "😀"])),
    "large text": (pa.large_string(), st.text("abc", max_size=3)),
}


@st.composite
def typed(draw: st.DrawFn, depth: int = 2) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """A type and its values, null among them."""
    kind = draw(st.sampled_from(["simple", "list", "struct", "map"] if depth else ["simple"]))
    if kind == "simple":
        # Arrow itself cannot write every dictionary that is inside another column.
        names = [name for name in SIMPLE if name != "dictionary" or depth == 2]
        data_type, values = SIMPLE[draw(st.sampled_from(names))]
        return data_type, st.none() | values
    if kind == "list":
        inner, values = draw(typed(depth - 1))
        return pa.list_(inner), st.none() | st.lists(values, max_size=3)
    if kind == "struct":
        inside = [(f"f{index}", *draw(typed(depth - 1))) for index in range(draw(st.integers(1, 3)))]
        fields = pa.struct([pa.field(name, inner) for name, inner, _ in inside])
        return fields, st.none() | st.fixed_dictionaries({name: values for name, _, values in inside})
    inner, values = draw(typed(depth - 1))
    pairs = st.lists(st.tuples(st.text("abc", max_size=3), values), max_size=3, unique_by=lambda pair: pair[0])
    return pa.map_(pa.string(), inner), st.none() | pairs


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    count = draw(st.integers(0, 12))
    columns = {}
    for index in range(draw(st.integers(1, 6))):
        data_type, values = draw(typed())
        columns[f"c{index}"] = pa.array(draw(st.lists(values, min_size=count, max_size=count)), data_type)
    return pa.table(columns)


@settings(
    max_examples=settings().max_examples // 5, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(
    table=tables(),
    dictionary=st.booleans(),
    version=st.sampled_from(["1.0", "2.4", "2.6"]),
    page=st.sampled_from(["1.0", "2.0"]),
    group=st.integers(1, 12),
    store=st.booleans(),
    int96=st.booleans(),
    compliant=st.booleans(),
    integers=st.booleans(),
)
def test_generated_tables_read_as_spark_reads_them(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    table: pa.Table,
    dictionary: bool,
    version: Any,
    page: Any,
    group: int,
    store: bool,
    int96: bool,
    compliant: bool,
    integers: bool,
) -> None:
    path = tmp_path_factory.mktemp("generated") / "f.parquet"
    pq.write_table(
        table,
        path,
        use_dictionary=dictionary,
        version=version,
        data_page_version=page,
        row_group_size=group,
        store_schema=store,
        use_deprecated_int96_timestamps=int96,
        use_compliant_nested_type=compliant,
        store_decimal_as_integer=integers,
    )
    theirs = spark.read.parquet(str(path))
    assert ParquetFormat().infer_schema(parts(path)).types == to_arrow_schema(theirs.schema, timezone="UTC").types
    # Slices may come in any order from Spark's tasks; one small file is one task.
    assert rows(ours(path)) == rows(theirs.toArrow())


EVERYTHING = """
    select id, cast(id as tinyint) b, cast(id as smallint) s, cast(id as int) i, id * 1.5D d, cast(id / 3 as float) f,
    if(id % 3 = 0, null, concat('text ', id)) t, cast(concat('bin', id) as binary) bin, id % 2 = 0 flag,
    date_add(date'1890-01-01', cast(id * 97 as int)) day, timestamp_micros(id * 86400000123456 - 3000000000000000) ts,
    cast(timestamp_micros(id * 86400000123456 - 2000000000000000) as timestamp_ntz) ntz,
    cast(id * 1.01 as decimal(7, 2)) d7, cast(id * 1.01 as decimal(17, 5)) d17, cast(id * -1.01 as decimal(38, 18)) d38,
    array(id, null, id + 1) l, array(named_struct('x', id, 'y', array(cast(id as string)))) ls,
    map(concat('k', id), named_struct('v', id)) m, named_struct('a', id, 'b', map(id, array(id))) st,
    make_dt_interval(cast(id as int), 1, 2, 3.5) dur, cast(null as int) n from range(0, 50)
"""


@pytest.mark.soak(but=["default"])
@pytest.mark.parametrize(
    "settings_of_writer",
    [
        {},
        {"spark.sql.parquet.writeLegacyFormat": "true"},
        {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS", "spark.sql.parquet.compression.codec": "zstd"},
        {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS", "parquet.writer.version": "v2"},
    ],
    ids=["default", "legacy lists", "millis", "micros"],
)
def test_what_spark_writes_is_read_back(
    spark: SparkSession, tmp_path: Path, settings_of_writer: dict[str, str]
) -> None:
    path = tmp_path / "written"
    for name, value in settings_of_writer.items():
        spark.conf.set(name, value)
    try:
        spark.sql(EVERYTHING).coalesce(1).write.parquet(str(path))
    finally:
        for name in settings_of_writer:
            spark.conf.unset(name)
    theirs = spark.read.parquet(str(path))
    assert ParquetFormat().infer_schema(parts(path)).types == to_arrow_schema(theirs.schema, timezone="UTC").types
    assert rows(ours(path)) == rows(theirs.toArrow())


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_old_dates_of_legacy_writers_are_rebased_or_refused(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    path = tmp_path / "old"
    changed = ("datetimeRebaseModeInWrite", "int96RebaseModeInWrite")
    spark.conf.set("spark.sql.session.timeZone", zone)
    for name in changed:
        spark.conf.set(f"spark.sql.parquet.{name}", "LEGACY")
    try:
        days = "date_add(date'0001-01-01', cast(id * 1111 as int))"
        spark.sql(
            f"select {days} d, array({days}) l, cast({days} as timestamp) t, cast({days} as timestamp_ntz) n "
            "from range(0, 650)"
        ).coalesce(1).write.parquet(str(path))
        theirs = spark.read.parquet(str(path)).toArrow()
    finally:
        for name in changed:
            spark.conf.unset(f"spark.sql.parquet.{name}")
        spark.conf.set("spark.sql.session.timeZone", ZONE)
    assert rows(ours(path, theirs.schema.remove(2))) == rows(theirs.drop_columns(["t"]))
    if zone == "UTC":
        assert rows(ours(path)) == rows(theirs)
    else:
        with pytest.raises(DataError, match="Spark 2's calendar and the time zone Europe/Berlin"):
            ours(path)


STORED: dict[str, pa.Array] = {
    "boolean": pa.array([True, None]),
    "int8": pa.array([1, None], pa.int8()),
    "int16": pa.array([100, None], pa.int16()),
    "int32": pa.array([100, None], pa.int32()),
    "int64": pa.array([5, None]),
    "uint8": pa.array([100, None], pa.uint8()),
    "uint16": pa.array([100, None], pa.uint16()),
    "uint32": pa.array([4_000_000_000, None], pa.uint32()),
    "uint64": pa.array([2**64 - 1, None], pa.uint64()),
    "float": pa.array([1.1, None], pa.float32()),
    "double": pa.array([1.1, None]),
    "half": pa.array([1.5, None], pa.float16()),
    "text": pa.array(["a", None]),
    "binary": pa.array([b"a", None]),
    "fixed": pa.array([b"ab", None], pa.binary(2)),
    "date": pa.array([dt.date(1970, 2, 1), None]),
    "time ms": pa.array([100, None], pa.time32("ms")),
    "time us": pa.array([1000, None], pa.time64("us")),
    "ts ms": pa.array([1000, None], pa.timestamp("ms", "UTC")),
    "ts us": pa.array([1000, None], pa.timestamp("us")),
    "ts ns": pa.array([1000, None], pa.timestamp("ns", "UTC")),
    "decimal": pa.array([Decimal("1.23"), None], pa.decimal128(9, 2)),
    "wide": pa.array([Decimal("1.23"), None], pa.decimal128(38, 10)),
    "list": pa.array([[1], None]),
    "struct": pa.array([{"a": 1}, None]),
    "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
}
ASKED = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "decimal(9,2)": pa.decimal128(9, 2),
    "decimal(10,0)": pa.decimal128(10, 0),
    "decimal(20,0)": pa.decimal128(20, 0),
    "decimal(38,10)": pa.decimal128(38, 10),
    "decimal(38,12)": pa.decimal128(38, 12),
    "interval day to second": pa.duration("us"),
    "array<bigint>": pa.list_(pa.int64()),
    "struct<a: bigint, z: int>": pa.struct([("a", pa.int64()), ("z", pa.int32())]),
    "map<string, bigint>": pa.map_(pa.string(), pa.int64()),
}
# Spark reinterprets the stored bits here, so that 1.23 is read as 123, or 4,000,000,000 as a negative number: refused.
REINTERPRETED = {
    *itertools.product(["decimal"], ["tinyint", "smallint", "int", "bigint", "double", "date", "binary"]),
    *itertools.product(["wide"], ["binary"]),
    *itertools.product(["ts ms", "ts us", "ts ns", "time us"], ["interval day to second"]),
    *itertools.product(["uint8", "uint16", "time ms"], ["date"]),
    *itertools.product(["date", "time ms"], ["double"]),
    ("uint32", "double"),
    # Spark fails for some layouts of the file only.
    ("uint32", "tinyint"),
    ("uint32", "smallint"),
    ("uint32", "int"),
    ("uint32", "date"),
    ("uint64", "bigint"),
    ("uint64", "interval day to second"),
}


def read_here(path: Path, name: str, data_type: pa.DataType) -> list[str] | None:
    """Our rows of one column, None if the pair of types is refused."""
    try:
        return rows(ours(path, pa.schema([pa.field(name, data_type)])))
    except ConfigurationError:
        return None


@pytest.mark.soak(but=["int32", "uint64", "double", "text", "ts us", "decimal", "list"])
@pytest.mark.parametrize("stored", STORED)
def test_every_pair_of_types_we_read_is_read_as_by_spark(spark: SparkSession, tmp_path: Path, stored: str) -> None:
    path = tmp_path / "f.parquet"
    # Plain values: with a dictionary Spark refuses some pairs in the middle of the data.
    copies = pa.table({f"c{index}": STORED[stored] for index in range(len(ASKED))})
    pq.write_table(copies, path, store_schema=False, use_dictionary=False)
    asked = dict(zip(copies.schema.names, ASKED, strict=True))
    mine = {name: read_here(path, name, ASKED[text]) for name, text in asked.items()}
    assert all(mine[name] is None for name, text in asked.items() if (stored, text) in REINTERPRETED)
    readable = [name for name, values in mine.items() if values is not None]
    schema = ", ".join(f"{name} {asked[name]}" for name in readable)
    theirs = spark.read.schema(schema).parquet(str(path)).toArrow()
    assert {name: mine[name] for name in readable} == {name: rows(theirs.select([name])) for name in readable}


@pytest.mark.soak
@pytest.mark.parametrize("stored", STORED)
def test_every_pair_of_types_we_refuse_is_refused_by_spark(spark: SparkSession, tmp_path: Path, stored: str) -> None:
    path = tmp_path / "f.parquet"
    pq.write_table(pa.table({"c": STORED[stored]}), path, store_schema=False, use_dictionary=False)
    read_by_spark_alone = []
    for text, data_type in ASKED.items():
        if (stored, text) not in REINTERPRETED and read_here(path, "c", data_type) is None:
            try:
                spark.read.schema(f"c {text}").parquet(str(path)).toArrow()
            except Exception:  # noqa: BLE001 - Spark has many classes for a type that does not fit
                continue
            read_by_spark_alone.append(text)
    assert not read_by_spark_alone


SHAPES = {
    "case and missing": "s struct<B: string, z: int, a: bigint>, x int",
    "no field at all": "s struct<z: int>",
    "nested missing": "s struct<c: struct<q: int>>",
    "wider inside": "l array<bigint>, m map<string, bigint>, ls array<struct<b: bigint, q: int>>",
    "all missing in list": "ls array<struct<zz: int>>",
}


@pytest.mark.parametrize("asked", SHAPES.values(), ids=SHAPES)
def test_a_schema_of_other_shape_is_filled_as_by_spark(spark: SparkSession, tmp_path: Path, asked: str) -> None:
    path = tmp_path / "f.parquet"
    table = pa.table(
        {
            "s": pa.array([{"a": 1, "b": "x", "c": {"d": 1}}, None, {"a": None, "b": None, "c": None}]),
            "l": pa.array([[1, None], [], None], pa.list_(pa.int32())),
            "m": pa.array([[("a", 1)], [], None], pa.map_(pa.string(), pa.int32())),
            "ls": pa.array([[{"a": 1, "B": 2}], None, [None]]),
        }
    )
    pq.write_table(table, path)
    theirs = spark.read.schema(asked).parquet(str(path))
    assert rows(ours(path, to_arrow_schema(theirs.schema, timezone="UTC"))) == rows(theirs.toArrow())


def test_merged_schemas_equal_sparks(spark: SparkSession, tmp_path: Path) -> None:
    numbers = [pa.array([Decimal(1)], pa.decimal128(digits, 2)) for digits in (9, 12)]
    pq.write_table(pa.table({"X": numbers[0], "l": pa.array([[{"a": 1}]])}), tmp_path / "b.parquet")
    pq.write_table(
        pa.table({"n": pa.array(["t"]), "x": numbers[1], "l": pa.array([[{"b": 1}]])}), tmp_path / "a.parquet"
    )
    theirs = spark.read.option("mergeSchema", "true").parquet(str(tmp_path))
    options = ParquetOptions(merge_schema=True)
    mine = ours(tmp_path, None, options)
    assert mine.schema.names == theirs.columns
    assert mine.schema.types == to_arrow_schema(theirs.schema, timezone="UTC").types
    assert sorted(rows(mine)) == sorted(rows(theirs.toArrow()))


def test_a_file_spark_refuses_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "f.parquet").write_bytes(b"PAR1 this is not a whole file PAR1")
    with pytest.raises(Exception, match="Exception"):
        spark.read.schema("a int").parquet(str(tmp_path)).collect()
    with pytest.raises(ForebayError):
        ours(tmp_path, pa.schema([("a", pa.int32())]))
