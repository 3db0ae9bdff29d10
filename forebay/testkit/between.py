# SPDX-License-Identifier: Apache-2.0
"""Positions that lie between those that a read told: inside its pages, and in the gaps of its numbers.

A source tells a position after each page. Where all of them follow from the last row of the page (its id, its id and
one, its time and its id, the number of rows so far), they are known for the other rows too: each is the position that
the source would have told, had its page ended there. A micro-batch ends at such a place when the input has grown since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from forebay.framework.split import Position

Row = Mapping[str, object]
Mark = tuple[int, Position]
"""A number of rows, and the position after them."""

_LEAST = 2
"""Pages that must agree."""


@dataclass(frozen=True, slots=True)
class Between:
    """Positions, each with the number of rows before it, in order.

    Args:
        inside: Inside pages, after rows that are not the last ones.
        gaps: Directly before rows whose number leaves a gap to the row before.
    """

    inside: tuple[Mark, ...] = ()
    gaps: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class _Form:
    """What a part of a position is, by the rows so far and the last of them."""

    kind: str
    column: str = ""
    constant: object = None

    def value(self, count: int, row: Row) -> object:
        if self.kind == "count":
            return count + self.constant if isinstance(self.constant, int) else None
        if self.kind == "constant":
            return self.constant
        value = row[self.column]
        if self.kind == "next":
            return value + 1 if isinstance(value, int) else None
        return str(value) if self.kind == "text" else value


def between(
    marks: Sequence[tuple[int, Position | None]], rows: Sequence[Row], order_key: Callable[[Position], Any]
) -> Between:
    """Return the positions between the marks of a read, as far as its rows say them.

    Args:
        marks: Rows so far and the position, at each border of record batches, the start included.
        rows: All rows that came.
        order_key: What positions are ordered by.
    """
    told = [(count, at) for (before, _), (count, at) in pairwise(marks) if count > before and at is not None]
    if len(told) < _LEAST or len({_shape(at) for _, at in told}) > 1:
        return Between()
    parts = [
        _forms([(n, rows[n - 1], part) for (n, _), part in zip(told, column, strict=True)]) for column in _columns(told)
    ]
    whole = isinstance(told[0][1], tuple)
    after = {count: _position(parts, count, rows[count - 1], whole=whole) for count in range(1, told[-1][0] + 1)}
    known = {count: at for count, at in after.items() if at is not None}
    if len(known) < len(after) or not _in_order(list(known.values()), order_key):
        return Between()
    borders = {count for count, _ in marks}
    inside = [(n, at) for n, at in known.items() if n not in borders and at != known.get(n + 1)]
    gaps = [(n, at) for n in range(1, told[-1][0]) if (at := _before(parts, known[n + 1])) is not None]
    gaps = [(n, at) for n, at in gaps if order_key(known[n]) < order_key(at) < order_key(known[n + 1])]
    return Between(tuple(inside), tuple(gaps))


def _in_order(positions: Sequence[Position], order_key: Callable[[Position], Any]) -> bool:
    try:
        return all(order_key(one) <= order_key(two) for one, two in pairwise(positions))
    except Exception:  # noqa: BLE001 - the source orders the positions that it gave, and need not order others
        return False


def _shape(position: Position) -> int:
    return len(position) if isinstance(position, tuple) else 0


def _columns(told: Sequence[Mark]) -> list[tuple[object, ...]]:
    """Return each part of the positions, at all marks."""
    return list(zip(*(at if isinstance(at, tuple) else (at,) for _, at in told), strict=True))


def _forms(samples: Sequence[tuple[int, Row, object]]) -> list[_Form]:
    """Return every form that gives this part of the position at all marks."""
    count, row, part = samples[0]
    forms = [_Form("constant", constant=part)]
    if isinstance(part, int):
        forms.append(_Form("count", constant=part - count))
    forms += [_Form(kind, name) for name in row for kind in ("same", "next", "text")]
    return [form for form in forms if all(_equal(form.value(n, one), wanted) for n, one, wanted in samples)]


def _equal(value: object, part: object) -> bool:
    return type(value) is type(part) and value == part


def _position(parts: Sequence[Sequence[_Form]], count: int, row: Row, *, whole: bool) -> Position | None:
    """Return the position after a row; None where the forms do not agree on it."""
    made: list[Any] = []
    for forms in parts:
        values = {form.value(count, row) for form in forms}
        if len(values) != 1:
            return None
        made.append(values.pop())
    return tuple(made) if whole else made[0]


def _before(parts: Sequence[Sequence[_Form]], after: Position) -> Position | None:
    """Return the last position before a row, by the one after it; None where it is no number of the row itself."""
    kinds = [{form.kind for form in forms} for forms in parts]
    last: Any = after[-1] if isinstance(after, tuple) else after
    if any("count" in one for one in kinds) or not kinds[-1] & {"same", "next"} or not isinstance(last, int):
        return None
    return (*after[:-1], last - 1) if isinstance(after, tuple) else last - 1
