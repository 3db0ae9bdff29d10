# SPDX-License-Identifier: Apache-2.0
"""Converts the dicts and tuples that a connector yields to record batches; errors name column, row and value."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from difflib import get_close_matches
from itertools import chain
from operator import itemgetter
from typing import Any, Final, cast
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from forebay.errors import ContractError, DataError
from forebay.framework.arrow.casting import (
    ConversionError,
    first_failing,
    forbids_nulls,
    is_bytes,
    is_text,
    refuse_nulls,
)

# -- Which Python values a column type holds without loss: a rule for each pair of Python type and column type.


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


Row = Mapping[str, object] | tuple[object, ...]


class RowConverter:
    """Converts dicts and tuples to record batches of a schema. One per read of a split; not thread-safe.

    `labels` takes a row number and returns the labels (source, split, position) of an error about this row. With
    `extra_keys`, keys of dicts that are not in the schema are dropped, unless a dict has only such keys.
    """

    def __init__(self, schema: pa.Schema, labels: Callable[[int], dict[str, str]], *, extra_keys: bool) -> None:
        self._schema = schema
        self._names = schema.names
        self._known = frozenset(schema.names)
        self._labels = labels
        self._extra_keys = extra_keys
        self._most = sys.maxsize if extra_keys else len(schema)
        self._values = _getter(schema.names)
        self._checks = [value_check(field.name, field.type, extra_keys=extra_keys) for field in schema]
        self._partial = 0
        self._given: set[object] = set()

    def take(self, row: object, number: int) -> tuple[object, ...]:
        """Return the values of a row in schema order; a missing key gives None. The caller may then reuse the dict.

        `number` is the row number, for errors.

        Raises:
            ContractError: The row has an unknown key, is a tuple of another length, or is neither a dict nor a tuple.
        """
        if type(row) is dict:  # a defaultdict would create missing keys
            try:
                values = self._values(row)
            except KeyError:
                return self._take_partial(row, number)
            return values if len(row) <= self._most else self._take_partial(row, number)
        if isinstance(row, tuple):
            if len(row) != len(self._names):
                problem = f"read() yielded a tuple of {len(row)} values, but schema() has {len(self._names)} columns"
                raise self._broken(problem, number)
            return row
        if isinstance(row, Mapping):
            return self._take_partial(row, number)
        raise self._broken(f"read() yielded a row that is a {type(row).__name__}", number)

    def record_batch(self, rows: Sequence[tuple[object, ...]], first: int) -> pa.RecordBatch:
        """Convert one or more results of `take` to one record batch; `first` is the first row's number, for errors.

        Raises:
            ContractError: A value does not fit its column, or a column has more than 2 GiB.
            DataError: A value is null in a field that is not nullable.
        """
        arrays = [
            self._array(field, check, list(map(itemgetter(number), rows)), first)
            for number, (field, check) in enumerate(zip(self._schema, self._checks, strict=True))
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def never_given(self, rows: int) -> list[str]:
        """Return the columns, and the struct fields inside them, whose keys were missing from every row.

        `rows` is the number of rows read so far. A tuple counts as a row with all keys.
        """
        columns = [name for name in self._names if name not in self._given] if rows and self._partial == rows else []
        return columns + [path for check in self._checks if check.path not in columns for path in check.missing()]

    def _take_partial(self, row: Mapping[str, object], number: int) -> tuple[object, ...]:
        """Return the values of a dict that has missing or unknown keys."""
        unknown = [key for key in row if key not in self._known]
        if row and len(unknown) == len(row) and self._names:
            raise self._broken(
                f"read() yielded a row with none of the columns {self._names}, only the keys {unknown[:10]}", number
            )
        if unknown and not self._extra_keys:
            raise self._broken(
                f"read() yielded a row with a key that is not a column: {strange_key(unknown[0], self._names)}",
                number,
                advice=STRANGE_KEY_ADVICE,
            )
        self._partial += 1
        self._given.update(row)
        return tuple(map(row.get, self._names))

    def _array(self, field: pa.Field, check: ValueCheck, values: Sequence[object], first: int) -> pa.Array:
        try:
            # Arrow returns several chunks if one cannot hold the values.
            array = cast("pa.Array | pa.ChunkedArray", pa.array(values, type=field.type))
            check.check(values)
        except pa.ArrowCapacityError as error:
            raise self._too_large(values, field, first) from error
        except (UnfitValueError, *ARROW_ERRORS) as error:
            raise self._unfit(values, field, check, first, error) from error
        if isinstance(array, pa.ChunkedArray):
            raise self._too_large(values, field, first)
        self._check_nulls(array, field, first)
        return array

    def _too_large(self, values: Sequence[object], field: pa.Field, first: int) -> ContractError:
        return self._broken(
            f"the column {field.name!r} of {len(values)} rows has more than 2 GiB, which no record batch can hold",
            first,
            advice="yield Batch objects with fewer rows; for plain rows, lower the option maxRowsPerBatch",
        )

    def _check_nulls(self, array: pa.Array, field: pa.Field, first: int) -> None:
        if field.nullable and not forbids_nulls(field.type):
            return
        try:
            refuse_nulls(array, field)
        except ConversionError as error:
            raise DataError(
                f"column {field.name!r} must not be null, but this row has a null"
                if array.null_count and not field.nullable
                else f"column {field.name!r} is {field.type}: {error}",
                **self._labels(first + first_failing(array, lambda part: refuse_nulls(part, field))),
                advice="give a value in read(), or make the field nullable in schema()",
            ) from error

    def _unfit(
        self, values: Sequence[object], field: pa.Field, check: ValueCheck, first: int, error: Exception
    ) -> ContractError:
        """Return the error about the first value that Arrow or `check` refuses; `error` is the error of the column."""
        for index, value in enumerate(values):
            try:
                check.check([value], convert=True)
                pa.array([value], type=field.type)
            except UnfitValueError as unfit:
                return self._broken(str(unfit), first + index, advice=unfit.advice)
            except ARROW_ERRORS as cause:
                refused = UnfitValueError(field.name, field.type, value, str(cause))
                return self._broken(str(refused), first + index, advice=refused.advice)
        return self._broken(
            f"the column {field.name!r} cannot be converted to {field.type}: {error}", first, advice=CONVERT
        )

    def _broken(self, problem: str, number: int, *, advice: str = "") -> ContractError:
        advice = advice or "yield dicts by column name or tuples in schema order"
        return ContractError(problem, **self._labels(number), rule="SR-2", advice=advice)


def _getter(names: Sequence[str]) -> Callable[[Mapping[str, object]], tuple[object, ...]]:
    """Return a function that gets the values of `names` from a dict; it raises KeyError for a missing key."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda row: tuple([row[name] for name in names])  # with one name, itemgetter returns no tuple


# -- Refuses Python values that `pa.array` would cut, round, parse or drop without an error.
#
# `pa.array` converts 0.99 to the int64 0, a `datetime` to a date, and a misspelt key of a struct to a null. Each
# column, and each type nested in it, has a `ValueCheck`. It looks at the Python *types* of all values at once, which
# is cheap, and at single values only if their Python type may lose information in the column.


_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)
_TEXTS = (str, bytes, bytearray, memoryview)
_NONE = type(None)


ARROW_ERRORS: Final = (
    pa.ArrowInvalid,
    pa.ArrowTypeError,
    AttributeError,
    LookupError,
    NotImplementedError,
    OverflowError,
    TypeError,
    ValueError,
)
"""Exceptions of `pa.array` for values that it cannot convert; some come from methods of the values."""
CONVERT: Final = "convert the value in read(), or change the type in schema()"
GIVE_NONE: Final = "in read(), give None for a missing value"


class UnfitValueError(Exception):
    """A Python value does not fit its Arrow type.

    `path` is the column `c`, or a place inside it: `c.x` (struct), `c.element` (list), `c.key` or `c.value` (map).
    """

    def __init__(self, path: str, kind: pa.DataType, value: object, reason: str, *, advice: str | None = None) -> None:
        super().__init__(f"column {path!r} is {kind}, but got {value!r:.100} ({type(value).__name__}): {reason}")
        self.advice = advice or (GIVE_NONE if is_missing(type(value)) else CONVERT)


class ValueCheck(ABC):
    """Checks whether Python values fit one Arrow type. Not thread-safe."""

    def __init__(self, path: str, kind: pa.DataType) -> None:
        self.path = path
        self.kind = kind

    @abstractmethod
    def check(self, values: Sequence[object], *, convert: bool = False) -> None:
        """Check that `pa.array` converts the values without loss. Values that `pa.array` refuses need no check.

        With `convert`, each value is also converted alone, to find the one that Arrow refuses.

        Raises:
            UnfitValueError: A value would lose information, or Arrow refuses it.
        """

    def accepts(self, cls: type) -> bool:
        """Whether every value of the Python type `cls` fits, so that single values need no check."""
        return False

    def missing(self) -> Iterator[str]:
        """Return the paths of the struct fields that were missing from every dict checked so far."""
        return iter(())


def value_check(path: str, kind: pa.DataType, *, extra_keys: bool = False) -> ValueCheck:
    """Return the check for values of the type `kind` at `path`: a column, or a place inside it.

    With `extra_keys`, keys that are not fields of a struct are ignored, unless a dict has only such keys.
    """

    def inside(name: str, type_inside: pa.DataType) -> ValueCheck:
        return value_check(f"{path}.{name}", type_inside, extra_keys=extra_keys)

    if isinstance(kind, pa.StructType):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return _StructCheck(
            path, kind, {field.name: inside(field.name, field.type) for field in fields}, extra_keys=extra_keys
        )
    if isinstance(kind, pa.MapType):
        return _MapCheck(path, kind, inside("key", kind.key_type), inside("value", kind.item_type))
    if isinstance(kind, _LISTS):
        return _ListCheck(path, kind, inside("element", kind.value_type))
    if isinstance(kind, (pa.DictionaryType, pa.RunEndEncodedType)):
        return value_check(path, kind.value_type, extra_keys=extra_keys)
    return _LeafCheck(path, kind)


class _LeafCheck(ValueCheck):
    """Checks values of a type that is not nested."""

    def __init__(self, path: str, kind: pa.DataType) -> None:
        super().__init__(path, kind)
        self._accepted: set[type] = {_NONE}
        self._rules: dict[type, Rule] = {}

    def check(self, values: Sequence[object], *, convert: bool = False) -> None:
        classes = set(map(type, values))
        for cls in classes.difference(self._accepted):
            if self.accepts(cls):
                continue
            problem = self._rules[cls](
                values if len(classes) == 1 else [value for value in values if type(value) is cls]
            )
            if problem is not None:
                raise UnfitValueError(self.path, self.kind, *problem)
        for value in values if convert else ():
            try:
                pa.array([value], self.kind)
            except ARROW_ERRORS as error:
                raise UnfitValueError(self.path, self.kind, value, str(error)) from error

    def accepts(self, cls: type) -> bool:
        if cls not in self._accepted and cls not in self._rules:
            rule = rule_of(cls, self.kind)
            if rule is None:
                self._accepted.add(cls)
            else:
                self._rules[cls] = rule
        return cls in self._accepted


class _ListCheck(ValueCheck):
    def __init__(self, path: str, kind: pa.DataType, element: ValueCheck) -> None:
        super().__init__(path, kind)
        self._element = element

    def check(self, values: Sequence[object], *, convert: bool = False) -> None:
        if {list, tuple, _NONE}.issuperset(map(type, values)):
            elements = list(chain.from_iterable(filter(None, values)))  # type: ignore[arg-type]  # lists and tuples
        else:
            elements = list(chain.from_iterable(map(self._elements, values)))
        if elements:
            self._element.check(elements, convert=convert)

    def missing(self) -> Iterator[str]:
        return self._element.missing()

    def _elements(self, value: object) -> Iterable[object]:
        """Return the elements of a list that need a check; none if Arrow checks them. Refuse text and bytes."""
        if isinstance(value, _TEXTS):
            raise UnfitValueError(self.path, self.kind, value, "text and bytes are not accepted as lists")
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray):
            return () if value.dtype != object and self._element.accepts(value.dtype.type) else value
        # Arrow checks its own values itself.
        arrow = isinstance(value, (pa.Array, pa.ChunkedArray, pa.Scalar))
        return value if isinstance(value, Collection) and not arrow else ()


class _MapCheck(ValueCheck):
    """Checks the values of a map type: dicts, or lists of pairs."""

    def __init__(self, path: str, kind: pa.MapType, key: ValueCheck, item: ValueCheck) -> None:
        super().__init__(path, kind)
        self._key = key
        self._item = item
        entry = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        self._entry = _StructCheck(path, entry, {"key": key, "value": item}, extra_keys=False)

    def check(self, values: Sequence[object], *, convert: bool = False) -> None:
        entries: list[object] = []
        if not {dict, _NONE}.issuperset(map(type, values)):
            pairs = [value for value in values if isinstance(value, (list, tuple))]
            entries = list(chain.from_iterable(pairs))
        maps = [value for value in values if isinstance(value, dict)]
        if maps:
            self._key.check(list(chain.from_iterable(maps)), convert=convert)
            self._item.check(list(chain.from_iterable(mapping.values() for mapping in maps)), convert=convert)
        if entries:
            self._entry.check(entries, convert=convert)

    def missing(self) -> Iterator[str]:
        yield from self._key.missing()
        yield from self._item.missing()


class _StructCheck(ValueCheck):
    """Checks the values of a struct type: dicts, tuples of all field values, or lists of pairs."""

    def __init__(self, path: str, kind: pa.DataType, fields: Mapping[str, ValueCheck], *, extra_keys: bool) -> None:
        super().__init__(path, kind)
        self._fields = fields
        self._extra_keys = extra_keys
        self._given: set[str] = set()
        self._came = False

    def check(self, values: Sequence[object], *, convert: bool = False) -> None:
        present = [value for value in values if value is not None]
        if not present:
            return
        columns = self._complete(present)
        if columns is None:
            dicts = [fields for value in present if (fields := self._as_dict(value)) is not None]
            columns = {name: [record[name] for record in dicts if name in record] for name in self._fields}
            self._given.update(name for name, column in columns.items() if column)
            self._came = self._came or bool(dicts)
        else:
            self._given.update(columns)
        for name, column in columns.items():
            self._fields[name].check(column, convert=convert)

    def missing(self) -> Iterator[str]:
        for name, field in self._fields.items():
            if self._came and name not in self._given:
                yield field.path
            else:
                yield from field.missing()

    def _complete(self, values: Sequence[Any]) -> dict[str, list[object]] | None:
        """Return the values of each field if all structs are plain dicts of exactly these fields; None otherwise."""
        if not {dict}.issuperset(map(type, values)):  # a defaultdict would create missing keys
            return None
        if not (self._extra_keys or {len(self._fields)}.issuperset(map(len, values))):
            return None
        try:
            return {name: list(map(itemgetter(name), values)) for name in self._fields}
        except KeyError:
            return None

    def _as_dict(self, value: object) -> dict[str, object] | None:
        """Return a struct value as a dict by field name; None for a value that Arrow refuses or checks itself."""
        if isinstance(value, tuple):
            return dict(zip(self._fields, value, strict=True)) if len(value) == len(self._fields) else None
        if isinstance(value, list):
            pairs = all(isinstance(each, tuple) and len(each) == 2 for each in value)
            value = dict(value) if pairs else None
        if not isinstance(value, dict):
            return None
        # Arrow accepts keys in bytes too.
        named = {key.decode(errors="replace") if isinstance(key, bytes) else key: each for key, each in value.items()}
        unknown = [key for key in named if key not in self._fields]
        if unknown and not (self._extra_keys and len(unknown) < len(named)):
            raise UnfitValueError(
                self.path, self.kind, value, strange_key(unknown[0], self._fields), advice=STRANGE_KEY_ADVICE
            )
        return named


def strange_key(key: object, names: Iterable[str]) -> str:
    """Return an error text that says there is no `key`, and suggests the most similar of `names`, if there is one."""
    known = {name.lower(): name for name in names}
    near = get_close_matches(key.lower(), known, 1) if isinstance(key, str) else []
    return f"there is no {key!r}" + (f"; did you mean {known[near[0]]!r}?" if near else "")


STRANGE_KEY_ADVICE: Final = (
    "name the keys in read() as schema() does, or add the field to schema(); or set extra_keys = True on the class "
    "to ignore keys that are not in the schema"
)
"""The next step of errors about a key that is not in the schema."""
