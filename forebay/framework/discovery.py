# SPDX-License-Identifier: Apache-2.0
"""The enumerator that most sources with splits of their own use: the source discovers, the framework assigns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from forebay.framework.digests import SplitDigests
from forebay.framework.split import Json, Position, Split

OPEN_COST = 4 << 20
"""Bytes that could be read in the time it takes to open a split (Spark's `openCostInBytes`)."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """The result of one discovery.

    Args:
        splits: All splits, or only new ones: the framework drops ids that it knows. If `vanished` is overridden they
            must be all splits, because it is called with the unfinished known splits that are missing here. A sequence
            that makes its splits at each access saves memory: a bounded read on Spark never holds them all.
        horizon: True for a split that no later discovery can return: such a split is forgotten once it is finished.
            None = keep every id for ever.
        state: State of the author's own, JSON-ready; checkpointed, and passed to `restore_state` after a restart.
    """

    splits: Sequence[Split]
    horizon: Callable[[Split], bool] | None = None
    state: Json = None


class KnownSplits(Mapping[str, Split]):
    """The splits that a discovery must not add again, by id; read-only. Hosts pass it to `discover`.

    Args:
        unfinished: Splits that are not read to their end.
        finished: Splits that are, and are not forgotten.
    """

    def __init__(self, unfinished: Mapping[str, Split], finished: Mapping[str, Split]) -> None:
        self.unfinished = unfinished
        self.finished = finished

    def __getitem__(self, split_id: str) -> Split:
        found = self.unfinished.get(split_id)
        return self.finished[split_id] if found is None else found

    def __contains__(self, split_id: object) -> bool:
        return split_id in self.unfinished or split_id in self.finished

    def __iter__(self) -> Iterator[str]:
        yield from self.unfinished
        yield from self.finished

    def __len__(self) -> int:
        return len(self.unfinished) + len(self.finished)


class DiscoveryEnumerator(ABC):
    """Discovers splits; the framework assigns and returns them, stores state, retries, and removes duplicates.

    Returned by `Source.create_enumerator`. `discover` runs on a worker thread, one call at a time; while the source is
    unbounded it runs again every `discoveryInterval`. The coordinator thread, or the planner on Spark, calls all other
    methods. Their defaults mean "unknown" or do nothing.
    """

    in_order: bool = False
    """Whether a stream reads splits one after the other, in the order of `discover`, instead of sharing its limits.

    A stream does not store a split before it reads it, so each discovery must return it again.
    """

    in_stages: bool = False
    """Whether `discover` returns more splits once all known splits are finished, as a hybrid source does at a switch.

    An unbounded source is then discovered at that moment too, whatever `discoveryInterval` says. Not with `in_order`.
    """

    exact_ends: bool = False
    """Whether a record exists before each new end: True for the newest offset or id, False for a time.

    If False, a stream reads a first record before it plans a micro-batch, and plans none if there is no record. Reading
    first records takes at most a fifth of the stream's time."""

    refresh_floor: float = 1.0
    """Minimum seconds for which a stream caches an answer; at least 0.1 s after five seconds without new data."""

    discovery_floor: float | None = None
    """Like `refresh_floor`, for discovery only, if new splits are rarer than new records; None = `refresh_floor`."""

    refresh_share: float = 0.05
    """Maximum share of a stream's time spent on calls: slower answers are cached for longer."""

    digests: SplitDigests | None = None
    """Recognises finished splits by hashes, for sources with more splits than an offset can hold.

    None = a stream stores whole splits, and fails once they do not fit. `discover` must not return splits that the
    digests recognise, although `known` does not contain them. `finished` is called once for such splits."""

    @abstractmethod
    def discover(self, known: Mapping[str, Split], first: bool) -> Discovered:
        """Return the present splits. May block. Runs on a worker thread, one call at a time.

        Args:
            known: Every split not yet forgotten, by id; read-only. Hosts pass a `KnownSplits`, which knows which of
                them are finished.
            first: Whether this is the first discovery of the query, counting those before a restart. A setting such
                as "start at the latest" usually applies only then.

        Raises:
            RetriableError: A failure that may pass; the framework tries again, with back-off.
        """

    def restore_state(self, state: Json) -> None:
        """Restore `Discovered.state` of the last discovery. Called after a restart, before any other method."""

    def adopt(self, offset: Mapping[str, Json]) -> Sequence[Split] | None:
        """Return the unfinished splits of another source's offset, at their positions; None for an unknown format.

        Called before any discovery, if a stream starts on the checkpoint of another source. May block.
        """
        return None

    def latest(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Return the present end of each split by id; omit splits whose end is unknown. May block.

        Called by hosts that must know an end before they read: a micro-batch, a bounded read of an unbounded source.
        """
        return {}

    def positions_at(self, event_time: int, splits: Sequence[Split]) -> Mapping[str, Position] | None:
        """Return by id the first position with an event time ≥ `event_time` (µs since 1970); None = unknown.

        Search from the position of each split, not before it. An earlier answer is also valid, if it is after
        the split's position. Leave out a split whose answer is unknown.

        The event time is that of the source's `event_time`. For a split with an end, this end may replace a later
        position.
        """
        return None

    def event_times(self, splits: Sequence[Split], column: str) -> Mapping[str, int | None] | None:
        """Return by id the event time (µs since 1970) of the first record at or after the position of each split.

        For a split without such a record before its end, return the event time of the last record before its
        position. Leave out a split where neither is known, or where the record has none. Called by the planner of a
        stream with `alignmentMaxDrift`, for splits whose position has moved. May block.

        With `in_order`, return the first event time of each split where it is known. It is called with the first splits
        of `discover`, which should be sorted by event time, and once without splits. None is then an error.

        Args:
            splits: Each at the position of the next micro-batch, with its present end.
            column: The option `eventTimeColumn`, or the source's `event_time`; with `in_order` empty if there is none.

        Returns:
            None = unknown, for all splits (the default) or for one of them: the planner reads the first record instead.
        """
        return None

    def size(self, split: Split) -> int | None:
        """Estimate the bytes between the split's position and its end; None = unknown. Must not block."""
        return None

    def slices(self, split: Split, count: int) -> Sequence[Split]:
        """Cut the rest of a split into about `count` slices, in order, under the same id; by default it is not cut.

        Together the slices contain each record of the split once, in order. May block.
        """
        return [split]

    def tasks(self, slices: Sequence[Split]) -> Sequence[Sequence[Split]] | None:
        """Return the slices of each task if the source's options decide it; None = the host cuts and packs by bytes.

        Called by a planner with everything to read, each slice with its end. Cut with `split.slice`; together the tasks
        contain each record of the slices once. May block.
        """
        return None

    def advance(self, split: Split, *, rows: int | None = None, byte_budget: int | None = None) -> Position | None:
        """Return the position after a budget of rows or bytes, at most the split's end; None = unknown.

        For `rows`, return the position after exactly that many rows, or the end if there are fewer. The framework does
        not check it. It counts int positions as row numbers.
        """
        return None

    def vanished(self, splits: Sequence[Split]) -> bool:
        """Return True to drop known splits that are missing from a complete discovery; False keeps them.

        Raises:
            DataLossError: The source treats missing splits as an error.
        """
        return False

    def finished(self, splits: Sequence[Split]) -> None:
        """Called after splits were delivered to their end, and again after a restart: it must be idempotent."""

    def committed(self, positions: Mapping[str, Position]) -> None:
        """Called after all records before these positions were durably delivered. Best effort; may be repeated."""

    def close(self) -> None:
        """Free all resources. Called once, on every path."""
