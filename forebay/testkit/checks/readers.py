# SPDX-License-Identifier: Apache-2.0
"""Checks of the source reader (rules RDR-…) and of the split reader without the framework around it (rules SR-…)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from forebay.framework.microbatch.admission import ends_twice
from forebay.framework.reader import InputStatus
from forebay.framework.simple import SimpleSource
from forebay.testkit.checks.base import Check, Checks, check_into
from forebay.testkit.checks.faults import LEFT_BY_READ, Leaks
from forebay.testkit.harness.reads import check_range, read, read_plain
from forebay.testkit.harness.sessions import WAKE_AFTER, ReaderSession, SplitReaderSession
from forebay.testkit.harness.subject import KnownMark, Subject, Trace, difference
from forebay.testkit.harness.surroundings import read_elsewhere
from forebay.testkit.outcomes import Broken, NotApplicable, OutOfTime, Skip

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


# -- Checks of the source reader (rules RDR-…).


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


# -- Checks of reads whose start or end is a position that the plain read did not return (rules SR-2, RDR-5): ends that
# latest() returned before the input grew, and positions inside pages and in the gaps of ids.


RANGES: Checks = []

OLD_END = ", an old end that now has more rows after it"

_SAMPLED_MARKS = 6


@check_into(RANGES)
def pages_of_any_size(subject: Subject) -> None:
    """SR-2: pages of another size, by an option such as page_rows, have the same rows."""
    if not subject.traces:
        raise NotApplicable("the source has no split")
    wrong = subject.wrong_pages
    if wrong is not None:
        raise Broken(
            f"split {wrong.split_id!r}, read with {wrong.option}={wrong.size}: {difference(wrong.got, wrong.rows)}",
            "begin each page exactly behind the last row of the page before: rows that share a time, or the next "
            "number, may be on both sides of its end",
        )
    if subject.small_pages is None:
        raise NotApplicable("no option of the source sets the size of a page")


@check_into(RANGES)
def old_ends(subject: Subject) -> None:
    """SR-2: a read to an old end returns the same rows after the input has grown, also inside a page."""
    if subject.source.bounded:
        raise NotApplicable("the source is bounded: its splits are read to their own ends")
    chance = subject.random("old ends")
    unseen = [trace for trace in subject.traces if not _read_to_old_ends(subject, trace, chance) and trace.has_pages]
    if unseen and not subject.live:
        raise NotApplicable("test_sr_2_an_old_end_stays_an_end checks this rule, with rows that are written later")
    if unseen:
        raise Skip(
            f"split {unseen[0].split.id!r} comes in pages, but no read ended inside a page: the input did not grow, "
            "and positions inside a page cannot be calculated from the rows",
            "make the size of a page an option, such as page_rows: int = option(default=500), so that check() reads "
            "smaller pages too; or use SourceContract, whose write() lets the input grow",
        )


def _read_to_old_ends(subject: Subject, trace: Trace, chance: random.Random) -> bool:
    """Read again to the end before the input grew, and to ends inside pages. Return whether there is such an end."""
    grown = _has_grown(subject, trace)
    if grown:
        check_range(subject, trace, trace.marks[0], (len(trace.rows), trace.split.end), where=OLD_END)
    ends = sorted((*trace.between.inside, *trace.between.gaps), key=lambda mark: mark[0])
    for rows, end in sorted(chance.sample(ends, min(_SAMPLED_MARKS, len(ends)))):
        starts = [mark for mark in trace.marks if mark[0] <= rows]
        near = [mark for mark in ends if mark[0] < rows]  # a micro-batch may also begin inside the page of its end
        for start in {mark[0]: mark for mark in (starts[0], starts[-1], *near[-1:])}.values():
            check_range(subject, trace, start, (rows, end), where=_INSIDE)
        check_range(subject, trace, (rows, end), (len(trace.rows), trace.marks[-1][1]), where=_FROM_INSIDE)
        subject.need_time()
    return grown or bool(trace.between.inside)


def _has_grown(subject: Subject, trace: Trace) -> bool:
    """Return whether the present end of a split is after the end of the plain read."""
    if not trace.whole or trace.split.end is None:
        return False
    key = subject.source.order_key
    latest = subject.latest([trace.split]).get(trace.split.id)
    return latest is not None and bool(key(trace.split.end) < key(latest))


@check_into(RANGES)
def resumes_in_gaps(subject: Subject) -> None:
    """RDR-5: from a position inside a page or in a gap of the ids, a new reader returns exactly the rows after it."""
    chance = subject.random("gaps")
    gaps = [(trace, mark) for trace in subject.traces for mark in trace.between.gaps]
    # A bounded split is never stopped at a calculated position: its pages may be all that it can begin with.
    returned = subject.small_pages is not None or not subject.source.bounded
    inside = [(trace, mark) for trace in subject.traces for mark in trace.between.inside if returned]
    if not gaps and not inside:
        raise NotApplicable("there are no positions inside pages or between ids, or they are unknown")
    starts = [start for kind in (gaps, inside) for start in chance.sample(kind, min(_SAMPLED_MARKS, len(kind)))]
    taken = [_resumes_in_gap(subject, *start) for start in starts]
    if not any(taken):
        raise NotApplicable("the source accepts only positions that it returned")


def _resumes_in_gap(subject: Subject, trace: Trace, start: KnownMark) -> bool:
    """Read from such a position. Return whether the source accepts a position that it never returned."""
    how = f"started at position {start[1]!r}, inside a page or between two ids, after {start[0]} rows"
    try:
        session = read(subject, [trace.split.slice(start[1], trace.marks[-1][1])])
    except (Broken, OutOfTime):
        raise
    except Exception:  # noqa: BLE001 - any error may be the source's way to refuse the position
        return False
    subject.compare(trace.split.id, session.rows[trace.split.id], trace.rows[start[0] :], how, _RESUME_INSIDE)
    return True


_INSIDE = ", which ends inside a page, like an old end after the input has grown"
_FROM_INSIDE = ", which begins inside a page, like the micro-batch after an old end"
_RESUME_INSIDE = (
    "begin exactly at split.position: with the first record at or after it, which need not be the next number"
)


# -- Checks of the split reader (rules SR-…).


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
