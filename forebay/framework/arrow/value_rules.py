# SPDX-License-Identifier: Apache-2.0
"""For each type of Python value and each type of column: taken, refused, or to be looked at value by value."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from forebay.framework.arrow.casting import is_bytes, is_text

Found = tuple[object, str]
"""A value that does not fit, and why."""
Rule = Callable[[Sequence[Any]], Found | None]
"""Looks at values of one Python type for one type of column."""

_MISSING: Final = ("NaTType", "NAType")
_MICROSECONDS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
"""Microseconds in one unit, rounded up."""
_DAY: Final = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_EXACT_HALF: Final = 1 << 11
"""Integers up to this have a float16 of their own; for the wider floats Arrow knows it."""

_FAMILIES: Final[tuple[tuple[type, str], ...]] = (
    (bool, "bool"),
    (int, "integer"),
    (float, "float"),
    (Decimal, "decimal"),
    (str, "text"),
    (bytes, "bytes"),
    (bytearray, "bytes"),
    (memoryview, "bytes"),
    (datetime, "timestamp"),
    (date, "date"),
    (time, "time"),
    (timedelta, "duration"),
    (UUID, "uuid"),
    (pa.Scalar, "arrow"),
)
_NUMPY_FAMILIES: Final = (
    ("bool_", "bool"),
    ("longdouble", "longdouble"),
    ("timedelta64", "numpy duration"),  # numpy counts it among the integers
    ("datetime64", "numpy timestamp"),
    ("integer", "integer"),
    ("floating", "float"),
)
_TAKEN: Final = {
    "boolean": {"bool"},
    "integer": {"integer"},
    "float": {"integer", "float"},
    "decimal": {"integer", "decimal"},
    "text": {"text"},
    "bytes": {"bytes"},
    "timestamp": {"timestamp", "numpy timestamp", "integer"},
    "date": {"date", "integer"},
    "time": {"time", "integer"},
    "duration": {"duration", "numpy duration", "integer"},
}
"""By kind of column: the values it takes, as far as they lose nothing. Integers count units of time."""
_COUNTED: Final = ("timestamp", "date", "time", "duration")
"""The kinds of column in which a number counts units of time."""
_REASONS: Final = {
    ("float", "integer"): "its fraction would be cut off",
    ("decimal", "integer"): "its fraction would be cut off",
    ("timestamp", "date"): "its time of day would be cut off",
    ("float", "decimal"): "a float is not exact",
    ("text", "bytes"): "nothing says how to encode it",
    ("bytes", "text"): "nothing says how to decode it",
}


_KINDS: Final[tuple[tuple[Callable[[pa.DataType], bool], str], ...]] = (
    (kinds.is_boolean, "boolean"),
    (kinds.is_integer, "integer"),
    (kinds.is_floating, "float"),
    (kinds.is_decimal, "decimal"),
    (is_text, "text"),
    (is_bytes, "bytes"),
    (kinds.is_timestamp, "timestamp"),
    (kinds.is_date, "date"),
    (kinds.is_time, "time"),
    (kinds.is_duration, "duration"),
)


def rule_of(cls: type, kind: pa.DataType) -> Rule | None:
    """Return how values of a type are looked at for a type of column; None if none of them can lose anything."""
    if is_missing(cls):
        return _refused("Arrow does not know it")
    plain = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    have = _family(cls)
    want = next((name for holds, name in _KINDS if holds(plain)), "")
    # Arrow takes its own values, and those of its extension types, only where they are exactly of the type.
    if not want or have == "arrow" or (have == "uuid" and plain is not kind):
        return None
    if not have:  # Arrow makes an integer of whatever has `__int__`
        return None if want == "integer" and hasattr(cls, "__index__") else _refused(_reason("", want, plain))
    if have not in _TAKEN[want]:
        return _refused(_reason(have, want, plain))
    return _value_rule(cls, have, want, plain)


def is_missing(cls: type) -> bool:
    """Whether it is what pandas has for a missing value."""
    return cls.__name__ in _MISSING and cls.__module__.startswith("pandas.")


def _family(cls: type) -> str:
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(cls, numpy.generic):
        for name, family in _NUMPY_FAMILIES:
            if issubclass(cls, getattr(numpy, name)):
                return family
    return next((family for base, family in _FAMILIES if issubclass(cls, base)), "")


def _reason(have: str, want: str, kind: pa.DataType) -> str:
    counted = want in _COUNTED and have in ("float", "decimal")
    known = _REASONS.get((have, "integer" if counted else want))
    return known or f"values of this type are never made {kind}"


def _value_rule(cls: type, have: str, want: str, kind: pa.DataType) -> Rule | None:
    unit = getattr(kind, "unit", "")
    match have, want:
        case "integer", "float" if kinds.is_float16(kind):
            return _each(lambda value: abs(value) > _EXACT_HALF, "it is beyond the exact integers of this type")
        case "float", "float" if not kinds.is_float64(kind):
            return lambda values: _out_of_range(values, kind)
        case "integer", "date" if kinds.is_date64(kind):
            return _each(lambda value: value % _DAY["ms"] != 0, "it is no whole day, in milliseconds")
        case "integer", "time":
            return _each(lambda value: not 0 <= value < _DAY[unit], f"it is outside of the day, in {unit}")
        case "numpy timestamp" | "numpy duration", _:
            return _each(lambda value: _numpy_unit(value) != unit, f"numpy counts it in another unit than {unit}")
        case "time", _:
            return _first_of(_finer(cls, unit, "microsecond"), _each(_has_zone, "its zone would be lost"))
        case "timestamp", _:
            return _finer(cls, unit, "microsecond")
        case "duration", _:
            return _finer(cls, unit, "microseconds")
    return None


def _refused(reason: str) -> Rule:
    return lambda values: (values[0], reason)


def _each(loses: Callable[[Any], bool], reason: str) -> Rule:
    """Return the rule that looks at one value after the other."""

    def rule(values: Sequence[Any]) -> Found | None:
        return next(((value, reason) for value in values if loses(value)), None)

    return rule


def _first_of(*rules: Rule | None) -> Rule:
    def rule(values: Sequence[Any]) -> Found | None:
        return next((found for one in rules if one is not None and (found := one(values)) is not None), None)

    return rule


def _finer(cls: type, unit: str, field: str) -> Rule | None:
    """Return the rule for what is finer than a unit; the values of pandas count nanoseconds beside."""
    whole, nanos = _MICROSECONDS[unit], field.replace("micro", "nano")
    if unit != "ns" and hasattr(cls, nanos):
        return _each(
            lambda value: getattr(value, field) % whole != 0 or getattr(value, nanos) != 0,
            f"what is finer than {unit} would be cut off",
        )
    if whole == 1:
        return None
    return _each(lambda value: getattr(value, field) % whole != 0, f"what is finer than {unit} would be cut off")


def _has_zone(value: time) -> bool:
    return value.tzinfo is not None


def _numpy_unit(value: object) -> object:
    return sys.modules["numpy"].datetime_data(value.dtype)[0]  # type: ignore[attr-defined]  # a datetime64


def _out_of_range(values: Sequence[Any], kind: pa.DataType) -> Found | None:
    """Refuse floats that a narrower type makes infinite or zero; others are rounded, as floats are."""
    wide = pa.array(values, pa.float64())
    narrow = wide.cast(kind, safe=False).cast(pa.float64())
    lost = pc.or_(pc.is_inf(narrow), pc.equal(narrow, 0.0))
    if pc.any(lost).as_py():
        for value, changed in zip(values, pc.and_(lost, pc.not_equal(wide, narrow)).to_pylist(), strict=True):
            if changed:
                return value, "it is out of the range of this type"
    return None
