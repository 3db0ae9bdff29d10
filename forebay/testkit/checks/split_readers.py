# SPDX-License-Identifier: Apache-2.0
"""Checks of the split reader, without the framework around it (rules SR-…)."""

from __future__ import annotations

import time
from collections.abc import Callable

from forebay.framework.microbatch.admission import ends_twice
from forebay.framework.simple import SimpleSource
from forebay.testkit.checks.base import Checks, check_into
from forebay.testkit.checks.faults import LEFT_BY_READ, Leaks
from forebay.testkit.harness.sessions import WAKE_AFTER, SplitReaderSession
from forebay.testkit.harness.subject import Subject
from forebay.testkit.outcomes import Broken, NotApplicable, Skip

SPLIT_READERS: Checks = []

_ROUNDS = 3
_MOST_SPLITS = 4
"""Maximum number of splits to read to an end of their own."""

_BLOCKED = 0.05
"""Seconds after which a fetch counts as waiting."""


@check_into(SPLIT_READERS)
def woken(subject: Subject) -> None:
    """SR-1, SR-2: wake-ups before, during and after fetches neither lose, double nor reorder rows."""
    for number in range(_ROUNDS):
        chance = subject.random(f"wake {number}")

        def soon() -> float:
            return chance.random() * 0.002 if chance.random() < 0.5 else WAKE_AFTER  # noqa: B023 - called at once

        with SplitReaderSession(subject, subject.splits, wake_after=soon) as reading:
            while reading.left():
                before = _progress(reading)
                if chance.random() < 0.3:
                    reading.wake()
                _run_woken(reading, number, lambda: _progress(reading) > before or not reading.left())  # noqa: B023 - called at once
                if chance.random() < 0.3:
                    reading.wake()
        subject.compare_traces(reading.rows, f"with calls of wake_up() (schedule {number})", _WOKEN)
        subject.need_time()


def _run_woken(reading: SplitReaderSession, number: int, until: Callable[[], bool]) -> None:
    try:
        reading.run(until)
    except Broken as broken:
        if broken.rule is not None:
            raise
        raise Broken(f"with calls of wake_up() (schedule {number}): {broken.saw}", _WOKEN) from broken


@check_into(SPLIT_READERS)
def woken_from_waiting(subject: Subject) -> None:
    """SR-1, RDR-3, RDR-9: a fetch that waits for more rows returns when it is woken, and not before."""
    with SplitReaderSession(subject, subject.waiting_splits(), poll_interval=60.0) as reading:
        deadline = time.monotonic() + min(1.0, subject.patience / 2)
        reading.run(lambda: reading.longest > _BLOCKED or time.monotonic() > deadline)


@check_into(SPLIT_READERS)
def empty_ranges_finish(subject: Subject) -> None:
    """SR-3: a split that begins at its end is finished without a record."""
    starts = [
        (trace.split, position)
        for trace in subject.traces
        for mark in sorted({0, trace.last // 2, trace.last})
        if (position := trace.marks[mark][1]) is not None
    ]
    for split, position in starts:
        empty = split.slice(position, position)
        others = [other for other in subject.splits if other.id != split.id]
        for splits in ([empty], [empty, *others]):
            with SplitReaderSession(subject, splits) as reading:
                reading.run(lambda: empty.id in reading.finished)  # noqa: B023 - called at once
            if rows := reading.rows[split.id]:
                raise Broken(
                    f"split {split.id!r} is empty from {position!r} to {position!r}, but fetch() returned {rows[:2]}",
                    "return no record at or after split.end",
                )
    if not starts:
        raise Skip("no split has a position yet", "check a source with rows")


@check_into(SPLIT_READERS)
def finished_once(subject: Subject) -> None:
    """SR-4, SR-2: each split is finished exactly once, with or after its last record."""
    longest = max(subject.traces, key=lambda trace: trace.last)
    first_parts = {
        trace.split.id: trace.split.slice(trace.marks[0][1], trace.marks[1][1])
        for trace in subject.traces
        if trace is not longest and trace.last
    }
    with SplitReaderSession(subject, [first_parts.get(split.id, split) for split in subject.splits]) as reading:
        reading.run()
    for trace in subject.traces:
        if trace is not longest:
            expected = trace.rows_of(0, min(1, trace.last))
            how = "cut short beside a longer split"
            subject.compare(trace.split.id, reading.rows[trace.split.id], expected, how, _GO_ON, rule="SR-2")


@check_into(SPLIT_READERS)
def own_ends_are_reached(subject: Subject) -> None:
    """SR-4, DIS-1: a split of an unbounded source with an end of its own is finished there, never only caught up."""
    if subject.source.bounded:
        raise NotApplicable("the source is bounded: each split is read to its own end")
    splits = [split for split in subject.discover() if split.end is not None or split.ends_itself]
    if not splits:
        raise NotApplicable("no split has an end of its own")
    latest = subject.latest(splits)
    for split in splits[:_MOST_SPLITS]:
        if split.end is None and split.id in latest:
            raise ends_twice(subject.source, split, latest[split.id])
        if split.end is not None and split.id in latest and latest[split.id] != split.end:
            continue  # a part of it is not there yet, or there is more than the split has
        with SplitReaderSession(subject, [split]) as reading:
            reading.run()
        if split.id not in reading.finished:
            raise Broken(
                f"split {split.id!r}, whose own end is {split.end!r}, was caught up and not finished: a host that "
                "reads it to this end never reads what is written later",
                "return the present end from latest(), so that the split stays open; or, if no record follows, move "
                "the position to the end: yield Batch([], split.end)",
            )


@check_into(SPLIT_READERS)
def fetch_pauses(subject: Subject) -> None:
    """SR-5: a split reader that pauses splits itself fetches no rows of them, and can still be woken."""
    ids = [split.id for split in subject.splits]
    for paused in ([*ids], ids[:1]):
        with SplitReaderSession(subject, subject.splits) as reading:
            reading.run(lambda: any(reading.rows.values()) or not reading.left())
            if not reading.pause_or_resume([*paused, "no such split"], ["no such split either"]):
                raise NotApplicable("pausing is left to the framework")
            reading.blamed = "SR-5"
            before = {split_id: len(reading.rows[split_id]) for split_id in paused}
            for _ in range(3):
                reading.fetch_unless_done()
            for split_id, count in before.items():
                if len(reading.rows[split_id]) > count:
                    raise Broken(
                        f"pause_or_resume_splits() returned True, but fetch() returned rows of split {split_id!r}",
                        "fetch nothing of paused splits, or return False to let the framework pause them",
                    )
            reading.pause_or_resume([], paused)
            reading.run()
        subject.compare_traces(reading.rows, f"with {paused} paused and resumed", _GO_ON)


@check_into(SPLIT_READERS)
def closes_at_any_time(subject: Subject) -> None:
    """SR-6, RDR-9: close() frees all resources, at any time."""
    leaks = Leaks(subject.patience)

    def use() -> None:
        with SplitReaderSession(subject):
            """Close at once."""
        with SplitReaderSession(subject, subject.splits):
            """Close before the first fetch."""
        with SplitReaderSession(subject, subject.splits) as reading:
            reading.fetch_unless_done()
            leaks.record_open()
        with SplitReaderSession(subject, subject.splits) as reading:
            reading.run()

    if isinstance(subject.source, SimpleSource):  # its split reader is the framework's
        leaks.check(use, "reading and closing", LEFT_BY_READ, rule="RDR-9")
    else:
        leaks.check(use, "closing a split reader", "free all resources in close()")


_WOKEN = "let wake_up() only end the wait; return the rows received so far in this fetch or the next"
_GO_ON = "keep one position per split in the reader, and advance it by the returned rows"


def _progress(reading: SplitReaderSession) -> int:
    return sum(map(len, reading.rows.values())) + len(reading.finished)
