# SPDX-License-Identifier: Apache-2.0
"""Watermark generators: from the event times of a split's batches to the watermarks of that split.

A watermark T asserts that no later record of the split has an event time ≤ T (WM-1).
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from forebay.watermarks.event_time import MIN_WATERMARK, EventTimes, micros


class WatermarkOutput(Protocol):
    """Where watermarks and idleness go. Called on the task thread only."""

    def emit_watermark(self, us: int) -> None:
        """Assert that no record with an event time ≤ `us` will follow. Makes an idle output active again (WX-3)."""

    def mark_idle(self) -> None:
        """Say that this output will be silent for now, so nobody should wait for its watermark."""

    def mark_active(self) -> None:
        """Take `mark_idle` back: records are coming."""


class WatermarkGenerator(Protocol):
    """Makes the watermarks of one split: one generator per split, from the moment the split is added (OUT-4).

    Authors write one for `WatermarkStrategy.for_generator`. Called on the task thread; it needs no lock.
    """

    def on_event(self, batch: pa.RecordBatch, times: EventTimes, output: WatermarkOutput) -> None:
        """See a batch that has just gone downstream (OUT-2).

        What is emitted here is combined at once (WX-2). Not called for a batch without rows or without any event time.

        Args:
            batch: The batch, for generators that look for marks in the data. Not to be kept.
            times: Its earliest and latest event time, in microseconds.
            output: The output of the split.
        """

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit on the periodic tick, every 200 ms by default. Not called while the split is idle.

        Args:
            output: The output of the split; what it gets is combined when all splits had their tick (WX-2).
        """


class BoundedDisorder:
    """Events come at most `delay` behind the latest one seen; with delay 0 they ascend (WM-2).

    The watermark is latest − delay − 1: the next event may still be exactly `delay` behind. Flink's 1 is one unit of
    its time, a millisecond; ours is one microsecond. Emitted on the periodic tick only, so disorder inside a batch
    costs nothing: the whole batch has left before the watermark that it causes.

    Args:
        delay: The bound of the disorder, in seconds, 0 or more.

    Raises:
        ConfigurationError: The delay is negative or not finite.
    """

    def __init__(self, delay: float) -> None:
        self._behind = micros(delay, "watermarkDelay") + 1
        self._latest: int | None = None

    def on_event(self, batch: pa.RecordBatch, times: EventTimes, output: WatermarkOutput) -> None:
        """Remember the latest event time; a late batch never lowers it (WM-2)."""
        if self._latest is None or times.latest > self._latest:
            self._latest = times.latest

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit latest − delay − 1; before the first event `MIN_WATERMARK`, never anything below it (WM-2)."""
        known = MIN_WATERMARK if self._latest is None else max(MIN_WATERMARK, self._latest - self._behind)
        output.emit_watermark(known)


class NoWatermarks:
    """Never emits: for readers that need no event time (WM-3)."""

    def on_event(self, batch: pa.RecordBatch, times: EventTimes, output: WatermarkOutput) -> None:
        """Ignore the batch."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Ignore the tick."""
