# SPDX-License-Identifier: Apache-2.0
"""Avro against spark-avro, value for value. A case is a type, with a codec or an option, and a column of values."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from forebay.errors import ConfigurationError
from forebay.formats.avro.blocks import read_blocks, read_header, varint
from forebay.formats.avro.format import AvroFormat, AvroOptions
from forebay.sources.files.source import FileSource

ZONE = "UTC"
ROWS = 150
# The calendar of its old dates is known.
WRITER = {"org.apache.spark.version": "3.5.0"}
CODECS = ("null", "deflate", "bzip2", "xz", "snappy", "zstandard")
RANDOM = random.Random(4)

Value = Callable[[], Any]


def number(bits: int) -> Value:
    return lambda: RANDOM.choice([0, 1, -1, -(1 << bits - 1), (1 << bits - 1) - 1, RANDOM.getrandbits(bits - 1)])


def text() -> str:
    return "".join(RANDOM.choices("aé\u20ac\U0001f600 \x00\n", k=RANDOM.choice([0, 1, 5, 70])))


def floating() -> float:
    return RANDOM.choice([0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), 5e-324, RANDOM.random()])


def single() -> float:
    return RANDOM.choice([0.0, -0.0, 1.5, float("nan"), float("inf"), -0.25])


def bound(most: int) -> Value:
    return lambda: RANDOM.randint(-most, most)


def logical(kind: str, name: str, **more: object) -> dict[str, object]:
    return {"type": kind, "logicalType": name, **more}


def big(precision: int, size: int | None) -> Value:
    def value() -> bytes:
        found = RANDOM.choice([0, 1, -1, 127, 128, -128, -129, 10**precision - 1, 1 - 10**precision])
        return found.to_bytes(size or (found.bit_length() // 8 + 1 + RANDOM.randrange(2)), "big", signed=True)

    return value


def plain_types() -> dict[str, tuple[Any, Value]]:
    """The types of one field, each with values as they are stored."""
    return {
        "boolean": ("boolean", lambda: RANDOM.random() < 0.5),
        "int": ("int", number(32)),
        "long": ("long", number(64)),
        "float": ("float", single),
        "double": ("double", floating),
        "bytes": ("bytes", lambda: RANDOM.randbytes(RANDOM.randrange(9))),
        "string": ("string", text),
        "fixed": ({"type": "fixed", "name": "x", "size": 5}, lambda: RANDOM.randbytes(5)),
        "enum": ({"type": "enum", "name": "x", "symbols": ["A", "B_2"]}, lambda: RANDOM.choice(["A", "B_2"])),
        "date": (logical("int", "date"), lambda: RANDOM.randint(-141_000, 2_932_896)),
        "time_millis": (logical("int", "time-millis"), number(32)),
        "millis": (logical("long", "timestamp-millis"), bound(10**13)),
        "micros": (logical("long", "timestamp-micros"), bound(10**15)),
        "nanos": (logical("long", "timestamp-nanos"), number(64)),
        "local_millis": (logical("long", "local-timestamp-millis"), bound(10**13)),
        "local_micros": (logical("long", "local-timestamp-micros"), bound(10**16)),
        "local_nanos": (logical("long", "local-timestamp-nanos"), number(64)),
        "uuid": (logical("string", "uuid"), text),
        "decimal_9": (logical("bytes", "decimal", precision=9, scale=2), big(9, None)),
        "decimal_38": (logical("bytes", "decimal", precision=38, scale=10), big(38, None)),
        "decimal_0": (logical("bytes", "decimal", precision=4), big(4, None)),
        "decimal_fixed": (
            {"type": "fixed", "name": "x", "size": 8, "logicalType": "decimal", "precision": 18, "scale": 3},
            big(18, 8),
        ),
        "decimal_short": (
            {"type": "fixed", "name": "x", "size": 3, "logicalType": "decimal", "precision": 18},
            lambda: RANDOM.randbytes(3),
        ),
        "unknown": (logical("string", "no-such-type"), text),
    }


def many(value: Value, most: int) -> Value:
    return lambda: [value() for _ in range(RANDOM.randrange(most))]


def named(value: Value) -> Value:
    return lambda: {text(): value() for _ in range(RANDOM.randrange(4))}


def forms() -> Iterator[tuple[str, Any, Value]]:
    """Each type alone, with null before and after it, in an array, a map, and a record."""
    for name, (kind, value) in plain_types().items():
        yield name, kind, value
        yield f"{name}_null", ["null", kind], lambda value=value: None if RANDOM.random() < 0.2 else value()
        yield f"{name}_last", [kind, "null"], lambda value=value: None if RANDOM.random() < 0.2 else value()
        yield f"{name}_array", {"type": "array", "items": ["null", kind]}, many(value, 4)
        yield f"{name}_map", {"type": "map", "values": kind}, named(value)
        record = {
            "type": "record",
            "name": "r",
            "fields": [{"name": "f", "type": kind}, {"name": "G", "type": ["null", "int"]}],
        }
        yield f"{name}_record", ["null", record], lambda value=value: RANDOM.choice([None, {"f": value(), "G": None}])
    yield "null", "null", lambda: None
    yield "one", ["long"], number(64)
    yield "int_long", ["int", "long"], lambda: RANDOM.choice([("int", 5), ("long", 1 << 40)])
    yield "long_null_int", ["long", "null", "int"], lambda: RANDOM.choice([("int", 5), ("long", 1 << 40), None])
    yield "float_double", ["double", "float"], lambda: RANDOM.choice([("float", 0.5), ("double", 0.1)])
    yield "members", ["string", "null", "long", "boolean"], lambda: RANDOM.choice([None, "a", 7, True])
    yield "no_null", ["bytes", "string"], lambda: RANDOM.choice([b"a", "b"])
    yield (
        "deep",
        {"type": "array", "items": {"type": "map", "values": ["null", {"type": "array", "items": "string"}]}},
        many(named(many(text, 3)), 3),
    )


def renamed(kind: Any, name: str, seen: list[int]) -> Any:
    """A type whose definitions have names of their own."""
    if isinstance(kind, list):
        return [renamed(one, name, seen) for one in kind]
    if not isinstance(kind, dict):
        return kind
    found = {
        key: renamed(value, name, seen) if key in ("type", "items", "values") else value for key, value in kind.items()
    }
    if "fields" in kind:
        found["fields"] = [{**one, "type": renamed(one["type"], name, seen)} for one in kind["fields"]]
    if "name" in kind:
        seen.append(1)
        found["name"] = f"t_{name}_{len(seen)}"
    return found


def written(
    path: Path, fields: list[tuple[str, Any, Value]], codec: str = "null", rows: int = ROWS, **metadata: str
) -> None:
    """Write a file with raw values: its schema has the logical types, which the writer must not apply."""
    seen: list[int] = []
    schema = {
        "type": "record",
        "name": "top",
        "namespace": "a.b",
        "fields": [{"name": name, "type": renamed(kind, name, seen)} for name, kind, _ in fields],
    }
    records = [{name: value() for name, _, value in fields} for _ in range(rows)]
    inside = "null" if codec == "zstandard" else codec
    sink = io.BytesIO()
    fastavro.writer(sink, bare(schema), records, codec=inside, sync_interval=2_000, metadata=metadata)
    path.write_bytes(repacked(sink.getvalue(), schema, codec))


def repacked(data: bytes, schema: Any, codec: str) -> bytes:
    """Return a file with another schema, and maybe with zstandard, for which fastavro needs another package."""
    raw = io.BytesIO(data)
    header = read_header(raw)
    metadata = {**header.metadata, "avro.schema": json.dumps(schema).encode(), "avro.codec": codec.encode()}
    parts = [b"Obj\x01", varint(len(metadata))]
    for key, value in metadata.items():
        parts += [varint(len(key)), key.encode(), varint(len(value)), value]
    parts += [b"\0", header.sync]
    if codec != "zstandard":
        return b"".join([*parts, data[header.marker_at + 16 :]])
    for block in read_blocks(raw, BytesFile(data), header, 0, None, 1 << 30):
        packed = pa.Codec("zstd").compress(block.data, asbytes=True)
        parts += [varint(block.records), varint(len(packed)), packed, header.sync]
    return b"".join(parts)


class BytesFile:
    path = "in memory"

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)

    def open(self) -> BinaryIO:
        return io.BytesIO(self.data)


def bare(kind: Any) -> Any:
    """A schema without logical types."""
    if isinstance(kind, list):
        return [bare(one) for one in kind]
    if isinstance(kind, dict):
        return {key: bare(value) for key, value in kind.items() if key != "logicalType"}
    return kind


class LocalFile:
    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.size = path.stat().st_size

    def open(self) -> BinaryIO:
        return open(self.path, "rb", buffering=0)


def ours(path: Path, options: AvroOptions | None = None, schema: pa.Schema | None = None) -> pa.Table:
    reader = AvroFormat(options or AvroOptions())
    files = [LocalFile(one) for one in (sorted(path.iterdir()) if path.is_dir() else [path])]
    schema = reader.infer_schema(files) if schema is None else schema
    batches = [batch for file in files for batch, _ in reader.read(file, schema)]
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches, schema)


def assert_same(found: pa.Table, peer: Any) -> None:
    """Compare each column with Spark's, as text: NaN equals NaN, and -0.0 does not equal 0.0."""
    assert [name.lower() for name in found.schema.names] == [name.lower() for name in peer.columns]
    rows = peer.toArrow()
    different = []
    for name in peer.columns:
        mine, theirs = texts(found[name]), texts(rows[name])
        if mine != theirs:
            at = next((at for at, pair in enumerate(zip(mine, theirs, strict=False)) if pair[0] != pair[1]), -1)
            different.append((name, found[name].type, rows[name].type, mine[at], theirs[at]))
    assert not [str(one)[:300] for one in different]
    assert different_types(found, peer) == []


def different_types(found: pa.Table, peer: Any) -> list[object]:
    schema = to_arrow_schema(peer.schema, timezone="UTC")
    return [
        (mine, theirs) for mine, theirs in zip(found.schema, schema, strict=True) if not mine.type.equals(theirs.type)
    ]


def texts(column: pa.ChunkedArray) -> list[str]:
    return [repr(sorted_maps(value)) for value in column.cast(plain(column.type)).to_pylist()]


def sorted_maps(value: Any) -> Any:
    """Entries of maps in order: Spark's are in that of a hash table."""
    if isinstance(value, dict):
        return {key: sorted_maps(inside) for key, inside in value.items()}
    if isinstance(value, list):
        found = [sorted_maps(one) for one in value]
        return sorted(found, key=repr) if found and isinstance(found[0], tuple) else found
    return tuple(sorted_maps(one) for one in value) if isinstance(value, tuple) else value


def plain(kind: pa.DataType) -> pa.DataType:
    """Times and days as numbers, because some of Arrow's objects do not cover all values."""
    if isinstance(kind, pa.StructType):
        return pa.struct([pa.field(field.name, plain(field.type)) for field in kind])
    if isinstance(kind, pa.MapType):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    if isinstance(kind, pa.ListType):
        return pa.list_(plain(kind.value_type))
    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


@pytest.mark.soak
def test_every_type(avro: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.avro"
    written(path, list(forms()), "deflate", **WRITER)
    assert_same(ours(path), avro.read.format("avro").load(str(path)))


def columns(*names: str) -> list[tuple[str, Any, Value]]:
    return [form for form in forms() if form[0] in names]


@pytest.mark.soak(but=["deflate"])
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(avro: SparkSession, tmp_path: Path, codec: str) -> None:
    path = tmp_path / "a.avro"
    written(path, columns("string_null", "long", "double_array", "bytes_map"), codec)
    assert_same(ours(path), avro.read.format("avro").load(str(path)))


def test_the_names_of_union_members(avro: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.avro"
    written(path, columns("members", "no_null", "int_long"))
    assert_same(ours(path), avro.read.format("avro").load(str(path)))


@pytest.mark.parametrize(
    "option", ["positionalFieldMatching", "enableStableIdentifiersForUnionType", "stableIdentifierPrefixForUnionType"]
)
def test_other_names_and_places_are_refused(tmp_path: Path, option: str) -> None:
    path = tmp_path / "a.avro"
    written(path, columns("members", "long"))
    with pytest.raises(ConfigurationError, match=rf"{option}.* spark\.read\.format\('avro'\)"):
        FileSource.from_options({"path": str(path), option: "true"}).schema()


TARGETS = {
    "boolean": ["boolean"],
    "int": ["int", "bigint", "double", "date"],
    "long": ["bigint", "timestamp", "timestamp_ntz", "date"],
    "float": ["float", "double"],
    "double": ["double"],
    "millis": ["timestamp", "bigint"],
    "micros": ["timestamp", "bigint"],
    "local_millis": ["timestamp_ntz", "bigint"],
    "local_micros": ["timestamp_ntz", "bigint"],
    "date": ["date", "int"],
    "bytes": ["binary"],
    "fixed": ["binary"],
    "string": ["string"],
    "enum": ["string"],
    "decimal_9": ["decimal(9,2)", "decimal(12,2)", "decimal(38,2)", "binary"],
    "decimal_fixed": ["decimal(18,3)", "decimal(20,3)"],
    "int_long": ["bigint"],
    "float_double": ["double"],
    "members": ["struct<x: string, y: bigint, z: boolean>"],
}
SMALL = {"int": bound(2_000_000), "long": bound(10**13)}


@pytest.mark.soak
def test_every_pair_of_types(avro: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.avro"
    pairs = [(name, target) for name, targets in TARGETS.items() for target in targets]
    known = {name: (kind, value) for name, kind, value in forms()}
    fields = [(f"c{at}", known[name][0], SMALL.get(name, known[name][1])) for at, (name, _) in enumerate(pairs)]
    written(path, fields, **WRITER)
    names = [f"C{at}" for at in range(len(pairs))]
    ddl = ", ".join(f"{name} {target}" for name, (_, target) in zip(names, pairs, strict=True))
    ddl += ", missing int"
    peer = avro.read.format("avro").schema(ddl).load(str(path))
    assert_same(ours(path, schema=to_arrow_schema(peer.schema, timezone="UTC")), peer)


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["LEGACY", "CORRECTED"])
@pytest.mark.parametrize("wrote", ["", "2.4.8", "3.5.0", "3.5.0 legacy"])
def test_old_dates(avro: SparkSession, tmp_path: Path, mode: str, wrote: str) -> None:
    path = tmp_path / "a.avro"
    fields: list[tuple[str, Any, Value]] = [
        ("d", logical("int", "date"), lambda: RANDOM.randint(-700_000, 0)),
        ("t", logical("long", "timestamp-micros"), lambda: RANDOM.randint(-60 * 10**15, 0)),
        ("m", logical("long", "timestamp-millis"), lambda: RANDOM.randint(-60 * 10**12, 0)),
        ("l", logical("long", "local-timestamp-micros"), lambda: RANDOM.randint(-60 * 10**15, 0)),
    ]
    metadata = {"org.apache.spark.version": wrote.split(maxsplit=1)[0]} if wrote else {}
    if "legacy" in wrote:
        metadata["org.apache.spark.legacyDateTime"] = ""
    if wrote:
        metadata["org.apache.spark.timeZone"] = "UTC"
    if not wrote and mode == "LEGACY":
        fields = fields[:1]  # in a zone that is not known, times are refused
    written(path, fields, **metadata)
    found = ours(path, AvroOptions(datetime_rebase_mode=mode))  # type: ignore[arg-type]  # parametrized
    assert_same(found, avro.read.format("avro").option("datetimeRebaseMode", mode).load(str(path)))


@pytest.mark.soak
@pytest.mark.parametrize(
    "codec",
    [
        "snappy",
        "zstandard",
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("uncompressed", "deflate", "bzip2", "xz")),
    ],
)
def test_what_spark_writes(avro: SparkSession, tmp_path: Path, codec: str) -> None:
    made = avro.range(3_000).selectExpr(
        "id", "cast(id as string) s", "id / 3 d", "cast(id as decimal(20,3)) c", "timestamp_millis(id) t",
        "date_add(date'2024-01-01', cast(id as int)) day", "array(id, null) a", "map('k', id) m",
        "named_struct('x', id) n",
    )  # fmt: skip
    made.coalesce(1).write.format("avro").option("compression", codec).save(str(tmp_path / "out"))
    peer = avro.read.format("avro").load(str(tmp_path / "out"))
    assert_same(ours(next((tmp_path / "out").glob("*.avro"))), peer)
