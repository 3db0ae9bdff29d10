# SPDX-License-Identifier: Apache-2.0
"""Compression by the suffix of a file's name, as Hadoop's codecs do it for Spark."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO, Literal

import pyarrow as pa

from forebay.errors import ConfigurationError, DataError
from forebay.stores.file_status import last_name

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from forebay.formats.input_file import InputFile

_STEP_BYTES = 1 << 20
_MAX_BLOCK_BYTES = 1 << 30
_LZ4_FRAME_MAGIC = b"\x04\x22\x4d\x18"

_ARCHIVE = "it is an archive, not a compressed stream"
_NO_CODEC = "Spark has no codec for it"
REFUSED_SUFFIXES = {
    ".zip": _ARCHIVE,
    ".7z": _ARCHIVE,
    ".rar": _ARCHIVE,
    ".tar": _ARCHIVE,
    ".tgz": _ARCHIVE,
    ".tbz2": _ARCHIVE,
    ".txz": _ARCHIVE,
    ".br": _NO_CODEC,
    ".Z": _NO_CODEC,
    ".lzo": "LZO needs a native library",
    ".lzo_deflate": "LZO needs a native library",
}
"""Suffix → why files of that name are refused: their bytes are surely not plain, and read as plain they are garbage."""

_REFUSED = {suffix.lower(): why for suffix, why in REFUSED_SUFFIXES.items()}
_ADVICE = {
    _ARCHIVE: "name the files inside of a .zip or .tar by a URL (zip://*.csv::/data/a.zip), unpack it, or leave it out "
    "with pathGlobFilter"
}


def codec_of(path: str) -> str | None:
    """The codec a path's suffix asks for, None for plain bytes. Upper case means the same, as in Hadoop.

    Of a chained URL (`zip://a.csv::p.zip`) the name inside the archive counts, of HTTP the name before the query.

    Raises:
        ConfigurationError: The suffix names a compression or an archive that cannot be read.
    """
    stem, dot, last = last_name(path).lower().rpartition(".")
    codec = last if dot and last in CODECS else None
    refused = _REFUSED.get(dot + last) if codec is None else _ARCHIVE if stem.endswith(".tar") else None
    if refused is not None:
        raise ConfigurationError(
            f"{path} cannot be read: {refused}",
            advice=_ADVICE.get(
                refused, "unpack it or recompress it (gzip, zstd, bzip2), or leave it out with pathGlobFilter"
            ),
        )
    return codec


def open_decompressed(file: InputFile) -> BinaryIO:
    """Open a file for reading its decompressed bytes from the start: `read`, `readinto`, `close`; `seek` only if plain.

    Damage found while reading is raised as DataError naming the file. The caller closes the stream.
    """
    codec = codec_of(file.path)
    raw = file.open()
    if codec is None:
        return raw
    return io.BufferedReader(_Decoded(raw, file.path, codec), _STEP_BYTES)


class _ReadFailed(Exception):
    """Carries an error of the storage through a decoder, so that it is not taken for damage in the data."""


class _Raw(io.RawIOBase):
    """The compressed bytes; `read` is the only way in, also for Arrow's own decoder. Closing it closes nothing."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._head = b""

    def peek(self, size: int) -> bytes:
        """The first bytes of the file, which the next `read` gives again."""
        self._head = self.exactly(size)
        return self._head

    def read(self, size: int = -1) -> bytes:
        if self._head:
            part, self._head = self._head, b""
            return part
        try:
            return self._file.read(size)
        except Exception as error:
            raise _ReadFailed from error

    def exactly(self, size: int) -> bytes:
        """The next `size` bytes; fewer only if none at all are left."""
        parts: list[bytes] = []
        missing = size
        while missing and (part := self.read(missing)):
            parts.append(part)
            missing -= len(part)
        if missing and parts:
            raise EOFError("it ends in the middle of the compressed data")
        return b"".join(parts)

    def readable(self) -> bool:
        return True


class _Decoded(io.RawIOBase):
    """The decompressed bytes of one open file, which it closes."""

    def __init__(self, file: BinaryIO, path: str, codec: str) -> None:
        self._file = file
        self._path = path
        self._codec = codec
        self._pieces = _DECODERS[codec](_Raw(file))
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target: Buffer, /) -> int:
        while not self._ready:
            piece = self._next_piece()
            if piece is None:
                return 0
            self._ready = memoryview(piece)
        out = memoryview(target).cast("B")
        count = min(len(out), len(self._ready))
        out[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()

    def _next_piece(self) -> bytes | None:
        try:
            return next(self._pieces, None)
        except _ReadFailed as error:
            raise (error.__cause__ or error) from None
        except (zlib.error, lzma.LZMAError, EOFError, OSError, ValueError) as error:
            raise DataError(
                f"{self._path} is not a whole {self._codec} file: {error}",
                source=self._path,
                advice="replace the file, or set ignoreCorruptFiles to skip it",
            ) from error


def _zlib_members(window_bits: int) -> Callable[[_Raw], Iterator[bytes]]:
    """A decoder of concatenated gzip or zlib streams. Zero padding after a member is skipped."""

    def decode(raw: _Raw) -> Iterator[bytes]:
        data = raw.read(_STEP_BYTES)
        while data:
            member = zlib.decompressobj(window_bits)
            while not member.eof:
                if not data and not (data := raw.read(_STEP_BYTES)):
                    raise EOFError("it ends in the middle of the compressed data")
                yield member.decompress(data, _STEP_BYTES)
                data = member.unconsumed_tail
            data = _after_padding(raw, member.unused_data)

    return decode


def _stdlib_members(
    new: Callable[[], bz2.BZ2Decompressor | lzma.LZMADecompressor],
) -> Callable[[_Raw], Iterator[bytes]]:
    """A decoder of concatenated bzip2 or xz streams."""

    def decode(raw: _Raw) -> Iterator[bytes]:
        data = raw.read(_STEP_BYTES)
        while data:
            member = new()
            while not member.eof:
                if member.needs_input and not data and not (data := raw.read(_STEP_BYTES)):
                    raise EOFError("it ends in the middle of the compressed data")
                yield member.decompress(data, _STEP_BYTES)
                data = b""
            data = _after_padding(raw, member.unused_data)

    return decode


def _after_padding(raw: _Raw, data: bytes) -> bytes:
    data = data.lstrip(b"\0")
    while not data and (data := raw.read(_STEP_BYTES)):
        data = data.lstrip(b"\0")
    return data


def _arrow_stream(codec: Literal["zstd", "lz4"]) -> Callable[[_Raw], Iterator[bytes]]:
    """A decoder by Arrow's own streaming codec, which reads concatenated frames."""

    def decode(raw: _Raw) -> Iterator[bytes]:
        with pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), codec) as stream:
            while piece := stream.read(_STEP_BYTES):
                yield piece

    return decode


def _hadoop_blocks(
    plain_size: Callable[[bytes], int], codec: Literal["lz4_raw", "snappy"]
) -> Callable[[_Raw], Iterator[bytes]]:
    """A decoder of Hadoop's block format: plain length, then chunks (length, bytes) until that much is decoded."""

    def decode(raw: _Raw) -> Iterator[bytes]:
        while head := raw.exactly(4):
            missing = _length(head)
            while missing:
                chunk = raw.exactly(_length(raw.exactly(4)))
                # Arrow's raw codecs do not say how much they wrote, so the size must be known before.
                size = plain_size(chunk)
                if not 0 < size <= missing:
                    raise ValueError(f"a chunk of {size} bytes in a block with {missing} bytes left")
                yield pa.Codec(codec).decompress(chunk, decompressed_size=size, asbytes=True)
                missing -= size

    return decode


def _length(head: bytes) -> int:
    size = int.from_bytes(head, "big")
    if len(head) < 4 or size > _MAX_BLOCK_BYTES:
        raise ValueError("a block's length is wrong: Hadoop's block format is expected here")
    return size


def _snappy_size(chunk: bytes) -> int:
    """The varint at the head of a snappy block."""
    size = 0
    for place, byte in enumerate(chunk[:5]):
        size |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return size
    raise ValueError("a snappy chunk has no length")


def _lz4_size(chunk: bytes) -> int:
    """The sum of all literal and match lengths of an LZ4 block (which does not say its size)."""
    at, size, stop = 0, 0, len(chunk)
    while at < stop:
        token = chunk[at]
        at, literals = _lz4_run(chunk, at + 1, token >> 4)
        at += literals
        size += literals
        if at >= stop:
            break
        at, match = _lz4_run(chunk, at + 2, token & 15)
        size += match + 4
    return size


def _lz4_run(chunk: bytes, at: int, length: int) -> tuple[int, int]:
    if length == 15:
        while at < len(chunk):
            length += chunk[at]
            at += 1
            if chunk[at - 1] != 255:
                break
    return at, length


def _lz4(raw: _Raw) -> Iterator[bytes]:
    """LZ4 in Hadoop's blocks, as Spark writes it, or in frames, as the command line tool does."""
    framed = raw.peek(4) == _LZ4_FRAME_MAGIC
    yield from _arrow_stream("lz4")(raw) if framed else _hadoop_blocks(_lz4_size, "lz4_raw")(raw)


_DECODERS: dict[str, Callable[[_Raw], Iterator[bytes]]] = {
    "gz": _zlib_members(31),
    "deflate": _zlib_members(15),
    "bz2": _stdlib_members(bz2.BZ2Decompressor),
    "xz": _stdlib_members(lzma.LZMADecompressor),
    "zst": _arrow_stream("zstd"),
    "lz4": _lz4,
    "snappy": _hadoop_blocks(_snappy_size, "snappy"),
}

CODECS: frozenset[str] = frozenset(_DECODERS)
"""The suffixes of compression, in lower case and without the dot."""
