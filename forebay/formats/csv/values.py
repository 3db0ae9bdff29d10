# SPDX-License-Identifier: Apache-2.0
"""Turns columns of CSV tokens into columns of values equal to Spark's, and says which tokens are no value.

Arrow parses whole columns wherever it reads every text as Spark does; a check per column finds out whether it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError
from forebay.formats.csv.columns import Converted, Converter, by_value, consists_of, token_bytes
from forebay.formats.csv.options import CsvOptions
from forebay.formats.csv.scalars import parse_bool, parse_decimal, parse_double, parse_float, parse_int
from forebay.formats.csv.times import date_converter, timestamp_converter

_DECIMAL_DIGITS = 38
"""Digits that a decimal of 128 bits surely holds."""


def converter(field: pa.Field, options: CsvOptions) -> Converter:
    """What turns the tokens of one column into values of its type. Called once per column and read.

    Raises:
        ConfigurationError: The CSV format has no values of that type.
    """
    wanted = field.type
    inner = _inner(wanted, options)
    if inner is None:
        raise ConfigurationError(
            f"the CSV format cannot read the column {field.name!r} as {wanted}",
            advice="give the column a string, number, boolean, date, timestamp or binary type in the schema",
        )
    convert, native = inner
    return convert if native == wanted else partial(_then_cast, convert, wanted)


def _then_cast(convert: Converter, wanted: pa.DataType, tokens: pa.Array) -> Converted:
    values, bad = convert(tokens)
    return values.cast(wanted), bad


def _inner(wanted: pa.DataType, options: CsvOptions) -> tuple[Converter, pa.DataType] | None:
    """The converter and the type it gives, which differs from `wanted` in the unit or the width of offsets only."""
    types = pa.types
    if types.is_string(wanted) or types.is_large_string(wanted) or types.is_string_view(wanted):
        return _strings, pa.string()
    if types.is_binary(wanted) or types.is_large_binary(wanted) or types.is_binary_view(wanted):
        return _strings, pa.string()
    if types.is_signed_integer(wanted):
        return partial(_integers, wanted), wanted
    if types.is_float32(wanted) or types.is_float64(wanted):
        return _floats(wanted, options), wanted
    if types.is_boolean(wanted):
        return _booleans, wanted
    if isinstance(wanted, pa.Decimal128Type) and wanted.scale >= 0:
        return partial(_decimals, wanted), wanted
    if types.is_date32(wanted):
        return date_converter(options.times), wanted
    if isinstance(wanted, pa.TimestampType):
        native = pa.timestamp("us", tz=wanted.tz)
        return timestamp_converter(native, options.times), native
    return None


def _strings(tokens: pa.Array) -> Converted:
    return tokens, ()


def _integers(wanted: pa.DataType, tokens: pa.Array) -> Converted:
    bits = wanted.bit_width
    if consists_of(tokens, b"-0123456789"):  # Arrow takes hexadecimal, too
        try:
            return tokens.cast(wanted), ()
        except pa.ArrowInvalid:
            pass
    digits = len(str(2 ** (bits - 1))) - 1
    return by_value(
        tokens, wanted, partial(parse_int, bits=bits), [(f"^-?[0-9]{{1,{digits}}}$", lambda plain: plain.cast(wanted))]
    )


def _floats(wanted: pa.DataType, options: CsvOptions) -> Converter:
    parse = parse_double if pa.types.is_float64(wanted) else parse_float
    names = {options.positive_inf: math.inf, options.negative_inf: -math.inf, options.nan_value: math.nan}
    # A name that reads as an ordinary number would go unseen.
    never_in_bulk = any(math.isfinite(value) for value in map(parse_double, names) if value is not None)

    def parse_named(text: str) -> float | None:
        return names[text] if text in names else parse(text)

    def convert(tokens: pa.Array) -> Converted:
        if never_in_bulk:
            return by_value(tokens, wanted, parse_named)
        try:
            values = tokens.cast(wanted)
            # Arrow takes more spellings of infinity and of no number.
            if pc.all(pc.is_finite(values)).as_py() is not False:
                return values, ()
        except pa.ArrowInvalid:
            pass
        return by_value(
            tokens, wanted, parse_named, [(r"^-?[0-9]{1,15}(?:\.[0-9]{0,20})?$", lambda plain: plain.cast(wanted))]
        )

    return convert


def _booleans(tokens: pa.Array) -> Converted:
    data = token_bytes(tokens)
    if b"0" not in data and b"1" not in data:  # Arrow takes digits, too
        try:
            return tokens.cast(pa.bool_()), ()
        except pa.ArrowInvalid:
            pass
    return by_value(tokens, pa.bool_(), parse_bool, [("^(?:true|false)$", lambda plain: plain.cast(pa.bool_()))])


def _decimals(wanted: pa.Decimal128Type, tokens: pa.Array) -> Converted:
    precision, scale = wanted.precision, wanted.scale
    whole = precision - scale
    longest = pc.max(pc.binary_length(tokens)).as_py() or 0
    # Arrow does not notice that a number overflows 128 bits, neither when it parses nor when it moves the point.
    if longest + scale <= _DECIMAL_DIGITS and consists_of(tokens, b"+-.0123456789"):
        try:
            return tokens.cast(wanted), ()
        except pa.ArrowInvalid:
            pass
    plains: list[tuple[str, Callable[[pa.Array], pa.Array]]] = []
    if whole:
        plains.append((rf"^-?[0-9]{{1,{whole}}}(?:\.[0-9]{{0,{scale}}})?$", lambda plain: plain.cast(wanted)))
    # One digit is left free for what rounding carries over.
    wide = pa.decimal128(_DECIMAL_DIGITS, min(_DECIMAL_DIGITS - whole, scale + 12))
    if whole > 1 and wide.scale > scale:

        def rounded(plain: pa.Array) -> pa.Array:
            return pc.round(plain.cast(wide), ndigits=scale, round_mode="half_towards_infinity").cast(wanted)

        plains.append((rf"^-?[0-9]{{1,{whole - 1}}}\.[0-9]{{1,{wide.scale}}}$", rounded))
    return by_value(tokens, wanted, partial(parse_decimal, precision=precision, scale=scale), plains)
