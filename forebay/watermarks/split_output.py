# SPDX-License-Identifier: Apache-2.0
"""The output of one split: assigns event times, sends the batch downstream, then makes watermarks (OUT-1, OUT-2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

from forebay.errors import ContractError
from forebay.watermarks.event_time import EventTimes
from forebay.watermarks.generators import WatermarkOutput
from forebay.watermarks.idleness import ActivityClock, IdlenessTimer
from forebay.watermarks.multiplexer import WatermarkMultiplexer
from forebay.watermarks.strategy import WatermarkStrategy

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
