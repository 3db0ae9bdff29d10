# SPDX-License-Identifier: Apache-2.0
"""A port of Jackson's JSON tokenizer, for one record.

Spark continues after an error inside a record, and the state of Jackson determines how it reads the rest. So this
tokenizer is lazy where Jackson is lazy, and reads ahead where Jackson reads ahead.
"""

from __future__ import annotations

from forebay.formats.json.jackson.scanner import BLANKS, PLAIN, PLAIN_APOS, Scanner
from forebay.formats.json.jackson.text import Malformed
from forebay.formats.json.options import JsonOptions

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


class Tokens(Scanner):
    """The stream of JSON tokens of one record. See `Scanner` for the lower level."""

    def __init__(self, data: bytes, options: JsonOptions) -> None:
        super().__init__(data, options)
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
                raise Malformed("the record ends inside an object or array")
            return self._become(None)
        if byte in b"]}":
            return self._close(byte)
        context = self._context
        context.index += 1
        if context.kind != _ROOT and context.index > 0:
            if byte != 0x2C:
                raise Malformed("a comma is missing before the next value or name")
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
            raise Malformed("objects and arrays are nested more deeply than Jackson allows")

    def _close(self, byte: int) -> int | None:
        self.start = self._at - 1
        context = self._context
        if context.kind != (_ARRAY if byte == 0x5D else _OBJECT) or context.parent is None:
            raise Malformed("a closing bracket has no opening bracket")
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
            raise Malformed("a value is missing")
        if chr(byte).isidentifier() or chr(byte) in "$¢£¤¥":
            self._skip_word()
        raise Malformed("there is no JSON value where one is required")

    def _not_a_number(self, literal: bytes) -> int:
        if not self._options.allow_non_numeric_numbers:
            raise Malformed("NaN and Infinity are not allowed (option allowNonNumericNumbers)")
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
                raise Malformed("a number has no digits after its point")
            following = self._following()
        if following in (0x45, 0x65):
            self._at += 1
            text, kind = text + b"e" + self._exponent(), FLOAT
        if len(text) > MAX_NUMBER_DIGITS and sum(0x30 <= char <= 0x39 for char in text) > MAX_NUMBER_DIGITS:
            raise Malformed("a number is longer than Jackson allows")
        if self._context.kind == _ROOT and self._at < self._end and self._data[self._at] not in BLANKS:
            raise Malformed("a number is not followed by a blank, a comma or a closing bracket")
        self._text = text.decode()
        return kind

    def _whole_digits(self, byte: int) -> bytes:
        """Read the digits of a number before its point; `byte` is the first of them and has been read."""
        if byte != 0x30 or not 0x30 <= self._following() <= 0x39:
            return bytes([byte]) + self._digits()
        if not self._options.allow_numeric_leading_zeros:
            raise Malformed("a number has leading zeros (option allowNumericLeadingZeros)")
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
            raise Malformed("a number has no digits in its exponent")
        return sign + bytes([byte]) + self._digits()

    def _invalid_number(self, byte: int, sign: bytes) -> int:
        if byte == 0x49:
            following = self._byte()
            for literal, second in ((b"INF", 0x4E), (b"Infinity", 0x6E)):
                if following == second:
                    self._match(literal[1:])
                    return self._not_a_number(sign + literal)
        raise Malformed("a sign is not followed by a number")
