# SPDX-License-Identifier: Apache-2.0
"""Applies `partitionFilter` first to directories during a listing, then to files by their partition values."""

from __future__ import annotations

import decimal
import logging
from typing import Final

import pyarrow as pa

from forebay.formats.filters.binding import bind
from forebay.formats.filters.expressions import (
    ANY,
    Compare,
    Constant,
    DateLiteral,
    Expression,
    IsNull,
    Leaf,
    Outcomes,
    may_be_true,
    range_outcomes,
)
from forebay.formats.filters.parsing import parse_filter
from forebay.formats.filters.rows import mask
from forebay.formats.values.datetimes import parse_date
from forebay.formats.values.zones import session_zone
from forebay.sources.files.listing.partition_values import NULL_NAME, unescape
from forebay.sources.files.listing.partitions import Partitioning

_log = logging.getLogger(__name__)

_OPTION: Final = "partitionFilter"
_NUMERIC_START = frozenset("+-.0123456789")


class PartitionPruning:
    """The partition filter of one listing. Used on one thread.

    Args:
        text: The option `partitionFilter`.

    Attributes:
        skipped: The number of directories that were not listed.
    """

    def __init__(self, text: str) -> None:
        self._expression = parse_filter(text, _OPTION)
        self.skipped = 0

    def keeps(self, root: str, directory: str) -> bool:
        """Return whether a directory below `root` may hold matching rows.

        Only the names of the directories decide, because the types of the partition columns are not known yet.
        """
        values: dict[str, str] = {}
        for name in directory[len(root) :].split("/"):
            column, equals, raw = name.partition("=")
            if equals:
                values[unescape(column).lower()] = raw
        kept = may_be_true(self._expression, lambda leaf: _outcomes(leaf, values.get(leaf.column.lower())))
        self.skipped += not kept
        return kept

    def matching(self, found: Partitioning, zone: str) -> frozenset[str]:
        """Return the partitioned directories whose values match the filter, compared by the types of the columns.

        Raises:
            ConfigurationError: A column of the filter is no partition column, or a literal does not fit its type.
        """
        folders = list(found.values)
        if not folders:
            return frozenset()
        bound: Expression = bind(self._expression, found.schema, session_zone(zone), _OPTION)
        columns = [
            pa.array([found.values[folder][number].as_py() for folder in folders], field.type)
            for number, field in enumerate(found.schema)
        ]
        matches = mask(pa.RecordBatch.from_arrays(columns, schema=found.schema), bound)
        return frozenset(folder for folder, matched in zip(folders, matches.to_pylist(), strict=True) if matched)

    def report(self, files: int) -> None:
        """Log how many files the filter excluded, and how many directories were not listed.

        Args:
            files: The number of listed files that do not match.
        """
        _log.info("%s excluded %d listed files, and %d directories were not listed", _OPTION, files, self.skipped)


def _outcomes(leaf: Leaf, raw: str | None) -> Outcomes:
    """Return the possible outcomes of a comparison for a raw partition value; None = the directory has no value yet.

    The column's type is inferred from all directories later. So a value that could be a number or a time decides only a
    comparison with a literal of the same kind.
    """
    if raw is None:
        return ANY
    null = raw == NULL_NAME
    if isinstance(leaf, IsNull):
        return frozenset({null})
    if null:
        return frozenset({None})
    if isinstance(leaf, Constant):
        return frozenset({leaf.outcome})
    return _compared(leaf, unescape(raw))


def _compared(leaf: Compare, text: str) -> Outcomes:
    literal = leaf.literal
    if isinstance(literal, str):
        return ANY if text[:1] in _NUMERIC_START else range_outcomes(leaf, text, text)
    if isinstance(literal, decimal.Decimal):
        try:
            value = decimal.Decimal(text)
        except decimal.InvalidOperation:
            return ANY
        return range_outcomes(leaf, value, value) if value.is_finite() else ANY
    if isinstance(literal, DateLiteral):
        days, wanted = parse_date(text), parse_date(literal.text)
        if days is None or wanted is None or len(text) != len("yyyy-MM-dd"):
            return ANY
        return range_outcomes(Compare(leaf.column, leaf.operator, wanted), days, days)
    return ANY
