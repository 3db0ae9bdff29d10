# SPDX-License-Identifier: Apache-2.0
"""The columns of an entry: one row of the state of one key, with its count."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

PREFIX: Final = "__forebay_"
"""The prefix of the state's own columns; no payload column may begin with it."""

KEY_HASH: Final = f"{PREFIX}kh"
"""Long: a 64-bit hash of the key. Segments are sorted by it, and a key is in the shard `key hash mod shards`."""

ROW_HASH: Final = f"{PREFIX}rh"
"""Long: a 64-bit hash of the columns that identify the row within its key."""

ORDINAL: Final = f"{PREFIX}c"
"""Int: tells entries with equal hashes apart: 65,536 * (ordinal of the key) + (ordinal of the row). Nearly always 0."""

COUNT: Final = f"{PREFIX}n"
"""Long: how often the row was added minus how often it was retracted. 0 is a tombstone."""

TOUCHED: Final = f"{PREFIX}t"
"""Long: the time of the row's last event, in microseconds since 1970; only in a state with a time to live."""

ORDER: Final = f"{PREFIX}o"
"""Prefix of the columns that order the rows of a key: `__forebay_o0` …."""

KIND: Final = f"{PREFIX}kind"
"""Byte, only in events: a `RowKind`, or -1 for an unknown word in `_change_type`."""

FIXED: Final = pa.schema(
    [
        pa.field(KEY_HASH, pa.int64(), nullable=False),
        pa.field(ROW_HASH, pa.int64(), nullable=False),
        pa.field(ORDINAL, pa.int32(), nullable=False),
        pa.field(COUNT, pa.int64(), nullable=False),
    ]
)
"""The columns that every entry has."""


def entry_schema(payload: pa.Schema, orders: list[pa.DataType], *, timed: bool) -> pa.Schema:
    """Return the schema of the entries of an operator.

    Args:
        payload: The columns of a row.
        orders: The types of the columns that order the rows of a key.
        timed: Whether entries keep the time of their last event.
    """
    fields = list(FIXED)
    if timed:
        fields.append(pa.field(TOUCHED, pa.int64(), nullable=False))
    fields += [pa.field(f"{ORDER}{place}", kind) for place, kind in enumerate(orders)]
    return pa.schema([*fields, *(pa.field(field.name, field.type) for field in payload)])
