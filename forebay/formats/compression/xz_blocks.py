# SPDX-License-Identifier: Apache-2.0
"""Decodes xz from any block of a file, found in the indexes at the ends of its streams.

The format is that of https://tukaani.org/xz/xz-file-format.txt. A stream is a header, blocks, an index and a footer. A
file has one stream or several, and zero padding after each. `xz -T0` writes blocks of some MB.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from typing import Final, NamedTuple
from zlib import crc32

from forebay.formats.compression.byte_streams import STEP_BYTES, ReadAt, encoded_varint

_HEADER_BYTES: Final = 12
_HEADER_MAGIC: Final = b"\xfd7zXZ\0"
_FOOTER_MAGIC: Final = b"YZ"
_MOST_INDEX_BYTES: Final = 64 << 20
_MOST_NUMBER_BYTES: Final = 9
_WINDOW_BYTES: Final = 64 << 10


class _Block(NamedTuple):
    """A block, as its stream's index describes it: offset, compressed and decoded size, and the stream's flags."""

    start: int
    size: int
    plain: int
    flags: bytes


def has_several_blocks(read_at: ReadAt, size: int) -> bool:
    """Return whether a file of `size` bytes has more than one block or stream. Reads the end of the file only.

    Raises:
        EOFError: The file ends inside a stream.
        ValueError: The index is damaged.
    """
    start, blocks = XzBlocks(read_at, size, 0, None).last_stream()
    return start > 0 or blocks > 1


class XzBlocks:
    """Decodes the blocks of a file, from the first block that begins at or after byte `start`. Not thread-safe.

    Args:
        read_at: Reads bytes of the file at an offset.
        size: The size of the file in bytes.
        start: The byte at which the slice starts.
        end: The byte at which the slice ends; None for the end of the file.
    """

    def __init__(self, read_at: ReadAt, size: int, start: int, end: int | None) -> None:
        self._read_at = read_at
        self._size = size
        self._start = start
        self._end = end
        self._plain = 0
        self._window = (0, b"")
        self.border: int | None = None
        """Decoded bytes before the first block that begins at or after `end`; None before such a block is decoded."""

    def decode(self) -> Iterator[bytes]:
        """Yield the decoded bytes of each block up to the end of the file, also beyond `end`.

        Raises:
            EOFError: The file ends inside a stream.
            ValueError: An index is damaged.
            lzma.LZMAError: A block is damaged, or has other sizes than the index states.
        """
        for block in self._blocks():
            if self.border is None and self._end is not None and block.start >= self._end:
                self.border = self._plain
            for chunk in self._decoded(block):
                self._plain += len(chunk)
                yield chunk

    def last_stream(self) -> tuple[int, int]:
        """Return the byte at which the last stream begins, and the number of its blocks."""
        start, blocks = self._stream(self._before_padding(self._size))
        return start, len(blocks)

    def _blocks(self) -> list[_Block]:
        """Return the blocks that begin at or after `start`. Reads the indexes backwards, from the end of the file."""
        streams = []
        end = self._size
        while (end := self._before_padding(end)) > self._start:
            end, blocks = self._stream(end)
            streams.append(blocks)
        return [block for blocks in reversed(streams) for block in blocks if block.start >= self._start]

    def _before_padding(self, end: int) -> int:
        while end > self._start and self._bytes(end - 4, 4) == b"\0" * 4:
            end -= 4
        return end

    def _stream(self, end: int) -> tuple[int, list[_Block]]:
        """Return the first byte of the stream that ends before byte `end`, and the blocks of that stream."""
        footer = self._bytes(end - _HEADER_BYTES, _HEADER_BYTES)
        size = (int.from_bytes(footer[4:8], "little") + 1) * 4
        flags = footer[8:10]
        if footer[10:] != _FOOTER_MAGIC or not _is_checksum(footer[:4], footer[4:10]):
            raise ValueError("a stream has no footer")
        if size > _MOST_INDEX_BYTES:
            raise ValueError(f"the index of a stream is longer than {_MOST_INDEX_BYTES >> 20} MB")
        sizes = _sizes(self._bytes(end - _HEADER_BYTES - size, size))
        start = end - 2 * _HEADER_BYTES - size - sum(_padded(size) for size, _ in sizes)
        header = self._bytes(start, _HEADER_BYTES)
        if header[:6] != _HEADER_MAGIC or header[6:8] != flags or not _is_checksum(header[8:], flags):
            raise ValueError("the sizes in the index of a stream do not lead back to the header of the stream")
        blocks = []
        at = start + _HEADER_BYTES
        for size, plain in sizes:
            blocks.append(_Block(at, size, plain, flags))
            at += _padded(size)
        return start, blocks

    def _decoded(self, block: _Block) -> Iterator[bytes]:
        """Decode a block as a stream of this block alone, so that the decoder also checks the sizes from the index."""
        decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ)
        for data in self._as_stream(block):
            yield decoder.decompress(data, STEP_BYTES)
            while not decoder.needs_input and not decoder.eof:
                yield decoder.decompress(b"", STEP_BYTES)
        if not decoder.eof:
            raise EOFError("a block is longer than the index states")

    def _as_stream(self, block: _Block) -> Iterator[bytes]:
        yield _HEADER_MAGIC + block.flags + _checksum(block.flags)
        end = block.start + _padded(block.size)
        for at in range(block.start, end, STEP_BYTES):
            yield self._read_at(at, min(STEP_BYTES, end - at))
        index = b"\0\1" + encoded_varint(block.size) + encoded_varint(block.plain)
        index += b"\0" * (-len(index) % 4)
        index += _checksum(index)
        footer = (len(index) // 4 - 1).to_bytes(4, "little") + block.flags
        yield index + _checksum(footer) + footer + _FOOTER_MAGIC

    def _bytes(self, at: int, count: int) -> bytes:
        """Return `count` bytes from `at` on. Calls go backwards, so a window of the bytes before `at` is cached."""
        if at < 0:
            raise EOFError("the file begins inside a stream")
        start, window = self._window
        if not start <= at <= at + count <= start + len(window):
            start = max(0, min(at, at + count - _WINDOW_BYTES))
            window = self._read_at(start, at + count - start)
            self._window = start, window
        return window[at - start : at - start + count]


def _sizes(index: bytes) -> list[tuple[int, int]]:
    """Parse an index: return the compressed size (without padding) and the decoded size of each block."""
    if index[0] or not _is_checksum(index[-4:], index[:-4]):
        raise ValueError("the index of a stream is damaged")
    count, at = _number_at(index, 1)
    sizes = []
    for _ in range(min(count, len(index))):
        size, at = _number_at(index, at)
        plain, at = _number_at(index, at)
        sizes.append((size, plain))
    if len(sizes) != count or any(index[at:-4]) or len(index) - 4 - at > 3 or not all(size for size, _ in sizes):
        raise ValueError("the index of a stream is damaged")
    return sizes


def _padded(size: int) -> int:
    return -(-size // 4) * 4


def _checksum(data: bytes) -> bytes:
    return crc32(data).to_bytes(4, "little")


def _is_checksum(stored: bytes, data: bytes) -> bool:
    return stored == _checksum(data)


def _number_at(data: bytes, at: int) -> tuple[int, int]:
    """Decode the number of variable length at an offset; return it and the offset after it."""
    value = 0
    for shift, byte in enumerate(data[at : at + _MOST_NUMBER_BYTES]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, at + shift + 1
    raise ValueError("the index of a stream is damaged")
