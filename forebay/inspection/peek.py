# SPDX-License-Identifier: Apache-2.0
"""`forebay.peek`: the first rows of a source, as a table."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from forebay.framework import inprocess
from forebay.framework.source import Source
from forebay.inspection.tables import html_table, text_table


class Peek:
    """The first rows of a source: text when printed, HTML in a notebook.

    Args:
        table: The rows.
        requested: The requested number of rows.
    """

    def __init__(self, table: pa.Table, requested: int) -> None:
        self.table = table
        """The rows as an Arrow table."""
        self._requested = requested

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __str__(self) -> str:
        return f"{text_table(self.table.schema.names, self._rows())}\n{self._footer()}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook."""
        return html_table(self.table.schema.names, self._rows()) + f"<p>{self._footer()}</p>"

    def _rows(self) -> list[list[str]]:
        return [list(row) for row in zip(*map(_texts, self.table.columns), strict=True)]

    def _footer(self) -> str:
        rows = len(self)
        return f"{rows} row{'' if rows == 1 else 's'}" + ("" if rows < self._requested else ", perhaps more")


def _texts(column: pa.ChunkedArray) -> list[str]:
    if _has_nanoseconds(column):
        return [_text(column.slice(row, 1)) for row in range(len(column))]
    try:
        return ["null" if value is None else str(value) for value in column.to_pylist()]
    except (OverflowError, ValueError):  # Python's times end with the year 9999 and have microseconds
        return [_text(column.slice(row, 1)) for row in range(len(column))]


def _text(column: pa.ChunkedArray) -> str:
    """Return a column of one row as text, even if Python cannot represent its value."""
    if not _has_nanoseconds(column):
        with suppress(OverflowError, ValueError):
            value = column[0].as_py()
            return "null" if value is None else str(value)
    try:
        return str(pc.cast(column, pa.string())[0].as_py())
    except pa.ArrowNotImplementedError:  # a list, a struct, a map
        return " ".join(str(column.combine_chunks()).split()[1:-1])


def _has_nanoseconds(column: pa.ChunkedArray) -> bool:
    """Return whether a value is finer than a microsecond. `to_pylist` silently shortens such a time of day."""
    if not kinds.is_temporal(column.type) or getattr(column.type, "unit", "") != "ns":
        return False
    nanos = pc.cast(column, pa.int64())
    return pc.any(pc.not_equal(pc.multiply(pc.divide(nanos, 1000), 1000), nanos)).as_py() is True


def peek(source: Source, n: int = 20) -> Peek:
    """Return the first rows of a source, read in this process without Spark and Java.

    The function reads as little as possible. It reads an unbounded source no further than its current end.

    Args:
        source: The source.
        n: Maximum number of rows.

    Raises:
        ForebayError: Reading failed.
    """
    return Peek(inprocess.peek(source, n), n)
