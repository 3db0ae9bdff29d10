# SPDX-License-Identifier: Apache-2.0
"""The scenario of a seed: the input, the options, and the rates of faults."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from forebay.framework.split import Position
from forebay_simulator.runtime import Schedule

NUMBERS = 1000
"""Split k of a scenario has the numbers from k · NUMBERS on."""


class Fault(Enum):
    """An event that a simulation injects at some step. The value describes it."""

    WAKE = "a worker or split reader is woken without reason"
    STALL = "a worker does not step for a while"
    PAUSE = "splits are paused, later resumed"
    FETCH_FAILURE = "a fetch raises a retriable error"
    READER_CRASH = "a reader fails: in a fetch, a poll, before or after records went out, at its start or end"
    SNAPSHOT_FAILURE = "a reader's snapshot fails"
    STORE_FAILURE = "a checkpoint is not written, or is and says not"
    DISCOVERY_FAILURE = "a discovery raises a retriable error"
    AUTHOR_FAILURE = "reporting ends and positions to the author raises a retriable error"
    SLOW_JOB = "a discovery takes long"
    CHECKPOINT = "the consumer asks for a checkpoint"
    SLOW_CONSUMER = "the consumer is busy for a while"
    KILL = "the process dies: between steps, around a write of a checkpoint, during a report to the author"
    STOP = "the run is closed orderly and started again"

    # By identity: that of Enum is written in Python, and this is asked several times a step.
    __hash__ = object.__hash__


_RATES = {
    Fault.WAKE: (0.02, 0.3),
    Fault.STALL: (0.005, 0.03),
    Fault.PAUSE: (0.02, 0.2),
    Fault.FETCH_FAILURE: (0.05, 0.3),
    Fault.READER_CRASH: (0.01, 0.05),
    Fault.SNAPSHOT_FAILURE: (0.1, 0.5),
    Fault.STORE_FAILURE: (0.1, 0.4),
    Fault.DISCOVERY_FAILURE: (0.1, 0.6),
    Fault.AUTHOR_FAILURE: (0.1, 0.5),
    Fault.SLOW_JOB: (0.2, 0.8),
    Fault.CHECKPOINT: (0.02, 0.3),
    Fault.SLOW_CONSUMER: (0.05, 0.3),
    Fault.KILL: (0.003, 0.03),
    Fault.STOP: (0.003, 0.02),
}


@dataclass(frozen=True, slots=True)
class SplitScript:
    """The input of one split.

    Args:
        id: Its id.
        base: Added to a position to get the number in the record there.
        size: Positions in it.
        gaps: Positions without a record, such as markers in a log.
        appears: When a discovery can find it, in seconds.
        rate: Positions a second that arrive from then on, while the source is unbounded.
        start: Its first position as discovered: 0, or None for "the start".
        ends: Whether its end is known to the enumerator.
    """

    id: str
    base: int
    size: int
    gaps: frozenset[int]
    appears: float
    rate: float
    start: int | None
    ends: bool

    def available(self, now: float) -> int:
        """Return the position after the last that has arrived."""
        return max(0, min(self.size, int((now - self.appears) * self.rate)))

    def complete_at(self) -> float:
        """Return when the last position has arrived."""
        return self.appears + self.size / self.rate if self.rate else 0.0

    def rows(self) -> list[int]:
        """Return the numbers of all records, in order."""
        return [self.base + position for position in range(self.size) if position not in self.gaps]

    def row_index(self, position: Position | None) -> int:
        """Return how many records lie before a position."""
        where = position if isinstance(position, int) else 0
        return where - sum(gap < where for gap in self.gaps)

    def stretch(self, position: int, most: int, until: int) -> tuple[int, int]:
        """Return where the next records without a gap between them begin and end; the same twice if there are none."""
        while position < until and position in self.gaps:
            position += 1
        stop = position
        while stop < min(until, position + most) and stop not in self.gaps:
            stop += 1
        return position, stop


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a seed decides before the first step.

    Args:
        seed: The seed.
        simple: Over a `SimpleSource` and its generator workers; else over a split reader.
        bounded: Whether all splits are present at once and end.
        splits: The input.
        fetchers: As `Source.fetchers`.
        parallelism: Of the first process, the second …
        queue_batches: Capacity of the hand-over queue.
        queue_bytes: The same in bytes; a small one also fills the buffer of paused splits.
        batch_rows: Most records of one fetch for one split.
        parts: Most parts in one fetch, of one split or of several.
        can_pause: Whether the split reader pauses by itself.
        late_end: Whether an end is reported by a separate fetch.
        only_new: Whether a discovery leaves out what is known.
        horizon: Whether finished splits are never discovered again.
        checkpoint_interval: Seconds.
        manner: How the scheduler chooses.
        rates: The probability of each fault where it can happen.
    """

    seed: int
    simple: bool
    bounded: bool
    splits: tuple[SplitScript, ...]
    fetchers: int | None
    parallelism: tuple[int, ...]
    queue_batches: int
    queue_bytes: int
    batch_rows: int
    parts: int
    can_pause: bool
    late_end: bool
    only_new: bool
    horizon: bool
    checkpoint_interval: float
    schedule: Schedule
    rates: Mapping[Fault, float]

    def lines(self) -> Iterator[str]:
        """Describe the scenario."""
        layer = f"a SimpleSource, {self.fetchers} fetcher(s)" if self.simple else f"fetchers {self.fetchers}"
        yield (
            f"{'bounded' if self.bounded else 'unbounded'}, {layer}, parallelism {self.parallelism},"
            f" queue {self.queue_batches} batches and {self.queue_bytes} bytes, up to {self.batch_rows} rows a batch,"
            f" up to {self.parts} parts a fetch, checkpoints every {self.checkpoint_interval:g} s"
        )
        yield (
            f"can_pause={self.can_pause} late_end={self.late_end} only_new={self.only_new} horizon={self.horizon}"
            f" {self.schedule}"
        )
        for split in self.splits:
            yield (
                f"{split.id}: {split.size} positions from {split.start}, gaps {sorted(split.gaps)}, from"
                f" {split.appears:.1f} s on, {split.rate:.1f} a second, end {'known' if split.ends else 'not known'}"
            )
        yield "faults: " + (", ".join(f"{one.name} {rate:g}" for one, rate in self.rates.items()) or "none")


def draw_scenario(seed: int) -> Scenario:
    """Make the scenario of a seed. Each leaves out some faults, because one may hide the effect of another."""
    chance = random.Random(seed)
    bounded = chance.random() < 0.6
    simple = chance.random() < 0.2
    return Scenario(
        seed=seed,
        simple=simple,
        bounded=bounded,
        splits=tuple(_split(chance, number, bounded) for number in range(chance.choice((0, 1, 1, 2, 2, 3, 3, 4)))),
        fetchers=chance.choice((1, 1, 2, 3, None)),
        parallelism=tuple(chance.choice((1, 1, 2, 3)) for _ in range(3)),
        queue_batches=chance.choice((1, 2, 3)),
        queue_bytes=chance.choice((16, 64, 1 << 20)),
        batch_rows=chance.choice((1, 2, 3, 5)),
        parts=chance.choice((1, 1, 2, 4)),
        can_pause=chance.random() < 0.5,
        late_end=chance.random() < 0.4,
        only_new=chance.random() < 0.4,
        horizon=chance.random() < 0.3,
        # Without periodic checkpoints, a lost wake-up leaves a run asleep for ever.
        checkpoint_interval=chance.choice((1e6, 1e6, 5.0, 0.5)),
        schedule=Schedule(
            interrupt=chance.choice((0.0, 0.02, 0.1, 0.25)),
            jump=chance.choice((0.0, 0.0, 0.02)),
            lopsided=chance.random() < 0.4,
        ),
        rates={fault: chance.choice(rates) for fault, rates in _RATES.items() if chance.random() < 0.4},
    )


def _split(chance: random.Random, number: int, bounded: bool) -> SplitScript:
    size = chance.choice((0, 1, 2, 5, 8, 13, 21, 30))
    gaps = frozenset(chance.sample(range(size), chance.randint(0, size // 3))) if chance.random() < 0.3 else frozenset()
    return SplitScript(
        id=f"s{number}",
        base=number * NUMBERS,
        size=size,
        gaps=gaps,
        appears=0.0 if bounded else chance.choice((0.0, 0.0, chance.uniform(0, 40))),
        rate=0.0 if bounded else chance.choice((1.0, 5.0, 100.0)),
        start=chance.choice((0, 0, None)),
        ends=chance.random() < 0.5,
    )
