# SPDX-License-Identifier: Apache-2.0
"""Decodes bzip2 from any byte of a file, block by block, as Hadoop's splittable codec does.

A block begins with a magic number of 48 bits, at any bit offset. These bits can also occur inside a block by chance. So
a block ends at the first magic number for which the checksum of the block is right.
"""

from __future__ import annotations

import bz2
from collections.abc import Callable, Iterator

from forebay.formats.compression.byte_streams import STEP_BYTES

_BLOCK = 0x314159265359
_END = 0x177245385090
_MAGIC_BITS = 48
_CHECKSUM_BITS = 32
_MOST_BLOCK_BYTES = 2 << 20
"""Upper bound for the bytes of a compressed block: 900,000 symbols of at most 17 bits, and its tables."""

_INNER = {
    (magic >> shift & (1 << 40) - 1).to_bytes(5, "big"): (shift, magic)
    for magic in (_BLOCK, _END)
    for shift in range(8)
}
"""Maps the five whole bytes inside a magic number to its first bit in the byte before them, and to the number."""


class Bzip2Blocks:
    """Decodes the blocks of a file, from the first block that begins at or after byte `start`. Not thread-safe.

    Args:
        read: Returns the next compressed bytes, at most as many as its argument.
        start: The offset in the file of the first byte that `read` returns.
        end: The byte at which the slice ends; None for the end of the file.
    """

    def __init__(self, read: Callable[[int], bytes], start: int, end: int | None) -> None:
        self._read = read
        self._start = start
        self._end = end
        self._data = bytearray()
        self._base = start
        self._ended = False
        self._plain = 0
        self.border: int | None = None
        """Decoded bytes before the first block that begins at or after `end`; None before such a block is decoded."""

    def decode(self) -> Iterator[bytes]:
        """Yield the decoded bytes of each block up to the end of the file, also beyond `end`.

        Raises:
            EOFError: The file ends inside a block.
            ValueError: A block is damaged.
        """
        bit = self._base * 8
        block = self._first_block(bit) if self._start else self._after_header(bit)
        while block is not None:
            bit, plain, after = block
            if self.border is None and self._end is not None and bit // 8 >= self._end:
                self.border = self._plain
            self._plain += len(plain)
            yield plain
            block = self._next(after)

    def _first_block(self, bit: int) -> tuple[int, bytes, int] | None:
        """Return the first valid block at or after `bit`: its first bit, its decoded bytes, and the bit after it."""
        while True:
            place = self._magic_after(bit)
            if place is None:
                return None
            if self._bits(place, _MAGIC_BITS) == _BLOCK:
                try:
                    return self._block(place)
                except (ValueError, EOFError):
                    pass  # the magic occurs by chance, or the block is damaged: the slice before, which reads on, fails
            self._drop(place)
            bit = place + 1

    def _next(self, bit: int) -> tuple[int, bytes, int] | None:
        """Return the next block: at `bit`, or at the start of the stream after it; None at the end of the file."""
        if self._bits(bit, _MAGIC_BITS) == _BLOCK:
            return self._block(bit)
        if self._bits(bit, _MAGIC_BITS) != _END:
            raise ValueError("a block does not begin where the one before it ends")
        after = bit + _MAGIC_BITS + _CHECKSUM_BITS
        if not self._has(after, 0):
            raise EOFError("the file ends inside its compressed data")
        return self._after_header(-(-after // 8) * 8)

    def _after_header(self, bit: int) -> tuple[int, bytes, int] | None:
        """Skip zero padding at `bit`; return the first block of the stream that follows, None at the file's end."""
        while self._has(bit, 8) and self._bits(bit, 8) == 0:
            bit += 8
            self._drop(bit)
        if not self._has(bit, 8):
            return None
        header = self._bits(bit, 32).to_bytes(4, "big")
        if header[:3] != b"BZh" or not b"1" <= header[3:] <= b"9":
            raise ValueError("the bytes after the end of a stream are not the header of another stream")
        return self._next(bit + 32)

    def _block(self, bit: int) -> tuple[int, bytes, int]:
        after = bit + _MAGIC_BITS
        while after // 8 - bit // 8 < _MOST_BLOCK_BYTES:
            following = self._magic_after(after)
            if following is None:
                raise EOFError("the file ends inside its compressed data")
            plain = self._decoded(bit, following)
            if plain is not None:
                self._drop(following)
                return bit, plain, following
            after = following + 1
        raise ValueError("a block is damaged")

    def _decoded(self, bit: int, after: int) -> bytes | None:
        """Decode the bits `[bit, after)` as a block; return None if they are not a block with a valid checksum."""
        checksum = self._bits(bit + _MAGIC_BITS, _CHECKSUM_BITS)
        bits = (self._bits(bit, after - bit) << _MAGIC_BITS | _END) << _CHECKSUM_BITS | checksum
        size = after - bit + _MAGIC_BITS + _CHECKSUM_BITS
        padding = -size % 8
        stream = b"BZh9" + (bits << padding).to_bytes((size + padding) // 8, "big")
        decoder = bz2.BZ2Decompressor()
        try:
            plain = decoder.decompress(stream)
        except (OSError, ValueError):
            return None
        return plain if decoder.eof and not decoder.unused_data else None

    def _magic_after(self, bit: int) -> int | None:
        """Return the offset in bits of the first magic number at or after `bit`; None if there is none.

        Blocks and the ends of streams have a magic number.
        """
        at = bit // 8
        while True:
            low = max(0, at - self._base)
            nearest: int | None = None
            for inner, (shift, magic) in _INNER.items():
                stop = None if nearest is None else nearest // 8 - self._base + 6
                place = self._place(inner, shift, magic, (low, stop), bit)
                nearest = place if nearest is None or (place is not None and place < nearest) else nearest
            if nearest is not None:
                return nearest
            at = max(at, self._base + len(self._data) - 6)
            if at - bit // 8 > _MOST_BLOCK_BYTES:
                raise ValueError("a block is damaged, or longer than bzip2 allows")
            if not self._fill():
                return None

    def _place(self, inner: bytes, shift: int, magic: int, where: tuple[int, int | None], bit: int) -> int | None:
        at = self._data.find(inner, *where)
        while at >= 0:
            place = (self._base + at - 1) * 8 + shift
            if place >= bit and self._has(place, _MAGIC_BITS) and self._bits(place, _MAGIC_BITS) == magic:
                return place
            at = self._data.find(inner, at + 1, where[1])
        return None

    def _bits(self, bit: int, count: int) -> int:
        if not self._has(bit, count):
            raise EOFError("the file ends inside its compressed data")
        first, last = bit // 8 - self._base, -(-(bit + count) // 8) - self._base
        value = int.from_bytes(self._data[first:last], "big") >> -(bit + count) % 8
        return value & (1 << count) - 1

    def _has(self, bit: int, count: int) -> bool:
        while (self._base + len(self._data)) * 8 < bit + count:
            if not self._fill():
                return False
        return True

    def _fill(self) -> bool:
        part = b"" if self._ended else self._read(STEP_BYTES // 4)
        self._data += part
        self._ended = not part
        return bool(part)

    def _drop(self, bit: int) -> None:
        done = bit // 8 - self._base
        del self._data[:done]
        self._base += done
