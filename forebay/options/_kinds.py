# SPDX-License-Identifier: Apache-2.0
"""The kinds of option values: each kind parses and writes the values of one type.

A kind accepts text from Spark and the command line, and typed values from Python. For an invalid value it raises
`ValueError` with a reason, which `OptionSpec.convert` turns into an error for the user, without secrets.
"""

from __future__ import annotations

import difflib
import inspect
import json
import math
import operator
import os
import re
import sys
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Optional, Union, get_args, get_origin

from forebay.options.quantities import ByteSize, Duration
from forebay.options.secret import Secret, is_sensitive


class InvalidValue(ValueError):
    """An option's value or type is invalid. The text may be empty, and may contain the value, so it may be secret."""


class Kind(ABC):
    """Parses and writes the values of one option type. The base class of all kinds."""

    expects: str
    """What a valid value is, for error texts: `takes a whole number`."""
    example: str
    """A text that `parse` accepts, for error texts."""
    holds_secret = False
    """Whether a value is or contains a `Secret`."""
    ambiguous = False
    """Whether `parse` may convert the result of `text` to another value, so that the writer must check it."""

    @abstractmethod
    def parse(self, value: object, key: str = "") -> Any:
        """Return `value`, a text or a typed value, as a value of this type. `key` is its key if it is in a map."""

    @abstractmethod
    def text(self, value: Any) -> str:
        """Return the text that `parse` converts to `value`."""

    @abstractmethod
    def owns(self, value: object) -> bool:
        """Return whether `value` already has this type."""

    def json(self, value: Any) -> object:
        """Return `value` as an item of a JSON array or object."""
        return self.text(value)


@dataclass(frozen=True)
class Scalar(Kind):
    """The kind of a type whose values are each written as one text without structure."""

    type: type
    expects: str
    example: str
    read: Callable[[object], object]
    write: Callable[[Any], str] = str
    plain: bool = False  # whether JSON has this type
    holds_secret: bool = False

    def parse(self, value: object, key: str = "") -> Any:
        return self.read(value)

    def text(self, value: Any) -> str:
        return self.write(value)

    def owns(self, value: object) -> bool:
        lookalike = {int: (bool, ByteSize), date: (datetime,)}.get(self.type, ())
        return isinstance(value, self.type) and not isinstance(value, lookalike)

    def json(self, value: Any) -> object:
        return value if self.plain else self.write(value)


def _read_str(value: object) -> str:
    if isinstance(value, str):
        return str(value.value) if isinstance(value, Enum) else value
    raise InvalidValue


def _read_bool(value: object) -> bool:
    flag = {"true": True, "false": False}.get(value.strip().lower()) if isinstance(value, str) else value
    if isinstance(flag, bool):
        return flag
    raise InvalidValue


def _read_int(value: object) -> int:
    if isinstance(value, str):
        if re.fullmatch(r"\s*[+-]?[0-9]+\s*", value):
            return int(value)
    elif not isinstance(value, bool) and hasattr(value, "__index__"):
        return int(operator.index(value))
    raise InvalidValue


def _read_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or "_" in str(value):
        raise InvalidValue
    try:
        number = float(value)
    except OverflowError as error:
        raise InvalidValue("too large") from error
    if math.isnan(number):
        raise InvalidValue
    return number


def _read_datetime(value: object) -> datetime:
    if isinstance(value, datetime):
        return value
    return datetime.fromisoformat(_read_str(value).strip())


def _read_date(value: object) -> date:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    return date.fromisoformat(_read_str(value).strip())


def _read_path(value: object) -> Path:
    return Path(value) if isinstance(value, os.PathLike) else Path(_read_str(value))


def _read_duration(value: object) -> Duration:
    if isinstance(value, (timedelta, int, float)) and not isinstance(value, (bool, ByteSize)):
        return Duration(value)
    return Duration(_read_str(value))


def _read_bytes(value: object) -> ByteSize:
    return ByteSize(value if isinstance(value, str) else _read_int(value))


def _read_secret(value: object) -> Secret:
    return value if isinstance(value, Secret) else Secret(_read_str(value))


SCALARS: Final = {
    kind.type: kind
    for kind in (
        Scalar(str, "a text", "abc", _read_str, plain=True),
        Scalar(bool, "true or false", "true", _read_bool, lambda value: str(value).lower(), plain=True),
        Scalar(int, "a whole number", "10", _read_int, plain=True),
        Scalar(float, "a number", "0.5", _read_float, repr, plain=True),
        Scalar(Duration, "a duration with a unit", "30s", _read_duration, lambda value: value.text),
        Scalar(timedelta, "a duration with a unit", "30s", _read_duration, lambda value: Duration(value).text),
        Scalar(ByteSize, "a size in bytes", "128m", _read_bytes, lambda value: value.text),
        Scalar(datetime, "a date and time", "2024-05-01T12:00:00Z", _read_datetime, datetime.isoformat),
        Scalar(date, "a date", "2024-05-01", _read_date, date.isoformat),
        Scalar(Path, "a path", "/data/in", _read_path),
        Scalar(Secret, "a secret or a reference to one", "env:NAME", _read_secret, holds_secret=True),
    )
}
TEXTUAL: Final = (str, Path)  # every text is a valid value of these


class Choice(Kind):
    """The kind of `Literal` and `Enum`: one of a few values."""

    def __init__(self, texts: Sequence[str], values: Sequence[object], also: Iterable[tuple[str, object]] = ()) -> None:
        self.texts, self._values = tuple(texts), tuple(values)
        if not texts:
            raise InvalidValue("the type of the option has no values to choose from")
        if len(set(texts)) < len(texts):
            raise InvalidValue("two values of the option's type are written as the same text")
        exact = {**dict(also), **dict(zip(texts, values, strict=True))}
        folded: dict[str, object] = {}
        for text, value in exact.items():
            folded.setdefault(text.lower(), value)
        self._by_text = {**folded, **exact}
        self.expects = "one of " + ", ".join(repr(text) for text in texts)
        self.example = texts[0]

    def parse(self, value: object, key: str = "") -> Any:
        if isinstance(value, str) and not isinstance(value, Enum):
            text = value if value in self._by_text else value.strip().lower()
            if text in self._by_text:
                return self._by_text[text]
            near = difflib.get_close_matches(value, self.texts, 1)
            raise InvalidValue(f"did you mean {near[0]!r}?" if near else "")
        if self.owns(value):
            return value
        raise InvalidValue

    def text(self, value: Any) -> str:
        return next(t for t, v in zip(self.texts, self._values, strict=True) if type(v) is type(value) and v == value)

    def owns(self, value: object) -> bool:
        return any(type(choice) is type(value) and choice == value for choice in self._values)


def choice_text(choice: object) -> str:
    """Return the text of a choice. The text of an enum member is its value if that is a str, else its name."""
    if isinstance(choice, Enum):
        return choice.value if isinstance(choice.value, str) else choice.name
    return str(choice).lower() if isinstance(choice, bool) else str(choice)


# -- The kinds of composite option values (lists, maps, optional values). `kind_of` finds the kind of a type.


READABLE: Final = (
    "str, int, float, bool, Duration, ByteSize, Secret, datetime, date, Path, an Enum, Literal, list[T], "
    "tuple[T, ...], set[T], dict[str, T], str | Secret, or T | None"
)


class ListOf(Kind):
    """The kind of lists, written as a JSON array or as comma-separated texts."""

    def __init__(self, factory: Callable[[Iterable[Any]], Collection[Any]], item: Kind) -> None:
        self._factory = factory
        self._item = item
        self.expects = f"a JSON array or a comma-separated list; each item is {item.expects}"
        self.example = self.text([item.parse(item.example)])
        self.holds_secret, self.ambiguous = item.holds_secret, item.ambiguous

    def parse(self, value: object, key: str = "") -> Any:
        if isinstance(value, str):
            items = _json(value, list) if self._is_json(value.strip()) else _between_commas(value)
        elif isinstance(value, (Sequence, AbstractSet)) and not isinstance(value, (bytes, bytearray)):
            items = list(value)
        else:
            raise InvalidValue
        return self._factory(self._item.parse(item, key) for item in items)

    def _is_json(self, text: str) -> bool:
        # A glob such as [ab]*.csv starts like an array.
        textual = isinstance(self._item, Scalar) and self._item.type in TEXTUAL
        return re.match(r'\[\s*("|\]$)' if textual else r"\[", text) is not None

    def text(self, value: Any) -> str:
        return json.dumps(self.json(value), ensure_ascii=False)

    def json(self, value: Any) -> object:
        items = [self._item.json(item) for item in value]
        return sorted(items, key=json.dumps) if isinstance(value, AbstractSet) else items

    def owns(self, value: object) -> bool:
        return isinstance(self._factory, type) and isinstance(value, self._factory)


class MapOf(Kind):
    """The kind of maps, written as a JSON object or as all options with one prefix."""

    def __init__(self, key: Kind, item: Kind) -> None:
        self.key = key
        self.item = item
        self.expects = f"a JSON object; each value is {item.expects}"
        self.example = self.text({key.parse(key.example): item.parse(item.example)})
        self.holds_secret = item.holds_secret
        self.ambiguous = key.ambiguous or item.ambiguous

    def parse(self, value: object, key: str = "") -> Any:
        pairs = _json(value, dict) if isinstance(value, str) else value
        if not isinstance(pairs, Mapping):
            raise InvalidValue
        return {self.key.parse(k): self.item.parse(v, str(k)) for k, v in pairs.items()}

    def text(self, value: Any) -> str:
        return json.dumps(self.json(value), ensure_ascii=False)

    def json(self, value: Any) -> object:
        return {self.key.text(k): self.item.json(v) for k, v in value.items()}

    def owns(self, value: object) -> bool:
        return isinstance(value, Mapping)


class OptionalOf(Kind):
    """The kind of values that may be None. The text `null` means None unless it is a valid value."""

    ambiguous = True

    def __init__(self, inner: Kind) -> None:
        self._inner = inner
        self.expects, self.example, self.holds_secret = inner.expects, inner.example, inner.holds_secret

    def parse(self, value: object, key: str = "") -> Any:
        if value is None:
            return None
        try:
            return self._inner.parse(value, key)
        except ValueError:
            if isinstance(value, str) and value.strip().lower() == "null":
                return None
            raise

    def text(self, value: Any) -> str:
        return "null" if value is None else self._inner.text(value)

    def json(self, value: Any) -> object:
        return None if value is None else self._inner.json(value)

    def owns(self, value: object) -> bool:
        return value is None or self._inner.owns(value)


class SecretOrText(Kind):
    """The kind of `str | Secret`: a text is a Secret if it is a reference, or its key in a map is sensitive."""

    ambiguous = True

    def __init__(self) -> None:
        self.expects = f"{SCALARS[str].expects}, or {SCALARS[Secret].expects}"
        self.example, self.holds_secret = SCALARS[str].example, True

    def parse(self, value: object, key: str = "") -> Any:
        secret = isinstance(value, Secret) or is_sensitive(key) or str(value).startswith(("env:", "file:"))
        return SCALARS[Secret if secret else str].parse(value, key)

    def text(self, value: Any) -> str:
        return self._owner(value).text(value)

    def json(self, value: Any) -> object:
        return self._owner(value).json(value)

    def owns(self, value: object) -> bool:
        return self._owner(value).owns(value)

    def _owner(self, value: object) -> Kind:
        return SCALARS[Secret if isinstance(value, Secret) else str]


_CONTAINERS: Final[dict[object, Callable[[Iterable[Any]], Collection[Any]]]] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    Sequence: tuple,
    AbstractSet: frozenset,
}


def kind_of(hint: object) -> Kind:
    """Return the kind that parses and writes values of a type. `hint` comes from `typing.get_type_hints`.

    Raises:
        InvalidValue: Values of this type cannot be written as text.
    """
    hint = getattr(hint, "__supertype__", None) or getattr(hint, "__value__", None) or hint
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return kind_of(args[0])
    if isinstance(hint, type) and hint in SCALARS:
        return SCALARS[hint]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _kind_of_enum(hint)
    if origin is Literal:
        values = [choice for choice in args if choice is not None]
        choice = Choice([choice_text(value) for value in values], values)
        return OptionalOf(choice) if None in args else choice
    if origin is Union or origin is types.UnionType:
        return _kind_of_union(args)
    if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis):
        raise InvalidValue("a tuple type must allow any length: write tuple[T, ...]")
    if origin in _CONTAINERS and args:
        return ListOf(_CONTAINERS[origin], kind_of(args[0]))
    if origin in (dict, Mapping) and len(args) == 2:
        return MapOf(kind_of(args[0]), kind_of(args[1]))
    raise InvalidValue(f"a text cannot represent a value of {getattr(hint, '__qualname__', hint)!s}")


def _kind_of_union(members: Sequence[object]) -> Kind:
    values = [member for member in members if member is not type(None)]
    if len(values) == 1:
        kind = kind_of(values[0])
    elif set(values) == {str, Secret}:
        kind = SecretOrText()
    else:
        raise InvalidValue("an option has one type: declare a str, and parse it in a method, or declare two options")
    return kind if len(values) == len(members) else OptionalOf(kind)


def _kind_of_enum(enum: type[Enum]) -> Kind:
    members = list(enum)
    also = [*((str(member.value), member) for member in members), *enum.__members__.items()]
    return Choice([choice_text(member) for member in members], members, also)


def _between_commas(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _json(text: str, expected: type) -> Any:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"the value is not JSON: {error}") from error
    if not isinstance(parsed, expected):
        raise InvalidValue("the value is JSON, but not " + ("an array" if expected is list else "an object"))
    return parsed


# -- Resolves the annotations of a class to types, even if the class was defined in a notebook cell or in a function.


# Names that every annotation may use: on a worker, `__main__` is not the program that defined the class.
_WELL_KNOWN: Final[Mapping[str, object]] = {
    "Annotated": Annotated,
    "Any": Any,
    "ByteSize": ByteSize,
    "ClassVar": ClassVar,
    "Duration": Duration,
    "Enum": Enum,
    "Literal": Literal,
    "Optional": Optional,
    "Path": Path,
    "Secret": Secret,
    "Union": Union,
    "date": date,
    "datetime": datetime,
    "timedelta": timedelta,
    "typing": typing,
}


def own_annotations(cls: type) -> Mapping[str, Any]:
    """Return the annotations in the body of a class, without those of its base classes."""
    return inspect.get_annotations(cls)


def resolved(base: type, annotation: object) -> Any:
    """Return the type that an annotation means, including `Annotated` and `ClassVar`.

    Args:
        base: The class in whose body the annotation is.
        annotation: The annotation, which may be a text.

    Raises:
        Exception: Evaluating the annotation failed, mostly with NameError.
    """
    scope = {**_WELL_KNOWN, **_names_around(base)}
    # A class body sees its own attributes. Only types count, because of `date: date = …`.
    scope.update({name: value for name, value in vars(base).items() if isinstance(value, type)})
    holder = type(base.__name__, (), {"__annotations__": {"it": annotation}})
    return typing.get_type_hints(holder, scope, {}, include_extras=True)["it"]


def _names_around(base: type) -> dict[str, object]:
    """Return the names that the methods of a class can see: globals, and variables of enclosing functions."""
    names = dict(vars(sys.modules[base.__module__])) if base.__module__ in sys.modules else {}
    for method in vars(base).values():
        if isinstance(method, types.FunctionType):
            names.update(method.__globals__)
    for method in vars(base).values():
        if isinstance(method, types.FunctionType):
            names.update(_enclosed(method))
    return names


def _enclosed(method: types.FunctionType) -> dict[str, object]:
    cells = {}
    for name, cell in zip(method.__code__.co_freevars, method.__closure__ or (), strict=True):
        try:
            cells[name] = cell.cell_contents
        except ValueError:  # the enclosing function has not assigned it yet
            continue
    return cells


def resolve_annotations(cls: type) -> None:
    """Replace text annotations of a class by types, where they can be resolved now.

    Called by a base class in `__init_subclass__`, before `dataclass`, so that a class that is pickled by value contains
    the types. An annotation that cannot be resolved stays a text; `class_options` reports it.
    """
    annotations = dict(own_annotations(cls))
    for name, annotation in annotations.items():
        if isinstance(annotation, str):
            try:
                annotations[name] = resolved(cls, annotation)
            except Exception:  # noqa: BLE001, S112 - an annotation is code; `class_options` reports the error
                continue
    cls.__annotations__ = annotations


_SECTION = re.compile(r"\s*(Args|Attributes|Options):\s*")
_ENTRY = re.compile(r"(\s+)(\w+)(?: \([^)]*\))?:\s+(.*)")


def documented(cls: type) -> Mapping[str, str]:
    """Return the descriptions of attributes in a class's docstring, under "Args:", "Attributes:" or "Options:"."""
    descriptions: dict[str, str] = {}
    section, indent, name = False, 0, ""
    for line in inspect.cleandoc(vars(cls).get("__doc__") or "").splitlines():
        entry = _ENTRY.fullmatch(line)
        if _SECTION.fullmatch(line):
            section, indent, name = True, 0, ""
        elif line and not line.startswith(" "):
            section = False
        elif section and entry and len(entry[1]) <= (indent or len(entry[1])):
            indent, name = len(entry[1]), entry[2]
            descriptions[name] = entry[3].strip()
        elif section and name and line.strip():
            descriptions[name] += " " + line.strip()
    return descriptions
