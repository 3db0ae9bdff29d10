# SPDX-License-Identifier: Apache-2.0
"""Calculates positions that a read did not return: inside pages, and in the gaps of ids.

A source returns a position after each page. The position may be a function of the page's last row: its id, its id + 1,
its time and id, or the number of rows so far. In this case, the positions of the other rows can be calculated. A
micro-batch can end at such a position if the input grows afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from forebay.framework.split import Position

Row = Mapping[str, object]
KnownMark = tuple[int, Position]
"""A number of rows, and the position after them."""

_LEAST = 2
"""Minimum number of pages that must agree on the function."""


@dataclass(frozen=True, slots=True)
class Interpolated:
    """The calculated marks of a split, in order.

    Args:
        inside: Marks inside pages: after a row that is not the last one of its page.
        gaps: Marks directly before a row whose id is not the next number after the id of the previous row.
    """

    inside: tuple[KnownMark, ...] = ()
    gaps: tuple[KnownMark, ...] = ()


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
