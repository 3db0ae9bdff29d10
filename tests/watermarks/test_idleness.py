# SPDX-License-Identifier: Apache-2.0
"""Flink's WatermarksWithIdlenessTest with a proof of silence, and the clock that stops while reading is blocked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import ManualClock

from forebay.errors import ConfigurationError
from forebay.watermarks.strategy import ActivityClock, IdlenessTimer


class Probed:
    """A timer with its clock."""

    def __init__(self, timeout: float) -> None:
        self.clock = ManualClock()
        self.timer = IdlenessTimer(timeout)

    def probe(self, silent=True, blocked=False):
        return self.timer.probe(self.clock.monotonic(), silent=silent, blocked=blocked)

    def made_idle(self, timeout):
        self.probe()
        self.clock.advance(timeout + 1)
        assert self.probe()
        return self


def test_zero_timeout():
    """WM-4: testZeroTimeout."""
    with pytest.raises(ConfigurationError, match="idleTimeout"):
        IdlenessTimer(0)


def test_negative_timeout():
    """WM-4: testNegativeTimeout."""
    with pytest.raises(ConfigurationError, match="idleTimeout"):
        IdlenessTimer(-0.001)


def test_initially_active():
    """WM-4: testInitiallyActive, the first probe only starts the clock."""
    assert not Probed(10).probe()


def test_the_first_quiet_probe_only_starts_the_clock_however_late_it_comes():
    """WM-4: silence counts from the first quiet probe."""
    probed = Probed(10)
    probed.clock.advance(1000)
    assert not probed.probe()
    probed.clock.advance(10)
    assert not probed.probe(), "the timeout itself is not yet more than the timeout"
    probed.clock.advance(0.5)
    assert probed.probe()


def test_idle_without_events():
    """WM-4: testIdleWithoutEvents."""
    probed = Probed(10)
    probed.probe()
    probed.clock.advance(11)
    assert probed.probe()


def test_repeated_idle_checks():
    """WM-4: testRepeatedIdleChecks."""
    probed = Probed(122).made_idle(122)
    assert probed.probe()
    probed.clock.advance(100)
    assert probed.probe()


def test_active_after_idleness():
    """WM-4: testActiveAfterIdleness, any record makes it active."""
    probed = Probed(10).made_idle(10)
    probed.timer.activity()
    assert not probed.timer.idle
    assert not probed.probe()


def test_idle_active_idle():
    """WM-4: testIdleActiveIdle."""
    probed = Probed(122).made_idle(122)
    probed.timer.activity()
    assert not probed.probe()
    assert not probed.probe()
    probed.clock.advance(123)
    assert probed.probe()


def test_without_proof_no_silence_is_long_enough():
    """WM-4: a timeout alone does not make a split idle."""
    probed = Probed(10)
    for _ in range(5):
        probed.clock.advance(100)
        assert not probed.probe(silent=False)


def test_a_lost_proof_restarts_the_timeout():
    """WM-4: the proof must hold for the whole timeout."""
    probed = Probed(10)
    probed.probe()
    probed.clock.advance(9)
    probed.probe(silent=False)
    probed.clock.advance(9)
    assert not probed.probe(), "this probe only starts the timeout"
    probed.clock.advance(9)
    assert not probed.probe()
    probed.clock.advance(2)
    assert probed.probe()


def test_an_idle_output_with_records_on_the_way_is_active_again():
    """WM-4: records that are known to come count before they have been emitted."""
    probed = Probed(10).made_idle(10)
    assert not probed.probe(silent=False)
    assert not probed.timer.idle


def test_a_blocked_output_is_not_judged():
    """AL-6: a paused split is never judged idle, not even when the timeout ran out just before the pause."""
    probed = Probed(10)
    probed.probe()
    probed.clock.advance(11)
    assert not probed.probe(blocked=True)
    assert probed.probe(blocked=False)


def test_an_output_that_was_idle_before_it_was_blocked_stays_so():
    """WM-4: while blocked there is no new judgement in either direction."""
    probed = Probed(10).made_idle(10)
    assert probed.probe(blocked=True)


def test_the_clock_stops_while_paused():
    """WM-4: the clock stops while backpressured or paused (FLIP-471)."""
    clock = ManualClock()
    activity = ActivityClock(clock.monotonic)
    clock.advance(3)
    activity.pause()
    clock.advance(100)
    assert activity.read() == 3 and not activity.running
    activity.resume()
    clock.advance(2)
    assert activity.read() == 5 and activity.running


def test_pauses_nest():
    """WM-4: the clock of a split waits for every reason to be gone."""
    clock = ManualClock()
    activity = ActivityClock(clock.monotonic)
    activity.pause()
    clock.advance(5)
    activity.pause()
    activity.resume()
    clock.advance(5)
    assert activity.read() == 0 and not activity.running
    activity.resume()
    clock.advance(1)
    assert activity.read() == 1
    with pytest.raises(ValueError, match="not paused"):
        activity.resume()


def test_the_clock_of_a_split_stops_with_that_of_its_reader():
    """WM-4: backpressure stops all splits, a pause of one split only that one."""
    clock = ManualClock()
    reader = ActivityClock(clock.monotonic)
    one, other = ActivityClock(reader), ActivityClock(reader)
    one.pause()
    clock.advance(2)
    reader.pause()
    clock.advance(4)
    assert (one.read(), other.read(), other.running) == (0, 2, False)
    one.resume()
    assert not one.running, "the reader is still blocked"
    reader.resume()
    clock.advance(8)
    assert (one.read(), other.read()) == (8, 10)


@given(st.lists(st.sampled_from(["reader", "split", "wait"]), max_size=40))
def test_layered_clocks_count_exactly_the_seconds_when_both_run(steps):
    """WM-4: whatever the order of pauses, blocked time is hidden and no other."""
    clock = ManualClock()
    reader = ActivityClock(clock.monotonic)
    split = ActivityClock(reader)
    paused = {"reader": False, "split": False}
    counted = 0
    for step in steps:
        if step == "wait":
            clock.advance(1)
            counted += not any(paused.values())
        else:
            layer = {"reader": reader, "split": split}[step]
            (layer.resume if paused[step] else layer.pause)()
            paused[step] = not paused[step]
        assert split.read() == counted
        assert split.running is not any(paused.values())
