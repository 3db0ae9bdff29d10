# SPDX-License-Identifier: Apache-2.0
"""The outputs of one reader: one per split and a main one, each with its own watermark generator (OUT-1…5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import pyarrow as pa

from forebay.clock import Clock
from forebay.errors import ContractError
from forebay.watermarks.event_time import MAX_WATERMARK, MIN_WATERMARK, EventTimes
from forebay.watermarks.generators import WatermarkOutput
from forebay.watermarks.idleness import ActivityClock
from forebay.watermarks.multiplexer import WatermarkMultiplexer
from forebay.watermarks.split_output import SplitOutput
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
