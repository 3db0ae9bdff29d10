# SPDX-License-Identifier: Apache-2.0
"""The input of a simulated stream: splits that appear, grow, lag, end and vanish, and an author's failures."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import pyarrow as pa
from manual_clock import ManualClock

from forebay.errors import RetriableError
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumeratorContext
from forebay.framework.reader import SourceReaderContext
from forebay.framework.source import Source
from forebay.framework.split import Json, Position, Split
from forebay.framework.split_reader import SplitReader

ROW_BYTES = 10
"""Bytes of a row, for sizes and budgets."""

Row = tuple[str, int]


class Crash(BaseException):
    """Ends the process, as SIGKILL does: nothing may catch it."""


class Broken(BaseException):
    """A broken rule, named in the text; not an `Exception`, so that no handler hides it."""


@dataclass(frozen=True, slots=True)
class StreamScript:
    """One split.

    Args:
        id: Its id.
        size: Rows that it ever has.
        start: Its first position; None for "the start", which is 0.
        appears: When a discovery can find it, in seconds.
        rate: Rows a second that arrive from then on; 0 = all at once.
        closed: Whether it is discovered with its end.
        vanishes: When no discovery finds it any more, in seconds.
    """

    id: str
    size: int
    start: int | None
    appears: float
    rate: float
    closed: bool
    vanishes: float

    @property
    def first(self) -> int:
        """The number of its first row."""
        return self.start or 0

    def available(self, now: float) -> int:
        """Return the position after the last row that has arrived."""
        if now < self.appears:
            return self.first
        return self.size if not self.rate else max(self.first, min(self.size, int((now - self.appears) * self.rate)))


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of a source.

    Args:
        bounded: All splits are present at once, and end.
        in_order: Splits are files: taken one after the other.
        knows_ends: Whether `latest` answers for a bounded source.
        drops: Whether vanished splits are dropped.
        forgets: Whether a discovery gives a horizon.
        texts: Whether positions are tuples that end in a text.
        failure_rate: The probability that a call raises a retriable error.
        lag: The probability that an end lags behind.
    """

    bounded: bool
    in_order: bool
    knows_ends: bool
    drops: bool
    forgets: bool
    texts: bool
    failure_rate: float
    lag: float


class Outside:
    """The environment of one simulated query, across its processes.

    Args:
        chance: Decides everything.
        kind: What the source is.
        scripts: Its splits.
    """

    def __init__(self, chance: random.Random, kind: Kind, scripts: Sequence[StreamScript]) -> None:
        self.chance, self.kind = chance, kind
        self.scripts = {script.id: script for script in scripts}
        self.clock = ManualClock()
        self.reported: dict[str, int] = {}
        self.dropped: set[str] = set()
        self.deleted: set[str] = set()
        self.calm = False
        self.offsets = 0
        self.crash_rate = 0.0
        self.failures = 0

    def now(self) -> float:
        """Return the virtual time."""
        return self.clock.monotonic()

    def maybe_crash(self) -> None:
        """Crash, if the seed decides so."""
        if not self.calm and self.chance.random() < self.crash_rate:
            raise Crash

    def maybe_fail(self, what: str) -> None:
        """Crash or fail in an author's call."""
        self.maybe_crash()
        if not self.calm and self.chance.random() < self.kind.failure_rate:
            self.failures += 1
            raise RetriableError(f"{what} is not there for now")

    def encoded(self, position: int | None) -> Position | None:
        """Return a position in the connector's encoding."""
        return (position, "x") if self.kind.texts and position is not None else position

    def rows(self, split: Split) -> Iterator[Row]:
        """Read a slice.

        Raises:
            Broken: It was deleted, or exceeds the present rows.
        """
        script = self.scripts[split.id]
        start = script.first if split.position is None else plain(split.position)
        end = script.size if split.end is None else plain(split.end)
        if split.id in self.deleted and end > start:
            raise Broken(f"{split.id} is read after finished() was called, and so may be deleted (S19)")
        if not script.first <= start <= end <= script.available(self.now()):
            raise Broken(f"{split.id} is read from {start} to {end}, and has {script.available(self.now())}")
        return ((split.id, number) for number in range(start, end))


def plain(position: Any) -> int:
    """Return the row number of a position."""
    return int(position[0] if isinstance(position, tuple) else position)


class OutsideEnumerator(DiscoveryEnumerator):
    """An author's enumerator of the outside.

    Args:
        outside: The outside.
    """

    exact_ends = True

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self.in_order = outside.kind.in_order

    def discover(self, known: Mapping[str, Split], first: bool) -> Discovered:
        """Return the present splits."""
        outside, now = self._outside, self._outside.now()
        outside.maybe_fail("discover")
        if first != (outside.offsets == 0):
            raise Broken(f"discover(first={first}) with {outside.offsets} offsets in the log")
        present = [one for one in outside.scripts.values() if one.appears <= now < one.vanishes]
        gone = {one.id for one in outside.scripts.values() if one.vanishes <= now}
        only_new = outside.chance.random() < 0.3 and not outside.kind.drops and not outside.kind.in_order
        splits = [
            Split(one.id, outside.encoded(one.start), outside.encoded(one.size if one.closed else None))
            for one in present
            if not (only_new and one.id in known)
        ]
        return Discovered(splits, (lambda split: split.id in gone) if outside.kind.forgets else None)

    def latest(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Return the ends, some of them outdated."""
        outside = self._outside
        outside.maybe_fail("latest")
        if outside.kind.bounded and not outside.kind.knows_ends:
            return {}
        found: dict[str, Position] = {}
        for split in splits:
            script = outside.scripts[split.id]
            end = script.available(outside.now())
            # The end of a bounded split must be exact.
            if not outside.calm and not outside.kind.bounded and outside.chance.random() < outside.kind.lag:
                end = max(script.first, end - outside.chance.randint(1, 5))
            outside.reported[split.id] = end
            found[split.id] = cast("Position", outside.encoded(end))
        return found

    def size(self, split: Split) -> int | None:
        """Return the bytes of a slice."""
        script = self._outside.scripts[split.id]
        start = script.first if split.position is None else plain(split.position)
        return (script.size if split.end is None else plain(split.end)) * ROW_BYTES - start * ROW_BYTES

    def slices(self, split: Split, count: int) -> Sequence[Split]:
        """Cut a slice."""
        if split.end is None or split.position is None:
            return [split]
        start, end = plain(split.position), plain(split.end)
        cuts = sorted({start + (end - start) * number // count for number in range(count + 1)})
        coded = [self._outside.encoded(cut) for cut in cuts]
        return [split.slice(low, high) for low, high in itertools.pairwise(coded)]

    def advance(self, split: Split, *, rows: int | None = None, byte_budget: int | None = None) -> Position | None:
        """Return the position after exactly the budget."""
        script = self._outside.scripts[split.id]
        start = script.first if split.position is None else plain(split.position)
        reach = start + (rows if rows is not None else (byte_budget or 0) // ROW_BYTES)
        return self._outside.encoded(min(reach, script.size if split.end is None else plain(split.end)))

    def vanished(self, splits: Sequence[Split]) -> bool:
        """Drop vanished splits, if this kind of source does."""
        drops = self._outside.kind.drops
        if drops:
            self._outside.dropped.update(split.id for split in splits)
        return drops

    def finished(self, splits: Sequence[Split]) -> None:
        """Delete the finished splits."""
        self._outside.maybe_fail("finished")
        self._outside.deleted.update(split.id for split in splits)

    def committed(self, positions: Mapping[str, Position]) -> None:
        """Do nothing, or fail."""
        self._outside.maybe_fail("committed")

    def restore_state(self, state: Json) -> None:
        """Keep no state."""


class OutsideSource(Source):
    """A source over an outside; every process makes a new one."""

    name = "simulated"
    outside: ClassVar[Outside]

    @property
    def bounded(self) -> bool:
        """Whether all splits are present at once."""
        return self.outside.kind.bounded

    def schema(self) -> pa.Schema:
        """Return an empty schema: the driver reads slices itself."""
        return pa.schema([])

    def create_enumerator(self, context: SplitEnumeratorContext) -> DiscoveryEnumerator:
        """Make the author's enumerator."""
        return OutsideEnumerator(self.outside)

    def create_split_reader(self, context: SourceReaderContext) -> SplitReader:
        """Refuse: the driver reads slices itself."""
        raise NotImplementedError("slices are read by the driver")
