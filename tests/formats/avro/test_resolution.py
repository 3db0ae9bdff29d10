# SPDX-License-Identifier: Apache-2.0
"""The option `avroSchema` against spark-avro: pairs of a type in the file and a field of the reader's schema."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from forebay.errors import ConfigurationError, DataError, ForebayError
from forebay.formats.avro.format import AvroFormat, AvroOptions

ZONE = "UTC"
Files = Callable[..., Any]


def record(name: str, *fields: tuple[Any, ...], **more: Any) -> dict[str, Any]:
    """A record; a field is a name, a type and maybe a dictionary with a default or aliases."""
    made = [{"name": one[0], "type": one[1], **(one[2] if len(one) > 2 else {})} for one in fields]
    return {"type": "record", "name": name, "fields": made, **more}


def enum(name: str, *symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(name: str, size: int, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def mapped(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


PAIRS: dict[str, tuple[Any, Any, list[Any]]] = {
    "boolean": (["null", "boolean"], ["boolean", "null"], [None, True, False]),
    "int_long": ("int", "long", [1, -(2**31), 2**31 - 1]),
    "int_float": ("int", "float", [1, 16_777_217, 2**31 - 1]),
    "int_double": ("int", "double", [1, 2**31 - 1, -5]),
    "long_float": ("long", "float", [1, 2**63 - 1, 9_007_199_254_740_993]),
    "long_double": ("long", "double", [1, 2**63 - 1, 9_007_199_254_740_993]),
    "float_double": ("float", "double", [0.5, float("inf"), 1e-45]),
    "bytes_string": ("bytes", "string", [b"", "é".encode(), b"abc"]),
    "string_bytes": ("string", "bytes", ["", "é€", "abc"]),
    "no_null_any_more": (["null", "int"], "int", [1, 2, 3]),
    "null_now": ("int", ["null", "int"], [1, 2, 3]),
    "null_and_wider": (["null", "int"], ["long", "null"], [None, 5, 7]),
    "null_and_decimal": (
        ["null", logical("bytes", "decimal", precision=4, scale=2)],
        ["null", logical("bytes", "decimal", precision=6, scale=2)],
        [None, b"\x01", b"\xff"],
    ),
    "only_null": ("null", ["null", "int"], [None, None, None]),
    "array": (array("int"), array(["null", "double"]), [[], [1, 2], [3]]),
    "nullable_array": (["null", array(["null", "int"])], ["null", array(["long", "null"])], [None, [], [1, None]]),
    "map": (mapped("int"), mapped("long"), [{}, {"a": 1}, {"b": 2}]),
    "map_of_records": (
        mapped(["null", record("v", ("x", "int"), ("gone", "string"))]),
        mapped(["null", record("w", ("y", "string", {"default": "d"}), ("x", "long"))]),
        [{}, {"a": None}, {"b": {"x": 1, "gone": ""}}],
    ),
    "record": (
        record("p", ("x", "int"), ("gone", "string")),
        record("q", ("new", ["null", "string"], {"default": None}), ("x", "double")),
        [{"x": 1, "gone": "a"}, {"x": 2, "gone": "b"}, {"x": 3, "gone": ""}],
    ),
    "record_without_fields_in_common": (
        ["null", record("p2", ("x", "int"))],
        ["null", record("q2", ("y", "int", {"default": 4}))],
        [None, {"x": 1}, {"x": 2}],
    ),
    "aliases_of_fields": (
        record("p4", ("old", "int")),
        record("p4", ("new", "long", {"aliases": ["older", "old"]})),
        [{"old": 1}, {"old": 2}, {"old": 3}],
    ),
    "aliases_of_records": (
        record("p5", ("old", "int")),
        record("q5", ("new", "long", {"aliases": ["old"]}), aliases=["p5"]),
        [{"old": 1}, {"old": 2}, {"old": 3}],
    ),
    "aliases_in_another_record": (
        record("p6", ("old", "int")),
        record("q6", ("new", "long", {"aliases": ["old"], "default": -1})),
        [{"old": 1}, {"old": 2}, {"old": 3}],
    ),
    "aliases_of_other_spaces": (
        record("one.p7", ("old", "int")),
        record("two.q7", ("new", "int", {"aliases": ["old"]}), aliases=["one.p7"]),
        [{"old": 1}, {"old": 2}, {"old": 3}],
    ),
    "record_to_nullable": (
        record("p8", ("x", "int"), ("y", "string")),
        ["null", record("p8", ("x", "int"), ("y", "string"))],
        [{"x": 1, "y": "a"}, {"x": 2, "y": ""}, {"x": 3, "y": "b"}],
    ),
    "nullable_to_record": (
        ["null", record("p9", ("x", "int"), ("y", "string"))],
        record("p9", ("x", "int"), ("y", "string")),
        [{"x": 1, "y": "a"}, {"x": 2, "y": ""}, {"x": 3, "y": "b"}],
    ),
    "records_in_an_array_to_nullable": (
        array(record("p10", ("x", "int"), ("y", "string"))),
        array([record("p10", ("x", "int"), ("y", "string")), "null"]),
        [[{"x": 1, "y": "a"}], [], [{"x": 3, "y": "b"}]],
    ),
    "enum": (enum("e", "A", "B"), enum("e", "C", "B", "A"), ["A", "B", "A"]),
    "enum_with_default": (enum("e2", "A", "B", "X"), enum("e2", "B", "Z", default="Z"), ["A", "B", "X"]),
    "enum_without_use": (enum("e3", "A", "B"), enum("e3", "A"), ["A", "A", "A"]),
    "enum_by_alias": (enum("e4", "A", "B"), enum("f4", "B", "A", aliases=["e4"]), ["A", "B", "A"]),
    "fixed": (fixed("x", 2), fixed("x", 2), [b"ab", b"cd", b"ef"]),
    "fixed_by_alias": (fixed("x1", 2), fixed("y1", 2, aliases=["x1"]), [b"ab", b"cd", b"ef"]),
    "time_now": ("long", logical("long", "timestamp-micros"), [0, 1, 10**15]),
    "time_no_more": (logical("long", "timestamp-millis"), "long", [0, 1, 10**12]),
    "date_now": ("int", logical("int", "date"), [0, 1, 20_000]),
    "decimal_now": ("bytes", logical("bytes", "decimal", precision=5, scale=1), [b"\x00", b"\x01", b"\xff"]),
}

UNIONS: dict[str, tuple[Any, Any, list[Any]]] = {
    "union_to_one": (["int", "long"], "long", [1, 2, 3]),
    "union_to_double": (["null", "int", "float"], ["null", "double"], [None, 1, 0.5]),
    "one_to_union": ("int", ["null", "string", "long"], [1, 2, 3]),
    "first_promotion": ("int", ["double", "long"], [1, 2, 3]),
    "union_to_other_union": (["null", "string", "int"], ["int", "null", "string"], [None, "a", 5]),
    "union_of_some": (["string", "int", "null"], ["null", "string"], ["a", None, "b"]),
    "record_in_union_by_structure": (
        record("p3", ("x", "int")),
        ["null", record("q3", ("z", "int")), record("r3", ("x", "long"))],
        [{"x": 1}, {"x": 2}, {"x": 3}],
    ),
}

DEFAULTS: dict[str, tuple[Any, Any]] = {
    "boolean": ("boolean", True),
    "int": ("int", -(2**31)),
    "long": ("long", 2**63 - 1),
    "float": ("float", 1),
    "double": ("double", 0.1),
    "string": ("string", "é\u20ac"),
    "bytes": ("bytes", "\u00ff\u0000a"),
    "fixed": (fixed("dx", 2), "a\u00ff"),
    "enum": (enum("de", "A", "B", default="A"), "B"),
    "null": (["null", "int"], None),
    "not_null": (["int", "null"], 7),
    "second": (["null", "string"], "s"),
    "array": (array(["null", "int"]), [1, None]),
    "map": (mapped("string"), {"k": "v"}),
    "record": (record("dr", ("x", "int", {"default": 5}), ("y", array("int"))), {"y": [1]}),
    "decimal": (logical("bytes", "decimal", precision=5, scale=2), "\u0001\u0000"),
    "date": (logical("int", "date"), 19_000),
    "micros": (logical("long", "timestamp-micros"), 1_700_000_000_000_000),
}


def top(*fields: tuple[Any, ...], **more: Any) -> dict[str, Any]:
    return record("top", *fields, **{"namespace": "a.b", **more})


def written(schema: dict[str, Any], rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, schema, rows)
    return sink.getvalue()


def ours(file: Any, schema: Any, target: pa.Schema | None = None, **options: Any) -> pa.Table:
    reader = AvroFormat(AvroOptions(avro_schema=json.dumps(schema), **options))
    target = reader.infer_schema([file]) if target is None else target
    return pa.Table.from_batches([batch for batch, _ in reader.read(file, target)], target)


def assert_same(found: pa.Table, peer: Any) -> None:
    expected = peer.toArrow()
    assert found.schema.names == peer.columns
    for name in peer.columns:
        assert repr(found[name].to_pylist()) == repr(expected[name].to_pylist()), name
    theirs = to_arrow_schema(peer.schema, timezone="UTC")
    assert [field.name for field, other in zip(found.schema, theirs, strict=True) if field.type != other.type] == []


def pairs() -> tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """A file with a field for each pair, a reader's schema with them in another order, and the rows of the file."""
    writer = top(*((name, pair[0]) for name, pair in PAIRS.items()), ("gone", "string"))
    defaults = ((f"d_{name}", kind, {"default": value}) for name, (kind, value) in DEFAULTS.items())
    reader = top(*((name, pair[1]) for name, pair in reversed(PAIRS.items())), *defaults)
    rows = [{**{name: pair[2][at] for name, pair in PAIRS.items()}, "gone": "x"} for at in range(3)]
    return writer, reader, rows


def test_every_pair_of_types_and_every_default(avro: SparkSession, tmp_path: Path, memory_file: Files) -> None:
    writer, reader, rows = pairs()
    data = written(writer, rows)
    (tmp_path / "a.avro").write_bytes(data)
    peer = avro.read.format("avro").option("avroSchema", json.dumps(reader)).load(str(tmp_path))
    assert_same(ours(memory_file(data), reader), peer)


def test_a_schema_of_spark_selects_from_the_readers_schema(
    avro: SparkSession, tmp_path: Path, memory_file: Files
) -> None:
    writer = top(("old", "int"), ("gone", "string"))
    reader = top(("New", "long", {"aliases": ["old"]}), ("more", ["null", "string"], {"default": None}))
    data = written(writer, [{"old": 1, "gone": "a"}])
    (tmp_path / "a.avro").write_bytes(data)
    given = avro.read.format("avro").option("avroSchema", json.dumps(reader))
    peer = given.schema("more string, new bigint, gone string, old int").load(str(tmp_path))
    found = ours(memory_file(data), reader, to_arrow_schema(peer.schema, timezone="UTC"))
    assert_same(found, peer)
    assert found.to_pylist() == [{"more": None, "new": 1, "gone": None, "old": None}]


@pytest.mark.parametrize("names", [("a.b.top", "c.other"), ("a.b.top", "a.b.top")])
def test_the_name_of_the_top_record_counts_for_aliases_only(
    avro: SparkSession, tmp_path: Path, memory_file: Files, names: tuple[str, str]
) -> None:
    data = written(record(names[0], ("old", "int"), ("same", "int")), [{"old": 1, "same": 2}])
    reader = record(names[1], ("same", "long"), ("new", "int", {"aliases": ["old"], "default": -1}))
    (tmp_path / "a.avro").write_bytes(data)
    peer = avro.read.format("avro").option("avroSchema", json.dumps(reader)).load(str(tmp_path))
    found = ours(memory_file(data), reader)
    assert_same(found, peer)
    assert found.to_pylist() == [{"same": 2, "new": 1 if names[0] == names[1] else -1}]


REFUSED: dict[str, tuple[Any, Any, Any]] = {
    "other type": ("string", "int", "a"),
    "narrower": ("long", "int", 1),
    "other kind": (array("int"), "int", [1]),
    "null for int": (["null", "int"], "int", None),
    "symbol that the reader lacks": (enum("e", "A", "B"), enum("e", "A"), "B"),
    "enum of another name": (enum("e", "A"), enum("f", "A"), "A"),
    "fixed of another name": (fixed("x", 2), fixed("y", 2), b"ab"),
    "fixed of another size": (fixed("x", 2), fixed("x", 3), b"ab"),
    "no default": (record("r", ("x", "int")), record("r", ("y", "int")), {"x": 1}),
    "no default in an array": (array(record("r", ("x", "int"))), array(record("r", ("y", "int"))), [{"x": 1}]),
    "two fields of one alias": (
        record("r", ("x", "int"), ("y", "int")),
        record("r", ("x", "int", {"aliases": ["y"]})),
        {"x": 1, "y": 1},
    ),
}


@pytest.mark.soak(but=["other type", "null for int", "no default", "two fields of one alias"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_spark_refuses_names_field_file_and_option(
    avro: SparkSession, tmp_path: Path, memory_file: Files, name: str
) -> None:
    kind, expected, value = REFUSED[name]
    data = written(top(("ok", "int"), ("field", kind)), [{"ok": 1, "field": value}])
    reader = top(("ok", "int"), ("field", expected))
    (tmp_path / "a.avro").write_bytes(data)
    with pytest.raises(Py4JJavaError):
        avro.read.format("avro").option("avroSchema", json.dumps(reader)).load(str(tmp_path)).collect()
    with pytest.raises((ConfigurationError, DataError)) as raised:
        ours(memory_file(data, "/data/f.avro"), reader)
    error = raised.value
    assert "'field" in error.message
    assert "/data/f.avro" in error.message
    assert (error.option, error.advice is None) == ("avroSchema", False)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (logical("long", "timestamp-millis"), logical("long", "timestamp-micros")),
        (logical("long", "timestamp-micros"), logical("long", "local-timestamp-micros")),
        (logical("int", "date"), logical("long", "timestamp-millis")),
        (
            logical("bytes", "decimal", precision=4, scale=1),
            logical("bytes", "decimal", precision=4, scale=2),
        ),
    ],
)
def test_logical_types_that_contradict_are_refused(memory_file: Files, kind: Any, expected: Any) -> None:
    value = b"\x01" if kind["type"] == "bytes" else 1
    file = memory_file(written(top(("field", ["null", kind])), [{"field": value}]))
    with pytest.raises(ConfigurationError, match="'field' is .* and cannot be read as"):
        ours(file, top(("field", ["null", expected])))


def test_aliases_that_would_swap_fields_of_the_file_are_refused(memory_file: Files) -> None:
    file = memory_file(written(record("r", ("i", "int"), ("l", "int")), [{"i": 1, "l": 2}]))
    swapped = record("r", ("i", "int", {"aliases": ["l"]}), ("l", "int", {"aliases": ["i"]}))
    with pytest.raises(ConfigurationError, match="'i' of avroSchema has the alias 'l', which is another of its fields"):
        ours(file, swapped)
    moved = record("r", ("x", "int", {"aliases": ["i"]}), ("i", "int", {"aliases": ["l"]}))
    assert ours(file, moved).to_pylist() == [{"x": 1, "i": 2}]


@pytest.mark.parametrize("name", UNIONS)
def test_unions_of_several_types_are_resolved_only_to_the_same(memory_file: Files, name: str) -> None:
    kind, expected, rows = UNIONS[name]
    file = memory_file(written(top(("field", kind), ("more", "int")), [{"field": row, "more": 1} for row in rows]))
    with pytest.raises(ConfigurationError, match="'field' is .* resolves no unions of several types") as raised:
        ours(file, top(("field", expected)))
    assert "spark.read.format('avro')" in (raised.value.advice or "")
    assert ours(file, top(("field", kind))).num_rows == len(rows)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("no json", "invalid"),
        ('"string"', "only records"),
        ('{"type":"record","name":"r","fields":[{"name":"a","type":["null","r"]}]}', "recursive"),
        ('{"type":"record","name":"r","fields":[{"name":"a","type":"no_such"}]}', "no_such"),
    ],
)
def test_a_text_that_is_no_schema_is_refused_at_once(schema: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as raised:
        AvroOptions(avro_schema=schema)
    assert raised.value.option == "avroSchema"


@pytest.mark.parametrize(
    ("kind", "default"),
    [("int", "a"), ("int", 2**31), (["null", "int"], "a"), (fixed("x", 2), "abc"), (enum("e", "A"), "B")],
)
def test_a_default_of_another_type_is_refused(memory_file: Files, kind: Any, default: Any) -> None:
    with pytest.raises(ConfigurationError, match="the default .* of the field 'field'"):
        ours(memory_file(written(top(("a", "int")), [{"a": 1}])), top(("field", kind, {"default": default})))


def test_fields_that_are_not_read_are_not_resolved(memory_file: Files) -> None:
    file = memory_file(written(top(("a", "int"), ("b", "string")), [{"a": 1, "b": "x"}]))
    reader = top(("a", "long"), ("b", "int"))
    assert ours(file, reader, pa.schema([("a", pa.int64())])).to_pylist() == [{"a": 1}]


def test_bytes_that_are_not_utf8_are_replaced(memory_file: Files) -> None:
    file = memory_file(written(top(("a", "bytes")), [{"a": b"a\xff"}, {"a": b"b"}]))
    assert ours(file, top(("a", "string"))).to_pylist() == [{"a": "a\ufffd"}, {"a": "b"}]


def test_no_file_is_needed_for_the_schema(memory_file: Files) -> None:
    reader = AvroFormat(AvroOptions(avro_schema=json.dumps(top(("a", "int")))))
    assert reader.infer_schema([]) == pa.schema([("a", pa.int32())])
    with pytest.raises(ForebayError):
        AvroFormat().infer_schema([memory_file(b"")])
