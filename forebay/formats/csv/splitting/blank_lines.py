# SPDX-License-Identifier: Apache-2.0
"""Finds the lines of white space in a block of CSV, before it is split.

Such lines are no records. After the splitting it is too late to tell: they look like a record of one field, or of
several if the separator is white space.
"""

from __future__ import annotations

import re

from forebay.formats.csv.splitting.placeholders import Placeholders
from forebay.formats.csv.splitting.safe_blocks import matches


def has_blank_lines(data: bytes | bytearray, placeholders: Placeholders) -> bool:
    """Return whether a block has a line of white space that is not empty.

    Args:
        data: A block with LF as line end. A line inside of quotes counts too.
        placeholders: What stands for other line ends in the block; they are white space.
    """
    blank = _white_space(placeholders)
    if data[:1] > b" " and not matches(data, rf"\n{blank}"):  # four times as fast as the search below
        return False
    return matches(data, rf"(?:\A|\n){blank}+(?:\n|\z)")


def without_blank_lines(data: bytes | bytearray, placeholders: Placeholders) -> bytes | bytearray:
    """Return a block without its lines of white space. The arguments are those of `has_blank_lines`."""
    if not has_blank_lines(data, placeholders):
        return data
    return re.sub(rf"\n{_white_space(placeholders)}+(?=\n|\Z)".encode(), b"", b"\n" + data)[1:]


def _white_space(placeholders: Placeholders) -> str:
    """Return the regular expression for one character of white space that does not end a line."""
    marks = "".join("|" + mark.decode() for mark in placeholders.marks)
    return rf"(?:[\x00-\x09\x0b-\x20]{marks})"
