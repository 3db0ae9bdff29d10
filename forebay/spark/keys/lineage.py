# SPDX-License-Identifier: Apache-2.0
"""Lineage: which order, unique keys and traits of changes the rows of a plan node still have (C1, C5, C6, K27)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from forebay.spark.keys.plan import Column, Origins
from forebay.table.changelog.shape import Images

GONE: Final = -1
"""Stands for the origin of a key column that the plan does not have."""


@dataclass(frozen=True)
class UniqueKey:
    """Columns that identify a row of the result, and what is known of the order of its changes.

    Args:
        columns: The columns, each by its origin (see `Origins`).
        spread: The origins of the columns by which shuffles have spread the rows; None: one was not by columns.
        ordered: Whether the changes of a key were in order before these shuffles.
        once: Whether a key changes at most once in a micro-batch, so that no shuffle can disorder its changes.
    """

    columns: frozenset[int]
    spread: frozenset[int] | None = frozenset()
    ordered: bool = True
    once: bool = False

    def shuffled(self, by: frozenset[int] | None) -> UniqueKey:
        """Return the key after a shuffle by the columns `by`; None: the shuffle is not by columns."""
        return replace(self, spread=None if by is None or self.spread is None else self.spread | by)

    def joined(self, other: UniqueKey) -> UniqueKey:
        """Return the key of the joined pairs of rows: the columns of both keys."""
        spread = None if self.spread is None or other.spread is None else self.spread | other.spread
        return UniqueKey(self.columns | other.columns, spread, self.ordered and other.ordered, self.once and other.once)

    @property
    def arrives_in_order(self) -> bool:
        """Whether the changes of a key arrive in order, so that a target need not sort them (K25)."""
        return self.ordered and (self.once or self.spread == frozenset())

    def upsert_key(self, *, restored: bool) -> frozenset[int] | None:
        """Return the columns within which changes arrive in order; None if there are none (C6).

        A shuffle by D keeps the order of rows that are equal in the key and in D, because they go to one task. So the
        key and D together are an upsert key. Flink keeps only keys that contain D.

        Args:
            restored: Whether columns of the rows restore their order after a shuffle.
        """
        if not self.ordered:
            return None
        if self.once or restored:
            return self.columns
        return None if self.spread is None else self.columns | self.spread


@dataclass(frozen=True)
class Lanes:
    """The columns within which rows still have the order of the source: rows with equal values are in order (K4).

    Args:
        names: Their names at the source, or at the last `key_by`; empty if no order is left.
        columns: Their origins.
        weakest: The step that weakened the order most.
        shuffle: The first shuffle. After it, only columns such as `_sequence` restore the order (K25).
        once: Whether a key changes at most once in a micro-batch, so that no shuffle can disorder its changes.
        transactional: Whether the source never spreads a transaction over several micro-batches.
    """

    names: tuple[str, ...] = ()
    columns: frozenset[int] = frozenset()
    weakest: str | None = None
    shuffle: str | None = None
    once: bool = False
    transactional: bool = False

    def lost(self, why: str) -> Lanes:
        """Return the lanes after a step that keeps no order. `weakest` names the first such step."""
        weakest = self.weakest if not self.names and self.weakest else why
        return Lanes(weakest=weakest, transactional=self.transactional)

    def shuffled(self, why: str) -> Lanes:
        """Return the lanes after a shuffle."""
        return self if self.shuffle or self.once else replace(self, shuffle=why)


@dataclass(frozen=True)
class RowChanges:
    """What is known of the changes that the rows of a plan node are (C1, C16).

    Args:
        images: Which rows of the table the changes hold; None: nothing is declared.
        identity: The origins of the columns that identify a row of the changelog; None: they are not known.
        complete: Whether each change comes exactly once, from the first one of its row on.
        repeatable: Whether a row has the same values whenever it is computed. False after a stream is joined with a
            table, which may be another one after a restart.
        several: Whether a change may give several rows.
        comparable: Whether `_sequence` is comparable over all rows.
        log: The name of the log; None: only this input has it.
        kind: The ids of the columns that are `_change_type`.
        kinds: The ids of the columns that depend on it.
        places: The ids of the columns that are the changelog's other columns, such as `_pos`, by name.
        placed: The ids of the columns that depend on them.
        looked_up: The ids of the columns that depend on a table which a stream looks up.
        paired: Whether the old and the new row of an update still come together.
        corrupt: The ids of the columns that are the one with malformed events.
        broken: Why rows do not make up the right table any more, and the next step; None if they do.
        doubt: A step after which undeclared changes, or several rows of a key, may lack the newest one.
        lost: Each trait that a step weakened, and the step, as texts.
    """

    images: Images | None = None
    identity: frozenset[int] | None = None
    complete: bool = False
    repeatable: bool = True
    several: bool = False
    comparable: bool = True
    log: str | None = None
    kind: frozenset[int] = frozenset()
    kinds: frozenset[int] = frozenset()
    places: Mapping[str, frozenset[int]] = field(default_factory=dict)
    placed: frozenset[int] = frozenset()
    looked_up: frozenset[int] = frozenset()
    paired: bool = True
    corrupt: frozenset[int] = frozenset()
    broken: tuple[str, str] | None = None
    doubt: str | None = None
    lost: tuple[str, ...] = ()

    @property
    def updates(self) -> bool:
        """Whether rows may be updated or deleted, as far as is known."""
        return self.images is not Images.APPEND

    @property
    def counted(self) -> bool:
        """Whether rows may be counted: each is retracted by an equal one, or none is."""
        return not self.updates or (self.images is Images.FULL and self.repeatable)

    @property
    def assumed(self) -> Images | None:
        """The images to rely on: of undeclared changes of a known key, the least; None without such a key."""
        return self.images if self.images is not None or self.identity is None else Images.UPSERT

    def unsure(self, why: str) -> RowChanges:
        """Return undeclared changes after a step that is right only with whole old rows."""
        return replace(self, identity=None, doubt=self.doubt or why, lost=(*self.lost, f"images: {why}"))

    def broke(self, why: str, advice: str) -> RowChanges:
        """Return the changes after a step that makes a wrong table of them. The first such step is kept."""
        return self if self.broken else replace(self, broken=(why, advice))

    def followed(
        self, exact: Callable[[frozenset[int]], frozenset[int]], depend: Callable[[frozenset[int]], frozenset[int]]
    ) -> RowChanges:
        """Return the changes with the ids of their own columns replaced.

        Args:
            exact: Ids of columns → ids of the columns that now have the same values.
            depend: Ids of columns → ids of the columns that now depend on them.
        """
        places = {name: exact(columns) for name, columns in self.places.items()}
        return replace(
            self,
            kind=exact(self.kind),
            kinds=depend(self.kinds),
            places=places,
            placed=depend(self.placed),
            looked_up=depend(self.looked_up),
            corrupt=exact(self.corrupt),
        )

    def undeclared(self, why: str) -> RowChanges:
        """Return the changes after a step of which nothing is known."""
        reasons = () if self.images is None else (f"images and history: {why}",)
        doubt = self.doubt or why
        return replace(self, images=None, identity=None, complete=False, doubt=doubt, lost=(*self.lost, *reasons))


@dataclass(frozen=True)
class Lineage:
    """The order, the unique keys and the changes of the rows that a plan node puts out."""

    origins: Origins
    lanes: Lanes = field(default_factory=Lanes)
    keys: tuple[UniqueKey, ...] = ()
    changes: RowChanges = field(default_factory=RowChanges)

    def shuffled(self, by: frozenset[int] | None, why: str) -> Lineage:
        """Return the lineage after a shuffle by the columns `by`; None: the shuffle is not by columns."""
        return replace(self, lanes=self.lanes.shuffled(why), keys=tuple(key.shuffled(by) for key in self.keys))

    def renumbered(self, numbers: Mapping[int, int]) -> Lineage:
        """Return the lineage with origins replaced as in `numbers`, for columns that a join found to be equal."""

        def new(columns: frozenset[int]) -> frozenset[int]:
            return frozenset(numbers.get(column, column) for column in columns)

        keys = tuple(
            replace(key, columns=new(key.columns), spread=None if key.spread is None else new(key.spread))
            for key in self.keys
        )
        origins = {column: numbers.get(origin, origin) for column, origin in self.origins.items()}
        lanes = replace(self.lanes, columns=new(self.lanes.columns))
        identity = self.changes.identity
        changes = replace(self.changes, identity=None if identity is None else new(identity))
        return replace(self, origins=origins, lanes=lanes, keys=keys, changes=changes)

    def moved(self, before: Sequence[Column], after: Sequence[Column]) -> Lineage:
        """Return the lineage of the same rows under other column ids: of a union, or where a query is used again.

        Args:
            before: The columns of the rows.
            after: The columns that replace them, in the same order.
        """
        ids = {earlier.id: later.id for earlier, later in zip(before, after, strict=True)}
        origins: dict[int, int] = {}
        for earlier, later in zip(before, after, strict=True):
            origins.setdefault(self.origins.get(earlier.id, earlier.id), later.id)

        def new(columns: frozenset[int]) -> frozenset[int]:
            return frozenset(origins.get(column, GONE) for column in columns)

        def spread(columns: frozenset[int] | None) -> frozenset[int] | None:
            return new(columns) if columns is not None and columns <= origins.keys() else None

        keys = tuple(replace(key, columns=new(key.columns), spread=spread(key.spread)) for key in self.keys)

        def same(columns: frozenset[int]) -> frozenset[int]:
            return frozenset(ids[column] for column in columns if column in ids)

        changes = self.changes.followed(same, same)
        identity = None if changes.identity is None else new(changes.identity)
        own = {
            later.id: origins[self.origins.get(earlier.id, earlier.id)]
            for earlier, later in zip(before, after, strict=True)
        }
        lanes = replace(self.lanes, columns=new(self.lanes.columns))
        return Lineage(own, lanes, keys, replace(changes, identity=identity))
