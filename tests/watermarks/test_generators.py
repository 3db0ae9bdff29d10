# SPDX-License-Identifier: Apache-2.0
"""Flink's BoundedOutOfOrdernessWatermarksTest and AscendingTimestampsWatermarksTest, and what batches add to them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ConfigurationError
from forebay.watermarks.event_time import MAX_WATERMARK, MIN_WATERMARK, EventTimes
from forebay.watermarks.strategy import BoundedDisorder, NoWatermarks, WatermarkStrategy

MICRO = 1e-6
BATCH = pa.record_batch({"n": [1]})


class Recorder:
    """A watermark output that remembers."""

    def __init__(self) -> None:
        self.watermarks: list[int] = []
        self.signals: list[str] = []

    def emit_watermark(self, us):
        self.watermarks.append(us)

    def mark_idle(self):
        self.signals.append("idle")

    def mark_active(self):
        self.signals.append("active")


def after(generator, *times):
    """The watermark at a tick after batches of one record each."""
    output = Recorder()
    for us in times:
        generator.on_event(BATCH, EventTimes(us, us), output)
    assert output.watermarks == [], "emitted on the periodic tick only"
    generator.on_periodic_emit(output)
    [watermark] = output.watermarks
    return watermark


def ascending():
    return WatermarkStrategy.monotonous().generator()


def test_bounded_watermark_before_records():
    """WM-2: testWatermarkBeforeRecords, no underflow before the first record."""
    assert after(BoundedDisorder(10 * MICRO)) == MIN_WATERMARK


def test_bounded_watermark_after_event():
    """WM-2: testWatermarkAfterEvent, latest − d − 1."""
    assert after(BoundedDisorder(10 * MICRO), 1337) == 1326


def test_bounded_watermark_after_non_monotonous_events():
    """WM-2: testWatermarkAfterNonMonotonousEvents, late records never lower it."""
    assert after(BoundedDisorder(10 * MICRO), 12345, 12300, 12340, 12280) == 12334


def test_bounded_repeated_probe():
    """WM-2: testRepeatedProbe, a tick without news says the same again."""
    generator = BoundedDisorder(10 * MICRO)
    assert after(generator, 723456) == 723445
    assert after(generator) == 723445


def test_ascending_watermark_before_records():
    """WM-2: AscendingTimestamps testWatermarkBeforeRecords."""
    assert after(ascending()) == MIN_WATERMARK


def test_ascending_watermark_after_event():
    """WM-2: AscendingTimestamps testWatermarkAfterEvent, maxTs − 1."""
    assert after(ascending(), 1337) == 1336


def test_ascending_watermark_after_event_with_lower_timestamp():
    """WM-2: AscendingTimestamps testWatermarkAfterEventWithLowerTimestamp."""
    assert after(ascending(), 12345, 12340) == 12344


@pytest.mark.parametrize("delay", [-1, -MICRO, float("nan"), float("inf")])
def test_negative_disorder_is_refused(delay):
    """WM-2: negative d refused."""
    with pytest.raises(ConfigurationError, match="watermarkDelay"):
        BoundedDisorder(delay)


def test_the_watermark_of_a_batch_follows_its_latest_record():
    """WM-2: disorder inside a batch costs nothing, only its latest event time counts."""
    generator, output = BoundedDisorder(0), Recorder()
    generator.on_event(BATCH, EventTimes(-500, 700), output)
    generator.on_periodic_emit(output)
    assert output.watermarks == [699]


@pytest.mark.parametrize("us", [MIN_WATERMARK, MIN_WATERMARK + 10])
def test_no_underflow_at_the_earliest_times(us):
    """WM-2: the watermark stays above the initial one, which means that there was no record."""
    assert after(BoundedDisorder(10 * MICRO), us) == MIN_WATERMARK + 1


def test_no_generator_of_events_ever_emits():
    """WM-3: noWatermarks."""
    generator, output = NoWatermarks(), Recorder()
    generator.on_event(BATCH, EventTimes(1, 2), output)
    generator.on_periodic_emit(output)
    assert output.watermarks == [] and output.signals == []


@given(
    st.lists(st.tuples(st.integers(-(10**15), 10**15), st.integers(0, 10**9)), min_size=1),
    st.integers(0, 10**9),
)
def test_no_record_within_the_bound_is_late(batches, delay):
    """WM-1: the watermark T asserts that no later record has a timestamp ≤ T, if disorder stays within the bound."""
    generator, output, latest = BoundedDisorder(delay / 1e6), Recorder(), None
    for start, width in batches:
        times = EventTimes(start, start + width)
        generator.on_event(BATCH, times, output)
        latest = times.latest if latest is None else max(latest, times.latest)
        generator.on_periodic_emit(output)
        assert output.watermarks[-1] == latest - delay - 1
        assert output.watermarks[-1] < latest - delay < MAX_WATERMARK
    assert output.watermarks == sorted(output.watermarks)
