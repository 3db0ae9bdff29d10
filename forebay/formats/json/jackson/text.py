# SPDX-License-Identifier: Apache-2.0
"""Encodings of text in JSON: UTF-8 as Jackson decodes it, Java's strings, base64."""

from __future__ import annotations

import binascii
import codecs
import re

SURROGATES = re.compile("[\ud800-\udbff][\udc00-\udfff]")
# The repetitions are possessive: others keep a state for each group, which takes many times the size of the text.
_BASE64_RUN = re.compile(r"[\0- ]*+((?:[A-Za-z0-9+/]{4})*+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?)")
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_MARK_BYTES = 4  # Jackson looks for a mark only in a record of at least this length
# The first bytes of a record, 0 for a zero byte and 1 for any other, and the encoding that they imply.
_ZEROS = (("0001", "utf-32-be"), ("1000", "utf-32-le"), ("01", "utf-16-be"), ("10", "utf-16-le"))


class Malformed(Exception):
    """Raised where Jackson reports that a record is not JSON. The text is the reason."""


class NoUtf8(Malformed):
    """Raised where a string has bytes that are not UTF-8. The tokenizer continues at the byte offset `at`."""

    def __init__(self, at: int) -> None:
        super().__init__("this is not UTF-8")
        self.at = at


class BadValue(Exception):
    """Raised where a value does not fit the type of its column."""


def utf8_of(text: str) -> bytes:
    """Encode a string in UTF-8 as Java does: half of a surrogate pair becomes a question mark."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return SURROGATES.sub(_joined, text).encode("utf-8", "replace")


def _joined(pair: re.Match[str]) -> str:
    high, low = tuple(pair[0])
    return chr(0x10000 + (ord(high) - 0xD800 << 10) + ord(low) - 0xDC00)


def decoded_name(data: bytes) -> str:
    """Decode the UTF-8 of a name.

    Raises:
        NoUtf8: The name is not UTF-8, or contains half of a surrogate pair.
    """
    return decoded_string(data, 0, len(data))[0]


def decoded_string(data: bytes, start: int, end: int, *, surrogates: bool = False) -> tuple[str, int]:
    """Decode the UTF-8 in `data[start:end]` as Jackson does; return the text and the index after it.

    Jackson also accepts overlong encodings and, with `surrogates` (for skipped strings), encoded surrogates.

    Raises:
        NoUtf8: A byte is not UTF-8.
    """
    try:
        return data[start:end].decode(), end
    except UnicodeDecodeError:
        pass
    parts: list[str] = []
    at = start
    while at < end:
        if data[at] < 0x80:
            parts.append(chr(data[at]))
            at += 1
            continue
        first = at
        code, at = decoded_char(data, at)
        if at - first == 4:
            code -= 0x10000
            # Jackson computes a surrogate pair also for overlong encodings, and for code points beyond Unicode.
            parts.append(chr((0xD800 | code >> 10) & 0xFFFF) + chr(0xDC00 | code & 0x3FF))
        elif 0xD800 <= code <= 0xDFFF and not surrogates:
            raise NoUtf8(at)
        else:
            parts.append(chr(code))
    return "".join(parts), at


def decoded_char(data: bytes, at: int) -> tuple[int, int]:
    """Decode the UTF-8 character of two to four bytes at index `at`; return its code point and the index after it.

    Raises:
        NoUtf8: The bytes are not UTF-8.
    """
    byte = data[at]
    more = 1 if byte & 0xE0 == 0xC0 else 2 if byte & 0xF0 == 0xE0 else 3 if byte & 0xF8 == 0xF0 else 0
    at += 1
    if not more:
        raise NoUtf8(at)
    code = byte & (0x3F >> more)
    for _ in range(more):
        if at >= len(data) or data[at] & 0xC0 != 0x80:
            raise NoUtf8(min(at + 1, len(data)))
        code = code << 6 | data[at] & 0x3F
        at += 1
    return code, at


def as_utf8(data: bytes, encoding: str | None) -> bytes:
    """Return a record in UTF-8.

    Args:
        data: The record.
        encoding: The option `encoding`. With it, the record has been decoded, and a byte order mark is a part of it.
            If it is None, the first bytes tell the encoding, as in Jackson, and a mark is dropped.
    """
    head = data[:4]
    if encoding is not None or (head.isascii() and 0 not in head):
        return data
    for mark, marked in _MARKS if len(head) == _MARK_BYTES else ():
        if data.startswith(mark):
            rest = data[len(mark) :]
            return rest if marked == "utf-8" else rest.decode(marked, "replace").encode()
    zeros = "".join("01"[byte != 0] for byte in head)
    for pattern, implied in _ZEROS:
        if zeros.startswith(pattern):
            return data.decode(implied, "replace").encode()
    return data


def decoded_base64(text: str) -> bytes:
    """Decode a base64 text. Blanks may separate its groups of four characters.

    Raises:
        BadValue: The text is not base64.
    """
    out = bytearray()
    at = 0
    while at < len(text):
        found = _BASE64_RUN.match(text, at)
        if found is None or found.end() == at:
            raise BadValue("this is not base64")
        out += binascii.a2b_base64(found[1])
        at = found.end()
    return bytes(out)
