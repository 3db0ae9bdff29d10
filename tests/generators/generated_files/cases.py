# SPDX-License-Identifier: Apache-2.0
"""Cases of a read, each from a number: files of a random schema, and options of the reader."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from pyarrow import orc

from generated_files.seeds import AVRO_CODECS, ORC_CODECS, PARQUET_CODECS

Make = Callable[[random.Random], Any]
VALUES: dict[str, tuple[pa.DataType, Make]] = {
    "boolean": (pa.bool_(), lambda r: r.random() < 0.5),
    "int": (pa.int32(), lambda r: r.randrange(-(2 ** r.randrange(1, 32)), 2 ** r.randrange(1, 32))),
    "bigint": (pa.int64(), lambda r: r.randrange(-(2 ** r.randrange(1, 64)), 2 ** r.randrange(1, 64))),
    "float": (pa.float32(), lambda r: r.choice([0.5, float("inf"), float("nan"), -0.0, r.randrange(10**6)])),
    "double": (pa.float64(), lambda r: r.choice([0.1, -float("inf"), float("nan"), -0.0, r.gauss(0, 1e60)])),
    "string": (pa.string(), lambda r: "".join(r.choices("aé😀 z", k=r.randrange(9)))),
    "binary": (pa.binary(), lambda r: r.randbytes(r.randrange(9))),
    "date": (pa.date32(), lambda r: r.randrange(-140_000, 2_000_000)),
    "timestamp": (pa.timestamp("us", "UTC"), lambda r: r.randrange(-(10**15), 9 * 10**15) // 10**6 * 10**6),
    "decimal(9,2)": (pa.decimal128(9, 2), lambda r: Decimal(r.randrange(-(10**9) + 1, 10**9)).scaleb(-2)),
    "decimal(38,6)": (pa.decimal128(38, 6), lambda r: Decimal(r.randrange(-(10**37), 10**37)).scaleb(-6)),
}
WIDER = {"int": ["int", "bigint", "double"], "float": ["float", "double"]}
"""The types of a user's schema for a type of the file, beside its own."""
TEXT_FORMATS = ("csv", "json", "text", "binaryFile")


@dataclass(frozen=True)
class Column:
    """A column: its Spark type, Arrow type, and what makes its values."""

    kind: str
    type: pa.DataType
    make: Make


@dataclass
class Case:
    """Files, and how they are read.

    Attributes:
        kind: The format.
        files: Content by path below the directory to read.
        options: Options of Spark's reader and of forebay.
        schema: The user's schema as DDL; None to infer it.
        columns: The columns to select; None for all.
        condition: A filter on rows; None for all.
    """

    kind: str
    files: dict[str, bytes]
    options: dict[str, str] = field(default_factory=dict)
    schema: str | None = None
    columns: list[str] | None = None
    condition: str | None = None


def column(chosen: random.Random, depth: int) -> Column:
    """Return a random column, nested up to a depth. One value in eight is null."""
    kind = chosen.choice(["simple", "simple", "list", "struct", "map"] if depth else ["simple"])
    if kind == "simple":
        name = chosen.choice(list(VALUES))
        data_type, make = VALUES[name]
        return Column(name, data_type, _or_null(make))
    inner = column(chosen, depth - 1)
    if kind == "list":
        made = _or_null(lambda r: [inner.make(r) for _ in range(r.randrange(4))])
        return Column(f"array<{inner.kind}>", pa.list_(inner.type), made)
    if kind == "map":
        made = _or_null(lambda r: [(key, inner.make(r)) for key in "abc"[: r.randrange(4)]])
        return Column(f"map<string, {inner.kind}>", pa.map_(pa.string(), inner.type), made)
    second = column(chosen, depth - 1)
    made = _or_null(lambda r: {"x": inner.make(r), "Y": second.make(r)})
    data_type = pa.struct([("x", inner.type), ("Y", second.type)])
    return Column(f"struct<x: {inner.kind}, Y: {second.kind}>", data_type, made)


def _or_null(make: Make) -> Make:
    return lambda r: None if r.random() < 0.125 else make(r)


def case(kind: str, number: int) -> Case:
    """Return a case of a format."""
    chosen = random.Random(f"{kind} {number}")
    if kind in TEXT_FORMATS:
        return _text_case(kind, chosen)
    columns = {f"c{place}": column(chosen, 2) for place in range(chosen.randrange(1, 9))}
    columns["id"] = Column("int", pa.int32(), lambda r: r.randrange(100))
    partitioned = chosen.random() < 0.3
    files = {}
    for place in range(chosen.choice([1, 1, 2, 3])):
        name = f"p={place}/f.{kind}" if partitioned else f"f{place}.{kind}"
        files[name] = _written(kind, chosen, columns)
    found = Case(kind, files)
    if chosen.random() < 0.4:
        found.schema = _schema(kind, chosen, columns)
        if partitioned:
            found.schema += ", p int"
    elif chosen.random() < 0.4:
        found.columns = chosen.sample(list(columns), chosen.randrange(1, len(columns) + 1))
    if chosen.random() < 0.3:
        found.condition = chosen.choice(["id > 50", "id IS NOT NULL AND id < 20", "id IN (1, 2, 3, 90)", "NOT id = 7"])
        if found.columns is not None and "id" not in found.columns:
            found.columns.append("id")
    found.options = _options(kind, chosen, found)
    return found


def _schema(kind: str, chosen: random.Random, columns: dict[str, Column]) -> str:
    """Return a schema with some of the columns in another order and case, wider types, and one that no file has."""
    names = chosen.sample(list(columns), chosen.randrange(1, len(columns) + 1))
    if "id" not in names:
        names.append("id")
    fields = []
    for name in names:
        own = columns[name].kind
        fields.append(f"{chosen.choice([name, name.upper()])} {chosen.choice(WIDER.get(own, [own]))}")
    return ", ".join([*fields, *(["missing string"] if chosen.random() < 0.5 else [])])


def _options(kind: str, chosen: random.Random, found: Case) -> dict[str, str]:
    options: dict[str, str] = {}
    if kind != "avro" and found.schema is None and chosen.random() < 0.3:
        options["mergeSchema"] = "true"
    if kind == "avro":
        options["datetimeRebaseMode"] = chosen.choice(["CORRECTED", "EXCEPTION"])
    if chosen.random() < 0.2:
        options["pathGlobFilter"] = f"f*.{kind}"
    if chosen.random() < 0.2:
        options["recursiveFileLookup"] = "false"
    return options


def _written(kind: str, chosen: random.Random, columns: dict[str, Column]) -> bytes:
    rows = chosen.choice([1, 30, 200])
    values = {name: [one.make(chosen) for _ in range(rows)] for name, one in columns.items()}
    sink = io.BytesIO()
    if kind == "avro":
        _write_avro(sink, chosen, columns, values)
        return sink.getvalue()
    table = pa.table({name: pa.array(values[name], one.type) for name, one in columns.items()})
    if kind == "orc":
        orc.write_table(
            table,
            sink,
            compression=chosen.choice(ORC_CODECS),
            dictionary_key_size_threshold=chosen.choice([0, 1]),
            file_version=chosen.choice(["0.11", "0.12"]),
            stripe_size=chosen.choice([1 << 14, 1 << 26]),
            batch_size=50,
        )
    else:
        pq.write_table(
            table,
            sink,
            compression=chosen.choice(PARQUET_CODECS),
            data_page_version=chosen.choice(["1.0", "2.0"]),
            use_dictionary=chosen.random() < 0.5,
            row_group_size=chosen.choice([40, 1_000]),
            store_schema=chosen.random() < 0.5,
        )
    return sink.getvalue()


def _write_avro(
    sink: io.BytesIO, chosen: random.Random, columns: dict[str, Column], values: dict[str, list[Any]]
) -> None:
    names = iter(range(10_000))
    fields = [{"name": name, "type": _avro_type(one.type, chosen, names)} for name, one in columns.items()]
    rows = [
        {name: _avro_value(values[name][at], one.type) for name, one in columns.items()}
        for at in range(len(values["id"]))
    ]
    fastavro.writer(
        sink,
        {"type": "record", "name": "top", "fields": fields},
        rows,
        codec=chosen.choice(AVRO_CODECS),
        sync_interval=chosen.choice([200, 1 << 20]),
        metadata={"org.apache.spark.version": "3.5.0"},
    )


AVRO_TYPES: dict[pa.DataType, Any] = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.timestamp("us", "UTC"): {"type": "long", "logicalType": "timestamp-micros"},
    pa.decimal128(9, 2): {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    pa.decimal128(38, 6): {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 6},
}


def _avro_type(kind: pa.DataType, chosen: random.Random, names: Any) -> Any:
    found: Any
    if isinstance(kind, pa.StructType):
        inside = [{"name": one.name, "type": _avro_type(one.type, chosen, names)} for one in kind]
        found = {"type": "record", "name": f"r{next(names)}", "fields": inside}
    elif isinstance(kind, pa.MapType):
        found = {"type": "map", "values": _avro_type(kind.item_type, chosen, names)}
    elif isinstance(kind, pa.ListType):
        found = {"type": "array", "items": _avro_type(kind.value_type, chosen, names)}
    else:
        found = AVRO_TYPES[kind]
    return chosen.choice([["null", found], [found, "null"]])


def _avro_value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if isinstance(kind, pa.StructType):
        return {one.name: _avro_value(value[one.name], one.type) for one in kind}
    if isinstance(kind, pa.MapType):
        return {key: _avro_value(inside, kind.item_type) for key, inside in value}
    if isinstance(kind, pa.ListType):
        return [_avro_value(inside, kind.value_type) for inside in value]
    return value


def _text_case(kind: str, chosen: random.Random) -> Case:
    """Return a case of CSV, JSON, text or binary files, of plain columns with a schema."""
    rows = [(number, chosen.choice(["a", "é😀", " x ", "y,z", ""]), chosen.random()) for number in range(40)]
    files = {}
    for place in range(chosen.choice([1, 2])):
        lines = chosen.sample(rows, chosen.randrange(1, 40))
        if kind == "json":
            text = "".join(
                json.dumps({"id": i, "s": s, "d": d}, ensure_ascii=chosen.random() < 0.5) + "\n" for i, s, d in lines
            )
        else:
            text = "".join(f'{i},"{s}",{d!r}\n' for i, s, d in lines)
        files[f"f{place}.{'txt' if kind in ('text', 'binaryFile') else kind}"] = text.encode()
    found = Case(kind, files)
    if kind in ("csv", "json"):
        found.schema = chosen.choice(["id int, s string, d double", "id bigint, s string, d string"])
        found.options = {"mode": chosen.choice(["PERMISSIVE", "DROPMALFORMED"])}
    elif kind == "text":
        found.options = {"wholetext": chosen.choice(["true", "false"])}
    if kind == "csv":
        found.options["ignoreLeadingWhiteSpace"] = chosen.choice(["true", "false"])
    if kind == "binaryFile":
        found.columns = ["length", "content"]
    return found
