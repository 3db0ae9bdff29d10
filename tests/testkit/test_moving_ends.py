# SPDX-License-Identifier: Apache-2.0
"""An end that moves on without a record is a warning: no rule is broken, but a stream does needless work."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from forebay.framework.arrow.row_packer import Batch
from forebay.framework.simple import SimpleEnumerator, SimpleSource
from forebay.testkit import ConformanceError, ConformanceWarning, SourceContract, check
from forebay.testkit.scripted import COUNTING_SCHEMA

TIMES = (3, 5, 9)


class NewestSettled(SimpleSource):
    """Right: the end is the position after the newest row."""

    bounded = False

    def schema(self):
        return COUNTING_SCHEMA

    def latest(self, split):
        return TIMES[-1] + 1

    def read(self, split):
        for at in TIMES:
            if (split.position or 0) <= at < split.end:
                yield Batch([(split.id, at)], at + 1)


class Now(NewestSettled):
    """The end is a time in whole seconds."""

    def latest(self, split):
        return int(time.time())


class ExactNow(Now):
    """The same, and its enumerator promises a record before each end."""

    def create_enumerator(self, context):
        enumerator = SimpleEnumerator(self)
        enumerator.exact_ends = True
        return enumerator


class ReportsItsEnd(NewestSettled):
    """Its last position is its end, so that only a move shows that it is a time."""

    def latest(self, split):
        return time.time_ns()

    def read(self, split):
        yield from super().read(split)
        if (split.position or 0) < split.end:
            yield Batch([], split.end)


class CountedNow(ReportsItsEnd):
    """The same, and its positions promise to be rows."""

    positions_are_rows = True


@pytest.mark.parametrize(
    ("kind", "saw", "step"),
    [
        (Now, "(at most a fifth of the time)", "if the service knows only a time, change nothing"),
        (ReportsItsEnd, "moved from", "return the position after the newest complete record"),
        (CountedNow, "although positions_are_rows is True", "or remove positions_are_rows"),
        (ExactNow, "no record follows 10, although exact_ends is True", "or remove exact_ends"),
    ],
)
def test_s4_an_end_that_moves_on_without_a_record_is_a_warning(kind, saw, step):
    """S4: a stream plans a micro-batch without rows, or looks for a first record each time."""
    with pytest.warns(ConformanceWarning) as warned:
        report = check(kind(), rules={"S4"})
    assert report.verdict == "passed"
    assert report.rules("warned") == {"S4"}
    assert str(warned[0].message) == report.headline
    assert "; warning of S4: split 'all': latest() " in report.headline
    assert saw in report.headline and step in report.headline
    assert saw in str(report).partition("\n")[2]


def test_the_newest_record_as_the_end_is_no_warning_and_costs_no_wait():
    began = time.monotonic()
    report = check(NewestSettled(), rules={"S4"})
    assert (report.verdict, report.rules("passed")) == ("passed", {"RDR-3", "DIS-1", "S4"})
    assert time.monotonic() - began < 1.0


class OneTooFar(SimpleSource):
    """Its positions are numbers of rows, and its end is beyond the last one."""

    bounded = False

    def schema(self):
        return pa.schema({"n": pa.int64()})

    def latest(self, split):
        return 11

    def read(self, split):
        yield from ({"n": n} for n in range(split.position or 0, min(10, split.end)))


class OneTooFarByPromise(OneTooFar):
    positions_are_rows = True


@pytest.mark.parametrize("kind", [OneTooFar, OneTooFarByPromise])
def test_dis1_an_end_beyond_the_last_row_number_is_an_error_as_on_spark(kind):
    """DIS-1: the next micro-batch would begin at the end, and lose the rows that come before it."""
    with pytest.raises(ConformanceError, match="read\\(\\) returned at row 10, before the planned end 11") as refused:
        check(kind(), rules={"DIS-1"})
    assert refused.value.report.rules("failed") == {"DIS-1"}


class OneSplitOfTime(SourceContract):
    most_splits = 1

    def source(self):
        return Now()

    def add_split(self):
        return "all"

    def write(self, split_id, n):
        return [{"split": "all", "n": at} for at in (*TIMES, *[0] * n)][:n]


def test_a_test_of_the_kit_warns_and_passes():
    with pytest.warns(ConformanceWarning, match=r"^now: S4: split 'all': latest\(\) moved from .*; next step: return"):
        OneSplitOfTime().test_s4_ends_move_with_records()  # type: ignore[attr-defined]  # made by the kit
