# SPDX-License-Identifier: Apache-2.0
"""Test doubles: a source of counted records, and a reader context and a reader output that record their calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import ClassVar, TypeVar

import pyarrow as pa

from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.enumerator import SourceEvent, SplitEnumeratorContext
from forebay.framework.reader import SourceReaderContext
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime, ThreadRuntime
from forebay.framework.source import Source
from forebay.framework.split import Position, Split
from forebay.framework.split_reader import Fetched, SplitReader

C = TypeVar("C")

COUNTING_SCHEMA = pa.schema([pa.field("split", pa.string()), pa.field("n", pa.int64())])


def counting_batch(split_id: str, start: int, stop: int) -> pa.RecordBatch:
    """Return the records `[start, stop)` of a counting split as a record batch."""
    return pa.RecordBatch.from_arrays(
        [pa.array([split_id] * (stop - start), pa.string()), pa.array(range(start, stop), pa.int64())],
        schema=COUNTING_SCHEMA,
    )


class CountingSplitReader(SplitReader):
    """Reads counting splits in turns: record n of split s is (s, n), and its position is n.

    Args:
        batch_rows: Number of records per fetch.
        can_pause: Whether the reader pauses splits itself, or leaves that to the framework.
        on_fetch: Called before each fetch, on the fetcher thread. It may block, raise, or wake the reader.
    """

    def __init__(self, batch_rows: int = 10, *, can_pause: bool = True, on_fetch: Callable[[], object] = bool) -> None:
        self.batch_rows = batch_rows
        self.can_pause = can_pause
        self.on_fetch = on_fetch
        self.closed = 0
        self.wake_ups = 0
        self._splits: dict[str, Split] = {}
        self._turns: list[str] = []
        self._paused: set[str] = set()

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Add splits, whose first turns come after those of the present splits."""
        for split in splits:
            self._splits[split.id] = split
            self._turns.append(split.id)

    def fetch(self) -> Sequence[Fetched]:
        """Return the next records of the split whose turn it is."""
        self.on_fetch()
        split_id = next((candidate for candidate in self._turns if candidate not in self._paused), None)
        if split_id is None:
            return []
        self._turns.remove(split_id)
        split = self._splits[split_id]
        records = _records(split)
        stop = min(records.start + self.batch_rows, records.stop)
        if stop < records.stop:
            self._splits[split_id] = split.at(stop)
            self._turns.append(split_id)
        batch = counting_batch(split_id, records.start, stop) if stop > records.start else None
        return [Fetched(split_id, batch, stop, finished=stop >= records.stop)]

    def wake_up(self) -> None:
        """Count the call. No effect: this reader never blocks by itself."""
        self.wake_ups += 1

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> bool:
        """Skip paused splits, if this reader can pause."""
        if self.can_pause:
            self._paused = (self._paused - set(resume)) | set(pause)
        return self.can_pause

    def close(self) -> None:
        """Count the call."""
        self.closed += 1


class _CountingEnumerator(DiscoveryEnumerator):
    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes

    def discover(self, known: Mapping[str, Split], first: bool) -> Discovered:
        return Discovered([Split(split_id, 0, size) for split_id, size in self._sizes.items()])

    def size(self, split: Split) -> int | None:
        return len(_records(split))

    def slices(self, split: Split, count: int) -> Sequence[Split]:
        records = _records(split)
        cuts = [records.start + len(records) * number // count for number in range(count + 1)]
        return [split.slice(start, end) for start, end in itertools.pairwise(cuts) if start < end] or [split]


def _records(split: Split) -> range:
    start, end = split.position or 0, split.end or 0
    if not isinstance(start, int) or not isinstance(end, int):
        raise TypeError("a position of a counting split must be a whole number")
    return range(start, end)


class Counting(Source):
    """A bounded source with its own enumerator and split reader. `sizes` has the number of records by split id."""

    sizes: dict[str, int]
    batch_rows: int = 10
    threads: int | None = 1
    can_pause: bool = True

    name: ClassVar[str] = "counting"

    @property
    def fetchers(self) -> int | None:
        """The number of fetchers: the option `threads`."""
        return self.threads

    def schema(self) -> pa.Schema:
        """Return the schema: the columns `split` and `n`."""
        return COUNTING_SCHEMA

    def create_enumerator(self, context: SplitEnumeratorContext) -> DiscoveryEnumerator:
        """Return an enumerator of the splits in `sizes`."""
        return _CountingEnumerator(self.sizes)

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader:
        """Return a `CountingSplitReader`."""
        return CountingSplitReader(self.batch_rows, can_pause=self.can_pause)


class RecordingContext(SourceReaderContext):
    """A reader context that records the reader's split requests and events. The default runtime has real threads."""

    def __init__(self, runtime: Runtime | None = None, options: HostOptions | None = None) -> None:
        self._runtime = runtime or ThreadRuntime()
        self._options = options or HostOptions()
        self.split_requests = 0
        self.events: list[SourceEvent] = []

    @property
    def runtime(self) -> Runtime:
        """The runtime that the constructor got."""
        return self._runtime

    @property
    def subtask(self) -> int:
        """Always 0, the first subtask."""
        return 0

    @property
    def options(self) -> HostOptions:
        """The options that the constructor got."""
        return self._options

    def current_parallelism(self) -> int:
        """Return one: this reader."""
        return 1

    def send_split_request(self) -> None:
        """Count the request."""
        self.split_requests += 1

    def send_source_event(self, event: SourceEvent) -> None:
        """Record the event."""
        self.events.append(event)

    def lease(self, key: Hashable, factory: Callable[[], C]) -> C:
        """Create a new client. Clients are not shared."""
        return factory()


class RecordingOutput:
    """A reader output that keeps everything, in order."""

    def __init__(self) -> None:
        self.collected: list[tuple[str, pa.RecordBatch, Position | None]] = []
        self.added: list[str] = []
        self.released: list[str] = []
        self.caught_up: list[str] = []

    def collect(self, split_id: str, batch: pa.RecordBatch, position: Position | None) -> None:
        """Keep a record batch."""
        self.collected.append((split_id, batch, position))

    def split_added(self, split: Split) -> None:
        """Record the split id."""
        self.added.append(split.id)

    def split_caught_up(self, split_id: str) -> None:
        """Record the split id."""
        self.caught_up.append(split_id)

    def split_released(self, split_id: str) -> None:
        """Record the split id."""
        self.released.append(split_id)

    def rows(self, split_id: str, column: str = "n") -> list[object]:
        """Return one column of everything collected for a split, in order."""
        return [
            value for one, batch, _ in self.collected if one == split_id for value in batch.column(column).to_pylist()
        ]
