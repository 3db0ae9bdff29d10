# SPDX-License-Identifier: Apache-2.0
"""Defines changes of rows, how to fold them into a view, and which view is correct."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import NamedTuple

from forebay.table.changelog.row_kind import RowKind

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
