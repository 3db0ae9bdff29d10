# SPDX-License-Identifier: Apache-2.0
"""Finds the first event time of a Parquet file, from the statistics in its footer."""

from __future__ import annotations

from typing import Final, NamedTuple

from forebay.formats.base import InputFile
from forebay.formats.parquet.footer import Leaf, columns_of
from forebay.formats.parquet.open import OpenParquet, opened, statistics_of
from forebay.formats.values.columns import folded

_MICROS_PER_UNIT: Final = {"ms": 1_000, "us": 1}
"""Microseconds per unit, for each unit in which timestamps can be read."""


class FirstTime(NamedTuple):
    """The first event time of a file, as far as its footer tells it.

    Attributes:
        known: Whether the footer tells it. Spark's INT96 timestamps have no statistics.
        micros: Microseconds since 1970; None if no row of the file has an event time.
    """

    known: bool
    micros: int | None = None


def first_time(file: InputFile, column: str, *, case_sensitive: bool) -> FirstTime:
    """Read the footer of a file, and return the least value of a timestamp or int64 column. Thread-safe.

    Args:
        file: The file.
        column: The name of a column, or the dotted path of a field inside structs.
        case_sensitive: Whether names that differ only in case are different names.

    Raises:
        DataError: The file no longer exists, has changed since it was listed, or is damaged.
        RetriableError: The store did not answer.
    """
    with opened(file) as parquet:
        key = folded(column, case_sensitive)
        leaves = (leaf for node in columns_of(parquet.file()) for leaf in node.leaves())
        matching = [leaf for leaf in leaves if folded(leaf.path, case_sensitive) == key]
        if not matching:
            return FirstTime(known=True)
        unit = _unit(matching[0])
        if unit is None or len(matching) > 1 or parquet.signed:  # Arrow ends the process for an encrypted column
            return FirstTime(known=False)
        return _least(parquet, matching[0], unit)


def _unit(leaf: Leaf) -> str | None:
    """Return the unit of a timestamp or int64 column: `ms` or `us`; None for other columns, and for nanoseconds."""
    if leaf.physical != "INT64" or leaf.repeated:
        return None
    if leaf.kind == "TIMESTAMP":
        return leaf.unit if leaf.unit in _MICROS_PER_UNIT else None
    return "us" if leaf.signed_bits == 64 else None


def _least(parquet: OpenParquet, leaf: Leaf, unit: str) -> FirstTime:
    """Return the least value of the column in all row groups; unknown if a row group with values has no statistics."""
    parquet.check_columns(range(parquet.metadata.num_row_groups), [leaf.path])
    least: int | None = None
    for number in range(parquet.metadata.num_row_groups):
        group = parquet.metadata.row_group(number)
        if not group.num_rows:
            continue
        statistics = statistics_of(group, leaf)
        if statistics is None or not statistics.has_min_max:
            if statistics is not None and statistics.has_null_count and statistics.null_count == group.num_rows:
                continue
            return FirstTime(known=False)
        value = statistics.min_raw * _MICROS_PER_UNIT[unit]
        least = value if least is None else min(least, value)
    return FirstTime(known=True, micros=least)
