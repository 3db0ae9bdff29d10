# SPDX-License-Identifier: Apache-2.0
"""Checks the options `partitionFilter` and `rowFilter` of the file source, and applies the row filter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.bound_filters import matching
from forebay.formats.filters import Expression, parse_filter

PARTITION_FILTER: Final = "partitionFilter"
ROW_FILTER: Final = "rowFilter"


@dataclass(frozen=True, slots=True)
class RowFilter:
    """The parsed `rowFilter` of a read.

    Args:
        expression: The filter, bound to its columns.
        names: The names of the columns to return. Columns that only the filter needs are read but not returned.
    """

    expression: Expression
    names: Sequence[str]

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of `batch` that match the filter, with the columns to return."""
        return matching(batch, self.expression).select(self.names)


def check_filters(partition_filter: str | None, row_filter: str | None, *, recursive: bool) -> None:
    """Refuse filters that cannot be parsed, and a partition filter together with `recursiveFileLookup`.

    Raises:
        ConfigurationError: A filter is invalid. The error names the option.
    """
    if row_filter is not None:
        parse_filter(row_filter, ROW_FILTER)
    if partition_filter is None:
        return
    parse_filter(partition_filter, PARTITION_FILTER)
    if recursive:
        raise ConfigurationError(
            f"{PARTITION_FILTER} needs partition columns, but recursiveFileLookup=true reads files without partition "
            "columns",
            option=PARTITION_FILTER,
            advice=f"remove {PARTITION_FILTER} or recursiveFileLookup",
        )
