# SPDX-License-Identifier: Apache-2.0
"""Alignment under crashes, failures and disorder: no record on time is dropped, and planted bugs are found."""

from __future__ import annotations

import re
import shlex
from functools import partial

import pytest
from forebay_simulator.__main__ import main
from forebay_simulator.aligned import simulate_alignment
from forebay_simulator.aligned_log import Recipe

from forebay.framework.microbatch import alignment
from forebay.framework.microbatch.alignment import StreamAlignment
from forebay.framework.microbatch.event_time import SplitTime, TimeWarnings
from forebay.framework.microbatch.stream_planner import StreamPlanner
from forebay.watermarks.strategy import IdlenessTimer

PLANTED = {}


def planted(plant, first=0):
    """Register a bug. One that needs a rare history is searched from a later seed on."""
    PLANTED[plant.__name__] = (plant, range(first, first + 300))
    return plant


@planted
def splits_are_not_aligned(patch):
    patch.setattr(StreamPlanner, "_aligned", lambda self, available, trigger: available)


@partial(planted, first=150)
def a_cut_is_a_microsecond_late_for_spark_s_milliseconds(patch):
    patch.setattr(alignment, "last_event_time", lambda limit, delay: limit + delay + 1000)


@partial(planted, first=20)
def the_delay_counts_twice(patch):
    patch.setattr(alignment, "last_event_time", lambda limit, delay: limit + 2 * delay)


@planted
def idle_after_any_silence(patch):
    """WM-4: the timeout is not waited for."""
    patch.setattr(IdlenessTimer, "probe", lambda self, now, *, silent: setattr(self, "idle", silent))


@planted
def never_idle(patch):
    patch.setattr(IdlenessTimer, "probe", lambda self, now, *, silent: None)


@planted
def a_starved_split_is_silent(patch):
    judge = SplitTime.judge
    patch.setattr(SplitTime, "judge", lambda self, looked_at, *, silent: judge(self, looked_at, silent=True))


@planted
def a_failed_look_counts_as_one(patch):
    def look(self, available, splits):
        self._look_again = float("inf")
        for split in splits:
            self._note(split, None, {planned.split.id for planned in available})
        return False

    patch.setattr(StreamAlignment, "_look_up", look)


@partial(planted, first=50)
def the_first_event_times_are_not_waited_for(patch):
    patch.setattr(StreamAlignment, "_waits_for_first_times", lambda self, active, available: False)


@planted
def the_limit_falls(patch):
    hold_back = StreamAlignment.hold_back

    def forgetful(self, available, splits, *, ending):
        self._limit = None
        return hold_back(self, available, splits, ending=ending)

    patch.setattr(StreamAlignment, "hold_back", forgetful)


@planted
def old_answers_hold_splits(patch):
    patch.setattr(
        StreamAlignment,
        "_outdated",
        lambda self, available, splits, *, unknown=False, real=StreamAlignment._outdated: (
            real(self, available, splits, unknown=True) if unknown else []
        ),
    )


@partial(planted, first=25)
def a_split_that_comes_back_is_not_counted(patch):
    patch.setattr(TimeWarnings, "check_behind", lambda self, split, time, found, floor: None)


@planted
def splits_that_are_done_hold_the_others(patch):
    """S17: an AvailableNow run ends before everything is read."""
    patch.setattr(StreamAlignment, "active", property(lambda self: self._times))


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.soak(but=["splits_are_not_aligned"])
def test_a_planted_bug_is_found_and_shrunk(monkeypatch, capsys, name):
    plant, seeds = PLANTED[name]
    with monkeypatch.context() as patch:
        plant(patch)
        seed = next(seed for seed in seeds if simulate_alignment(Recipe(seed)).problem is not None)
        assert main(["--alignment", "--first", str(seed), "--seeds", "1"]) == 1
        command = shlex.split(re.findall(r"replay: (.*)", capsys.readouterr().out)[0])
        assert main(command[3:]) == 1
        assert "broken: " in capsys.readouterr().out
    assert main(command[3:]) == 0, "without the bug it is clean"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seeds", [30, pytest.param(250, marks=pytest.mark.soak)])
def test_seeds_of_alignment_are_clean(record_property, capsys, seeds):
    status = main(["--alignment", "--seeds", str(seeds)])
    output = capsys.readouterr().out
    assert status == 0, output
    found = re.findall(r"^([a-z]+) +([\d,]+)$", output, re.MULTILINE)
    counts = {name: int(count.replace(",", "")) for name, count in found}
    # Many things happened: otherwise clean seeds would prove little.
    assert counts["batches"] > 8 * seeds
    assert counts["held"] > 4 * seeds
    assert counts["crashes"] > 0.4 * seeds
    assert counts["late"] > 0.08 * seeds
    record_property("report", "alignment: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_20000_other_seeds_of_alignment_are_clean(capsys):
    assert main(["--alignment", "--first", "1000000", "--seeds", "20000"]) == 0, capsys.readouterr().out
