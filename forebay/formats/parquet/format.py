# SPDX-License-Identifier: Apache-2.0
"""Reads Parquet files as Spark's vectorised reader does."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from forebay.formats.parquet.open import OpenParquet, opened
from forebay.formats.parquet.statistics import MICROS_PER_UNIT, statistics_of
from forebay.formats.units import UnitFormat
from forebay.formats.values.columns import folded
from forebay.formats.values.rebase import RebaseMode
from forebay.options import option

if TYPE_CHECKING:
    from forebay.formats.base import InputFile
    from forebay.formats.parquet.schema import Leaf

_WRITING = "it is for writing; each Parquet file names its own codecs"


@dataclass(frozen=True, kw_only=True)
class ParquetOptions:
    """The options for reading Parquet files."""

    merge_schema: bool = option(default=False, doc="infer the schema from all files, not only from the first")
    datetime_rebase_mode: RebaseMode = option(
        default="CORRECTED", doc="the calendar of old dates in files that Spark did not write"
    )
    int96_rebase_mode: RebaseMode = option(
        default="CORRECTED", doc="the calendar of old INT96 timestamps in files that Spark did not write"
    )
    case_sensitive: bool = option(
        default=False, doc="compare names of columns exactly: the session's `spark.sql.caseSensitive`"
    )


@dataclass(frozen=True)
class ParquetFormat(UnitFormat):
    """Reads Parquet files. The units are row groups."""

    name: ClassVar[str] = "parquet"
    units: ClassVar[str] = "row groups"
    options_class: ClassVar[type] = ParquetOptions
    refused: ClassVar[Mapping[str, str]] = {"compression": _WRITING, "parquet.compression": _WRITING}

    options: ParquetOptions = ParquetOptions()

    def opened(self, file: InputFile) -> AbstractContextManager[OpenParquet]:
        """Open a file for a `with` block, and read its footer."""
        options = self.options
        return opened(
            file,
            case_sensitive=options.case_sensitive,
            dates=options.datetime_rebase_mode,
            int96=options.int96_rebase_mode,
        )


class FirstTime(NamedTuple):
    """The first event time of a file, as far as its footer tells it.

    Attributes:
        known: Whether the footer tells it. Spark's INT96 timestamps have no statistics.
        micros: Microseconds since 1970; None if no row of the file has an event time.
    """

    known: bool
    micros: int | None = None


def first_time(parquet: OpenParquet, column: str, *, case_sensitive: bool) -> FirstTime:
    """Return the least value of a timestamp or int64 column of an open file, as its footer tells it. Thread-safe.

    Args:
        parquet: The open file.
        column: The name of a column, or the dotted path of a field inside structs.
        case_sensitive: Whether names that differ only in case are different names.

    Raises:
        DataError: The footer is damaged.
    """
    key = folded(column, case_sensitive)
    leaves = (leaf for node in parquet.columns for leaf in node.leaves())
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
        return leaf.unit if leaf.unit in MICROS_PER_UNIT else None
    return "us" if leaf.signed_bits == 64 else None


def _least(parquet: OpenParquet, leaf: Leaf, unit: str) -> FirstTime:
    """Return the least value of the column in all row groups; unknown if a row group with values has no statistics."""
    least: int | None = None
    for group in parquet.groups(leaf):
        if not group.num_rows:
            continue
        statistics = statistics_of(group, leaf)
        if statistics is None or not statistics.has_min_max:
            if statistics is not None and statistics.has_null_count and statistics.null_count == group.num_rows:
                continue
            return FirstTime(known=False)
        value = statistics.min_raw * MICROS_PER_UNIT[unit]
        least = value if least is None else min(least, value)
    return FirstTime(known=True, micros=least)
