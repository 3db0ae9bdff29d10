# SPDX-License-Identifier: Apache-2.0
"""References of the operators over current rows: newest rows (K7, F5), normalize (C16), and changelog join (C18)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Literal

from forebay.table.changelog.reference.changes import Change, Row, Select, View, fold, transition
from forebay.table.changelog.reference.materializers import SignedMaterializer

Flag = Callable[[Row], object]
"""The deletion flag of a row; only True deletes, so NULL counts as false."""
How = Literal["inner", "left", "semi", "anti"]


def latest_per_key(rows: Iterable[Row], key: Select) -> View:
    """Return the newest row of each key, also if its deletion flag is true. `rows` come oldest first."""
    return {key(row): row for row in rows}


def current_view(rows: Iterable[Row], key: Select, deleted: Flag) -> View:
    """Return the newest row of each key, without keys whose newest row is deleted. `rows` come oldest first (K7)."""
    return {name: row for name, row in latest_per_key(rows, key).items() if deleted(row) is not True}


class Normalizer:
    """Converts upserts and deletes to a full changelog. A delete needs only its key columns (C16).

    Args:
        key: The key of the rows.
    """

    def __init__(self, key: Select) -> None:
        self._key = key
        self._view: View = {}

    def step(self, changes: Iterable[Change]) -> list[Change]:
        """Take the upserts and deletes of a micro-batch in order; return one transition for each key that changed."""
        before: dict[Hashable, Row | None] = {}
        for change in changes:
            key = self._key(change.row)
            before.setdefault(key, self._view.get(key))
            if change.kind.adds:
                self._view[key] = change.row
            else:
                self._view.pop(key, None)
        return [out for key, row in before.items() for out in transition(row, self._view.get(key), update_before=True)]


def join(
    left: Iterable[Row], right: Iterable[Row], left_on: Select, right_on: Select, how: How, width: int
) -> list[Row]:
    """Join rows by nested loops; a NULL among the compared values matches nothing.

    Args:
        left: The rows of the left side.
        right: The rows of the right side.
        left_on: Takes the compared values from a left row.
        right_on: Takes the compared values from a right row.
        how: `inner`, `left`, `semi` or `anti`.
        width: The number of columns of a right row: as many NULLs stand for a missing one.
    """
    others = list(right)
    out: list[Row] = []
    for row in left:
        value = left_on(row)
        null = value is None or (isinstance(value, tuple) and None in value)
        matches = [] if null else [other for other in others if right_on(other) == value]
        if how == "inner":
            out += [row + other for other in matches]
        elif how == "left":
            out += [row + other for other in matches or [(None,) * width]]
        elif bool(matches) == (how == "semi"):
            out.append(row)
    return out


class JoinReference:
    """The join of two changelogs: after each step, the folded output is the join of the two current views (C18).

    Args:
        left_key: The key of the left view.
        right_key: The key of the right view.
        left_on: Takes the compared values from a left row.
        right_on: Takes the compared values from a right row.
        how: `inner`, `left`, `semi` or `anti`.
        left_width: The number of columns of a left row.
        right_width: The number of columns of a right row.
    """

    def __init__(
        self,
        left_key: Select,
        right_key: Select,
        left_on: Select,
        right_on: Select,
        *,
        how: How = "inner",
        left_width: int,
        right_width: int,
    ) -> None:
        self._sides = (SignedMaterializer(left_key), SignedMaterializer(right_key))
        self._keys = (left_key, right_key)
        self._on = (left_on, right_on)
        self._how: How = how
        self._widths = (left_width, right_width)
        self._views: tuple[View, View] = ({}, {})
        self._joined: View = {}

    def key(self, row: Row) -> Hashable:
        """Return the key of a joined row: the key of its left row, and that of its right row or None."""
        left, right = row[: self._widths[0]], row[self._widths[0] :]
        return (self._keys[0](left), self._keys[1](right) if right else None)

    def step(self, left: Iterable[Change], right: Iterable[Change]) -> list[Change]:
        """Take the changes of both sides of a micro-batch; return the changes of the joined view."""
        emitted = [side.step(changes) for side, changes in zip(self._sides, (left, right), strict=True)]
        some = [fold(out, key, view) for out, key, view in zip(emitted, self._keys, self._views, strict=True)]
        self._views = (some[0], some[1])
        rows = join(some[0].values(), some[1].values(), *self._on, self._how, self._widths[1])
        before, self._joined = self._joined, {self.key(row): row for row in rows}
        touched = dict.fromkeys([*before, *self._joined])
        return [
            out for key in touched for out in transition(before.get(key), self._joined.get(key), update_before=True)
        ]
