# SPDX-License-Identifier: Apache-2.0
"""Reads records with Python's own json module where that sees what Spark sees; `exact` reads the others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa

from forebay.formats.json.exact import ExactReader, Outcome
from forebay.formats.json.options import JsonOptions
from forebay.formats.json.scan import MAX_NAME_BYTES
from forebay.formats.json.text import BadValue, utf8_of
from forebay.formats.json.tokens import FLOAT, INT, MAX_NUMBER_DIGITS, STRING
from forebay.formats.json.values import Scalar, scalar

_MAX_NAME = MAX_NAME_BYTES // 4  # a character has up to four bytes
# What stands before says where to begin: from each place inside of a run, looking would begin anew.
_LONG_NUMBER = re.compile(f"(?<![0-9.eE+-])[0-9.eE+-]{{{MAX_NUMBER_DIGITS}}}")
_LONG_TEXT = re.compile(f'(?<![^"])[^"]{{{_MAX_NAME}}}')
_BLANKS = " \t\r\n"

_Reader: TypeAlias = Callable[[Any], Any]
"""Takes what json makes of a value and gives it as `build` takes it; raises BadValue."""


class _Float(str):
    """The text of a number with a point or an exponent."""

    __slots__ = ()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names do not repeat: what Spark makes of the others is not only the last value."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadValue
    return found


def _refuse(text: str) -> None:
    raise BadValue(text)


class RecordReader:
    """Reads records of one schema, whatever they are.

    Args:
        fields: The columns to read.
        options: How to read.
        embedded: Records are texts in a column; see `ExactReader`.
    """

    def __init__(self, fields: list[pa.Field], options: JsonOptions, *, embedded: bool = False) -> None:
        self._read = _struct(pa.struct(fields), options)
        self._exact = ExactReader(fields, options, embedded=embedded)
        # Numbers stay text where their digits matter.
        self._decode = json.JSONDecoder(
            parse_float=_Float if _has(fields, _digits_matter) else None,
            parse_constant=_refuse,
            object_pairs_hook=_unique,
        ).raw_decode

    def read(self, record: bytes) -> Outcome:
        """Read a record; its rows are lists of values as `build` takes them."""
        try:
            text = record.decode().lstrip(_BLANKS)
            if text.startswith("{") and not has_odd_text(text):
                return Outcome([self._read(self._decode(text)[0])])
        except (BadValue, ValueError, RecursionError):
            pass
        return self._exact.read(record)


def has_odd_text(text: str) -> bool:
    """Whether a name or number may be longer than Jackson takes, or a name have half a character."""
    if "\\ud" in text or "\\uD" in text:
        return True
    if len(text) <= MAX_NUMBER_DIGITS:
        return False
    return _LONG_NUMBER.search(text) is not None or (len(text) > _MAX_NAME and _LONG_TEXT.search(text) is not None)


def _has(fields: list[pa.Field], found: Callable[[pa.DataType], bool]) -> bool:
    return any(_any_type(field.type, found) for field in fields)


def _any_type(data_type: pa.DataType, found: Callable[[pa.DataType], bool]) -> bool:
    inside = [data_type.field(index).type for index in range(data_type.num_fields)]
    return found(data_type) or any(_any_type(kind, found) for kind in inside)


def _digits_matter(data_type: pa.DataType) -> bool:
    return pa.types.is_decimal(data_type) or pa.types.is_float32(data_type)


def _reader(data_type: pa.DataType, options: JsonOptions) -> _Reader:
    if isinstance(data_type, pa.StructType):
        return _struct(data_type, options)
    if isinstance(data_type, pa.ListType):
        return _list(_reader(data_type.value_type, options))
    if isinstance(data_type, pa.MapType):
        return _map(_reader(data_type.item_type, options))
    if pa.types.is_string(data_type):
        return _text
    if pa.types.is_boolean(data_type):
        return _boolean
    if pa.types.is_float64(data_type):
        return _double
    if pa.types.is_integer(data_type) and data_type.bit_width > 8:
        return _integer(data_type.bit_width)
    parse = scalar(data_type, options)
    return _nothing if parse is None else _other(parse)


def _struct(data_type: pa.StructType, options: JsonOptions) -> _Reader:
    readers = [(field.name, _reader(field.type, options)) for field in data_type]

    def read(value: Any) -> Any:  # noqa: ANN401 - what json makes of any value
        if type(value) is not dict:
            return _nothing(value)
        get = value.get
        return [None if (found := get(name)) is None else inside(found) for name, inside in readers]

    return read


def _list(element: _Reader) -> _Reader:
    def read(value: Any) -> Any:  # noqa: ANN401 - what json makes of any value
        if type(value) is not list:
            raise BadValue
        return [None if item is None else element(item) for item in value]

    return read


def _map(item: _Reader) -> _Reader:
    def read(value: Any) -> Any:  # noqa: ANN401 - what json makes of any value
        if type(value) is not dict:
            raise BadValue
        return [(utf8_of(name), None if found is None else item(found)) for name, found in value.items()]

    return read


def _text(value: Any) -> bytes:  # noqa: ANN401 - what json makes of any value
    if type(value) is not str:
        raise BadValue
    return utf8_of(value)


def _boolean(value: Any) -> bool:  # noqa: ANN401 - what json makes of any value
    if type(value) is not bool:
        raise BadValue
    return value


def _double(value: Any) -> float:  # noqa: ANN401 - what json makes of any value
    if type(value) is float:
        return value
    if type(value) is not int and type(value) is not _Float:
        raise BadValue
    try:
        return float(value)
    except OverflowError:
        raise BadValue from None


def _integer(bits: int) -> _Reader:
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1

    def read(value: Any) -> int:  # noqa: ANN401 - what json makes of any value
        if type(value) is not int or not least <= value <= most:
            raise BadValue
        return value

    return read


def _other(parse: Scalar) -> _Reader:
    def read(value: Any) -> Any:  # noqa: ANN401 - what json makes of any value
        if type(value) is str:
            return parse(STRING, value)
        if type(value) is int:
            return parse(INT, str(value))
        if type(value) is _Float:
            return parse(FLOAT, str(value))
        raise BadValue

    return read


def _nothing(value: Any) -> None:  # noqa: ANN401 - what json makes of any value
    raise BadValue(value)
