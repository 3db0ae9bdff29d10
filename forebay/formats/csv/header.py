# SPDX-License-Identifier: Apache-2.0
"""The header line of a CSV file: where it is, and whether its names are those of the schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from forebay.errors import ConfigurationError
from forebay.formats.csv.options import CsvOptions
from forebay.formats.csv.split import BLANKS
from forebay.formats.csv.tokenizer import CsvTokenizer
from forebay.formats.encodings import decoded
from forebay.formats.record_blocks import Block, RecordBlocks
from forebay.storage.input_file import InputFile

_LOOKED_BEFORE = 1 << 20
_SMALL_BLOCK = 64 << 10


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
        data, at = block.data, 0
        while at < len(data):
            after = self._blocks.next_start(data, at)
            line = self._without_end(bytes(data[at:after]))
            if line.strip(BLANKS) and not (comment and line.startswith(comment)):
                return decoded(line), after
            at = after
        return None

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

    def check(self, text: str, names: Sequence[str], path: str) -> None:
        """Compare a header with the names of the schema, as `enforceSchema=false` asks for.

        Raises:
            ConfigurationError: They differ in number, or in more than upper and lower case.
        """
        check_names(self.tokens(text), names, path)


def check_names(tokens: Sequence[str | None], names: Sequence[str], path: str) -> None:
    """Compare the tokens of a header with the names of the schema.

    Raises:
        ConfigurationError: They differ in number, or in more than upper and lower case.
    """
    found = [token or "" for token in tokens]
    if len(found) != len(names):
        problem = f"has {len(found)} columns in its header, and the schema {len(names)}"
    else:
        differ = [pair for pair in zip(found, names, strict=True) if pair[0].lower() != pair[1].lower()]
        if not differ:
            return
        problem = f"has the column {differ[0][0]!r} in its header where the schema has {differ[0][1]!r}"
    raise ConfigurationError(
        f"{path} {problem}",
        source=path,
        option="enforceSchema",
        advice="correct the schema, or leave enforceSchema at true to go by position",
    )
