# SPDX-License-Identifier: Apache-2.0
"""Text encodings other than UTF-8: a stream that gives the same text as UTF-8."""

from __future__ import annotations

import codecs
import io
import re
import struct
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

from forebay.errors import ConfigurationError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_ENCODINGS = {
    "UTF-8": "utf-8",
    "US-ASCII": "ascii",
    "ISO-8859-1": "latin-1",
    "UTF-16": "utf-16",
    "UTF-16BE": "utf-16-be",
    "UTF-16LE": "utf-16-le",
    "UTF-32": "utf-32",
}
"""The encodings Spark 4 takes → Python's names for them."""

_MARKS = {
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
}
"""What may say the order of bytes; without it Java takes big-endian, where Python takes none or the machine's."""

_STEP_BYTES = 1 << 20
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT = "\ufffd".encode()


def check_encoding(name: str) -> str:
    """The name in Spark's spelling.

    Raises:
        ConfigurationError: Spark does not take this encoding.
    """
    if name.upper() not in _ENCODINGS:
        raise ConfigurationError(
            f"the encoding {name!r} cannot be read",
            option="encoding",
            advice="use one of " + ", ".join(_ENCODINGS),
        )
    return name.upper()


def decoded(data: bytes | bytearray) -> str:
    """The text of UTF-8 as Java decodes it: with U+FFFD for what is invalid, once for a whole encoded surrogate."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _SURROGATE.sub(_REPLACEMENT, data).decode("utf-8", "replace")


def valid_utf8(data: bytes | bytearray) -> bytes | bytearray:
    """The data, if it is valid UTF-8; else the text Java would decode it to. Costs next to nothing if it is ASCII."""
    if data.isascii():
        return data
    offsets = pa.py_buffer(struct.pack("=qq", 0, len(data)))
    try:
        pa.Array.from_buffers(pa.large_string(), 1, [None, offsets, pa.py_buffer(data)]).validate(full=True)
    except pa.ArrowInvalid:
        return decoded(data).encode()
    return data


def with_valid_utf8(texts: pa.Array) -> tuple[pa.Array, list[int]]:
    """A column of bytes with `valid_utf8` of each, and the rows where that is not what was there; null stays null."""
    values = texts.to_pylist()
    spoiled: list[int] = []
    for row, value in enumerate(values):
        valid = None if value is None else valid_utf8(value)
        if valid is not value:
            values[row] = valid
            spoiled.append(row)
    return pa.array(values, pa.binary()), spoiled


def utf8_problem(text: bytes) -> str | None:
    """Why bytes are no UTF-8, for people; None: they are."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start} is not UTF-8"
    return None


def as_utf8(stream: BinaryIO, encoding: str) -> BinaryIO:
    """The text of a byte stream as UTF-8; what cannot be decoded becomes U+FFFD. UTF-8 itself is passed through.

    Closing the result closes `stream`.
    """
    name = check_encoding(encoding)
    if name == "UTF-8":
        return stream
    return io.BufferedReader(_Transcoded(stream, _ENCODINGS[name]), _STEP_BYTES)


class _Transcoded(io.RawIOBase):
    """The bytes of one stream, decoded and encoded again."""

    def __init__(self, stream: BinaryIO, codec: str) -> None:
        self._stream = stream
        self._codec = codec
        self._decoder: codecs.IncrementalDecoder | None = None
        self._ready = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, target: Buffer, /) -> int:
        while not self._ready and not self._ended:
            if self._decoder is None:
                data, self._decoder = self._begun()
            else:
                data = self._stream.read(_STEP_BYTES)
                self._ended = not data
            self._ready = memoryview(self._decoder.decode(data, self._ended).encode("utf-8", "replace"))
        out = memoryview(target).cast("B")
        count = min(len(out), len(self._ready))
        out[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()

    def _begun(self) -> tuple[bytes, codecs.IncrementalDecoder]:
        """The first bytes, if they had to be looked at, and what decodes them and the rest."""
        marks, codec, head = _MARKS.get(self._codec), self._codec, b""
        if marks is not None:
            head = _exactly(self._stream, len(marks[0]))
            codec = codec if head in marks else f"{codec}-be"
        return head, codecs.getincrementaldecoder(codec)("replace")


def _exactly(stream: BinaryIO, count: int) -> bytes:
    """So many bytes, or fewer at the end of the stream."""
    found = b""
    while len(found) < count and (more := stream.read(count - len(found))):
        found += more
    return found
