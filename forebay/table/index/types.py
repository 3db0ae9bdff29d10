# SPDX-License-Identifier: Apache-2.0
"""Spark's types by their text, and how their values are stored in SQLite so that they compare as in Spark.

| type | in SQLite |
|---|---|
| boolean, integers | INTEGER |
| float, double | REAL; NaN is the text `NaN`, which sorts after all numbers |
| decimal up to 18 digits | INTEGER, the unscaled value |
| decimal with more digits | BLOB of 17 bytes in the order of the numbers |
| string | TEXT |
| binary | BLOB |
| date, timestamp, timestamp_ntz | INTEGER, days or microseconds since 1970 |
| array, map, struct | TEXT, JSON without loss |
"""

from __future__ import annotations

import decimal
import json
import math
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, lru_cache
from typing import Any, Final

from forebay.errors import ConfigurationError

NAN: Final = "NaN"
"""What stands for NaN in a column of floats."""

INTEGERS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
"""The integer types, and their bits."""

SMALL_DECIMAL: Final = 18
"""The greatest precision whose unscaled values fit into an INTEGER."""

_BIAS: Final = 1 << 135
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_ZERO: Final = date(1970, 1, 1).toordinal()
_MICROSECOND: Final = timedelta(microseconds=1)
_ALIASES: Final = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "timestamp_ltz": "timestamp",
}
_SCALARS: Final = frozenset(
    {"boolean", *INTEGERS, "float", "double", "decimal", "string", "binary", "date", "timestamp", "timestamp_ntz"}
)
_TOKEN = re.compile(r"(?<!\s)\s*(?:`((?:[^`]|``)*)`|([A-Za-z_0-9]+|[<>,:]|\([0-9,\s]*\)))")


@dataclass(frozen=True)
class SparkType:
    """A type of Spark.

    Args:
        name: The name, such as `bigint`, `decimal` or `array`.
        precision: The digits of a decimal.
        scale: The digits of a decimal after the point.
        fields: The elements of an array, key and values of a map, or the fields of a struct, with their names.
    """

    name: str
    precision: int = 0
    scale: int = 0
    fields: tuple[tuple[str, SparkType], ...] = ()

    @property
    def is_nested(self) -> bool:
        """Whether it is an array, a map or a struct."""
        return bool(self.fields) or self.name == "struct"

    @cached_property
    def text(self) -> str:
        """The type as Spark writes it."""
        if self.name == "decimal":
            return f"decimal({self.precision},{self.scale})"
        if self.name == "struct":
            inner = ",".join(f"{quoted_name(name)}:{kind.text}" for name, kind in self.fields)
            return f"struct<{inner}>"
        if self.fields:
            return f"{self.name}<{','.join(kind.text for _, kind in self.fields)}>"
        return self.name

    @property
    def hint(self) -> str:
        """Which values of Python have the type, for the advice of an error; empty where that is plain."""
        if self.name == "decimal":
            return f": an int or a Decimal with at most {self.scale} places, and {self.precision} digits"
        if self.name in INTEGERS:
            return f": an int of {INTEGERS[self.name]} bits"
        times = {
            "date": ": a datetime.date",
            "timestamp": ": a datetime, with a time zone",
            "timestamp_ntz": ": a datetime, without a time zone",
        }
        return times.get(self.name, "")

    def encode(self, value: Any) -> Any:  # noqa: ANN401 - a value of the type
        """Return a value, as pyarrow or a user gives it, as SQLite stores it.

        Raises:
            TypeError: The value does not have the type.
            ValueError: It has, but no value of the type is equal to it.
            ArithmeticError: The same, for a number that is too large.
        """
        if value is None:
            return None
        if self.is_nested:
            return json.dumps(self.to_json(value), ensure_ascii=False, separators=(",", ":"))
        return self._encoded(value)

    def decode(self, stored: Any) -> Any:  # noqa: ANN401 - a value of the type
        """Return the value for what SQLite stores: the Python value that Spark's rows have, timestamps in UTC."""
        if stored is None or self.name in ("bigint", "int", "string", "binary"):
            return stored
        if self.is_nested:
            return self.of_json(json.loads(stored))
        match self.name:
            case "boolean":
                return bool(stored)
            case "float" | "double":
                return math.nan if stored == NAN else stored
            case "decimal":
                unscaled = stored if self.precision <= SMALL_DECIMAL else int.from_bytes(stored) - _BIAS
                return decimal.Decimal(unscaled).scaleb(-self.scale, _EXACT)
            case "date":
                return date.fromordinal(stored + _DAY_ZERO)
            case "timestamp":
                return _EPOCH + timedelta(microseconds=stored)
            case "timestamp_ntz":
                return (_EPOCH + timedelta(microseconds=stored)).replace(tzinfo=None)
        return stored

    def parse(self, text: str) -> Any:  # noqa: ANN401 - a value of the type
        """Return the value of a text, as the command line gives keys.

        Raises:
            ValueError: The text is no value of the type.
            ArithmeticError: The same, for a decimal.
        """
        if self.name == "string":
            return text
        if "_" in text or not text.isascii():  # Python's numbers may have these
            raise ValueError(text)
        if self.name in INTEGERS:
            return int(text)
        match self.name:
            case "boolean" if text.lower() in ("true", "false"):
                return text.lower() == "true"
            case "decimal":
                return decimal.Decimal(text)
            case "binary":
                return bytes.fromhex(text)
            case "date":
                return date.fromisoformat(text)
            case "timestamp" | "timestamp_ntz":
                return datetime.fromisoformat(text)
        raise ValueError(text)

    def unscaled(self, number: int) -> Any:  # noqa: ANN401 - int or bytes
        """Return an unscaled decimal as SQLite stores it."""
        return number if self.precision <= SMALL_DECIMAL else (number + _BIAS).to_bytes(17)

    def _encoded(self, value: Any) -> Any:  # noqa: ANN401, C901 - one line for each type
        if self.name in INTEGERS:
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError
            if not -(1 << (INTEGERS[self.name] - 1)) <= value < 1 << (INTEGERS[self.name] - 1):
                raise ValueError
            return value
        match self.name:
            case "string" if isinstance(value, str):
                value.encode()
                return value
            case "boolean" if isinstance(value, bool):
                return int(value)
            case "float" | "double" if isinstance(value, int | float) and not isinstance(value, bool):
                return NAN if math.isnan(value) else float(value) + 0.0
            case "decimal" if isinstance(value, int | decimal.Decimal) and not isinstance(value, bool):
                scaled = decimal.Decimal(value).scaleb(self.scale, _EXACT)
                if scaled != scaled.to_integral_value() or scaled.copy_abs() >= decimal.Decimal(10) ** self.precision:
                    raise ValueError
                return self.unscaled(int(scaled))
            case "binary" if isinstance(value, bytes | bytearray):
                return bytes(value)
            case "date" if isinstance(value, date) and not isinstance(value, datetime):
                return value.toordinal() - _DAY_ZERO
            case "timestamp" if isinstance(value, datetime) and value.tzinfo is not None:
                # In UTC it may be before the year 1 or after 9999, which is an OverflowError.
                return (value.astimezone(UTC) - _EPOCH) // _MICROSECOND
            case "timestamp_ntz" if isinstance(value, datetime) and value.tzinfo is None:
                return (value.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
        raise TypeError

    def to_json(self, value: Any) -> Any:  # noqa: ANN401 - JSON
        """Return a part of a nested value as JSON."""
        if value is None:
            return None
        match self.name:
            case "array":
                return [self.fields[0][1].to_json(each) for each in value]
            case "map":
                pairs = value.items() if isinstance(value, dict) else value
                (_, key), (_, kind) = self.fields
                return [[key.to_json(each), kind.to_json(inner)] for each, inner in pairs]
            case "struct":
                return [kind.to_json(value[name]) for name, kind in self.fields]
            case "decimal":
                return str(value)
            case "binary":
                return value.hex()
            case "float" | "double":
                return value + 0.0 if math.isfinite(value) else str(value)
        return self._encoded(value)

    def of_json(self, value: Any) -> Any:  # noqa: ANN401 - a value of the type
        """Return a part of a nested value of its JSON."""
        if value is None:
            return None
        match self.name:
            case "array":
                return [self.fields[0][1].of_json(each) for each in value]
            case "map":
                (_, key), (_, kind) = self.fields
                return {key.of_json(each): kind.of_json(inner) for each, inner in value}
            case "struct":
                return {name: kind.of_json(each) for (name, kind), each in zip(self.fields, value, strict=True)}
            case "decimal":
                number = decimal.Decimal(value)
                # `1E+999999999` and `0E+999999999` are short texts, and their digits take minutes.
                if not number.is_finite() or abs(number.adjusted()) > 38:
                    raise ValueError(value)
                return number
            case "binary":
                return bytes.fromhex(value)
            case "float" | "double":
                return float(value)
        return self.decode(value)


_EXACT: Final = decimal.Context(prec=decimal.MAX_PREC)


@lru_cache(maxsize=1024)
def parse_type(text: str, of: str = "") -> SparkType:
    """Parse the text of a type.

    Args:
        text: The text.
        of: What has the type, for the error, such as ` of the key 'id'`.

    Raises:
        ConfigurationError: It is no type, or one without equality, such as a variant.
    """
    try:
        tokens = _tokens(text)
        kind = _parsed(tokens)
        if not tokens:
            return kind
    except (ValueError, IndexError, RecursionError):  # an IndexError, if the text ends too early
        pass
    raise ConfigurationError(
        f"the type {text!r:.200}{of} cannot be used",
        option="type",
        advice="write a type of Spark, such as bigint, decimal(12,2), string, timestamp or array<string>; convert a "
        "variant or an interval to a string first",
    )


def _tokens(text: str) -> list[str]:
    """Return the words, signs and numbers of a text, the last one first; quoted names have one backtick before them."""
    if _TOKEN.sub("", text).strip():
        raise ValueError(text)
    return [other or f"`{quoted.replace('``', '`')}" for quoted, other in _TOKEN.findall(text)][::-1]


def _parsed(tokens: list[str]) -> SparkType:
    name = tokens.pop().lower()
    name = _ALIASES.get(name, name)
    if name in ("array", "map", "struct"):
        return _nested(name, tokens)
    numbers: list[int] = []
    if tokens and tokens[-1].startswith("("):
        numbers = [int(number) for number in re.findall("[0-9]+", tokens.pop())]
    if name in ("varchar", "char"):
        return SparkType("string")
    if name == "decimal":
        precision, scale = (*numbers, *(10, 0)[len(numbers) :])[:2]
        if 0 <= scale <= precision <= 38 and precision > 0:
            return SparkType(name, precision, scale)
    elif name in _SCALARS and not numbers:
        return SparkType(name)
    raise ValueError(name)


def _nested(name: str, tokens: list[str]) -> SparkType:
    fields: list[tuple[str, SparkType]] = []
    _expect(tokens, "<")
    while tokens[-1] != ">":
        if fields:
            _expect(tokens, ",")
        label = str(len(fields))
        if name == "struct":
            label = tokens.pop()
            if label[0] in "<>,:(":
                raise ValueError(label)
            label = label.removeprefix("`")
            if tokens[-1] == ":":
                tokens.pop()
        fields.append((label, _parsed(tokens)))
    _expect(tokens, ">")
    if len(dict(fields)) < len(fields) or len(fields) != {"array": 1, "map": 2}.get(name, len(fields)):
        raise ValueError(name)
    return SparkType(name, fields=tuple(fields))


def _expect(tokens: list[str], expected: str) -> None:
    if tokens.pop() != expected:
        raise ValueError(expected)


def quoted_name(name: str) -> str:
    """Return the name of a field as the text of a type has it."""
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else f"`{name.replace('`', '``')}`"
