# SPDX-License-Identifier: Apache-2.0
"""Watermark generators: they compute the watermarks of a split from the event times of its batches.

A watermark T asserts that no later record of the split has an event time ≤ T (WM-1).
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from forebay.watermarks.alignment import watermark_before
from forebay.watermarks.event_time import MIN_WATERMARK, EventTimes, micros


class WatermarkOutput(Protocol):
    """Receives the watermarks and the idleness of a split, or of a reader. Called on the task thread only."""

    def emit_watermark(self, us: int) -> None:
        """Assert that no record with an event time ≤ `us` follows. Makes an idle output active (WX-3)."""

    def mark_idle(self) -> None:
        """Exclude this output from the combined watermark until `mark_active` or `emit_watermark` is called."""

    def mark_active(self) -> None:
        """Include this output in the combined watermark again, after `mark_idle`."""


class WatermarkGenerator(Protocol):
    """Makes the watermarks of one split, from the moment the split is added (OUT-4).

    Authors pass one to `WatermarkStrategy.for_generator`. Called on the task thread; it needs no lock.
    """

    def on_event(self, batch: pa.RecordBatch, times: EventTimes, output: WatermarkOutput) -> None:
        """Process a batch that has just been sent downstream (OUT-2).

        Watermarks emitted here are combined immediately (WX-2). Not called for a batch without rows or event times.

        Args:
            batch: The batch, for generators that read marker rows. Do not keep it.
            times: Its earliest and latest event time, in microseconds.
            output: The output of the split.
        """

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit on the periodic tick, every 200 ms by default. Not called while the split is idle.

        Args:
            output: The output of the split; it is combined with the others after the tick of all splits (WX-2).
        """


class BoundedDisorder:
    """Makes watermarks for events that are at most `delay` older than the latest one; with 0, they must ascend (WM-2).

    The watermark is latest − delay − 1 µs, since the next event may be exactly `delay` older. It is emitted on the
    periodic tick only, so disorder inside a batch has no effect.

    Args:
        delay: The maximum disorder in seconds of event time, 0 or more.

    Raises:
        ConfigurationError: The delay is negative or not finite.
    """

    def __init__(self, delay: float) -> None:
        self._delay = micros(delay, "watermarkDelay")
        self._latest: int | None = None

    def on_event(self, batch: pa.RecordBatch, times: EventTimes, output: WatermarkOutput) -> None:
        """Record the latest event time; a late batch never lowers it (WM-2)."""
        if self._latest is None or times.latest > self._latest:
            self._latest = times.latest

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit latest event time − delay − 1 µs; `MIN_WATERMARK` before the first event (WM-2)."""
        known = MIN_WATERMARK if self._latest is None else watermark_before(self._latest, self._delay)
        output.emit_watermark(known)


class NoWatermarks:
    """A generator that emits no watermarks, for readers that need no event time (WM-3)."""

    def on_event(self, batch: pa.RecordBatch, times: EventTimes, output: WatermarkOutput) -> None:
        """Ignore the batch."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Ignore the tick."""
