# SPDX-License-Identifier: Apache-2.0
"""Checks of the split reader, without the framework around it: SR."""

from __future__ import annotations

import time
from collections.abc import Callable

from forebay.framework.simple import SimpleSource
from forebay.framework.split import Split
from forebay.testkit.checks.base import Checks, check_into
from forebay.testkit.fetching import Fetching
from forebay.testkit.leaks import LEFT_BY_READ, Leaks
from forebay.testkit.outcomes import Broken, NotApplicable, Skip
from forebay.testkit.subject import Subject
from forebay.testkit.traces import Trace

FETCHING: Checks = []

_ROUNDS = 3
_BLOCKED = 0.05


@check_into(FETCHING)
def woken(subject: Subject) -> None:
    """SR-1: wake-ups before, inside and after fetches lose, double and reorder nothing.

    Wake on a seeded schedule, and compare with the undisturbed read.
    """
    for number in range(_ROUNDS):
        chance = subject.random(f"wake {number}")

        def soon() -> float | None:
            return chance.random() * 0.002 if chance.random() < 0.5 else None  # noqa: B023 - called at once

        with Fetching(subject, [trace.split for trace in subject.traces], wake_after=soon) as reading:
            while reading.left():
                before = _progress(reading)
                if chance.random() < 0.3:
                    reading.wake()
                _run_woken(reading, number, lambda: _progress(reading) > before or not reading.left())  # noqa: B023 - called at once
                if chance.random() < 0.3:
                    reading.wake()
        for trace in subject.traces:
            how = f"woken on schedule {number}"
            subject.compare(trace.split.id, reading.rows.get(trace.split.id, []), trace.rows, how, _WOKEN)
        subject.need_time()


def _run_woken(reading: Fetching, number: int, until: Callable[[], bool]) -> None:
    try:
        reading.run(until)
    except Broken as broken:
        if broken.rule is not None:
            raise
        raise Broken(f"woken on schedule {number}: {broken.saw}", _WOKEN) from broken


@check_into(FETCHING)
def woken_from_waiting(subject: Subject) -> None:
    """SR-1: a fetch that waits for more comes back when it is woken.

    Fetch at the end of an unbounded source until a fetch blocks and is woken.
    """
    with Fetching(subject, subject.splits_that_wait(), poll_interval=60.0) as reading:
        deadline = time.monotonic() + min(1.0, subject.patience / 2)
        reading.run(lambda: reading.longest > _BLOCKED or time.monotonic() > deadline)


@check_into(FETCHING)
def fetches_go_on(subject: Subject) -> None:
    """SR-2: each fetch goes on where the one before ended, in order, up to the end.

    Fetch everything, all splits in one split reader.
    """
    with Fetching(subject, [trace.split for trace in subject.traces]) as reading:
        reading.run()
    for trace in subject.traces:
        rows = reading.rows.get(trace.split.id, [])
        subject.compare(trace.split.id, rows, trace.rows, "fetched with all the others", _GO_ON)


@check_into(FETCHING)
def empty_ranges_finish(subject: Subject) -> None:
    """SR-3: a split that begins at its end is finished without a record.

    Add empty ranges, alone and among others.
    """
    found = False
    for trace in subject.traces:
        for mark in sorted({0, trace.last // 2, trace.last}):
            position = trace.marks[mark][1]
            if position is None:
                continue
            found = True
            empty = trace.split.slice(position, position)
            others = [other.split for other in subject.traces if other is not trace]
            for splits in ([empty], [empty, *others]):
                with Fetching(subject, splits) as reading:
                    reading.run(lambda: trace.split.id in reading.finished)  # noqa: B023 - called at once
                if rows := reading.rows.get(trace.split.id):
                    raise Broken(
                        f"split {trace.split.id!r}, empty from {position!r} to {position!r}, gave {rows[:2]}",
                        "give no record at or after split.end",
                    )
    if not found:
        raise Skip("no split has a position yet", "give the source some rows")


@check_into(FETCHING)
def finished_once(subject: Subject) -> None:
    """SR-4: each split is finished exactly once, with or after its last record.

    Let all splits but the longest end after their first record batch, and fetch on.
    """
    short = [trace.split if trace is _longest(subject) else _first_part(trace) for trace in subject.traces]
    with Fetching(subject, short) as reading:
        reading.run()
    for trace in subject.traces:
        if trace is not _longest(subject):
            rows = reading.rows.get(trace.split.id, [])
            wanted = trace.rows_of(0, min(1, trace.last))
            subject.compare(trace.split.id, rows, wanted, "cut short beside a longer split", _GO_ON, rule="SR-2")


@check_into(FETCHING)
def fetch_pauses(subject: Subject) -> None:
    """SR-5: a split reader that says it pauses fetches nothing of paused splits, and stays wakeable.

    Pause all splits, then all but one.
    """
    ids = [trace.split.id for trace in subject.traces]
    for paused in ([*ids], ids[:1]):
        with Fetching(subject, [trace.split for trace in subject.traces]) as reading:
            reading.run(lambda: bool(reading.rows) or not reading.left())
            if not reading.pause_or_resume([*paused, "no such split"], ["no such split either"]):
                raise NotApplicable("pausing is left to the framework")
            reading.blamed = "SR-5"
            before = {split_id: len(reading.rows.get(split_id, [])) for split_id in paused}
            for _ in range(3):
                reading.fetch_unless_done()
            for split_id, count in before.items():
                if len(reading.rows.get(split_id, [])) > count:
                    raise Broken(
                        f"pause_or_resume_splits returned True, but fetch() went on with {split_id!r}",
                        "leave paused splits out, or return False and let the framework hold them back",
                    )
            reading.pause_or_resume([], paused)
            reading.run()
        for trace in subject.traces:
            rows = reading.rows.get(trace.split.id, [])
            subject.compare(trace.split.id, rows, trace.rows, f"with {paused} paused and resumed", _GO_ON)


@check_into(FETCHING)
def closes_at_any_time(subject: Subject) -> None:
    """SR-6: close() frees everything, whatever came before it.

    Close without a split, without a fetch, after one fetch.
    """
    splits = [trace.split for trace in subject.traces]
    leaks = Leaks(subject.patience)

    def use() -> None:
        with Fetching(subject):
            """Close at once."""
        with Fetching(subject, splits):
            """Close before the first fetch."""
        with Fetching(subject, splits) as reading:
            reading.fetch_unless_done()
            leaks.look()

    simple = isinstance(subject.source, SimpleSource)  # its split reader is the framework's
    what, advice = (
        ("reading and closing", LEFT_BY_READ) if simple else ("closing a split reader", "free everything in close()")
    )
    leaks.check(use, what, advice, rule="RDR-9" if simple else None)


_WOKEN = "let wake_up() end the wait only; what was fetched so far must come with this fetch or the next"
_GO_ON = "keep one position per split in the reader, and move it by what was returned"


def _progress(reading: Fetching) -> int:
    return sum(len(rows) for rows in reading.rows.values()) + len(reading.finished)


def _longest(subject: Subject) -> Trace:
    return max(subject.traces, key=lambda trace: trace.last)


def _first_part(trace: Trace) -> Split:
    return trace.part(0, 1) if trace.last else trace.split
