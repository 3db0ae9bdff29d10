# SPDX-License-Identifier: Apache-2.0
"""Scans names, strings, escapes, words, blanks and comments of a JSON record, as Jackson does.

After an error the scanner is at the same byte as Jackson, because Spark continues from there.
"""

from __future__ import annotations

import re
import unicodedata

from forebay.formats.json.jackson.text import (
    SURROGATES,
    BadValue,
    Malformed,
    NoUtf8,
    decoded_base64,
    decoded_char,
    decoded_name,
    decoded_string,
    utf8_of,
)
from forebay.formats.json.options import JsonOptions

MAX_NAME_BYTES = 50_000
MAX_TEXT_CHARS = 20_000_000
"""Jackson's limits (StreamReadConstraints) for the bytes of a name and the characters of a text."""

BLANKS = b" \t\r\n"
PLAIN = re.compile(rb'[^"\\\x00-\x1f]*')
PLAIN_APOS = re.compile(rb"[^'\\\x00-\x1f]*")
"""Match the bytes of a string in double quotes, or in single quotes, that need no unescaping."""

_TEXT_STEP = 65_536
_DIGITS = re.compile(rb"[0-9]*")
_BASE64 = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
_ESCAPES = dict(zip(b'btnfr"/\\', '\b\t\n\f\r"/\\', strict=True))


class Scanner:
    """Scans one record without a byte order mark. The options say which extensions of JSON are allowed."""

    def __init__(self, data: bytes, options: JsonOptions) -> None:
        self._data = data
        self._end = len(data)
        self._at = 0
        self._options = options

    def _match(self, literal: bytes) -> None:
        """Read the rest of a literal (true, false, null, NaN …) whose first byte has been read."""
        for byte in literal[1:]:
            if self._at >= self._end or self._data[self._at] != byte:
                self._skip_word()
                raise Malformed("an unquoted word is not true, false or null")
            self._at += 1
        if self._at < self._end:
            following = self._data[self._at]
            if following >= 0x80:
                # Jackson reads the first byte of the character as its second one.
                self._at += 0xC0 <= following < 0xF8
                raise Malformed("an unquoted word is not a JSON value")
            if following >= 0x30 and following not in b"]}" and _part_of_word(chr(following)):
                self._skip_word()
                raise Malformed("an unquoted word is not a JSON value")

    def _skip_word(self) -> None:
        """Skip the rest of an unknown word (256 characters at most) and the character after it.

        Jackson does so to report the word.
        """
        for _ in range(256):
            if self._at >= self._end:
                return
            self._at += 1
            if not _part_of_word(self._char_for_error(self._data[self._at - 1])):
                return

    def _digits(self) -> bytes:
        found = _DIGITS.match(self._data, self._at)
        digits = b"" if found is None else found[0]
        self._at += len(digits)
        return digits

    def _name(self, byte: int) -> str:
        if byte == 0x22:
            name = self._quoted_name(PLAIN, 0x22)
        elif byte == 0x27 and self._options.allow_single_quotes:
            name = self._quoted_name(PLAIN_APOS, 0x27)
        elif self._options.allow_unquoted_field_names and not _UNQUOTED_END.match(bytes([byte])):
            start = self._at - 1
            found = _UNQUOTED_END.search(self._data, self._at)
            if found is None:
                self._at = self._end
                raise Malformed("the record ends inside a field name")
            self._at = found.start()
            name = self._data[start : self._at]
        else:
            self._char_for_error(byte)
            raise Malformed("a field name is missing")
        if len(name) > MAX_NAME_BYTES:
            raise Malformed("a field name is longer than Jackson allows")
        return decoded_name(name)

    def _quoted_name(self, plain: re.Pattern[bytes], quote: int) -> bytes:
        parts: list[bytes] = []
        while True:
            found = plain.match(self._data, self._at)
            if found is not None:
                parts.append(found[0])
                self._at = found.end()
            byte = self._byte()
            if byte == quote:
                return b"".join(parts)
            if byte == 0x5C:
                parts.append(self._escaped_in_name())
            else:
                self._allow_control()
                parts.append(bytes([byte]))

    def _escaped_in_name(self) -> bytes:
        """Return in UTF-8 the character that an escape in a name stands for; a surrogate pair of escapes is one.

        Half of a surrogate pair is an error only at the end of the name.
        """
        char = self._escaped()
        if "\ud800" <= char <= "\udbff" and self._data.startswith(b"\\u", self._at):
            self._at += 1
            char += self._escaped()
        return utf8_of(char) if SURROGATES.fullmatch(char) else char.encode("utf-8", "surrogatepass")

    def _string(self, plain: re.Pattern[bytes], quote: int, *, skipped: bool = False) -> str:
        """Return the text of a string up to its closing `quote`, with escapes decoded.

        Args:
            plain: Matches bytes that need no decoding.
            quote: The byte that ends the string.
            skipped: Whether the text is not needed. Then the limits of length do not apply.
        """
        parts: list[str] = []
        size = 0
        while True:
            found = plain.match(self._data, self._at)
            if found is not None and found[0]:
                try:
                    text, self._at = decoded_string(self._data, self._at, found.end(), surrogates=skipped)
                except NoUtf8 as error:
                    self._at = error.at
                    raise
                parts.append(text)
                size += len(text)
                if size > MAX_TEXT_CHARS + _TEXT_STEP and not skipped:
                    # Jackson checks the size when it enlarges its buffer.
                    self._at -= size - MAX_TEXT_CHARS - _TEXT_STEP
                    raise Malformed("a string is longer than Jackson allows")
            byte = self._byte()
            if byte == quote:
                break
            if byte == 0x5C:
                parts.append(self._escaped())
            else:
                self._allow_control()
                parts.append(chr(byte))
            size += 1
        if size > MAX_TEXT_CHARS and not skipped:
            raise Malformed("a string is longer than Jackson allows")
        return "".join(parts)

    def _base64(self) -> bytes:
        """Decode a base64 string up to its closing quote. Blanks may separate its groups of four characters."""
        out: list[str] = []
        group = ""
        while True:
            byte = self._byte()
            if byte == 0x22 and len(group) != 1 and group[2:] != "=":
                break
            char = chr(byte) if byte != 0x5C else self._escaped()
            if char <= " " and not group:
                continue
            group += char
            if char not in _BASE64 and not (char == "=" and len(group) > 2):
                raise BadValue
            if len(group) == 4:
                if group[2] == "=" != group[3]:
                    raise BadValue
                out.append(group)
                group = ""
        if group:
            self._at -= 1
            raise BadValue
        return decoded_base64(" ".join(out))

    def _allow_control(self) -> None:
        if not self._options.allow_unquoted_control_chars:
            raise Malformed("a string has an unescaped control character (option allowUnquotedControlChars)")

    def _escaped(self) -> str:
        byte = self._byte()
        if byte in _ESCAPES:
            return _ESCAPES[byte]
        if byte != 0x75:
            char = self._char_for_error(byte)
            any_char = self._options.allow_backslash_escaping_any_character
            if any_char or (char == "'" and self._options.allow_single_quotes):
                return char
            raise Malformed("a string has an unknown escape")
        value = 0
        for _ in range(4):
            digit = self._byte()
            if digit not in b"0123456789abcdefABCDEF":
                raise Malformed("a string has a \\u escape without four hexadecimal digits")
            value = value * 16 + int(chr(digit), 16)
        return chr(value)

    def _byte(self) -> int:
        if self._at >= self._end:
            raise Malformed("the record ends inside a value")
        self._at += 1
        return self._data[self._at - 1]

    def _char_for_error(self, byte: int) -> str:
        """Return the character whose first byte was just read, and move after it.

        Jackson does so to report an error.
        """
        if byte < 0x80:
            return chr(byte)
        try:
            code, self._at = decoded_char(self._data, self._at - 1)
        except NoUtf8 as error:
            self._at = error.at
            raise
        return chr(code & 0xFFFF)

    def _skip_blanks(self) -> int:
        """Skip blanks and comments, and return the byte after them; -1 at the end of the record."""
        while self._at < self._end:
            byte = self._data[self._at]
            self._at += 1
            if byte > 0x20:
                if byte != 0x2F:
                    return byte
                self._skip_comment()
            elif byte not in BLANKS:
                raise Malformed("there is a control character between values")
        return -1

    def _inner_byte(self) -> int:
        """Skip blanks and comments, and return the byte after them; raise Malformed at the end of the record."""
        byte = self._skip_blanks()
        if byte < 0:
            raise Malformed("the record ends inside an object or array")
        return byte

    def _skip_colon(self) -> int:
        if self._inner_byte() != 0x3A:
            raise Malformed("a colon is missing after a field name")
        return self._inner_byte()

    def _skip_comment(self) -> None:
        if not self._options.allow_comments:
            raise Malformed("comments are not allowed (option allowComments)")
        byte = self._byte()
        if byte == 0x2F:
            ends = [at for at in (self._data.find(b"\n", self._at), self._data.find(b"\r", self._at)) if at >= 0]
            self._at = min(ends) + 1 if ends else self._end
        elif byte == 0x2A:
            end = self._data.find(b"*/", self._at)
            if end < 0:
                self._at = self._end
                raise Malformed("the record ends inside a comment")
            self._at = end + 2
        else:
            raise Malformed("a slash is not followed by a second slash or an asterisk")


def _part_of_word(char: str) -> bool:
    """Return what Java's `Character.isJavaIdentifierPart` returns for a character."""
    category = unicodedata.category(char)
    if category == "Cc":
        return char < "\t" or "\x0e" <= char <= "\x1b" or char >= "\x7f"
    return category[0] in "LN" or category in ("Mn", "Mc", "Sc", "Pc", "Cf")


# Jackson's table for bytes: it reads each byte of a character beyond ASCII as Latin-1.
_UNQUOTED = b"".join(bytes([code]) for code in range(33, 256) if chr(code) in "@#*-+" or _part_of_word(chr(code)))
_UNQUOTED_END = re.compile(b"[^" + re.escape(_UNQUOTED) + b"]")
