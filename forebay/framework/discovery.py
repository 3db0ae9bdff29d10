# SPDX-License-Identifier: Apache-2.0
"""What authors of the full layer usually extend: say what there is, and the framework enumerates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from forebay.framework.digests import SplitDigests
from forebay.framework.split import Json, Position, Split

OPEN_COST = 4 << 20
"""Bytes that could be read in the time it takes to open a split (as Spark's `openCostInBytes`)."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """What one look at the outside found.

    Args:
        splits: All or only the new ones: the framework drops ids that it already knows. All, if `vanished` is
            overridden: it is asked about the unfinished known ones that are missing here.
        horizon: True for a split that no later discovery can return; once finished, such a split is forgotten.
            None keeps every id for ever.
        state: The author's own, JSON-ready; checkpointed, and given back by `restore_state` after a restart.
    """

    splits: Sequence[Split]
    horizon: Callable[[Split], bool] | None = None
    state: Json = None


class DiscoveryEnumerator(ABC):
    """Says what splits there are; the framework does the rest: assignment, add-back, state, retries, de-duplication.

    A source returns one from `Source.create_enumerator`. The framework runs `discover` on a worker thread, one at a
    time, again after `discoveryInterval` seconds while the source is unbounded, with back-off after a
    `RetriableError`. Every other method is called on the coordinator thread of the host, or, on Spark, by the
    planner. Each has a neutral default that means "cannot" or "nothing to do".
    """

    in_order: bool = False
    """Whether a stream takes splits one after the other, as `discover` lists them, and not side by side in fair shares.

    Then a split that was not begun yet is nowhere remembered: each discovery has to list it again.
    """

    exact_ends: bool = False
    """Whether there is always a record before a new end, as with the newest offset or id, and not with a time.

    If not, a stream reads a first record in its planner before it plans a micro-batch, and plans none where there is
    none. That takes at most a fifth of the time.
    """

    refresh_floor: float = 1.0
    """Seconds for which a stream trusts an answer at least; less where asking costs nearly nothing.

    After five seconds without news it is 0.1 s, if that is more.
    """

    discovery_floor: float | None = None
    """The same of a discovery alone, where new splits are rarer than news of known ones; None = as `refresh_floor`."""

    refresh_share: float = 0.05
    """How much of its time a stream may spend on asking: an answer is trusted for longer where asking takes long."""

    digests: SplitDigests | None = None
    """Recognises the splits that a stream has read, where there may be more than offsets have room for; None = a stream
    keeps whole splits, and is refused once they do not fit.

    What it recognises is not among the known splits of `discover`, which must not return it; and `finished`, which was
    told of it, is not told again.
    """

    @abstractmethod
    def discover(self, known: Mapping[str, Split], first: bool) -> Discovered:
        """Look at the outside and return what is there. May block. Called on a worker thread, never two at once.

        Args:
            known: Every split not yet forgotten, by id; read-only.
            first: This is the first discovery of the query, also counting those before a restart. What a setting
                such as "start at the latest" means for the first splits it usually must not mean for later ones.

        Raises:
            RetriableError: Try again, with back-off.
        """

    def restore_state(self, state: Json) -> None:
        """Take back `Discovered.state` of the last discovery, before any other call, after a restart."""

    def adopt(self, offset: Mapping[str, Json]) -> Sequence[Split] | None:
        """Return what is open, each split at its position, by the offset of another source; None = not understood.

        Called where a stream is started on a checkpoint that another source wrote, before any discovery. May block.
        """
        return None

    def latest(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Return the present end of each split, by id; leave out those whose end is not known. May block.

        A host that must fix an end before it reads (a bounded read of an unbounded source, a micro-batch) asks this.
        """
        return {}

    def positions_at(self, event_time: int, splits: Sequence[Split]) -> Mapping[str, Position] | None:
        """Return, by id, the first position whose event time is ≥ `event_time` (µs since 1970); None = cannot."""
        return None

    def size(self, split: Split) -> int | None:
        """Estimate the bytes between the split's position and its end; None = unknown. Must not block."""
        return None

    def slices(self, split: Split, count: int) -> Sequence[Split]:
        """Cut what is left of a split into about `count` slices, in order, under the same id. May block.

        The slices' records together must be the split's, each once, in order. Default: it cannot be cut.
        """
        return [split]

    def tasks(self, slices: Sequence[Split]) -> Sequence[Sequence[Split]] | None:
        """Return what each task reads, where options of the source say it; None = the host cuts and packs, by bytes.

        Called by a planner with all that is to be read, each part with its end. Cut with `split.slice`: the tasks'
        records together must be those of the slices, each once. May block.
        """
        return None

    def advance(self, split: Split, *, rows: int | None = None, byte_budget: int | None = None) -> Position | None:
        """Return how far a budget reaches from the split's position, at most to its end; None = cannot tell.

        For `rows`, return the position after exactly so many rows, and the end where there are fewer: what is answered
        is believed. Positions need not count rows for that; where they are ints, their distance is taken for rows.
        """
        return None

    def vanished(self, splits: Sequence[Split]) -> bool:
        """Splits that were known are gone from a discovery that is complete; return True to drop them.

        Raises:
            DataLossError: The source holds that losing them is an error.
        """
        return False

    def finished(self, splits: Sequence[Split]) -> None:
        """Splits have been delivered to their end; called again after a restart, so it must be idempotent."""

    def committed(self, positions: Mapping[str, Position]) -> None:
        """Everything before these positions is durably delivered; best effort, repeatable (group offsets, clean-up)."""

    def close(self) -> None:
        """Free everything; called once, on every path."""
