# SPDX-License-Identifier: Apache-2.0
"""Infers the kind of one record (JsonInferSchema.inferField of Spark 4.2.0)."""

from __future__ import annotations

import decimal
import json
import re
from typing import Any, cast

from forebay.formats.json.inference.kinds import (
    DOUBLE,
    LONG,
    NULL,
    STRING,
    Digits,
    Kind,
    ListOf,
    Merging,
    Simple,
    Struct,
)
from forebay.formats.json.jackson import tokens as token
from forebay.formats.json.jackson.text import Malformed, as_utf8
from forebay.formats.json.jackson.values import infers_as_timestamp
from forebay.formats.json.options import JsonOptions
from forebay.formats.json.stdlib_reader import needs_jackson, refuse_constant

_MAX_DIGITS = 38
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,9})?", re.ASCII)
_BLANKS = " \t\r\n"


class _Open:
    """An object or array whose end has not been read yet, with the kinds of its values so far."""

    def __init__(self, *, is_object: bool) -> None:
        self.name = ""
        self._fields: list[tuple[str, Kind]] | None = [] if is_object else None
        self._elements = Merging()

    def add(self, kind: Kind) -> None:
        """Add the kind of the value of the current field `name`, or of the next element."""
        if self._fields is None:
            self._elements.add(kind)
        else:
            self._fields.append((self.name, kind))

    def kind(self) -> Kind:
        """Return the kind of the object or array, after its end has been read."""
        return ListOf(self._elements.result()) if self._fields is None else Struct.of(self._fields)


class KindReader:
    """Infers the kind of each record, one record at a time."""

    def __init__(self, options: JsonOptions) -> None:
        self._options = options
        # Objects and numbers become kinds as they are decoded.
        self._decode = json.JSONDecoder(
            object_pairs_hook=lambda pairs: Struct.of([(name, self._kind(value)) for name, value in pairs]),
            parse_float=self._fraction,
            parse_int=self._whole,
            parse_constant=refuse_constant,
        ).raw_decode

    def read(self, record: bytes) -> Kind:
        """Return the kind of one record.

        Raises:
            Malformed: The record is not JSON.
        """
        try:
            text = record.decode().lstrip(_BLANKS)
            if text[:1] in ("{", "[") and not needs_jackson(text):
                return self._kind(self._decode(text)[0])
        except (ValueError, RecursionError):
            pass
        tokens = token.Tokens(as_utf8(record, self._options.encoding), self._options)
        tokens.next()
        return self._field(tokens)

    def _kind(self, value: Any) -> Kind:  # noqa: ANN401 - any value of the json module
        if value is None:
            return NULL
        if isinstance(value, str):
            return self._string(value)
        if isinstance(value, bool):
            return self._boolean()
        if not isinstance(value, list):
            return cast("Kind", value)
        kinds = Merging()
        for item in value:
            kinds.add(self._kind(item))
        return ListOf(kinds.result())

    def _field(self, tokens: token.Tokens) -> Kind:
        """Return the kind of the value that begins at the current token.

        The method does not recurse, because Jackson accepts up to a thousand levels of nesting.
        """
        open_parts: list[_Open] = []
        while True:
            while tokens.kind == token.FIELD_NAME:
                tokens.next()
            if tokens.kind in (token.START_OBJECT, token.START_ARRAY):
                open_parts.append(_Open(is_object=tokens.kind == token.START_OBJECT))
            elif open_parts:
                open_parts[-1].add(self._scalar(tokens))
            else:
                return self._scalar(tokens)
            while tokens.next() in (None, token.END_OBJECT, token.END_ARRAY):
                kind = open_parts.pop().kind()
                if not open_parts:
                    return kind
                open_parts[-1].add(kind)
            open_parts[-1].name = tokens.current_name() or ""

    def _scalar(self, tokens: token.Tokens) -> Kind:
        kind = tokens.kind
        if kind is None or kind == token.NULL:
            return NULL
        if kind == token.STRING:
            return self._string(tokens.text())
        if kind == token.INT:
            return self._whole(tokens.text())
        if kind == token.FLOAT:
            return self._fraction(tokens.text())
        if kind in (token.TRUE, token.FALSE):
            return self._boolean()
        raise Malformed("a value is missing")

    def _boolean(self) -> Kind:
        return STRING if self._options.primitives_as_string else Simple.BOOLEAN

    def _whole(self, text: str) -> Kind:
        if self._options.primitives_as_string:
            return STRING
        value = int(text)
        if -(1 << 63) <= value < 1 << 63:
            return LONG
        digits = len(str(abs(value)))
        return Digits(digits, 0) if digits <= _MAX_DIGITS else DOUBLE

    def _fraction(self, text: str) -> Kind:
        if self._options.primitives_as_string:
            return STRING
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
            # Some writers write null as an empty string.
            return NULL
        if self._options.prefers_decimal and _NUMBER.fullmatch(text.replace(",", "")):
            precision, scale = _size(text.replace(",", ""))
            if 0 <= scale <= precision <= _MAX_DIGITS:
                return Digits(precision, scale)
        if self._options.infer_timestamp and infers_as_timestamp(text, self._options):
            return Simple.TIMESTAMP
        return STRING


def _size(text: str) -> tuple[int, int]:
    """Return the precision and scale that Java's BigDecimal gives to a number's text."""
    _, digits, exponent = decimal.Decimal(text).as_tuple()
    if not isinstance(exponent, int):
        raise decimal.InvalidOperation
    return len(digits), -exponent
