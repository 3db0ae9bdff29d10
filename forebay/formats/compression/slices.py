# SPDX-License-Identifier: Apache-2.0
"""Cuts compressed files into slices, which several tasks read."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

import pyarrow as pa

from forebay.formats.base import even_borders
from forebay.formats.compression.byte_streams import STEP_BYTES, ReadAt, decoded_stream
from forebay.formats.compression.bzip2_blocks import Bzip2Blocks
from forebay.formats.compression.codecs import (
    RawBytes,
    ReadFailed,
    codec_of,
    once_decompressed,
    open_decompressed,
    wrap_damage,
)
from forebay.formats.compression.xz_blocks import XzBlocks, has_several_blocks

if TYPE_CHECKING:
    from forebay.formats.base import InputFile


_SLICE = 10**15
"""A position in a compressed file is this × the byte at which the slice starts + an offset in its decoded bytes."""
_LEAST_SLICE_BYTES = 1 << 20
"""The smallest slice. Each slice also decodes a block (0.2 MB or more) of the next, so smaller slices do not pay."""
_CUT_CODECS = ("bz2", "xz", "zst")


class OpenSlice(NamedTuple):
    """A slice that `open_slice` has opened: a stream of its decompressed bytes and of those after it."""

    stream: BinaryIO
    start: int
    """The position of the first byte of the stream."""
    end: Callable[[], int | None]
    """Returns the position at which the slice ends; None if it ends with the file or beyond what has been read."""


def slice_borders(file: InputFile, target_bytes: int) -> list[int]:
    """Return the inner positions that cut a compressed file into slices of about `target_bytes` compressed bytes.

    Returns [] if the file cannot be cut. Reads only the end of an xz or zstd file, which shows whether the file has
    several blocks; reads nothing of other files. Errors are those of `open_decompressed`.
    """
    codec = codec_of(file.path)
    if codec not in _CUT_CODECS:
        return []
    borders = even_borders(file.size, max(target_bytes, _LEAST_SLICE_BYTES))
    if not borders or not _has_several_blocks(file, codec):
        return []
    return [border * _SLICE for border in borders]


def open_slice(file: InputFile, position: int, end: int | None) -> OpenSlice:
    """Open a file to read `[position, end)` and what follows. The stream may begin before `position`.

    The stream of a bzip2, xz or zstd slice begins with the first block that starts in the slice. Errors are those of
    `open_decompressed`.
    """
    first, last = position // _SLICE, None if end is None else end // _SLICE
    codec = codec_of(file.path)
    if codec not in _CUT_CODECS or not (first or last):
        return OpenSlice(open_decompressed(file), 0, lambda: end)
    raw = file.open()
    compressed = RawBytes(raw)
    blocks: Bzip2Blocks | XzBlocks | ZstdFrames
    if codec == "bz2":
        raw.seek(first)
        blocks = Bzip2Blocks(compressed.read, first, last)
    else:
        blocks = (XzBlocks if codec == "xz" else ZstdFrames)(compressed.at, file.size, first, last)

    def found_end() -> int | None:
        if end is None or last == first:
            return end
        return None if blocks.border is None else first * _SLICE + blocks.border + end % _SLICE

    chunks = wrap_damage(blocks.decode(), file.path, codec)
    if not first:
        chunks = once_decompressed(chunks, file.path)
    return OpenSlice(decoded_stream(raw, chunks), first * _SLICE, found_end)


def _has_several_blocks(file: InputFile, codec: str) -> bool:
    if codec == "bz2":
        return True
    with file.open() as raw:
        try:
            return (has_several_blocks if codec == "xz" else has_seek_table)(RawBytes(raw).at, file.size)
        except ReadFailed as error:
            raise (error.__cause__ or error) from None
        except (EOFError, ValueError):
            return False  # the file is damaged or shorter than listed: the task that reads it reports that


# -- Decodes zstd from any frame of a file in the seekable format, whose last frame lists the sizes of all other frames.
#
# The format is that of contrib/seekable_format in the sources of zstd. Decoders that do not know the format skip the
# last frame, the seek table.


_TABLE_MAGIC: Final = 0x184D2A5E
_FOOTER_MAGIC: Final = b"\xb1\xea\x92\x8f"
_HEADER_BYTES: Final = 8
_FOOTER_BYTES: Final = 9
_HAS_CHECKSUMS: Final = 0x80
_RESERVED_BITS: Final = 0x7C
_MOST_FRAMES: Final = 1 << 22


def has_seek_table(read_at: ReadAt, size: int) -> bool:
    """Return whether a file of `size` bytes ends with the magic number of a seek table. Reads only the last bytes."""
    return size > _FOOTER_BYTES and read_at(size - 4, 4) == _FOOTER_MAGIC


class ZstdFrames:
    """Decodes the frames of a file, from the first frame that begins at or after byte `start`. Not thread-safe.

    A file without a seek table that covers the whole file counts as one frame. For example, if two files were
    concatenated, the table at the end covers only the second.

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
        self.border: int | None = None
        """Decoded bytes before the first frame that begins at or after `end`; None before such a frame is decoded."""

    def decode(self) -> Iterator[bytes]:
        """Yield the decoded bytes of each frame up to the end of the file, also beyond `end`.

        Raises:
            EOFError: The file ends inside a frame.
            OSError: A frame is damaged.
            ValueError: A frame has another decoded size than the seek table states.
        """
        at = 0
        for size, plain in self._frames():
            if at >= self._start:
                if self.border is None and self._end is not None and at >= self._end:
                    self.border = self._plain
                before = self._plain
                for chunk in self._decoded(at, size):
                    self._plain += len(chunk)
                    yield chunk
                if plain is not None and self._plain - before != plain:
                    raise ValueError("a frame has another size than the seek table states")
            at += size

    def _frames(self) -> Iterator[tuple[int, int | None]]:
        """Return the compressed and the decoded size of each frame; None for an unknown decoded size."""
        table = self._table()
        return iter([(self._size, None)]) if table is None else table

    def _table(self) -> Iterator[tuple[int, int]] | None:
        """Return the entries of the seek table; None if the file has no table that covers the whole file."""
        if not has_seek_table(self._read_at, self._size):
            return None
        count, flags = struct.unpack("<IB", self._read_at(self._size - _FOOTER_BYTES, 5))
        entry = "<II4x" if flags & _HAS_CHECKSUMS else "<II"
        size = count * struct.calcsize(entry) + _FOOTER_BYTES
        start = self._size - size - _HEADER_BYTES
        if flags & _RESERVED_BITS or count > _MOST_FRAMES or start < 0:
            return None
        data = self._read_at(start, _HEADER_BYTES + size - _FOOTER_BYTES)
        entries = memoryview(data)[_HEADER_BYTES:]
        if struct.unpack_from("<II", data) != (_TABLE_MAGIC, size):
            return None
        if sum(compressed for compressed, _ in struct.iter_unpack(entry, entries)) != start:
            return None
        return struct.iter_unpack(entry, entries)

    def _decoded(self, at: int, size: int) -> Iterator[bytes]:
        part = _Part(self._read_at, at, at + size)
        with pa.CompressedInputStream(pa.PythonFile(part, mode="r"), "zstd") as stream:
            while chunk := stream.read(STEP_BYTES):
                yield chunk


class _Part(io.RawIOBase):
    """The bytes of a file in `[at, end)`, as Arrow's decoder reads them."""

    def __init__(self, read_at: ReadAt, at: int, end: int) -> None:
        self._read_at = read_at
        self._at = at
        self._end = end

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        missing = self._end - self._at
        count = min(missing, STEP_BYTES if size < 0 else size)
        data = self._read_at(self._at, count) if count else b""
        self._at += count
        return data
