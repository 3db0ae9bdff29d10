# SPDX-License-Identifier: Apache-2.0
"""Cuts compressed files into slices, which several tasks read."""

from __future__ import annotations

import bz2
import io
import lzma
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple
from zlib import crc32

import pyarrow as pa

from forebay.formats.base import even_borders
from forebay.formats.compression.codecs import (
    STEP_BYTES,
    RawBytes,
    ReadAt,
    ReadFailed,
    codec_of,
    decoded_stream,
    encoded_varint,
    once_decompressed,
    open_decompressed,
    wrap_damage,
)

if TYPE_CHECKING:
    from forebay.formats.base import InputFile

# -- Decodes bzip2 from any byte of a file, block by block, as Hadoop's splittable codec does.
# A block begins with a magic number of 48 bits, at any bit offset. These bits can also occur inside a block by chance.
# So a block ends at the first magic number for which the checksum of the block is right.

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


# -- What files with seekable blocks have in common.


class _SeekableBlocks:
    """The blocks of a file that can be read anywhere, from the first that begins at or after byte `start`.

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
        """Decoded bytes before the first block that begins at or after `end`; None before such a block is decoded."""


# -- Decodes xz from any block of a file, found in the indexes at the ends of its streams.
# The format is that of https://tukaani.org/xz/xz-file-format.txt. A stream is a header, blocks, an index and a footer.
# A file has one stream or several, and zero padding after each. `xz -T0` writes blocks of some MB.

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


class XzBlocks(_SeekableBlocks):
    """Decodes the blocks of an xz file. Not thread-safe."""

    def __init__(self, read_at: ReadAt, size: int, start: int, end: int | None) -> None:
        super().__init__(read_at, size, start, end)
        self._window = (0, b"")

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


# -- Decodes zstd from any frame of a file in the seekable format, whose last frame lists the sizes of all other
# frames.
# The format is that of contrib/seekable_format in the sources of zstd. Decoders that do not know the format skip the
# last frame, the seek table.

_TABLE_MAGIC: Final = 0x184D2A5E
_SEEK_TABLE_MAGIC: Final = b"\xb1\xea\x92\x8f"
_FRAME_HEADER_BYTES: Final = 8
_FOOTER_BYTES: Final = 9
_HAS_CHECKSUMS: Final = 0x80
_RESERVED_BITS: Final = 0x7C
_MOST_FRAMES: Final = 1 << 22


def has_seek_table(read_at: ReadAt, size: int) -> bool:
    """Return whether a file of `size` bytes ends with the magic number of a seek table. Reads only the last bytes."""
    return size > _FOOTER_BYTES and read_at(size - 4, 4) == _SEEK_TABLE_MAGIC


class ZstdFrames(_SeekableBlocks):
    """Decodes the frames of a zstd file. Not thread-safe.

    A file without a seek table that covers the whole file counts as one frame. For example, if two files were
    concatenated, the table at the end covers only the second.
    """

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
        start = self._size - size - _FRAME_HEADER_BYTES
        if flags & _RESERVED_BITS or count > _MOST_FRAMES or start < 0:
            return None
        data = self._read_at(start, _FRAME_HEADER_BYTES + size - _FOOTER_BYTES)
        entries = memoryview(data)[_FRAME_HEADER_BYTES:]
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


# -- Cuts compressed files into slices, which several tasks read.

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
