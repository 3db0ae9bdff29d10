# SPDX-License-Identifier: Apache-2.0
"""The outputs of one reader: one per split and a main one, each with its own watermark generator (OUT-1…5).

A host gives a reader a `SourceOutputs` and sees all of it as one `Downstream`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import pyarrow as pa

from forebay.clock import Clock
from forebay.errors import ContractError
from forebay.watermarks.event_time import MAX_WATERMARK, MIN_WATERMARK, EventTimes
from forebay.watermarks.generators import WatermarkOutput
from forebay.watermarks.idleness import SILENT, ActivityClock, Evidence
from forebay.watermarks.multiplexer import WatermarkMultiplexer
from forebay.watermarks.split_output import SplitOutput
from forebay.watermarks.strategy import WatermarkStrategy

DEFAULT_EMIT_INTERVAL = 0.2
"""Seconds between two periodic ticks."""


class Downstream(WatermarkOutput, Protocol):
    """The host's side: gets batches and the combined watermark of a reader. Called on the task thread only.

    Its watermarks strictly rise. `mark_idle` and `mark_active` alternate, beginning with `mark_idle`; no watermark
    comes while it is idle.
    """

    def collect(self, split_id: str | None, batch: pa.RecordBatch, position: object, times: EventTimes | None) -> None:
        """Take one record batch.

        Args:
            split_id: Where it comes from; None from the main output.
            batch: The rows.
            position: What the reader gave: the split's progress once the batch counts as delivered.
            times: The event times assigned to the batch (OUT-1), or None.
        """


class SplitStatus(NamedTuple):
    """What is known about one split, for progress reports and alignment.

    Attributes:
        watermark: Its own watermark, in microseconds; `MIN_WATERMARK` if it has none.
        idle: Whether it is idle.
        paused: Whether it is paused.
    """

    watermark: int
    idle: bool
    paused: bool


class SourceOutputs:
    """Makes, keeps and releases the outputs of one reader, and combines their watermarks.

    The task thread calls everything. The main output is there from the start and idle, which means that it takes part
    from its first use on; the source is idle when it and all split outputs are (WX-5).

    Args:
        strategy: How event time is treated.
        clock: The time, of which only `monotonic` is used.
        downstream: The host's side; may be attached later, since splits may be added before it exists (OUT-4).
        evidence: Says of a split id what is known about its silence; asked at each tick. Needed if the strategy has an
            idle timeout.
        timestamps_only: For reads that need no event time (a bounded read as a batch): timestamps are assigned,
            watermarks and idleness do nothing (OUT-5).
        emit_interval: Seconds between periodic ticks.
    """

    def __init__(
        self,
        strategy: WatermarkStrategy,
        clock: Clock,
        downstream: Downstream | None = None,
        *,
        evidence: Callable[[str], Evidence] | None = None,
        timestamps_only: bool = False,
        emit_interval: float = DEFAULT_EMIT_INTERVAL,
    ) -> None:
        if strategy.idle_timeout is not None and evidence is None and not timestamps_only:
            raise ContractError(
                "a strategy with an idle timeout needs evidence: silence alone does not prove that a split is idle",
                rule="WM-4",
                advice="pass evidence=, which says of a split id whether it is caught up, fetched empty and not queued",
            )
        self._strategy = strategy
        self._now = clock.monotonic
        self._relay = _Relay(downstream)
        self._evidence = evidence
        self._timestamps_only = timestamps_only
        self._emit_interval = emit_interval
        self._next_tick = clock.monotonic() + emit_interval
        self._combined = WatermarkMultiplexer(self._relay)
        self._activity = ActivityClock(clock.monotonic)
        self._backpressured = False
        self._ended = False
        self._splits: dict[str, SplitOutput] = {}
        self._main = self._output(None, lambda: SILENT)

    @property
    def main(self) -> SplitOutput:
        """The output for what belongs to no split."""
        return self._main

    @property
    def watermark(self) -> int:
        """The combined watermark last sent downstream; `MIN_WATERMARK` before the first."""
        return self._combined.watermark

    @property
    def idle(self) -> bool:
        """Whether no output is active, so that a host need not wait for this reader's watermark.

        True also where there is no output at all: the downstream is not told of that (WX-4), but a host that combines
        several readers leaves such a reader out.
        """
        return not self._combined.any_active()

    def attach(self, downstream: Downstream) -> None:
        """Give the host's side, once; splits may have been added before (OUT-4).

        Raises:
            ContractError: There is one already.
        """
        self._relay.attach(downstream)

    def create(self, split_id: str) -> SplitOutput:
        """Return the output of a split, made if there is none: called when the split is added (OUT-3, OUT-4).

        From this call on the split holds the watermark, also while nothing of it has been read.
        """
        output = self._splits.get(split_id)
        if output is None:
            ask = self._evidence
            output = self._output(split_id, lambda: SILENT if ask is None else ask(split_id))
            output.open()
            self._splits[split_id] = output
        return output

    def of(self, split_id: str) -> SplitOutput:
        """Return the output of a split that was added and not released.

        Raises:
            ContractError: There is none (RB-5).
        """
        output = self._splits.get(split_id)
        if output is None:
            raise ContractError(
                f"records came for the split {split_id!r}, which was not added or has finished",
                split=split_id,
                rule="RB-5",
                advice="emit only records of splits that were added, and none after the split was reported finished",
            )
        return output

    def release(self, split_id: str) -> bool:
        """Drop the output of a finished split, which would hold the watermark for ever (OUT-3).

        Returns:
            Whether there was one.
        """
        output = self._splits.pop(split_id, None)
        return output is not None and output.close()

    def pause(self, split_ids: Iterable[str]) -> None:
        """Say that these splits are paused: they are never judged idle meanwhile (AL-6). Unknown ids: no effect."""
        for split_id in split_ids:
            if split_id in self._splits:
                self._splits[split_id].pause()

    def resume(self, split_ids: Iterable[str]) -> None:
        """Say that these splits are read again. Unknown ids and splits that are not paused: no effect."""
        for split_id in split_ids:
            if split_id in self._splits:
                self._splits[split_id].resume()

    def set_backpressured(self, backpressured: bool) -> None:
        """Say whether the host takes no more for now: the idleness clocks stop (WM-4). Repeating has no effect."""
        if backpressured != self._backpressured:
            self._backpressured = backpressured
            if backpressured:
                self._activity.pause()
            else:
                self._activity.resume()

    def tick(self) -> bool:
        """Do the periodic emission if it is due. Called as often as the reader is polled.

        Returns:
            Whether it was due.
        """
        now = self._now()
        if now < self._next_tick:
            return False
        # Not the old time plus the interval: after a long block that would be a burst of ticks, which adds nothing.
        self._next_tick = now + self._emit_interval
        self.on_periodic_emit()
        return True

    def on_periodic_emit(self) -> None:
        """Judge idleness and let all generators emit, then combine once (WX-2). Nothing before a downstream."""
        if not self._relay.attached:
            return
        for output in (*self._splits.values(), self._main):
            output.on_periodic_emit()
        self._combined.on_periodic_emit()

    def end_of_input(self) -> None:
        """The bounded input has ended: `MAX_WATERMARK` goes downstream, once, also with timestamps only (WM-1).

        A host that combines several readers by a `WatermarkMultiplexer` may pass it on: there it means "finished".
        """
        self._ended = True
        self._combined.finish()

    def report(self) -> int | None:
        """Return what this reader tells an `Alignment`: its watermark, never lower while it reads (AL-1).

        Returns:
            Microseconds; `MAX_WATERMARK` when idle or ended; None before the first watermark.
        """
        if self._combined.idle:
            return MAX_WATERMARK
        return None if self.watermark == MIN_WATERMARK else self.watermark

    def split_status(self) -> dict[str, SplitStatus]:
        """Return the state of each split, by id."""
        return {
            split_id: SplitStatus(
                self._combined.watermark_of(split_id), self._combined.idle_of(split_id), output.paused
            )
            for split_id, output in self._splits.items()
        }

    def _output(self, split_id: str | None, evidence: Callable[[], Evidence]) -> SplitOutput:
        return SplitOutput(
            split_id,
            self._strategy,
            self._combined,
            self._deliver,
            clock=ActivityClock(self._activity),
            evidence=evidence,
            timestamps_only=self._timestamps_only,
        )

    def _deliver(self, split_id: str | None, batch: pa.RecordBatch, position: object, times: EventTimes | None) -> None:
        if self._ended:
            raise ContractError(
                "a record batch came after the end of the input",
                split=split_id,
                position=position,
                rule="WM-1",
                advice="report the end of the input only when all splits have been read",
            )
        # While the downstream works on the batch nothing can be read, so that time is no silence (WM-4).
        self._activity.pause()
        try:
            self._relay.target.collect(split_id, batch, position, times)
        finally:
            self._activity.resume()


class _Relay:
    """Stands where the downstream will be, so that splits can be added before there is one (OUT-4)."""

    def __init__(self, downstream: Downstream | None) -> None:
        self._target = downstream

    @property
    def attached(self) -> bool:
        return self._target is not None

    @property
    def target(self) -> Downstream:
        if self._target is None:
            raise ContractError(
                "something was emitted before there was a downstream",
                rule="OUT-4",
                advice="splits may be added at any time; attach the downstream before the first poll",
            )
        return self._target

    def attach(self, downstream: Downstream) -> None:
        if self._target is not None:
            raise ContractError(
                "these outputs already have a downstream", rule="OUT-4", advice="make new outputs for a new reader"
            )
        self._target = downstream

    def emit_watermark(self, us: int) -> None:
        self.target.emit_watermark(us)

    def mark_idle(self) -> None:
        self.target.mark_idle()

    def mark_active(self) -> None:
        self.target.mark_active()
