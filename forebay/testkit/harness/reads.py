# SPDX-License-Identifier: Apache-2.0
"""Complete reads: the plain read of the input, and reads that are compared with it or with the written rows."""

from __future__ import annotations

import dataclasses
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

from forebay.errors import ContractError, ForebayError
from forebay.framework.source import Source
from forebay.framework.split import Position, Split
from forebay.options.spec import OptionSpec, class_options
from forebay.testkit.harness.sessions import ReaderSession
from forebay.testkit.harness.subject import (
    Hybrid,
    Interpolated,
    KnownMark,
    Mark,
    PlainRead,
    SmallPages,
    Subject,
    Trace,
    WrongPages,
    difference,
)
from forebay.testkit.outcomes import Broken, Finding, OutOfTime

Written = dict[str, list[str]]
"""The rows of each split that a test has written, as text."""

_MOST_SPLITS = 4
"""Maximum number of splits to read row by row."""

_MOST_ROWS = 120
_LEAST_MARKS = 4
"""A split is read row by row until it has given this many rows and this many record batches."""

_LARGE_SPLITS = 64
_LARGE_ROWS = 10_000
"""Maximum rows of an input that is read completely."""


def read(subject: Subject, splits: Sequence[Split], *, rows: int = 1, stored: bool = True) -> ReaderSession:
    """Read splits with one reader to their ends. Return its closed session, which has the rows."""
    with ReaderSession(subject, splits, rows=rows, stored=stored) as session:
        session.run()
    return session


def read_plain(subject: Subject) -> None:
    """Read the input once, into `subject.plain`: some splits row by row, and all rows of a small input."""
    splits = subject.ended(list({split.id: split for split in subject.discover()}.values()))
    sample = _sample(subject, splits) if len(splits) > _MOST_SPLITS else splits
    traces = [_read_trace(subject, split) for split in sample]
    everything = _read_everything(subject, splits, traces)
    rows = {trace.split.id: trace.rows for trace in traces} if everything is None else everything
    subject.plain = PlainRead(traces, rows, whole=everything is not None)


def _sample(subject: Subject, splits: Sequence[Split]) -> list[Split]:
    """Return the splits to read row by row, in the order of their ids: of a hybrid, some of each leg."""
    chance, by_leg = subject.random("splits"), defaultdict(list)
    for split in splits:
        by_leg[subject.leg_of(split)].append(split)
    most = max(1, _MOST_SPLITS // len(by_leg))
    chosen = [split for own in by_leg.values() for split in chance.sample(own, min(most, len(own)))]
    return sorted(chosen, key=lambda split: split.id)


def _read_everything(
    subject: Subject, splits: Sequence[Split], traces: Sequence[Trace]
) -> dict[str, Sequence[str]] | None:
    """Return the rows of all splits, read in large record batches; None if the input is large or the source slow."""
    rows: dict[str, Sequence[str]] = {}
    known = {trace.split.id: trace.rows for trace in traces if trace.whole}
    slow = time.monotonic() + subject.patience
    for split in splits:
        if len(splits) > _LARGE_SPLITS or time.monotonic() > slow:
            return None
        if split.id in known:
            rows[split.id] = known[split.id]
        else:
            with ReaderSession(subject, [split], rows=1_000) as session:
                session.run(lambda: session.caught_up() or len(session.rows[split.id]) > _LARGE_ROWS)  # noqa: B023 - called at once
            rows[split.id] = session.rows[split.id]
        if sum(map(len, rows.values())) > _LARGE_ROWS:
            return None
    return rows


def _read_trace(subject: Subject, split: Split) -> Trace:
    """Read one split, or the first rows of a long one, in record batches of one row if the source allows it."""
    with ReaderSession(subject, [split]) as session:
        rows, marks = session.rows[split.id], session.output.marks[split.id]
        session.run(lambda: session.caught_up() or (len(rows) >= _MOST_ROWS and len(marks) >= _LEAST_MARKS))
        whole = session.caught_up()
    full, pages = split, [(0, split.position), *marks]
    last = pages[-1][1]
    if not whole or (split.end is None and not subject.source.bounded and last is not None):
        split = split.slice(split.position, last)
    values = [row for batch in session.output.record_batches for row in batch.to_pylist()]
    between = interpolate(pages, values, subject.source.order_key)
    if between.gaps and not _are_positions(subject, split, between.gaps, rows):
        between = Interpolated(between.inside)
    trace = Trace(split, tuple(rows), tuple(pages), whole, between, full)
    small = marks_inside_pages(subject, split, rows, pages) if trace.has_pages else None
    if small is None:
        return trace
    known = {count for count, _ in pages}
    inside = tuple((count, at) for count, at in small if count not in known and at is not None)
    gaps = interpolate(small, values, subject.source.order_key).gaps
    if gaps and not _are_positions(subject, split, gaps, rows):
        gaps = ()
    between = Interpolated(inside, gaps or between.gaps)
    if trace.last > 1:
        return replace(trace, between=between)
    # Its few pages leave no position to stop at: those of the smaller pages count.
    return replace(trace, marks=tuple(sorted({*pages, *small})), between=between)


def first_rows(subject: Subject, split: Split, most: int) -> list[str]:
    """Return the first rows of a split, at most `most`."""
    with ReaderSession(subject, [split], rows=most) as session:
        session.run(lambda: session.caught_up() or len(session.rows[split.id]) >= most)
    return session.rows[split.id][:most]


def _are_positions(subject: Subject, split: Split, gaps: Sequence[KnownMark], rows: Sequence[str]) -> bool:
    """Return whether a read from a gap has no other rows; from an address inside a record, such as a byte, it may."""
    try:
        got = read(subject, [split.slice(gaps[len(gaps) // 2][1], split.end)]).rows[split.id]
    except OutOfTime:
        raise
    except (Finding, ForebayError):  # the source accepts only positions that it returned, or a check names it
        return True
    return set(got) <= set(rows)


def check_range(subject: Subject, trace: Trace, start: Mark, stop: Mark, *, where: str = "") -> None:
    """Read from one mark to another; exactly the rows between must come. `where` describes the range in words."""
    how = f"split {trace.split.id!r}, read from {start[1]!r} to {stop[1]!r}{where}"
    expected = list(trace.rows[start[0] : stop[0]])
    try:
        got = read(subject, [trace.split.slice(start[1], stop[1])]).rows[trace.split.id]
    except ContractError as error:
        if error.rule != "SR-2" or not where:
            raise
        raise Broken(f"{how}: {error.message}", _STOP) from error
    if got != expected:
        raise Broken(f"{how}: {difference(got, expected)}", _advice(got, expected), rule="SR-2")


def check_written(subject: Subject, rows: Written) -> None:
    """Discover and read the input; exactly the splits and rows that were written must come."""
    ids = {split.id for split in subject.discover()}
    if ids != rows.keys():
        raise Broken(f"discovery found {sorted(ids)}, but the test added {sorted(rows)}", _DISCOVER, rule="SPL-1")
    read_plain(subject)
    compare_written(subject, {trace.split.id: trace.rows for trace in subject.traces}, rows, "read by its own reader")
    compare_written(subject, read(subject, subject.splits).rows, rows, "read by one reader with all the others")


def compare_written(subject: Subject, got: Mapping[str, Sequence[str]], written: Written, how: str) -> None:
    """Raise `Broken` if rows differ from the rows that were written."""
    for split_id, rows in written.items():
        subject.compare(split_id, got.get(split_id, []), rows, how, "return every existing record once, in order")
    if surplus := sorted(split_id for split_id in got.keys() - written.keys() if got[split_id]):
        raise Broken(f"rows came for the splits {surplus}, to which the test wrote none ({how})", _DISCOVER)


def misordered(split_id: str, before: Position, after: Position) -> Broken:
    """Return the error for positions that do not sort as the records do."""
    return Broken(
        f"split {split_id!r} moved from the position {before!r} to {after!r}, which sorts before it",
        "override order_key(position), such as to int(position) for numbers in text; for an opaque token, add the "
        "number of rows: (rows, token)",
        rule="SPL-3",
    )


def _advice(got: list[str], expected: list[str]) -> str:
    """Return the author's next step: it depends on whether the read missed the start or the end of its range."""
    if got[: len(expected)] == expected:
        return _STOP
    if got == expected[: len(got)]:
        return "return every record before split.end, and only then finish"
    if (got and expected[-len(got) :] == got) or got[-len(expected) :] == expected:
        return "begin exactly at split.position, with the first record at or after it"
    return "return the same rows between two positions in every read: begin at split.position, end at split.end"


_DISCOVER = "discover each part of the input once, under an id derived from that part, and nothing else"
_STOP = (
    "stop exactly at split.end: request only records before it, or cut the page there; and let latest() return no "
    "position beyond that of the next record. After a restart, Spark reads a micro-batch again to its old end, "
    "although more records exist by then"
)


# -- Reads the same rows in smaller pages, by an option of the source, to learn the positions inside its pages.
#
# A micro-batch can end at such a position when the input has grown. A copy of the source with pages of one row gives
# them; the source itself is then read from them and up to them.


_NAMES = re.compile(r"page|batch|chunk|limit|fetch|size|rows|max|per_", re.IGNORECASE)
"""Names of options that may set the size of a page. A wrong one changes the rows, and is not used."""

_OF_A_PAGE = re.compile(r"page(?!s)", re.IGNORECASE)
"""Names of options that surely concern pages, not their number: none of them may pass over rows between two others."""

_SIZE_OF_A_PAGE = re.compile(r"page_?(rows|size|length)|per_page", re.IGNORECASE)
"""Names of options that surely set the size of a page: they decide nothing about where a read ends."""

_NUMBER_OF_PAGES = re.compile(r"pages", re.IGNORECASE)
"""Names of options that may limit the number of pages: smaller pages then end a read earlier."""

_SIZES = (1, 2, 3)


def marks_inside_pages(
    subject: Subject, split: Split, rows: Sequence[str], marks: Sequence[Mark]
) -> Sequence[Mark] | None:
    """Return the marks of a read of `split` in smaller pages; None if no option of the source gives such pages.

    Args:
        subject: The source under test. The option that worked is kept in its `small_pages`.
        split: The split, or the part of it that was read.
        rows: The rows that the source returned.
        marks: The marks of that read; the read in smaller pages must have the same positions there.
    """
    known = subject.small_pages
    specs = _specs(subject.source)
    limited = any(_NUMBER_OF_PAGES.search(spec.python_name) for spec in specs)
    for option, size, source in _with_smaller_pages(subject.source) if known is None else _known_first(*known):
        answer = _read(subject.on(source), split, len(rows))
        if answer is None:
            continue
        got, inner_marks = answer
        small = [marks[0], *inner_marks]
        fixed = any(spec.python_name == option and not spec.may_change for spec in specs)
        ends_early = _SIZE_OF_A_PAGE.search(option) and len(got) < len(rows) and not limited
        ends_early = ends_early and _same_scale(subject, small, marks)
        if not fixed and (ends_early or (_OF_A_PAGE.search(option) and _out_of_place(got, rows))):
            subject.wrong_pages = WrongPages(option, size, split.id, tuple(got), tuple(rows))
        positions = dict(small)
        same = got == list(rows) and len(small) > len(marks)
        if same and all(positions.get(number, at) == at for number, at in marks):
            subject.small_pages = option, size, source
            return small
    return None


def _same_scale(subject: Subject, small: Sequence[Mark], marks: Sequence[Mark]) -> bool:
    """Return whether positions mean the same in pages of any size: fewer rows never have a later position.

    Positions that count pages do not: with smaller pages, the same end of the split is reached after fewer rows.
    """
    key = subject.source.order_key
    reached = [(count, key(at)) for count, at in small if at is not None]
    return not any(
        fewer < count and position >= key(at) for count, at in marks if at is not None for fewer, position in reached
    )


def _specs(source: Source) -> list[OptionSpec]:
    """Return the options of a source, or of all legs of a hybrid."""
    return [
        spec for leg in (source.legs if isinstance(source, Hybrid) else [source]) for spec in class_options(type(leg))
    ]


def _out_of_place(got: Sequence[str], rows: Sequence[str]) -> bool:
    """Return whether `got` has rows of the read only, and is not its beginning: some are left out, doubled or moved.

    The beginning alone may be what an option such as `max_pages` asks for; other rows, what it selects.
    """
    return list(got) != list(rows[: len(got)]) and set(got) <= set(rows)


def _read(subject: Subject, split: Split, count: int) -> tuple[list[str], list[Mark]] | None:
    """Return the first rows of a split, and their marks; None if the source cannot read with this option."""
    try:
        with ReaderSession(subject, [split]) as session:
            session.run(lambda: session.caught_up() or len(session.rows[split.id]) >= count)
    except OutOfTime:
        raise
    except Exception:  # noqa: BLE001 - another option than the size of a page may break the source
        return None
    return session.rows[split.id][:count], [mark for mark in session.output.marks[split.id] if mark[0] <= count]


def _known_first(option: str, size: int, source: Source) -> Iterator[SmallPages]:
    """Yield the copy with smaller pages that fitted another split; of a hybrid, other legs may need an option more."""
    yield option, size, source
    if isinstance(source, Hybrid):
        yield from _with_smaller_pages(source)


def _with_smaller_pages(source: Source) -> Iterator[SmallPages]:
    """Yield the name of an option, a smaller value, and a copy of the source, or of a leg of a hybrid, with it."""
    if isinstance(source, Hybrid):
        legs = list(source.legs)
        for number, leg in enumerate(legs):
            for option, size, smaller in _with_smaller_pages(leg):
                yield option, size, source.with_legs([*legs[:number], smaller, *legs[number + 1 :]])
        return
    instance: Any = source  # a dataclass, as every source is one
    for field in dataclasses.fields(instance):
        value = getattr(source, field.name)
        if not field.init or isinstance(value, bool) or not isinstance(value, int) or not _NAMES.search(field.name):
            continue
        for size in _SIZES:
            if size < value:
                with suppress(Exception):  # the source may refuse this size
                    yield field.name, size, dataclasses.replace(instance, **{field.name: size})


# -- Calculates positions that a read did not return: inside pages, and in the gaps of ids.
#
# A source returns a position after each page. The position may be a function of the page's last row: its id, its id +
# 1, its time and id, or the number of rows so far. In this case, the positions of the other rows can be calculated. A
# micro-batch can end at such a position if the input grows afterwards.


Row = Mapping[str, object]

_LEAST = 2
"""Minimum number of pages that must agree on the function."""

_Function = tuple[str, Callable[[int, Row], object]]
"""A kind, and a function that returns one part of a position from the number of rows so far and the last row."""


def interpolate(
    marks: Sequence[tuple[int, Position | None]], rows: Sequence[Row], order_key: Callable[[Position], Any]
) -> Interpolated:
    """Calculate the positions between the marks that a read returned.

    Returns:
        The calculated marks; none if the positions are no function of the rows.
    """
    usable = [(count, at) for (before, _), (count, at) in pairwise(marks) if count > before and at is not None]
    if len(usable) < _LEAST or len({len(at) if isinstance(at, tuple) else 0 for _, at in usable}) > 1:
        return Interpolated()
    samples = [[(n, rows[n - 1], part) for part in (at if isinstance(at, tuple) else (at,))] for n, at in usable]
    parts = [_functions(column) for column in zip(*samples, strict=True)]
    is_tuple, end = isinstance(usable[0][1], tuple), usable[-1][0]
    after = {count: _position(parts, count, rows[count - 1], is_tuple=is_tuple) for count in range(1, end + 1)}
    known = {count: at for count, at in after.items() if at is not None}
    if len(known) < len(after) or not _in_order(list(known.values()), order_key):
        return Interpolated()
    if _is_unclear(parts, list(known.values())):
        return Interpolated()
    borders = {count for count, _ in marks}
    inside = [(n, at) for n, at in known.items() if n not in borders and at != known.get(n + 1)]
    gaps = [(n, at) for n in range(1, end) if (at := _before(parts, known[n + 1])) is not None]
    gaps = [(n, at) for n, at in gaps if order_key(known[n]) < order_key(at) < order_key(known[n + 1])]
    return Interpolated(tuple(inside), tuple(gaps))


def _is_unclear(parts: Sequence[Sequence[_Function]], positions: Sequence[Position]) -> bool:
    """Return whether rows share a calculated position and a part of it was the same by chance.

    An example is (time, number of rows of that time), with a 1 at the end of each page.
    """
    by_chance = len(parts) > 1 and any({kind for kind, _ in functions} == {"constant"} for functions in parts)
    return by_chance and any(before == after for before, after in pairwise(positions))


def _in_order(positions: Sequence[Position], order_key: Callable[[Position], Any]) -> bool:
    try:
        return all(order_key(one) <= order_key(two) for one, two in pairwise(positions))
    except Exception:  # noqa: BLE001 - a source need not order positions that it never returned
        return False


def _functions(samples: Sequence[tuple[int, Row, Any]]) -> list[_Function]:
    """Return every function whose result equals this part of the position at all marks."""
    count, row, part = samples[0]
    functions: list[_Function] = [("constant", lambda *_: part)]
    if isinstance(part, int):
        functions.append(("count", lambda n, _: n + part - count))
    functions += [function for column in row for function in _of_column(column)]
    return [
        (kind, of) for kind, of in functions if all(_equal(of(n, sample), expected) for n, sample, expected in samples)
    ]


def _of_column(column: str) -> list[_Function]:
    def following(_: int, row: Row) -> object:
        value = row[column]
        return value + 1 if isinstance(value, int) else None

    return [("same", lambda _, row: row[column]), ("next", following), ("text", lambda _, row: str(row[column]))]


def _equal(value: object, part: object) -> bool:
    return type(value) is type(part) and value == part


def _position(parts: Sequence[Sequence[_Function]], count: int, row: Row, *, is_tuple: bool) -> Position | None:
    """Return the position after a row; None if the functions disagree."""
    made: list[Any] = []
    for functions in parts:
        values = {of(count, row) for _, of in functions}
        if len(values) != 1:
            return None
        made.append(values.pop())
    return tuple(made) if is_tuple else made[0]


def _before(parts: Sequence[Sequence[_Function]], after: Position) -> Position | None:
    """Return the position before a row, given the one after it; None unless that ends with the row's id."""
    kinds = [{kind for kind, _ in functions} for functions in parts]
    last: Any = after[-1] if isinstance(after, tuple) else after
    if any("count" in one for one in kinds) or not kinds[-1] & {"same", "next"} or not isinstance(last, int):
        return None
    return (*after[:-1], last - 1) if isinstance(after, tuple) else last - 1
