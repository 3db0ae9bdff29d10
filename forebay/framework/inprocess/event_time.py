# SPDX-License-Identifier: Apache-2.0
"""Event time of a run: the outputs of each reader, one watermark over all, splits held back where they run ahead."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from forebay.clock import Clock
from forebay.framework.inprocess.reader_task import ReaderTask
from forebay.framework.split import Position
from forebay.watermarks.alignment import Alignment, SplitAlignment
from forebay.watermarks.event_time import MIN_WATERMARK, EventTimes
from forebay.watermarks.idleness import Evidence
from forebay.watermarks.multiplexer import WatermarkMultiplexer
from forebay.watermarks.outputs import DEFAULT_EMIT_INTERVAL, SourceOutputs
from forebay.watermarks.strategy import WatermarkStrategy

Deliver = Callable[[str, pa.RecordBatch, Position | None], None]


@dataclass(eq=False, slots=True)
class _Reader:
    """One attempt of a reader; itself the key of its watermark and of its place in the alignment."""

    outputs: SourceOutputs
    alignment: SplitAlignment = field(default_factory=SplitAlignment)
    splits: set[str] = field(default_factory=set)


class EventTime:
    """Outputs and alignment of all readers of a run. The consumer's thread calls everything.

    The watermark is the lowest of the readers that have an active split; it never falls, also not when a split comes
    back. A finished split leaves it at once, an unread one holds it (OUT-3, OUT-4), and so do the splits of a failed
    reader until another has taken the last of them. Splits that have not been given to any reader hold nothing.

    Args:
        strategy: How event time is treated.
        clock: The time.
        evidence: Says of a split what is known about its silence.
    """

    def __init__(self, strategy: WatermarkStrategy, clock: Clock, evidence: Callable[[str], Evidence]) -> None:
        self._strategy = strategy
        self._clock = clock
        self._evidence = evidence
        self._readers: dict[int, _Reader] = {}
        self._failed: list[_Reader] = []
        self._combined = WatermarkMultiplexer(_Unheard())
        self._alignment = None if strategy.max_drift is None else Alignment(strategy.max_drift)
        self._next_tick = clock.monotonic() + DEFAULT_EMIT_INTERVAL

    @property
    def watermark(self) -> int | None:
        """Microseconds since 1970; None before the first."""
        return None if self._combined.watermark == MIN_WATERMARK else self._combined.watermark

    def open(self, subtask: int, deliver: Deliver) -> None:
        """A reader starts, perhaps in the place of another; `deliver` takes its record batches on."""
        outputs = SourceOutputs(self._strategy, self._clock, evidence=self._evidence)
        reader = self._readers[subtask] = _Reader(outputs)
        outputs.attach(_Down(deliver, self._combined, reader))

    def end(self, subtask: int) -> None:
        """A reader has ended: nobody waits for it."""
        self._leave(self._readers.pop(subtask))

    def fail(self, subtask: int, held: Collection[str]) -> None:
        """A reader failed: the splits it held hold the watermark until they are read again."""
        reader = self._readers.pop(subtask, None)
        if reader is not None and reader.splits:
            reader.splits.intersection_update(held)
            self._failed.append(reader)

    def forget(self, alive: Callable[[], Collection[str]]) -> None:
        """Let go of splits of failed readers that nobody will read again; `alive` is asked only if there are any."""
        if self._failed:
            self._taken_over({split_id for reader in self._failed for split_id in reader.splits} - set(alive()))

    def add(self, subtask: int, split_id: str) -> None:
        """A split was added: from now on it holds the watermark (OUT-4)."""
        reader = self._readers[subtask]
        if not reader.splits:
            self._combined.register(reader)
        reader.splits.add(split_id)
        reader.outputs.create(split_id)
        reader.alignment.add(split_id)
        self._taken_over({split_id})

    def release(self, subtask: int, split_id: str) -> None:
        """A split has finished (OUT-3)."""
        reader = self._readers[subtask]
        reader.outputs.release(split_id)
        reader.alignment.finish(split_id)
        reader.splits.discard(split_id)
        if not reader.splits:
            self._leave(reader)

    def collect(self, subtask: int, split_id: str, batch: pa.RecordBatch, position: Position | None) -> None:
        """Send a record batch on, then show it to the split's generator (OUT-2)."""
        self._readers[subtask].outputs.of(split_id).collect(batch, position)
        if self._alignment is not None:
            self._next_tick = self._clock.monotonic()  # a fast split must not run away until the next regular tick

    def consumer_busy(self, *, busy: bool) -> None:
        """While the consumer works on a batch nothing is judged idle (WM-4)."""
        for reader in self._readers.values():
            reader.outputs.set_backpressured(busy)

    def paused(self) -> Iterable[str]:
        """Return the ids of the splits that are held back now."""
        return [split_id for reader in self._readers.values() for split_id in reader.alignment.paused]

    def due_in(self) -> float:
        """Return the seconds until the next tick."""
        return max(0.0, self._next_tick - self._clock.monotonic())

    def tick(self, tasks: Iterable[ReaderTask]) -> bool:
        """Do the periodic emission, combine, and pause or resume splits, if it is time; return whether it was."""
        if self.due_in() > 0:
            return False
        self._next_tick = self._clock.monotonic() + DEFAULT_EMIT_INTERVAL
        for reader in self._readers.values():
            reader.outputs.on_periodic_emit()
        self._combined.on_periodic_emit()
        if self._alignment is not None:
            self._align(self._alignment, tasks)
        return True

    def end_of_input(self) -> None:
        """Everything has been read (WM-1)."""
        self._combined.finish()

    def _align(self, alignment: Alignment, tasks: Iterable[ReaderTask]) -> None:
        for reader in self._readers.values():
            if reader.outputs.idle:
                alignment.finish(reader)
            else:
                alignment.report(reader, reader.outputs.report())
        limit = alignment.max_allowed()
        for task in tasks:
            if task.subtask in self._readers:
                self._align_splits(task, self._readers[task.subtask], limit)

    def _align_splits(self, task: ReaderTask, reader: _Reader, limit: int) -> None:
        before = reader.alignment.paused
        for split_id, status in reader.outputs.split_status().items():
            reader.alignment.advance(split_id, status.watermark)
        reader.alignment.limit(limit)
        # The difference of the two sets: a split paused and resumed within one tick is neither.
        after = reader.alignment.paused
        pause, resume = sorted(after - before), sorted(before - after)
        if pause or resume:
            task.pause_or_resume(pause, resume)
            reader.outputs.pause(pause)
            reader.outputs.resume(resume)

    def _taken_over(self, split_ids: Collection[str]) -> None:
        for reader in self._failed:
            reader.splits.difference_update(split_ids)
            if not reader.splits:
                self._leave(reader)
        self._failed = [reader for reader in self._failed if reader.splits]

    def _leave(self, reader: _Reader) -> None:
        self._combined.unregister(reader)
        if self._alignment is not None:
            self._alignment.finish(reader)


class _Down:
    """What one reader's outputs see of the run."""

    def __init__(self, deliver: Deliver, combined: WatermarkMultiplexer, reader: _Reader) -> None:
        self._deliver = deliver
        self._combined = combined
        self._reader = reader

    def collect(self, split_id: str | None, batch: pa.RecordBatch, position: object, times: EventTimes | None) -> None:
        if split_id is not None:
            where: Position | None = position  # type: ignore[assignment]  # it came in by `EventTime.collect`
            self._deliver(split_id, batch, where)

    def emit_watermark(self, us: int) -> None:
        if self._reader.splits:
            self._combined.deferred(self._reader).emit_watermark(us)

    def mark_idle(self) -> None:
        if self._reader.splits:
            self._combined.deferred(self._reader).mark_idle()

    def mark_active(self) -> None:
        if self._reader.splits:
            self._combined.deferred(self._reader).mark_active()


class _Unheard:
    """The run's own watermark is asked for, not listened to."""

    def emit_watermark(self, us: int) -> None:
        """Nobody listens."""

    def mark_idle(self) -> None:
        """Nobody listens."""

    def mark_active(self) -> None:
        """Nobody listens."""
