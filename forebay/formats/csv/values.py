# SPDX-License-Identifier: Apache-2.0
"""Converts columns of CSV tokens to the same values as Spark, and reports malformed tokens.

Arrow converts a whole column if a check shows that it reads the tokens of the column as Spark does.
"""

from __future__ import annotations

import math
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError
from forebay.formats.csv.options import CsvOptions
from forebay.formats.values.columns import (
    Converted,
    Converter,
    Plain,
    by_value,
    cast_or_parse,
    consists_of,
    token_bytes,
)
from forebay.formats.values.numbers import parse_bool, parse_decimal, parse_double, parse_float, parse_int
from forebay.formats.values.time_columns import date_converter, timestamp_converter

_DECIMAL_DIGITS = 38
"""The number of digits that every decimal of 128 bits can hold."""


def converter(field: pa.Field, options: CsvOptions) -> Converter:
    """Return the function that converts the tokens of one column.

    Raises:
        ConfigurationError: The CSV format does not support the column's type.
    """
    data_type = field.type
    inner = _inner(data_type, options)
    if inner is None:
        raise ConfigurationError(
            f"the {options.format_name} format cannot read the column {field.name!r} as {data_type}",
            advice="give the column a string, number, boolean, date, timestamp or binary type in the schema",
        )
    convert, native = inner
    if native == data_type:
        return convert

    def convert_and_cast(tokens: pa.Array) -> Converted:
        values, bad = convert(tokens)
        return values.cast(data_type), bad

    return convert_and_cast


def _inner(data_type: pa.DataType, options: CsvOptions) -> tuple[Converter, pa.DataType] | None:
    """Return the conversion function and its result type, which may differ from `data_type` in unit or offset width.

    None if the CSV format does not support the type.
    """
    types = pa.types
    if types.is_string(data_type) or types.is_large_string(data_type) or types.is_string_view(data_type):
        return _strings, pa.string()
    if types.is_binary(data_type) or types.is_large_binary(data_type) or types.is_binary_view(data_type):
        return _strings, pa.string()
    if types.is_signed_integer(data_type):
        return partial(_integers, data_type), data_type
    if types.is_float32(data_type) or types.is_float64(data_type):
        return _floats(data_type, options), data_type
    if types.is_boolean(data_type):
        return _booleans, data_type
    if isinstance(data_type, pa.Decimal128Type) and data_type.scale >= 0:
        return partial(_decimals, data_type), data_type
    if types.is_date32(data_type):
        return date_converter(options, prefer_date=options.prefer_date), data_type
    if isinstance(data_type, pa.TimestampType):
        native = pa.timestamp("us", tz=data_type.tz)
        return timestamp_converter(native, options), native
    return None


def _strings(tokens: pa.Array) -> Converted:
    return tokens, ()


def _integers(data_type: pa.DataType, tokens: pa.Array) -> Converted:
    bits = data_type.bit_width
    digits = len(str(2 ** (bits - 1))) - 1
    plains: list[Plain] = [(f"^-?[0-9]{{1,{digits}}}$", lambda plain: plain.cast(data_type))]
    decimal = consists_of(tokens, b"-0123456789")  # Arrow takes hexadecimal, too
    return cast_or_parse(tokens, data_type, partial(parse_int, bits=bits), plains, castable=decimal)


def _floats(data_type: pa.DataType, options: CsvOptions) -> Converter:
    parse = parse_double if pa.types.is_float64(data_type) else parse_float
    names = {options.positive_inf: math.inf, options.negative_inf: -math.inf, options.nan_value: math.nan}
    # Arrow would read a name that looks like an ordinary number.
    never_in_bulk = any(math.isfinite(value) for value in map(parse_double, names) if value is not None)

    def parse_named(text: str) -> float | None:
        return names[text] if text in names else parse(text)

    def convert(tokens: pa.Array) -> Converted:
        if never_in_bulk:
            return by_value(tokens, data_type, parse_named)
        try:
            values = tokens.cast(data_type)
            # Arrow accepts more spellings of infinity and NaN than Spark.
            if pc.all(pc.is_finite(values)).as_py() is not False:
                return values, ()
        except pa.ArrowInvalid:
            pass
        return by_value(
            tokens,
            data_type,
            parse_named,
            [(r"^-?[0-9]{1,15}(?:\.[0-9]{0,20})?$", lambda plain: plain.cast(data_type))],
        )

    return convert


def _booleans(tokens: pa.Array) -> Converted:
    data = token_bytes(tokens)
    plains: list[Plain] = [("^(?:true|false)$", lambda plain: plain.cast(pa.bool_()))]
    words = b"0" not in data and b"1" not in data  # Arrow takes digits, too
    return cast_or_parse(tokens, pa.bool_(), parse_bool, plains, castable=words)


def _decimals(data_type: pa.Decimal128Type, tokens: pa.Array) -> Converted:
    precision, scale = data_type.precision, data_type.scale
    whole = precision - scale
    longest = pc.max(pc.binary_length(tokens)).as_py() or 0
    # Arrow does not notice that a number overflows 128 bits, neither when it parses nor when it moves the point.
    castable = longest + scale <= _DECIMAL_DIGITS and consists_of(tokens, b"+-.0123456789")
    plains: list[Plain] = []
    if whole:
        plains.append((rf"^-?[0-9]{{1,{whole}}}(?:\.[0-9]{{0,{scale}}})?$", lambda plain: plain.cast(data_type)))
    # One digit is left free for the carry of rounding.
    wide = pa.decimal128(_DECIMAL_DIGITS, min(_DECIMAL_DIGITS - whole, scale + 12))
    if whole > 1 and wide.scale > scale:

        def rounded(plain: pa.Array) -> pa.Array:
            return pc.round(plain.cast(wide), ndigits=scale, round_mode="half_towards_infinity").cast(data_type)

        plains.append((rf"^-?[0-9]{{1,{whole - 1}}}\.[0-9]{{1,{wide.scale}}}$", rounded))
    parse = partial(parse_decimal, precision=precision, scale=scale)
    return cast_or_parse(tokens, data_type, parse, plains, castable=castable)
