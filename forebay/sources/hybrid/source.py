# SPDX-License-Identifier: Apache-2.0
"""The hybrid source: several sources that are read one after the other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import ClassVar

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.framework.arrow.casting import Casting, resolved_schema
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumeratorContext
from forebay.framework.reader import SourceReaderContext
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay.options import Secret, class_options, given_options, option
from forebay.registry import default_registry
from forebay.sources.hybrid.enumerator import HybridEnumerator
from forebay.sources.hybrid.legs import NAME, HybridLegs, LegReaderContext, Switch, by_leg, checked_legs


class HybridSource(HybridLegs):
    """Reads sources one after the other: history first, then live data (FLIP-150, HYB-1, HYB-2).

    ```python
    HybridSource(FileSource(path="orders/"), KafkaSource(subscribe="orders", ...))
    ```

    Every source but the last is read once: its splits and their ends are fixed when it begins. The next source begins
    when all these splits are finished. The hybrid calls `create_enumerator` and `create_split_reader` of its sources.

    Args:
        first: The source to read before the last one, or several sources in order. The hybrid reads an unbounded source
            to the end that it has when its turn begins.
        then: The last source. The hybrid is bounded if this source is bounded.
        switch: A function that gets `then` and the finished splits of the source before it. It returns `then` with
            another start, such as a time or an offset map that follows from the splits. It is called when these splits
            are finished, and again after a restart during the switch. It must return the same source for the same
            splits, and may change only the start. None = `then` starts where its options say; without such an option,
            at its earliest record.
        columns: The columns to read, if the sources have different columns. Types are cast if no value is lost.

    Raises:
        ConfigurationError: An argument is not a `Source`, or a source makes its own `SourceReader`.
    """

    name: ClassVar[str] = NAME

    def __init__(
        self,
        first: Source | Sequence[Source],
        then: Source,
        *,
        switch: Switch | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:
        earlier = [first] if isinstance(first, Source) else list(first)
        self._set(
            _legs=checked_legs([*earlier, then]), _switch=switch, _columns=None if columns is None else tuple(columns)
        )
        super().__post_init__()

    # Defined on this class: the decorator `dataclass` would generate an `__eq__` that compares no field, and that would
    # replace an `__eq__` of a base class.
    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, HybridSource)
            and type(self) is type(other)
            and (self.legs, self.switch, self._columns) == (other.legs, other.switch, other._columns)
        )

    def __hash__(self) -> int:
        return hash((type(self), len(self.legs)))

    def create_enumerator(self, context: SplitEnumeratorContext) -> DiscoveryEnumerator:
        """Create the enumerator, which discovers one source after the other."""
        return HybridEnumerator(self, context)

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader:
        """Create the split reader, which creates the split reader of a source when it gets splits of this source."""
        return HybridSplitReader(self, context)


# -- The split reader of a hybrid: runs the split readers of its legs (sources), in the order of the legs.


class HybridSplitReader(SplitReader):
    """Fetches from the earliest leg (source) with a split to read, and casts the record batches to the hybrid's schema.

    Args:
        source: The hybrid.
        context: The host's context.
    """

    def __init__(self, source: HybridLegs, context: SourceReaderContext) -> None:
        self._source = source
        self._context = context
        self._mapping = source.mapping()
        self._schema = resolved_schema(source)
        self._readers: dict[int, SplitReader] = {}
        self._open: dict[int, set[str]] = {}
        self._paused: dict[int, set[str]] = {}
        self._castings: dict[int, Casting] = {}

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Give each split to the split reader of its leg."""
        for leg, outer in by_leg(splits).items():
            part = [self._mapping.inner(split) for split in outer]
            if leg not in self._readers:
                context = LegReaderContext(self._context, last=leg == len(self._source.legs) - 1)
                # A new dict: `wake_up` reads it on another thread.
                self._readers = {**self._readers, leg: self._source.legs[leg].create_split_reader(context)}
            self._open.setdefault(leg, set()).update(split.id for split in part)
            self._readers[leg].add_splits(part)

    def fetch(self) -> Sequence[Fetched]:
        """Return records of the earliest leg with an unfinished split that is not paused; may block."""
        unfinished = [leg for leg, splits in sorted(self._open.items()) if splits]
        if not unfinished:
            return []
        # If all unfinished splits are paused, the split reader of the earliest leg blocks until `wake_up`.
        leg = next(
            (candidate for candidate in unfinished if self._open[candidate] - self._paused.get(candidate, set())),
            unfinished[0],
        )
        fetched = self._readers[leg].fetch()
        self._open[leg].difference_update(part.split_id for part in fetched if part.finished)
        return [self._outer(leg, part) for part in fetched]

    def wake_up(self) -> None:
        """Wake the split readers of all legs."""
        for reader in self._readers.values():
            reader.wake_up()

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> bool:
        """Pass the ids on to the split readers of their legs. Return True if all split readers can pause splits."""
        answers = []
        for leg, reader in self._readers.items():
            pausing, resuming = self._inner_ids(leg, pause), self._inner_ids(leg, resume)
            self._paused[leg] = (self._paused.get(leg, set()) | set(pausing)) - set(resuming)
            answers.append(reader.pause_or_resume_splits(pausing, resuming))
        return bool(answers) and all(answers)

    def close(self) -> None:
        """Close the split readers of all legs."""
        with ExitStack() as closed:  # all of them, also if one fails
            for reader in self._readers.values():
                closed.callback(reader.close)

    def _inner_ids(self, leg: int, split_ids: Collection[str]) -> list[str]:
        prefix = self._mapping.outer_id(leg, "")
        return [split_id.removeprefix(prefix) for split_id in split_ids if split_id.startswith(prefix)]

    def _outer(self, leg: int, fetched: Fetched) -> Fetched:
        split_id = self._mapping.outer_id(leg, fetched.split_id)
        batch = None if fetched.batch is None else self._cast(leg, fetched.batch)
        position = self._mapping.outer_position(leg, fetched.position)
        # A split of a bounded source has an end, so being caught up says nothing, also not to an unbounded hybrid.
        caught_up = fetched.caught_up and not self._source.legs[leg].bounded
        return Fetched(split_id, batch, position, fetched.finished, caught_up)

    def _cast(self, leg: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema.equals(self._schema):
            return batch
        if leg not in self._castings:
            labels = {"source": self._source.legs[leg].name}
            self._castings[leg] = Casting(self._schema, lambda row: {**labels, "position": f"row {row} of a batch"})
        return self._castings[leg].cast(batch, 0)


# -- The format `forebay_hybrid`: a hybrid of two sources, whose options have the prefixes `first.` and `then.`.


_FORMAT = "format"


class HybridOptions(HybridSource):
    """A hybrid of two sources, set by text options: `first.format`, `first.path`, … and `then.format`, ….

    For three sources or more, or for a switch function, use `HybridSource` in Python.
    """

    name: ClassVar[str] = HybridSource.name
    takes_s3a_settings: ClassVar[bool] = True

    first: dict[str, str] = option(prefix="first.", doc="options of the source to read first; first.format names it")
    then: dict[str, str] = option(prefix="then.", doc="options of the source to read next; then.format names it")
    common_columns: tuple[str, ...] | None = option(
        default=None, doc="the columns to read, if the two sources have different columns"
    )
    time_zone: str | None = option(default=None, doc="the time zone of both sources; by default the session's")
    storage: dict[str, Secret] = option(prefix="storage.", doc="the storage settings of both sources")

    def check(self) -> None:
        """Create the two sources from the options.

        Raises:
            ConfigurationError: A format is missing or unknown, or an option of a source is wrong.
        """
        legs = [self._leg("first", self.first), self._leg("then", self.then)]
        self._set(_legs=checked_legs(legs), _switch=None, _columns=self.common_columns)

    def _leg(self, prefix: str, leg_options: Mapping[str, str]) -> Source:
        """Create a source from the options with `prefix`; `timeZone` and `storage.*` are its defaults."""
        named = [key for key in leg_options if key.lower() == _FORMAT]
        if not named:
            raise ConfigurationError(
                f"the option {prefix}.{_FORMAT} is not set, so the source of the options {prefix}.* is unknown",
                source=self.name,
                option=f"{prefix}.{_FORMAT}",
                advice=f'add .option("{prefix}.{_FORMAT}", "forebay_files"), or another installed format',
            )
        cls = default_registry.lookup(leg_options[named[0]])
        if not issubclass(cls, Source) or issubclass(cls, HybridSource):
            raise ConfigurationError(
                f"the format {leg_options[named[0]]} cannot be a part of a hybrid",
                source=self.name,
                option=f"{prefix}.{_FORMAT}",
                advice=f"set {prefix}.{_FORMAT} to a format other than {self.name}; for more than two sources, use "
                "forebay.HybridSource in Python",
            )
        own = class_options(cls)
        options: dict[str, object] = {key: value for key, value in leg_options.items() if key not in named}
        present = given_options(own, options)
        for spec in own:
            common = getattr(self, spec.python_name) if spec.python_name in ("time_zone", "storage") else None
            if common and spec.python_name not in present:
                options |= (
                    {f"storage.{key}": value for key, value in common.items()} if spec.prefix else {spec.name: common}
                )
        return cls.from_options(options)
