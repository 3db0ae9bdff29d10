# SPDX-License-Identifier: Apache-2.0
"""Which Python values a column type holds without loss: a rule for each pair of Python type and column type."""

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

Mismatch = tuple[object, str]
"""A value that does not fit its column type, and the reason."""
Rule = Callable[[Sequence[Any]], Mismatch | None]
"""Checks values of one Python type for one column type; returns the first value that does not fit, or None."""

_MISSING: Final = ("NaTType", "NAType")
_MICROSECONDS: Final = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}
"""Microseconds in one unit, rounded up."""
_DAY: Final = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_EXACT_HALF: Final = 1 << 11
"""float16 holds all integers up to this absolute value exactly; Arrow checks wider floats itself."""

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
_ACCEPTED: Final = {
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
"""By kind of column: the kinds of values that it may hold without loss. In times, integers count units."""
_COUNTED: Final = ("timestamp", "date", "time", "duration")
"""Kinds of columns in which integers count units of time."""
_REASONS: Final = {
    ("float", "integer"): "its fraction would be cut off",
    ("decimal", "integer"): "its fraction would be cut off",
    ("timestamp", "date"): "its time of day would be cut off",
    ("float", "decimal"): "a float is not exact",
    ("text", "bytes"): "read() must encode it",
    ("bytes", "text"): "read() must decode it",
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
    """Return the rule for values of the Python type `cls` in a column of type `kind`; None = every value fits."""
    if is_missing(cls):
        return _refused("Arrow does not accept the missing values of pandas")
    plain = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    have = _family(cls)
    want = next((name for holds, name in _KINDS if holds(plain)), "")
    # Arrow checks its own values, and those of its extension types, itself.
    if not want or have == "arrow" or (have == "uuid" and plain is not kind):
        return None
    if not have:  # Arrow calls `__int__`, which may round
        return None if want == "integer" and hasattr(cls, "__index__") else _refused(_reason("", want, plain))
    if have not in _ACCEPTED[want]:
        return _refused(_reason(have, want, plain))
    return _value_rule(cls, have, want, plain)


def is_missing(cls: type) -> bool:
    """Whether `cls` is the type of a missing value of pandas, such as `NaT`."""
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
    return known or f"values of this type are not converted to {kind}"


def _value_rule(cls: type, have: str, want: str, kind: pa.DataType) -> Rule | None:
    unit = getattr(kind, "unit", "")
    match have, want:
        case "integer", "float" if kinds.is_float16(kind):
            return _each(lambda value: abs(value) > _EXACT_HALF, f"float16 is exact only up to {_EXACT_HALF}")
        case "float", "float" if not kinds.is_float64(kind):
            return lambda values: _out_of_range(values, kind)
        case "integer", "date" if kinds.is_date64(kind):
            return _each(lambda value: value % _DAY["ms"] != 0, "it is not a whole number of days")
        case "integer", "time":
            return _each(lambda value: not 0 <= value < _DAY[unit], f"it is not a time of day, counted in {unit}")
        case "numpy timestamp" | "numpy duration", _:
            return _each(lambda value: _numpy_unit(value) != unit, f"its unit in numpy is not {unit}")
        case "time", _:
            finer, zone = _finer(cls, unit, "microsecond"), _each(_has_zone, "its zone would be lost")
            return lambda values: (finer and finer(values)) or zone(values)
        case "timestamp", _:
            return _finer(cls, unit, "microsecond")
        case "duration", _:
            return _finer(cls, unit, "microseconds")
    return None


def _refused(reason: str) -> Rule:
    return lambda values: (values[0], reason)


def _each(loses: Callable[[Any], bool], reason: str) -> Rule:
    """Return a rule that refuses the first value for which `loses` is true, with `reason`."""
    return lambda values: next(((value, reason) for value in values if loses(value)), None)


def _finer(cls: type, unit: str, field: str) -> Rule | None:
    """Return the rule that refuses values with a part finer than `unit`; None if the type `cls` has no such values.

    `field` is the attribute with the microseconds. Values of pandas also have nanoseconds.
    """
    whole, nanos = _MICROSECONDS[unit], field.replace("micro", "nano")
    reason = f"the part finer than {unit} would be cut off"
    if unit != "ns" and hasattr(cls, nanos):
        return _each(lambda value: getattr(value, field) % whole != 0 or getattr(value, nanos) != 0, reason)
    return None if whole == 1 else _each(lambda value: getattr(value, field) % whole != 0, reason)


def _has_zone(value: time) -> bool:
    return value.tzinfo is not None


def _numpy_unit(value: object) -> object:
    return sys.modules["numpy"].datetime_data(value.dtype)[0]  # type: ignore[attr-defined]  # a datetime64


def _out_of_range(values: Sequence[Any], kind: pa.DataType) -> Mismatch | None:
    """Return the first float that becomes infinite or zero in the narrower type `kind`; rounding is accepted."""
    wide = pa.array(values, pa.float64())
    narrow = wide.cast(kind, safe=False).cast(pa.float64())
    lost = pc.or_(pc.is_inf(narrow), pc.equal(narrow, 0.0))
    if pc.any(lost).as_py():
        for value, changed in zip(values, pc.and_(lost, pc.not_equal(wide, narrow)).to_pylist(), strict=True):
            if changed:
                return value, "it is out of the range of this type"
    return None
