# SPDX-License-Identifier: Apache-2.0
"""The shape of every changelog: the columns that it has beside the payload (C1, C17).

A changelog has all payload columns and `_change_type`. It has the other columns if the source knows their values.
Changes of one key are ordered by `_sequence` if it exists, otherwise by (`_split`, `_pos`, kind): an update is two rows
with one position, and `update_preimage` comes before `update_postimage`.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

CHANGE_TYPE: Final = "_change_type"
"""Text, never NULL: a word of `CHANGE_TYPES` (Spark 4.2, Delta)."""

SPLIT: Final = "_split"
"""Text: the split that the row was read from (`rowPositions`)."""

POSITION: Final = "_pos"
"""Long: grows strictly within a split (`rowPositions`)."""

SEQUENCE: Final = "_sequence"
"""Comparable over all splits of one log, such as a log sequence number: a long, or a text in the order of the log."""

LOG: Final = "_log"
"""Text, there exactly when a format fills `_sequence`: the log that it counts in. Values of two logs have no order."""

TRANSACTION: Final = "_transaction"
"""Text: the id of the source's transaction."""

COMMIT_VERSION: Final = "_commit_version"
"""Long: the version of a table that made the change (Spark 4.2, Delta)."""

COMMIT_TIMESTAMP: Final = "_commit_timestamp"
"""Timestamp with time zone: when the source committed the change (Spark 4.2, Delta)."""

TYPES: Final = {
    CHANGE_TYPE: pa.string(),
    SPLIT: pa.string(),
    POSITION: pa.int64(),
    LOG: pa.string(),
    TRANSACTION: pa.string(),
    COMMIT_VERSION: pa.int64(),
    COMMIT_TIMESTAMP: pa.timestamp("us", tz="UTC"),
}
"""The Arrow types of these columns, except `_sequence`, whose type depends on the source."""

COLUMNS: Final = (CHANGE_TYPE, SPLIT, POSITION, SEQUENCE, LOG, TRANSACTION, COMMIT_VERSION, COMMIT_TIMESTAMP)
"""All columns of a changelog that are not payload."""
