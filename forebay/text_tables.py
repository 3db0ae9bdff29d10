# SPDX-License-Identifier: Apache-2.0
"""Tables as text for a terminal and as HTML for a notebook."""

from __future__ import annotations

import unicodedata
from collections.abc import Container, Sequence
from html import escape

from forebay.errors import printable

_WIDEST = 80


def text_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Container[int] = (), whole: Container[int] = ()
) -> str:
    """Return a table in box characters; long cells are cut, line breaks and control characters escaped.

    The columns in `right` are aligned right. The cells of the columns in `whole` are never cut.
    """
    cells = [
        [printable(cell) if column in whole else _short(cell) for column, cell in enumerate(row)]
        for row in (header, *rows)
    ]
    widths = [max(_width(row[column]) for row in cells) for column in range(len(header))]

    def line(left: str, middle: str, right: str) -> str:
        return left + middle.join("─" * (width + 2) for width in widths) + right

    def text(row: Sequence[str]) -> str:
        padded = []
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - _width(cell))
            padded.append(space + cell if column in right else cell + space)
        return "│ " + " │ ".join(padded) + " │"

    head, *body = cells
    return "\n".join([line("┌", "┬", "┐"), text(head), line("├", "┼", "┤"), *map(text, body), line("└", "┴", "┘")])


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as HTML, with all texts escaped."""
    head = "".join(f"<th>{escape(_short(cell))}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(_short(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _short(cell: str) -> str:
    shown = printable(cell)
    return shown if len(shown) <= _WIDEST else shown[: _WIDEST - 1] + "…"


def _width(text: str) -> int:
    """Return the number of terminal columns that a text takes. East Asian wide characters and emoji take two."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )
