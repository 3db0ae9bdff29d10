# SPDX-License-Identifier: Apache-2.0
"""The values in names of Hive-style directories (`year=2024`): their types, inferred as Spark infers them.

The rules are those of Spark 4.2's `PartitioningUtils`, found by asking it; `tests/storage` compares the two.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable, Iterable

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.values.datetimes import parse_date, parse_time, parse_timestamp, parse_timestamp_ntz
from forebay.values.zones import Zone

NULL_NAME = "__HIVE_DEFAULT_PARTITION__"

_STRING = pa.string()
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_TIME = pa.time64("us")
_INTEGRAL_DIGITS = {pa.int32(): 10, pa.int64(): 20}

# Java's parsers take the decimal digits of every script in the basic plane for integers and decimals.
_INTEGER = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(?:(\d+)\.?(\d*)|\.(\d+))(?:[eE]([+-]?\d{1,10}))?")
_DOUBLE = re.compile(r"([+-]?(?:NaN|Infinity))|([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[fFdD]?", re.ASCII)
_HEX = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?\d+)[fFdD]?", re.ASCII)
_YEAR = r"(?:-?\d{4}|[+-]\d{5,7})"
_DATE_PATTERN = re.compile(rf"{_YEAR}-\d\d-\d\d", re.ASCII)
_TIMESTAMP_PATTERN = re.compile(rf"{_YEAR}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d)?", re.ASCII)
_TIME_PATTERN = re.compile(r"\d\d:\d\d:\d\d(?:\.\d{1,6})?", re.ASCII)
_ESCAPED = re.compile(r"%([0-9a-fA-F]{2})")
_JAVA_TRIMMED = "".join(map(chr, range(0x21)))


def unescape(text: str) -> str:
    """Undo the escapes of a Hive directory name: `%2F` is `/`; each escape is one character, not a byte of UTF-8."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)


def infer_type(raw: str, zone: Zone) -> pa.DataType:
    """The Arrow type Spark would infer from one raw (still escaped) directory value; null for the default partition.

    Called by partition discovery for each distinct value.
    """
    integer = _integer(raw)
    if integer is not None and -(2**63) <= integer < 2**63:
        return pa.int32() if -(2**31) <= integer < 2**31 else pa.int64()
    precision = _whole_decimal_precision(raw)
    if precision is not None and precision <= 38:
        return pa.decimal128(precision, 0)
    if _double(raw) is not None:
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
    """The one type for a column whose directories gave these types; string where none holds them without loss."""
    result: pa.DataType = pa.null()
    for item in types:
        result = _wider(result, item)
    return result


def partition_value(raw: str, type_: pa.DataType, zone: Zone, column: str = "") -> pa.Scalar:
    """The value of one raw directory text as a column of `type_` holds it.

    Called by partition discovery, and by whoever kept only the raw text (a split): a pure function, on any thread.

    Args:
        raw: The text after `=`, still escaped, as `FileIndex.partition_texts` has it.
        type_: The Arrow type of the column: inferred, or wanted by the user.
        zone: The session time zone: the zone of timestamps.
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
                value = None
            raise ConfigurationError(
                f"the directory value {raw!r} of partition column {column!r} is not a {type_}",
                advice="correct the directory name, or declare the column as string in the schema",
            )
    raise ConfigurationError(
        f"partition column {column!r} cannot be of type {type_}",
        advice="use a number, boolean, string, binary, date, time or timestamp type",
    )


def _integer(raw: str) -> int | None:
    return int(raw) if _INTEGER.fullmatch(raw) and _in_basic_plane(raw) and len(raw) < 4000 else None


def _whole_decimal_precision(raw: str) -> int | None:
    """Digits of a decimal number without fraction digits (`1e3` has 4), or None. A scale above 0 is no such number."""
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


def _double(raw: str) -> float | None:
    text = raw.strip(_JAVA_TRIMMED)
    match = _DOUBLE.fullmatch(text)
    if match:
        return float(match[1] or match[2])
    match = _HEX.fullmatch(text)
    if not match:
        return None
    try:
        return float.fromhex(match[1])
    except OverflowError:
        return float("-inf" if text.startswith("-") else "inf")


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


def _to_string(raw: str, _type: pa.DataType, _zone: Zone) -> object:
    return unescape(raw)


def _to_integer(raw: str, _type: pa.DataType, _zone: Zone) -> object:
    return _integer(raw)


def _to_decimal(raw: str, _type: pa.DataType, _zone: Zone) -> object:
    if not _DECIMAL.fullmatch(raw) or not _in_basic_plane(raw):
        return None
    with decimal.localcontext(prec=100):
        return decimal.Decimal(raw)


def _to_double(raw: str, _type: pa.DataType, _zone: Zone) -> object:
    return _double(raw)


def _to_boolean(raw: str, _type: pa.DataType, _zone: Zone) -> object:
    return {"true": True, "false": False}.get(raw.lower())


def _to_date(raw: str, _type: pa.DataType, _zone: Zone) -> object:
    return parse_date(raw)


def _to_timestamp(raw: str, type_: pa.DataType, zone: Zone) -> object:
    aware = isinstance(type_, pa.TimestampType) and type_.tz is not None
    text = unescape(raw)
    micros = parse_timestamp(text, zone, time_alone=False) if aware else parse_timestamp_ntz(text, allow_zone=True)
    return None if micros is None else pa.scalar(micros, pa.timestamp("us", tz="UTC" if aware else None)).cast(type_)


def _to_time(raw: str, type_: pa.DataType, _zone: Zone) -> object:
    micros = parse_time(unescape(raw))
    return None if micros is None else pa.scalar(micros, _TIME).cast(type_)


def _to_binary(raw: str, _type: pa.DataType, _zone: Zone) -> object:
    return raw.encode()


_CONVERTERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[str, pa.DataType, Zone], object]], ...] = (
    (lambda t: pa.types.is_string(t) or pa.types.is_large_string(t), _to_string),
    (pa.types.is_integer, _to_integer),
    (pa.types.is_decimal, _to_decimal),
    (pa.types.is_floating, _to_double),
    (pa.types.is_boolean, _to_boolean),
    (pa.types.is_date32, _to_date),
    (pa.types.is_timestamp, _to_timestamp),
    (pa.types.is_time, _to_time),
    (lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t), _to_binary),
)
