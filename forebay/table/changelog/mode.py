# SPDX-License-Identifier: Apache-2.0
"""Which kinds of changes a changelog may hold (C1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from forebay.table.changelog.row_kind import RowKind


@dataclass(frozen=True)
class ChangelogMode:
    """The kinds of changes that a changelog may hold, as in Flink's `ChangelogMode`."""

    kinds: frozenset[RowKind]

    @property
    def append_only(self) -> bool:
        """Whether rows are only inserted, never updated or deleted."""
        return self.kinds == {RowKind.INSERT}

    @property
    def retracts(self) -> bool:
        """Whether an update comes with the old row (`update_preimage`)."""
        return RowKind.UPDATE_BEFORE in self.kinds

    def __str__(self) -> str:
        return "[" + ", ".join(kind.short for kind in sorted(self.kinds)) + "]"


APPEND: Final = ChangelogMode(frozenset({RowKind.INSERT}))
UPDATES: Final = ChangelogMode(frozenset({RowKind.INSERT, RowKind.UPDATE_AFTER}))
UPSERT: Final = ChangelogMode(frozenset({RowKind.INSERT, RowKind.UPDATE_AFTER, RowKind.DELETE}))
ALL: Final = ChangelogMode(frozenset(RowKind))
