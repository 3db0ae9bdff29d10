# SPDX-License-Identifier: Apache-2.0
"""Reads a full number of bytes of a stream, wraps decoded chunks as a stream, and encodes numbers as bytes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from typing_extensions import Buffer

STEP_BYTES = 1 << 20
"""How many bytes to read or decode at a time."""

ReadAt = Callable[[int, int], bytes]
"""A function `(offset, count)` that returns `count` bytes of a file from `offset` on; raises EOFError if fewer."""


def read_fully(read: Callable[[int], bytes], size: int) -> bytes:
    """Call `read` until `size` bytes have been read, and return them; fewer only at the end of the stream."""
    part = read(size)
    if len(part) == size or not part:
        return part
    parts = [part]
    missing = size - len(part)
    while missing and (part := read(missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def encoded_varint(value: int) -> bytes:
    """Encode a number of at least 0 in seven bits a byte, the lowest first."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def decoded_stream(below: BinaryIO, chunks: Iterator[bytes]) -> BinaryIO:
    """Return a stream of `chunks`, which are decoded from the stream `below`. Closing it also closes `below`."""
    return io.BufferedReader(_Chunks(below, chunks), STEP_BYTES)


class _Chunks(io.RawIOBase):
    def __init__(self, below: BinaryIO, chunks: Iterator[bytes]) -> None:
        self._below = below
        self._chunks = chunks
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target: Buffer, /) -> int:
        while not self._ready:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._ready = memoryview(chunk)
        out = memoryview(target).cast("B")
        count = min(len(out), len(self._ready))
        out[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def close(self) -> None:
        if not self.closed:
            self._below.close()
        super().close()
