# SPDX-License-Identifier: Apache-2.0
"""Changelogs as pure functions of small numbers, which hypothesis shrinks and a seed repeats."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from changelogs.reference import Change, Row, Select, columns
from forebay.table.changelog.shape import RowKind

KEY = columns(0)
"""The key of the sink: the first column."""
PATH = columns(0, 1)
"""The upsert key: changes of one path arrive in order (K ∪ D)."""


class Act(NamedTuple):
    """What happens to a key: its row moves to a path with a value, or, without a path, is deleted."""

    key: int
    path: int | None
    value: int


def strict(acts: Iterable[Act]) -> list[Change]:
    """Return the changelog of the acts: at most one live row a key at any time, and each update as `-U` and `+U`."""
    live: dict[int, Row] = {}
    out: list[Change] = []
    for act in acts:
        before = live.pop(act.key, None)
        if act.path is None:
            if before is not None:
                out.append(Change(RowKind.DELETE, before))
            continue
        row = live[act.key] = (act.key, act.path, f"v{act.value}")
        if before is None:
            out.append(Change(RowKind.INSERT, row))
        else:
            out += [Change(RowKind.UPDATE_BEFORE, before), Change(RowKind.UPDATE_AFTER, row)]
    return numbered(out)


def many_live(acts: Iterable[Act]) -> list[Change]:
    """Return a changelog with several live rows a key: an act adds a new row, or removes one of those that are live."""
    live: dict[int, list[Row]] = {}
    out: list[Change] = []
    for number, act in enumerate(acts):
        rows = live.setdefault(act.key, [])
        if act.path is not None:
            rows.append((act.key, act.path, f"v{number}"))
            out.append(Change(RowKind.INSERT, rows[-1]))
        elif rows:
            out.append(Change(RowKind.DELETE, rows.pop(act.value % len(rows))))
    return numbered(out)


def upserts(acts: Iterable[Act]) -> list[Change]:
    """Return a changelog without `-U`: an act adds or replaces the row of its path, or deletes that of path `value`."""
    live: dict[tuple[int, int], Row] = {}
    out: list[Change] = []
    for number, act in enumerate(acts):
        place = (act.key, act.value % 4 if act.path is None else act.path)
        before = live.pop(place, None)
        if act.path is not None:
            live[place] = (*place, f"v{number}")
            out.append(Change(RowKind.INSERT if before is None else RowKind.UPDATE_AFTER, live[place]))
        elif before is not None:
            out.append(Change(RowKind.DELETE, before))
    return numbered(out)


def numbered(changes: Iterable[Change]) -> list[Change]:
    """Return the changes with their true order in `order`."""
    return [change._replace(order=order) for order, change in enumerate(changes)]


def unnumbered(changes: Iterable[Change]) -> list[Change]:
    """Return the changes without `order`, so that a materializer knows the order of arrival alone."""
    return [change._replace(order=None) for change in changes]


def legal(changes: Sequence[Change], path: Select, picks: Sequence[int]) -> list[Change]:
    """Return the changes in an order that paths over several tasks allow: within a path it stays (C5).

    Args:
        changes: The changes in their true order.
        path: What keeps its order: the upsert key, or the whole row.
        picks: Which of the paths gives the next change.
    """
    queues: dict[Hashable, list[Change]] = {}
    for change in reversed(changes):
        queues.setdefault(path(change.row), []).append(change)
    waiting = list(queues.values())
    out: list[Change] = []
    for at in range(len(changes)):
        queue = waiting[picks[at % len(picks)] % len(waiting)] if picks else waiting[0]
        out.append(queue.pop())
        waiting = [one for one in waiting if one]
    return out


def cut(changes: Sequence[Change], places: Iterable[int]) -> list[list[Change]]:
    """Cut changes into micro-batches at these places."""
    edges = [0, *sorted({place % (len(changes) + 1) for place in places}), len(changes)]
    return [list(changes[start:stop]) for start, stop in pairwise(edges)]
