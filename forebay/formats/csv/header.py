# SPDX-License-Identifier: Apache-2.0
"""The header line of a CSV file: where it is, and whether its names are those of the schema."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from forebay.errors import ConfigurationError
from forebay.formats.csv.options import CsvOptions
from forebay.formats.csv.split import BLANKS
from forebay.formats.csv.tokenizer import CsvTokenizer
from forebay.formats.encodings import decoded
from forebay.formats.input_file import InputFile
from forebay.formats.record_blocks import Block, RecordBlocks

_LOOKED_BEFORE = 1 << 20
_SMALL_BLOCK = 64 << 10

_log = logging.getLogger(__name__)


class CsvHeader:
    """Takes the header off the blocks of one read. One object per read."""

    def __init__(self, options: CsvOptions, blocks: RecordBlocks) -> None:
        self._options = options
        self._blocks = blocks

    def is_before(self, file: InputFile, position: int) -> bool:
        """Whether the header starts before a position.

        It does, unless nothing but blank lines and comments stands there, so only a low position is looked at.
        """
        if position > _LOOKED_BEFORE:
            return True
        small = replace(self._blocks, block_bytes=min(self._blocks.block_bytes, _SMALL_BLOCK))
        return any(self.line(block) is not None for block in small.read(file, end=position))

    def line(self, block: Block) -> tuple[str, int] | None:
        """The text of the first line in a block that can be a header and the index behind it, None if there is none."""
        comment = self._options.comment.encode() or None
        data = block.data
        at = self._after_blank_lines(data)
        while at < len(data):
            after = self._blocks.next_start(data, at)
            line = self._without_end(bytes(data[at:after]))
            if line.strip(BLANKS) and not (comment and line.startswith(comment)):
                return decoded(line), after
            at = after
        return None

    def _after_blank_lines(self, data: bytearray) -> int:
        """Where the line begins that has the first character that is no white space, or a line before it."""
        separator = self._blocks.separator
        if separator is not None and len(separator) > 1:
            return 0
        blank = len(data) - len(data.lstrip(BLANKS))
        return max(data.rfind(end, 0, blank) + 1 for end in ([b"\n", b"\r"] if separator is None else [separator]))

    def _without_end(self, line: bytes) -> bytes:
        separator = self._blocks.separator
        return line.rstrip(b"\r\n") if separator is None else line.removesuffix(separator)

    def remove_lines(self, block: Block, text: str) -> None:
        """Take every line with this text out of a block."""
        line = text.encode()
        if line not in block.data:
            return
        kept, at = bytearray(), 0
        while at < len(block.data):
            after = self._blocks.next_start(block.data, at)
            if self._without_end(bytes(block.data[at:after])) != line:
                kept += block.data[at:after]
            at = after
        block.data[:] = kept

    def tokens(self, text: str) -> list[str | None]:
        """The tokens of a header."""
        return CsvTokenizer(self._options.rules()).line(text) or []


def names_of(tokens: Sequence[str | None], null_value: str) -> list[str]:
    """Column names as Spark makes them of a header: numbered where there is none, or where one comes twice in any case.

    Called by inference for the first file, and by `check_header` for every file.
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
    """Compare a header with the names of the schema; called by the read that meets the header, so once for a file.

    With `enforceSchema`, Spark's default, columns go by position whatever the header says, and a misfit is logged.

    Args:
        options: Whose `enforce_schema` and `null_value` count.
        tokens: What the header says.
        names: What the schema says.
        path: Of the file, for the message.

    Raises:
        ConfigurationError: Without `enforceSchema`: they differ in number, or in more than upper and lower case.
    """
    problem = _misfit([token or "" for token in tokens], names)
    if problem is None:
        return
    if not options.enforce_schema:
        raise ConfigurationError(
            f"{path} {problem}",
            option="enforceSchema",
            advice="correct the schema, or leave enforceSchema at true to go by position",
        )
    # Names that inference numbered are not those in the header, but nobody can do anything about that.
    if _misfit(names_of(tokens, options.null_value), names) is not None:
        advice = "correct the schema or the file if that is wrong, or set enforceSchema to false to make this an error"
        _log.warning("%s %s; columns go by position: %s", path, problem, advice)


def _misfit(found: Sequence[str], names: Sequence[str]) -> str | None:
    """Return what a header differs in from the schema, as the rest of a sentence; None if it fits."""
    if len(found) != len(names):
        return f"has {len(found)} columns in its header, and the schema {len(names)}"
    for header, name in zip(found, names, strict=True):
        if header.lower() != name.lower():
            return f"has the column {header!r} in its header where the schema has {name!r}"
    return None
