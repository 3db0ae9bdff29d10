# SPDX-License-Identifier: Apache-2.0
"""Event times of record batches, and the units."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ConfigurationError
from forebay.watermarks.event_time import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    ColumnTimestamps,
    EventTimes,
    keep_source_times,
    micros,
)


def batch_of(array: pa.Array, name: str = "at") -> pa.RecordBatch:
    return pa.record_batch([array], names=[name])


def test_the_bounds_are_those_of_64_bits():
    """WM-1: the initial watermark and that at the end of the input are the ends of int64."""
    assert pa.scalar(-(2**63), pa.int64()).as_py() == MIN_WATERMARK
    assert pa.scalar(2**63 - 1, pa.int64()).as_py() == MAX_WATERMARK


@pytest.mark.parametrize(
    ("unit", "value", "us"), [("s", 3, 3_000_000), ("ms", 3, 3_000), ("us", 3, 3), ("ns", 3999, 3)]
)
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin", "+05:30"])
def test_every_timestamp_unit_and_zone_counts_microseconds(unit, value, us, zone):
    array = pa.array([value, value, 2 * value], pa.int64()).cast(pa.timestamp(unit, zone))
    latest = 2 * value // 1000 if unit == "ns" else 2 * us
    assert ColumnTimestamps("at")(batch_of(array), None) == EventTimes(us, latest)


def test_int64_is_taken_as_microseconds():
    assert ColumnTimestamps("at")(batch_of(pa.array([5, -7, 3], pa.int64())), None) == EventTimes(-7, 5)


def test_an_instant_is_the_same_in_every_zone():
    instant = datetime(2024, 3, 1, 12, tzinfo=timezone(timedelta(hours=2)))
    expected = int(datetime(2024, 3, 1, 10, tzinfo=UTC).timestamp()) * 1_000_000
    array = pa.array([instant], pa.timestamp("ms", "Asia/Tokyo"))
    assert ColumnTimestamps("at")(batch_of(array), None) == EventTimes(expected, expected)


def test_nanoseconds_before_1970_are_rounded_down():
    array = pa.array([-1], pa.int64()).cast(pa.timestamp("ns"))
    assert ColumnTimestamps("at")(batch_of(array), None) == EventTimes(-1, -1)


def test_nulls_are_left_out_and_nothing_but_nulls_is_no_event_time():
    kind = pa.timestamp("us")
    assert ColumnTimestamps("at")(batch_of(pa.array([None, 4, None], kind)), None) == EventTimes(4, 4)
    assert ColumnTimestamps("at")(batch_of(pa.array([None, None], kind)), EventTimes(1, 1)) is None


def test_a_sliced_batch_is_read_within_its_slice():
    whole = batch_of(pa.array([1, 50, 60, 99], pa.timestamp("us")))
    assert ColumnTimestamps("at")(whole.slice(1, 2), None) == EventTimes(50, 60)


def test_times_beyond_64_bit_microseconds_are_clamped_and_never_mean_finished():
    seconds = pa.array([-(2**62), 2**62], pa.int64()).cast(pa.timestamp("s"))
    assert ColumnTimestamps("at")(batch_of(seconds), None) == EventTimes(MIN_WATERMARK, MAX_WATERMARK - 1)
    counted = pa.array([2**63 - 1], pa.int64())
    assert ColumnTimestamps("at")(batch_of(counted), None) == EventTimes(MAX_WATERMARK - 1, MAX_WATERMARK - 1)


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64(), pa.int32(), pa.float64(), pa.string(), pa.time64("us")])
def test_another_type_is_refused_with_the_name_of_the_column(kind):
    with pytest.raises(ConfigurationError) as caught:
        ColumnTimestamps("when 🕐").check(pa.schema({"when 🕐": kind}))
    assert "'when 🕐'" in str(caught.value) and str(kind) in str(caught.value)
    assert caught.value.option == "event_time" and caught.value.advice


def test_a_missing_column_is_refused_with_those_that_exist():
    with pytest.raises(ConfigurationError, match=r"'at' does not exist.*'a', 'b'"):
        ColumnTimestamps("at").check(pa.schema({"a": pa.int64(), "b": pa.int64()}))


def test_a_column_that_exists_twice_is_refused():
    with pytest.raises(ConfigurationError, match="exists 2 times"):
        ColumnTimestamps("at").check(pa.schema([("at", pa.int64()), ("at", pa.int64())]))


def test_the_default_assigner_keeps_what_the_source_said():
    """OUT-1: by default the record's own timestamp holds."""
    batch = batch_of(pa.array([1], pa.int64()))
    assert keep_source_times(batch, EventTimes(8, 9)) == EventTimes(8, 9)
    assert keep_source_times(batch, None) is None


def test_the_column_assigner_has_the_last_word_and_can_be_pickled():
    """OUT-1: the assigner decides, also where the source said something."""
    assigner = pickle.loads(pickle.dumps(ColumnTimestamps("at")))
    assert assigner(batch_of(pa.array([1, 2], pa.int64())), EventTimes(8, 9)) == EventTimes(1, 2)


@given(st.lists(st.none() | st.integers(-(2**62), 2**62), min_size=1))
def test_the_event_times_are_the_minimum_and_the_maximum(values):
    known = [each for each in values if each is not None]
    expected = EventTimes(min(known), max(known)) if known else None
    assert ColumnTimestamps("at")(batch_of(pa.array(values, pa.timestamp("us", "UTC"))), None) == expected


@pytest.mark.parametrize(
    ("seconds", "us"), [(0, 0), (1, 1_000_000), (10e-6, 10), (0.1, 100_000), (86_400 * 3650, 315_360_000_000_000)]
)
def test_durations_in_seconds_become_whole_microseconds(seconds, us):
    assert micros(seconds, "watermarkDelay") == us


@pytest.mark.parametrize("bad", [-1, -1e-6, float("nan"), float("inf"), True, "5"])
def test_what_is_no_duration_is_refused_with_the_option(bad):
    with pytest.raises(ConfigurationError) as caught:
        micros(bad, "watermarkDelay")
    assert caught.value.option == "watermarkDelay"


PAYLOAD = pa.struct([("id", pa.int64()), ("at", pa.struct([("made", pa.timestamp("ms", "UTC"))]))])


def payloads(*values):
    """Return a batch whose column `value` is a struct with a struct; a number is the innermost value, in ms."""
    rows = [{"id": 1, "at": {"made": one}} if isinstance(one, int) else one for one in values]
    return pa.record_batch([pa.array([0] * len(rows), pa.int64()), pa.array(rows, PAYLOAD)], names=["key", "value"])


def test_a_field_inside_structs_is_named_by_its_path():
    by_path = ColumnTimestamps("value.at.made")
    assert by_path.check(payloads(1).schema) == "value"
    assert by_path(payloads(5, 3, 9), None) == EventTimes(3_000, 9_000)
    assert by_path(payloads(1, 5, 9, 99).slice(1, 2), None) == EventTimes(5_000, 9_000)


def test_a_null_at_any_level_of_a_path_is_left_out():
    empty = (None, {"id": 1, "at": None}, {"id": 1, "at": {"made": None}})
    assert ColumnTimestamps("value.at.made")(payloads(None, 4, *empty), None) == EventTimes(4_000, 4_000)
    assert ColumnTimestamps("value.at.made")(payloads(*empty), None) is None


def test_a_value_below_a_null_struct_does_not_count():
    times = pa.array([1, 7], pa.timestamp("us"))
    value = pa.StructArray.from_arrays([times], ["ts"], mask=pa.array([True, False]))
    assert ColumnTimestamps("value.ts")(batch_of(value, "value"), None) == EventTimes(7, 7)


def test_a_column_whose_name_has_a_dot_comes_before_a_path():
    inner = pa.StructArray.from_arrays([pa.array([1], pa.timestamp("us"))], ["ts"])
    batch = pa.record_batch([inner, pa.array([2], pa.timestamp("us"))], names=["value", "value.ts"])
    assert ColumnTimestamps("value.ts")(batch, None) == EventTimes(2, 2)
    dotted = pa.record_batch([inner], names=["a.b"])
    assert ColumnTimestamps("a.b.ts")(dotted, None) == EventTimes(1, 1)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("value.ts", "'value.ts' does not exist"),
        ("value.id.ts", "'value.id.ts' does not exist"),
        ("value.at", "'value.at' is struct<"),
        ("value.", "'value.' does not exist"),
    ],
)
def test_a_path_that_leads_to_no_timestamp_is_refused(path, said):
    with pytest.raises(ConfigurationError, match=said) as caught:
        ColumnTimestamps(path, "eventTimeColumn").check(payloads(1).schema)
    assert caught.value.option == "eventTimeColumn"


def test_a_text_inside_a_struct_is_refused():
    schema = pa.schema([("value", pa.struct([("ts", pa.string())]))])
    with pytest.raises(ConfigurationError, match=r"'value\.ts' is string"):
        ColumnTimestamps("value.ts").check(schema)
