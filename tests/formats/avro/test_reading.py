# SPDX-License-Identifier: Apache-2.0
"""Avro files without Spark: positions, slices, columns, the two decoders, damage, and what is refused."""

from __future__ import annotations

import io
import itertools
import random
import zlib
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from forebay.errors import ConfigurationError, DataError, ForebayError
from forebay.formats.avro import blocks as decode
from forebay.formats.avro.format import AvroFormat, AvroOptions

Files = Callable[..., Any]

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "a", "type": ["null", "long"]},
        {"name": "s", "type": "string"},
        {"name": "e", "type": {"type": "enum", "name": "e", "symbols": ["X", "Y"]}},
        {"name": "m", "type": {"type": "map", "values": ["double", "null"]}},
        {
            "name": "n",
            "type": [
                "null",
                {"type": "record", "name": "q", "fields": [{"name": "x", "type": {"type": "array", "items": "int"}}]},
            ],
        },
    ],
}


def row_of(number: int) -> dict[str, Any]:
    return {
        "a": None if number % 7 == 0 else number * number,
        "s": f"text {number}" * (number % 3),
        "e": "XY"[number % 2],
        "m": {"k": number / 2, "l": None} if number % 4 else {},
        "n": None if number % 5 == 0 else {"x": list(range(number % 4))},
    }


def written(rows: int, schema: dict[str, Any] = SCHEMA, **options: Any) -> bytes:
    sink = io.BytesIO()
    records = [row_of(number) for number in range(rows)]
    fastavro.writer(sink, schema, records, **{"sync_interval": 500, "sync_marker": b"-16-byte marker-", **options})
    return sink.getvalue()


def found(data: bytes, file: Files, **options: Any) -> list[dict[str, Any]]:
    reader, one = AvroFormat(), file(data)
    schema = reader.infer_schema([one])
    return [
        row for batch, _ in reader.read(one, schema, **options) for row in batch.to_pylist(maps_as_pydicts="strict")
    ]


@pytest.fixture(scope="module")
def plain() -> bytes:
    return written(400)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.formats.avro.format._BATCH_BYTES", 1_200)


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz", "snappy"])
def test_every_codec_is_read(memory_file: Files, codec: str) -> None:
    assert found(written(400, codec=codec), memory_file) == [row_of(number) for number in range(400)]


def test_both_decoders_read_the_same(memory_file: Files, plain: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("polars")
    root = fastavro.reader(io.BytesIO(plain)).writer_schema
    assert root is not None
    by_polars = found(plain, memory_file)
    monkeypatch.setattr(decode, "_polars", lambda: None)
    assert found(plain, memory_file) == by_polars


@pytest.mark.usefixtures("small_batches")
def test_slices_cut_anywhere_give_every_row_once(memory_file: Files, plain: bytes) -> None:
    chance = random.Random(3)
    for _ in range(30):
        cuts = sorted(chance.sample(range(len(plain)), 4))
        borders = [0, *cuts, None]
        parts = [found(plain, memory_file, position=a, end=b) for a, b in itertools.pairwise(borders)]
        assert [row["s"] for part in parts for row in part] == [row_of(number)["s"] for number in range(400)]


@pytest.mark.usefixtures("small_batches")
def test_a_read_continues_after_each_batch(memory_file: Files, plain: bytes) -> None:
    reader, file = AvroFormat(), memory_file(plain)
    schema = reader.infer_schema([file])
    batches = list(reader.read(file, schema))
    assert len(batches) > 10
    rows = 0
    for batch, after in batches:
        rows += batch.num_rows
        rest = sum(part.num_rows for part, _ in reader.read(file, schema, position=after))
        assert rows + rest == 400


def test_columns_come_in_the_order_wanted_and_missing_ones_are_null(memory_file: Files, plain: bytes) -> None:
    schema = pa.schema([("new", pa.int8()), ("S", pa.string()), ("a", pa.int64())])
    batch = next(AvroFormat().read(memory_file(plain), schema, columns=["a", "new", "S"]))[0]
    assert batch.schema.names == ["a", "new", "S"]
    assert batch.slice(8, 1).to_pylist() == [{"a": 64, "new": None, "S": "text 8text 8"}]


def test_a_file_whose_schema_differs_is_read_by_its_own(memory_file: Files, plain: bytes) -> None:
    fields = [{"name": "s", "type": ["string", "null"]}, {"name": "a", "type": "long"}]
    sink = io.BytesIO()
    fastavro.writer(sink, {"type": "record", "name": "r", "fields": fields}, [{"s": "x", "a": 1}])
    schema = AvroFormat().infer_schema([memory_file(plain)])
    batch = next(AvroFormat().read(memory_file(sink.getvalue()), schema))[0]
    assert batch.to_pylist() == [{"a": 1, "s": "x", "e": None, "m": None, "n": None}]


@pytest.mark.parametrize("without", ["polars", "nothing"])
def test_rows_before_the_damage_are_kept(
    memory_file: Files, plain: bytes, without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if without == "polars":
        monkeypatch.setattr(decode, "_polars", lambda: None)
    reader, marker = AvroFormat(), b"-16-byte marker-"
    at = plain.index(marker, len(plain) // 2)
    for damaged in (plain[: at + 40], plain[: at - 3] + b"\xff" * 3 + plain[at:], plain[:at] + b"no" + plain[at + 2 :]):
        file = memory_file(damaged)
        rows = 0
        with pytest.raises(DataError) as raised:
            for batch, _ in reader.read(file, reader.infer_schema([file])):
                rows += batch.num_rows
        assert raised.value.option == "ignoreCorruptFiles"
        assert raised.value.position is None
        assert 150 < rows < 250


@pytest.mark.parametrize("size", [0, 3, 4, 60, 400])
def test_a_header_that_is_cut_off_is_damaged(memory_file: Files, plain: bytes, size: int) -> None:
    with pytest.raises(DataError) as raised:
        AvroFormat().infer_schema([memory_file(plain[:size])])
    assert raised.value.option == "ignoreCorruptFiles"


def block(count: int, size: int, data: bytes, codec: bytes = b"null", schema: bytes | None = None) -> bytes:
    """A file with one block that states a count and a size."""
    text = schema or b'{"type":"record","name":"r","fields":[{"name":"a","type":"string"}]}'
    parts = [b"Obj\x01", decode.varint(2)]
    for value in (b"avro.schema", text, b"avro.codec", codec):
        parts += [decode.varint(len(value)), value]
    return b"".join([*parts, b"\0", b"m" * 16, decode.varint(count), decode.varint(size), data, b"m" * 16])


_packer = zlib.compressobj(9, zlib.DEFLATED, -15)
# A full flush ends a piece at a byte and without a dictionary: any number of them are one stream.
MEGABYTE = _packer.compress(bytes(1 << 20)) + _packer.flush(zlib.Z_FULL_FLUSH)
BOMB = 300 * MEGABYTE + _packer.flush()

LIES: dict[str, tuple[int, int, bytes, bytes]] = {
    "2^40 records": (1 << 40, 2, b"\x02a", b"null"),
    "2^40 bytes": (1, 1 << 40, b"\x02a", b"null"),
    "a string of 2^40 bytes": (1, 9, decode.varint(1 << 40) + b"abc", b"null"),
    "a string of -1 bytes": (1, 2, b"\x01a", b"null"),
    "bytes after the records": (1, 4, b"\x02aaa", b"null"),
    "fewer records": (2, 2, b"\x02a", b"null"),
    "300 MB of zeros": (1, len(BOMB), BOMB, b"deflate"),
    "a snappy block of 2^34 bytes": (1, 10, b"\xff\xff\xff\xff\x3faaaaa", b"snappy"),
}


@pytest.mark.parametrize("name", LIES)
def test_lies_of_a_block_are_damage(memory_file: Files, name: str) -> None:
    count, size, data, codec = LIES[name]
    with pytest.raises(DataError) as raised:
        found(block(count, size, data, codec), memory_file)
    assert raised.value.option == "ignoreCorruptFiles"


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (b'{"type":"record","name":"r","fields":[{"name":"a","type":["null","r"]}]}', "recursive"),
        (b'{"type":"record","name":"r","fields":[{"name":"a","type":{"type":"array","items":"null"}}]}', "no bytes"),
        (b'"string"', "only Avro files of records"),
        (b'{"type":"record","name":"r","fields":[{"name":"a","type":"int"},{"name":"A","type":"int"}]}', "same name"),
    ],
)
def test_schemas_that_are_refused(memory_file: Files, schema: bytes, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        found(block(0, 0, b"", schema=schema), memory_file)


@pytest.mark.parametrize("schema", [b"[" * 100_000, b"{}", b'{"type":"record","name":"r"}', b'"no_such"', b"\xff"])
def test_schemas_that_are_damaged(memory_file: Files, schema: bytes) -> None:
    with pytest.raises(ForebayError):
        found(block(0, 0, b"", schema=schema), memory_file)


def test_an_unknown_codec_is_named(memory_file: Files) -> None:
    with pytest.raises(ConfigurationError, match="'lzo'") as caught:
        found(block(1, 2, b"\x02a", b"lzo"), memory_file)
    assert caught.value.source == memory_file(b"").path


def test_records_without_bytes_are_counted(memory_file: Files) -> None:
    schema = b'{"type":"record","name":"r","fields":[{"name":"a","type":"null"}]}'
    assert found(block(3, 0, b"", schema=schema), memory_file) == [{"a": None}] * 3


def test_a_boolean_is_0_or_1(memory_file: Files) -> None:
    schema = b'{"type":"record","name":"r","fields":[{"name":"a","type":"boolean"}]}'
    assert found(block(2, 2, b"\0\1", schema=schema), memory_file) == [{"a": False}, {"a": True}]
    for byte in (2, 127, 128, 255):
        with pytest.raises(DataError, match="boolean|damaged"):
            found(block(2, 2, bytes([1, byte]), schema=schema), memory_file)


def test_types_that_do_not_match_name_column_and_file(memory_file: Files, plain: bytes) -> None:
    schema = pa.schema([("n", pa.struct([("x", pa.list_(pa.date64()))]))])
    with pytest.raises(ConfigurationError, match=r"column 'n\.x\.element' is int in /data/f\.avro"):
        list(AvroFormat().read(memory_file(plain, "/data/f.avro"), schema))


def test_long_blocks_are_refused(memory_file: Files, plain: bytes) -> None:
    reader = AvroFormat(AvroOptions(max_block_bytes=100))
    with pytest.raises(DataError):
        list(reader.read(memory_file(plain), pa.schema([("s", pa.string())])))
