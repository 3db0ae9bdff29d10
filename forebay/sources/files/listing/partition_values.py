# SPDX-License-Identifier: Apache-2.0
"""Infers types and converts values of Hive-style directory names (`year=2024`), as Spark 4.2 does."""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable, Iterable
from functools import reduce

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.values.datetimes import parse_date, parse_time, parse_timestamp, parse_timestamp_ntz
from forebay.formats.values.numbers import parse_bool, parse_double, parse_int
from forebay.formats.values.zones import Zone

NULL_NAME = "__HIVE_DEFAULT_PARTITION__"

_STRING = pa.string()
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_TIME = pa.time64("us")
_INTEGRAL_DIGITS = {pa.int32(): 10, pa.int64(): 20}

# Java's parser of decimals accepts the digits of every script in the basic multilingual plane of Unicode.
_DECIMAL = re.compile(r"[+-]?(?:(\d+)\.?(\d*)|\.(\d+))(?:[eE]([+-]?\d{1,10}))?")
_YEAR = r"(?:-?\d{4}|[+-]\d{5,7})"
_DATE_PATTERN = re.compile(rf"{_YEAR}-\d\d-\d\d", re.ASCII)
_TIMESTAMP_PATTERN = re.compile(rf"{_YEAR}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d)?", re.ASCII)
_TIME_PATTERN = re.compile(r"\d\d:\d\d:\d\d(?:\.\d{1,6})?", re.ASCII)
_ESCAPED = re.compile(r"%([0-9a-fA-F]{2})")


def unescape(text: str) -> str:
    """Replace the escapes of a Hive directory name: `%2F` is `/`. An escape is a character, not a byte of UTF-8."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)


def infer_type(raw: str, zone: Zone) -> pa.DataType:
    """Return the Arrow type that Spark infers from a partition value; the type null for the default partition.

    `raw` is the value as in the directory name, with escapes.
    """
    if parse_int(raw, 64) is not None:
        return pa.int64() if parse_int(raw, 32) is None else pa.int32()
    precision = _whole_decimal_precision(raw)
    if precision is not None and precision <= 38:
        return pa.decimal128(precision, 0)
    if parse_double(raw) is not None:
        return pa.float64()
    text = unescape(raw)
    if _TIMESTAMP_PATTERN.fullmatch(text) and parse_timestamp(text, zone) is not None:
        return _TIMESTAMP
    if _DATE_PATTERN.fullmatch(raw) and parse_date(raw) is not None:
        return pa.date32()
    if _TIME_PATTERN.fullmatch(text) and parse_time(text) is not None:
        return _TIME
    return pa.null() if raw == NULL_NAME else _STRING


def common_type(types: Iterable[pa.DataType]) -> pa.DataType:
    """Return the type that Spark chooses for a partition column whose values have these types; string if none fits."""
    return reduce(_wider, types, pa.null())


def partition_value(raw: str, type_: pa.DataType, zone: Zone, column: str = "") -> pa.Scalar:
    """Convert a raw directory value to the type of its column.

    Args:
        raw: The text after `=`, escaped.
        type_: The type of the column, inferred or given by the user.
        zone: The session time zone.
        column: The name of the column, for the error.

    Raises:
        ConfigurationError: The text is not a value of the type.
    """
    if raw == NULL_NAME or pa.types.is_null(type_):
        return pa.scalar(None, type_)
    for matches, convert in _CONVERTERS:
        if matches(type_):
            try:
                value = convert(raw, type_, zone)
                if value is not None:
                    return pa.scalar(value, type_)
            except (pa.ArrowException, OverflowError, ValueError):
                pass
            raise ConfigurationError(
                f"the directory value {raw!r} of partition column {column!r} does not fit the type {type_}",
                advice="correct the directory name, or declare the column as string in the schema",
            )
    raise ConfigurationError(
        f"partition column {column!r} cannot be of type {type_}",
        advice="declare it as a number, boolean, string, binary, date, time or timestamp type",
    )


def _whole_decimal_precision(raw: str) -> int | None:
    """Return the number of digits of a whole decimal number (`1e3` has 4); None for all other texts."""
    match = _DECIMAL.fullmatch(raw)
    if not match or not _in_basic_plane(raw):
        return None
    whole, fraction, only_fraction, exponent = match.groups()
    fraction = only_fraction or fraction or ""
    scale = len(fraction) - int(exponent or 0)
    if scale > 0:
        return None
    digits = "".join(str(int(char)) for char in (whole or "") + fraction).lstrip("0")
    return max(len(digits), 1) - scale


def _in_basic_plane(text: str) -> bool:
    return text.isascii() or max(text) <= "\uffff"


def _wider(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    pair = {left, right}
    if pair == {pa.int32(), pa.int64()}:
        return pa.int64()
    if pair == {pa.int32(), pa.float64()}:
        return pa.float64()
    if pair == {pa.date32(), _TIMESTAMP}:
        return _TIMESTAMP
    precisions = [_precision(item) for item in pair]
    if None not in precisions:
        return pa.decimal128(max(number for number in precisions if number is not None), 0)
    return _STRING


def _precision(type_: pa.DataType) -> int | None:
    return type_.precision if isinstance(type_, pa.Decimal128Type) else _INTEGRAL_DIGITS.get(type_)


def _to_decimal(raw: str, *_: object) -> object:
    if not _DECIMAL.fullmatch(raw) or not _in_basic_plane(raw):
        return None
    with decimal.localcontext(prec=100):
        return decimal.Decimal(raw)


def _to_timestamp(raw: str, type_: pa.DataType, zone: Zone) -> object:
    aware = isinstance(type_, pa.TimestampType) and type_.tz is not None
    text = unescape(raw)
    micros = parse_timestamp(text, zone, time_alone=False) if aware else parse_timestamp_ntz(text, allow_zone=True)
    return None if micros is None else pa.scalar(micros, pa.timestamp("us", tz="UTC" if aware else None)).cast(type_)


def _to_time(raw: str, type_: pa.DataType, _zone: Zone) -> object:
    micros = parse_time(unescape(raw))
    return None if micros is None else pa.scalar(micros, _TIME).cast(type_)


_Converter = Callable[[str, pa.DataType, Zone], object]

_CONVERTERS: tuple[tuple[Callable[[pa.DataType], bool], _Converter], ...] = (
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), lambda raw, *_: unescape(raw)),
    (pa.types.is_integer, lambda raw, *_: parse_int(raw, 65)),  # up to uint64
    (pa.types.is_decimal, _to_decimal),
    (pa.types.is_floating, lambda raw, *_: parse_double(raw)),
    (pa.types.is_boolean, lambda raw, *_: parse_bool(raw)),
    (pa.types.is_date32, lambda raw, *_: parse_date(raw)),
    (pa.types.is_timestamp, _to_timestamp),
    (pa.types.is_time, _to_time),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), lambda raw, *_: raw.encode()),
)
