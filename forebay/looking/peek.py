# SPDX-License-Identifier: Apache-2.0
"""`forebay.peek`: the first rows of a source, as a table."""

from __future__ import annotations

import pyarrow as pa

from forebay.framework import local
from forebay.framework.source import Source
from forebay.looking.tables import html_table, text_table


class Peek:
    """Some rows of a source; prints as text, and shows as HTML in a notebook.

    Args:
        table: The rows.
        asked: How many were asked for.
    """

    def __init__(self, table: pa.Table, asked: int) -> None:
        self.table = table
        """The rows as an Arrow table."""
        self._asked = asked

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __str__(self) -> str:
        return f"{text_table(self.table.schema.names, self._rows())}\n{self._footer()}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return html_table(self.table.schema.names, self._rows()) + f"<p>{self._footer()}</p>"

    def _rows(self) -> list[list[str]]:
        columns = [column.to_pylist() for column in self.table.columns]
        return [["null" if value is None else str(value) for value in row] for row in zip(*columns, strict=True)]

    def _footer(self) -> str:
        rows = len(self)
        return f"{rows} row{'' if rows == 1 else 's'}" + ("" if rows < self._asked else ", perhaps more")


def peek(source: Source, n: int = 20) -> Peek:
    """Look at the first rows of a source, in this process: no Spark, no Java.

    Reads no more than it must and stops: also on an unbounded source, at its present end.

    Args:
        source: What to look at.
        n: How many rows at most.

    Raises:
        ForebayError: What reading met.
    """
    return Peek(local.peek(source, n), n)
