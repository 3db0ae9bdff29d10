# SPDX-License-Identifier: Apache-2.0
"""Which Python values a column takes: what Arrow would cut, round, parse or guess is refused.

`pa.array` makes 0.99 the int64 0, a `datetime` a date, and a misspelt key of a struct a null, without an error. A tree
of checks, one for each type inside a column, looks for that. A check looks at the *types* of all values at once, which
costs little beside the conversion, and at single values only where their type may lose something in the column's.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import chain
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from forebay.framework.arrow.value_rules import Rule, is_missing, rule_of

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
"""What `pa.array` raises for values that it cannot convert, also from their own code."""
CONVERT: Final = "convert it in read(), or change the type in schema()"
GIVE_NONE: Final = "give None for a missing value, in read()"


class UnfitValueError(Exception):
    """A value does not fit where it stands.

    Args:
        path: Where that is: `c`, `c.x` in a struct, `c.element` in a list, `c.key` and `c.value` in a map.
        kind: The type there.
        value: What came.
        reason: Why it does not fit.
        advice: The next step, where there is a better one than to convert it.
    """

    def __init__(self, path: str, kind: pa.DataType, value: object, reason: str, *, advice: str | None = None) -> None:
        super().__init__(f"column {path!r} is {kind}, but got {value!r:.100} ({type(value).__name__}): {reason}")
        self.advice = advice or (GIVE_NONE if is_missing(type(value)) else CONVERT)


class ValueCheck(ABC):
    """Looks at values for one type, before or after Arrow converted them. Not thread-safe.

    Args:
        path: The column, and the place inside it.
        kind: The type of the values there.
    """

    def __init__(self, path: str, kind: pa.DataType) -> None:
        self.path = path
        self.kind = kind

    @abstractmethod
    def check(self, values: Sequence[object], *, convert: bool = False) -> None:
        """Refuse values that would lose something; what no conversion takes is left to Arrow to refuse.

        Args:
            values: All there are; None among them is null.
            convert: Let Arrow convert them too, one by one, to find the one that it refuses.

        Raises:
            UnfitValueError: There is one.
        """

    def takes(self, cls: type) -> bool:
        """Whether values of a type need not be looked at."""
        return False

    def missing(self) -> Iterator[str]:
        """Return the fields that every dict so far left out, by path."""
        return iter(())


def value_check(path: str, kind: pa.DataType, *, extra_keys: bool = False) -> ValueCheck:
    """Return the check of a column, or of a place inside one.

    Args:
        path: The name of the column.
        kind: Its type.
        extra_keys: Leave out keys that a struct does not have; otherwise they are refused.
    """
    if isinstance(kind, pa.StructType):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        inside = {one.name: value_check(f"{path}.{one.name}", one.type, extra_keys=extra_keys) for one in fields}
        return StructCheck(path, kind, inside, extra_keys=extra_keys)
    if isinstance(kind, pa.MapType):
        key = value_check(f"{path}.key", kind.key_type, extra_keys=extra_keys)
        item = value_check(f"{path}.value", kind.item_type, extra_keys=extra_keys)
        return MapCheck(path, kind, key, item)
    if isinstance(kind, _LISTS):
        return ListCheck(path, kind, value_check(f"{path}.element", kind.value_type, extra_keys=extra_keys))
    if isinstance(kind, (pa.DictionaryType, pa.RunEndEncodedType)):
        return value_check(path, kind.value_type, extra_keys=extra_keys)
    return LeafCheck(path, kind)


class LeafCheck(ValueCheck):
    """The check of a type without others inside."""

    def __init__(self, path: str, kind: pa.DataType) -> None:
        super().__init__(path, kind)
        self._taken: set[type] = {_NONE}
        self._rules: dict[type, Rule] = {}

    def check(self, values: Sequence[object], *, convert: bool = False) -> None:
        """Refuse values by their types, or by themselves where their type may lose something."""
        found = set(map(type, values))
        for cls in found.difference(self._taken):
            if not self.takes(cls):
                self._look(cls, values if len(found) == 1 else [value for value in values if type(value) is cls])
        for value in values if convert else ():
            try:
                pa.array([value], self.kind)
            except ARROW_ERRORS as error:
                raise UnfitValueError(self.path, self.kind, value, str(error)) from error

    def takes(self, cls: type) -> bool:
        """Whether no value of a type can lose anything here."""
        if cls not in self._taken and cls not in self._rules:
            rule = self.verdict(cls)
            if rule is None:
                self._taken.add(cls)
            else:
                self._rules[cls] = rule
        return cls in self._taken

    def verdict(self, cls: type) -> Rule | None:
        """Return how values of a type are looked at; None if they need not be. Asked once for each type."""
        return rule_of(cls, self.kind)

    def _look(self, cls: type, values: Sequence[object]) -> None:
        found = self._rules[cls](values)
        if found is not None:
            value, reason = found
            raise UnfitValueError(self.path, self.kind, value, reason)


class ListCheck(ValueCheck):
    """The check of a list.

    Args:
        path: The place.
        kind: The type of the lists.
        element: The check of what is in them.
    """

    def __init__(self, path: str, kind: pa.DataType, element: ValueCheck) -> None:
        super().__init__(path, kind)
        self._element = element

    def check(self, values: Sequence[object], *, convert: bool = False) -> None:
        """Look at the elements of all lists at once."""
        if {list, tuple, _NONE}.issuperset(map(type, values)):
            elements = list(chain.from_iterable(filter(None, values)))  # type: ignore[arg-type]  # lists and tuples
        else:
            elements = list(chain.from_iterable(map(self._elements, values)))
        if elements:
            self._element.check(elements, convert=convert)

    def missing(self) -> Iterator[str]:
        """Return those of the elements."""
        return self._element.missing()

    def _elements(self, value: object) -> Iterable[object]:
        """Return the elements to look at of whatever stands for a list."""
        if isinstance(value, _TEXTS):
            raise UnfitValueError(self.path, self.kind, value, "text and bytes are no lists")
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray):
            return () if value.dtype != object and self._element.takes(value.dtype.type) else value
        # Arrow's own values have a type, and Arrow takes no other than that of the column.
        arrow = isinstance(value, (pa.Array, pa.ChunkedArray, pa.Scalar))
        return value if isinstance(value, Collection) and not arrow else ()


class MapCheck(ValueCheck):
    """The check of a map, which comes as a dict or as pairs.

    Args:
        path: The place.
        kind: The type of the maps.
        key: The check of the keys.
        item: That of the values.
    """

    def __init__(self, path: str, kind: pa.MapType, key: ValueCheck, item: ValueCheck) -> None:
        super().__init__(path, kind)
        self._key = key
        self._item = item
        entry = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        self._entry = StructCheck(path, entry, {"key": key, "value": item}, extra_keys=False)

    def check(self, values: Sequence[object], *, convert: bool = False) -> None:
        """Look at all keys, then at all values."""
        entries: list[object] = []
        if not {dict, _NONE}.issuperset(map(type, values)):
            pairs = [value for value in values if isinstance(value, (list, tuple))]
            entries = list(chain.from_iterable(pairs))
        maps = [value for value in values if isinstance(value, dict)]
        if maps:
            self._key.check(list(chain.from_iterable(maps)), convert=convert)
            self._item.check(list(chain.from_iterable(one.values() for one in maps)), convert=convert)
        if entries:
            self._entry.check(entries, convert=convert)

    def missing(self) -> Iterator[str]:
        """Return those of the keys and the values."""
        yield from self._key.missing()
        yield from self._item.missing()


class StructCheck(ValueCheck):
    """The check of a struct, which comes as a dict, as a tuple of all its values, or as pairs.

    Args:
        path: The place.
        kind: The type of the structs.
        fields: The check of each field, by name.
        extra_keys: Leave out keys that are no fields; otherwise they are refused.
    """

    def __init__(self, path: str, kind: pa.DataType, fields: Mapping[str, ValueCheck], *, extra_keys: bool) -> None:
        super().__init__(path, kind)
        self._fields = fields
        self._extra_keys = extra_keys
        self._given: set[str] = set()
        self._came = False

    def check(self, values: Sequence[object], *, convert: bool = False) -> None:
        """Look at the keys, then at all values of each field."""
        present = [value for value in values if value is not None]
        if not present:
            return
        columns = self._complete(present)
        if columns is None:
            dicts = [found for value in present if (found := self._as_dict(value)) is not None]
            columns = {name: [one[name] for one in dicts if name in one] for name in self._fields}
            self._given.update(name for name, column in columns.items() if column)
            self._came = self._came or bool(dicts)
        else:
            self._given.update(columns)
        for name, column in columns.items():
            self._fields[name].check(column, convert=convert)

    def missing(self) -> Iterator[str]:
        """Return the fields that no dict gave, and those inside the others."""
        for name, field in self._fields.items():
            if self._came and name not in self._given:
                yield field.path
            else:
                yield from field.missing()

    def _complete(self, values: Sequence[Any]) -> dict[str, list[object]] | None:
        """Return the values by field where all came as plain dicts of just these; None otherwise."""
        if not {dict}.issuperset(map(type, values)):  # a defaultdict would make what is missing
            return None
        if not (self._extra_keys or {len(self._fields)}.issuperset(map(len, values))):
            return None
        try:
            return {name: list(map(itemgetter(name), values)) for name in self._fields}
        except KeyError:
            return None

    def _as_dict(self, value: object) -> dict[str, object] | None:
        """Return the values of one struct by field; None for what Arrow does not take for one, or checks itself."""
        if isinstance(value, tuple):
            return dict(zip(self._fields, value, strict=True)) if len(value) == len(self._fields) else None
        if isinstance(value, list):
            pairs = all(isinstance(each, tuple) and len(each) == 2 for each in value)
            value = dict(value) if pairs else None
        if not isinstance(value, dict):
            return None
        # Arrow takes the keys as bytes too.
        named = {key.decode(errors="replace") if isinstance(key, bytes) else key: each for key, each in value.items()}
        unknown = [key for key in named if key not in self._fields]
        if unknown and not (self._extra_keys and len(unknown) < len(named)):
            raise UnfitValueError(
                self.path, self.kind, value, strange_key(unknown[0], self._fields), advice=STRANGE_KEY_ADVICE
            )
        return named


def strange_key(key: object, names: Iterable[str]) -> str:
    """Return what to say of a key that is not in the schema."""
    known = {name.lower(): name for name in names}
    near = get_close_matches(key.lower(), known, 1) if isinstance(key, str) else []
    return f"there is no {key!r}" + (f"; did you mean {known[near[0]]!r}?" if near else "")


STRANGE_KEY_ADVICE: Final = (
    "name the keys in read() as schema() does, or add the field to schema(); with extra_keys = True on the class, keys "
    "that are not in the schema are left out"
)
"""What to do about such a key."""
