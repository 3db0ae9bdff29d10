# SPDX-License-Identifier: Apache-2.0
"""Reads the statistics of the columns in each row group of a Parquet file."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from forebay.formats.filters import Statistics, Value

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from forebay.formats.parquet.schema import Leaf

MICROS_PER_UNIT: Final = {"ms": 1_000, "us": 1}
"""Microseconds per unit, for each unit in which timestamps can be read."""


def column_statistics(group: pq.RowGroupMetaData, leaf: Leaf, target: pa.DataType, *, rebased: bool) -> Statistics:
    """Return what the footer says of the values of a primitive column in a row group.

    Args:
        group: The row group.
        leaf: The column, which is not repeated.
        target: The type of the column in the schema.
        rebased: Whether reading changes the file's old dates, so that statistics of dates and times do not apply.
    """
    statistics = statistics_of(group, leaf)
    nulls = statistics.null_count if statistics is not None and statistics.has_null_count else None
    value_of = _reader(leaf, target, rebased=rebased)
    least = greatest = None
    if value_of is not None and statistics is not None and statistics.has_min_max:
        try:
            least, greatest = value_of(statistics.min_raw), value_of(statistics.max_raw)
        except (UnicodeDecodeError, OverflowError):
            least = greatest = None
    return Statistics(group.num_rows, nulls, least, greatest, nan=pa.types.is_floating(target))


def statistics_of(group: pq.RowGroupMetaData, leaf: Leaf) -> pq.Statistics | None:
    """Return the statistics of a column in a row group; None if there are none.

    Returns None too if the row group gives the column another type, because Arrow would end the process.
    """
    column = group.column(leaf.index)
    return column.statistics if column.physical_type == leaf.physical else None


def _reader(leaf: Leaf, target: pa.DataType, *, rebased: bool) -> Callable[[Any], Value | None] | None:
    """Return the function that converts a minimum or maximum to a `Value`; None if it cannot be compared."""
    if pa.types.is_signed_integer(target) and leaf.signed_bits:
        return int
    if pa.types.is_floating(target) and leaf.physical in ("FLOAT", "DOUBLE"):
        return lambda raw: None if math.isnan(raw) else float(raw)
    if pa.types.is_boolean(target) and leaf.physical == "BOOLEAN":
        return bool
    if pa.types.is_string(target) and leaf.kind == "STRING":
        return lambda raw: raw if isinstance(raw, str) else raw.decode("utf-8")
    if pa.types.is_decimal(target) and leaf.kind == "DECIMAL" and leaf.physical in ("INT32", "INT64"):
        scale = int(leaf.details["scale"])
        return lambda raw: decimal.Decimal(int(raw)).scaleb(-scale)
    if rebased:
        return None
    if pa.types.is_date32(target) and leaf.kind == "DATE":
        return int
    if isinstance(target, pa.TimestampType) and leaf.physical == "INT64" and leaf.kind == "TIMESTAMP":
        factor = MICROS_PER_UNIT.get(leaf.unit)
        if factor is None or leaf.details["isAdjustedToUTC"] != (target.tz is not None):
            return None
        return lambda raw: int(raw) * factor
    return None
