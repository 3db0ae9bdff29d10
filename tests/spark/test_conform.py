# SPDX-License-Identifier: Apache-2.0
"""Conversion of record batches to the schema of Spark (S9), without a Spark session."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from forebay.errors import ConfigurationError, ContractError, DataError
from forebay.framework.arrow.casting import select
from forebay.spark.conform import Conformer, arrow_schema, check_user_schema, spark_schema

NANO = 1_000


def conformer(schema, *, promised=None, max_rows=1_000_000, max_bytes=1 << 30):
    target = arrow_schema(spark_schema(schema, "test"))
    return Conformer(target, promised or schema.names, "test", max_rows=max_rows, max_bytes=max_bytes)


def conformed(batch, schema=None, **options):
    parts = list(conformer(schema or batch.schema, **options).conform(batch, split="s", position=7))
    return parts[0] if len(parts) == 1 else parts


def one(array, schema_type=None):
    batch = pa.record_batch({"c": array})
    out = conformed(batch, pa.schema([("c", schema_type)]) if schema_type is not None else None)
    out.validate(full=True)
    return out.column(0)


NOW = datetime(2024, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)
CASES: dict[str, tuple[Any, Any, Any]] = {
    "large string": (pa.array(["a", None], pa.large_string()), pa.string(), ["a", None]),
    "string view": (pa.array(["a", None], pa.string_view()), pa.string(), ["a", None]),
    "dictionary": (pa.array(["a", None, "a"]).dictionary_encode(), pa.string(), ["a", None, "a"]),
    "large binary": (pa.array([b"a", None], pa.large_binary()), pa.binary(), [b"a", None]),
    "binary view": (pa.array([b"a", None], pa.binary_view()), pa.binary(), [b"a", None]),
    "fixed binary": (pa.array([b"ab", None], pa.binary(2)), pa.binary(), [b"ab", None]),
    "uint8": (pa.array([255, None], pa.uint8()), pa.int16(), [255, None]),
    "uint16": (pa.array([65535], pa.uint16()), pa.int32(), [65535]),
    "uint32": (pa.array([2**32 - 1], pa.uint32()), pa.int64(), [2**32 - 1]),
    "uint64": (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(20, 0), [Decimal(2**64 - 1)]),
    "half float": (pa.array([1.5], pa.float16()), pa.float32(), [1.5]),
    "date64": (pa.array([NOW.date()], pa.date64()), pa.date32(), [NOW.date()]),
    "seconds": (pa.array([1], pa.timestamp("s", "UTC")), pa.timestamp("us", "UTC"), [datetime.fromtimestamp(1, UTC)]),
    "another zone": (pa.array([NOW], pa.timestamp("us", "Europe/Berlin")), pa.timestamp("us", "UTC"), [NOW]),
    "an offset": (pa.array([NOW], pa.timestamp("us", "+00:00")), pa.timestamp("us", "UTC"), [NOW]),
    "nanoseconds": (pa.array([1_999], pa.timestamp("ns")), pa.timestamp("us"), [datetime(1970, 1, 1, 0, 0, 0, 1)]),
    "small decimal": (pa.array([Decimal("1.25")], pa.decimal128(5, 2)), pa.decimal128(5, 2), [Decimal("1.25")]),
    "decimal256": (pa.array([Decimal("1.25")], pa.decimal256(38, 2)), pa.decimal128(38, 2), [Decimal("1.25")]),
    "large list": (
        pa.array([["a", None], None, []], pa.large_list(pa.large_string())),
        pa.list_(pa.string()),
        [["a", None], None, []],
    ),
    "fixed list": (pa.array([[1, 2], None], pa.list_(pa.int32(), 2)), pa.list_(pa.int32()), [[1, 2], None]),
    "list of dictionaries": (
        pa.array([["a"], ["b"]], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
        pa.list_(pa.string()),
        [["a"], ["b"]],
    ),
    "map": (
        pa.array([[("k", 1)], None], pa.map_(pa.large_string(), pa.uint8())),
        pa.map_(pa.string(), pa.int16()),
        [[("k", 1)], None],
    ),
    "struct": (
        pa.array([{"a": 1, "b": "x"}, None], pa.struct([("a", pa.uint32()), ("b", pa.large_string())])),
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        [{"a": 1, "b": "x"}, None],
    ),
    "json extension": (pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}"])), pa.string(), ["{}"]),
    "nothing but nulls": (pa.nulls(2), pa.null(), [None, None]),
}


@pytest.mark.parametrize("case", CASES)
def test_a_type_that_spark_does_not_take_becomes_the_one_it_stands_for(case):
    given_array, wanted_type, wanted = CASES[case]
    out = one(given_array)
    assert out.type == wanted_type
    assert out.to_pylist() == wanted


@pytest.mark.parametrize("case", [case for case in CASES if len(CASES[case][0]) > 1])
def test_a_slice_of_a_batch_keeps_its_own_values(case):
    array, _, wanted = CASES[case]
    assert one(array.slice(1)).to_pylist() == wanted[1:]


def test_a_batch_of_the_target_schema_is_not_changed():
    batch = pa.record_batch({"n": pa.array([1, 2]), "t": pa.array(["a", None])})
    assert conformed(batch) is batch


def test_metadata_of_schema_fields_and_nested_fields_is_taken_off():
    odd = {b"odd\xff": b"\xff\xfe"}
    inner = pa.struct([pa.field("x", pa.int64(), metadata=odd)])
    schema = pa.schema(
        [
            pa.field("n", pa.int64(), metadata=odd),
            pa.field("s", inner),
            pa.field("l", pa.list_(pa.field("element", inner, metadata=odd))),
        ],
        metadata=odd,
    )
    rows = [{"n": 1, "s": {"x": 2}, "l": [{"x": 3}]}]
    found = conformed(pa.RecordBatch.from_pylist(rows, schema=schema), schema)
    assert found.to_pylist() == rows
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, found.schema) as stream:
        stream.write_batch(found)
    assert b"odd" not in sink.getvalue().to_pybytes()


def test_columns_come_in_the_order_of_the_schema_whatever_order_the_batch_has():
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    out = conformed(pa.record_batch({"b": ["x"], "a": [1]}), schema)
    assert out.schema.names == ["a", "b"]
    assert out.to_pylist() == [{"a": 1, "b": "x"}]


def test_fields_of_a_struct_are_found_by_name():
    wanted = pa.struct([("a", pa.int64()), ("b", pa.string())])
    out = one(pa.array([{"b": "x", "a": 1}], pa.struct([("b", pa.string()), ("a", pa.int64())])), wanted)
    assert out.to_pylist() == [{"a": 1, "b": "x"}]
    assert out.type == wanted


def test_columns_that_were_not_chosen_are_left_out():
    batch = pa.record_batch({"a": [1], "b": ["x"]})
    assert conformed(batch, pa.schema([("b", pa.string())]), promised=["a", "b"]).to_pylist() == [{"b": "x"}]


def test_what_is_nullable_in_the_batch_only_by_its_schema_becomes_what_spark_expects():
    schema = pa.schema(
        [
            pa.field("n", pa.int64(), nullable=False),
            pa.field("s", pa.struct([pa.field("inner", pa.int64(), nullable=False)])),
        ]
    )
    batch = pa.record_batch({"n": [1], "s": pa.array([{"inner": 2}])})
    out = conformed(batch, schema)
    assert out.schema.equals(arrow_schema(spark_schema(schema, "test")))
    assert not out.schema.field("n").nullable


def test_a_field_that_the_batch_says_is_never_null_may_be_nullable_for_spark():
    strict = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    batch = pa.record_batch([pa.array([1])], schema=strict)
    out = conformed(batch, pa.schema([("n", pa.int64())]))
    assert out.schema.field("n").nullable


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array([1, None]), pa.field("c", pa.int64(), nullable=False)),
        (
            pa.array([{"x": None}], pa.struct([("x", pa.int64())])),
            pa.field("c", pa.struct([pa.field("x", pa.int64(), nullable=False)])),
        ),
        (pa.array([[1, None]]), pa.field("c", pa.list_(pa.field("element", pa.int64(), nullable=False)))),
        (
            pa.array([[("k", None)]], pa.map_(pa.string(), pa.int64())),
            pa.field("c", pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))),
        ),
    ],
)
def test_a_null_where_the_schema_allows_none_is_an_error_naming_column_split_and_position(array, kind):
    with pytest.raises(DataError, match="must not be null|has nulls") as caught:
        conformed(pa.record_batch({"c": array}), pa.schema([kind]))
    assert "'c'" in caught.value.message
    assert (caught.value.source, caught.value.split, caught.value.position) == ("test", "s", "7")


def test_s9_a_null_in_a_batch_whose_own_schema_denies_it_is_an_error():
    field = pa.field("c", pa.int64(), nullable=False)
    with pytest.raises(DataError, match="must not be null|has nulls"):
        conformed(pa.record_batch([pa.array([1, None])], schema=pa.schema([field])), pa.schema([field]))


def test_a_null_struct_has_no_null_inside():
    field = pa.field("c", pa.struct([pa.field("x", pa.int64(), nullable=False)]))
    batch = pa.record_batch({"c": pa.array([None, {"x": 1}], pa.struct([("x", pa.int64())]))})
    assert conformed(batch, pa.schema([field])).to_pylist() == [{"c": None}, {"c": {"x": 1}}]


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array([2**40]), pa.int32()),
        (pa.array([2**60], pa.timestamp("s")), pa.timestamp("us")),
        (pa.array([Decimal(10) ** 30]), pa.decimal128(20, 0)),
    ],
)
def test_a_value_too_big_for_its_column_is_a_data_error(array, kind):
    with pytest.raises(DataError, match="'c' does not fit") as caught:
        one(array, kind)
    assert caught.value.position == "7"


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array(["12"]), pa.int64()),
        (pa.array([12]), pa.string()),
        (pa.array([1.5]), pa.int64()),
        (pa.array([1.5]), pa.float32()),
        (pa.array([b"x"]), pa.string()),
        (pa.array([NOW], pa.timestamp("us", "UTC")), pa.timestamp("us")),
        (pa.array([NOW], pa.timestamp("us", "UTC")), pa.date32()),
        (pa.array([{"a": 1}]), pa.struct([("b", pa.int64())])),
        (pa.array([{"a": 1}]), pa.string()),
        (pa.array([[1]]), pa.list_(pa.string())),
        (pa.array([True]), pa.int64()),
    ],
)
def test_nothing_is_parsed_rounded_or_guessed(array, kind):
    with pytest.raises(ContractError, match="'c' is") as caught:
        one(array, kind)
    assert caught.value.split == "s"


def test_missing_extra_and_repeated_columns_are_all_named_at_once():
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    batch = pa.record_batch([pa.array([1]), pa.array([1]), pa.array([1])], names=["a", "a", "z"])
    with pytest.raises(ContractError) as caught:
        conformed(batch, schema)
    for wanted in ("'a' appears more than once", "'b' is missing", "'z' is not in schema()"):
        assert wanted in caught.value.message


def test_a_repeated_column_is_refused_also_if_it_was_not_chosen():
    batch = pa.record_batch([pa.array([1]), pa.array([1]), pa.array([1])], names=["a", "a", "b"])
    with pytest.raises(ContractError, match="'a' appears more than once"):
        conformed(batch, pa.schema([("b", pa.int64())]), promised=["a", "b"])


def test_a_batch_of_another_schema_than_the_one_before_is_conformed_too():
    both = conformer(pa.schema([("c", pa.string())]))
    (first,) = both.conform(pa.record_batch({"c": ["a"]}), split="s")
    (second,) = both.conform(pa.record_batch({"c": pa.array(["b"], pa.large_string())}), split="s")
    assert first.schema == second.schema


@given(rows=st.integers(0, 500), max_rows=st.integers(1, 100), max_bytes=st.integers(1, 4000))
def test_cut_to_size_the_parts_are_the_batch(rows, max_rows, max_bytes):
    batch = pa.record_batch({"n": pa.array(range(rows), pa.int64())})
    both = conformer(batch.schema, max_rows=max_rows, max_bytes=max_bytes)
    parts = list(both.conform(batch, split="s"))
    assert [n for part in parts for n in part.column(0).to_pylist()] == list(range(rows))
    assert all(0 < part.num_rows <= max_rows for part in parts)
    assert all(part.num_rows == 1 or part.nbytes <= max_bytes for part in parts)


def test_a_type_without_a_counterpart_is_refused_with_the_column_name():
    for kind in (pa.month_day_nano_interval(), pa.decimal256(60, 0), pa.decimal128(5, -2), pa.list_view(pa.int64())):
        with pytest.raises(ConfigurationError, match="'odd' cannot be read by Spark"):
            spark_schema(pa.schema([("odd", kind)]), "test")


def test_a_repeated_name_is_refused_on_every_level():
    with pytest.raises(ConfigurationError, match="'a' twice"):
        spark_schema(pa.schema([("a", pa.int64()), ("a", pa.string())]), "test")
    with pytest.raises(ConfigurationError, match="'a' twice"):
        spark_schema(pa.schema([("s", pa.struct([("a", pa.int64()), ("a", pa.string())]))]), "test")


@pytest.mark.parametrize("schema", [None, pa.schema([]), {"n": "int"}])
def test_what_is_no_schema_is_refused(schema):
    with pytest.raises(ContractError, match=r"schema\(\) returned"):
        spark_schema(schema, "test")


def test_timestamps_with_and_without_zone_are_two_types_for_spark():
    schema = pa.schema([("at", pa.timestamp("ms", "Europe/Berlin")), ("local", pa.timestamp("ms"))])
    assert [field.dataType for field in spark_schema(schema, "test")] == [t.TimestampType(), t.TimestampNTZType()]


def test_columns_are_chosen_by_exact_name_first_and_then_without_case():
    names = ["id", "ID", "Name"]
    assert select(names, ["ID", "name"], "test") == ["ID", "Name"]
    for bad, what in (
        (["Id"], "matches several"),
        (["nme"], "no column 'nme'"),
        (["id", "id"], "twice"),
        ([], "no col"),
    ):
        with pytest.raises(ConfigurationError, match=what) as caught:
            select(names, bad, "test")
        assert caught.value.option == "columns"


def test_a_user_schema_may_differ_in_order_and_nullability_alone():
    own = pa.schema([pa.field("a", pa.large_string(), nullable=False), ("b", pa.list_(pa.int64()))])
    user = pa.schema([("b", pa.list_(pa.field("element", pa.int64(), nullable=False))), ("a", pa.string())])
    check_user_schema(user, own, "test")


def test_a_user_schema_that_does_not_fit_names_every_column():
    own = pa.schema([("a", pa.int64()), ("b", pa.string())])
    with pytest.raises(ConfigurationError) as caught:
        check_user_schema(pa.schema([("a", pa.string()), ("c", pa.int64())]), own, "test")
    for wanted in ("'a' is int64, not string", "'c' does not exist", "'b' is missing"):
        assert wanted in caught.value.message
