# SPDX-License-Identifier: Apache-2.0
"""The kind of one record, for inference (JsonInferSchema.inferField of Spark 4.2.0)."""

from __future__ import annotations

import decimal
import json
import re
from typing import Any

from forebay.formats.json.exact import as_utf8
from forebay.formats.json.kinds import DOUBLE, LONG, NULL, STRING, Digits, Kind, ListOf, Simple, Struct, merged
from forebay.formats.json.options import JsonOptions
from forebay.formats.json.quick import has_odd_text
from forebay.formats.json.text import Malformed
from forebay.formats.json.tokens import (
    END_ARRAY,
    END_OBJECT,
    FIELD_NAME,
    INT,
    Tokens,
)
from forebay.formats.json.values import infers_as_timestamp

_MAX_DIGITS = 38
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,9})?", re.ASCII)
_BLANKS = " \t\r\n"


class _Int(str):
    __slots__ = ()


class _Float(str):
    __slots__ = ()


class _Pairs(list[tuple[str, Any]]):
    __slots__ = ()


def _refuse(text: str) -> None:
    raise ValueError(text)


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
        kind: Kind = NULL
        for item in value:
            kind = merged(kind, self._of(item))
        return ListOf(kind)

    def _field(self, tokens: Tokens) -> Kind:
        while tokens.kind == FIELD_NAME:
            tokens.next()
        match tokens.kind:
            case None | 11:
                return NULL
            case 6:
                return self._string(tokens.text())
            case 1:
                fields: list[tuple[str, Kind]] = []
                while tokens.next() not in (None, END_OBJECT):
                    fields.append((tokens.current_name() or "", self._field(tokens)))
                return Struct.of(fields)
            case 3:
                kind: Kind = NULL
                while tokens.next() not in (None, END_ARRAY):
                    kind = merged(kind, self._field(tokens))
                return ListOf(kind)
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
