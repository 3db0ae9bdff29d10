# SPDX-License-Identifier: Apache-2.0
"""Converts one JSON token to a scalar type (JacksonParser.makeConverter of Spark 4.2.0)."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.json.jackson.text import BadValue, decoded_base64, utf8_of
from forebay.formats.json.jackson.tokens import FALSE, FLOAT, INT, STRING, TRUE
from forebay.formats.json.options import JsonOptions
from forebay.formats.values.datetimes import MICROS, parse_date, parse_timestamp, parse_timestamp_ntz
from forebay.formats.values.numbers import parse_decimal, parse_float, parse_int

Scalar: TypeAlias = Callable[[int, str], object]
"""Converts the kind and text of a token to a value for `build.column`; raises BadValue if they do not fit the type."""

_ISO_TIMESTAMP = re.compile(
    r"[12]\d{3}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])[ T](?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?"
    r"(?:Z|[+-](?:0\d|1[0-7]):[0-5]\d)",
    re.ASCII,
)
"""Matches timestamps that `datetime.fromisoformat` reads as Spark does, ten times faster than `parse_timestamp`."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SPECIAL = {
    "NaN": float("nan"),
    **dict.fromkeys(("+INF", "+Infinity", "Infinity"), float("inf")),
    **dict.fromkeys(("-INF", "-Infinity"), float("-inf")),
}


def scalar(data_type: pa.DataType, options: JsonOptions) -> Scalar | None:
    """Return the function that converts a token to a scalar type; None for a type that is not scalar."""
    types = pa.types
    if types.is_boolean(data_type):
        return _boolean
    if types.is_signed_integer(data_type):
        return partial(_integer, bits=data_type.bit_width)
    if types.is_float32(data_type):
        return partial(_floating, strings=options.allow_non_numeric_numbers, parse=parse_float)
    if types.is_float64(data_type):
        return partial(_floating, strings=options.allow_non_numeric_numbers, parse=float)
    if isinstance(data_type, pa.Decimal128Type):
        return partial(_decimal, precision=data_type.precision, scale=data_type.scale)
    if types.is_binary(data_type):
        return _binary
    if types.is_date32(data_type):
        return _texts(_date_parser(options))
    if isinstance(data_type, pa.TimestampType) and data_type.unit == "us":
        if data_type.tz is None:
            pattern = options.pattern("timestamp_ntz_format")
            return _texts(parse_timestamp_ntz if pattern is None else pattern.timestamp_ntz)
        texts = _texts(_timestamp_parser(options))
        return partial(_timestamp, parse=texts) if options.numeric_timestamps else texts
    return None


def check_type(data_type: pa.DataType, column: str, options: JsonOptions) -> None:
    """Raise a ConfigurationError if JSON cannot be read as a type. `column` is the column's name, for the error."""
    if isinstance(data_type, pa.StructType):
        for field in data_type:
            check_type(field.type, f"{column}.{field.name}", options)
    elif isinstance(data_type, pa.ListType):
        check_type(data_type.value_type, f"{column}.element", options)
    elif isinstance(data_type, pa.MapType) and pa.types.is_string(data_type.key_type):
        check_type(data_type.item_type, f"{column}.value", options)
    elif not (pa.types.is_string(data_type) or pa.types.is_null(data_type) or scalar(data_type, options)):
        raise ConfigurationError(
            f"column {column!r} has the type {data_type}, which the JSON format does not support",
            advice="give the column the type string in the schema, and convert it in the query",
        )


def infers_as_timestamp(text: str, options: JsonOptions) -> bool:
    """Return whether schema inference takes a string as a timestamp. One without a zone is in the session's zone."""
    zone = options.zone
    pattern = options.pattern("timestamp_format")
    found = parse_timestamp(text, zone) if pattern is None else pattern.timestamp(text, zone)
    return found is not None


def _boolean(kind: int, text: str) -> bool:  # noqa: ARG001 - every scalar has this signature
    if kind in (TRUE, FALSE):
        return kind == TRUE
    raise BadValue


def _integer(kind: int, text: str, *, bits: int) -> int:
    if kind != INT or len(text) > 20:
        raise BadValue
    value = int(text)
    # Jackson also accepts unsigned bytes.
    if not -(1 << bits - 1) <= value < (1 << (8 if bits == 8 else bits - 1)):
        raise BadValue
    return value - 256 if bits == 8 and value > 127 else value


def _floating(kind: int, text: str, *, strings: bool, parse: Callable[[str], float | None]) -> float | None:
    if kind == INT:
        # Whole numbers have no negative zero.
        return parse(text) if text != "-0" else 0.0
    if kind == FLOAT:
        return _SPECIAL[text] if text in _SPECIAL else parse(text)
    if kind == STRING and strings and text in _SPECIAL:
        return _SPECIAL[text]
    raise BadValue


def _decimal(kind: int, text: str, *, precision: int, scale: int) -> object:
    if kind in (INT, FLOAT, STRING):
        value = parse_decimal(text if kind == STRING else text.replace(",", "?"), precision, scale)
        if value is not None:
            return value
    raise BadValue


def _binary(kind: int, text: str) -> bytes:
    if kind != STRING:
        raise BadValue
    return decoded_base64(text)


def _texts(parse: Callable[[str], int | None]) -> Callable[[int, str], int]:
    def convert(kind: int, text: str) -> int:
        value = parse(utf8_of(text).decode()) if kind == STRING and text else None
        if value is None:
            raise BadValue
        return value

    return convert


def _timestamp(kind: int, text: str, *, parse: Callable[[int, str], int]) -> int:
    if kind != INT:
        return parse(kind, text)
    # Java's multiplication wraps around if it overflows.
    return (_integer(INT, text, bits=64) * MICROS + (1 << 63)) % (1 << 64) - (1 << 63)


def _timestamp_parser(options: JsonOptions) -> Callable[[str], int | None]:
    zone = options.zone
    pattern = options.pattern("timestamp_format")
    lenient = options.lenient("timestamp_format")

    def parse(text: str) -> int | None:
        if pattern is not None:
            value = pattern.timestamp(text, zone)
        elif _ISO_TIMESTAMP.fullmatch(text):
            return (datetime.fromisoformat(text) - _EPOCH) // _MICROSECOND
        else:
            value = parse_timestamp(text, zone)
        return parse_timestamp(text.replace("GMT", ""), zone) if value is None and lenient else value

    return parse


def _date_parser(options: JsonOptions) -> Callable[[str], int | None]:
    pattern = options.pattern("date_format")
    lenient = options.lenient("date_format")

    def parse(text: str) -> int | None:
        value = parse_date(text) if pattern is None else pattern.date(text)
        if value is None and lenient:
            value = parse_date(text.replace("GMT", ""))
            # Spark 1.5 wrote dates as numbers of days.
            return parse_int(text, 32) if value is None else value
        return value

    return parse
