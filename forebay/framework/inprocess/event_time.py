# SPDX-License-Identifier: Apache-2.0
"""Event time of a run: the watermark over all splits of the reader, and alignment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import pyarrow as pa

from forebay.clock import Clock
from forebay.framework.split import Position
from forebay.watermarks.alignment import check_drift, max_allowed, splits_ahead
from forebay.watermarks.event_time import MAX_WATERMARK, MIN_WATERMARK, EventTimes
from forebay.watermarks.outputs import DEFAULT_EMIT_INTERVAL, SourceOutputs
from forebay.watermarks.strategy import WatermarkStrategy


class PausedReader(Protocol):
    """A reader that can pause splits."""

    def pause_or_resume(self, pause: Sequence[str], resume: Sequence[str]) -> None:
        """Pause and resume splits, given by id (RDR-8)."""


class EventTime:
    """Watermark and alignment of a run. The consumer's thread calls all methods.

    The watermark is the minimum of those of the active splits, and never falls. A split holds it back from its
    assignment until it is finished, also before its first record (OUT-3, OUT-4) and while a failed reader is replaced.
    Splits that were never assigned do not count.

    Args:
        strategy: Generates watermarks and sets the limits of idleness and alignment.
        clock: The time of the run.
        silent: Takes a split id; returns whether the split has no more rows for now. Only such a split can become idle.
    """

    def __init__(self, strategy: WatermarkStrategy, clock: Clock, silent: Callable[[str], bool]) -> None:
        if strategy.max_drift is not None:
            check_drift(strategy.max_drift)
        self._max_drift = strategy.max_drift
        self._clock = clock
        self._outputs = SourceOutputs(strategy, clock, _Nowhere(), silent=silent)
        self._lost: set[str] = set()  # splits of the failed reader that its replacement has not got yet
        self._next_tick = clock.monotonic() + DEFAULT_EMIT_INTERVAL

    @property
    def watermark(self) -> int | None:
        """The watermark of the run, in microseconds since 1970; None before the first watermark."""
        return None if self._outputs.watermark == MIN_WATERMARK else self._outputs.watermark

    def add(self, split_id: str) -> None:
        """Record that the reader got a split, which holds back the watermark from now on (OUT-4)."""
        self._lost.discard(split_id)
        self._outputs.create(split_id)

    def release(self, split_id: str) -> None:
        """Record that a split is finished, so that it no longer holds back the watermark (OUT-3)."""
        self._outputs.release(split_id)

    def collect(self, split_id: str, batch: pa.RecordBatch, position: Position | None) -> None:
        """Pass a delivered record batch to the watermark generator of its split (OUT-2)."""
        self._outputs.of(split_id).collect(batch, position)
        if self._max_drift is not None:
            self._next_tick = self._clock.monotonic()  # pause a fast split before the next regular tick

    def reader_failed(self) -> None:
        """Record that the reader failed: its replacement has no paused splits."""
        self._lost.update(self._outputs.split_status())
        self._outputs.resume(self.paused())

    def consumer_busy(self, *, busy: bool) -> None:
        """Stop the idle time-outs while the consumer processes a batch (`busy`), and resume them afterwards (WM-4)."""
        self._outputs.set_backpressured(busy)

    def paused(self) -> list[str]:
        """Return the ids of the splits that alignment has paused."""
        return [split_id for split_id, status in self._outputs.split_status().items() if status.paused]

    def due_in(self) -> float:
        """Return the seconds until the next `tick` is due."""
        return max(0.0, self._next_tick - self._clock.monotonic())

    def tick(self, reader: PausedReader, alive: Callable[[], Collection[str]]) -> bool:
        """If a tick is due, combine the watermarks, and pause or resume splits of the reader; return whether it was.

        `alive` returns the ids of all splits that exist. It is called only after a failure of the reader: splits that
        discovery has dropped meanwhile no longer hold back the watermark.
        """
        if self.due_in() > 0:
            return False
        self._next_tick = self._clock.monotonic() + DEFAULT_EMIT_INTERVAL
        if self._lost:
            for split_id in self._lost - set(alive()):
                self._lost.discard(split_id)
                self._outputs.release(split_id)
        self._outputs.on_periodic_emit()
        if self._max_drift is not None:
            self._align(self._max_drift, reader)
        return True

    def end_of_input(self) -> None:
        """Record that all splits have been read, so that the watermark moves to the end of time (WM-1)."""
        self._outputs.finish()

    def _align(self, max_drift: float, reader: PausedReader) -> None:
        limit = max_allowed([MAX_WATERMARK if self._outputs.idle else self._outputs.report()], max_drift)
        status = self._outputs.split_status()
        paused = set(self.paused())
        ahead = splits_ahead({split_id: current.watermark for split_id, current in status.items()}, limit)
        pause, resume = sorted(ahead - paused), sorted(paused - ahead)
        if pause or resume:
            reader.pause_or_resume(pause, resume)
            self._outputs.pause(pause)
            self._outputs.resume(resume)


class _Nowhere:
    """Takes what `SourceOutputs` sends on: the consumer has the batch already, and asks for the watermark."""

    def collect(self, split_id: str | None, batch: pa.RecordBatch, position: object, times: EventTimes | None) -> None:
        """Do nothing."""

    def emit_watermark(self, us: int) -> None:
        """Do nothing."""

    def mark_idle(self) -> None:
        """Do nothing."""

    def mark_active(self) -> None:
        """Do nothing."""
