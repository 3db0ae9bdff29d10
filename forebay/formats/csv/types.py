# SPDX-License-Identifier: Apache-2.0
"""The column types that Spark infers from CSV tokens, as Arrow types."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from forebay.formats.csv.options import CsvOptions
from forebay.formats.values.date_patterns import DatePattern
from forebay.formats.values.datetimes import parse_timestamp
from forebay.formats.values.numbers import parse_bool, parse_double, parse_int
from forebay.formats.values.text_columns import consists_of

_LENIENT_DATES = ("yyyy-MM-dd", "yyyy-M-d", "yyyy-M-dd", "yyyy-MM-d", "yyyy-MM", "yyyy-M", "yyyy")
_MAX_PRECISION = 38
_NULL, _STRING, _BOOLEAN = pa.null(), pa.string(), pa.bool_()
_INT, _LONG, _DOUBLE = pa.int32(), pa.int64(), pa.float64()
_DECIMAL = pa.decimal128(_MAX_PRECISION, 0)
_DATE, _TIMESTAMP = pa.date32(), pa.timestamp("us", tz="UTC")
_DIGITS = {_INT: 10, _LONG: 20}


class ColumnTypes:
    """The inferred type of one column. Each added token may widen it."""

    def __init__(self, options: CsvOptions) -> None:
        self._options = options
        self._type: pa.DataType = _NULL
        self._date_pattern = options.date_format or "yyyy-MM-dd"
        pattern = options.pattern("timestamp_format")
        named_numbers = dict.fromkeys((options.nan_value, options.positive_inf, options.negative_inf), 0.0)
        # In the order in which Spark tries them; each returns None for a token that is not of the type.
        self._parsers: list[tuple[pa.DataType, Callable[[str], object]]] = [
            (_INT, partial(parse_int, bits=32)),
            (_LONG, partial(parse_int, bits=64)),
            (_DECIMAL, _decimal_type),
            (_DOUBLE, lambda token: named_numbers.get(token, parse_double(token))),
            (_DATE, DatePattern.of(self._date_pattern).date if options.prefer_date else lambda _: None),
            (_TIMESTAMP, partial(pattern.timestamp if pattern else parse_timestamp, session_zone=options.zone)),
            (_BOOLEAN, parse_bool),
        ]

    @property
    def resolved(self) -> bool:
        """Whether the type is string, which fits every token, so that no further token can widen it."""
        return self._type == _STRING

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type that fits the tokens added so far; string if there were none."""
        return _STRING if self._type == _NULL else self._type

    def widen(self, tokens: pa.Array) -> None:
        """Widen the type so that it fits some more tokens. Nulls, empty tokens and the null value are ignored."""
        tokens = tokens.drop_null()
        tokens = tokens.filter(pc.and_(pc.not_equal(tokens, ""), pc.not_equal(tokens, self._options.null_value)))
        if self.resolved or not len(tokens):
            return
        known = self._type_of_all(tokens)
        if known is not None:
            self._type = self._wider(self._type, known)
            return
        for token in tokens.unique().to_pylist():
            if not self.resolved:
                self._type = self._wider(self._type, self._type_of(token))

    def _type_of_all(self, tokens: pa.Array) -> pa.DataType | None:
        """Return the common type of the tokens if a check of the whole column finds it; None to check each token."""
        if self._type in (_NULL, _INT, _LONG) and consists_of(tokens, b"-0123456789"):
            for whole in (_INT, _LONG):
                if _castable(tokens, whole):
                    return whole
        if self._type in (_NULL, _INT, _LONG, _DOUBLE) and _all_match(tokens, r"^-?[0-9]{0,15}\.[0-9]{1,15}$"):
            return _DOUBLE
        formats = self._options.date_format, self._options.timestamp_format
        if formats != (None, None) or not self._options.prefer_date:
            return None
        if self._type in (_NULL, _DATE) and _castable(tokens, _DATE):
            return _DATE
        if self._type in (_NULL, _TIMESTAMP) and _all_match(tokens, "^.{19}") and _castable(tokens, pa.timestamp("us")):
            return _TIMESTAMP
        return None

    def _type_of(self, token: str) -> pa.DataType:
        """Return the type that Spark infers for one token. The search starts at the column's current type."""
        sought = _DECIMAL if pa.types.is_decimal(self._type) else self._type
        skipped = sought != _NULL
        for found, parse in self._parsers:
            skipped = skipped and found != sought
            value = None if skipped else parse(token)
            if value is not None:
                return value if isinstance(value, pa.DataType) else found
        return _STRING

    def _wider(self, one: pa.DataType, other: pa.DataType) -> pa.DataType:
        both = {one, other}
        if len(both) == 1 or _NULL in both:
            return other if one == _NULL else one
        if both == {_DATE, _TIMESTAMP}:
            lenient = self._options.timestamp_format is None and self._date_pattern in _LENIENT_DATES
            return _TIMESTAMP if lenient else _STRING
        if both == {_INT, _LONG}:
            return _LONG
        if not all(kind in (_INT, _LONG, _DOUBLE) or pa.types.is_decimal(kind) for kind in both):
            return _STRING
        return _DOUBLE if _DOUBLE in both else pa.decimal128(max(map(_precision, both)), 0)


def _precision(kind: pa.DataType) -> int:
    return kind.precision if isinstance(kind, pa.Decimal128Type) else _DIGITS[kind]


def _decimal_type(token: str) -> pa.DataType | None:
    """Return the decimal type for an integer of at most 38 digits; None for any other token."""
    try:
        number = decimal.Decimal(token) if token.isascii() and "_" not in token and token.strip() == token else None
    except decimal.InvalidOperation:
        return None
    if number is None or not number.is_finite() or number.as_tuple().exponent != 0:
        return None
    precision = max(1, len(number.as_tuple().digits))
    return pa.decimal128(precision, 0) if precision <= _MAX_PRECISION else None


def _castable(tokens: pa.Array, arrow_type: pa.DataType) -> bool:
    try:
        tokens.cast(arrow_type)
    except pa.ArrowInvalid:
        return False
    return True


def _all_match(tokens: pa.Array, expression: str) -> bool:
    return pc.all(pc.match_substring_regex(tokens, expression)).as_py() is True
