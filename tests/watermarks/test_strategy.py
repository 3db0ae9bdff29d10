# SPDX-License-Identifier: Apache-2.0
"""The builders and decorators of a watermark strategy."""

from __future__ import annotations

import dataclasses
import pickle

import pyarrow as pa
import pytest

from forebay.errors import ConfigurationError
from forebay.watermarks.event_time import ColumnTimestamps, EventTimes, keep_source_times
from forebay.watermarks.strategy import BoundedDisorder, NoWatermarks, WatermarkStrategy


class Custom:
    """A generator of an author."""

    def on_event(self, batch, times, output):
        output.emit_watermark(times.latest)

    def on_periodic_emit(self, output):
        pass


def test_the_builders_make_their_generators():
    """WM-3: forBoundedOutOfOrderness, forMonotonousTimestamps, forGenerator, noWatermarks."""
    assert isinstance(WatermarkStrategy.bounded_disorder(5).generator(), BoundedDisorder)
    assert isinstance(WatermarkStrategy.monotonous().generator(), BoundedDisorder)
    assert isinstance(WatermarkStrategy.for_generator(Custom).generator(), Custom)
    assert isinstance(WatermarkStrategy.none().generator(), NoWatermarks)


def test_each_call_makes_a_generator_of_its_own():
    """WM-3: splits must not share a generator."""
    strategy = WatermarkStrategy.bounded_disorder(5)
    assert strategy.generator() is not strategy.generator()


def test_the_decorators_add_and_leave_the_original_alone():
    """WM-3: withTimestampAssigner (default: keep), withIdleness, withWatermarkAlignment."""
    plain = WatermarkStrategy.bounded_disorder(5)
    full = plain.with_event_time("at").with_idleness(60).with_alignment(30)
    assert (plain.timestamps, plain.idle_timeout, plain.max_drift) == (keep_source_times, None, None)
    assert (full.timestamps, full.idle_timeout, full.max_drift) == (ColumnTimestamps("at"), 60, 30)
    assert full.generator == plain.generator


def test_an_assigner_of_ones_own_is_kept():
    """OUT-1: any callable may be the second step."""
    strategy = WatermarkStrategy.none().with_timestamp_assigner(lambda *_: EventTimes(1, 2))
    assert strategy.timestamps(pa.record_batch({"n": [1]}), None) == EventTimes(1, 2)


def test_a_strategy_is_frozen_and_comes_back_equal_from_pickle():
    strategy = WatermarkStrategy.bounded_disorder(2.5).with_event_time("at").with_idleness(1).with_alignment(9)
    assert pickle.loads(pickle.dumps(strategy)) == strategy
    assert pickle.loads(pickle.dumps(WatermarkStrategy.for_generator(Custom))).generator is Custom
    with pytest.raises(dataclasses.FrozenInstanceError):
        strategy.max_drift = 1  # type: ignore[misc]


@pytest.mark.parametrize("timeout", [0, -1, -0.001, float("nan"), float("inf"), True, "1"])
def test_an_idle_timeout_must_be_positive(timeout):
    """WM-3: withIdleness(>0); testZeroTimeout and testNegativeTimeout."""
    with pytest.raises(ConfigurationError) as caught:
        WatermarkStrategy.monotonous().with_idleness(timeout)
    assert caught.value.option == "idleTimeout"


@pytest.mark.parametrize("drift", [-1, float("-inf"), float("nan"), True, "1"])
def test_a_drift_must_not_be_negative(drift):
    """WM-3: withWatermarkAlignment(drift ≥ 0)."""
    with pytest.raises(ConfigurationError) as caught:
        WatermarkStrategy.monotonous().with_alignment(drift)
    assert caught.value.option == "alignmentMaxDrift"


def test_an_infinite_drift_switches_alignment_off():
    """AL-9: drift Long.MAX means disabled."""
    assert WatermarkStrategy.monotonous().with_alignment(float("inf")).max_drift is None
    assert WatermarkStrategy.monotonous().with_alignment(0).max_drift == 0


def test_a_negative_delay_is_refused_where_it_is_written():
    """WM-2: negative d refused, on the driver and not in the first task."""
    with pytest.raises(ConfigurationError) as caught:
        WatermarkStrategy.bounded_disorder(-0.5)
    assert caught.value.option == "watermarkDelay"
