# SPDX-License-Identifier: Apache-2.0
"""Joins the contents of small files of lines, so that one read parses them all."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.formats.base import JoinedContents
from forebay.formats.compression.magic_numbers import is_compressed
from forebay.formats.records.record_blocks import BOM


def join_lines(
    contents: Sequence[bytes], *, header: bool = False, not_one_row: Sequence[bytes] = ()
) -> JoinedContents | None:
    """Join the contents of files of UTF-8 lines to the content of one file; return None if this could change a row.

    Args:
        contents: The content of each file.
        header: Whether the first line of a file is a header. All files must have the same header.
        not_one_row: How lines may begin that give no row or several rows.
    """
    if any(is_compressed(content) for content in contents):
        return None  # a read of the file alone refuses it
    contents = [content.replace(b"\r\n", b"\n") for content in contents]
    first = contents[0][: contents[0].find(b"\n") + 1] if header else b""
    if header and not first.strip():
        return None
    bodies = []
    for content in contents:
        if not content.startswith(first):
            return None
        body = content[len(first) :]
        bodies.append(body if not body or body.endswith(b"\n") else body + b"\n")
    joined = first + b"".join(bodies)
    # A lone carriage return ends a line too. Readers skip a byte order mark only at the start of a file.
    if b"\r" in joined or BOM in joined:
        return None
    if any(joined.startswith(start) or b"\n" + start in joined for start in not_one_row):
        return None
    return JoinedContents(joined, [body.count(b"\n") for body in bodies])
