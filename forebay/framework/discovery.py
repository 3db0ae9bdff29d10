# SPDX-License-Identifier: Apache-2.0
"""The enumerator that most connectors write: it discovers splits, and the framework assigns them to readers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.framework.split import Json, Position, Split

if TYPE_CHECKING:
    from forebay.framework.digests import SplitDigests

OPEN_COST = 4 << 20
"""The cost of opening a split, as the bytes that could be read in that time (Spark's `openCostInBytes`)."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """The result of one call of `discover`.

    Args:
        splits: All present splits, or only new ones: the framework ignores splits whose id it knows. If `vanished` is
            overridden, give all: `vanished` is called with the unfinished known splits that are missing here. A lazy
            sequence, which makes a split at each access, saves memory: a batch read on Spark never holds all splits.
        horizon: Returns True for a split that no later discovery can return. The framework forgets the id of such a
            split once the split is finished. None = remember every id for ever.
        state: The connector's own state, JSON-ready. Checkpoints store it; after a restart `restore_state` gets it.
    """

    splits: Sequence[Split]
    horizon: Callable[[Split], bool] | None = None
    state: Json = None


class KnownSplits(Mapping[str, Split]):
    """A read-only mapping of the splits that the host remembers, by id. Hosts pass it to `discover`.

    Args:
        unfinished: The splits that are not yet read to their end.
        finished: The splits that are read to their end, except forgotten ones (see `Discovered.horizon`).
    """

    def __init__(self, unfinished: Mapping[str, Split], finished: Mapping[str, Split]) -> None:
        self.unfinished = unfinished
        self.finished = finished

    def __getitem__(self, split_id: str) -> Split:
        split = self.unfinished.get(split_id)
        return self.finished[split_id] if split is None else split

    def __contains__(self, split_id: object) -> bool:
        return split_id in self.unfinished or split_id in self.finished

    def __iter__(self) -> Iterator[str]:
        yield from self.unfinished
        yield from self.finished

    def __len__(self) -> int:
        return len(self.unfinished) + len(self.finished)


class DiscoveryEnumerator(ABC):
    """Discovers splits. The framework assigns them to readers, stores state, retries, and ignores known splits.

    Returned by `Source.create_enumerator`. `discover` runs on a worker thread, one call at a time; for an unbounded
    source it is repeated every `discoveryInterval`. All other methods are called on the coordinator thread, or by the
    planner on Spark. Their defaults do nothing, or return "unknown".
    """

    in_order: bool = False
    """Whether a stream reads splits one after the other, in the order of `discover`, as it does with files.

    If False, all splits share the limits of each micro-batch. If True, a stream stores a split only when it begins to
    read it, so each call of `discover` must return every split that was not yet begun.
    """

    in_stages: bool = False
    """Whether `discover` returns more splits once all known splits are finished, as a hybrid source does.

    If True, an unbounded source is also discovered as soon as all known splits are finished, without waiting for
    `discoveryInterval`. With `in_order` it is refused.
    """

    exact_ends: bool = False
    """Whether an end from `latest` that has moved proves a new record: True for offsets and ids, False for times.

    If False, the planner of a stream reads one record before it plans a micro-batch; if there is none, it plans no
    micro-batch. It spends at most a fifth of the time on this."""

    refresh_floor: float = 1.0
    """Minimum seconds for which a stream caches the result of `latest` or `discover`.

    After five seconds without new data, results are cached for at least 0.1 s."""

    discovery_floor: float | None = None
    """As `refresh_floor`, for `discover` only: for sources whose new splits are rare. None = `refresh_floor`."""

    refresh_share: float = 0.05
    """Maximum share of a stream's time spent on `latest` and on `discover`: slow results are cached for longer."""

    digests: SplitDigests | None = None
    """Stores finished splits as hashes, for sources with more splits than an offset of a stream can hold.

    None = a stream stores whole splits, and fails when they no longer fit. `known` lacks splits stored as hashes, so
    `discover` must look them up with `digests.mark` and not return them. `finished` is not repeated for them."""

    @abstractmethod
    def discover(self, known: Mapping[str, Split], first: bool) -> Discovered:
        """Return the splits that exist now. May block. Runs on a worker thread, one call at a time.

        Args:
            known: All splits that the host remembers, by id; read-only. Hosts pass a `KnownSplits`, which tells
                finished splits from unfinished ones.
            first: True until a discovery of this query has succeeded, also before a restart. A setting such as "start
                at the latest record" usually applies only while it is True.

        Raises:
            RetriableError: A failure that may pass; the framework tries again, with back-off.
        """

    def restore_state(self, state: Json) -> None:
        """Restore `Discovered.state` of the last discovery. Called after a restart, before all other methods."""

    def adopt(self, offset: Mapping[str, Json]) -> Sequence[Split] | None:
        """Convert an offset that another source wrote: return its unfinished splits, at their positions.

        None (the default) = the format of the offset is unknown. Called before any discovery, if a stream starts on the
        checkpoint of another source, such as Spark's own Kafka source. May block.
        """
        return None

    def latest(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Return the present end of each split, by split id; omit splits whose end is unknown. May block.

        Called by the planner on Spark, which fixes the ends of a micro-batch or a batch read before it is read.
        """
        return {}

    def positions_at(self, event_time: int, splits: Sequence[Split]) -> Mapping[str, Position] | None:
        """Return, by split id, the position of the first record with an event time ≥ `event_time` (µs since 1970).

        Search from the position of each split on. A position before that record is also valid if it is after the
        split's position. If the record is after the split's end, the end may be returned instead. Omit a split whose
        position is unknown; None = unknown for all splits. The event time is the value of the column that
        `Source.event_time` names.
        """
        return None

    def event_times(self, splits: Sequence[Split], column: str) -> Mapping[str, int | None] | None:
        """Return, by split id, the event time (µs since 1970) of the first record at or after each split's position.

        If a split has no such record before its end, return the event time of its last record before the position. Omit
        a split if neither record is known, or if the record has no event time. Called by the planner of a stream with
        `alignmentMaxDrift`, for splits whose position has moved. May block.

        With `in_order`, return the first event time of each split, where known; returning None is an error. The first
        call passes no splits, to check this. Later ones pass the next splits to read, in the order of `discover`, which
        should be that of their event times.

        Args:
            splits: Each at its position for the next micro-batch, with its present end.
            column: The option `eventTimeColumn`, else the source's `event_time`; with `in_order`, "" if both are unset.

        Returns:
            Times by split id. None = unknown, for one split or, by default, for all: the planner then reads the first
            record of the split.
        """
        return None

    def size(self, split: Split) -> int | None:
        """Estimate the bytes between the split's position and its end; None (the default) = unknown. Must not block."""
        return None

    def slices(self, split: Split, count: int) -> Sequence[Split]:
        """Cut the unread part of a split into about `count` slices with the same id; by default it is not cut.

        Together the slices contain each record of this part once, in order. Cut with `Split.slice`. May block.
        """
        return [split]

    def tasks(self, slices: Sequence[Split]) -> Sequence[Sequence[Split]] | None:
        """Return the slices that each task reads, one sequence per task, if the source's options determine the tasks.

        None (the default) = the host cuts the splits and divides the slices over tasks by bytes. Called by the planner
        on Spark with all that a micro-batch or a batch read will read, each slice with its end. Cut `slices` further
        with `Split.slice`. Together the tasks must contain each record of `slices` once. May block.
        """
        return None

    def advance(self, split: Split, *, rows: int | None = None, byte_budget: int | None = None) -> Position | None:
        """Return the position `rows` rows or about `byte_budget` bytes after the split's position; None = unknown.

        Return at most the split's end. For `rows`, return the position after exactly that many rows, or the end if
        there are fewer. The framework does not check this. For rows, it treats int positions as row numbers.
        """
        return None

    def vanished(self, splits: Sequence[Split]) -> bool:
        """Decide on unfinished known splits that a discovery did not return: True drops them, False keeps them.

        Raises:
            DataLossError: The source treats missing splits as an error.
        """
        return False

    def finished(self, splits: Sequence[Split]) -> None:
        """Handle splits that were delivered to their end. Called again after a restart, so it must be idempotent."""

    def committed(self, positions: Mapping[str, Position]) -> None:
        """Handle positions, by split id, before which all records are durably delivered.

        Best effort: a call may be left out or repeated.
        """

    def close(self) -> None:
        """Free all resources. Called once, on every path."""
