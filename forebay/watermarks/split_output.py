# SPDX-License-Identifier: Apache-2.0
"""The output of one split: assigns event times, passes the batch on, then makes watermarks (OUT-1, OUT-2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

from forebay.errors import ContractError
from forebay.watermarks.event_time import EventTimes
from forebay.watermarks.generators import WatermarkOutput
from forebay.watermarks.idleness import ActivityClock, Evidence, IdlenessTimer
from forebay.watermarks.multiplexer import WatermarkMultiplexer
from forebay.watermarks.strategy import WatermarkStrategy

Deliver: TypeAlias = Callable[[str | None, pa.RecordBatch, object, EventTimes | None], None]
"""Takes a split id, a batch, a position and event times downstream."""


class SplitOutput:
    """Where a reader puts the batches of one split. Made by `SourceOutputs`; called on the task thread only.

    It is a `WatermarkOutput` too, for sources that know watermarks of their own: what they say is combined at once.

    Args:
        split_id: The split; None for the main output of a reader.
        strategy: How event time is treated.
        combined: Combines this output with the others of the reader.
        deliver: Takes a batch downstream.
        clock: Stands still while this split cannot be read.
        evidence: Says what is known about the silence of the split.
        timestamps_only: Assign event times and do nothing else (OUT-5).
    """

    def __init__(
        self,
        split_id: str | None,
        strategy: WatermarkStrategy,
        combined: WatermarkMultiplexer,
        deliver: Deliver,
        *,
        clock: ActivityClock,
        evidence: Callable[[], Evidence],
        timestamps_only: bool = False,
    ) -> None:
        self.split_id = split_id
        self._assign = strategy.timestamps
        self._generator = strategy.generator()
        self._combined = combined
        self._deliver = deliver
        self._clock = clock
        self._evidence = evidence
        self._timestamps_only = timestamps_only
        self._timer = None if strategy.idle_timeout is None else IdlenessTimer(strategy.idle_timeout)
        self._now: WatermarkOutput | None = None
        self._later: WatermarkOutput | None = None
        self._said_idle = False
        self._paused = False
        self._released = False

    @property
    def paused(self) -> bool:
        """Whether the split is paused."""
        return self._paused

    def open(self) -> tuple[WatermarkOutput, WatermarkOutput]:
        """Take part in the combined watermark; once is enough.

        Called when a split is added (OUT-4); the main output takes part from its first use, being idle before (WX-5).

        Returns:
            The immediate and the deferred output.
        """
        if self._now is None or self._later is None:
            self._combined.register(self.split_id)
            self._now = self._combined.immediate(self.split_id)
            self._later = self._combined.deferred(self.split_id)
        return self._now, self._later

    def close(self) -> bool:
        """Leave the combined watermark for good; nothing can be emitted afterwards (OUT-3).

        Returns:
            Whether it took part.
        """
        self._released = True
        return self._combined.unregister(self.split_id)

    def pause(self) -> None:
        """The split is paused: it is not judged idle meanwhile (AL-6). Repeating has no effect."""
        if not self._paused:
            self._paused = True
            self._clock.pause()

    def resume(self) -> None:
        """The split is read again. No effect if it is not paused."""
        if self._paused:
            self._paused = False
            self._clock.resume()

    def collect(self, batch: pa.RecordBatch, position: object = None, times: EventTimes | None = None) -> None:
        """Send one record batch downstream, then show it to the watermark generator (OUT-2).

        A batch without rows goes downstream for its position, and is no activity.

        Args:
            batch: The rows.
            position: The split's progress once the batch counts as delivered; not looked at.
            times: The event times the source itself knows for these rows; the assigner has the last word (OUT-1).

        Raises:
            ContractError: The output was released; or the event times are in the wrong order.
            ConfigurationError: The event time column does not fit.
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
                advice="give EventTimes(earliest, latest), the minimum and the maximum of the batch",
            )
        if self._timestamps_only:
            self._deliver(self.split_id, batch, position, assigned)
            return
        # Active before the batch leaves: whoever waits for watermarks must know that this split counts again (WM-4).
        self.mark_active()
        self._deliver(self.split_id, batch, position, assigned)
        if assigned is not None:
            self._generator.on_event(batch, assigned, self.open()[0])

    def emit_watermark(self, us: int) -> None:
        """Emit a watermark that the source itself knows, in microseconds; the output is active again (WX-3)."""
        if self._may_signal():
            self._note_activity()
            self.open()[0].emit_watermark(us)

    def mark_idle(self) -> None:
        """The source itself knows this split to be silent; lasts until a record, a watermark or `mark_active`."""
        if self._may_signal():
            self._said_idle = True
            self.open()[0].mark_idle()

    def mark_active(self) -> None:
        """Take idleness back. No effect on an active output."""
        if self._may_signal():
            self._note_activity()
            now, _ = self.open()
            # A new output is active itself, but the downstream may still think that everything is idle.
            if self._combined.idle or self._combined.idle_of(self.split_id):
                now.mark_active()

    def on_periodic_emit(self) -> None:
        """Judge idleness, and let the generator emit unless idle. Called by `SourceOutputs`, which then combines."""
        if self._later is None or self._timestamps_only:
            return
        if self._timer is not None:
            was_idle = self._timer.idle
            if self._timer.probe(self._clock.read(), self._evidence(), blocked=not self._clock.running):
                self._later.mark_idle()
                return
            if was_idle and not self._said_idle:
                self._later.mark_active()
        if not self._said_idle:
            self._generator.on_periodic_emit(self._later)

    def _note_activity(self) -> None:
        self._said_idle = False
        if self._timer is not None:
            self._timer.activity()

    def _may_signal(self) -> bool:
        self._check_open()
        return not self._timestamps_only

    def _check_open(self) -> None:
        if self._released:
            raise ContractError(
                f"something was emitted for the split {self.split_id!r} after it had finished",
                split=self.split_id,
                rule="OUT-3",
                advice="emit nothing for a split after it was reported finished",
            )
