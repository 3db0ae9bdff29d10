# SPDX-License-Identifier: Apache-2.0
"""Checks of latest(), which returns the present ends of splits (rules DIS-1, S4)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import pairwise

from forebay.errors import ContractError
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.simple import SimpleSource
from forebay.framework.split import Position, Split
from forebay.testkit.checks.base import Checks, check_into
from forebay.testkit.checks.enumerators import check_position
from forebay.testkit.harness.reads import read
from forebay.testkit.harness.sessions import ReaderSession
from forebay.testkit.harness.subject import Subject, Trace
from forebay.testkit.harness.surroundings import Listed, listings
from forebay.testkit.outcomes import Broken, Finding, NotApplicable, OutOfTime, Skip, Warned

# -- Checks of the ids of splits while an input in directories grows (rule SPL-1). The input itself is not changed.


GROWTH: Checks = []

Found = Mapping[str, Split]
"""The splits of a discovery, by id."""

_MOST_FILES = 3
"""Maximum number of files that are hidden, one after the other."""


@check_into(GROWTH)
def ids_outlive_growth(subject: Subject) -> None:
    """SPL-1: a split id stays that of its rows when files appear, are listed in another order, or are written to."""
    with listings(lambda _, names: names) as listed:
        splits = _splits(subject)
    directories: Listed = {path: names for path, names in listed.items() if names}
    if not directories:
        raise NotApplicable("discovery lists no directory")
    if not subject.source.bounded:
        with listings(lambda _, names: names, later=True):
            otherwise = _splits(subject)
        when = "after the files had been written to: ids depend on their time or size"
        _need_same(splits, otherwise, when, settling=True)
    with listings(lambda _, names: names[::-1]):
        otherwise = _splits(subject)
        _need_same(splits, otherwise, "when the directory was listed in another order")
        _compare_rows(subject, otherwise, "when the directory was listed in another order", _ORDER)
    for path, names in directories.items():
        for hidden in _chosen(names):
            _hide(subject, splits, path, hidden)
            subject.need_time()


def _chosen(names: list[str]) -> list[str]:
    return sorted({names[0], names[len(names) // 2], names[-1]})[:_MOST_FILES] if len(names) > 1 else []


def _hide(subject: Subject, splits: Found, path: str, hidden: str) -> None:
    """Compare the splits with and without one file, as they were before it appeared."""
    with listings(lambda place, names: [name for name in names if (place, name) != (path, hidden)]):
        before = _splits(subject, quiet=True)
        if not before or not before.keys() < splits.keys():
            return  # the file is no split of its own: what a split contains may change with it
        _compare_rows(subject, before, f"before the file {hidden!r} had appeared", _NAMES)


def _splits(subject: Subject, *, quiet: bool = False) -> Found:
    """Return the splits that a new enumerator discovers or assigns; with `quiet`, none if that fails."""
    try:
        return {split.id: split for split in subject.discover()}
    except OutOfTime:
        raise
    except Exception:  # any error of the author's, or an enumerator that waits for the file
        if quiet:  # a source may need the file
            return {}
        raise


def _need_same(splits: Found, rediscovered: Found, when: str, *, settling: bool = False) -> None:
    """Compare ids. With `settling`, a split may only be gone: a source may let a file settle that was written to."""
    gone, new = sorted(splits.keys() - rediscovered.keys()), sorted(rediscovered.keys() - splits.keys())
    if gone and (new or not settling):
        raise Broken(f"the split {gone[0]!r} was found as {new[0] if new else None!r} {when}", _NAMES)


def _compare_rows(subject: Subject, rediscovered: Found, when: str, advice: str) -> None:
    """Read the splits that were found now, each over the range of its plain read."""
    traces = [trace for trace in subject.traces if trace.split.id in rediscovered]
    for trace in traces:
        try:
            now = rediscovered[trace.split.id].slice(trace.split.position, trace.split.end)
            rows = read(subject, [now]).rows[trace.split.id]
        except Finding:
            raise
        except Exception as error:
            why = f"split {trace.split.id!r} could not be read {when}: {type(error).__name__}: {error}"
            raise Broken(why, advice) from error
        subject.compare(trace.split.id, rows, trace.rows, f"read {when}", advice)


_NAMES = (
    "derive ids from the part of the input, such as the name of the file: never from its place in a listing, its "
    "time or its size, which change while the input grows"
)
_ORDER = "sort what a directory lists, and derive ids from the names: the order of a listing is not defined"


ENDS: Checks = []

MOVES: Checks = []
"""Checks of ends that move. They run late, so that the ends have time to move."""

COMPLETE: Checks = []
"""Checks of what comes after an end. They run after those of positions, which explain the same rows better."""

_ANSWERS = 7
"""Calls of latest() that must not go back: an end that goes back in some calls only is a bug, too."""

_FAR = 1_000
"""Number of positions to read after an end."""

_MANY = 3
"""Number of rows after an end which prove that the end is not the newest row's own position."""

_WAIT = 1.2
"""Seconds after which an end must have moved if it is a time, even in whole seconds."""

_POLL = 0.02


@check_into(ENDS)
def latest_is_an_end(subject: Subject) -> None:
    """DIS-1, S4: a read can end at latest(), and latest() never goes back."""
    key = subject.source.order_key
    with subject.discovery() as enumerator:
        _need_latest(subject, enumerator)
        splits = [split.slice(split.position, None) for split in subject.splits]
        answers = [subject.latest(splits, enumerator) for _ in range(_ANSWERS)]
    answers += [subject.latest(splits) for _ in range(2)]  # of new enumerators, as after a restart
    for trace in subject.traces:
        ends = [end for answer in answers if (end := answer.get(trace.split.id)) is not None]
        for end in ends[:1]:
            check_position(end, trace.split, "latest()")
        for number, (first, second) in enumerate(pairwise(ends), 2):
            if key(second) < key(first):
                raise Broken(
                    f"split {trace.split.id!r}: latest() returned {first!r} first, and {second!r} in call {number}",
                    "never return an earlier position than before",
                    rule="S4",
                )
        for end in ends[:1]:
            _read_to_latest(subject, trace, end)


def _read_to_latest(subject: Subject, trace: Trace, latest: Position) -> None:
    """Read up to `latest`. A second read to `latest`, from there or from the last position, must return no row."""
    split = trace.split
    starts = [latest]
    if trace.whole:
        marks = read(subject, [split.slice(split.position, latest)]).output.marks[split.id]
        starts += [reached for _, reached in marks[-1:] if reached is not None]
        if latest not in starts[1:]:
            _read_as_planned(subject, split.slice(split.position, latest))
    for start in starts:
        if rows := read(subject, [split.slice(start, latest)]).rows[split.id]:
            raise Broken(
                f"split {split.id!r} was read up to latest(), {latest!r}; a second read from {start!r} to there "
                f"returned {len(rows)} more rows",
                "stop at split.end, not before; let latest() return the position after the last existing row",
            )


def _read_as_planned(subject: Subject, split: Split) -> None:
    """Read up to the end of a slice as a micro-batch on Spark does: the next one begins there, wherever it stops."""
    context = subject.context(subject.options(), promised=True)
    with ReaderSession(subject, [split], context=context) as session:
        session.start()
        try:
            session.run()
        except ContractError as error:
            if error.rule != "DIS-1":
                raise
            raise Broken(
                f"split {split.id!r}, read up to latest() as Spark reads it: {error.message}", error.advice or ""
            ) from None


@check_into(ENDS)
def latest_is_exclusive(subject: Subject) -> None:
    """DIS-1: latest() is the position after the newest row, not the newest row's own.

    The check reads a little beyond latest(). A single row exactly there is the newest row, which reads would miss.
    """
    if subject.source.bounded:
        raise NotApplicable("the source is bounded: its splits are read to their own ends")
    if not subject.live:
        raise NotApplicable("latest() is checked by the tests of SourceContract that write rows")
    with subject.discovery() as enumerator:
        _need_latest(subject, enumerator)
        probe = subject.on(subject.source, patience=min(1.0, subject.patience))
        answers = [_newest_left_out(probe, split, enumerator) for split in subject.splits]
    if unseen := [answer for answer in answers if answer]:
        raise Skip(unseen[0], "use SourceContract, whose write() lets the input grow")


def _newest_left_out(probe: Subject, split: Split, enumerator: DiscoveryEnumerator) -> str:
    """Raise `Broken` if a single row lies at the end of a split. Return why this cannot be checked, or ""."""
    end = probe.latest([split], enumerator).get(split.id)
    if end is None:
        return ""
    near, far = _rows_beyond(probe, split, end, 1), _rows_beyond(probe, split, end, _FAR)
    if near is None or far is None:
        return f"split {split.id!r}: latest() returned {end!r}, which is no number, so the next position is unknown"
    if near and near == far and probe.latest([split], enumerator).get(split.id) == end:
        raise Broken(
            f"split {split.id!r}: latest() returned {end!r}, which is the position of the newest row: that row would "
            "be read only when the next row comes",
            "return the position after the newest row (its id + 1), since split.end is exclusive; if the source "
            "holds back recent rows, check again later",
        )
    return ""


def _beyond(end: Position, steps: int) -> Position | None:
    """Return the position some steps after one of numbers, whose last one counts; None for others."""
    if isinstance(end, tuple) and end:
        last = _beyond(end[-1], steps)  # a tuple again in a hybrid: (number of the source, position)
        return None if last is None else (*end[:-1], last)
    return end + steps if isinstance(end, int) else None


def _rows_beyond(probe: Subject, split: Split, end: Position, steps: int) -> list[str] | None:
    """Return the rows within `steps` positions after an end; None if positions are not numbers."""
    beyond = _beyond(end, steps)
    if beyond is None:
        return None
    with ReaderSession(probe, [split.slice(end, beyond)]) as session:
        try:
            session.run(lambda: session.caught_up() or len(session.rows[split.id]) > _MANY)
        except OutOfTime:
            raise
        except Exception:  # noqa: BLE001 - a source need not read beyond its end; the rows so far count
            session.abandon()
    return session.rows[split.id]


@check_into(MOVES)
def ends_move_with_records(subject: Subject) -> None:
    """S4: latest() moves on only with records, so that a stream plans no micro-batch without rows."""
    if subject.source.bounded:
        raise NotApplicable("the source is bounded: its splits are read to their own ends")
    deadline = time.monotonic() + _WAIT
    with subject.discovery() as enumerator:
        _need_latest(subject, enumerator)
        for trace in subject.traces:
            if trace.whole and trace.split.id not in subject.ending:
                _warn_of_empty_range(subject, trace, enumerator, deadline)


def _warn_of_empty_range(subject: Subject, trace: Trace, enumerator: DiscoveryEnumerator, deadline: float) -> None:
    """Raise `Warned` if records end before the end of a split, or if the end moves without a record."""
    key, end, reached = subject.source.order_key, trace.split.end, trace.marks[-1][1]
    if end is None:
        return
    gap = reached is not None and bool(key(reached) < key(end))
    if gap and enumerator.exact_ends:
        raise _warning(subject, enumerator, trace, f"latest() returned {end!r}, and no record follows {reached!r}")
    while (latest := subject.latest([trace.split], enumerator).get(trace.split.id)) is None or latest == end:
        if not gap or time.monotonic() >= deadline:
            return
        time.sleep(_POLL)
    if key(end) < key(latest) and not read(subject, [trace.split.slice(end, latest)]).rows[trace.split.id]:
        raise _warning(subject, enumerator, trace, f"latest() moved from {end!r} to {latest!r} without a record")


def _warning(subject: Subject, enumerator: DiscoveryEnumerator, trace: Trace, saw: str) -> Warned:
    saw, advice = f"split {trace.split.id!r}: {saw}", "return the position after the newest complete record"
    if enumerator.exact_ends:
        by_rows = isinstance(subject.source, SimpleSource) and subject.source.positions_are_rows
        flag = "positions_are_rows" if by_rows else "exact_ends"
        return Warned(
            f"{saw}, although {flag} is True: a Spark stream plans a micro-batch without rows",
            f"{advice}; or remove {flag}, so that the planner reads a first record before it plans a micro-batch",
        )
    return Warned(
        f"{saw}: the planner of a Spark stream must read a first record before it plans a micro-batch (at most a "
        "fifth of the time), and after ten minutes without a record plans a micro-batch without rows",
        f"{advice}; if the service knows only a time, change nothing",
    )


@check_into(COMPLETE)
def finished_splits_are_complete(subject: Subject) -> None:
    """SR-4: a split is finished after its last record: from there, a new reader returns no record."""
    endless = [trace for trace in subject.traces if _may_grow(subject, trace)]
    finished = [trace for trace in endless if _finishes(subject, trace)]
    for trace in subject.traces:
        if trace.whole and trace not in endless and trace.full is not None:
            _check_no_more(subject, trace, trace.full.at(trace.marks[-1][1]))
    if finished and len(finished) == len(endless):
        raise Broken(
            f"split {finished[0].split.id!r} was finished at its present end, like all splits without an end of their "
            "own: a run in process would never read what is written later",
            "report caught_up, not finished, while more records can follow; if each split is complete, give it its "
            "end, or let it set ends_itself",
        )


def _may_grow(subject: Subject, trace: Trace) -> bool:
    split = trace.full or trace.split
    return not (subject.source.bounded or split.id in subject.ending or split.ends_itself)


def _finishes(subject: Subject, trace: Trace) -> bool:
    """Read a split without an end. Return whether the reader finished it; if so, check that no record follows."""
    if not trace.whole:
        return False
    split = trace.split.slice(trace.split.position, None)
    with ReaderSession(subject, [split], rows=_FAR, once=False) as session:
        session.run(lambda: bool(session.output.released | session.output.caught_up))
    if split.id not in session.output.released:
        return False
    reached = [at for _, at in session.output.marks[split.id]]
    _check_no_more(subject, trace, split.at(reached[-1] if reached else split.position))
    return True


def _check_no_more(subject: Subject, trace: Trace, tail: Split) -> None:
    """Check that a new reader returns no record of the rest of a split, which a reader has finished."""
    if tail.position is None or (tail.end is not None and tail.position == tail.end):
        return
    with ReaderSession(subject, [tail], once=not subject.source.bounded) as session:
        session.run(lambda: session.caught_up() or bool(session.rows[tail.id]))
    if rows := session.rows[tail.id]:
        raise Broken(
            f"split {tail.id!r} was finished after {len(trace.rows)} rows, at {tail.position!r}; a new reader "
            f"returned more rows from there: {rows[0]:.200}",
            "finish a split after its last record, not after the first page, nor at an error",
        )


def _need_latest(subject: Subject, enumerator: DiscoveryEnumerator) -> None:
    if not subject.overrides(enumerator, "latest"):
        raise NotApplicable("the source does not override latest(), so its ends are unknown")
