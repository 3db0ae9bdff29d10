# SPDX-License-Identifier: Apache-2.0
"""Change formats whose rows already have columns: change feeds of tables, deletion flags, plain appends (C17).

A `ColumnFormat` only lists words and names, so each host can convert it by expressions of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from forebay.errors import ConfigurationError
from forebay.table.changelog.shape import (
    CHANGE_TYPE,
    CHANGE_TYPES,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    SEQUENCE,
    TRANSACTION,
    TYPES,
)

_INSERT, _BEFORE, _AFTER, _DELETE = CHANGE_TYPES


@dataclass(frozen=True)
class ColumnFormat:
    """How the columns of a change feed become those of a changelog.

    Args:
        name: The name for errors.
        kind: The column with the kind.
        words: The word of the feed → the word of `_change_type`.
        renamed: The column of the changelog → the column of the feed, whose values are cast to the changelog's type.
        dropped: Other columns of the feed that are not payload.
    """

    name: str
    kind: str
    words: Mapping[str, str]
    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()

    def payload(self, names: list[str]) -> list[str]:
        """Return the payload columns among `names`, the columns of the feed.

        Raises:
            ConfigurationError: The feed has no column with the kind.
        """
        if self.kind not in names:
            raise ConfigurationError(
                f"the rows are not a {self.name}: there is no column {self.kind!r}, only {', '.join(names)}",
                advice="read the changes of the table, not its rows",
            )
        own = {self.kind, *self.renamed.values(), *self.dropped}
        return [name for name in names if name not in own]


DELTA_CDF: Final = ColumnFormat(
    "change data feed of Delta",
    CHANGE_TYPE,
    dict(zip(CHANGE_TYPES, CHANGE_TYPES, strict=True)),
    {COMMIT_VERSION: COMMIT_VERSION, COMMIT_TIMESTAMP: COMMIT_TIMESTAMP},
)
"""The format of Delta's change data feed, and of Spark's `changes()`."""

ICEBERG_CHANGES: Final = ColumnFormat(
    "changelog view of Iceberg",
    CHANGE_TYPE,
    {"INSERT": _INSERT, "UPDATE_BEFORE": _BEFORE, "UPDATE_AFTER": _AFTER, "DELETE": _DELETE},
    {SEQUENCE: "_change_ordinal", TRANSACTION: "_commit_snapshot_id"},
)
"""The format of Iceberg's changelog view. `_change_ordinal` counts its snapshots, so it orders the changes."""

HUDI: Final = ColumnFormat(
    "change stream of Hudi",
    "_hoodie_operation",
    {"I": _INSERT, "-U": _BEFORE, "U": _AFTER, "D": _DELETE},
    {SEQUENCE: "_hoodie_commit_time"},
    frozenset({"_hoodie_commit_seqno", "_hoodie_record_key", "_hoodie_partition_path", "_hoodie_file_name"}),
)
"""The format of Hudi's change stream. `_hoodie_commit_time` is a text that sorts in the order of commits."""


def check_flag(flag: str, booleans: Mapping[str, bool]) -> None:
    """Check that a deletion flag exists and is boolean. `booleans` says for each column whether it is boolean.

    Raises:
        ConfigurationError: The column does not exist, or is not boolean.
    """
    if not booleans.get(flag):
        problem = "is not boolean" if flag in booleans else "does not exist"
        raise ConfigurationError(
            f"the deletion flag {flag!r} {problem}",
            option="deleted",
            advice=f"give a boolean column; the columns are {', '.join(booleans)}",
        )


def delta_cdf_names(names: list[str]) -> list[str]:
    """Return the columns among `names`, those of a changelog, that Delta's change data feed has."""
    own = {CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP}
    return [name for name in names if name in own or name not in {*TYPES, SEQUENCE}]
