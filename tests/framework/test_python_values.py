# SPDX-License-Identifier: Apache-2.0
"""Python values in dicts and tuples: values that Arrow would cut, round, parse or drop are refused, nested ones too."""

from __future__ import annotations

import fractions
import uuid
from collections import UserDict, defaultdict, deque
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pytest
from manual_clock import ManualClock

from forebay.errors import ContractError
from forebay.framework.arrow.row_packer import Batch, RowPacker
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split import Split

INTS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
DECIMALS = [pa.decimal32(5, 1), pa.decimal64(5, 1), pa.decimal128(5, 1), pa.decimal256(40, 1)]
TEXTS = [pa.string(), pa.large_string(), pa.string_view()]
BYTES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1)]
TIMESTAMPS = [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")]
DATES = [pa.date32(), pa.date64()]
TIMES = [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]
DURATIONS = [pa.duration(unit) for unit in ("s", "ms", "us", "ns")]
TEMPORAL = [*TIMESTAMPS, *DATES, *TIMES, *DURATIONS]
MOMENT = datetime(2024, 5, 1, 12, 30, 15, 123456)
WHOLE = MOMENT.replace(microsecond=0)


class Number(IntEnum):
    THREE = 3


class Word(StrEnum):
    GO = "go"


class Index:
    """An integer class of a connector."""

    def __index__(self) -> int:
        return 7


REFUSED: list[tuple[object, list[pa.DataType], str]] = [
    # A fraction is cut off, also where there is none: the next value may have one.
    (0.99, [*INTS, *TEMPORAL, *DECIMALS, *TEXTS, pa.bool_()], ""),
    (1.0, [*INTS, *TEMPORAL], "fraction"),
    (float("nan"), [*INTS, *TEMPORAL], ""),
    (float("inf"), [*INTS, *TEMPORAL], ""),
    (np.float64(0.99), [*INTS, *TEMPORAL], "fraction"),
    (np.float32(0.99), [*INTS, *TEMPORAL], "fraction"),
    (np.float16(0.5), [*INTS, *TEMPORAL], "fraction"),
    (Decimal("1.5"), [*INTS, *FLOATS, *TEMPORAL], ""),
    (Decimal(5), [*INTS, *TEMPORAL], "fraction"),
    (fractions.Fraction(1, 2), [*INTS, *FLOATS, *TEMPORAL], ""),
    # What is beyond the range or the exact range of a number.
    (300, [pa.int8(), pa.uint8()], ""),
    (-129, [pa.int8()], ""),
    (2**15, [pa.int16()], ""),
    (2**31, [pa.int32()], ""),
    (2**63, [pa.int64()], ""),
    (-1, [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()], ""),
    (2**64, [pa.uint64()], ""),
    (np.int64(300), [pa.int8(), pa.uint8()], ""),
    (2**11 + 1, [pa.float16()], "exact"),
    (70_000, [pa.float16()], "exact"),
    (2**24 + 1, [pa.float16(), pa.float32()], ""),
    (np.int64(2**24 + 1), [pa.float32()], ""),
    (2**53 + 1, FLOATS, ""),
    (1e300, [pa.float16(), pa.float32()], "range"),
    (-1e300, [pa.float16(), pa.float32()], "range"),
    (1e-300, [pa.float16(), pa.float32()], "range"),
    (np.float64(1e300), [pa.float32()], "range"),
    (np.longdouble("1.1"), FLOATS, ""),
    (1j, [*FLOATS, *INTS], ""),
    (Decimal("1.55"), DECIMALS, ""),
    (Decimal(100000), DECIMALS[:3], ""),
    (Decimal("NaN"), DECIMALS, ""),
    (100000, DECIMALS[:3], ""),
    # Bools are no numbers, and numbers no bools.
    (True, [*INTS, *FLOATS, *DECIMALS, *TEMPORAL, *TEXTS], ""),
    (np.bool_(True), [*INTS, *FLOATS, *TEMPORAL], ""),
    (1, [pa.bool_(), *TEXTS, *BYTES], ""),
    # Text is never parsed, nor encoded; bytes are never decoded.
    ("1", [*INTS, *FLOATS, *DECIMALS, pa.bool_(), *TEMPORAL], ""),
    ("1", BYTES, "encode"),
    (np.str_("1"), BYTES, "encode"),
    (Word.GO, BYTES[:3], "encode"),
    (b"1", TEXTS, "decode"),
    (np.bytes_(b"1"), TEXTS, "decode"),
    (bytearray(b"1"), TEXTS, "decode"),
    (memoryview(b"1"), TEXTS, "decode"),
    (b"1", [*INTS, *FLOATS], ""),
    (b"ab", [pa.binary(1)], ""),
    ("\ud800", TEXTS, ""),
    # What is finer than the unit, and what a date does not hold.
    (MOMENT, [pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("ms", "UTC")], "finer"),
    (MOMENT.replace(tzinfo=UTC), [pa.timestamp("s", "UTC"), pa.timestamp("ms", "UTC")], "finer"),
    (MOMENT, [*DATES, *TIMES, *INTS, *DURATIONS], ""),
    (datetime(2024, 5, 1), DATES, "time of day"),
    (datetime(3000, 1, 1), [pa.timestamp("ns")], ""),
    (date(2024, 5, 1), [*TIMESTAMPS, *TIMES, *INTS], ""),
    (time(1, 2, 3, 4), [pa.time32("s"), pa.time32("ms")], "finer"),
    (time(1, 2, 3, tzinfo=UTC), TIMES, "zone"),
    (time(1, 2, 3), [*TIMESTAMPS, *DATES, *INTS, *DURATIONS], ""),
    (timedelta(microseconds=1500), [pa.duration("s"), pa.duration("ms")], "finer"),
    (timedelta(days=200_000), [pa.duration("ns")], ""),
    (timedelta(seconds=1), [*INTS, *FLOATS, *TIMES, *TIMESTAMPS], ""),
    (86_400, [pa.time32("s")], "day"),
    (-1, TIMES, "day"),
    (300, [pa.date64()], "day"),
    (np.int64(300), [pa.date64()], "day"),
    # Types that only numpy has.
    (np.datetime64("2024-05-01T12:30:15.123456789"), [*INTS, *DATES, *TIMES, *TIMESTAMPS[:6]], ""),
    (np.datetime64("2024-05-01"), [*DATES, *TIMESTAMPS], ""),
    (np.timedelta64(1500, "ns"), [*INTS, *DATES, *TIMES, *DURATIONS[:3]], ""),
    # Objects with `__int__` are not integers.
    (uuid.UUID(int=5), [*INTS, *TEMPORAL, *TEXTS, pa.binary(16)], ""),
]


@pytest.mark.parametrize(("value", "kinds", "why"), REFUSED, ids=lambda one: repr(one) if type(one) is str else None)
def test_sr2_a_value_that_would_lose_something_is_refused_wherever_it_stands(
    value: object, kinds: list[pa.DataType], why: str
) -> None:
    """SR-2: Rows fit the schema: nothing is cut, rounded or parsed on the way."""
    for kind in kinds:
        for path, whole, held in places(value, kind):
            for row in [{"k": 1, "c": held}] if path != "c" else [{"k": 1, "c": held}, (1, held)]:
                with pytest.raises(ContractError) as caught:
                    packed(pa.schema([("k", pa.int64()), ("c", whole)]), {"k": 0, "c": None}, row)
                error = caught.value
                place = f"{kind} {path}"
                assert (error.source, error.split, error.position) == ("src", "x", "row 1"), place
                assert error.rule == "SR-2", place
                assert f"column '{path}' is " in error.message, place
                assert f"{value!r:.100} ({type(value).__name__})" in error.message, place
                assert why in error.message, place
                assert "in read()" in (error.advice or ""), place


TAKEN: list[tuple[object, list[pa.DataType]]] = [
    (5, [*INTS, *FLOATS, *DECIMALS, *TIMESTAMPS, pa.date32(), *TIMES, *DURATIONS]),
    (np.int64(5), [*INTS, *FLOATS]),
    (np.uint8(5), [*INTS, *FLOATS]),
    (Number.THREE, [*INTS, *FLOATS]),
    (Index(), INTS),
    (86_400_000, [pa.date64()]),
    (0.1, FLOATS),  # a float column rounds to the floats it has
    (float("nan"), FLOATS),
    (float("-inf"), FLOATS),
    (-0.0, FLOATS),
    (np.float32(0.5), [pa.float32(), pa.float64()]),
    (np.float64(0.1), FLOATS),
    (Decimal("1.50"), DECIMALS),
    (True, [pa.bool_()]),
    (np.bool_(True), [pa.bool_()]),
    ("é", [*TEXTS, pa.dictionary(pa.int32(), pa.string())]),
    (np.str_("é"), TEXTS),
    (Word.GO, TEXTS),
    (b"\xff", BYTES),
    (bytearray(b"1"), BYTES),
    (memoryview(b"1"), BYTES[:3]),
    (MOMENT, TIMESTAMPS[4:]),
    (MOMENT.replace(microsecond=123000), TIMESTAMPS[2:]),
    (WHOLE, TIMESTAMPS),
    (WHOLE.replace(tzinfo=timezone(timedelta(hours=2))), TIMESTAMPS),
    (date(2024, 5, 1), DATES),
    (time(1, 2, 3), TIMES),
    (time(1, 2, 3, 4), TIMES[2:]),
    (timedelta(days=1), [*DURATIONS, pa.month_day_nano_interval()]),
    (timedelta(microseconds=1500), DURATIONS[2:]),
    (np.datetime64("2024-05-01T12:30:15.123456", "us"), TIMESTAMPS[4:5]),
    (np.timedelta64(1500, "ns"), [pa.duration("ns")]),
    (pa.scalar(5), [pa.int64()]),
    (pa.MonthDayNano([1, 2, 3]), [pa.month_day_nano_interval()]),
    (uuid.UUID(int=5), [pa.uuid()]),
]


@pytest.mark.parametrize(("value", "kinds"), TAKEN, ids=repr)
def test_a_value_that_loses_nothing_is_taken_as_arrow_takes_it(value: object, kinds: list[pa.DataType]) -> None:
    for kind in kinds:
        for _, whole, held in places(value, kind):
            batch = packed(pa.schema([("k", pa.int64()), ("c", whole)]), (0, None), {"k": 1, "c": held})
            assert str(batch.column("c").slice(1)) == str(pa.array([held], whole)), (kind, whole)


def places(value: object, kind: pa.DataType) -> list[tuple[str, pa.DataType, object]]:
    """Return the places of a value in a column: the column's type, a container of the value, and the path."""
    listed = pa.list_(kind)
    struct = pa.struct([("a", pa.int64()), ("x", kind)])
    found: list[tuple[str, pa.DataType, object]] = [
        ("c", kind, value),
        ("c.element", listed, [value]),
        ("c.element", pa.large_list(kind), (None, value)),
        ("c.x", struct, {"a": 1, "x": value}),
        ("c.x", struct, {"x": value}),
        ("c.x", struct, (1, value)),
        ("c.x", struct, [("a", 1), ("x", value)]),
        ("c.value", pa.map_(pa.string(), kind), {"key": value}),
        ("c.value", pa.map_(pa.string(), kind), [("key", value)]),
        ("c.element.x", pa.list_(struct), [{"a": 1, "x": value}, None]),
        ("c.value.x.element", pa.map_(pa.string(), pa.struct([("x", listed)])), {"key": {"x": [value]}}),
    ]
    # Arrow has no builders for some types inside a list view, and numpy scalars inside an object array are the same.
    return found if not isinstance(kind, (pa.DictionaryType, pa.BaseExtensionType)) else found[:1]


def packer(schema: pa.Schema) -> RowPacker:
    return RowPacker(schema, Split("x"), ManualClock(), HostOptions(), source="src")


def packed(schema: pa.Schema, *rows: object) -> pa.RecordBatch:
    one = packer(schema)
    assert one.add(Batch(list(rows), 1)) is None  # type: ignore[arg-type]  # they are rows
    taken = one.take()
    assert taken is not None
    return taken.batch


def one_column(kind: pa.DataType, *values: object) -> list[object]:
    batch = packed(pa.schema([("c", kind)]), *((value,) for value in values))
    found: list[object] = batch.column(0).to_pylist()
    return found


class Stamp(datetime):
    """Stands in for the Timestamp of pandas, which counts nanoseconds beside the microseconds."""

    nanosecond = 789


class NAType:
    """Stands in for the NA of pandas."""


NAType.__module__ = "pandas._libs.missing"


def test_nanoseconds_of_a_pandas_timestamp_are_not_cut_off() -> None:
    stamp = Stamp(2024, 5, 1)
    for unit in ("s", "ms", "us"):
        with pytest.raises(ContractError, match="finer"):
            one_column(pa.timestamp(unit), stamp)
    with pytest.raises(ContractError, match="time of day"):
        one_column(pa.date32(), stamp)


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.int64(), pa.string(), pa.list_(pa.int64())])
def test_a_missing_value_of_pandas_is_advised_to_be_none(kind: pa.DataType) -> None:
    with pytest.raises(ContractError, match="give None for a missing value"):
        one_column(kind, None, NAType())


INT_LISTS = pa.list_(pa.int64())
STRANGE: list[tuple[object, pa.DataType, str]] = [
    (np.array([1.5]), INT_LISTS, "c.element"),
    (np.array([True]), INT_LISTS, "c.element"),
    (np.array([1, 0.5], object), INT_LISTS, "c.element"),
    (deque([1, 0.5]), INT_LISTS, "c.element"),
    ({1.5: 2}.values(), INT_LISTS, ""),
    ({0.5}, INT_LISTS, "c.element"),
    (np.array([1e300]), pa.list_(pa.float32()), "c.element"),
    (np.array(["2024-01-01"], "M8[D]"), pa.list_(pa.timestamp("us")), "c.element"),  # Arrow: 19,723 microseconds
    (np.array(["2024-01-01"], "M8[ns]"), INT_LISTS, "c.element"),
    (np.array([b"a"]), pa.list_(pa.string()), "c.element"),
    ("ab", pa.list_(pa.string()), "c"),
    (b"ab", INT_LISTS, "c"),
    (bytearray(b"ab"), pa.list_(pa.uint8()), "c"),
    ({b"key": 1.5}, pa.map_(pa.binary(), pa.int64()), "c.value"),
    ({1.5: 1}, pa.map_(pa.int64(), pa.int64()), "c.key"),
    (defaultdict(int, key=1.5), pa.map_(pa.string(), pa.int64()), "c.value"),
    ([{"key": "k", "value": 1.5}], pa.map_(pa.string(), pa.int64()), "c.value"),
    ([{"key": "k", "valeu": 1}], pa.map_(pa.string(), pa.int64()), "c"),
    (defaultdict(int, x=1.5), pa.struct([("x", pa.int64())]), "c.x"),
    ({b"x": 1.5}, pa.struct([("x", pa.int64())]), "c.x"),
    ([1.5], pa.list_(pa.int64(), 1), "c.element"),
    ([1.5], pa.list_view(pa.int64()), "c.element"),
    (1.5, pa.dictionary(pa.int32(), pa.int64()), "c"),
    (b"a", pa.dictionary(pa.int32(), pa.string()), "c"),
    (1.5, pa.run_end_encoded(pa.int32(), pa.int64()), "c"),
]


@pytest.mark.parametrize(("value", "kind", "path"), STRANGE, ids=repr)
def test_containers_of_every_kind_are_looked_into(value: object, kind: pa.DataType, path: str) -> None:
    if path:
        with pytest.raises(ContractError, match=rf"column '{path}' ") as caught:
            one_column(kind, None, value)
        assert caught.value.position == "row 1"
    else:
        assert one_column(kind, value) == pa.array([value], kind).to_pylist()


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (np.array([1, 2]), INT_LISTS),
        (np.array([0.5]), pa.list_(pa.float64())),
        (np.array([0.5]), pa.list_(pa.float32())),
        (np.array([1, None], object), INT_LISTS),
        (np.array(["2024-01-01"], "M8[us]"), pa.list_(pa.timestamp("us"))),
        (range(3), INT_LISTS),
        (deque([1]), INT_LISTS),
        (pa.array([1, 2]), INT_LISTS),
        (pa.scalar([1, 2]), INT_LISTS),
        (pa.scalar({"x": 1}), pa.struct([("x", pa.int64())])),
        ([], INT_LISTS),
        ({}, pa.map_(pa.string(), pa.int64())),
    ],
    ids=repr,
)
def test_what_arrow_reads_as_a_list_or_struct_still_is(value: object, kind: pa.DataType) -> None:
    assert one_column(kind, value) == pa.array([value], kind).to_pylist()


@pytest.mark.parametrize(
    "value", [MappingProxyType({"x": 1}), UserDict(x=1), object(), [1], iter([("x", 1)])], ids=type
)
def test_what_arrow_does_not_take_for_a_struct_is_an_error_with_its_row(value: object) -> None:
    with pytest.raises(ContractError, match="column 'c' is struct") as caught:
        one_column(pa.struct([("x", pa.int64())]), None, value)
    assert caught.value.position == "row 1"


def test_a_column_of_one_python_type_is_checked_by_type_not_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checking each value would cost more than converting it."""
    from forebay.framework.arrow import row_arrays
    from forebay.framework.arrow import row_arrays as value_rules

    checked: list[type] = []
    real = value_rules.rule_of

    def rule_of(cls: type, kind: pa.DataType) -> object:
        checked.append(cls)
        return real(cls, kind)

    monkeypatch.setattr(row_arrays, "rule_of", rule_of)
    batch = packed(pa.schema([("n", pa.int64()), ("v", pa.list_(pa.float64()))]), *[(1, [0.5, None])] * 500)
    assert batch.num_rows == 500
    assert sorted(checked, key=str) == [float, int]


MAP = pa.map_(pa.string(), pa.int64())
CASTS: list[tuple[Callable[[], pa.Array], pa.DataType, str]] = [
    (lambda: pa.array([1, 2**40]), pa.int32(), "1099511627776"),
    (lambda: pa.array([1, -1]), pa.uint8(), "-1"),
    (lambda: pa.array([1, 2**63], pa.uint64()), pa.int64(), "9223372036854775808"),
    (lambda: pa.array([Decimal("1.5"), Decimal("123456789.5")], pa.decimal128(20, 1)), pa.decimal128(9, 1), "12345678"),
    (lambda: pa.array([0, 86_400_001], pa.date64()), pa.date32(), "1970-01-02"),
    (lambda: pa.array([0, 1], pa.time64("us")), pa.time32("ms"), "00:00:00.000001"),
    (lambda: pa.array([0, 1], pa.duration("us")), pa.duration("s"), "0:00:00.000001"),
    (lambda: pa.array([0, 1], pa.timestamp("ns")), pa.timestamp("us"), "1970-01-01 00:00:00.000000001"),
    (lambda: pa.array([0, 2**40], pa.timestamp("s")), pa.timestamp("ns"), "<value out of range: 1099511627776>"),
    (lambda: pa.array([[1], [300]]), pa.list_(pa.int8()), "[300]"),
    (lambda: pa.array([{"x": 1}, {"x": 300}]), pa.struct([("x", pa.int8())]), "{'x': 300}"),
    (lambda: pa.array([[("k", 1)], [("k", 300)]], MAP), pa.map_(pa.string(), pa.int8()), "[('k', 300)]"),
    (lambda: pa.array([1, 300]).dictionary_encode(), pa.int8(), "300"),
]


@pytest.mark.parametrize(("make", "kind", "shown"), CASTS)
@pytest.mark.parametrize("form", [pa.RecordBatch, pa.Table])
def test_sr2_an_arrow_value_that_would_lose_something_names_column_row_and_value(
    make: Callable[[], pa.Array], kind: pa.DataType, shown: str, form: type[pa.RecordBatch | pa.Table]
) -> None:
    """SR-2: Rows fit the schema, also those of record batches and tables that are cast."""
    array = make()
    given = form.from_arrays([array], ["c"])
    one = packer(pa.schema([("c", kind)]))
    with pytest.raises(ContractError) as caught:
        one.add(given)
    assert (caught.value.position, caught.value.rule) == ("row 1", "SR-2")
    assert f"column 'c' is {kind}, but got {shown}" in caught.value.message


@pytest.mark.parametrize("have", [pa.decimal64(18, 0), pa.decimal128(38, 0), pa.decimal256(50, 0)], ids=str)
def test_sr2_a_decimal_is_not_cast_to_fewer_bits_which_arrow_does_not_check(have: pa.DataType) -> None:
    """Arrow makes 12345678901 the decimal32 -539222987, without an error."""
    one = packer(pa.schema([("c", pa.decimal32(9, 0))]))
    with pytest.raises(ContractError, match="'c' is decimal"):
        one.add(pa.record_batch({"c": pa.array([Decimal(12345678901)], have)}))
