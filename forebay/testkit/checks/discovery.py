# SPDX-License-Identifier: Apache-2.0
"""Checks of the enumerator on its own: ENU, and DIS for what a discovery enumerator may say beyond its splits.

DIS-1 … DIS-5 and SRC-8 are rules of forebay's own: their methods are optional, and the default one is never wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import MappingProxyType

import pyarrow as pa

from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.split import Position, Split
from forebay.testkit.checks.base import Checks, check_into
from forebay.testkit.leaks import Leaks
from forebay.testkit.outcomes import Broken, NotApplicable, OutOfTime, Skip
from forebay.testkit.session import Session
from forebay.testkit.subject import Subject
from forebay.testkit.traces import Trace
from forebay.testkit.watch import calling

ALONE: Checks = []
"""Checks that need no reading."""

ENDS: Checks = []
"""Checks of the present ends, by which every stream is read."""

ABILITIES: Checks = []
"""Checks of the other optional methods, each of which has nothing to say where the method is the neutral default."""


@check_into(ALONE)
def state_is_json(subject: Subject) -> None:
    """ENU-5: the state of discovery is JSON.

    Write and read it.
    """
    with subject.discovery() as enumerator:
        state = subject.discovered(enumerator, {}, first=True).state
    try:
        same = json.loads(json.dumps(state, allow_nan=False)) == state
    except (TypeError, ValueError) as error:
        raise Broken(f"Discovered.state {state!r:.200} is not JSON: {error}", _JSON) from error
    if not same:
        raise Broken(f"Discovered.state {state!r:.200} comes back from JSON as something else", _JSON)


@check_into(ALONE)
def discovery_restored(subject: Subject) -> None:
    """ENU-6: discovery goes on after a restart without finding known splits under new ids.

    Discover, restore the state in a fresh enumerator, discover again, twice.
    """
    with subject.discovery() as enumerator:
        found = subject.discovered(enumerator, {}, first=True)
    known = MappingProxyType({split.id: split for split in found.splits})
    with subject.discovery() as enumerator:
        with calling("ENU-6", "restore_state()"):
            enumerator.restore_state(json.loads(json.dumps(found.state)))
        for _ in range(2):
            ids = [split.id for split in subject.discovered(enumerator, known, first=False).splits]
            new = sorted(set(ids) - known.keys())
            if len(set(ids)) < len(ids):
                raise Broken(f"ids repeat in a later discovery: {ids[:10]}", "give each split once", rule="SPL-1")
            if new and subject.exact:
                raise Broken(
                    f"a restored enumerator found {new[:3]}, new to it, in an input that did not change", _SAME
                )


@check_into(ALONE)
def enumerator_closes(subject: Subject) -> None:
    """ENU-9: closing an enumerator leaves no thread and no connection, whether it was used or not.

    Make and close some, used and unused.
    """
    leaks = Leaks(subject.patience)

    def use() -> None:
        with subject.enumerator():
            """Close what was never used."""
        with subject.enumerator() as enumerator:
            if isinstance(enumerator, DiscoveryEnumerator):
                found = subject.discovered(enumerator, {}, first=True)
                subject.retried(lambda: enumerator.latest(found.splits), "DIS-1", "latest()")
            leaks.look()

    leaks.check(use, "making, using and closing an enumerator", "close and end them where they are used, or in close()")


@check_into(ENDS)
def latest_is_an_end(subject: Subject) -> None:
    """DIS-1: latest() is a place where a read ends, and never goes back.

    Ask twice; read up to the first answer; read what is left before it.
    """
    key = subject.source.order_key
    with subject.discovery() as enumerator:
        if not subject.overrides(enumerator, "latest"):
            raise NotApplicable("latest() is the default: the source does not know its ends")
        splits = [trace.rest(0).slice(trace.marks[0][1], None) for trace in subject.traces]
        answers = [subject.retried(lambda: enumerator.latest(splits), "DIS-1", "latest()") for _ in range(2)]
    for split in splits:
        first, second = (answer.get(split.id) for answer in answers)
        if first is None or second is None:
            continue
        _check_position(first, split, "latest()")
        if key(second) < key(first):
            raise Broken(f"split {split.id!r}: latest() said {first!r}, then {second!r}", "never go back", rule="S4")
        trace = next(trace for trace in subject.traces if trace.split.id == split.id)
        _read_to_latest(subject, trace, first)


def _read_to_latest(subject: Subject, trace: Trace, latest: Position) -> None:
    """Read up to the answer; then from where that ended, and from the answer itself, up to it again: nothing comes."""
    split = trace.split
    starts = [latest]
    if trace.whole:
        with Session(subject, [split.slice(split.position, latest)]) as session:
            session.run()
        reached = session.output.marks.get(split.id, [(0, None)])[-1][1]
        starts += [reached] if reached is not None else []
    for start in starts:
        with Session(subject, [split.slice(start, latest)]) as session:
            session.run()
        if rows := session.rows(split.id):
            raise Broken(
                f"split {split.id!r} was read up to latest(), {latest!r}; read again from {start!r} to there, "
                f"it gave {len(rows)} more rows",
                "stop at split.end, not before; give as latest() the position after the last row that is there",
            )


@check_into(ENDS)
def latest_is_exclusive(subject: Subject) -> None:
    """DIS-1: latest() is the position after the newest row, not the newest row's own.

    Read a little beyond the answer: a single row that lies exactly there is the newest one, left out.
    """
    if subject.source.bounded:
        raise NotApplicable("the source is bounded: its splits are read to their own ends")
    if not subject.live:
        raise NotApplicable("the rows that were written show it")
    with subject.discovery() as enumerator:
        if not subject.overrides(enumerator, "latest"):
            raise NotApplicable("latest() is the default: the source does not know its ends")
        probe = subject.on(subject.source, patience=min(1.0, subject.patience))
        answers = [_newest_left_out(probe, trace.split, enumerator) for trace in subject.traces]
    if unseen := [answer for answer in answers if answer]:
        raise Skip(unseen[0], _GROWING)


def _newest_left_out(probe: Subject, split: Split, enumerator: DiscoveryEnumerator) -> str:
    """Raise if a single row lies at the end of a split; return why that cannot be seen, or nothing."""

    def latest() -> Position | None:
        return probe.retried(lambda: enumerator.latest([split]), "DIS-1", "latest()").get(split.id)

    end = latest()
    if end is None:
        return ""
    near, far = _rows_beyond(probe, split, end, 1), _rows_beyond(probe, split, end, _FAR)
    if near is None or far is None:
        return f"split {split.id!r}: what lies at latest(), {end!r}, cannot be asked for"
    if near and near == far and latest() == end:
        raise Broken(
            f"split {split.id!r}: latest() said {end!r}, and a row lies at {end!r}, with none behind it: "
            "it would be read only when the next one comes",
            "return the position after the newest row (its id + 1), since split.end is exclusive; "
            "where rows settle first, check again once they have",
        )
    return ""


def _rows_beyond(probe: Subject, split: Split, end: Position, steps: int) -> list[str] | None:
    """Return the first rows from an end on, up to so many positions behind it; None where positions are no numbers."""
    head, last = (end[:-1], end[-1]) if isinstance(end, tuple) else ((), end)
    if not isinstance(last, int):
        return None
    beyond: Position = (*head, last + steps) if isinstance(end, tuple) else last + steps
    with Session(probe, [split.slice(end, beyond)]) as session:
        try:
            session.run(lambda: session.caught_up() or len(session.rows(split.id)) > _MANY)
        except OutOfTime:
            raise
        except Exception:  # noqa: BLE001 - no source has to read beyond its end; what came before counts
            session.abandon()
    return session.rows(split.id)


@check_into(ABILITIES)
def slices_are_the_split(subject: Subject) -> None:
    """DIS-2: slices of a split are the split, each row once, in order.

    Cut in 2, 3 and 7, and read the slices one after the other.
    """
    with subject.discovery() as enumerator:
        _needs(subject, enumerator, "slices", "splits cannot be cut")
        for trace in subject.traces:
            for count in (2, 3, 7):
                with calling("DIS-2", "slices()"):
                    slices = list(enumerator.slices(trace.split, count))
                if {one.id for one in slices} != {trace.split.id}:
                    raise Broken(f"the slices have the ids {sorted({one.id for one in slices})}", "keep the split's id")
                rows: list[str] = []
                for one in slices:
                    with Session(subject, [one]) as session:
                        session.run()
                    rows += session.rows(one.id)
                subject.compare(trace.split.id, rows, trace.rows, f"cut into {len(slices)}", _SLICES)


@check_into(ABILITIES)
def advance_is_exact(subject: Subject) -> None:
    """DIS-3: advance() reaches as far as its budget of rows, and no further.

    Ask for some rows, and read up to the answer.
    """
    chance = subject.random("advance")
    with subject.discovery() as enumerator:
        _needs(subject, enumerator, "advance", "budgets cannot be told")
        for trace in subject.filled:
            rows = chance.randrange(1, len(trace.rows) + 1)
            with calling("DIS-3", "advance()"):
                reached = enumerator.advance(trace.split, rows=rows)
                by_bytes = enumerator.advance(trace.split, byte_budget=1)
            for answer in (reached, by_bytes):
                if answer is not None:
                    _check_position(answer, trace.split, "advance()")
                    _check_not_beyond(subject, answer, trace.split)
            if reached is None:
                continue
            with Session(subject, [trace.split.slice(trace.split.position, reached)]) as session:
                session.run()
            how = f"read as far as advance(rows={rows}) said, {reached!r}"
            subject.compare(trace.split.id, session.rows(trace.split.id), trace.rows[:rows], how, _ADVANCE)


@check_into(ABILITIES)
def positions_at_lose_nothing(subject: Subject) -> None:
    """DIS-4: no row before positions_at(t) has an event time of t or later.

    Ask for an event time out of the middle.
    """
    column = subject.source.event_time
    with subject.discovery() as enumerator:
        _needs(subject, enumerator, "positions_at", "positions are not found by event time")
        if column is None:
            raise NotApplicable("the source names no event time")
        for trace in subject.filled:
            times = _event_times(subject, trace, column)
            wanted = sorted(times)[len(times) // 2]
            with calling("DIS-4", "positions_at()"):
                answer = (enumerator.positions_at(wanted, [trace.split]) or {}).get(trace.split.id)
            if answer is None:
                continue
            before = _event_times(subject, trace, column, trace.split.slice(trace.split.position, answer))
            if any(time >= wanted for time in before):
                raise Broken(
                    f"split {trace.split.id!r}: rows of {wanted} µs or later lie before the answer {answer!r}",
                    "answer with the first position whose event time is t or later",
                )


@check_into(ABILITIES)
def size_is_a_number(subject: Subject) -> None:
    """DIS-5: size() is a number of bytes or None.

    Ask for whole splits.
    """
    with subject.discovery() as enumerator:
        _needs(subject, enumerator, "size", "sizes are unknown")
        for trace in subject.traces:
            with calling("DIS-5", "size()"):
                size: object = enumerator.size(trace.split)
            if size is not None and not (isinstance(size, int) and size >= 0):
                raise Broken(f"split {trace.split.id!r}: size() gave {size!r}", "give whole bytes, or None")


@check_into(ABILITIES)
def columns_are_pruned(subject: Subject) -> None:
    """SRC-8: with_columns() gives those columns of the same rows.

    Read with the last column alone, and with the columns turned round.
    """
    names = subject.schema().names
    with calling("SRC-8", "with_columns()"):
        pruned = subject.source.with_columns(tuple(names[-1:]))
    if pruned is None:
        raise NotApplicable("with_columns() is the default: the host selects")
    for wanted in (names[-1:], names[::-1]):
        with calling("SRC-8", "with_columns()"):
            source = subject.source.with_columns(tuple(wanted))
        if source is None:
            raise Broken(f"with_columns({wanted}) is None, but for another column it is not", "keep to one answer")
        other = subject.on(source)
        if other.schema().names != wanted:
            raise Broken(f"with_columns({wanted}) has the schema {other.schema().names}", "keep names and order")
        for trace in subject.traces:
            whole, some = _batches(subject, trace.split), _batches(other, trace.split)
            subject.compare(
                trace.split.id,
                [repr(row) for row in pa.Table.from_batches(some, other.schema()).to_pylist()],
                [repr(row) for row in pa.Table.from_batches(whole, subject.schema()).select(wanted).to_pylist()],
                f"reading the columns {wanted}",
                "drop columns, never rows",
            )


_FAR = 1_000
_MANY = 3
"""Positions looked at behind an end, and rows that are enough to know that it is not the newest one's."""

_GROWING = "use SourceContract, whose write() lets the input grow"
_JSON = "keep to None, bool, int, float, str, lists and dicts with text keys"
_SAME = "give the same ids for the same parts, whatever restore_state() brought"
_SLICES = "cut where one slice's end is the next one's position, the outer borders being the split's own"
_ADVANCE = "return None for rows where one position is not one row"


def _needs(subject: Subject, enumerator: DiscoveryEnumerator, method: str, meaning: str) -> None:
    if not subject.overrides(enumerator, method):
        raise NotApplicable(f"{method}() is the default: {meaning}")


def _check_position(position: object, split: Split, what: str) -> None:
    try:
        split.at(position)  # type: ignore[arg-type]  # what an author returned may be anything
    except Exception as error:
        raise Broken(
            f"split {split.id!r}: {what} gave {position!r}", "give an int, a str or a tuple of these"
        ) from error


def _check_not_beyond(subject: Subject, position: Position, split: Split) -> None:
    key: Callable[[Position], object] = subject.source.order_key
    beyond = split.end is not None and key(position) > key(split.end)  # type: ignore[operator]
    if beyond or (split.position is not None and key(position) < key(split.position)):  # type: ignore[operator]
        raise Broken(f"advance() gave {position!r} for {split!r}", "stay between the split's position and its end")


def _event_times(subject: Subject, trace: Trace, column: str, split: Split | None = None) -> list[int]:
    batches = _batches(subject, split or trace.split)
    return [
        time
        for batch in batches
        for time in batch.column(column).cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
        if time is not None
    ]


def _batches(subject: Subject, split: Split) -> list[pa.RecordBatch]:
    with Session(subject, [split]) as session:
        session.run()
    return session.output.record_batches
