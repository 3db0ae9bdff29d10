# SPDX-License-Identifier: Apache-2.0
"""A streaming key: which columns keep order, and which identify a record (K1, K5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from forebay.errors import ConfigurationError


@dataclass(frozen=True)
class KeySpec:
    """The key of a stream or table.

    Args:
        partition: Rows that are equal in these columns keep their order. They are not deduplicated (K1).
        primary: The latest row for each value of these columns is the current one; None: there is no primary key (K5).
        deleted: A boolean column: true if the record is deleted (K7).
        ordering: Columns whose largest value marks the latest row of a batch DataFrame; ignored by streams (K20).

    Raises:
        ConfigurationError: A column is named twice, or `deleted` or `ordering` is given without a primary key.
    """

    partition: tuple[str, ...] = ()
    primary: tuple[str, ...] | None = None
    deleted: str | None = None
    ordering: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "partition", tuple(self.partition))
        object.__setattr__(self, "primary", tuple(self.primary) if self.primary else None)
        object.__setattr__(self, "ordering", tuple(self.ordering))
        if self.primary is None and (self.deleted is not None or self.ordering):
            raise ConfigurationError(
                "a deletion flag or ordering columns need a primary key",
                option="ordering" if self.deleted is None else "deleted",
                advice="set a primary key with key_by(…, cdc=True), or leave out deleted and ordering",
            )
        flag = () if self.deleted is None else (self.deleted,)
        for names in (self.partition, (*(self.primary or ()), *flag, *self.ordering), (*self.partition, *flag)):
            twice = [name for name, count in Counter(names).items() if count > 1]
            if twice:
                raise ConfigurationError(
                    f"the key names the column {twice[0]!r} twice", option="columns", advice="name each column once"
                )

    @classmethod
    def keyed_by(
        cls, columns: Sequence[str], *, cdc: bool = False, deleted: str | None = None, ordering: Sequence[str] = ()
    ) -> Self:
        """Return the key that `key_by` sets: with `cdc`, partition key and primary key are the same columns (K19).

        Raises:
            ConfigurationError: There is no column, or `deleted` or `ordering` is given without `cdc` (K18).
        """
        if not columns:
            raise ConfigurationError(
                "a key needs a column", option="columns", advice="name the key columns; to remove a key, use strip_keys"
            )
        return cls(tuple(columns), tuple(columns) if cdc else None, deleted, tuple(ordering))

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that the key names, each once: partition, primary, deletion flag and ordering columns."""
        flag = () if self.deleted is None else (self.deleted,)
        return tuple(dict.fromkeys((*self.partition, *(self.primary or ()), *flag, *self.ordering)))

    @property
    def primary_is_partition(self) -> bool:
        """Whether the primary key has the same columns as the partition key; True without a primary key (K9)."""
        return self.primary is None or set(self.primary) == set(self.partition)

    def check(self, columns: Sequence[str]) -> None:
        """Check that each column of the key exists exactly once in `columns`.

        Raises:
            ConfigurationError: A column does not exist, or exists twice.
        """
        for name in self.columns:
            count = columns.count(name)
            if count != 1:
                raise ConfigurationError(
                    f"there is no column {name!r} for the key" if count == 0 else f"the column {name!r} exists twice",
                    option="columns",
                    advice=f"the columns are: {', '.join(columns)}" if count == 0 else "rename one of them",
                )
