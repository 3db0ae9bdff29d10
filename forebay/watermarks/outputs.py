# SPDX-License-Identifier: Apache-2.0
"""The outputs of one reader: one per split and a main one, each with its own watermark generator (OUT-1…5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from forebay.clock import Clock
from forebay.errors import ContractError
from forebay.watermarks.event_time import MAX_WATERMARK, MIN_WATERMARK, EventTimes
from forebay.watermarks.generators import WatermarkOutput
from forebay.watermarks.idleness import ActivityClock, IdlenessTimer
from forebay.watermarks.multiplexer import WatermarkMultiplexer
from forebay.watermarks.strategy import WatermarkStrategy

DEFAULT_EMIT_INTERVAL = 0.2
"""Seconds between two periodic ticks, on which generators emit."""


class Downstream(WatermarkOutput, Protocol):
    """What a host implements to receive the batches and the combined watermark of a reader, on the task thread only.

    Watermarks strictly rise. `mark_idle` and `mark_active` alternate, beginning with `mark_idle`. No watermark is
    emitted while the downstream is idle.
    """

    def collect(self, split_id: str | None, batch: pa.RecordBatch, position: object, times: EventTimes | None) -> None:
        """Process one record batch; `split_id` is None for records without a split."""


class SplitStatus(NamedTuple):
    """The state of one split, for progress reports and alignment.

    Attributes:
        watermark: The split's own watermark, in microseconds; `MIN_WATERMARK` if it has none.
        idle: Whether the split is idle.
        paused: Whether the split is paused.
    """

    watermark: int
    idle: bool
    paused: bool


class SourceOutputs:
    """Creates and releases the outputs of one reader, and combines their watermarks.

    The task thread calls all methods. The main output is for records without a split. It exists from the start, and
    joins the combined watermark at its first use (WX-5).

    Args:
        strategy: The watermark strategy of the query.
        clock: The time.
        downstream: Receives the batches and the combined watermark.
        silent: Returns whether a split is silent: caught up, its latest fetch empty, and no batch of it queued. Called
            at each tick. Required if the strategy has an idle timeout.
        timestamps_only: Assign timestamps only, without watermarks and idleness, as a bounded read needs (OUT-5).
    """

    def __init__(
        self,
        strategy: WatermarkStrategy,
        clock: Clock,
        downstream: Downstream,
        *,
        silent: Callable[[str], bool] | None = None,
        timestamps_only: bool = False,
    ) -> None:
        if strategy.idle_timeout is not None and silent is None and not timestamps_only:
            raise ContractError(
                "the strategy has an idle timeout, but silent= is missing: a timeout alone does not prove silence",
                rule="WM-4",
                advice="pass silent=, a function that returns whether a split has caught up, its latest fetch was "
                "empty, and no batch of it is queued",
            )
        self._strategy = strategy
        self._downstream = downstream
        self._silent = silent
        self._timestamps_only = timestamps_only
        self._combined = WatermarkMultiplexer(downstream)
        self._activity = ActivityClock(clock.monotonic)
        self._backpressured = False
        self._splits: dict[str, SplitOutput] = {}
        self.main = self._output(None)
        """The output for rows that belong to no split."""

    @property
    def watermark(self) -> int:
        """The combined watermark that was last emitted, in microseconds; `MIN_WATERMARK` before the first one."""
        return self._combined.watermark

    @property
    def idle(self) -> bool:
        """Whether no output is active, so that a host must not wait for this reader's watermark.

        It is also true if there is no output. The downstream is not notified of that (WX-4).
        """
        return not self._combined.any_active()

    def create(self, split_id: str) -> SplitOutput:
        """Return the output of a split, created if needed. Called when the split is added (OUT-3, OUT-4).

        From this call on the split holds back the watermark, even while it is unread.
        """
        output = self._splits.get(split_id)
        if output is None:
            output = self._splits[split_id] = self._output(split_id)
            output.open()
        return output

    def of(self, split_id: str) -> SplitOutput:
        """Return the output of a split that was added and not released.

        Raises:
            ContractError: The split was not added, or was released (RB-5).
        """
        output = self._splits.get(split_id)
        if output is None:
            raise ContractError(
                f"the reader emitted records of the split {split_id!r}, which was not added or has finished",
                split=split_id,
                rule="RB-5",
                advice="emit only records of splits that were added, and none after the split was reported finished",
            )
        return output

    def release(self, split_id: str) -> bool:
        """Remove the output of a finished split; return whether it existed.

        Otherwise the output would hold back the combined watermark for ever (OUT-3).
        """
        output = self._splits.pop(split_id, None)
        return output is not None and output.close()

    def pause(self, split_ids: Iterable[str]) -> None:
        """Mark splits as paused: until `resume`, their idleness does not change (AL-6). Ignores unknown ids."""
        for split_id in split_ids:
            if split_id in self._splits:
                self._splits[split_id].pause()

    def resume(self, split_ids: Iterable[str]) -> None:
        """Mark paused splits as read again. Ignores unknown ids and splits that are not paused."""
        for split_id in split_ids:
            if split_id in self._splits:
                self._splits[split_id].resume()

    def set_backpressured(self, backpressured: bool) -> None:
        """Stop the idleness clocks if the host accepts no batches now, else restart them (WM-4). Idempotent."""
        if backpressured != self._backpressured:
            self._backpressured = backpressured
            if backpressured:
                self._activity.pause()
            else:
                self._activity.resume()

    def on_periodic_emit(self) -> None:
        """Decide which splits are idle, let the generators of the others emit, then combine all outputs once (WX-2)."""
        for output in (*self._splits.values(), self.main):
            output.on_periodic_emit()
        self._combined.update()

    def report(self) -> int | None:
        """Return the watermark of the reader for alignment, which never falls while the reader is active (AL-1).

        Returns:
            Microseconds; `MAX_WATERMARK` if the reader is idle; None before the first watermark.
        """
        if self._combined.idle:
            return MAX_WATERMARK
        return None if self.watermark == MIN_WATERMARK else self.watermark

    def split_status(self) -> dict[str, SplitStatus]:
        """Return the state of each split, by id."""
        combined = self._combined
        return {
            split_id: SplitStatus(combined.watermark_of(split_id), combined.idle_of(split_id), output.paused)
            for split_id, output in self._splits.items()
        }

    def _output(self, split_id: str | None) -> SplitOutput:
        silent = self._silent
        return SplitOutput(
            split_id,
            self._strategy,
            self._combined,
            self._deliver,
            clock=ActivityClock(self._activity),
            # The main output has no split that could have more data: only the time counts.
            silent=lambda: split_id is None or silent is None or silent(split_id),
            timestamps_only=self._timestamps_only,
        )

    def _deliver(self, split_id: str | None, batch: pa.RecordBatch, position: object, times: EventTimes | None) -> None:
        # Nothing can be read while the downstream processes the batch, so this time is not silence (WM-4).
        self._activity.pause()
        try:
            self._downstream.collect(split_id, batch, position, times)
        finally:
            self._activity.resume()


# -- The output of one split: assigns event times, sends the batch downstream, then makes watermarks (OUT-1, OUT-2).


Deliver: TypeAlias = Callable[[str | None, pa.RecordBatch, object, EventTimes | None], None]
"""A function that sends a batch downstream. Its arguments are split id, batch, position and event times."""


class SplitOutput:
    """Receives the batches of one split. Created by `SourceOutputs`; called on the task thread only.

    It is also a `WatermarkOutput`, for sources that know watermarks of their own; these are combined immediately.
    `split_id` is None for the main output of a reader. `clock` stops while the split cannot be read.
    """

    def __init__(
        self,
        split_id: str | None,
        strategy: WatermarkStrategy,
        combined: WatermarkMultiplexer,
        deliver: Deliver,
        *,
        clock: ActivityClock,
        silent: Callable[[], bool],
        timestamps_only: bool = False,
    ) -> None:
        self.split_id = split_id
        self.paused = False
        self._assign = strategy.timestamps
        self._generator = strategy.generator()
        self._combined = combined
        self._deliver = deliver
        self._clock = clock
        self._silent = silent
        self._timestamps_only = timestamps_only
        self._timer = None if strategy.idle_timeout is None else IdlenessTimer(strategy.idle_timeout)
        self._immediate: WatermarkOutput | None = None
        self._marked_idle = False
        self._released = False

    def open(self) -> WatermarkOutput:
        """Register this output with the combined watermark, once, and return the immediate output.

        Called when a split is added (OUT-4). The main output is registered at its first use, so it holds back nothing
        before (WX-5).
        """
        if self._immediate is None:
            self._combined.register(self.split_id)
            self._immediate = self._combined.immediate(self.split_id)
        return self._immediate

    def close(self) -> bool:
        """Unregister this output from the combined watermark for good (OUT-3); return whether it was registered."""
        self._released = True
        return self._combined.unregister(self.split_id)

    def pause(self) -> None:
        """Stop the idle timeout of the split (AL-6). Idempotent."""
        if not self.paused:
            self.paused = True
            self._clock.pause()

    def resume(self) -> None:
        """Continue the idle timeout of the split. Idempotent."""
        if self.paused:
            self.paused = False
            self._clock.resume()

    def collect(self, batch: pa.RecordBatch, position: object = None, times: EventTimes | None = None) -> None:
        """Send one record batch downstream, then pass it to the watermark generator (OUT-2).

        A batch without rows is sent for its position, and does not count as activity.

        Args:
            batch: The rows.
            position: The split's position after the batch; it is sent downstream unchanged.
            times: The event times that the source knows; the assigner may replace them (OUT-1).

        Raises:
            ContractError: The output was released, or the event times are in the wrong order.
            ConfigurationError: The event time column has an unsupported type.
        """
        self._check_open()
        if batch.num_rows == 0:
            self._deliver(self.split_id, batch, position, None)
            return
        assigned = self._assign(batch, times)
        if assigned is not None and assigned.earliest > assigned.latest:
            raise ContractError(
                f"the earliest event time of a batch, {assigned.earliest}, is after its latest, {assigned.latest}",
                split=self.split_id,
                position=position,
                rule="OUT-1",
                advice="give EventTimes(earliest, latest): the minimum and the maximum of the batch's event times",
            )
        # Active before the batch leaves: the combined watermark must wait for this split again (WM-4).
        self.mark_active()
        self._deliver(self.split_id, batch, position, assigned)
        if assigned is not None and not self._timestamps_only:
            self._generator.on_event(batch, assigned, self.open())

    def emit_watermark(self, us: int) -> None:
        """Emit a watermark of the source itself, in microseconds; makes the output active (WX-3)."""
        if self._may_signal():
            self._note_activity()
            self.open().emit_watermark(us)

    def mark_idle(self) -> None:
        """Mark the split as idle until its next record or watermark, or `mark_active`."""
        if self._may_signal():
            self._marked_idle = True
            self.open().mark_idle()

    def mark_active(self) -> None:
        """Mark the split as active again. No effect on an active output."""
        if self._may_signal():
            self._note_activity()
            output = self.open()
            # A new output is active, but the downstream may still be marked idle.
            if self._combined.idle or self._combined.idle_of(self.split_id):
                output.mark_active()

    def on_periodic_emit(self) -> None:
        """Decide whether the split is idle; if not, let the generator emit. `SourceOutputs` then combines outputs."""
        if self._immediate is None or self._timestamps_only:
            return
        output = self._combined.deferred(self.split_id)
        if self._timer is not None:
            was_idle = self._timer.idle
            if self._timer.probe(self._clock.read(), silent=self._silent(), blocked=not self._clock.running):
                output.mark_idle()
                return
            if was_idle and not self._marked_idle:
                output.mark_active()
        if not self._marked_idle:
            self._generator.on_periodic_emit(output)

    def _note_activity(self) -> None:
        self._marked_idle = False
        if self._timer is not None:
            self._timer.activity()

    def _may_signal(self) -> bool:
        self._check_open()
        return not self._timestamps_only

    def _check_open(self) -> None:
        if self._released:
            raise ContractError(
                f"the reader emitted for the split {self.split_id!r} after the split had finished",
                split=self.split_id,
                rule="OUT-3",
                advice="emit no records, watermarks or idleness for a split after it was reported finished",
            )
