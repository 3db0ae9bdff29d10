# SPDX-License-Identifier: Apache-2.0
"""Turns facts, files of JSON below a location, into objects. Whoever writes there chooses their content.

The types of a dataclass say which JSON values its fields take, so that no other code meets a value of another type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from forebay.errors import FatalError, ForebayError
from forebay.table.changelog.state.facts import parse_fact

_T = TypeVar("_T")
_Reader = Callable[[Any], Any]


@dataclass(frozen=True)
class Within:
    """The least and the greatest value of a number, as part of its type."""

    least: float
    greatest: float


Whole = Annotated[int, Within(0, (1 << 63) - 1)]
"""A count, a number of a fact, or a size."""

Seconds = Annotated[float, Within(0, 1 << 36)]
"""Seconds, and seconds since 1970. The sum of two is a time that can be shown."""

Microseconds = Annotated[int, Within(0, (1 << 36) * 1_000_000)]
"""Microseconds since 1970, which can be shown."""

_BITS: Final = Within(-(1 << 63), (1 << 63) - 1)

UNREADABLE: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What code raises that reads stored values of another kind than it expects."""


def numbers_of(names: Sequence[str], prefix: str) -> list[int]:
    """Return the numbers of facts with these names, sorted. Files that people put there are none."""
    stems = (name.removeprefix(prefix).removesuffix(".json") for name in names if name.endswith(".json"))
    return sorted(int(stem) for stem in stems if stem.isdecimal() and f"{int(stem):012d}" == stem)


def stored_object(kind: type[_T], data: bytes, name: str, *, number: str = "number") -> _T:
    """Return the object of a fact.

    Args:
        kind: A dataclass. If it has `is_valid`, that is true.
        data: The content of the fact.
        name: Its name, which ends with its number.
        number: The field with its number. If the fact lacks it, it is that of the name.

    Raises:
        FatalError: It is damaged, or another version of forebay wrote it.
    """
    stem = name.rpartition("/")[2].removesuffix(".json")
    of_name = int(stem) if stem.isdecimal() else 0
    made = object_of(kind, {number: of_name, **parsed(data, name)}, name)
    if getattr(made, number) != of_name:
        raise damaged_fact(name, f"it has the number {getattr(made, number)}")
    return made


def object_of(kind: type[_T], content: Mapping[str, Any], name: str) -> _T:
    """Return the object of JSON values of the fact `name`; see `stored_object`."""
    reader = _reader(cast("Any", kind))
    with readable_as(name):
        made: _T = reader(content)
    return made


@contextmanager
def readable_as(name: str) -> Iterator[None]:
    """Let an error, while values of a fact are read, be the one for a damaged fact.

    Raises:
        FatalError: The values are of another kind.
    """
    try:
        yield
    except (*UNREADABLE, ForebayError) as error:
        raise damaged_fact(name, f"{error}"[:500] or type(error).__name__) from error


def parsed(data: bytes, name: str) -> dict[str, Any]:
    """Parse the JSON of a fact, and return it without the format version; see `parse_fact`."""
    try:
        content = parse_fact(data, name)
    except ForebayError as error:
        error.option, error.advice = "location", _RESTORE
        raise
    del content["v"]
    return content


def damaged_fact(name: str, reason: str) -> FatalError:
    """Return the error for a file of the index that cannot be read."""
    return FatalError(f"the file {name} of the index is damaged: {reason}", option="location", advice=_RESTORE)


_RESTORE: Final = "restore the location from a backup; nothing else can tell what was committed"


@cache
def _reader(kind: Any) -> _Reader:  # noqa: ANN401 - a type
    """Return the function that returns the value of a type for a JSON value, or raises a ValueError."""
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        return _object(kind)
    if origin is Annotated:
        return _number(inner[0], inner[1])
    if kind in (int, float):
        return _number(kind, _BITS)
    if origin is Literal:
        return _one_of(inner)
    if origin in (Union, UnionType):
        return _optional(*(each for each in inner if each is not NoneType))
    if origin is tuple:
        return _list(inner[0]) if inner[1:] == (...,) else _several(inner)
    if origin is Mapping:
        return _mapping(inner[1])
    return _PLAIN[kind]


def _object(kind: type[Any]) -> _Reader:
    hints = get_type_hints(kind, include_extras=True)
    readers = {each.name: _reader(hints[each.name]) for each in fields(kind)}
    # An older version did not write a field that has a default.
    needed = {each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING}
    is_checked = hasattr(kind, "is_valid")

    def read(value: Any) -> Any:  # noqa: ANN401 - JSON, and an object of `kind`
        if not isinstance(value, dict) or not needed <= value.keys() <= readers.keys():
            raise ValueError(f"{value!r:.200} has not the fields {', '.join(readers)}")
        values = {}
        for name, each in value.items():
            try:
                values[name] = readers[name](each)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        made = kind(**values)
        if is_checked and not made.is_valid:
            raise ValueError(f"{value!r:.200} is no {kind.__name__}")
        return made

    return read


def _number(kind: type[float], bounds: Within) -> _Reader:
    allowed = int if kind is int else int | float

    def read(value: Any) -> float:  # noqa: ANN401 - JSON
        if isinstance(value, allowed) and not isinstance(value, bool) and bounds.least <= value <= bounds.greatest:
            return value
        raise ValueError(f"{value!r:.200} is no {kind.__name__} from {bounds.least} to {bounds.greatest}")

    return read


def _text(value: Any) -> str:  # noqa: ANN401 - JSON
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.200} is no text")  # noqa: TRY004 - of a file
    value.encode()  # a part of a character cannot be written or shown
    return value


def _one_of(values: tuple[Any, ...]) -> _Reader:
    def read(value: Any) -> Any:  # noqa: ANN401 - JSON
        for each in values:
            if value is each or (isinstance(value, str) and value == each):
                return each
        raise ValueError(f"{value!r:.200} is none of {', '.join(map(repr, values))}")

    return read


def _optional(kind: Any) -> _Reader:  # noqa: ANN401 - a type
    reader = _reader(kind)
    return lambda value: None if value is None else reader(value)


def _list(kind: Any) -> _Reader:  # noqa: ANN401 - a type
    reader = _reader(kind)

    def read(value: Any) -> tuple[Any, ...]:  # noqa: ANN401 - JSON
        if not isinstance(value, list):
            raise ValueError(f"{value!r:.200} is no list")  # noqa: TRY004 - of a file
        return tuple(map(reader, value))

    return read


def _several(kinds: Sequence[Any]) -> _Reader:
    readers = [_reader(kind) for kind in kinds]

    def read(value: Any) -> tuple[Any, ...]:  # noqa: ANN401 - JSON
        if not isinstance(value, list) or len(value) != len(readers):
            raise ValueError(f"{value!r:.200} is no list of {len(readers)} values")
        return tuple(reader(each) for reader, each in zip(readers, value, strict=True))

    return read


def _mapping(kind: Any) -> _Reader:  # noqa: ANN401 - a type
    reader = _reader(kind)

    def read(value: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        if not isinstance(value, dict):
            raise ValueError(f"{value!r:.200} is no object")  # noqa: TRY004 - of a file
        return {_text(name): reader(each) for name, each in value.items()}

    return read


_PLAIN: Final[Mapping[Any, _Reader]] = {Any: lambda value: value, str: _text, bool: _one_of((True, False))}
"""The readers of types without parts. A field of another type fails with the first fact that is read."""
