# SPDX-License-Identifier: Apache-2.0
"""Finds the row groups of a Parquet file that may have rows which match a filter, from the statistics of the footer."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from forebay.formats.filters import ANY, Expression, Leaf, Outcomes, Statistics, Value, may_be_true, outcomes
from forebay.formats.parquet.convert import ProjectedColumn
from forebay.formats.parquet.footer import Leaf as Column
from forebay.formats.parquet.open import OpenParquet, statistics_of

_MICROS_PER_UNIT: Final = {"ms": 1_000, "us": 1}


@dataclass(frozen=True, slots=True)
class FilteredColumn:
    """A column of a filter, in one file.

    Args:
        projected: The column in the file.
        type: The type of the column in the schema, to which the filter is bound.
        rebased: Whether reading changes the file's old dates, so that statistics of dates and times do not apply.
    """

    projected: ProjectedColumn
    type: pa.DataType
    rebased: bool


def matching_groups(parquet: OpenParquet, expression: Expression, columns: Mapping[str, FilteredColumn]) -> list[bool]:
    """Return for each row group whether some of its rows may match the filter.

    Args:
        parquet: The open file.
        expression: A bound filter.
        columns: The filter's columns by name. Columns that are not stored in files are missing.
    """
    if parquet.signed:  # Arrow ends the process for the metadata of an encrypted column
        return [True] * parquet.metadata.num_row_groups

    used = [leaf.path for column in columns.values() for leaf in column.projected.leaves]
    parquet.check_columns(range(parquet.metadata.num_row_groups), used)

    def may_match(number: int) -> bool:
        group = parquet.metadata.row_group(number)
        return may_be_true(expression, lambda leaf: _outcomes(leaf, columns.get(leaf.column), group))

    return [may_match(number) for number in range(parquet.metadata.num_row_groups)]


def _outcomes(leaf: Leaf, column: FilteredColumn | None, group: Any) -> Outcomes:  # noqa: ANN401 - pyarrow names no such type
    """Return the possible outcomes of a comparison in a row group."""
    if column is None:
        return ANY
    if column.projected.source is None:
        return outcomes(leaf, Statistics(group.num_rows, group.num_rows))
    only = _only_leaf(column.projected)
    if only is None:
        return ANY
    statistics = statistics_of(group, only)
    nulls = statistics.null_count if statistics is not None and statistics.has_null_count else None
    least, greatest = _range(column, statistics)
    return outcomes(leaf, Statistics(group.num_rows, nulls, least, greatest, nan=pa.types.is_floating(column.type)))


def _only_leaf(projected: ProjectedColumn) -> Column | None:
    """Return the Parquet column of a column that is neither nested nor repeated; None for any other column."""
    if len(projected.leaves) != 1 or projected.leaves[0].repeated or projected.leaves[0].path != projected.source:
        return None
    return projected.leaves[0]


def _range(column: FilteredColumn, statistics: Any) -> tuple[Value | None, Value | None]:  # noqa: ANN401 - as above
    """Return minimum and maximum of the statistics in the form of bound literals (`Value`); None if unknown."""
    value_of = _reader(column)
    if value_of is None or statistics is None or not statistics.has_min_max:
        return None, None
    try:
        return value_of(statistics.min_raw), value_of(statistics.max_raw)
    except (UnicodeDecodeError, OverflowError):
        return None, None


def _reader(column: FilteredColumn) -> Callable[[Any], Value | None] | None:
    """Return the function that converts a minimum or maximum to a `Value`; None if it cannot be compared."""
    leaf, target = column.projected.leaves[0], column.type
    if pa.types.is_signed_integer(target) and leaf.signed_bits:
        return int
    if pa.types.is_floating(target) and leaf.physical in ("FLOAT", "DOUBLE"):
        return _number
    if pa.types.is_boolean(target) and leaf.physical == "BOOLEAN":
        return bool
    if pa.types.is_string(target) and leaf.kind == "STRING":
        return _text
    if pa.types.is_decimal(target) and leaf.kind == "DECIMAL" and leaf.physical in ("INT32", "INT64"):
        scale = int(leaf.details["scale"])
        return lambda raw: decimal.Decimal(int(raw)).scaleb(-scale)
    if column.rebased:
        return None
    if pa.types.is_date32(target) and leaf.kind == "DATE":
        return int
    if isinstance(target, pa.TimestampType) and leaf.physical == "INT64" and leaf.kind == "TIMESTAMP":
        factor = _MICROS_PER_UNIT.get(leaf.unit)
        if factor is None or leaf.details["isAdjustedToUTC"] != (target.tz is not None):
            return None
        return lambda raw: int(raw) * factor
    return None


def _number(raw: float) -> float | None:
    return None if math.isnan(raw) else float(raw)


def _text(raw: str | bytes) -> str:
    return raw if isinstance(raw, str) else raw.decode("utf-8")
