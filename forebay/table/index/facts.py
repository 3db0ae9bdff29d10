# SPDX-License-Identifier: Apache-2.0
"""Turns facts, files of JSON below a location, into objects. Whoever writes there chooses their content.

The types of a dataclass say which JSON values its fields take, so that no other code meets a value of another type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any, ClassVar, Final, Protocol, Self, TypeVar

from forebay.errors import FatalError, ForebayError, RetriableError
from forebay.table.changelog.state.facts import FORMAT, fact_bytes, parse_fact
from forebay.table.changelog.state.typed_values import UNREADABLE, Within, typed_value

_T = TypeVar("_T")

Seconds = Annotated[float, Within(0, 1 << 36)]
"""Seconds, and seconds since 1970. The sum of two is a time that can be shown."""

LATEST: Final = (1 << 36) * 1_000_000
"""The last time that an edit can have, in microseconds since 1970: in the year 4147."""

Microseconds = Annotated[int, Within(0, LATEST)]
"""Microseconds since 1970, which can be shown."""


def numbers_of(names: Sequence[str], prefix: str) -> list[int]:
    """Return the numbers of facts with these names, sorted. Files that people put there are none."""
    stems = (name.removeprefix(prefix).removesuffix(".json") for name in names if name.endswith(".json"))
    return sorted(int(stem) for stem in stems if stem.isdecimal() and f"{int(stem):012d}" == stem)


def newest(numbers: Callable[[], Sequence[int]], get: Callable[[int], _T | None], prefix: str) -> _T | None:
    """Return the newest of facts that others may collect meanwhile; None if there is none.

    Args:
        numbers: Returns the numbers that are listed, sorted.
        get: Returns the fact with a number; None if it is not there.
        prefix: How the names of the facts begin.

    Raises:
        RetriableError: One is listed twice, and is not there, as by a directory whose listing is old.
    """
    missing = None
    listed = numbers()
    while listed:
        last = listed[-1]
        fact = get(last)
        listed = numbers()
        # The newest one is never collected. Another one may have been, and put again by a writer that paused for long.
        if listed[-1:] != [last]:
            continue
        if fact is not None:
            return fact
        if last == missing:
            raise RetriableError(
                f"{prefix}{missing:012d}.json is listed, and cannot be opened, because it is not there",
                option="location",
                advice="do it again; if it lasts, look at what the file system or store lists",
            )
        missing = last
    return None


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


class Fact(Protocol):
    """A fact, which can be stored and read again: a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def to_bytes(self) -> bytes:
        """Return the fact as JSON."""
        return fact_bytes({"v": FORMAT, **asdict(self)})

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Self:
        """Parse a fact.

        Raises:
            FatalError: It is damaged, or another version of forebay wrote it.
        """
        return stored_object(cls, data, name)


def stored_bytes(fact: Fact, name: str) -> bytes:
    """Return a fact as JSON, before it is put. One that nobody could read again would be the end of what it is of.

    Raises:
        FatalError: It could not be read again.
    """
    try:
        data = fact.to_bytes()
        fact.from_bytes(data, name)
    except (*UNREADABLE, ForebayError) as error:
        reason = error.message if isinstance(error, ForebayError) else str(error)
        raise FatalError(
            f"{name} could not be read again, so it was not written: {reason:.500}",
            advice="correct the arguments of this call, if the message names one; else report this as a defect",
        ) from error
    return data


def object_of(kind: type[_T], content: Mapping[str, Any], name: str) -> _T:
    """Return the object of JSON values of the fact `name`; see `stored_object`."""
    with readable_as(name):
        made: _T = typed_value(kind, content)
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
