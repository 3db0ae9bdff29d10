# SPDX-License-Identifier: Apache-2.0
"""The types Spark infers from CSV tokens, and which type covers two of them."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from forebay.formats.csv.columns import consists_of
from forebay.formats.csv.options import CsvOptions
from forebay.formats.csv.scalars import parse_bool, parse_double, parse_int
from forebay.formats.date_patterns import DatePattern
from forebay.values.datetimes import parse_timestamp

_LENIENT_DATES = ("yyyy-MM-dd", "yyyy-M-d", "yyyy-M-dd", "yyyy-MM-d", "yyyy-MM", "yyyy-M", "yyyy")
_MAX_PRECISION = 38


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of Spark's as far as CSV inference knows types."""

    name: str
    precision: int = 0
    scale: int = 0


NULL, INT, LONG, DOUBLE = Kind("null"), Kind("int"), Kind("long"), Kind("double")
DATE, TIMESTAMP, BOOLEAN, STRING = Kind("date"), Kind("timestamp"), Kind("boolean"), Kind("string")
_WHOLE = {INT: 10, LONG: 20}
_ARROW = {
    NULL: pa.string(),
    INT: pa.int32(),
    LONG: pa.int64(),
    DOUBLE: pa.float64(),
    DATE: pa.date32(),
    TIMESTAMP: pa.timestamp("us", tz="UTC"),
    BOOLEAN: pa.bool_(),
    STRING: pa.string(),
}


class ColumnTypes:
    """Widens the type of one column with every token it sees."""

    def __init__(self, options: CsvOptions) -> None:
        self._options = options
        self._kind = NULL
        self._date_pattern = options.date_format or "yyyy-MM-dd"
        self._parse_date = DatePattern.of(self._date_pattern).date
        pattern, zone = options.times.pattern("timestamp_format"), options.times.zone
        self._parse_timestamp: Callable[[str], int | None] = (
            (lambda text: parse_timestamp(text, zone))
            if pattern is None
            else (lambda text: pattern.timestamp(text, zone))
        )
        self._named_numbers = {options.nan_value, options.positive_inf, options.negative_inf}

    @property
    def settled(self) -> bool:
        """Whether nothing can change the type any more."""
        return self._kind is STRING

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of what was seen; a string if there was nothing."""
        if self._kind.name == "decimal":
            return pa.decimal128(self._kind.precision, self._kind.scale)
        return _ARROW[self._kind]

    def see(self, tokens: pa.Array) -> None:
        """Take in the tokens of some records. Nulls, empty tokens and the null value say nothing."""
        tokens = tokens.drop_null()
        tokens = tokens.filter(pc.and_(pc.not_equal(tokens, ""), pc.not_equal(tokens, self._options.null_value)))
        if self.settled or not len(tokens):
            return
        known = self._kind_of_all(tokens)
        if known is not None:
            self._kind = self._wider(self._kind, known) or STRING
            return
        for token in tokens.unique().to_pylist():
            self._kind = self._wider(self._kind, self._kind_of(token)) or STRING

    def _kind_of_all(self, tokens: pa.Array) -> Kind | None:
        """The one type of all tokens, if looking at the whole column can tell; None if not."""
        if self._kind in (NULL, INT, LONG) and consists_of(tokens, b"-0123456789"):
            for kind in (INT, LONG):
                if _castable(tokens, _ARROW[kind]):
                    return kind
        if self._kind in (NULL, INT, LONG, DOUBLE) and _all_match(tokens, r"^-?[0-9]{0,15}\.[0-9]{1,15}$"):
            return DOUBLE
        formats = self._options.date_format, self._options.timestamp_format
        if formats != (None, None) or not self._options.prefer_date:
            return None
        if self._kind in (NULL, DATE) and _castable(tokens, pa.date32()):
            return DATE
        if self._kind in (NULL, TIMESTAMP) and _all_match(tokens, "^.{19}") and _castable(tokens, pa.timestamp("us")):
            return TIMESTAMP
        return None

    def _kind_of(self, token: str) -> Kind:
        """The type of one token, beginning the search at the type found so far."""
        order = ["int", "long", "decimal", "double", "date", "timestamp", "boolean"]
        if self.settled:
            return STRING
        start = order.index(self._kind.name) if self._kind.name in order else 0
        for name in order[start:]:
            kind = self._is_of(token, name)
            if kind is not None:
                return kind
        return STRING

    def _is_of(self, token: str, name: str) -> Kind | None:
        if name == "decimal":
            return _decimal_kind(token)
        found = {
            "int": lambda: parse_int(token, 32) is not None,
            "long": lambda: parse_int(token, 64) is not None,
            "double": lambda: parse_double(token) is not None or token in self._named_numbers,
            "date": lambda: (self._options.prefer_date or self._kind is DATE) and self._parse_date(token) is not None,
            "timestamp": lambda: self._parse_timestamp(token) is not None,
            "boolean": lambda: parse_bool(token) is not None,
        }[name]()
        return Kind(name) if found else None

    def _wider(self, one: Kind, other: Kind) -> Kind | None:
        """The type that covers both; None if only a string does."""
        if one == other or other is NULL:
            return one
        if one is NULL:
            return other
        kinds = {one.name, other.name}
        if kinds == {"date", "timestamp"}:
            lenient = self._options.timestamp_format is None and self._date_pattern in _LENIENT_DATES
            return TIMESTAMP if lenient else STRING
        if kinds <= {"int", "long"}:
            return LONG
        if kinds <= {"int", "long", "decimal", "double"}:
            return DOUBLE if DOUBLE in (one, other) else _wider_decimal(one, other)
        return None


def _wider_decimal(one: Kind, other: Kind) -> Kind:
    sizes = [(_WHOLE[kind], 0) if kind in _WHOLE else (kind.precision, kind.scale) for kind in (one, other)]
    scale = max(size[1] for size in sizes)
    whole = max(size[0] - size[1] for size in sizes)
    return DOUBLE if whole + scale > _MAX_PRECISION else Kind("decimal", whole + scale, scale)


def _decimal_kind(token: str) -> Kind | None:
    """The decimal type of a whole number too long for 64 bits; None if the token has a fraction or is none."""
    try:
        number = decimal.Decimal(token) if token.isascii() and "_" not in token and token.strip() == token else None
    except decimal.InvalidOperation:
        return None
    if number is None or not number.is_finite() or number.as_tuple().exponent != 0:
        return None
    precision = max(1, len(number.as_tuple().digits))
    return Kind("decimal", precision, 0) if precision <= _MAX_PRECISION else None


def _castable(tokens: pa.Array, arrow_type: pa.DataType) -> bool:
    try:
        tokens.cast(arrow_type)
    except pa.ArrowInvalid:
        return False
    return True


def _all_match(tokens: pa.Array, expression: str) -> bool:
    return pc.all(pc.match_substring_regex(tokens, expression)).as_py() is True
