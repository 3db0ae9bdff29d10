# SPDX-License-Identifier: Apache-2.0
"""The contract of a source: its options, its schema, and the factories of its enumerator and readers."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import Field, FrozenInstanceError, dataclass, fields
from typing import Any, ClassVar, Self, dataclass_transform

import pyarrow as pa

from forebay.errors import ContractError
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumerator, SplitEnumeratorContext
from forebay.framework.reader import SourceReader, SourceReaderContext
from forebay.framework.split import Position, Split
from forebay.framework.split_reader import SplitReader
from forebay.options import (
    class_options,
    coerce_fields,
    explain_names,
    mask_values,
    option,
    parse_options,
    resolve_annotations,
)
from forebay.registry import format_name


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option,))
class Source(ABC):
    """Configures a read: a frozen, picklable, keyword-only dataclass whose annotated fields are its options (SRC-1).

    Subclasses become dataclasses without a decorator. Their enumerators and readers share no state (SRC-2). A subclass
    may set `name`, `bounded`, `event_time`, `fetchers` and `consumes` as plain class attributes or properties. Most
    connectors extend `SimpleSource` instead.
    """

    name: ClassVar[str] = "source"
    """The format name, as in ``spark.read.format(name)``. By default the class name in snake_case."""

    split_class: ClassVar[type[Split]] = Split
    """The class of this source's splits; it rebuilds checkpointed splits."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        # No required attributes here: unpickling a notebook's class creates it empty, then fills it.
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = format_name(cls)
        # The names around the class are visible only now; a class that is pickled by value keeps the types.
        resolve_annotations(cls)
        annotated = inspect.get_annotations(cls)
        if bare := [name for name, value in vars(cls).items() if isinstance(value, Field) and name not in annotated]:
            raise ContractError(
                f"{cls.__name__}: {bare[0]!r} has no annotation, so it is not an option",
                source=cls.name,
                rule="OPT-1",
                advice=f"annotate it to make it an option: `{bare[0]}: str = option(…)`",
            )
        own = "__init__" in vars(cls)
        dataclass(frozen=True, kw_only=True, repr=False)(cls)
        if not own:
            explain_names(cls)

    def __post_init__(self) -> None:
        coerce_fields(self, source=type(self).name)
        try:
            self.check()
        except FrozenInstanceError as error:
            raise ContractError(
                f"check() changes the source: {error}",
                source=type(self).name,
                rule="SRC-1",
                advice="let check() only validate: a source is frozen; compute derived values in a method",
            ) from error

    def __repr__(self) -> str:
        instance: Any = self  # a dataclass, as every subclass becomes one
        shown = (f"{each.name}={mask_values(repr(getattr(self, each.name)))}" for each in fields(instance) if each.repr)
        return f"{type(self).__qualname__}({', '.join(shown)})"

    @property
    def bounded(self) -> bool:
        """Whether the source has finitely many splits, and each ends (SRC-5).

        A `SplitEnumerator` may end an unbounded source too, by `signal_no_more_splits`.
        """
        return True

    @property
    def event_time(self) -> str | None:
        """The name of the timestamp column with the event time; None if there is none."""
        return None

    @property
    def fetchers(self) -> int | None:
        """The number of fetcher threads of a reader, which its splits share; None = one thread per split.

        `forebay.run(parallelism=…)` multiplies it.
        """
        return 1

    @property
    def consumes(self) -> bool:
        """Whether reading takes records away from the outside, as from a queue that they are acknowledged to.

        If True, `forebay.testkit.check` and `forebay verify` warn before they read, because they take the records too.
        """
        return False

    @classmethod
    def from_options(cls, given: Mapping[str, object]) -> Self:
        """Make a source from texts by option name, as Spark passes them. Option names are case-insensitive.

        Raises:
            ConfigurationError: An option is unknown, missing or of the wrong type.
        """
        return cls(**parse_options(class_options(cls), given, source=cls.name, owner=cls))

    def check(self) -> None:
        """Check that the options do not contradict each other. Called when a source is made; override it to add checks.

        Raises:
            ConfigurationError: The options contradict each other.
        """

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Return the schema of all record batches. May block to infer it; hosts call it once per read."""

    @abstractmethod
    def create_enumerator(self, context: SplitEnumeratorContext) -> SplitEnumerator | DiscoveryEnumerator:
        """Make a new enumerator; `restore_state` follows if there is a checkpoint. Must not block."""

    @abstractmethod
    def create_split_reader(self, context: SourceReaderContext) -> SplitReader:
        """Make a new split reader. Called on the task thread, once per fetcher. Must not block."""

    def create_reader(self, context: SourceReaderContext) -> SourceReader | None:
        """Make a custom reader; None (the default) = the supplied `SourceReaderBase`, which uses fetcher threads."""
        return None

    def order_key(self, position: Position) -> Any:  # noqa: ANN401 - anything with `<`
        """Return the sort key of a position; by default the position itself.

        Override it if positions do not sort as their records do, such as numbers in text (SPL-3).
        """
        return position

    def with_schema(self, schema: pa.Schema) -> Self | None:
        """Return this source with the schema that the user gave; None (the default) = the source has a fixed schema.

        Raises:
            ConfigurationError: The source cannot read with this schema.
        """
        return None

    def with_columns(self, columns: tuple[str, ...]) -> Self | None:
        """Return a copy of this source that reads only these columns, in this order.

        None (the default) = the source reads all columns, and the host selects these.
        """
        return None
