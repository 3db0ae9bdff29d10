# SPDX-License-Identifier: Apache-2.0
"""Reads one record, even a malformed one, as Spark's JacksonParser (4.2.0) does: the same steps on the same tokens.

It is slow: `stdlib_reader` passes on only the records that it cannot read as Spark does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from forebay.formats.json.jackson.text import BadValue, Malformed, as_utf8, utf8_of
from forebay.formats.json.jackson.tokens import (
    END_ARRAY,
    END_OBJECT,
    FALSE,
    FIELD_NAME,
    FLOAT,
    INT,
    NULL,
    START_ARRAY,
    START_OBJECT,
    STRING,
    TRUE,
    Tokens,
)
from forebay.formats.json.jackson.values import Scalar, scalar
from forebay.formats.json.options import JsonOptions
from forebay.formats.records.encodings import valid_utf8

_Converter: TypeAlias = Callable[[Tokens], Any]
"""Converts the value at the current token to a value for `build.column`; raises BadValue, Malformed or _Partial."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The rows of one record, and whether it is malformed. A malformed record without rows gives one row of nulls."""

    rows: list[list[Any]]
    bad: bool = False


class _Partial(Exception):
    """Raised if only a part of a struct, list or map could be read. `value` is that part."""

    def __init__(self, value: list[Any]) -> None:
        super().__init__()
        self.value = value


class JacksonParser:
    """Reads records of one schema.

    With `embedded`, each record is the text of one cell of a column, as for Spark's from_json. Then its encoding is not
    detected but is UTF-8, and an array is malformed.
    """

    def __init__(self, fields: list[pa.Field], options: JsonOptions, *, embedded: bool = False) -> None:
        self._options = options
        self._embedded = embedded
        root = pa.struct(fields)
        self._object = _object(root, options)
        self._objects = _array(_converter(root, options), nulls=False)

    def read(self, record: bytes) -> Outcome:
        """Read one record. The rows of the result are lists of values in the forms that `build.column` expects."""
        kind: int | None = None
        try:
            tokens = Tokens(record if self._embedded else as_utf8(record, self._options.encoding), self._options)
            kind = tokens.next()
            if kind is None:
                return Outcome([])
            if kind == START_OBJECT:
                return Outcome([self._object(tokens)])
            if kind == START_ARRAY and not self._embedded:
                return Outcome(self._objects(tokens))
        except _Partial as partial:
            return Outcome(partial.value if kind == START_ARRAY else [partial.value], bad=True)
        except (Malformed, BadValue):
            pass
        return Outcome([], bad=True)


def _converter(data_type: pa.DataType, options: JsonOptions) -> _Converter:
    """Return the function that converts the value at the current token to `data_type`. JSON null fits every type."""
    convert_value = _value_converter(data_type, options)

    def convert(tokens: Tokens) -> Any:  # noqa: ANN401 - a value of any type
        while tokens.kind == FIELD_NAME:
            tokens.next()
        return None if tokens.kind is None or tokens.kind == NULL else convert_value(tokens)

    return convert


def _value_converter(data_type: pa.DataType, options: JsonOptions) -> _Converter:
    if isinstance(data_type, pa.StructType):
        return _of_kind(START_OBJECT, _object(data_type, options))
    if isinstance(data_type, pa.ListType):
        return _of_kind(START_ARRAY, _array(_converter(data_type.value_type, options)))
    if isinstance(data_type, pa.MapType):
        return _of_kind(START_OBJECT, _map(_converter(data_type.item_type, options)))
    if pa.types.is_string(data_type):
        return _text
    parse = scalar(data_type, options)
    return _skip if parse is None else _scalar(parse, base64=pa.types.is_binary(data_type))


def _of_kind(kind: int, convert: _Converter) -> _Converter:
    """Return a converter that calls `convert` for tokens of one kind, and refuses other tokens.

    As in Spark, it reads the text of a string before it refuses the string, because the text may be malformed.
    """

    def checked(tokens: Tokens) -> Any:  # noqa: ANN401 - a value of any type
        if tokens.kind == STRING:
            tokens.text()
        if tokens.kind != kind:
            raise BadValue
        return convert(tokens)

    return checked


def _scalar(parse: Scalar, *, base64: bool) -> _Converter:
    def convert(tokens: Tokens) -> object:
        kind = tokens.kind
        if kind == STRING:
            return tokens.base64() if base64 and tokens.unread else parse(STRING, tokens.text())
        if kind in (INT, FLOAT):
            return parse(kind, tokens.text())
        if kind in (TRUE, FALSE):
            return parse(kind, "")
        raise BadValue

    return convert


def _text(tokens: Tokens) -> bytes:
    if tokens.kind == STRING:
        return utf8_of(tokens.text())
    start = tokens.start
    tokens.skip_children()
    return bytes(valid_utf8(tokens.since(start)))  # Jackson does not decode strings that it skips


def _skip(_: Tokens) -> None:
    """Convert any value to null, for a column of the type null."""


def _object(data_type: pa.StructType, options: JsonOptions) -> _Converter:
    """Return the function that converts an object to the list of its fields' values."""
    places = {field.name: place for place, field in enumerate(data_type)}
    converters = [_converter(field.type, options) for field in data_type]

    def convert(tokens: Tokens) -> list[Any]:
        row: list[Any] = [None] * len(converters)
        bad = False
        while tokens.next() not in (None, END_OBJECT):
            name = tokens.current_name()
            place = None if name is None else places.get(name)
            if place is None:
                tokens.skip_children()
                continue
            try:
                row[place] = converters[place](tokens)
            except _Partial as partial:
                row[place], bad = partial.value, True
            except (Malformed, BadValue):
                bad = True
                tokens.skip_children()
        if bad:
            raise _Partial(row)
        return row

    return convert


def _array(element: _Converter, *, nulls: bool = True) -> _Converter:
    """Return the function that converts an array to the list of its elements."""

    def convert(tokens: Tokens) -> list[Any]:
        values: list[Any] = []
        bad = False
        while tokens.next() not in (None, END_ARRAY):
            try:
                value = element(tokens)
            except _Partial as partial:
                value, bad = partial.value, True
            if value is None and not nulls:
                raise BadValue
            values.append(value)
        if bad:
            raise _Partial(values)
        return values

    return convert


def _map(item: _Converter) -> _Converter:
    """Return the function that converts an object to a list of pairs of name and value."""

    def convert(tokens: Tokens) -> list[tuple[bytes, Any]]:
        pairs: list[tuple[bytes, Any]] = []
        bad = lost = False
        while tokens.next() not in (None, END_OBJECT):
            key = utf8_of(tokens.current_name() or "")
            try:
                pairs.append((key, item(tokens)))
            except _Partial as partial:
                pairs.append((key, partial.value))
                bad = True
            except (Malformed, BadValue):
                lost = True
                tokens.skip_children()
        if lost:
            raise BadValue
        if bad:
            raise _Partial(pairs)
        return pairs

    return convert
