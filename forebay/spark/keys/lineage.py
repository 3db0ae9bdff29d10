# SPDX-License-Identifier: Apache-2.0
"""Lineage: which order and which unique keys of the source the rows of a plan node still have (C5, C6, K27)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from forebay.spark.keys.plan.column_origins import Origins

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
        told = self.weakest if not self.names and self.weakest else why
        return Lanes(weakest=told, transactional=self.transactional)

    def shuffled(self, why: str) -> Lanes:
        """Return the lanes after a shuffle."""
        return self if self.shuffle or self.once else replace(self, shuffle=why)


@dataclass(frozen=True)
class Lineage:
    """The order and the unique keys of the rows that a plan node puts out."""

    origins: Origins
    lanes: Lanes = field(default_factory=Lanes)
    keys: tuple[UniqueKey, ...] = ()

    def shuffled(self, by: frozenset[int] | None, why: str) -> Lineage:
        """Return the lineage after a shuffle by the columns `by`; None: the shuffle is not by columns."""
        return replace(self, lanes=self.lanes.shuffled(why), keys=tuple(key.shuffled(by) for key in self.keys))

    def renumbered(self, numbers: Mapping[int, int]) -> Lineage:
        """Return the lineage with origins replaced as in `numbers`, for columns that a join found to be equal."""

        def new(found: frozenset[int]) -> frozenset[int]:
            return frozenset(numbers.get(one, one) for one in found)

        keys = tuple(
            replace(key, columns=new(key.columns), spread=None if key.spread is None else new(key.spread))
            for key in self.keys
        )
        origins = {column: numbers.get(origin, origin) for column, origin in self.origins.items()}
        return replace(self, origins=origins, lanes=replace(self.lanes, columns=new(self.lanes.columns)), keys=keys)
