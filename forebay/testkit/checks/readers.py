# SPDX-License-Identifier: Apache-2.0
"""Checks of the source reader (rules RDR-…)."""

from __future__ import annotations

import random
import time

from forebay.framework.reader import InputStatus
from forebay.testkit.checks.base import Check, Checks, check_into
from forebay.testkit.checks.faults import Leaks
from forebay.testkit.harness.reads import check_range, read, read_plain
from forebay.testkit.harness.sessions import ReaderSession
from forebay.testkit.harness.subject import Subject, difference
from forebay.testkit.harness.surroundings import read_elsewhere
from forebay.testkit.outcomes import Broken, NotApplicable

# -- Checks of reads in other processes (rule RDR-5).


PROCESSES: Checks = []

_MOST = 20.0
"""Maximum seconds for the new processes; each imports pyarrow and the connector."""


@check_into(PROCESSES)
def other_processes_read_the_same(subject: Subject) -> None:
    """RDR-5: other processes, in other time zones, read the same rows in the same order."""
    traces = [trace for trace in subject.traces if trace.rows and trace.split.end is not None]
    traces = traces or [trace for trace in subject.traces if trace.rows and subject.source.bounded]
    if not traces:
        raise NotApplicable("no split has rows up to a known end")
    seconds = max(1.0, min(_MOST, subject.deadline - time.monotonic() - 1.0))
    first, *others = read_elsewhere(subject.source, [trace.split for trace in traces], seconds)
    for rows in others:
        for split_id, expected in first.items():
            if rows[split_id] == expected:
                continue
            reordered = sorted(rows[split_id]) == sorted(expected)
            raise Broken(
                f"split {split_id!r}, read by two processes with the time zones UTC and another one: "
                f"{difference(rows[split_id], expected)}",
                "order equal keys by something stable, such as the id; never by hash(), a set or a process id"
                if reordered
                else "let rows depend on the input alone: convert times with a time zone, such as "
                "datetime.fromtimestamp(t, UTC), and use no state of the process",
            )


READERS: Checks = []

_SAMPLES = 10
_SHORT = 0.15
"""Seconds for which an idle reader is watched."""


def available(subject: Subject) -> None:
    """RDR-3: driven by is_available() alone, a reader reaches the end of every split."""
    read_plain(subject)


READ = Check.of(available, essential=True)
"""The check that makes the plain read. Later checks compare with the result of that read."""


def deterministic(subject: Subject) -> None:
    """RDR-5: reading twice returns the same rows, in record batches of any size."""
    for rows in (1, 7, 65_536):
        session = read(subject, subject.splits, rows=rows)
        for trace in subject.traces:
            got = session.rows[trace.split.id]
            advice = _SAME if got or not trace.rows else _STORE
            subject.compare(trace.split.id, got, trace.rows, f"read again, with {rows} rows a record batch", advice)
        subject.need_time()


REPEATED = Check.of(deterministic)


@check_into(READERS)
def waits(subject: Subject) -> None:
    """RDR-3: a reader that has read everything waits, and does not spin."""
    _need_own_reader(subject)
    with ReaderSession(subject, subject.waiting_splits(), once=False, poll_interval=1.0) as session:
        session.idle(3 * _SHORT)


@check_into(READERS)
def resumes_anywhere(subject: Subject) -> None:
    """RDR-5, SR-2: from any position, a new reader returns exactly the rows up to the end or to a later position."""
    chance = subject.random("resume")
    for trace in subject.filled:
        for mark in _some(chance, range(trace.last + 1)):
            rows = read(subject, [trace.rest(mark)]).rows[trace.split.id]
            how = f"started at position {trace.marks[mark][1]!r}, after {trace.marks[mark][0]} rows"
            subject.compare(trace.split.id, rows, trace.rows_of(mark, trace.last), how, _RESUME)
            subject.need_time()
        for _ in range(_SAMPLES // 2):
            marks = sorted(chance.sample(range(trace.last + 1), 3))
            for start, stop in ((marks[0], marks[1]), (marks[1], marks[2])):
                check_range(subject, trace, trace.marks[start], trace.marks[stop])
            subject.need_time()


@check_into(READERS)
def snapshots_are_complete(subject: Subject) -> None:
    """RDR-4: a snapshot has every unfinished split once, also an unread one, and does not stop the reader."""
    ids = {split.id for split in subject.splits}
    with ReaderSession(subject, subject.splits) as session:
        for count in range(_SAMPLES):
            session.run(lambda: session.batches >= count)  # noqa: B023 - called at once
            held = [split.id for split in session.snapshot()]
            unread = {trace.split.id for trace in subject.traces if len(session.rows[trace.split.id]) < len(trace.rows)}
            if lost := sorted(unread - set(held)):
                raise Broken(f"after {count} record batches the snapshot lacks the unfinished splits {lost}", _SNAPSHOT)
            if len(set(held)) < len(held) or set(held) - ids:
                raise Broken(f"the snapshot holds {held}, but the splits are {sorted(ids)}", _SNAPSHOT)
        session.run()
    subject.compare_traces(session.rows, "with snapshots taken while it was read", _SNAPSHOT)


@check_into(READERS)
def resumes_from_snapshots(subject: Subject) -> None:
    """RDR-5: the rows before a snapshot and the rows that a new reader reads from it are together all rows."""
    chance = subject.random("snapshot")
    for count in _some(chance, range(_marks(subject) + 1)):
        with ReaderSession(subject, subject.splits) as first:
            first.run(lambda: first.batches >= count)  # noqa: B023 - called at once
            held = first.snapshot()
        second = read(subject, held)
        combined = {split.id: first.rows[split.id] + second.rows[split.id] for split in subject.splits}
        subject.compare_traces(combined, f"stopped after {count} record batches and resumed from the snapshot", _RESUME)
        subject.need_time()


@check_into(READERS)
def ends_once_told(subject: Subject) -> None:
    """RDR-6: END_OF_INPUT comes when all splits are read and none may follow, and again at every later poll."""
    with ReaderSession(subject, subject.splits, no_more=False) as session:
        session.run(session.caught_up)
        for _ in range(5):
            if session.poll() is InputStatus.END_OF_INPUT:
                raise Broken("END_OF_INPUT came although more splits may follow", "wait for notify_no_more_splits()")
        session.no_more()
        session.run()
        _stays_ended(session)


@check_into(READERS)
def ends_without_splits(subject: Subject) -> None:
    """RDR-6: a reader that never gets a split also ends."""
    with ReaderSession(subject) as session:
        session.run()
        _stays_ended(session)


@check_into(READERS)
def splits_come_late(subject: Subject) -> None:
    """RDR-7: splits may come while others are read."""
    with ReaderSession(subject, no_more=False) as session:
        for trace in subject.traces:
            session.add([trace.split])
            more = session.batches + min(2, trace.last)
            # A page may hold all rows of a split.
            session.run(lambda: session.batches >= more or session.caught_up())  # noqa: B023 - called at once
        session.no_more()
        session.run()
    subject.compare_traces(session.rows, "added while others were read", _ADD)


@check_into(READERS)
def pauses(subject: Subject) -> None:
    """RDR-8: a paused split returns no row, and the others all rows; resumed, it continues at the same row."""
    chance = subject.random("pause")
    ids = [split.id for split in subject.splits]
    for count in _some(chance, range(_marks(subject)), _SAMPLES // 2):
        paused = chance.sample(ids, chance.randint(1, max(1, len(ids) - 1)))
        with ReaderSession(subject, subject.splits) as session:
            session.run(lambda: session.batches >= count)  # noqa: B023 - called at once
            _pause(session, paused)
            session.run()
        how = f"with {paused} paused after {count} record batches, then resumed"
        subject.compare_traces(session.rows, how, _PAUSE)
        subject.need_time()


@check_into(READERS)
def closes_clean(subject: Subject) -> None:
    """RDR-9: closing a reader before, during or after reading leaves no thread and no open file."""
    _need_own_reader(subject)
    leaks = Leaks(subject.patience)

    def use() -> None:
        with ReaderSession(subject, subject.splits) as session:
            session.idle(0)
        with ReaderSession(subject, subject.splits) as session:
            session.run(lambda: session.batches > 0)
            leaks.record_open()
        read(subject, subject.splits, rows=7)

    leaks.check(use, "reading and closing", "free all resources in close(), on every path")


@check_into(READERS)
def closes_while_waiting(subject: Subject) -> None:
    """RDR-9: closing a reader that waits for more rows leaves no thread, and takes a bounded time."""
    _need_own_reader(subject)
    splits = subject.waiting_splits()

    def use() -> None:
        with ReaderSession(subject, splits, once=False, poll_interval=60.0) as session:
            session.idle(_SHORT)

    Leaks(subject.patience).check(use, "waiting for more and closing", "end every wait when close() is called")


_SAME = "return the same rows between two positions in every read"
_STORE = (
    f"{_SAME}; if reading takes the records away, as from a queue, store them durably before you acknowledge them, and "
    "read what is stored"
)
_RESUME = "emit each record batch with the position of the next row after it, and begin exactly at split.position"
_SNAPSHOT = "return each added and unfinished split, at the next record not yet emitted"
_ADD = "take splits at any time before notify_no_more_splits()"
_PAUSE = "keep all fetched rows of a paused split until it is resumed"


def _marks(subject: Subject) -> int:
    """Return the number of record batches of the plain read."""
    return sum(trace.last for trace in subject.traces)


def _some(chance: random.Random, numbers: range, count: int = _SAMPLES) -> list[int]:
    """Return at most `count` of the numbers, in order, with the first and the last one."""
    if len(numbers) <= count:
        return list(numbers)
    return sorted({numbers[0], numbers[-1], *chance.sample(numbers, count - 2)})


def _need_own_reader(subject: Subject) -> None:
    """Skip the check if the source has no `SourceReader` of its own: the checks of its split reader are stricter."""
    if not subject.has_own_reader:
        raise NotApplicable("the reader is the framework's: the checks of the split reader cover this rule")


def _pause(session: ReaderSession, paused: list[str]) -> None:
    """Pause splits, check that only the others are read to their ends, and resume. Unknown ids must have no effect."""
    session.pause_or_resume([*paused, "no such split"], ["no such split either"])
    before = {split_id: len(session.rows[split_id]) for split_id in paused}
    others = session.given - set(paused)
    session.run(lambda: others <= session.caught_up_ids())
    session.idle(_SHORT / 3)
    for split_id, count in before.items():
        if len(session.rows[split_id]) > count:
            raise Broken(
                f"split {split_id!r} gave {len(session.rows[split_id]) - count} rows while it was paused",
                "emit nothing of a paused split after pause_or_resume_splits() returns",
            )
    session.pause_or_resume([], paused)


def _stays_ended(session: ReaderSession) -> None:
    for _ in range(3):
        if (status := session.poll()) is not InputStatus.END_OF_INPUT:
            why = f"after END_OF_INPUT, poll_next() returned {status.name}"
            raise Broken(why, "return END_OF_INPUT on every later poll")
