# SPDX-License-Identifier: Apache-2.0
"""Yielded batches are cast to the schema; nothing is parsed, rounded or guessed."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from manual_clock import ManualClock

from forebay.errors import ContractError, DataError
from forebay.framework.arrow import casting
from forebay.framework.arrow.row_packer import Batch, RowPacker
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split import Split

NOW = datetime(2024, 5, 1, 12)


def packer(schema: pa.Schema, split: Split | None = None, *, max_rows: int = 1000) -> RowPacker:
    return RowPacker(
        schema,
        split or Split("x"),
        ManualClock(),
        HostOptions(max_rows_per_batch=max_rows),
        source="src",
    )


def packed(schema: pa.Schema, *items: object) -> pa.RecordBatch:
    one = packer(schema)
    for item in items:
        assert one.add(item) is None
    taken = one.take()
    assert taken is not None
    taken.batch.validate(full=True)
    assert taken.batch.schema.equals(schema)
    return taken.batch


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array([{"x": 1}]), pa.struct([("y", pa.int64())])),
        (pa.array([{"x": 1}]), pa.struct([("x", pa.int64()), ("y", pa.int64())])),
        (pa.array([[{"x": 1}]]), pa.large_list(pa.struct([("y", pa.int64())]))),
        (pa.array(["1"]), pa.int64()),
        (pa.array(["1"]).dictionary_encode(), pa.int64()),
        (pa.array([1]), pa.string()),
        (pa.array([1]), pa.dictionary(pa.int32(), pa.string())),
        (pa.array([5]), pa.bool_()),
        (pa.array([1.0]), pa.int64()),
        (pa.array([1.15]), pa.decimal128(10, 1)),
        (pa.array([5]), pa.timestamp("us")),
        (pa.array([0.1]), pa.float32()),
        (pa.array([NOW], pa.timestamp("us", "America/New_York")), pa.timestamp("us")),
        (pa.array([NOW], pa.timestamp("us")), pa.timestamp("us", "America/New_York")),
        (pa.array([b"x"]), pa.string()),
        (pa.array([[1]]), pa.list_(pa.string(), 1)),
    ],
)
@pytest.mark.parametrize("wrapped", ["record batch", "table", "Batch"])
def test_sr2_an_arrow_type_that_would_be_guessed_from_is_refused(
    array: pa.Array, kind: pa.DataType, wrapped: str
) -> None:
    batch = pa.record_batch({"c": array})
    item = {"record batch": batch, "table": pa.table(batch), "Batch": Batch(batch, 1)}[wrapped]
    with pytest.raises(ContractError) as caught:
        packed(pa.schema([("c", kind)]), item)
    assert f"the column 'c' is {array.type}, not {kind}" in caught.value.message
    assert (caught.value.source, caught.value.split, caught.value.rule) == ("src", "x", "SR-2")
    assert "cast it in read()" in str(caught.value)


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array([1], pa.int8()), pa.int64()),
        (pa.array([1], pa.int32()), pa.decimal128(12, 0)),
        (pa.array([0.5], pa.float32()), pa.float64()),
        (pa.array(["a"], pa.large_string()), pa.string()),
        (pa.array(["a"]), pa.dictionary(pa.int32(), pa.string())),
        (pa.array(["a"]).dictionary_encode(), pa.large_string()),
        (pa.array([Decimal("1.5")], pa.decimal128(5, 1)), pa.decimal128(10, 2)),
        (pa.array([NOW], pa.timestamp("s")), pa.timestamp("us")),
        (pa.array([[1]], pa.list_(pa.int32())), pa.large_list(pa.int64())),
        (pa.array([{"b": 1, "a": 2}]), pa.struct([("a", pa.int64()), ("b", pa.int64())])),
        (pa.array([b"0" * 16], pa.binary(16)), pa.uuid()),
        (pa.nulls(1), pa.int64()),
    ],
)
def test_an_arrow_type_that_loses_nothing_is_cast(array: pa.Array, kind: pa.DataType) -> None:
    batch = packed(pa.schema([("c", kind)]), pa.record_batch({"c": array}))
    (given,) = array.cast(kind).to_pylist()
    assert batch.column(0).to_pylist() == [given]


def test_an_extension_type_that_is_promised_passes_through() -> None:
    schema = pa.schema([("c", pa.uuid())])
    batch = pa.record_batch([pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16], pa.binary(16)))], schema)
    assert packed(schema, batch).equals(batch)


def test_all_columns_that_do_not_fit_are_named_at_once() -> None:
    batch = pa.record_batch([pa.array([1]), pa.array([1]), pa.array([2])], ["a", "b", "b"])
    schema = pa.schema([("a", pa.string()), ("b", pa.int64()), ("c", pa.int64())])
    with pytest.raises(ContractError) as caught:
        packed(schema, batch)
    for wanted in ("'a' is int64, not string", "'b' appears more than once", "'c' is missing"):
        assert wanted in caught.value.message


def test_a_schema_that_came_before_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    real = casting.is_safe_cast
    monkeypatch.setattr(casting, "is_safe_cast", lambda have, want: looked.append(have) or real(have, want))
    batch = pa.record_batch({"c": pa.array([1], pa.int32())})
    assert packed(pa.schema([("c", pa.int64())]), *[batch] * 5).num_rows == 5
    assert looked == [pa.int32()]


def test_a_batch_of_another_schema_than_the_one_before_is_looked_at() -> None:
    schema = pa.schema([("c", pa.int64())])
    with pytest.raises(ContractError, match="'c' is string"):
        packed(schema, pa.record_batch({"c": [1]}), pa.record_batch({"c": ["1"]}))


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array([1, 2, 2**40, 3]), pa.int32()),
        (pa.array([Decimal("1.50"), Decimal("1.50"), Decimal("1.55"), Decimal("1.55")]), pa.decimal128(10, 1)),
        (pa.array([1000, 1000, 1001, 1001], pa.timestamp("ns")), pa.timestamp("us")),
    ],
)
def test_sr2_a_value_that_would_lose_something_is_refused_with_its_row(array: pa.Array, kind: pa.DataType) -> None:
    with pytest.raises(ContractError, match="column 'c' is .*, but got") as caught:
        packed(pa.schema([("c", kind)]), {"c": None}, pa.record_batch({"c": array}))
    assert (caught.value.source, caught.value.split, caught.value.position) == ("src", "x", "row 3")


_STRICT = pa.field("inner", pa.int64(), nullable=False)
NULLS = [
    (pa.field("c", pa.int64(), nullable=False), [1, 2, None]),
    (pa.field("c", pa.struct([_STRICT])), [None, {"inner": 1}, {"inner": None}]),
    (pa.field("c", pa.list_(_STRICT)), [None, [1], [1, None]]),
    (pa.field("c", pa.large_list(_STRICT)), [None, [1], [1, None]]),
    (pa.field("c", pa.list_(_STRICT, 1)), [None, [1], [None]]),
    (pa.field("c", pa.map_(pa.string(), _STRICT)), [None, [("k", 1)], [("k", None)]]),
]


@pytest.mark.parametrize(("field", "values"), NULLS)
@pytest.mark.parametrize("promised", [True, False])
def test_a_null_in_an_arrow_batch_where_the_schema_allows_none_is_a_data_error(
    field: pa.Field, values: list[object], promised: bool
) -> None:
    schema = pa.schema([field])
    batch = pa.record_batch(
        [pa.array(values, field.type)], schema=schema if promised else pa.schema([field.with_nullable(True)])
    )
    with pytest.raises(DataError, match="'c' has a null.*must not be null") as caught:
        packed(schema, batch)
    assert caught.value.position == "row 2"
    good = batch.slice(1, 1) if not field.nullable else batch.slice(0, 2)
    assert packed(schema, good).to_pylist() == good.to_pylist()


@pytest.mark.parametrize(("field", "values"), NULLS)
def test_a_null_in_a_row_where_the_schema_allows_none_is_a_data_error(field: pa.Field, values: list[object]) -> None:
    with pytest.raises(DataError, match="must not be null") as caught:
        packed(pa.schema([field]), *[{"c": value} for value in values])
    assert caught.value.position == "row 2"


_POINT = pa.struct([("x", pa.int64()), ("y", pa.int64())])


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (_POINT, {"x": 1}, {"z": 1}),
        (pa.struct([("p", _POINT), ("n", pa.int64())]), {"p": {"y": 1}}, {"p": {"z": 1}, "n": 1}),
        (pa.list_(_POINT), [{"x": 1}, {"x": None}, None], [{"x": 1}, {"z": 1}]),
        (pa.large_list(_POINT), [{"x": 1}], [{"X": 1}]),
        (pa.map_(pa.string(), _POINT), {"k": {"x": 1}}, {"k": {"z": 1}}),
        (pa.map_(pa.string(), _POINT), [("k", {"x": 1})], [("k", {"z": 1})]),
    ],
)
def test_sr2_a_dict_with_none_of_the_keys_of_its_struct_is_refused(
    kind: pa.DataType, good: object, bad: object
) -> None:
    schema = pa.schema([("c", kind)])
    assert packed(schema, {"c": good}, (None,), (good,)).num_rows == 3
    with pytest.raises(ContractError, match=r"column 'c.*' is struct<.*, but got {'[zX]': 1} .*there is no") as caught:
        packed(schema, {"c": good}, {"c": None}, {"c": bad})
    assert caught.value.position == "row 2"


@pytest.mark.parametrize("value", [{}, {"x": None}, {b"x": None}, (None, None), None])
def test_keys_inside_a_column_may_be_missing(value: object) -> None:
    assert packed(pa.schema([("c", _POINT)]), {"c": value}).num_rows == 1


@pytest.mark.parametrize("form", ["dicts", "record batches", "Batches"])
@pytest.mark.parametrize("start", [None, 900])
def test_the_row_of_a_bad_value_counts_from_where_the_read_began(form: str, start: int | None) -> None:
    def items(numbers: range) -> object:
        values = [{"c": 1 << 40 if number == 37 else number} for number in numbers]
        if form == "record batches":
            return pa.RecordBatch.from_pylist(values)
        return values[0] if form == "dicts" else Batch(values, (start or 0) + numbers.stop)

    one = packer(pa.schema([("c", pa.int32())]), Split("x", start), max_rows=10)
    step, taken = (1 if form == "dicts" else 5), 0
    with pytest.raises(ContractError) as caught:
        for number in range(0, 100, step):
            part = one.add(items(range(number, number + step)))
            taken += part.batch.num_rows if part is not None else 0
    assert taken == 30
    assert caught.value.position == ("row 37" if start is None else "row 37 after 900")
