# SPDX-License-Identifier: Apache-2.0
"""Decompresses files. The suffix of the file's name determines the codec, as in Hadoop."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, cast

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.base import damaged_file
from forebay.stores.paths import last_name

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from forebay.formats.base import InputFile

# -- Reads a full number of bytes of a stream, wraps decoded chunks as a stream, and encodes numbers as bytes.

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


# -- Recognizes compressed data by its first bytes, so that it is never read as text.


HEAD_BYTES: Final = 4096
"""How many bytes of a file to check. Magic numbers are short; zlib has none, and is recognized by decompressing."""

LZ4_FRAME: Final = b"\x04\x22\x4d\x18"

_MAGIC: Final = [
    (b"\x1f\x8b\x08", "gzip", ".gz"),
    (b"\x28\xb5\x2f\xfd", "zstd", ".zst"),
    (b"\xfd7zXZ\0", "xz", ".xz"),
    (LZ4_FRAME, "LZ4", ".lz4"),
    (b"\x02\x21\x4c\x18", "LZ4's old frames", None),
    (b"\xff\x06\0\0sNaPpY", "framed Snappy", None),
    (b"\x89LZO\0\r\n\x1a\n", "LZO", None),
    (b"]\0\0", "LZMA", None),
    (b"LZIP\x01", "lzip", None),
    (b"\x1f\x9d", "compress (.Z)", None),
    (b"PK\x03\x04", "ZIP", None),
    (b"PK\x05\x06", "ZIP", None),
    (b"7z\xbc\xaf\x27\x1c", "7z", None),
    (b"Rar!\x1a\x07", "RAR", None),
]
"""Magic number, name of the format, and the suffix by which files of this format are read; None if they are not."""

_BZIP2 = (b"1AY&SY", b"\x17rE8P\x90")  # behind `BZh` and a digit: a block, or the end of an empty stream


def is_skippable_frame(head: bytes) -> bool:
    """Return whether the data begin with a skippable frame, which zstd and LZ4 have in common."""
    return head[1:4] == b"\x2a\x4d\x18" and head[0] & 0xF0 == 0x50


def is_compressed(data: bytes) -> bool:
    """Return whether data are compressed, as far as their start tells."""
    return _compression(data[:HEAD_BYTES]) is not None


def refuse_compressed(head: bytes, path: str, *, decompressed: bool) -> None:
    """Raise an error if what is to be read as text is compressed.

    Args:
        head: The first `HEAD_BYTES` of the data, or all of it.
        path: The path of the file, for the error.
        decompressed: Whether the data were already decompressed, as the suffix of the file says.

    Raises:
        ConfigurationError: The data are compressed.
    """
    compression = _compression(head)
    if compression is None:
        return
    name, suffix = compression
    if decompressed:
        raise ConfigurationError(
            f"{path} is compressed twice: what its suffix says, and {name} inside",
            source=path,
            advice="decompress the file once, or exclude it with pathGlobFilter",
        )
    way = f"rename the file so that its name ends in {suffix}" if suffix else "decompress the file"
    raise ConfigurationError(
        f"{path} holds data compressed by {name}, but its name does not say so, and its bytes are no text",
        source=path,
        advice=f"{way}, or exclude it with pathGlobFilter",
    )


def _compression(head: bytes) -> tuple[str, str | None] | None:
    """Return the name of the compression and its suffix, if there is one; None if the data are not compressed."""
    for magic, name, suffix in _MAGIC:
        if head.startswith(magic):
            return name, suffix
    if head.startswith(b"BZh") and head[3:4].isdigit() and head[4:10] in _BZIP2:
        return "bzip2", ".bz2"
    if is_skippable_frame(head):
        return "zstd or LZ4", ".zst or .lz4"
    return ("zlib", ".deflate") if _is_zlib(head) else None


def _is_zlib(head: bytes) -> bool:
    """Return whether `head` is a zlib stream, or the start of one. Its header alone could be text, such as `x^`."""
    if head[:1] != b"x" or len(head) < 2 or int.from_bytes(head[:2], "big") % 31:
        return False
    stream = zlib.decompressobj()
    try:
        stream.decompress(head)
    except zlib.error:
        return False
    return stream.eof or len(head) >= HEAD_BYTES


_MAX_BLOCK_BYTES = 1 << 30

_ARCHIVE = "it is an archive, not a compressed stream"
REFUSED_SUFFIXES = {
    **dict.fromkeys((".zip", ".7z", ".rar", ".tar", ".tgz", ".tbz2", ".txz"), _ARCHIVE),
    **dict.fromkeys((".br", ".Z"), "Spark has no codec for it"),
    **dict.fromkeys((".lzo", ".lzo_deflate"), "LZO needs a native library"),
}
"""Maps each refused suffix to the reason. Such files are refused because their raw bytes would be read as garbage."""

_REFUSED = {suffix.lower(): why for suffix, why in REFUSED_SUFFIXES.items()}
_ADVICE = {
    _ARCHIVE: "read the files inside a .zip or .tar by a URL such as zip://*.csv::/data/a.zip, unpack the archive, or "
    "exclude it with pathGlobFilter"
}


def codec_of(path: str) -> str | None:
    """Return the codec for the suffix of a path, ignoring case; None for an uncompressed file.

    In a chained URL (`zip://a.csv::p.zip`) the name inside the archive counts; in HTTP, the name before the query.

    Raises:
        ConfigurationError: The suffix names a compression or an archive that cannot be read.
    """
    stem, dot, last = last_name(path).lower().rpartition(".")
    codec = _ALIASES.get(last, last) if dot and last in CODECS else None
    refused = _REFUSED.get(dot + last) if codec is None else _ARCHIVE if stem.endswith(".tar") else None
    if refused is not None:
        raise ConfigurationError(
            f"{path} cannot be read: {refused}",
            advice=_ADVICE.get(
                refused, "unpack the file or recompress it with gzip, zstd or bzip2, or exclude it with pathGlobFilter"
            ),
        )
    return codec


def open_decompressed(file: InputFile) -> BinaryIO:
    """Open a file of text and return a stream of its decompressed bytes. Only an uncompressed file supports `seek`.

    If the file is damaged, reading raises a DataError with its path. If what would be read as text is compressed,
    reading it from its start raises a ConfigurationError. The caller closes the stream.
    """
    codec = codec_of(file.path)
    raw = file.open()
    if codec is None:
        return cast("BinaryIO", _PlainBytes(raw, file.path))
    chunks = wrap_damage(_DECODERS[codec](RawBytes(raw)), file.path, codec)
    return decoded_stream(raw, once_decompressed(chunks, file.path))


class _PlainBytes(io.RawIOBase):
    """The bytes of an uncompressed file. A read at its start refuses compressed data."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file = file
        self._path = path
        self._head: bytes | None = None
        """The part of the checked bytes that was not read yet; None before the check."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        at = self._file.seek(offset, whence)
        self._head = None if at == 0 else b""
        return at

    def tell(self) -> int:
        return self._file.tell() - len(self._head or b"")

    def read(self, size: int = -1, /) -> bytes:
        if self._head is None:
            self._head = read_fully(self._file.read, HEAD_BYTES)
            refuse_compressed(self._head, self._path, decompressed=False)
        if not self._head:
            return self._file.read(size)
        part = self._head if size < 0 else self._head[:size]
        self._head = self._head[len(part) :]
        return part + self._file.read(size if size < 0 else size - len(part))

    def readinto(self, target: Buffer, /) -> int:
        out = memoryview(target).cast("B")
        part = self.read(len(out))
        out[: len(part)] = part
        return len(part)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def once_decompressed(chunks: Iterator[bytes], path: str) -> Iterator[bytes]:
    """Yield decompressed chunks from the start of a file. Refuse them if they are compressed data again."""
    head = b""
    for chunk in chunks:
        head += chunk
        if len(head) >= HEAD_BYTES:
            break
    refuse_compressed(head[:HEAD_BYTES], path, decompressed=True)
    if head:
        yield head
    yield from chunks


def wrap_damage(chunks: Iterator[bytes], path: str, codec: str) -> Iterator[bytes]:
    """Yield the chunks of a decoder. Turn its errors, except errors of the store, into a DataError with the path."""
    try:
        yield from chunks
    except ReadFailed as error:
        raise (error.__cause__ or error) from None
    except (zlib.error, lzma.LZMAError, EOFError, OSError, ValueError) as error:
        raise damaged_file(f"{path} is not a complete {codec} file: {error}", source=path) from error


class ReadFailed(Exception):
    """Wraps an error of the store while a decoder reads, so that it is not reported as damaged data."""


class RawBytes(io.RawIOBase):
    """The compressed bytes of a file, as decoders read them. Python's and Arrow's decoders use it.

    Closing it does not close the file.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._head = b""

    def peek(self, size: int) -> bytes:
        """Return the first `size` bytes of the file without consuming them."""
        self._head = self.exactly(size)
        return self._head

    def read(self, size: int = -1) -> bytes:
        """Return at most `size` bytes; raise ReadFailed if the store raises an error."""
        if self._head:
            part, self._head = self._head, b""
            return part
        try:
            return self._file.read(size)
        except Exception as error:
            raise ReadFailed from error

    def exactly(self, size: int) -> bytes:
        """Return the next `size` bytes; `b""` at the end of the file; raise EOFError if the file ends within them."""
        data = read_fully(self.read, size)
        if 0 < len(data) < size:
            raise EOFError("the file ends inside its compressed data")
        return data

    def at(self, place: int, size: int) -> bytes:
        """Return the `size` bytes from byte `place` on; raise EOFError if the file ends within them."""
        try:
            if self._file.tell() != place:
                self._file.seek(place)
        except Exception as error:
            raise ReadFailed from error
        data = self.exactly(size)
        if size and not data:
            raise EOFError("the file ends inside its compressed data")
        return data

    def readable(self) -> bool:
        """Return True."""
        return True


def _concatenated(new: Callable[[], Any]) -> Callable[[RawBytes], Iterator[bytes]]:
    """Return a decoder of concatenated gzip, zlib, bzip2 or xz streams; `new` creates the decompressor of one stream.

    The decoder skips zero padding after a stream.
    """

    def decode(raw: RawBytes) -> Iterator[bytes]:
        data = raw.read(STEP_BYTES)
        while data:
            member = new()
            while not member.eof:
                if getattr(member, "needs_input", True) and not data and not (data := raw.read(STEP_BYTES)):
                    raise EOFError("the file ends inside its compressed data")
                yield member.decompress(data, STEP_BYTES)
                data = getattr(member, "unconsumed_tail", b"")
            data = _after_padding(raw, member.unused_data)

    return decode


def _after_padding(raw: RawBytes, data: bytes) -> bytes:
    data = data.lstrip(b"\0")
    while not data and (data := raw.read(STEP_BYTES)):
        data = data.lstrip(b"\0")
    return data


def _arrow_stream(codec: Literal["zstd", "lz4"]) -> Callable[[RawBytes], Iterator[bytes]]:
    """Return a decoder that uses Arrow's streaming codec, which reads concatenated frames."""

    def decode(raw: RawBytes) -> Iterator[bytes]:
        with pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), codec) as stream:
            while chunk := stream.read(STEP_BYTES):
                yield chunk

    return decode


def _hadoop_blocks(
    plain_size: Callable[[bytes], int], codec: Literal["lz4_raw", "snappy"]
) -> Callable[[RawBytes], Iterator[bytes]]:
    """Return a decoder of Hadoop's block format. `plain_size` returns the decompressed size of a compressed chunk.

    A block is its decompressed length and then chunks (length, bytes) that decompress to this length.
    """

    def decode(raw: RawBytes) -> Iterator[bytes]:
        while head := raw.exactly(4):
            missing = _length(head)
            while missing:
                chunk = raw.exactly(_length(raw.exactly(4)))
                # Arrow's raw codecs need the decompressed size.
                size = plain_size(chunk)
                if not 0 < size <= missing:
                    raise ValueError(
                        f"a compressed chunk states {size} bytes of data, but its block has only {missing} left"
                    )
                yield pa.Codec(codec).decompress(chunk, decompressed_size=size, asbytes=True)
                missing -= size

    return decode


def _length(head: bytes) -> int:
    size = int.from_bytes(head, "big")
    if len(head) < 4 or size > _MAX_BLOCK_BYTES:
        raise ValueError("its data are no blocks as Hadoop writes them")
    return size


def snappy_size(chunk: bytes) -> int:
    """Return the decompressed size of a snappy chunk: the varint at its start."""
    size = 0
    for place, byte in enumerate(chunk[:5]):
        size |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return size
    raise ValueError("a snappy chunk does not state its decompressed length")


def lz4_size(chunk: bytes) -> int:
    """Return the decompressed size of an LZ4 chunk: the sum of all literal and match lengths."""
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
    """Return the offset after an LZ4 length, and the length: `length` from the token, plus the bytes from `at` on."""
    if length == 15:
        while at < len(chunk):
            length += chunk[at]
            at += 1
            if chunk[at - 1] != 255:
                break
    return at, length


def _lz4(raw: RawBytes) -> Iterator[bytes]:
    """Decode LZ4: Hadoop's blocks, as Spark writes them, or frames, as the `lz4` command writes them."""
    head = raw.peek(4)
    framed = head == LZ4_FRAME or is_skippable_frame(head)
    yield from _arrow_stream("lz4")(raw) if framed else _hadoop_blocks(lz4_size, "lz4_raw")(raw)


_DECODERS: dict[str, Callable[[RawBytes], Iterator[bytes]]] = {
    "gz": _concatenated(partial(zlib.decompressobj, 31)),
    "deflate": _concatenated(partial(zlib.decompressobj, 15)),
    "bz2": _concatenated(bz2.BZ2Decompressor),
    "xz": _concatenated(lzma.LZMADecompressor),
    "zst": _arrow_stream("zstd"),
    "lz4": _lz4,
    "snappy": _hadoop_blocks(snappy_size, "snappy"),
}

_ALIASES = {"gzip": "gz", "zstd": "zst"}  # as in Spark 4.2

CODECS: frozenset[str] = frozenset({*_DECODERS, *_ALIASES})
"""The file suffixes of the supported codecs, in lower case and without the dot."""
