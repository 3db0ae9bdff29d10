# SPDX-License-Identifier: Apache-2.0
"""Decodes zstd from any frame of a file in the seekable format, whose last frame lists the sizes of all other frames.

The format is that of contrib/seekable_format in the sources of zstd. Decoders that do not know the format skip the
last frame, the seek table.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from forebay.formats.compression.byte_streams import STEP_BYTES, ReadAt

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
