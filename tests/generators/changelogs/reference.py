# SPDX-License-Identifier: Apache-2.0
"""Plain-Python references of the changelog operators: slow, and short enough to read as definitions.

Tests compare the vectorised operators with them. One `step` takes one micro-batch. First the operators over current
rows: newest rows (K7, F5), normalize (C16), and changelog join (C18).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from forebay.errors import DataError
from forebay.table.changelog.shape import RowKind

# -- Defines changes of rows, how to fold them into a view, and which view is correct.


Row = tuple[Hashable, ...]
Select = Callable[[Row], Hashable]
"""Takes the values of some columns from a row, such as its key; see `columns`."""
View = dict[Hashable, Row]
"""The current row of each key."""


class Change(NamedTuple):
    """A row and what happened to it.

    Args:
        kind: The kind of the change.
        row: The payload.
        order: The rank of the change in the order of its source; None: changes are in their order of arrival.
    """

    kind: RowKind
    row: Row
    order: int | None = None


def columns(*indexes: int) -> Select:
    """Return a function that takes the values of these columns from a row."""
    return lambda row: tuple(row[index] for index in indexes)


def whole(row: Row) -> Hashable:
    """Return the row itself: without an upsert key, a row is identified by all its values."""
    return row


def fold(changes: Iterable[Change], key: Select, view: View | None = None) -> View:
    """Apply changes as an upsert sink does: an added row replaces that of its key, a delete removes it.

    Args:
        changes: The output of a materializer. A `-U` has no effect, because the `+U` after it replaces the row.
        key: The key of the sink.
        view: The view before the changes; it is not changed.
    """
    folded = dict(view or {})
    for change in changes:
        if change.kind.adds:
            folded[key(change.row)] = change.row
        elif change.kind is RowKind.DELETE:
            folded.pop(key(change.row), None)
    return folded


def apply_sequential(changes: Iterable[Change], key: Select, upsert_key: Select = whole) -> View:
    """Return the correct view: for each key, the last added row that is live after all changes in their true order.

    Args:
        changes: The changes in the order in which they happened.
        key: The key of the view.
        upsert_key: The values by which a retraction finds its row. Rows with equal values replace one another.
    """
    live: dict[Hashable, list[Row]] = {}
    for change in changes:
        rows = live.setdefault(key(change.row), [])
        matches = (at for at, row in enumerate(rows) if upsert_key(row) == upsert_key(change.row))
        if not change.kind.adds or upsert_key is not whole:
            del rows[(at := next(matches, len(rows))) : at + 1]
        if change.kind.adds:
            rows.append(change.row)
    return {name: rows[-1] for name, rows in live.items() if rows}


def transition(before: Row | None, after: Row | None, *, update_before: bool = False) -> Iterator[Change]:
    """Yield the changes that take a key from one row to another; None stands for no row.

    Args:
        before: The row that was emitted last.
        after: The row that is current now.
        update_before: Emit `-U` with the old row before each `+U`.
    """
    if before is None:
        if after is not None:
            yield Change(RowKind.INSERT, after)
    elif after is None:
        yield Change(RowKind.DELETE, before)
    elif before != after:
        if update_before:
            yield Change(RowKind.UPDATE_BEFORE, before)
        yield Change(RowKind.UPDATE_AFTER, after)


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


# -- References of the materializers: Flink's list (C8), the signed multiset, and the barrier with ON CONFLICT (C15).


OnConflict = Literal["error", "nothing", "deduplicate"]


class ListMaterializer:
    """Flink's `SinkUpsertMaterializer` (V1), exactly: a list of rows per key, and at most one output per change.

    It is correct only if each update is a `-U` and a `+U`, and the changes of one upsert key arrive in order. A test of
    arbitrary orders must fail if this class replaces the operator under test.

    Args:
        key: The key of the sink.
        upsert_key: The values by which rows are matched; by default the whole row.
    """

    def __init__(self, key: Select, upsert_key: Select = whole) -> None:
        self.unmatched = 0
        """Retractions that found no row."""
        self._key = key
        self._upsert_key = upsert_key
        self._rows: dict[Hashable, list[Row]] = {}

    def step(self, changes: Iterable[Change]) -> list[Change]:
        """Take changes in their order of arrival, and return the emitted changes."""
        return [out for change in changes if (out := self._add(change) if change.kind.adds else self._retract(change))]

    def forget(self, key: Hashable) -> None:
        """Clear the state of a key, as the time to live of Flink's state does."""
        self._rows.pop(key, None)

    def _add(self, change: Change) -> Change:
        rows = self._rows.setdefault(self._key(change.row), [])
        kind = RowKind.UPDATE_AFTER if rows else RowKind.INSERT
        at = None if self._upsert_key is whole else self._first_match(rows, change.row)
        if at is None:
            rows.append(change.row)
        else:
            rows[at] = change.row
        return Change(kind, change.row)

    def _retract(self, change: Change) -> Change | None:
        rows = self._rows.get(self._key(change.row), [])
        at = self._first_match(rows, change.row)
        if at is None:
            self.unmatched += 1
            return None
        was_last = at == len(rows) - 1
        del rows[at]
        if not rows:
            del self._rows[self._key(change.row)]
            return Change(RowKind.DELETE, change.row)
        return Change(RowKind.UPDATE_AFTER, rows[-1]) if was_last else None

    def _first_match(self, rows: list[Row], row: Row) -> int | None:
        wanted = self._upsert_key(row)
        return next((at for at, one in enumerate(rows) if self._upsert_key(one) == wanted), None)


@dataclass(slots=True)
class _Counted:
    """A row with its number of adds minus retractions. `added` is the rank of its last add; None before the first."""

    row: Row
    count: int = 0
    added: tuple[int, int] | None = None


_Rows = dict[Hashable, _Counted]


def count(rows: _Rows, change: Change, arrived: int, upsert_key: Select) -> int:
    """Add a change to the counts of its key. Return 1 for a retraction that has no row and is not held, else 0."""
    one = rows.setdefault(upsert_key(change.row), _Counted(change.row))
    by_upsert_key = upsert_key is not whole
    if change.kind.adds:
        order = (change.order or 0, arrived)
        one.count = 1 if by_upsert_key else one.count + 1
        one.added = max(one.added or order, order)
        one.row = change.row
    elif by_upsert_key and one.count == 0:
        return 1
    else:
        one.count -= 1
    return 0


def _current(rows: _Rows) -> Row | None:
    live = [(one.added, one.row) for one in rows.values() if one.count > 0 and one.added]
    return max(live, key=lambda entry: entry[0])[1] if live else None


class SignedMaterializer:
    """A signed multiset: correct for any order of arrival, because a retraction may come before its row.

    The current row of a key is the live row (count above 0) whose last add comes last in order. Negative counts are
    held until the add arrives. Each step emits at most one transition per key, and only if its current row changes.

    Args:
        key: The key of the sink.
        upsert_key: By default whole rows are counted. With an upsert key, rows of one upsert key replace one another,
            their changes must arrive in order, and no retraction is held.
        update_before: Emit `-U` with the old row before each `+U`.
    """

    def __init__(self, key: Select, upsert_key: Select = whole, *, update_before: bool = False) -> None:
        self.unmatched = 0
        """Retractions that found no row and are not held, because there is an upsert key."""
        self._key = key
        self._upsert_key = upsert_key
        self._update_before = update_before
        self._rows: dict[Hashable, _Rows] = {}
        self._arrived = 0

    @property
    def held(self) -> int:
        """Retractions that wait for their add."""
        return sum(-one.count for rows in self._rows.values() for one in rows.values() if one.count < 0)

    def step(self, changes: Iterable[Change]) -> list[Change]:
        """Take the changes of a micro-batch, and return the emitted changes, keys in their order of arrival."""
        before: dict[Hashable, Row | None] = {}
        for change in changes:
            key = self._key(change.row)
            if key not in before:
                before[key] = _current(self._rows.get(key, {}))
            self._count(self._rows.setdefault(key, {}), change)
        out: list[Change] = []
        for key, row in before.items():
            kept = {name: one for name, one in self._rows.pop(key).items() if one.count}
            if kept:
                self._rows[key] = kept
            out += transition(row, _current(kept), update_before=self._update_before)
        return out

    def forget(self, key: Hashable) -> None:
        """Clear the state of a key that has expired."""
        self._rows.pop(key, None)

    def _count(self, rows: _Rows, change: Change) -> None:
        self._arrived += 1
        self.unmatched += count(rows, change, self._arrived, self._upsert_key)


class BarrierMaterializer:
    """Compacts each micro-batch and keeps one row per key (C15, FLIP-558); correct if none splits a transaction.

    Adds and retractions of a micro-batch cancel out in any order. A retraction without a row is counted and dropped.

    Args:
        key: The key of the sink.
        upsert_key: See `SignedMaterializer`.
        on_conflict: For a key with two live rows after a micro-batch: `error` fails, `nothing` keeps the first row,
            `deduplicate` takes the last row and keeps all, as a `SignedMaterializer` does.
    """

    def __init__(self, key: Select, upsert_key: Select = whole, *, on_conflict: OnConflict = "error") -> None:
        self.unmatched = 0
        """Retractions without a row."""
        self._key = key
        self._upsert_key = upsert_key
        self._on_conflict = on_conflict
        self._view: View = {}
        self._signed = SignedMaterializer(key, upsert_key)

    @property
    def stored(self) -> int:
        """Rows in the state, at most one per key; 0 with `deduplicate`, whose rows a `SignedMaterializer` keeps."""
        return len(self._view)

    def step(self, changes: Iterable[Change]) -> list[Change]:
        """Take the changes up to a barrier, and return the emitted changes, keys in their order of arrival.

        Raises:
            DataError: A key has several live rows, and `on_conflict` is `error`.
        """
        if self._on_conflict == "deduplicate":
            return self._signed.step(changes)
        touched: dict[Hashable, list[Change]] = {}
        for change in changes:
            touched.setdefault(self._key(change.row), []).append(change)
        return [out for key, some in touched.items() for out in self._compact(key, some)]

    def _compact(self, key: Hashable, changes: list[Change]) -> Iterable[Change]:
        before = self._view.pop(key, None)
        rows: _Rows = {}
        if before is not None:
            rows[self._upsert_key(before)] = _Counted(before, 1)
        self.unmatched += sum(count(rows, change, at, self._upsert_key) for at, change in enumerate(changes))
        self.unmatched += sum(-one.count for one in rows.values() if one.count < 0)
        live = [one for one in rows.values() if one.count > 0]
        if sum(one.count for one in live) > 1 and self._on_conflict == "error":
            raise DataError(
                f"key {key!r} has {sum(one.count for one in live)} live rows at the end of a micro-batch",
                advice="give on_conflict='nothing' to keep the first row, or 'deduplicate' to keep the last row",
            )
        after = min(live, key=lambda one: one.added or (0, -1)).row if live else None
        if after is not None:
            self._view[key] = after
        return transition(before, after)
