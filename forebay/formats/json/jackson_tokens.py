# SPDX-License-Identifier: Apache-2.0
"""A port of Jackson's JSON tokenizer, for one record.

Spark continues after an error inside a record, and the state of Jackson determines how it reads the rest. So this
tokenizer is lazy where Jackson is lazy, and reads ahead where Jackson reads ahead.
"""

from __future__ import annotations

import binascii
import codecs
import re
import unicodedata

from forebay.formats.json.options import JsonOptions

# -- Encodings of text in JSON: UTF-8 as Jackson decodes it, Java's strings, base64.


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


class MalformedRecord(Exception):
    """Raised where Jackson reports that a record is not JSON. The text is the reason."""


class NoUtf8(MalformedRecord):
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
            body = data[len(mark) :]
            return body if marked == "utf-8" else body.decode(marked, "replace").encode()
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
        match = _BASE64_RUN.match(text, at)
        if match is None or match.end() == at:
            raise BadValue("this is not base64")
        out += binascii.a2b_base64(match[1])
        at = match.end()
    return bytes(out)


# -- A port of Jackson's JSON tokenizer, for one record.
#
# After an error it is at the same byte as Jackson, because Spark continues from there.


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

START_OBJECT, END_OBJECT, START_ARRAY, END_ARRAY, FIELD_NAME, STRING, INT, FLOAT, TRUE, FALSE, NULL = range(1, 12)
"""Kinds of tokens."""

MAX_DEPTH = 1000
MAX_NUMBER_DIGITS = 1000
"""Jackson's limits (StreamReadConstraints) for the levels of nesting and the digits of a number."""

_ROOT, _ARRAY, _OBJECT = range(3)


class _Context:
    """An open object or array, or the top level of the record."""

    __slots__ = ("index", "kind", "name", "parent")

    def __init__(self, kind: int, parent: _Context | None) -> None:
        self.kind = kind
        self.parent = parent
        self.index = -1
        self.name: str | None = None


class TokenStream:
    """The JSON tokens of one record without a byte order mark. The options say which extensions of JSON are allowed."""

    def __init__(self, data: bytes, options: JsonOptions) -> None:
        self._data = data
        self._end = len(data)
        self._at = 0
        self._options = options
        self._context = _Context(_ROOT, None)
        self._depth = 0
        self._ahead: int | None = None
        self.unread = False
        """Whether the current token is a string that is not decoded yet."""
        self._text = ""
        self.start = 0
        """The offset of the current value."""
        self.kind: int | None = None
        """The kind of the current token; None before the first and after the last."""

    def next(self) -> int | None:
        """Move to the next token and return its kind; None at the end of the record."""
        if self.kind == FIELD_NAME:
            return self._after_name()
        if self.unread:
            self.unread = False
            self._string(PLAIN, 0x22, skipped=True)
        byte = self._skip_blanks()
        if byte < 0:
            if self._context.kind != _ROOT:
                raise MalformedRecord("the record ends inside an object or array")
            return self._become(None)
        if byte in b"]}":
            return self._close(byte)
        context = self._context
        context.index += 1
        if context.kind != _ROOT and context.index > 0:
            if byte != 0x2C:
                raise MalformedRecord("a comma is missing before the next value or name")
            byte = self._inner_byte()
        if context.kind != _OBJECT:
            self.start = self._at - 1
            kind = self._value(byte)
            if kind in (START_OBJECT, START_ARRAY):
                self._open(kind)
            return self._become(kind)
        context.name = self._name(byte)
        self._become(FIELD_NAME)
        byte = self._skip_colon()
        self.start = self._at - 1
        self._ahead = self._value(byte)
        return FIELD_NAME

    def skip_children(self) -> None:
        """If the current token starts an object or array, move to its end; else do nothing."""
        if self.kind not in (START_OBJECT, START_ARRAY):
            return
        depth = 1
        while depth:
            kind = self.next()
            if kind is None:
                return
            if kind in (START_OBJECT, START_ARRAY):
                depth += 1
            elif kind in (END_OBJECT, END_ARRAY):
                depth -= 1

    def current_name(self) -> str | None:
        """Return the name of the field whose name or value is the current token; None outside objects."""
        context = self._context
        if self.kind in (START_OBJECT, START_ARRAY) and context.parent is not None:
            return context.parent.name
        return context.name

    def text(self) -> str:
        """Return the text of the current token, a string or a number."""
        if self.unread:
            self.unread = False
            self._text = self._string(PLAIN, 0x22)
        return self._text

    def base64(self) -> bytes:
        """Return the decoded bytes of the current base64 string. After an error, `next` skips its rest."""
        value = self._base64()
        self.unread = False
        return value

    def since(self, start: int) -> bytes:
        """Return the bytes of the record from offset `start` to the current offset."""
        return self._data[start : self._at]

    def _become(self, kind: int | None) -> int | None:
        self.kind = kind
        return kind

    def _after_name(self) -> int | None:
        kind, self._ahead = self._ahead, None
        if kind in (START_OBJECT, START_ARRAY):
            self._open(kind)
        return self._become(kind)

    def _open(self, kind: int) -> None:
        self._context = _Context(_OBJECT if kind == START_OBJECT else _ARRAY, self._context)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise MalformedRecord("objects and arrays are nested more deeply than Jackson allows")

    def _close(self, byte: int) -> int | None:
        self.start = self._at - 1
        context = self._context
        if context.kind != (_ARRAY if byte == 0x5D else _OBJECT) or context.parent is None:
            raise MalformedRecord("a closing bracket has no opening bracket")
        self._context = context.parent
        self._depth -= 1
        return self._become(END_ARRAY if byte == 0x5D else END_OBJECT)

    def _value(self, byte: int) -> int:
        if byte == 0x22:
            self.unread = True
            return STRING
        if byte == 0x7B:
            return START_OBJECT
        if byte == 0x5B:
            return START_ARRAY
        if byte == 0x2D or 0x30 <= byte <= 0x39:
            return self._number(byte)
        for literal, kind in ((b"true", TRUE), (b"false", FALSE), (b"null", NULL)):
            if byte == literal[0]:
                self._match(literal)
                return kind
        return self._unexpected_value(byte)

    def _unexpected_value(self, byte: int) -> int:
        if byte == 0x27 and self._options.allow_single_quotes:
            self._text = self._string(PLAIN_APOS, 0x27)
            return STRING
        for literal in (b"NaN", b"Infinity"):
            if byte == literal[0]:
                self._match(literal)
                return self._not_a_number(literal)
        if byte == 0x2B:
            return self._invalid_number(self._byte(), b"+")
        if byte in b",]}":
            raise MalformedRecord("a value is missing")
        if chr(byte).isidentifier() or chr(byte) in "$¢£¤¥":
            self._skip_word()
        raise MalformedRecord("there is no JSON value where one is required")

    def _not_a_number(self, literal: bytes) -> int:
        if not self._options.allow_non_numeric_numbers:
            raise MalformedRecord("NaN and Infinity are not allowed (option allowNonNumericNumbers)")
        self._text = literal.decode()
        return FLOAT

    def _number(self, byte: int) -> int:
        sign = b""
        if byte == 0x2D:
            sign = b"-"
            byte = self._byte()
            if not 0x30 <= byte <= 0x39:
                return self._invalid_number(byte, sign)
        text, kind = sign + self._whole_digits(byte), INT
        following = self._following()
        if following == 0x2E:
            self._at += 1
            fraction = self._digits()
            text, kind = text + b"." + fraction, FLOAT
            if not fraction:
                self._at = min(self._at + 1, self._end)
                raise MalformedRecord("a number has no digits after its point")
            following = self._following()
        if following in (0x45, 0x65):
            self._at += 1
            text, kind = text + b"e" + self._exponent(), FLOAT
        if len(text) > MAX_NUMBER_DIGITS and sum(0x30 <= char <= 0x39 for char in text) > MAX_NUMBER_DIGITS:
            raise MalformedRecord("a number is longer than Jackson allows")
        if self._context.kind == _ROOT and self._at < self._end and self._data[self._at] not in BLANKS:
            raise MalformedRecord("a number is not followed by a blank, a comma or a closing bracket")
        self._text = text.decode()
        return kind

    def _whole_digits(self, byte: int) -> bytes:
        """Read the digits of a number before its point; `byte` is the first of them and has been read."""
        if byte != 0x30 or not 0x30 <= self._following() <= 0x39:
            return bytes([byte]) + self._digits()
        if not self._options.allow_numeric_leading_zeros:
            raise MalformedRecord("a number has leading zeros (option allowNumericLeadingZeros)")
        return self._digits().lstrip(b"0") or b"0"

    def _following(self) -> int:
        """Return the next byte without consuming it; 0 at the end of the record."""
        return self._data[self._at] if self._at < self._end else 0

    def _exponent(self) -> bytes:
        byte = self._byte()
        sign = b""
        if byte in b"+-":
            sign = bytes([byte])
            byte = self._byte()
        if not 0x30 <= byte <= 0x39:
            raise MalformedRecord("a number has no digits in its exponent")
        return sign + bytes([byte]) + self._digits()

    def _invalid_number(self, byte: int, sign: bytes) -> int:
        if byte == 0x49:
            following = self._byte()
            for literal, second in ((b"INF", 0x4E), (b"Infinity", 0x6E)):
                if following == second:
                    self._match(literal[1:])
                    return self._not_a_number(sign + literal)
        raise MalformedRecord("a sign is not followed by a number")

    def _match(self, literal: bytes) -> None:
        """Read the rest of a literal (true, false, null, NaN …) whose first byte has been read."""
        for byte in literal[1:]:
            if self._at >= self._end or self._data[self._at] != byte:
                self._skip_word()
                raise MalformedRecord("an unquoted word is not true, false or null")
            self._at += 1
        if self._at < self._end:
            following = self._data[self._at]
            if following >= 0x80:
                # Jackson reads the first byte of the character as its second one.
                self._at += 0xC0 <= following < 0xF8
                raise MalformedRecord("an unquoted word is not a JSON value")
            if following >= 0x30 and following not in b"]}" and _part_of_word(chr(following)):
                self._skip_word()
                raise MalformedRecord("an unquoted word is not a JSON value")

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
        match = _DIGITS.match(self._data, self._at)
        digits = b"" if match is None else match[0]
        self._at += len(digits)
        return digits

    def _name(self, byte: int) -> str:
        if byte == 0x22:
            name = self._quoted_name(PLAIN, 0x22)
        elif byte == 0x27 and self._options.allow_single_quotes:
            name = self._quoted_name(PLAIN_APOS, 0x27)
        elif self._options.allow_unquoted_field_names and not _UNQUOTED_END.match(bytes([byte])):
            start = self._at - 1
            match = _UNQUOTED_END.search(self._data, self._at)
            if match is None:
                self._at = self._end
                raise MalformedRecord("the record ends inside a field name")
            self._at = match.start()
            name = self._data[start : self._at]
        else:
            self._char_for_error(byte)
            raise MalformedRecord("a field name is missing")
        if len(name) > MAX_NAME_BYTES:
            raise MalformedRecord("a field name is longer than Jackson allows")
        return decoded_name(name)

    def _quoted_name(self, plain: re.Pattern[bytes], quote: int) -> bytes:
        parts: list[bytes] = []
        while True:
            match = plain.match(self._data, self._at)
            if match is not None:
                parts.append(match[0])
                self._at = match.end()
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
            match = plain.match(self._data, self._at)
            if match is not None and match[0]:
                try:
                    text, self._at = decoded_string(self._data, self._at, match.end(), surrogates=skipped)
                except NoUtf8 as error:
                    self._at = error.at
                    raise
                parts.append(text)
                size += len(text)
                if size > MAX_TEXT_CHARS + _TEXT_STEP and not skipped:
                    # Jackson checks the size when it enlarges its buffer.
                    self._at -= size - MAX_TEXT_CHARS - _TEXT_STEP
                    raise MalformedRecord("a string is longer than Jackson allows")
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
            raise MalformedRecord("a string is longer than Jackson allows")
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
            raise MalformedRecord("a string has an unescaped control character (option allowUnquotedControlChars)")

    def _escaped(self) -> str:
        byte = self._byte()
        if byte in _ESCAPES:
            return _ESCAPES[byte]
        if byte != 0x75:
            char = self._char_for_error(byte)
            any_char = self._options.allow_backslash_escaping_any_character
            if any_char or (char == "'" and self._options.allow_single_quotes):
                return char
            raise MalformedRecord("a string has an unknown escape")
        value = 0
        for _ in range(4):
            digit = self._byte()
            if digit not in b"0123456789abcdefABCDEF":
                raise MalformedRecord("a string has a \\u escape without four hexadecimal digits")
            value = value * 16 + int(chr(digit), 16)
        return chr(value)

    def _byte(self) -> int:
        if self._at >= self._end:
            raise MalformedRecord("the record ends inside a value")
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
                raise MalformedRecord("there is a control character between values")
        return -1

    def _inner_byte(self) -> int:
        """Skip blanks and comments, and return the byte after them; raise MalformedRecord at the end of the record."""
        byte = self._skip_blanks()
        if byte < 0:
            raise MalformedRecord("the record ends inside an object or array")
        return byte

    def _skip_colon(self) -> int:
        if self._inner_byte() != 0x3A:
            raise MalformedRecord("a colon is missing after a field name")
        return self._inner_byte()

    def _skip_comment(self) -> None:
        if not self._options.allow_comments:
            raise MalformedRecord("comments are not allowed (option allowComments)")
        byte = self._byte()
        if byte == 0x2F:
            ends = [at for at in (self._data.find(b"\n", self._at), self._data.find(b"\r", self._at)) if at >= 0]
            self._at = min(ends) + 1 if ends else self._end
        elif byte == 0x2A:
            end = self._data.find(b"*/", self._at)
            if end < 0:
                self._at = self._end
                raise MalformedRecord("the record ends inside a comment")
            self._at = end + 2
        else:
            raise MalformedRecord("a slash is not followed by a second slash or an asterisk")


def _part_of_word(char: str) -> bool:
    """Return what Java's `Character.isJavaIdentifierPart` returns for a character."""
    category = unicodedata.category(char)
    if category == "Cc":
        return char < "\t" or "\x0e" <= char <= "\x1b" or char >= "\x7f"
    return category[0] in "LN" or category in ("Mn", "Mc", "Sc", "Pc", "Cf")


# Jackson's table for bytes: it reads each byte of a character beyond ASCII as Latin-1.
_UNQUOTED = b"".join(bytes([code]) for code in range(33, 256) if chr(code) in "@#*-+" or _part_of_word(chr(code)))
_UNQUOTED_END = re.compile(b"[^" + re.escape(_UNQUOTED) + b"]")
