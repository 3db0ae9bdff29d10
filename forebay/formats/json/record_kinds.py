# SPDX-License-Identifier: Apache-2.0
"""The kind of one record, for inference (JsonInferSchema.inferField of Spark 4.2.0)."""

from __future__ import annotations

import decimal
import json
import re
from typing import Any

from forebay.formats.json.exact import as_utf8
from forebay.formats.json.kinds import DOUBLE, LONG, NULL, STRING, Digits, Kind, ListOf, Merging, Simple, Struct
from forebay.formats.json.options import JsonOptions
from forebay.formats.json.quick import has_odd_text
from forebay.formats.json.text import Malformed
from forebay.formats.json.tokens import (
    END_ARRAY,
    END_OBJECT,
    FIELD_NAME,
    INT,
    START_ARRAY,
    START_OBJECT,
    Tokens,
)
from forebay.formats.json.values import infers_as_timestamp

_MAX_DIGITS = 38
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,9})?", re.ASCII)
_BLANKS = " \t\r\n"


class _Int(str):
    __slots__ = ()


class _Float(str):
    __slots__ = ()


class _Pairs(list[tuple[str, Any]]):
    __slots__ = ()


def _refuse(text: str) -> None:
    raise ValueError(text)


class _Open:
    """An object or array of which more is to come."""

    def __init__(self, *, is_object: bool) -> None:
        self.name = ""
        self._fields: list[tuple[str, Kind]] | None = [] if is_object else None
        self._elements = Merging()

    def add(self, kind: Kind) -> None:
        """Take in the value of the name at hand, or the next element."""
        if self._fields is None:
            self._elements.add(kind)
        else:
            self._fields.append((self.name, kind))

    def kind(self) -> Kind:
        """What it is, at its end."""
        return ListOf(self._elements.result()) if self._fields is None else Struct.of(self._fields)


class KindReader:
    """Finds the kinds of records."""

    def __init__(self, options: JsonOptions) -> None:
        self._options = options
        self._decode = json.JSONDecoder(
            object_pairs_hook=_Pairs, parse_float=_Float, parse_int=_Int, parse_constant=_refuse
        ).raw_decode

    def read(self, record: bytes) -> Kind:
        """The kind of a record of any form.

        Raises:
            Malformed: It is no JSON.
        """
        try:
            text = record.decode().lstrip(_BLANKS)
            if text[:1] in ("{", "[") and not has_odd_text(text):
                return self._of(self._decode(text)[0])
        except (ValueError, RecursionError):
            pass
        tokens = Tokens(as_utf8(record), self._options)
        tokens.next()
        return self._field(tokens)

    def _of(self, value: Any) -> Kind:  # noqa: ANN401 - what json makes of any value
        if value is None:
            return NULL
        if isinstance(value, _Int | _Float):
            return self._number(str(value), whole=isinstance(value, _Int))
        if isinstance(value, str):
            return self._string(value)
        if isinstance(value, bool):
            return self._boolean()
        if isinstance(value, _Pairs):
            return Struct.of([(name, self._of(inside)) for name, inside in value])
        kinds = Merging()
        for item in value:
            kinds.add(self._of(item))
        return ListOf(kinds.result())

    def _field(self, tokens: Tokens) -> Kind:
        """The kind of the value at the current token. Without recursion: Jackson takes a thousand levels."""
        open_parts: list[_Open] = []
        while True:
            while tokens.kind == FIELD_NAME:
                tokens.next()
            if tokens.kind in (START_OBJECT, START_ARRAY):
                open_parts.append(_Open(is_object=tokens.kind == START_OBJECT))
            elif open_parts:
                open_parts[-1].add(self._scalar(tokens))
            else:
                return self._scalar(tokens)
            while tokens.next() in (None, END_OBJECT, END_ARRAY):
                kind = open_parts.pop().kind()
                if not open_parts:
                    return kind
                open_parts[-1].add(kind)
            open_parts[-1].name = tokens.current_name() or ""

    def _scalar(self, tokens: Tokens) -> Kind:
        match tokens.kind:
            case None | 11:
                return NULL
            case 6:
                return self._string(tokens.text())
            case 7 | 8:
                return self._number(tokens.text(), whole=tokens.kind == INT)
            case 9 | 10:
                return self._boolean()
        raise Malformed("a value is missing")

    def _boolean(self) -> Kind:
        return STRING if self._options.primitives_as_string else Simple.BOOLEAN

    def _number(self, text: str, *, whole: bool) -> Kind:
        if self._options.primitives_as_string:
            return STRING
        if whole:
            value = int(text)
            if -(1 << 63) <= value < 1 << 63:
                return LONG
            digits = len(str(abs(value)))
            return Digits(digits, 0) if digits <= _MAX_DIGITS else DOUBLE
        if not self._options.prefers_decimal:
            return DOUBLE
        try:
            precision, scale = _size(text)
        except decimal.InvalidOperation:
            return DOUBLE
        precision = max(precision, scale)
        return Digits(precision, scale) if scale >= 0 and precision <= _MAX_DIGITS else DOUBLE

    def _string(self, text: str) -> Kind:
        if not text:
            # Some writers make no difference between an empty string and null.
            return NULL
        if self._options.prefers_decimal and _NUMBER.fullmatch(text.replace(",", "")):
            precision, scale = _size(text.replace(",", ""))
            if 0 <= scale <= precision <= _MAX_DIGITS:
                return Digits(precision, scale)
        if self._options.infer_timestamp and infers_as_timestamp(text, self._options):
            return Simple.TIMESTAMP
        return STRING


def _size(text: str) -> tuple[int, int]:
    """Precision and scale of Java's BigDecimal of a text."""
    _, digits, exponent = decimal.Decimal(text).as_tuple()
    if not isinstance(exponent, int):
        raise decimal.InvalidOperation
    return len(digits), -exponent
