# SPDX-License-Identifier: Apache-2.0
"""Finds the header line of a CSV file, and compares its names with the schema."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from forebay.errors import ConfigurationError
from forebay.formats.base import InputFile
from forebay.formats.csv.options import CsvOptions
from forebay.formats.csv.univocity.cursor import WHITESPACE
from forebay.formats.csv.univocity.tokenizer import CsvTokenizer
from forebay.formats.records.encodings import decoded
from forebay.formats.records.record_blocks import Block, RecordBlocks

_CHECKED_BYTES = 1 << 20
_SMALL_BLOCK = 64 << 10
_BLANKS = WHITESPACE.encode()

_log = logging.getLogger(__name__)


class CsvHeader:
    """Finds and removes the header line while one file or slice is read. Create one for each read."""

    def __init__(self, options: CsvOptions, blocks: RecordBlocks) -> None:
        self._options = options
        self._blocks = blocks

    def is_before(self, file: InputFile, position: int) -> bool:
        """Return whether the header line of a file starts before `position`.

        Only blank lines and comments can precede the header. So if `position` is beyond the first 1 MiB, the answer is
        True, and nothing is read.
        """
        if position > _CHECKED_BYTES:
            return True
        small = replace(self._blocks, block_bytes=min(self._blocks.block_bytes, _SMALL_BLOCK))
        return any(self.line(block) is not None for block in small.read(file, end=position))

    def line(self, block: Block) -> tuple[str, int, int] | None:
        """Return the first line of a block that is neither blank nor a comment, its index, and the index after it.

        Returns None if the block has no such line.
        """
        comment = self._options.comment.encode() or None
        for line, start, after in self._lines(block.data, self._after_blank_lines(block.data)):
            if line.strip(_BLANKS) and not (comment and line.startswith(comment)):
                return decoded(line), start, after
        return None

    def remove_lines(self, block: Block, text: str) -> None:
        """Remove every line that equals `text` from the data of a block."""
        unwanted = text.encode()
        if unwanted in block.data:
            lines = self._lines(block.data, 0)
            block.data[:] = b"".join([block.data[at:after] for line, at, after in lines if line != unwanted])

    def tokens(self, text: str) -> list[str | None]:
        """Split the text of a header line into column names. Spark's parser drops a byte order mark before them."""
        return CsvTokenizer(self._options.rules()).line(text.removeprefix("\ufeff")) or []

    def _lines(self, data: bytearray, at: int) -> Iterator[tuple[bytes, int, int]]:
        """Yield each line of `data` from index `at` on: its bytes without line end, its start, and the next start."""
        separator = self._blocks.separator
        while at < len(data):
            after = self._blocks.next_start(data, at)
            line = bytes(data[at:after])
            yield line.rstrip(b"\r\n") if separator is None else line.removesuffix(separator), at, after
            at = after

    def _after_blank_lines(self, data: bytearray) -> int:
        """Return where a line starts, at or before the first character that is not white space."""
        separator = self._blocks.separator
        if separator is not None and len(separator) > 1:
            return 0
        blank = len(data) - len(data.lstrip(_BLANKS))
        return max(data.rfind(end, 0, blank) + 1 for end in ([b"\n", b"\r"] if separator is None else [separator]))


def names_of(tokens: Sequence[str | None], null_value: str) -> list[str]:
    """Return the column names that Spark makes from a header.

    A missing name becomes `_c` and its index. Names that are equal apart from case get their index as a suffix.
    """
    times = Counter(token.lower() for token in tokens if token is not None)
    names = []
    for index, token in enumerate(tokens):
        if not token or token == null_value:
            names.append(f"_c{index}")
        elif times[token.lower()] > 1:
            names.append(f"{token}{index}")
        else:
            names.append(token)
    return names


def check_header(options: CsvOptions, tokens: Sequence[str | None], names: Sequence[str], path: str) -> None:
    """Compare a header with the names of the schema. The read that finds the header calls this once per file.

    With `enforceSchema`, Spark's default, columns match by position, and a difference is logged as a warning.

    Raises:
        ConfigurationError: `enforceSchema` is false, and the names differ in number or in more than case.
    """
    problem = _difference([token or "" for token in tokens], names)
    if problem is None:
        return
    if not options.enforce_schema:
        raise ConfigurationError(
            f"{path} {problem}",
            option="enforceSchema",
            advice="correct the schema, or set enforceSchema to true to match columns by position",
        )
    # Compare with the names as inference makes them, because names with an index differ from the header anyway.
    if _difference(names_of(tokens, options.null_value), names) is not None:
        advice = "if that is wrong, correct the schema or the file; enforceSchema=false makes this an error"
        _log.warning("%s %s; columns match by position: %s", path, problem, advice)


def _difference(found: Sequence[str], names: Sequence[str]) -> str | None:
    """Return how the names of a header (`found`) differ from those of the schema (`names`); None if they do not.

    The text completes a sentence that begins with the path.
    """
    if len(found) != len(names):
        return f"has {len(found)} columns in its header, but the schema has {len(names)}"
    for header, name in zip(found, names, strict=True):
        if header.lower() != name.lower():
            return f"has the column {header!r} in its header where the schema has {name!r}"
    return None
