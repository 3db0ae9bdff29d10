# SPDX-License-Identifier: Apache-2.0
"""Whole files of each format: small, with every type, and with the encodings and codecs in turn."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

SEEDS = 210
"""How many whole files of a format there are."""
ORC_CODECS = ("uncompressed", "zlib", "snappy", "lz4", "zstd")
PARQUET_CODECS: tuple[Any, ...] = ("none", "snappy", "gzip", "zstd", "lz4")
AVRO_CODECS = ("null", "deflate", "snappy", "bzip2", "xz")


def table(chosen: random.Random, rows: int) -> pa.Table:
    """Return a table with every type that ORC and Parquet share."""
    some = chosen.random

    def column(make: Callable[[], Any], kind: pa.DataType | None = None, nulls: float = 0.1) -> pa.Array:
        return pa.array([make() if some() >= nulls else None for _ in range(rows)], kind)

    def micros() -> int:
        return chosen.randrange(10**15)

    def amount() -> Decimal:
        return Decimal(chosen.randrange(10**10)).scaleb(-2)

    entries = pa.map_(pa.string(), pa.int64())
    days = pa.array([chosen.randrange(-100_000, 50_000) for _ in range(rows)], pa.int32())
    return pa.table(
        {
            "i": column(lambda: chosen.randrange(2 ** chosen.randrange(1, 62))),
            "n": pa.array(range(rows), pa.int32()),
            "s": column(lambda: chosen.choice(["x", "yy", f"text {chosen.randrange(50)}"]), nulls=0.25),
            "b": column(lambda: chosen.randbytes(chosen.randrange(9)), nulls=0),
            "t": column(micros, pa.timestamp("us")),
            "z": column(micros, pa.timestamp("us", "UTC"), nulls=0),
            "d": days.cast(pa.date32()),
            "w": column(amount, pa.decimal128(38, 4), nulls=0),
            "e": column(amount, pa.decimal128(14, 2), nulls=0),
            "f": column(some, pa.float32(), nulls=0),
            "g": column(some, nulls=0),
            "o": column(lambda: some() > 0.5, nulls=0),
            "y": column(lambda: chosen.randrange(-128, 128), pa.int8(), nulls=0),
            "l": column(lambda: [1, 2][: chosen.randrange(3)], pa.list_(pa.int64())),
            "r": column(lambda: {"x": chosen.randrange(100), "y": "q"}, nulls=0.2),
            "m": column(lambda: [(key, 1) for key in "abc"[: chosen.randrange(4)]], entries, nulls=0),
            "k": column(lambda: [["a"], ["b", "c"]][: chosen.randrange(3)], pa.list_(pa.list_(pa.string())), nulls=0),
        }
    )


def orc_file(number: int) -> bytes:
    """Return an ORC file with every kind of stream."""
    sink = io.BytesIO()
    orc.write_table(
        table(random.Random(number), 700),
        sink,
        compression=ORC_CODECS[number % len(ORC_CODECS)],
        dictionary_key_size_threshold=number % 2,
        file_version="0.11" if number % 7 == 0 else "0.12",
        stripe_size=1 << 14 if number % 3 else 1 << 26,
        batch_size=100,
    )
    return sink.getvalue()


DELTA = {
    **dict.fromkeys(["i", "n", "t", "z", "d", "y"], "DELTA_BINARY_PACKED"),
    **dict.fromkeys(["f", "g"], "BYTE_STREAM_SPLIT"),
    "s": "DELTA_BYTE_ARRAY",
    "b": "DELTA_LENGTH_BYTE_ARRAY",
    "o": "RLE",
}


def parquet_file(number: int) -> bytes:
    """Return a Parquet file: plain, dictionary or delta encodings, pages of both versions, several row groups."""
    sink = io.BytesIO()
    encoding: dict[str, Any] = {"use_dictionary": number % 3 == 0}
    if number % 3 == 1:
        encoding["column_encoding"] = DELTA
    pq.write_table(
        table(random.Random(number), 200),
        sink,
        compression=PARQUET_CODECS[number % len(PARQUET_CODECS)],
        data_page_version="2.0" if number % 2 else "1.0",
        row_group_size=60 if number % 7 else 1_000,
        data_page_size=200 if number % 4 else None,
        store_schema=number % 4 != 1,
        use_deprecated_int96_timestamps=number % 6 == 2,
        store_decimal_as_integer=number % 5 == 3,
        write_page_index=number % 4 == 2,
        write_page_checksum=number % 8 == 5,
        **encoding,
    )
    return sink.getvalue()


def _record(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


AVRO_SCHEMA = _record(
    "top",
    ("i", ["null", "long"]),
    ("n", "int"),
    ("s", ["string", "null"]),
    ("b", "bytes"),
    ("t", ["null", {"type": "long", "logicalType": "timestamp-micros"}]),
    ("l", {"type": "long", "logicalType": "local-timestamp-millis"}),
    ("d", {"type": "int", "logicalType": "date"}),
    ("w", {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 4}),
    ("f", "float"),
    ("g", ["null", "double"]),
    ("o", "boolean"),
    ("x", {"type": "fixed", "name": "six", "size": 6}),
    ("e", {"type": "enum", "name": "letters", "symbols": ["A", "B", "C"]}),
    ("a", {"type": "array", "items": ["null", "long"]}),
    ("m", {"type": "map", "values": "int"}),
    ("r", ["null", _record("inner", ("x", "long"), ("y", {"type": "array", "items": "string"}))]),
)
# Only fastavro reads these.
AVRO_UNIONS = [
    {"name": "u", "type": ["null", "string", "long", "boolean"]},
    {"name": "v", "type": ["int", "long"]},
    {"name": "z", "type": "null"},
]


def _avro_record(chosen: random.Random, number: int) -> dict[str, Any]:
    def maybe(value: Any) -> Any:
        return value if chosen.random() > 0.1 else None

    return {
        "i": maybe(chosen.randrange(2 ** chosen.randrange(1, 62))),
        "n": number,
        "s": maybe(chosen.choice(["x", "yy", f"text {chosen.randrange(50)}"])),
        "b": chosen.randbytes(chosen.randrange(9)),
        "t": maybe(chosen.randrange(10**15)),
        "l": chosen.randrange(10**12),
        "d": chosen.randrange(-100_000, 50_000),
        "w": chosen.randrange(10**10).to_bytes(6, "big", signed=True),
        "f": chosen.random(),
        "g": maybe(chosen.random()),
        "o": chosen.random() > 0.5,
        "x": chosen.randbytes(6),
        "e": chosen.choice("ABC"),
        "a": [maybe(chosen.randrange(100)) for _ in range(chosen.randrange(4))],
        "m": dict.fromkeys("abc"[: chosen.randrange(4)], 1),
        "r": maybe({"x": chosen.randrange(100), "y": ["q", "é"][: chosen.randrange(3)]}),
        "u": chosen.choice([None, "text", 5, True]),
        "v": ("long", 7),
        "z": None,
    }


def _without_logical_types(kind: Any) -> Any:
    if isinstance(kind, list):
        return [_without_logical_types(one) for one in kind]
    if isinstance(kind, dict):
        return {key: _without_logical_types(value) for key, value in kind.items() if key != "logicalType"}
    return kind


def avro_file(number: int) -> bytes:
    """Return an Avro file. Its values are as they are stored, so that no logical type is applied."""
    chosen = random.Random(number)
    fields = [*AVRO_SCHEMA["fields"], *(AVRO_UNIONS if number % 3 == 0 else [])]
    sink = io.BytesIO()
    fastavro.writer(
        sink,
        _without_logical_types({**AVRO_SCHEMA, "fields": fields}),
        [_avro_record(chosen, row) for row in range(100)],
        codec=AVRO_CODECS[number % len(AVRO_CODECS)],
        sync_interval=1_000 if number % 2 else 1 << 20,
        sync_marker=chosen.randbytes(16),
        metadata={"org.apache.spark.version": "3.5.0"},
    )
    return _with_schema(sink.getvalue(), {**AVRO_SCHEMA, "fields": fields})


def _with_schema(data: bytes, schema: dict[str, Any]) -> bytes:
    """Replace the schema in the header of an Avro file."""
    start = data.index(b"avro.schema") + len("avro.schema")
    size, after = _number(data, start)
    text = json.dumps(schema).encode()
    return data[:start] + _varint(len(text)) + text + data[after + size :]


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value >> 1, at


def _varint(value: int) -> bytes:
    value <<= 1
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


WRITERS: dict[str, Callable[[int], bytes]] = {"avro": avro_file, "orc": orc_file, "parquet": parquet_file}
