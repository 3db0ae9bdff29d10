# SPDX-License-Identifier: Apache-2.0
"""Checks of the reader: RDR, and what every read owes (SR-2)."""

from __future__ import annotations

import itertools
import random

from forebay.framework.reader import InputStatus
from forebay.framework.simple import SimpleSource
from forebay.framework.split import Position
from forebay.testkit.checks.base import Checks, check_into
from forebay.testkit.leaks import LEFT_BY_READ, Leaks
from forebay.testkit.outcomes import Broken
from forebay.testkit.parts import misordered, read_part
from forebay.testkit.session import Session, read_undisturbed
from forebay.testkit.subject import Subject

PLAIN: Checks = []
"""The undisturbed read, which everything else compares with, and what can be said of it alone."""

READING: Checks = []

_SAMPLES = 10
_SHORT = 0.15


@check_into(PLAIN)
def available(subject: Subject) -> None:
    """RDR-3: driven by is_available() alone, a reader comes to the end of every split.

    Read the input once, and keep what came.
    """
    read_undisturbed(subject)


@check_into(PLAIN)
def positions_order(subject: Subject) -> None:
    """SPL-3: positions order as the records do, by themselves or by order_key.

    Compare each position of the plain read with the one before.
    """
    key = subject.source.order_key
    for trace in subject.traces:
        for (_, before), (_, after) in itertools.pairwise(trace.marks):
            if before is not None and after is not None and before != after and not key(before) < key(after):
                raise misordered(trace.split.id, before, after)


@check_into(PLAIN)
def positions_move(subject: Subject) -> None:
    """SR-2: no two positions of a split are the same, and each survives JSON.

    Look at every position of the plain read.
    """
    for trace in subject.traces:
        seen: dict[Position | None, int] = {}
        for rows, position in trace.marks:
            if position in seen:
                raise Broken(
                    f"split {trace.split.id!r} is at {position!r} after {seen[position]} rows and after {rows} rows",
                    "move the position with every row",
                )
            seen[position] = rows


@check_into(PLAIN)
def deterministic(subject: Subject) -> None:
    """RDR-5: reading twice gives the same rows, whatever the size of record batches.

    Read with other sizes, all splits in one reader.
    """
    for rows in (1, 7, 65_536):
        with Session(subject, [trace.split for trace in subject.traces], rows=rows) as session:
            session.run()
        for trace in subject.traces:
            how = f"read again, with {rows} rows a record batch"
            subject.compare(trace.split.id, session.rows(trace.split.id), trace.rows, how, _SAME)
        subject.need_time()


@check_into(READING)
def waits(subject: Subject) -> None:
    """RDR-3: a reader that has everything waits, and does not spin.

    Go on polling an unbounded source that is caught up.
    """
    with Session(subject, subject.splits_that_wait(), once=False, poll_interval=1.0) as session:
        session.idle(3 * _SHORT)


@check_into(READING)
def resumes_anywhere(subject: Subject) -> None:
    """RDR-5: from any position a new reader gives exactly the rest.

    Begin at sampled positions of every split.
    """
    chance = subject.random("resume")
    for trace in subject.filled:
        for mark in _some(chance, range(trace.last + 1)):
            with Session(subject, [trace.rest(mark)]) as session:
                session.run()
            rest = trace.rows_of(mark, trace.last)
            how = f"begun at position {trace.marks[mark][1]!r}, after {trace.marks[mark][0]} rows"
            subject.compare(trace.split.id, session.rows(trace.split.id), rest, how, _RESUME)
            subject.need_time()


@check_into(READING)
def snapshots_are_complete(subject: Subject) -> None:
    """RDR-4: a snapshot has every unfinished split once, unread ones too, and does not stop the reader.

    Take a snapshot before the first poll, and after each of the first record batches.
    """
    with Session(subject, [trace.split for trace in subject.traces]) as session:
        for count in range(_SAMPLES):
            session.run(lambda: session.output.batches >= count)  # noqa: B023 - called at once
            held = [split.id for split in session.snapshot()]
            unread = {trace.split.id for trace in subject.traces if len(session.rows(trace.split.id)) < len(trace.rows)}
            if lost := sorted(unread - set(held)):
                raise Broken(f"after {count} record batches the snapshot lacks the unfinished splits {lost}", _SNAPSHOT)
            if len(set(held)) < len(held) or set(held) - {trace.split.id for trace in subject.traces}:
                raise Broken(f"the snapshot holds {held}", _SNAPSHOT)
        session.run()
    for trace in subject.traces:
        how = "with snapshots taken while it was read"
        subject.compare(trace.split.id, session.rows(trace.split.id), trace.rows, how, _SNAPSHOT)


@check_into(READING)
def resumes_from_snapshots(subject: Subject) -> None:
    """RDR-5: what was read before any snapshot, and what a new reader reads from it, is everything.

    Stop a reader of all splits after sampled numbers of record batches, and go on from its snapshot.
    """
    chance = subject.random("snapshot")
    total = sum(trace.last for trace in subject.traces)
    for count in _some(chance, range(total + 1)):
        with Session(subject, [trace.split for trace in subject.traces]) as first:
            first.run(lambda: first.output.batches >= count)  # noqa: B023 - called at once
            held = first.snapshot()
        with Session(subject, held) as second:
            second.run()
        for trace in subject.traces:
            split_id = trace.split.id
            how = f"stopped after {count} record batches and resumed from the snapshot"
            both = first.rows(split_id) + second.rows(split_id)
            subject.compare(split_id, both, trace.rows, how, _RESUME)
        subject.need_time()


@check_into(READING)
def ends_exactly(subject: Subject) -> None:
    """SR-2: a read from one position to another gives the rows between them, and ends.

    Read [a, b) and [b, c) of each split for sampled positions.
    """
    chance = subject.random("ends")
    for trace in subject.filled:
        for _ in range(_SAMPLES // 2):
            marks = sorted(chance.sample(range(trace.last + 1), 3))
            for start, stop in ((marks[0], marks[1]), (marks[1], marks[2])):
                read_part(subject, trace, trace.marks[start], trace.marks[stop])
            subject.need_time()


@check_into(READING)
def polls_never_wait(subject: Subject) -> None:
    """RDR-2: poll_next() gives at most one record batch, and never waits.

    Poll as fast as possible, before anything can be there.
    """
    with Session(subject, [trace.split for trace in subject.traces]) as session:
        for _ in range(50):
            if session.poll() is InputStatus.END_OF_INPUT:
                return
        session.run()


@check_into(READING)
def ends_once_told(subject: Subject) -> None:
    """RDR-6: the end comes when no split is to follow and all are read; then it stays.

    Read everything, then say that nothing follows, then poll on.
    """
    with Session(subject, [trace.split for trace in subject.traces], no_more=False) as session:
        session.run(session.caught_up)
        for _ in range(5):
            if session.poll() is InputStatus.END_OF_INPUT:
                raise Broken("END_OF_INPUT came although more splits may follow", "wait for notify_no_more_splits()")
        session.no_more()
        session.run()
        _stays_ended(session)


@check_into(READING)
def ends_without_splits(subject: Subject) -> None:
    """RDR-6: a reader that never gets a split ends too.

    Say at once that nothing follows.
    """
    with Session(subject) as session:
        session.run()
        _stays_ended(session)


@check_into(READING)
def splits_come_late(subject: Subject) -> None:
    """RDR-7: splits may come while others are read.

    Add one split after the other.
    """
    with Session(subject, no_more=False) as session:
        for number, trace in enumerate(subject.traces):
            session.add([trace.split])
            more = session.output.batches + min(2, trace.last)
            session.run(lambda: session.output.batches >= more)  # noqa: B023 - called at once
            if number == len(subject.traces) - 1:
                session.no_more()
        session.run()
    for trace in subject.traces:
        subject.compare(trace.split.id, session.rows(trace.split.id), trace.rows, "added while others were read", _ADD)


@check_into(READING)
def pauses(subject: Subject) -> None:
    """RDR-8: a paused split gives nothing, the others everything; resumed, it goes on where it was.

    Pause some splits after some record batches, for sampled moments.
    """
    chance = subject.random("pause")
    ids = [trace.split.id for trace in subject.traces]
    total = sum(trace.last for trace in subject.traces)
    for count in _some(chance, range(total), _SAMPLES // 2):
        paused = chance.sample(ids, chance.randint(1, max(1, len(ids) - 1)))
        with Session(subject, [trace.split for trace in subject.traces]) as session:
            session.run(lambda: session.output.batches >= count)  # noqa: B023 - called at once
            _pause(session, paused)
            session.run()
        for trace in subject.traces:
            how = f"with {paused} paused after {count} record batches, then resumed"
            subject.compare(trace.split.id, session.rows(trace.split.id), trace.rows, how, _PAUSE)
        subject.need_time()


@check_into(READING)
def closes_clean(subject: Subject) -> None:
    """RDR-9: closing a reader, unread, half read or read, leaves no thread and no open file.

    Close with the queue full, after one record batch, and at the end.
    """
    splits = [trace.split for trace in subject.traces]
    leaks = Leaks(subject.patience)

    def use() -> None:
        with Session(subject, splits) as session:
            session.idle(0)
        with Session(subject, splits) as session:
            session.run(lambda: session.output.batches > 0)
            leaks.look()
        with Session(subject, splits, rows=7) as session:
            session.run()

    leaks.check(use, "reading and closing", _left_by(subject))


@check_into(READING)
def closes_while_waiting(subject: Subject) -> None:
    """RDR-9: closing a reader that waits for more leaves no thread, in bounded time.

    Close when all has been read and nothing more comes.
    """
    splits = subject.splits_that_wait()

    def use() -> None:
        with Session(subject, splits, once=False, poll_interval=60.0) as session:
            session.idle(_SHORT)

    advice = _left_by(subject) if isinstance(subject.source, SimpleSource) else "end what blocks when close() comes"
    Leaks(subject.patience).check(use, "waiting for more and closing", advice)


_SAME = "between two positions there must be the same rows at every read"
_RESUME = "give with each record batch the position of the next row not in it, and begin exactly at split.position"
_SNAPSHOT = "return each split that was added and has not finished, at the next record not yet emitted"
_ADD = "take splits at any time before notify_no_more_splits()"
_PAUSE = "keep what was fetched from a paused split until it is resumed, and lose none of it"


def _some(chance: random.Random, numbers: range, count: int = _SAMPLES) -> list[int]:
    """Return some of the numbers, the first and the last among them, in order."""
    if len(numbers) <= count:
        return list(numbers)
    return sorted({numbers[0], numbers[-1], *chance.sample(numbers, count - 2)})


def _left_by(subject: Subject) -> str:
    simple = isinstance(subject.source, SimpleSource)
    return LEFT_BY_READ if simple else "free everything in close(), on every path"


def _pause(session: Session, paused: list[str]) -> None:
    """Pause, watch that the others end and these stay, resume. Unknown ids have no effect."""
    session.pause_or_resume([*paused, "no such split"], ["no such split either"])
    before = {split_id: len(session.rows(split_id)) for split_id in paused}
    others = session.given - set(paused)
    session.run(lambda: others <= session.caught_up_ids())
    session.idle(_SHORT / 3)
    for split_id, count in before.items():
        if len(session.rows(split_id)) > count:
            raise Broken(
                f"split {split_id!r} gave {len(session.rows(split_id)) - count} rows while it was paused",
                "emit nothing of a paused split after pause_or_resume_splits() returns",
            )
    session.pause_or_resume([], paused)


def _stays_ended(session: Session) -> None:
    for _ in range(3):
        if (status := session.poll()) is not InputStatus.END_OF_INPUT:
            raise Broken(
                f"after END_OF_INPUT, poll_next() gave {status.name}", "return END_OF_INPUT on every later poll"
            )
