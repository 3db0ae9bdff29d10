# SPDX-License-Identifier: Apache-2.0
"""The contract of a source: frozen configuration, and the factory of its enumerator and readers."""

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
    """What to read and how: a frozen, picklable, keyword-only dataclass whose annotated fields are its options (SRC-1).

    Subclasses become dataclasses without a decorator. Factory calls share nothing (SRC-2). Most connectors extend
    `SimpleSource`; this is the full layer.

    A subclass may set, as plain class attributes or properties: `name`, `bounded`, `event_time`, `fetchers`.
    """

    name: ClassVar[str] = "source"
    """The format name: ``spark.read.format(name)``. The class name in snake_case unless set."""

    split_class: ClassVar[type[Split]] = Split
    """The class of this source's splits, by which checkpointed ones are rebuilt."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        # Transforms, never demands: a class of a notebook is rebuilt empty, then filled, when it is unpickled.
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = format_name(cls)
        # Only now are the names around the class in sight; a class that is pickled by value takes the types along.
        resolve_annotations(cls)
        bare = [name for name, value in vars(cls).items() if isinstance(value, Field)]
        if bare := [name for name in bare if name not in inspect.get_annotations(cls)]:
            raise ContractError(
                f"{cls.__name__}: {bare[0]!r} has no annotation, and so is no option",
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
                advice="let check() only look: a source is frozen; work out in a method what depends on the options",
            ) from error

    def __repr__(self) -> str:
        instance: Any = self  # a dataclass, as every subclass becomes one
        shown = [(each.name, repr(getattr(self, each.name))) for each in fields(instance) if each.repr]
        return f"{type(self).__qualname__}({', '.join(f'{name}={mask_values(text)}' for name, text in shown)})"

    @property
    def bounded(self) -> bool:
        """Whether every split ends and their number is finite (SRC-5). An unbounded source may still choose to stop."""
        return True

    @property
    def event_time(self) -> str | None:
        """The name of the column with the event time, a timestamp; None if there is none."""
        return None

    @property
    def fetchers(self) -> int | None:
        """How many fetcher threads a reader uses: a number that all splits share, or None for one per split."""
        return 1

    @classmethod
    def from_options(cls, given: Mapping[str, object]) -> Self:
        """Make a source from text options, as Spark gives them; names are matched without regard to case.

        Raises:
            ConfigurationError: An option is unknown, missing or of the wrong type.
        """
        return cls(**parse_options(class_options(cls), given, source=cls.name, owner=cls))

    def check(self) -> None:
        """Validate across options; called whenever a source is made. Override to add checks.

        Raises:
            ConfigurationError: The options do not fit together.
        """

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Return the schema of every record batch. May look at the outside (infer), so hosts call it once per read."""

    @abstractmethod
    def create_enumerator(self, context: SplitEnumeratorContext) -> SplitEnumerator | DiscoveryEnumerator:
        """Make a fresh enumerator; a checkpoint's state follows through `restore_state`. Must not block."""

    @abstractmethod
    def create_split_reader(self, context: SourceReaderContext) -> SplitReader:
        """Make a fresh split reader; called once per fetcher, on the task thread. Must not block."""

    def create_reader(self, context: SourceReaderContext) -> SourceReader | None:
        """Make a reader of the source's own; None (the default) takes the supplied one, over fetcher threads."""
        return None

    def order_key(self, position: Position) -> Any:  # noqa: ANN401 - anything with `<`
        """Return what positions are ordered by, for a source that knows its latest ones; the position itself here.

        Override it where positions do not order by themselves, such as numbers in text.
        """
        return position

    def with_schema(self, schema: pa.Schema) -> Self | None:
        """Return this source reading with a schema the user gives; None (the default) = the schema is fixed.

        Raises:
            ConfigurationError: This schema does not fit the source.
        """
        return None

    def with_columns(self, columns: tuple[str, ...]) -> Self | None:
        """Return this source reading only these columns, in this order; None (the default) = the host selects them."""
        return None
