# SPDX-License-Identifier: Apache-2.0
"""The kinds of composite option values (lists, maps, optional values, unions). `kind_of` finds the kind of a type."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from forebay.options._kinds import SCALARS, TEXTUAL, Choice, InvalidValue, Kind, Scalar, choice_text
from forebay.options.secret import Secret, is_sensitive

READABLE: Final = (
    "str, int, float, bool, Duration, ByteSize, Secret, datetime, date, Path, an Enum, Literal, list[T], "
    "tuple[T, ...], set[T], dict[str, T], T | None, or a union of these"
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


class UnionOf(Kind):
    """The kind of unions.

    The first member that can parse a text wins; `str`, `Path` and `Secret` come last. A typed value keeps its type.
    """

    ambiguous = True

    def __init__(self, members: Sequence[Kind]) -> None:
        textual = [kind for kind in members if isinstance(kind, Scalar) and kind.type in (*TEXTUAL, Secret)]
        self._textual = {kind.type: kind for kind in textual if isinstance(kind, Scalar)}
        self._members: list[Kind] = [*(kind for kind in members if kind not in textual), *textual]
        self.expects = ", or ".join(kind.expects for kind in members)
        self.example = members[0].example
        self.holds_secret = any(kind.holds_secret for kind in members)

    def parse(self, value: object, key: str = "") -> Any:
        for kind in () if isinstance(value, str) and not isinstance(value, Enum) else self._members:
            if kind.owns(value):
                return kind.parse(value, key)
        for kind in self._members:
            if not isinstance(kind, Scalar) or kind.type not in self._textual:
                try:
                    return kind.parse(value, key)
                except ValueError:
                    continue
        return self._parse_text(value, key)

    def _parse_text(self, value: object, key: str) -> Any:
        """Parse `value` as the textual member of the union (str, Path or Secret). `key` is its key if it is in a map.

        For `str | Secret`, the result is a Secret if the text is a reference or the key is sensitive.
        """
        kinds = dict(self._textual)
        secret = kinds.pop(Secret, None)
        if secret and (not kinds or is_sensitive(key) or str(value).startswith(("env:", "file:"))):
            return secret.parse(value, key)
        if not kinds:
            raise InvalidValue
        return kinds.get(str, next(iter(kinds.values()))).parse(value, key)

    def text(self, value: Any) -> str:
        return self._owner(value).text(value)

    def json(self, value: Any) -> object:
        return self._owner(value).json(value)

    def owns(self, value: object) -> bool:
        return any(kind.owns(value) for kind in self._members)

    def _owner(self, value: object) -> Kind:
        return next(kind for kind in self._members if kind.owns(value))


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
        members = [kind_of(arg) for arg in args if arg is not type(None)]
        inner = members[0] if len(members) == 1 else UnionOf(members)
        return OptionalOf(inner) if type(None) in args else inner
    if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis):
        raise InvalidValue("a tuple type must allow any length: write tuple[T, ...]")
    if origin in _CONTAINERS and args:
        return ListOf(_CONTAINERS[origin], kind_of(args[0]))
    if origin in (dict, Mapping) and len(args) == 2:
        return MapOf(kind_of(args[0]), kind_of(args[1]))
    raise InvalidValue(f"a text cannot represent a value of {getattr(hint, '__qualname__', hint)!s}")


def _kind_of_enum(enum: type[Enum]) -> Kind:
    members = list(enum)
    also = [*((str(member.value), member) for member in members), *enum.__members__.items()]
    return Choice([choice_text(member) for member in members], members, also)


def _between_commas(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _json(text: str, wanted: type) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"the value is not JSON: {error}") from error
    if not isinstance(found, wanted):
        raise InvalidValue("the value is JSON, but not " + ("an array" if wanted is list else "an object"))
    return found
