# SPDX-License-Identifier: Apache-2.0
"""Turns JSON values of facts into values of a type. Whoever writes below a location chooses what its facts hold.

The types of a dataclass say which JSON values its fields take, so that no other code meets a value of another type.
Without pyarrow, for query nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, TypeGuard, Union, get_args, get_origin, get_type_hints

_Reader = Callable[[Any], Any]


@dataclass(frozen=True)
class Within:
    """The least and the greatest value of a number, as part of its type."""

    least: float
    greatest: float


Whole = Annotated[int, Within(0, (1 << 63) - 1)]
"""A count, a number of a fact, or a size."""

_BITS: Final = Within(-(1 << 63), (1 << 63) - 1)

UNREADABLE: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What code raises that reads stored values of another kind than it expects."""


def is_text(value: object) -> TypeGuard[str]:
    """Return whether a value of a user is a text that facts can hold: not empty, and without parts of characters."""
    return isinstance(value, str) and value != "" and value.encode(errors="ignore").decode() == value


def typed_value(kind: Any, value: Any) -> Any:  # noqa: ANN401 - a type, a JSON value, and a value of the type
    """Return the value of a type for a JSON value. A list becomes a tuple.

    Args:
        kind: A dataclass, a number, text, a truth value, or a tuple, a mapping or an option of them. If it is a
            dataclass with `is_valid`, that is true of the result.
        value: The JSON value.

    Raises:
        ValueError: The value is of another type.
    """
    return _reader(kind)(value)


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
