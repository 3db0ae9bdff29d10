# SPDX-License-Identifier: Apache-2.0
"""Decodes invalid UTF-8 as Java does, and converts streams of other encodings to UTF-8."""

from __future__ import annotations

import codecs
import re
import struct
from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.compression.byte_streams import STEP_BYTES, decoded_stream, read_fully

_ENCODINGS = {
    "UTF-8": "utf-8",
    "US-ASCII": "ascii",
    "ISO-8859-1": "latin-1",
    "UTF-16": "utf-16",
    "UTF-16BE": "utf-16-be",
    "UTF-16LE": "utf-16-le",
    "UTF-32": "utf-32",
}
"""Maps the encodings that Spark 4 accepts to Python's names for them."""

_MARKS = {
    "utf-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
    "utf-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
}
"""Byte order marks. Without one Java assumes big-endian; Python assumes none or the machine's order."""

_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT = "\ufffd".encode()


def check_encoding(name: str) -> str:
    """Return the name of an encoding in Spark's spelling.

    Raises:
        ConfigurationError: Spark does not support this encoding.
    """
    if name.upper() not in _ENCODINGS:
        raise ConfigurationError(
            f"the encoding {name!r} is not supported",
            option="encoding",
            advice="use one of " + ", ".join(_ENCODINGS),
        )
    return name.upper()


def decoded(data: bytes | bytearray) -> str:
    """Decode UTF-8 as Java does: U+FFFD for invalid bytes, only one for an encoded surrogate."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _SURROGATE.sub(_REPLACEMENT, data).decode("utf-8", "replace")


def one_value(data: bytes | bytearray, large_type: pa.DataType) -> pa.Array:
    """Return an array whose single value is `data`, without a copy.

    `large_type` is `large_string` or `large_binary`.
    """
    offsets = pa.py_buffer(struct.pack("=qq", 0, len(data)))
    return pa.Array.from_buffers(large_type, 1, [None, offsets, pa.py_buffer(data)])


def valid_utf8(data: bytes | bytearray) -> bytes | bytearray:
    """Return the data if it is valid UTF-8; else with U+FFFD for invalid bytes, as in Java. Fast for ASCII."""
    if data.isascii():
        return data
    try:
        one_value(data, pa.large_string()).validate(full=True)
    except pa.ArrowInvalid:
        return decoded(data).encode()
    return data


def with_valid_utf8(texts: pa.Array) -> tuple[pa.Array, list[int]]:
    """Apply `valid_utf8` to each value; return the column and the indexes of the values that changed.

    Null stays null.
    """
    values = texts.to_pylist()
    spoiled: list[int] = []
    for row, value in enumerate(values):
        valid = None if value is None else valid_utf8(value)
        if valid is not value:
            values[row] = valid
            spoiled.append(row)
    return pa.array(values, pa.binary()), spoiled


def utf8_problem(text: bytes) -> str | None:
    """Return a message that names the first byte that is not UTF-8; None if the text is valid UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start} is not UTF-8"
    return None


def as_utf8(stream: BinaryIO, encoding: str, *, without: bytes = b"") -> BinaryIO:
    """Return a stream of the same text in UTF-8. A UTF-8 stream is returned unchanged, even if it is invalid.

    Closing the returned stream closes `stream`.

    Args:
        stream: The stream to decode.
        encoding: Its encoding.
        without: Bytes that are dropped if a stream of another encoding than UTF-8 begins with them.
    """
    name = check_encoding(encoding)
    return stream if name == "UTF-8" else decoded_stream(stream, _transcoded(stream, _ENCODINGS[name], without))


def _transcoded(stream: BinaryIO, codec: str, without: bytes) -> Iterator[bytes]:
    marks, data = _MARKS.get(codec), read_fully(stream.read, len(without))
    if data == without:
        data = b""
    if marks is not None:
        data += read_fully(stream.read, max(0, len(marks[0]) - len(data)))
        codec = codec if data.startswith(marks) else f"{codec}-be"
    decoder = codecs.getincrementaldecoder(codec)("replace")
    yield decoder.decode(data).encode("utf-8", "replace")
    while data := stream.read(STEP_BYTES):
        yield decoder.decode(data).encode("utf-8", "replace")
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")
