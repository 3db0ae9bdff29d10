# SPDX-License-Identifier: Apache-2.0
"""Checks of enumerators (rules ENU-…), and of the optional methods (rules DIS-2 to DIS-6, SRC-8)."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from forebay.errors import ContractError
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.split import Position, Split
from forebay.testkit.checks.base import Checks, check_into
from forebay.testkit.checks.faults import Leaks
from forebay.testkit.harness.calls import Silence, calling
from forebay.testkit.harness.reads import first_rows, read
from forebay.testkit.harness.single_thread_host import HostCheckpoint, SingleThreadHost
from forebay.testkit.harness.subject import Mark, Subject, Trace
from forebay.testkit.outcomes import Broken, NotApplicable, Skip
from forebay.watermarks.event_time import ColumnTimestamps

ENUMERATORS: Checks = []


@check_into(ENUMERATORS)
def state_is_json(subject: Subject) -> None:
    """ENU-5: the state of discovery is JSON."""
    with subject.discovery() as enumerator:
        state = subject.discovered(enumerator, {}, first=True).state
    try:
        same = json.loads(json.dumps(state, allow_nan=False)) == state
    except (TypeError, ValueError) as error:
        raise Broken(f"Discovered.state {state!r:.200} is not JSON: {error}", _JSON) from error
    if not same:
        raise Broken(f"Discovered.state {state!r:.200} is not the same after a round trip through JSON", _JSON)


@check_into(ENUMERATORS)
def discovery_restored(subject: Subject) -> None:
    """ENU-6, SPL-1: after a restart, discovery continues, and finds no known split under a new id."""
    with subject.discovery() as enumerator:
        discovered = subject.discovered(enumerator, {}, first=True)
    known = MappingProxyType({split.id: split for split in discovered.splits})
    with subject.discovery() as enumerator:
        with calling("ENU-6", "restore_state()"):
            enumerator.restore_state(json.loads(json.dumps(discovered.state)))
        for _ in range(2):
            ids = [split.id for split in subject.discovered(enumerator, known, first=False).splits]
            new = sorted(set(ids) - known.keys())
            if len(set(ids)) < len(ids):
                raise Broken(
                    f"a later discovery returned split ids twice: {ids[:10]}", "return each split once", rule="SPL-1"
                )
            if new and subject.exact:
                raise Broken(f"a restored enumerator discovered the new splits {new[:3]} in an unchanged input", _SAME)


@check_into(ENUMERATORS)
def enumerator_closes(subject: Subject) -> None:
    """ENU-9: closing an enumerator leaves no thread and no connection, whether it was used or not."""
    leaks = Leaks(subject.patience)

    def use() -> None:
        with subject.enumerator():
            """Close it unused."""
        with subject.enumerator() as enumerator:
            raw = not isinstance(enumerator, DiscoveryEnumerator)
            if isinstance(enumerator, DiscoveryEnumerator):
                subject.latest(subject.discovered(enumerator, {}, first=True).splits, enumerator)
            leaks.record_open()
        if raw:
            subject.discover()  # starts it, and lets it assign its splits

    leaks.check(
        use,
        "making, using and closing an enumerator",
        "close connections and end threads where they are used, or in close()",
    )


_JSON = "use only None, bool, int, float, str, lists and dicts with text keys"
_SAME = "return the same ids for the same parts, with any restored state"


# -- Checks of the enumerator together with a reader, in a host that kills and restores it (rules ENU-…).


COORDINATION: Checks = []

_MOST_KILLS = 8
_QUIET = 0.3
"""Seconds without an effect after which an enumerator has found everything."""

_ANSWER = 0.1
"""Seconds that an enumerator gets to answer a request."""


@check_into(COORDINATION)
def all_splits_are_assigned(subject: Subject) -> None:
    """ENU-11: every split of an unbounded source is assigned, although the reader requests a split only once."""
    if subject.source.bounded:
        raise NotApplicable("the source is bounded: the reader asks again whenever it has finished a split")
    with subject.enumerator() as enumerator:
        if isinstance(enumerator, DiscoveryEnumerator):
            raise NotApplicable("the framework assigns the splits that the source discovers")
    ids = {split.id for split in subject.discover()}
    with SingleThreadHost(subject) as host:
        silence = Silence(subject.patience / 2)
        while left := sorted(ids - host.assigned):
            before = len(host.assigned)
            host.step()
            if len(host.assigned) > before:
                silence.reset()
            if silence.left < 0:
                subject.blocked = "the enumerator leaves splits unassigned: see ENU-11"
                raise Broken(
                    f"{len(left)} of {len(ids)} splits stayed unassigned: {left[:10]}; a "
                    "reader of an unbounded source requests a split once, and again only after it has finished one",
                    "assign splits without an end before readers request them: call assign_splits() in add_reader() "
                    "and after each discovery, not only in handle_split_request()",
                )


@check_into(COORDINATION)
def idle_readers_end(subject: Subject) -> None:
    """ENU-10, RDR-2: all rows are read, and then the reader ends; so does one that finds no split, after a restart."""
    _need_all(subject)
    with SingleThreadHost(subject) as host:
        _finish(host, subject, "read by a reader that asks for splits")
        checkpoint = host.checkpoint(complete=not subject.live)
    with _restored(subject, checkpoint) as host:
        _finish(host, subject, "with a restore after everything was read")


@check_into(COORDINATION)
def readers_register_late(subject: Subject) -> None:
    """ENU-4: the reader may register after the enumerator has found splits, and again after a failure."""
    _need_all(subject)
    with SingleThreadHost(subject, register=False) as host:
        host.settle(_QUIET)
        host.register()
        host.run(lambda: bool(host.assigned) or host.has_read(subject.everything))
        host.fail()
        host.register()
        _finish(host, subject, "with a reader that registered late, and again after a failure")


@check_into(COORDINATION)
def killed_readers(subject: Subject) -> None:
    """ENU-3: splits of a killed reader are returned and resumed, so that each row comes once."""
    chance = subject.random("kill")
    for number, (moment, when) in enumerate(_moments(subject, chance)):
        with SingleThreadHost(subject) as host:
            _run_to(host, subject, moment)
            in_progress = number % 2 == 0  # every second time, however fast the readers are
            how = (
                f"with the reader killed {'in the middle of a split, ' * in_progress}{when}{' or later' * in_progress}"
            )
            if in_progress:
                host.run(lambda: host.in_progress() or host.has_read(subject.everything))
            checkpoint = chance.choice([None, False, not subject.live])  # a complete checkpoint may commit and clean up
            if checkpoint is not None:
                host.checkpoint(complete=checkpoint)
            host.fail()
            host.register()
            _finish(host, subject, how)
        subject.need_time()


@check_into(COORDINATION)
def dead_requesters_skipped(subject: Subject) -> None:
    """ENU-2: a reader that failed after it requested a split gets no split."""
    _need_all(subject)
    with SingleThreadHost(subject) as host:
        host.fail()
        due = time.monotonic() + _ANSWER
        host.run(lambda: time.monotonic() > due)
        host.register()
        _finish(host, subject, "with a reader that failed after it requested a split")


@check_into(COORDINATION)
def crashes(subject: Subject) -> None:
    """ENU-5, ENU-6: a checkpoint at any step has every split once, so that each row comes once after a crash."""
    chance = subject.random("crash")
    for moment, when in _moments(subject, chance):
        steps_after = chance.randrange(4)
        with SingleThreadHost(subject) as host:
            _run_to(host, subject, moment)
            if subject.everything.keys() <= host.finished:
                continue  # see `idle_readers_end`
            checkpoint = host.checkpoint(complete=not subject.live)
            for _ in range(steps_after):
                host.step()
        with _restored(subject, checkpoint) as host:
            _finish(host, subject, f"with a checkpoint {when}, a crash, and a restore from it")
        subject.need_time()


@check_into(COORDINATION)
def crashes_without_readers(subject: Subject) -> None:
    """ENU-5: a checkpoint without a reader has every split that was found or came back, so that each row comes once."""
    _need_all(subject)
    with subject.enumerator() as enumerator:
        if isinstance(enumerator, DiscoveryEnumerator):
            raise NotApplicable("the framework stores the splits that the source discovers")
    with SingleThreadHost(subject, register=False) as host:
        host.settle(_QUIET)
        checkpoint = host.checkpoint(complete=not subject.live)
    with _restored(subject, checkpoint) as host:
        _finish(host, subject, "with a checkpoint before the reader had started, a crash, and a restore from it")
    with SingleThreadHost(subject) as host:
        _run_to(host, subject, 1)
        host.fail()
        host.settle(_QUIET)
        checkpoint = host.checkpoint(complete=not subject.live)
    with _restored(subject, checkpoint) as host:
        how = "with a checkpoint after the reader had failed and its splits had come back, a crash, and a restore"
        _finish(host, subject, how)


@contextmanager
def _restored(subject: Subject, checkpoint: HostCheckpoint) -> Iterator[SingleThreadHost]:
    """Yield a host that continues from a checkpoint. A split assigned twice means that discovery returned it again."""
    try:
        with SingleThreadHost(subject, restored=checkpoint) as host:
            yield host
    except ContractError as error:
        if error.rule != "SPL-1":
            raise
        raise Broken(
            f"the enumerator broke a rule after restore_state(): {error.message}",
            "restore the state of snapshot_state() in restore_state(), and do not discover known splits again",
            rule="ENU-6",
        ) from error


def _need_all(subject: Subject) -> None:
    """Skip the check if a host cannot read exactly the rows of the plain read."""
    subject.need_time()
    if subject.blocked:
        raise Skip(subject.blocked)
    if not subject.traces:
        raise NotApplicable("the source has no split")
    if not subject.whole:
        with subject.enumerator() as enumerator:
            if not isinstance(enumerator, DiscoveryEnumerator):
                raise Skip(
                    "the input is large, and the source's own SplitEnumerator assigns all of it",
                    "check the source with a smaller input",
                )


def _moments(subject: Subject, chance: random.Random) -> list[tuple[int, str]]:
    """Return some steps at which to interrupt a run, each with its description."""
    _need_all(subject)
    most = max(1, subject.coordinated()[1].max_rows_per_batch)
    # The number of messages to the reader, record batches and ends.
    steps = 1 + sum(len(rows) // most + 2 for rows in subject.everything.values())
    moments = list(range(steps + 1)) if steps < _MOST_KILLS else sorted(chance.sample(range(steps + 1), _MOST_KILLS))
    return [(moment, f"at step {moment} of about {steps}") for moment in moments]


def _run_to(host: SingleThreadHost, subject: Subject, moment: int) -> None:
    """Run the host until a step, or to the end of the input."""
    host.run(lambda: host.steps >= moment or host.has_read(subject.everything))


def _finish(host: SingleThreadHost, subject: Subject, how: str) -> None:
    """Run the host to the end of the input, and compare all rows with the plain read."""
    try:
        host.run(lambda: host.has_read(subject.everything))
    except Broken as stuck:
        raise Broken(f"{how}: {stuck.saw}", stuck.advice, rule=stuck.rule) from stuck
    for split_id, rows in subject.everything.items():
        subject.compare(split_id, host.rows[split_id], rows, how, _ADVICE, open_ended=not subject.source.bounded)


_ADVICE = (
    "make returned splits assignable again, at their position; store unassigned splits in snapshot_state(), and "
    "restore them in restore_state()"
)


# -- Checks of the optional methods, which have neutral defaults.


OPTIONAL_METHODS: Checks = []

_MANY_ROWS = 1_000
_SMALL_SLICES = 1_000
"""Number of slices of a split that is too large to be read, so that its last slice is small."""


@check_into(OPTIONAL_METHODS)
def slices_are_the_split(subject: Subject) -> None:
    """DIS-2: the slices of a split together return its rows, each once, in order."""
    with _overriding(subject, "slices", "splits cannot be cut") as enumerator:
        for trace in subject.traces:
            split = trace.full or trace.split
            if not subject.whole and not trace.whole:
                _check_last_slice(subject, split, enumerator)
                continue
            rows = subject.everything[split.id]
            for count in (2, 3, 7) if len(rows) <= _MANY_ROWS else (7,):
                _check_slices(subject, split, rows, _cut(split, count, enumerator))
            if not subject.source.bounded:  # a stream cuts the part that each micro-batch reads
                half = trace.last // 2
                remainder = split.at(trace.marks[half][1])
                _check_slices(subject, remainder, rows[trace.marks[half][0] :], _cut(remainder, 3, enumerator))
                if half:
                    for start in {0, half // 2}:
                        part = split.slice(trace.marks[start][1], trace.marks[half][1])
                        expected = rows[trace.marks[start][0] : trace.marks[half][0]]
                        _check_slices(subject, part, expected, _cut(part, 2, enumerator))
            subject.need_time()


def _cut(split: Split, count: int, enumerator: DiscoveryEnumerator) -> list[Split]:
    with calling("DIS-2", "slices()"):
        slices = list(enumerator.slices(split, count))
    if (ids := {part.id for part in slices}) != {split.id}:
        raise Broken(f"slices of split {split.id!r} have the ids {sorted(ids)}", "keep the split's id")
    return slices


def _check_slices(subject: Subject, split: Split, rows: Sequence[str], slices: Sequence[Split]) -> None:
    got = [row for part in slices for row in read(subject, [part], rows=_MANY_ROWS).rows[part.id]]
    open_ended = split.end is None
    subject.compare(split.id, got, rows, f"cut into {len(slices)}", _SLICES, open_ended=open_ended)


def _check_last_slice(subject: Subject, split: Split, enumerator: DiscoveryEnumerator) -> None:
    """Check the end of a split that is too large to read: its last slice must have the rows up to the split's end."""
    last = _cut(split, _SMALL_SLICES, enumerator)[-1]
    got, wanted = (first_rows(subject, part, _MANY_ROWS + 1) for part in (last, last.slice(last.position, split.end)))
    if max(len(got), len(wanted)) <= _MANY_ROWS:
        subject.compare(split.id, got, wanted, f"cut into about {_SMALL_SLICES}, its last slice", _SLICES)


@check_into(OPTIONAL_METHODS)
def advance_is_exact(subject: Subject) -> None:
    """DIS-3: advance() returns the position after exactly as many rows as its budget."""
    chance = subject.random("advance")
    with _overriding(subject, "advance", "the source has no exact limits of rows") as enumerator:
        for trace in subject.filled:
            rows = chance.randrange(1, len(trace.rows) + 1)
            reached = _advanced(subject, enumerator, trace, (0, trace.split.position), rows)
            if reached is None:
                continue
            rest = read(subject, [trace.split.slice(reached, trace.marks[-1][1])]).rows[trace.split.id]
            how = f"read on from advance(rows={rows}), {reached!r}"
            subject.compare(trace.split.id, rest, trace.rows[rows:], how, _READ_ON)
            middle = len(trace.rows) // 2
            begin = next(mark for mark in trace.marks if mark[0] >= middle)
            _advanced(subject, enumerator, trace, begin, max(1, (len(trace.rows) - begin[0]) // 2))
            if not subject.source.bounded and begin[1] is not None:  # the end of a micro-batch, before the newest row
                _advanced(subject, enumerator, trace, (0, trace.split.position), begin[0] + 1, begin)
                start = trace.marks[trace.marks.index(begin) // 2]
                _advanced(subject, enumerator, trace, start, begin[0] - start[0] + 1, begin)


def _advanced(
    subject: Subject, enumerator: DiscoveryEnumerator, trace: Trace, start: Mark, rows: int, stop: Mark | None = None
) -> Position | None:
    """Call `advance` for a part of the split, and compare the rows up to its answer, which is returned."""
    split = trace.split.at(start[1]) if stop is None else trace.split.slice(start[1], stop[1])
    with calling("DIS-3", "advance()"):
        reached, by_bytes = enumerator.advance(split, rows=rows), enumerator.advance(split, byte_budget=1)
    for answer in (reached, by_bytes):
        if answer is not None:
            check_position(answer, split, "advance()")
            _check_within(subject, answer, split)
    if reached is not None:
        expected = trace.rows[start[0] : min(start[0] + rows, len(trace.rows) if stop is None else stop[0])]
        got = read(subject, [split.slice(split.position, reached)]).rows[split.id]
        how = f"read from {split.position!r} up to advance(rows={rows}), {reached!r}"
        subject.compare(split.id, got, expected, how, _ADVANCE)
    return reached


@check_into(OPTIONAL_METHODS)
def positions_at_lose_nothing(subject: Subject) -> None:
    """DIS-4: positions_at(t) skips no row with an event time of t or later, and does not go back."""
    column = subject.source.event_time
    with _overriding(subject, "positions_at", "positions are not found by event time") as enumerator:
        if column is None:
            raise NotApplicable("the source has no event_time")
        for trace in subject.filled:
            times = sorted(_event_times(subject, column, trace.split))
            for mark, moment in ((0, times[len(times) // 2]), (trace.last // 2, times[0])):
                split = trace.rest(mark)
                with calling("DIS-4", "positions_at()"):
                    answer = (enumerator.positions_at(moment, [split]) or {}).get(split.id)
                if answer is None or answer == split.position:
                    continue
                if not _is_after(subject, answer, split):
                    raise Broken(
                        f"split {split.id!r} is at {split.position!r}, but positions_at() went back to {answer!r}",
                        "search from the position of the split",
                    )
                if any(time >= moment for time in _event_times(subject, column, split.slice(split.position, answer))):
                    raise Broken(
                        f"split {split.id!r}: positions_at({moment} µs) returned {answer!r}, but a row before it has "
                        "this event time or a later one",
                        "return the first position whose event time is t or later",
                    )


@check_into(OPTIONAL_METHODS)
def event_times_are_those_of_the_rows(subject: Subject) -> None:
    """DIS-6: event_times() returns the event time of the row at a position; at the end, of the last row."""
    column = subject.source.event_time
    with _overriding(subject, "event_times", "the planner of a stream reads the first unread records") as enumerator:
        if column is None:
            raise NotApplicable("the source has no event_time")
        for trace in subject.filled:
            last = _row_times(subject, column, trace.split)[-1]
            for mark in sorted({0, trace.last // 2, trace.last}):
                split = trace.rest(mark)
                with calling("DIS-6", "event_times()"):
                    answer: object = (enumerator.event_times([split], column) or {}).get(split.id)
                expected = next(iter(_row_times(subject, column, split)), last)
                if answer is not None and answer != expected:
                    raise Broken(
                        f"split {split.id!r} at {split.position!r}: event_times() returned {answer!r}, but the row "
                        f"there, or at the end the last row, has the event time {expected!r}",
                        "return the event time (µs since 1970) of the first row at or after the position; without "
                        "one, of the last row before it",
                    )


@check_into(OPTIONAL_METHODS)
def size_is_a_number(subject: Subject) -> None:
    """DIS-5: size() is a number of bytes or None."""
    with _overriding(subject, "size", "sizes are unknown") as enumerator:
        for split in subject.splits:
            with calling("DIS-5", "size()"):
                size: object = enumerator.size(split)
            if size is not None and not (isinstance(size, int) and size >= 0):
                raise Broken(f"split {split.id!r}: size() returned {size!r}", "return an int of bytes, or None")


@check_into(OPTIONAL_METHODS)
def columns_are_pruned(subject: Subject) -> None:
    """SRC-8: with_columns() returns a source of the same rows with the given columns only."""
    names = subject.schema.names
    for columns in (names[-1:], names[::-1]):
        with calling("SRC-8", "with_columns()"):
            source = subject.source.with_columns(tuple(columns))
        if source is None and len(columns) == 1:
            raise NotApplicable("with_columns() is the default: the host selects")
        if source is None:
            raise Broken(
                f"with_columns({columns}) returned None, but with_columns({names[-1:]}) returned a source",
                "return a source for every choice of columns, or always None",
            )
        other = subject.on(source)
        if other.schema.names != columns:
            raise Broken(
                f"with_columns({columns}) returned a source with the columns {other.schema.names}",
                "keep the given names and order",
            )
        for split in subject.splits:
            whole, some = _table(subject, split), _table(other, split)
            got, all_rows = (list(map(repr, table.to_pylist())) for table in (some, whole.select(columns)))
            subject.compare(split.id, got, all_rows, f"reading the columns {columns}", "drop columns, never rows")


_SLICES = "let each slice begin at the end of the previous one; the outer borders are the split's"
_ADVANCE = (
    "return the position after exactly `rows` rows from split.position on, and split.end where there are fewer; None "
    "if it is unknown"
)
_READ_ON = "begin exactly at split.position, with the first record at or after it: the next micro-batch begins there"


@contextmanager
def _overriding(subject: Subject, method: str, meaning: str) -> Iterator[DiscoveryEnumerator]:
    """Yield the discovery enumerator if the author overrides a method; else skip the check."""
    with subject.discovery() as enumerator:
        if not subject.overrides(enumerator, method):
            raise NotApplicable(f"{method}() is not overridden: {meaning}")
        yield enumerator


def check_position(position: object, split: Split, name: str) -> None:
    """Raise `Broken` if the value that the method `name` returned is not a position."""
    try:
        split.at(position)  # type: ignore[arg-type]  # an author may return anything
    except Exception as error:
        why = f"split {split.id!r}: {name} returned {position!r}, which is not a position"
        raise Broken(why, "return an int, a str or a tuple of these") from error


def _check_within(subject: Subject, position: Position, split: Split) -> None:
    at: Any = subject.source.order_key(position)
    beyond = split.end is not None and at > subject.source.order_key(split.end)
    if beyond or (split.position is not None and at < subject.source.order_key(split.position)):
        raise Broken(f"advance() returned {position!r}, outside of {split!r}", "stay between its position and its end")


def _event_times(subject: Subject, column: str, split: Split) -> list[int]:
    times = _table(subject, split).column(column).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    return [time for time in times.to_pylist() if time is not None]


def _row_times(subject: Subject, column: str, split: Split) -> list[int | None]:
    """Return the event time of each row in µs since 1970, as hosts read it; None for a row without one."""
    assign, batches = ColumnTimestamps(column), read(subject, [split]).output.record_batches
    times = (assign(batch.slice(n, 1), None) for batch in batches for n in range(batch.num_rows))
    return [None if time is None else time.earliest for time in times]


def _is_after(subject: Subject, position: Position, split: Split) -> bool:
    key = subject.source.order_key
    return split.position is None or bool(key(position) > key(split.position))


def _table(subject: Subject, split: Split) -> pa.Table:
    return pa.Table.from_batches(read(subject, [split]).output.record_batches, subject.schema)
