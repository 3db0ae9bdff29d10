# SPDX-License-Identifier: Apache-2.0
"""Text in JSON: Jackson's reading of UTF-8, Java's strings, base64."""

from __future__ import annotations

import binascii
import re

_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_GROUP = 4


class Malformed(Exception):
    """A record is no JSON, as Jackson sees it."""


class NoUtf8(Malformed):
    """A string has bytes that are no UTF-8; the tokenizer stands at `at` then."""

    def __init__(self, at: int) -> None:
        super().__init__("this is not UTF-8")
        self.at = at


class BadValue(Exception):
    """A value does not fit the type of its column."""


def utf8_of(text: str) -> bytes:
    """The bytes Java makes of a string: halves of surrogate pairs become question marks."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _PAIR.sub(_joined, text).encode("utf-8", "replace")


def _joined(pair: re.Match[str]) -> str:
    high, low = tuple(pair[0])
    return chr(0x10000 + (ord(high) - 0xD800 << 10) + ord(low) - 0xDC00)


def decoded_name(data: bytes) -> str:
    """The text of a name; half of a surrogate pair in it is an error."""
    return decoded_string(data, 0, len(data))[0]


def decoded_string(data: bytes, start: int, end: int, *, surrogates: bool = False) -> tuple[str, int]:
    """The text of a part of a record, and where it ends.

    Jackson also takes encodings that are needlessly long, and in skipped strings surrogates.

    Raises:
        NoUtf8: This is not UTF-8.
    """
    try:
        return data[start:end].decode(), end
    except UnicodeDecodeError:
        pass
    parts: list[str] = []
    at = start
    while at < end:
        byte = data[at]
        at += 1
        if byte < 0x80:
            parts.append(chr(byte))
            continue
        more = 1 if byte & 0xE0 == 0xC0 else 2 if byte & 0xF0 == 0xE0 else 3 if byte & 0xF8 == 0xF0 else 0
        if not more:
            raise NoUtf8(at)
        code = byte & (0x3F >> more)
        for _ in range(more):
            if at >= len(data) or data[at] & 0xC0 != 0x80:
                raise NoUtf8(min(at + 1, len(data)))
            code = code << 6 | data[at] & 0x3F
            at += 1
        if more == 3:
            code -= 0x10000
            # Beyond Unicode Java's arithmetic makes something else of the first half.
            parts.append(chr(0xD800 | code >> 10) + chr(0xDC00 | code & 0x3FF))
        elif 0xD800 <= code <= 0xDFFF and not surrogates:
            raise NoUtf8(at)
        else:
            parts.append(chr(code))
    return "".join(parts), at


def decoded_base64(text: str) -> bytes:
    """The bytes of a base64 text; blanks are allowed between groups of four characters, padding is not optional.

    Raises:
        BadValue: This is not base64.
    """
    if _BASE64.fullmatch(text):
        return binascii.a2b_base64(text)
    out = bytearray()
    at = 0
    while True:
        while at < len(text) and text[at] <= " ":
            at += 1
        if at == len(text):
            return bytes(out)
        group = text[at : at + _GROUP]
        if len(group) < _GROUP or not _BASE64.fullmatch(group):
            raise BadValue("this is not base64")
        out += binascii.a2b_base64(group)
        at += _GROUP
