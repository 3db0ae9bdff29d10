# SPDX-License-Identifier: Apache-2.0
"""Makes the columns `_sequence` and `_commit_timestamp` from the log positions and times that databases give."""

from __future__ import annotations

import re
from typing import Final, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc

from forebay.table.changelog.shape import COMMIT_TIMESTAMP, TYPES

Sequence = Literal["lsn", "binlog"]
"""The log position to use: PostgreSQL's log sequence number, or MySQL's binlog file, offset and row."""

SEQUENCE_TYPES: Final[dict[str | None, pa.DataType | None]] = {None: None, "lsn": pa.int64(), "binlog": pa.string()}

_FILE: Final = re.compile(r"(.*?)\.?([0-9]*)")
_FILE_DIGITS: Final = 10
_DIGITS: Final = 20
_MAX_MICROS: Final = (1 << 63) - 1


def binlog_sequence(file: pa.Array, offset: pa.Array, row: pa.Array) -> pa.Array:
    """Return binlog positions as texts that sort in the order of the log; NULL without file or offset.

    Args:
        file: Names such as `mysql-bin.000003`. The number may grow beyond its digits, so it is padded.
        offset: Offsets in the file.
        row: The numbers of the rows of one event; NULL counts as 0.
    """
    names = file.dictionary_encode()
    padded = pa.array([_padded_file(name) for name in names.dictionary.to_pylist()], pa.string())
    parts = [padded.take(names.indices), _padded(offset, _DIGITS), _padded(row.fill_null(0), _FILE_DIGITS)]
    return cast("pa.Array", pc.call_function("binary_join_element_wise", [*parts, pa.scalar(":", pa.string())]))


def binlog_texts(positions: pa.Array, row: pa.Array) -> pa.Array:
    """Return `binlog_sequence` of Maxwell's positions, such as `master.000006:800911`."""
    texts = [(text or "").rpartition(":") for text in positions.to_pylist()]
    offsets = [int(offset) if name and offset.isdecimal() else None for name, _, offset in texts]
    files = pa.array([name or None for name, _, _ in texts], pa.string())
    return binlog_sequence(files, pa.array(offsets, pa.int64()), row)


def log_names(*parts: pa.Array) -> pa.Array:
    """Return the column `_log`: the parts as texts, joined by a slash. A part that is NULL counts as empty."""
    texts = [part.cast(pa.string()).fill_null("") for part in parts]
    return cast("pa.Array", pc.call_function("binary_join_element_wise", [*texts, pa.scalar("/", pa.string())]))


def timestamps(numbers: pa.Array, micros_each: int) -> pa.Array:
    """Return numbers since 1970 as the column `_commit_timestamp`; NULL for a time that no timestamp can hold.

    Args:
        numbers: The times since 1970, in some unit.
        micros_each: The unit, in microseconds.
    """
    most = _MAX_MICROS // micros_each
    fits = pc.and_(pc.less_equal(numbers, most), pc.greater_equal(numbers, -most))
    return pc.multiply(pc.if_else(fits, numbers, None), micros_each).cast(TYPES[COMMIT_TIMESTAMP])


def _padded_file(name: str) -> str:
    base, number = cast("re.Match[str]", _FILE.fullmatch(name)).groups() if "\n" not in name else (name, "")
    return f"{base}.{number.zfill(_FILE_DIGITS)}"


def _padded(numbers: pa.Array, digits: int) -> pa.Array:
    return pc.utf8_lpad(numbers.cast(pa.string()), digits, "0")
