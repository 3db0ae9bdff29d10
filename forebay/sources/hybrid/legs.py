# SPDX-License-Identifier: Apache-2.0
"""The sources of a hybrid (its legs), in order, their splits, and their common schema."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, ClassVar, Final, Self, TypeVar

import pyarrow as pa

from forebay.clock import Clock
from forebay.errors import ConfigurationError, ContractError
from forebay.framework.arrow.casting import is_safe_cast, resolve_schema, resolved_schema
from forebay.framework.enumerator import SourceEvent, SplitEnumeratorContext
from forebay.framework.reader import SourceReaderContext
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Json, Position, Split

# -- The split of a hybrid source: a split of one of its legs (sources).


class HybridSplit(Split):
    """A split of one leg (source) of a hybrid. Its id is `<leg>/<id of the leg's split>`.

    Args:
        leg: The index of the leg, from 0.
        fields: The other fields of the leg's split, as its `to_json` returns them.
        whole: True if the split is read to its own end without a known end position, as a file is.
    """

    leg: int
    fields: Mapping[str, Json] = field(default_factory=dict, hash=False)
    whole: bool = False

    @property
    def ends_itself(self) -> bool:
        """Whether the split is read to its own end if `end` is None."""
        return self.whole


class SplitMapping:
    """Converts splits and positions of the legs (sources) to splits and positions of the hybrid, and back.

    A position of the last leg is kept unchanged unless it is a tuple, so that int positions still count records. All
    other positions become pairs of the leg's index and the position, so that `order_key` knows the leg.

    Args:
        legs: The sources of the hybrid, in order.
    """

    def __init__(self, legs: Sequence[Source]) -> None:
        self._legs = legs
        self._last = len(legs) - 1

    def outer_id(self, leg: int, split_id: str) -> str:
        """Return the id in the hybrid for the id of a leg's split."""
        return f"{leg}/{split_id}"

    def outer_position(self, leg: int, position: Position | None) -> Position | None:
        """Convert a position of a leg to a position of the hybrid."""
        if position is None or (leg == self._last and not isinstance(position, tuple)):
            return position
        return leg, position

    def inner_position(self, position: Position) -> tuple[int, Position]:
        """Convert a position of the hybrid to the index of its leg and the position in that leg."""
        if isinstance(position, tuple):
            leg, inner = position
            assert isinstance(leg, int)  # noqa: S101 - made by `outer_position`
            return leg, inner
        return self._last, position

    def outer(self, leg: int, split: Split, *, whole: bool = False) -> HybridSplit:
        """Convert a split of a leg to a split of the hybrid."""
        stored = split.to_json()
        fields = {name: _as_json(value) for name, value in stored.items() if name not in ("id", "position", "end")}
        return HybridSplit(
            id=self.outer_id(leg, split.id),
            position=self.outer_position(leg, split.position),
            end=self.outer_position(leg, split.end),
            leg=leg,
            fields=fields,
            whole=whole,
        )

    def inner(self, split: Split) -> Split:
        """Convert a split of the hybrid to the split of its leg.

        Raises:
            ContractError: The class of the leg's splits converts positions of an older version, but the offsets of the
                hybrid keep the old ones.
        """
        own = own_split(split)
        position, end = (None if place is None else self.inner_position(place)[1] for place in (own.position, own.end))
        fields = {"id": own.id.partition("/")[2], "position": position, "end": end}
        inner = self._legs[own.leg].split_class.from_json({**own.fields, **fields})
        if (inner.position, inner.end) != (position, end):
            raise ContractError(
                f"{type(inner).__name__}.upgrade() made the position {inner.position!r} of {position!r}, and the end "
                f"{inner.end!r} of {end!r}: in a hybrid it may convert other fields, not these",
                split=own.id,
                rule="SER-3",
                advice="let upgrade() keep the position and the end, and give read() and latest() both forms",
            )
        return inner


def own_split(split: Split) -> HybridSplit:
    """Return `split`, typed as a `HybridSplit`.

    Raises:
        TypeError: It is a split of another class.
    """
    if not isinstance(split, HybridSplit):
        raise TypeError(f"{type(split).__name__} is not a HybridSplit")
    return split


def by_leg(splits: Iterable[Split]) -> dict[int, list[HybridSplit]]:
    """Group splits by the index of their leg, and keep their order."""
    parts: dict[int, list[HybridSplit]] = {}
    for split in map(own_split, splits):
        parts.setdefault(split.leg, []).append(split)
    return parts


def _as_json(value: Json) -> Json:
    """Return the value with lists instead of tuples, as JSON would return it."""
    return [_as_json(part) for part in value] if isinstance(value, (tuple, list)) else value


# -- The contexts that a hybrid passes to the enumerator and the split reader of each leg (source).


T = TypeVar("T")


class LegEnumeratorContext(SplitEnumeratorContext):
    """The context of a leg's enumerator. It tells each leg but the last that the host reads once and does not stream.

    Args:
        outer: The host's context.
        leg: The index of the leg, from 0.
        last: Whether it is the last leg.
    """

    def __init__(self, outer: SplitEnumeratorContext, leg: int, *, last: bool) -> None:
        self._outer = outer
        self._leg = leg
        self._last = last

    @property
    def clock(self) -> Clock:
        """The clock of the host."""
        return self._outer.clock

    @property
    def streaming(self) -> bool:
        """Whether the host plans a stream and this is the last leg."""
        return self._last and self._outer.streaming

    @property
    def reads_once(self) -> bool:
        """Whether this leg is discovered once: each leg but the last is; the last is if the read is planned at once."""
        return not self._last or self._outer.reads_once

    @property
    def follows_history(self) -> bool:
        """Whether another source is read before this leg."""
        return self._leg > 0 or self._outer.follows_history

    def current_parallelism(self) -> int:
        """Return the number of readers."""
        return self._outer.current_parallelism()

    def registered_readers(self) -> Mapping[int, str | None]:
        """Return the live readers of the host: subtask → host name."""
        return self._outer.registered_readers()

    def assign_splits(self, assignment: Mapping[int, Sequence[Split]]) -> None:
        """Pass the call on to the host's context."""
        self._outer.assign_splits(assignment)

    def signal_no_more_splits(self, subtask: int) -> None:
        """Pass the call on to the host's context."""
        self._outer.signal_no_more_splits(subtask)

    def send_event_to_reader(self, subtask: int, event: SourceEvent) -> None:
        """Pass the call on to the host's context."""
        self._outer.send_event_to_reader(subtask, event)

    def call_async(
        self,
        work: Callable[[], T],
        handler: Callable[[T | None, BaseException | None], None],
        *,
        delay: float = 0.0,
        period: float | None = None,
    ) -> None:
        """Pass the call on to the host's context."""
        self._outer.call_async(work, handler, delay=delay, period=period)

    def run_in_coordinator_thread(self, action: Callable[[], None]) -> None:
        """Pass the call on to the host's context."""
        self._outer.run_in_coordinator_thread(action)


class LegReaderContext(SourceReaderContext):
    """The context of a leg's split reader: that of the host, except `ends_are_promises`.

    Args:
        outer: The host's context.
        last: Whether it is the last leg.
    """

    def __init__(self, outer: SourceReaderContext, *, last: bool) -> None:
        self._outer = outer
        self._last = last
        self.fetcher_factor = outer.fetcher_factor

    @property
    def runtime(self) -> Runtime:
        """The host's provider of threads, locks, time and random numbers."""
        return self._outer.runtime

    @property
    def subtask(self) -> int:
        """The index of the host's reader."""
        return self._outer.subtask

    @property
    def options(self) -> HostOptions:
        """The host's options."""
        return self._outer.options

    @property
    def ends_are_promises(self) -> bool:
        """Whether the next read starts at the ends of this leg's splits.

        False for each leg before the last one, because such a leg has no next read.
        """
        return self._last and self._outer.ends_are_promises

    def current_parallelism(self) -> int:
        """Return the number of readers."""
        return self._outer.current_parallelism()

    def send_split_request(self) -> None:
        """Pass the call on to the host's context."""
        self._outer.send_split_request()

    def send_source_event(self, event: SourceEvent) -> None:
        """Pass the call on to the host's context."""
        self._outer.send_source_event(event)

    def lease(self, key: Hashable, factory: Callable[[], T]) -> T:
        """Borrow a client of this process from the host's context."""
        return self._outer.lease(key, factory)


NAME: Final = "forebay_hybrid"
"""The format name of the hybrid source."""

Switch = Callable[[Source, Sequence[Split]], Source]
"""A function of the last source and the finished splits of the source before it.

It returns the last source with a start that follows from these splits."""


class HybridLegs(Source):
    """A hybrid without its factory methods, which `HybridSource` adds: its sources (legs) and their common schema."""

    split_class: ClassVar[type[Split]] = HybridSplit

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._legs))})"

    _legs: ClassVar[tuple[Source, ...]]
    _columns: ClassVar[tuple[str, ...] | None]

    @property
    def legs(self) -> tuple[Source, ...]:
        """The sources, in the order in which they are read."""
        return self._legs

    @property
    def switch(self) -> Switch | None:
        """The user's function that sets the start of the last source; None if there is none."""
        switch: Switch | None = vars(self)["_switch"]
        return switch

    @property
    def bounded(self) -> bool:
        """Whether the hybrid is bounded: it is if its last source is."""
        return self._legs[-1].bounded

    @property
    def event_time(self) -> str | None:
        """The name of the event time column: that of the last source."""
        return self._legs[-1].event_time

    @property
    def fetchers(self) -> int | None:
        """The largest number of fetcher threads that a source wants; None if a source wants one thread per split."""
        counts = [leg.fetchers for leg in self._legs]
        return None if None in counts else max(count or 1 for count in counts)

    def mapping(self) -> SplitMapping:
        """Return the object that converts splits of the sources to splits of the hybrid, and back."""
        return SplitMapping(self._legs)

    def schema(self) -> pa.Schema:
        """Return the common schema of the sources.

        Raises:
            ConfigurationError: The sources have different columns, or a column has no common type.
        """
        schemas = [resolved_schema(leg) for leg in self._legs]
        self._set(_leg_schemas=schemas)
        return common_schema(schemas, [leg.name for leg in self._legs], self._columns, source=self.name)

    def with_inferred_schema(self, schema: pa.Schema) -> Self:
        """Return a copy that keeps this schema. Each source of the copy keeps its own inferred schema."""
        leg_schemas = vars(self).get("_leg_schemas") or [resolved_schema(leg) for leg in self._legs]
        legs = [resolve_schema(leg, own) for leg, own in zip(self._legs, leg_schemas, strict=True)]
        return self._with(legs, schema)

    def with_schema(self, schema: pa.Schema) -> Self | None:
        """Return a copy whose sources read with the user's schema; None if the schemas of all sources are fixed.

        Raises:
            ConfigurationError: A source with a fixed schema lacks a column of the user's schema, or the column's types
                in both schemas cannot be cast to one of them.
        """
        retyped = [leg.with_schema(schema) for leg in self._legs]
        if not any(retyped):
            return None
        legs = [new or leg for new, leg in zip(retyped, self._legs, strict=True)]
        names = [f"{leg.name}{'' if new else ' (fixed)'}" for new, leg in zip(retyped, legs, strict=True)]
        schemas = [schema if new else resolved_schema(leg) for new, leg in zip(retyped, legs, strict=True)]
        common_schema([*schemas, schema], [*names, "the user's schema"], schema.names, source=self.name)
        fixed = zip(retyped, legs, schemas, strict=True)
        return self._with([new or resolve_schema(leg, own) for new, leg, own in fixed], schema)

    def with_columns(self, columns: tuple[str, ...]) -> Self:
        """Return a copy that returns only these columns. Sources that cannot skip columns still read all of them."""
        full = resolved_schema(self)
        return self._with(self._legs, pa.schema([full.field(name) for name in columns]))

    def order_key(self, position: Position) -> tuple[int, Any]:
        """Return the sort key of a position: the index of its source, then the sort key that this source returns."""
        leg, inner = self.mapping().inner_position(position)
        return leg, self._legs[leg].order_key(inner)

    def with_legs(self, legs: Sequence[Source]) -> Self:
        """Return a copy with other sources of the same schemas and splits; the kit passes some with smaller pages."""
        other = copy.copy(self)
        other._set(_legs=tuple(legs))  # noqa: SLF001 - of this class
        return other

    def _with(self, legs: Sequence[Source], schema: pa.Schema) -> Self:
        """Return a copy with these sources and the common schema `schema`. Sources skip other columns if they can."""
        columns = tuple(schema.names)
        narrowed = [
            leg if tuple(resolved_schema(leg).names) == columns else leg.with_columns(columns) or leg for leg in legs
        ]
        other = self.with_legs(narrowed)
        other._set(_columns=columns, _resolved_schema=schema, _leg_schemas=None)  # noqa: SLF001 - of this class
        return other

    def _set(self, **attributes: object) -> None:
        for name, value in attributes.items():
            object.__setattr__(self, name, value)


def checked_legs(legs: Sequence[object]) -> tuple[Source, ...]:
    """Check the sources of a hybrid, and return them as a tuple.

    Raises:
        ConfigurationError: There are fewer than two, one is not a `Source`, or one makes its own `SourceReader`.
    """
    name, advice = NAME, "give a source object, such as FileSource(path=…) or KafkaSource(…)"
    if len(legs) < 2:
        raise ConfigurationError(
            "a hybrid needs at least two sources, but has one",
            source=name,
            advice="give one or more source objects to read first, such as FileSource(path=…)",
        )
    for leg in legs:
        if not isinstance(leg, Source):
            raise ConfigurationError(f"{leg!r} is not a source object", source=name, advice=advice)
        if type(leg).create_reader is not Source.create_reader:
            raise ConfigurationError(
                f"{leg.name} makes its own SourceReader by create_reader(), so it cannot be a part of a hybrid",
                source=name,
                advice=f"read {leg.name} without a hybrid; or make its connector implement create_split_reader() alone",
            )
    return tuple(leg for leg in legs if isinstance(leg, Source))


# -- Computes the common schema of a hybrid's legs (its sources), to which each leg can be cast without loss.


_MISSING = "-"


def common_schema(
    schemas: Sequence[pa.Schema], legs: Sequence[str], columns: Sequence[str] | None, *, source: str
) -> pa.Schema:
    """Return the schema to which every leg (source) of a hybrid can be cast without loss.

    The type of a column is one of its types in the legs: the widest one to which all the others can be cast. A column
    is nullable if it is nullable in any leg.

    Args:
        schemas: The schema of each leg.
        legs: The format name of each leg, for the error.
        columns: The names of the columns to read, in order; None = the columns of the last leg, and all legs must have
            the same columns.
        source: The format name of the hybrid, for the error.

    Raises:
        ConfigurationError: A column is missing in a leg, occurs twice, or has no common type. The error shows a table
            of these columns.
    """
    names = list(schemas[-1].names if columns is None else columns)
    if columns is None:
        names += [name for schema in schemas for name in schema.names if name not in names]
    fields = [_common_field(name, schemas) for name in dict.fromkeys(names)]
    if wrong := [name for name, field in zip(dict.fromkeys(names), fields, strict=True) if field is None]:
        rows = [("column", *legs), *((name, *(_type_of(name, schema) for schema in schemas)) for name in wrong)]
        raise ConfigurationError(
            "these columns are missing in a source of the hybrid, or have no common type:\n" + _table(rows),
            source=source,
            advice="select only common columns, by HybridSource(…, columns=[…]) or the option commonColumns; or give "
            "the sources the same column names and types",
        )
    return pa.schema([field for field in fields if field is not None])


def _common_field(name: str, schemas: Sequence[pa.Schema]) -> pa.Field | None:
    if any(schema.names.count(name) != 1 for schema in schemas):
        return None
    fields = [schema.field(name) for schema in schemas]
    common = [want for want in reversed(fields) if all(is_safe_cast(have.type, want.type) for have in fields)]
    if not common:
        return None
    return max(common, key=lambda field: _width(field.type)).with_nullable(any(have.nullable for have in fields))


def _width(kind: pa.DataType) -> int:
    try:
        return kind.bit_width
    except ValueError:  # a type of variable width
        return 0


def _type_of(name: str, schema: pa.Schema) -> str:
    count = schema.names.count(name)
    return _MISSING if count == 0 else str(schema.field(name).type) if count == 1 else f"{count} columns"


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
