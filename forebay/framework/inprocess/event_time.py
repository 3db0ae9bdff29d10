# SPDX-License-Identifier: Apache-2.0
"""Event time of a run: the outputs of each reader, the watermark over all readers, and alignment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import pyarrow as pa

from forebay.clock import Clock
from forebay.framework.inprocess.reader_task import ReaderTask
from forebay.framework.split import Position
from forebay.watermarks.alignment import check_drift, max_allowed, splits_ahead
from forebay.watermarks.event_time import MAX_WATERMARK, MIN_WATERMARK, EventTimes
from forebay.watermarks.outputs import DEFAULT_EMIT_INTERVAL, SourceOutputs, WatermarkMultiplexer
from forebay.watermarks.strategy import WatermarkStrategy

Deliver = Callable[[str, pa.RecordBatch, Position | None], None]


class EventTime:
    """Watermark and alignment over all readers of a run. The consumer's thread calls all methods.

    The watermark is the minimum of the watermarks of all readers that have an active split, and never falls. A split
    holds it back from its assignment until it is finished, also before its first record (OUT-3, OUT-4). The splits of
    a failed reader hold it back until another reader gets them. Splits that were never assigned do not count.

    Args:
        strategy: Generates watermarks and sets the limits of idleness and alignment.
        clock: The time of the run.
        silent: Takes a split id; returns whether the split has no more rows for now. Only such a split can become idle.
    """

    def __init__(self, strategy: WatermarkStrategy, clock: Clock, silent: Callable[[str], bool]) -> None:
        if strategy.max_drift is not None:
            check_drift(strategy.max_drift)
        self._strategy = strategy
        self._clock = clock
        self._silent = silent
        self._readers: dict[int, _ReaderOutputs] = {}
        self._failed: list[_ReaderOutputs] = []
        self._combined = WatermarkMultiplexer()
        self._next_tick = clock.monotonic() + DEFAULT_EMIT_INTERVAL

    @property
    def watermark(self) -> int | None:
        """The watermark over all readers, in microseconds since 1970; None before the first watermark."""
        return None if self._combined.watermark == MIN_WATERMARK else self._combined.watermark

    def open(self, subtask: int, deliver: Deliver) -> None:
        """Record that a reader starts, possibly as a replacement; `deliver` receives its record batches."""
        self._readers[subtask] = _ReaderOutputs(self._strategy, self._clock, self._silent, deliver, self._combined)

    def end(self, subtask: int) -> None:
        """Record that a reader has ended, and so no longer holds back the watermark."""
        self._combined.unregister(self._readers.pop(subtask))

    def fail(self, subtask: int, split_ids: Collection[str]) -> None:
        """Record that a reader failed: `split_ids` hold back the watermark until another reader gets them."""
        reader = self._readers.pop(subtask, None)
        if reader is not None and reader.splits:
            reader.splits.intersection_update(split_ids)
            self._failed.append(reader)

    def forget(self, alive: Callable[[], Collection[str]]) -> None:
        """Release the splits of failed readers that discovery has dropped: they no longer hold back the watermark.

        `alive` returns the ids of all splits that still exist. It is called only if failed readers have left splits.
        """
        if self._failed:
            self._taken_over({split_id for reader in self._failed for split_id in reader.splits} - set(alive()))

    def add(self, subtask: int, split_id: str) -> None:
        """Record that a reader got a split, which holds back the watermark from now on (OUT-4)."""
        reader = self._readers[subtask]
        if not reader.splits:
            self._combined.register(reader)
        reader.splits.add(split_id)
        reader.outputs.create(split_id)
        self._taken_over({split_id})

    def release(self, subtask: int, split_id: str) -> None:
        """Record that a split is finished, so that it no longer holds back the watermark (OUT-3)."""
        reader = self._readers[subtask]
        reader.outputs.release(split_id)
        reader.splits.discard(split_id)
        if not reader.splits:
            self._combined.unregister(reader)

    def collect(self, subtask: int, split_id: str, batch: pa.RecordBatch, position: Position | None) -> None:
        """Deliver a record batch of a split, then pass it to the split's watermark generator (OUT-2)."""
        self._readers[subtask].outputs.of(split_id).collect(batch, position)
        if self._strategy.max_drift is not None:
            self._next_tick = self._clock.monotonic()  # pause a fast split before the next regular tick

    def consumer_busy(self, *, busy: bool) -> None:
        """Stop the idle time-outs while the consumer processes a batch (`busy`), and resume them afterwards (WM-4)."""
        for reader in self._readers.values():
            reader.outputs.set_backpressured(busy)

    def paused(self) -> Iterable[str]:
        """Return the ids of the splits that alignment has paused."""
        return [split_id for reader in self._readers.values() for split_id in reader.paused()]

    def due_in(self) -> float:
        """Return the seconds until the next `tick` is due."""
        return max(0.0, self._next_tick - self._clock.monotonic())

    def tick(self, tasks: Iterable[ReaderTask]) -> bool:
        """If a tick is due, combine the readers' watermarks, and pause or resume splits; return whether it was due.

        `tasks` are the reader tasks, which pause and resume their splits.
        """
        if self.due_in() > 0:
            return False
        self._next_tick = self._clock.monotonic() + DEFAULT_EMIT_INTERVAL
        for reader in self._readers.values():
            reader.outputs.on_periodic_emit()
        self._combined.update()
        if self._strategy.max_drift is not None:
            self._align(self._strategy.max_drift, tasks)
        return True

    def end_of_input(self) -> None:
        """Record that all splits have been read, so that the watermark moves to the end of time (WM-1)."""
        self._combined.finish()

    def _align(self, max_drift: float, tasks: Iterable[ReaderTask]) -> None:
        outputs = [reader.outputs for reader in (*self._readers.values(), *self._failed)]
        limit = max_allowed((MAX_WATERMARK if output.idle else output.report() for output in outputs), max_drift)
        for task in tasks:
            reader = self._readers.get(task.subtask)
            if reader is not None:
                before = reader.paused()
                status = reader.outputs.split_status()
                after = splits_ahead({split_id: current.watermark for split_id, current in status.items()}, limit)
                pause, resume = sorted(after - before), sorted(before - after)
                if pause or resume:
                    task.pause_or_resume(pause, resume)
                    reader.outputs.pause(pause)
                    reader.outputs.resume(resume)

    def _taken_over(self, split_ids: Collection[str]) -> None:
        for reader in self._failed:
            reader.splits.difference_update(split_ids)
            if not reader.splits:
                self._combined.unregister(reader)
        self._failed = [reader for reader in self._failed if reader.splits]


class _ReaderOutputs:
    """The outputs of one reader, until the reader fails or ends: delivers its batches, and reports its watermark."""

    def __init__(
        self,
        strategy: WatermarkStrategy,
        clock: Clock,
        silent: Callable[[str], bool],
        deliver: Deliver,
        combined: WatermarkMultiplexer,
    ) -> None:
        self.splits: set[str] = set()
        self.outputs = SourceOutputs(strategy, clock, self, silent=silent)
        self._deliver = deliver
        self._combined = combined

    def paused(self) -> set[str]:
        return {split_id for split_id, status in self.outputs.split_status().items() if status.paused}

    def collect(self, split_id: str | None, batch: pa.RecordBatch, position: object, times: EventTimes | None) -> None:
        if split_id is not None:
            self._deliver(split_id, batch, position)  # type: ignore[arg-type]  # the type is that of EventTime.collect

    def emit_watermark(self, us: int) -> None:
        if self.splits:
            self._combined.deferred(self).emit_watermark(us)

    def mark_idle(self) -> None:
        if self.splits:
            self._combined.deferred(self).mark_idle()

    def mark_active(self) -> None:
        if self.splits:
            self._combined.deferred(self).mark_active()
