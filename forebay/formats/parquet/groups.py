# SPDX-License-Identifier: Apache-2.0
"""Returns the rows and sizes of the row groups of an open Parquet file, and checks their columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from forebay.errors import ConfigurationError, DataError
from forebay.formats.base import damaged_file

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from forebay.formats.parquet.open import OpenParquet
    from forebay.formats.parquet.schema import Leaf


def row_starts(parquet: OpenParquet) -> list[int]:
    """Return the first row of each row group, followed by the number of rows of the file.

    As in Spark and Arrow, the footer's own total is ignored.

    Raises:
        DataError: A row group has a negative number of rows.
    """
    rows = [parquet.metadata.row_group(group).num_rows for group in range(parquet.metadata.num_row_groups)]
    if min(rows, default=0) < 0:
        raise wrong_footer(parquet, f"row group {rows.index(min(rows))} has {min(rows)} rows")
    return list(accumulate(rows, initial=0))


def group_bytes(parquet: OpenParquet, file_size: int) -> list[int]:
    """Return the approximate size in bytes of each row group, from its share of the file's uncompressed bytes.

    The exact sizes are in the metadata of columns, which may be encrypted.
    """
    groups = range(parquet.metadata.num_row_groups)
    weights = [max(0, parquet.metadata.row_group(group).total_byte_size) for group in groups]
    total = sum(weights)
    if not total:
        return [file_size // len(groups) for _ in groups]
    ends = [file_size * weight // total for weight in accumulate(weights, initial=0)]
    return [end - start for start, end in pairwise(ends)]


def check_groups(parquet: OpenParquet, groups: Iterable[int], leaves: Sequence[Leaf]) -> None:
    """Check that row groups can be read: no column is encrypted, and each has the right number of values.

    Spark and Arrow do not check the number: both drop values beyond the row count of the row group, and Spark fills in
    missing ones.

    Raises:
        ConfigurationError: A column is encrypted.
        DataError: A column has fewer values than its row group has rows or, if it is not repeated, more.
        OSError: The metadata of a column are damaged.
    """
    chosen = list(groups)
    _refuse_encrypted(parquet, leaves, chosen)
    for number in chosen:
        group = parquet.metadata.row_group(number)
        for leaf in leaves:
            values = group.column(leaf.index).num_values
            if values < group.num_rows or (values > group.num_rows and not leaf.repeated):
                what = f"row group {number} has {group.num_rows} rows and {values} values of column {leaf.path!r}"
                raise wrong_footer(parquet, what)


def longest_chunk(parquet: OpenParquet, groups: Iterable[int], leaves: Sequence[Leaf]) -> int:
    """Return the compressed size in bytes of the longest column chunk. Call `check_groups` before."""
    rows = [parquet.metadata.row_group(group) for group in groups]
    return max((group.column(leaf.index).total_compressed_size for group in rows for leaf in leaves), default=0)


def statistics_of(group: pq.RowGroupMetaData, leaf: Leaf) -> pq.Statistics | None:
    """Return the statistics of a column in a row group; None if there are none. Call `check_columns` before.

    Returns None too if the row group gives the column another type, because Arrow would end the process.
    """
    column = group.column(leaf.index)
    return column.statistics if column.physical_type == leaf.physical else None


def _refuse_encrypted(parquet: OpenParquet, leaves: Sequence[Leaf], groups: Sequence[int]) -> None:
    """Raise a ConfigurationError if columns are encrypted, and an OSError if their metadata are damaged."""
    if not parquet.signed:
        parquet.check_columns(groups, [leaf.path for leaf in leaves])
        return
    for leaf in leaves:
        try:
            parquet.check_columns(groups[:1], [leaf.path])
        except OSError as error:
            raise ConfigurationError(
                f"column {leaf.path!r} of {parquet.path} is encrypted or damaged: {error}",
                advice="remove the column from the schema, or read the file with Spark's own Parquet source, which "
                "accepts decryption keys",
            ) from error


def wrong_footer(parquet: OpenParquet, what: str) -> DataError:
    """Return the DataError for a footer that contradicts itself or the data; `what` is the contradiction."""
    return damaged_file(f"the footer of {parquet.path} is wrong: {what}")
