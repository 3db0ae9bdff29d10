# SPDX-License-Identifier: Apache-2.0
"""Reads single records: with Python's json module if its result equals Spark's, else with the Jackson port."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa

from forebay.formats.json.arrow import any_type
from forebay.formats.json.jackson import JacksonParser, Outcome, Scalar, scalar
from forebay.formats.json.jackson_tokens import FLOAT, INT, MAX_NAME_BYTES, MAX_NUMBER_DIGITS, STRING, BadValue, utf8_of
from forebay.formats.json.options import JsonOptions

_MAX_NAME = MAX_NAME_BYTES // 4  # a character has up to four bytes
# The lookbehind keeps a search linear: without it, each character of a run would start a match.
_LONG_NUMBER = re.compile(f"(?<![0-9.eE+-])[0-9.eE+-]{{{MAX_NUMBER_DIGITS}}}")
_LONG_TEXT = re.compile(f'(?<![^"])[^"]{{{_MAX_NAME}}}')
_BLANKS = " \t\r\n"

_Converter: TypeAlias = Callable[[object], Any]
"""Converts a value of the json module, except None, to a value for `build.column`, or raises BadValue."""


class _Float(str):
    """The original text of a number with a decimal point or an exponent."""

    __slots__ = ()


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict from an object's pairs, for the json module. Raise ValueError if a name occurs twice.

    Spark keeps both values of such a name, so the Jackson port must read the record.
    """
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError
    return members


def refuse_constant(text: str) -> None:
    """Raise ValueError for NaN and Infinity, which the json module would accept."""
    raise ValueError(text)


class RecordReader:
    """Reads single records, which may be malformed, by one schema. See `JacksonParser` for `embedded`."""

    def __init__(self, fields: list[pa.Field], options: JsonOptions, *, embedded: bool = False) -> None:
        self._convert = _struct(pa.struct(fields), options)
        self._jackson = JacksonParser(fields, options, embedded=embedded)
        # Numbers stay text where their digits matter.
        exact = any_type(pa.struct(fields), lambda each: pa.types.is_decimal(each) or pa.types.is_float32(each))
        self._decode = json.JSONDecoder(
            parse_float=_Float if exact else None, parse_constant=refuse_constant, object_pairs_hook=unique_names
        ).raw_decode

    def read(self, record: bytes) -> Outcome:
        """Read one record. The rows of the result are lists of values in the forms that `build.column` expects."""
        try:
            text = record.decode().lstrip(_BLANKS)
            if text.startswith("{") and not needs_jackson(text):
                return Outcome([self._convert(self._decode(text)[0])])
        except (BadValue, ValueError, RecursionError):
            pass
        return self._jackson.read(record)


def needs_jackson(text: str) -> bool:
    """Return whether a name or number may exceed a limit of Jackson, or a string may have half of a surrogate pair."""
    if "\\ud" in text or "\\uD" in text:
        return True
    if len(text) <= MAX_NUMBER_DIGITS:
        return False
    return _LONG_NUMBER.search(text) is not None or (len(text) > _MAX_NAME and _LONG_TEXT.search(text) is not None)


def _converter(data_type: pa.DataType, options: JsonOptions) -> _Converter:
    if isinstance(data_type, pa.StructType):
        return _struct(data_type, options)
    if isinstance(data_type, pa.ListType):
        return _list(_converter(data_type.value_type, options))
    if isinstance(data_type, pa.MapType):
        return _map(_converter(data_type.item_type, options))
    if pa.types.is_string(data_type):
        return _string
    if pa.types.is_boolean(data_type):
        return _boolean
    if pa.types.is_float64(data_type):
        return _double
    if pa.types.is_integer(data_type) and data_type.bit_width > 8:
        return _integer(data_type.bit_width)
    parse = scalar(data_type, options)
    return _refuse if parse is None else _scalar(parse)


def _struct(data_type: pa.StructType, options: JsonOptions) -> _Converter:
    converters = [(field.name, _converter(field.type, options)) for field in data_type]

    def convert(value: object) -> list[Any]:
        if type(value) is not dict:
            raise BadValue
        get = value.get
        return [None if (member := get(name)) is None else inner(member) for name, inner in converters]

    return convert


def _list(element: _Converter) -> _Converter:
    def convert(value: object) -> list[Any]:
        if type(value) is not list:
            raise BadValue
        return [None if item is None else element(item) for item in value]

    return convert


def _map(item: _Converter) -> _Converter:
    def convert(value: object) -> list[tuple[bytes, Any]]:
        if type(value) is not dict:
            raise BadValue
        return [(utf8_of(name), None if entry is None else item(entry)) for name, entry in value.items()]

    return convert


def _string(value: object) -> bytes:
    if type(value) is not str:
        raise BadValue
    return utf8_of(value)


def _boolean(value: object) -> bool:
    if type(value) is not bool:
        raise BadValue
    return value


def _double(value: object) -> float:
    if type(value) is float:
        return value
    if type(value) is not int and type(value) is not _Float:
        raise BadValue
    try:
        return float(value)
    except OverflowError:
        raise BadValue from None


def _integer(bits: int) -> _Converter:
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1

    def convert(value: object) -> int:
        if type(value) is not int or not least <= value <= most:
            raise BadValue
        return value

    return convert


def _scalar(parse: Scalar) -> _Converter:
    def convert(value: object) -> object:
        if type(value) is str:
            return parse(STRING, value)
        if type(value) is int:
            return parse(INT, str(value))
        if type(value) is _Float:
            return parse(FLOAT, str(value))
        raise BadValue

    return convert


def _refuse(_: object) -> None:
    raise BadValue
