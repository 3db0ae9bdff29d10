# SPDX-License-Identifier: Apache-2.0
"""The outputs of one reader: one per split and a main one, each with its own watermark generator (OUT-1…5)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from forebay.clock import Clock
from forebay.errors import ContractError
from forebay.watermarks.event_time import MAX_WATERMARK, MIN_WATERMARK, EventTimes
from forebay.watermarks.strategy import ActivityClock, IdlenessTimer, WatermarkOutput, WatermarkStrategy

# -- Combines many watermarks into one: the minimum of the active outputs, which never falls (WX-1…4).
#
# Used over the splits of a reader.


class WatermarkMultiplexer:
    """Combines the watermarks and the idleness of many outputs.

    - The combined watermark is the minimum of the active outputs, emitted only when it rises (WX-1).
    - An *immediate* output is combined on each call, a *deferred* one by `update`. Each id has both; they share one
      state (WX-2).
    - If all outputs are idle, the highest of their watermarks is emitted, then the downstream is marked idle, once. It
      is marked active, once, before anything else follows (WX-3).
    - Without outputs, nothing is emitted, and the downstream is not idle (WX-4).
    - An output at `MAX_WATERMARK` is finished and leaves the minimum. `MAX_WATERMARK` is emitted only when all outputs
      are finished: records of an idle output that becomes active again must not be late.

    Args:
        downstream: Receives the combined watermark; None to only read `watermark` and `idle`.
    """

    def __init__(self, downstream: WatermarkOutput | None = None) -> None:
        self._downstream = downstream
        self._outputs: dict[Hashable, _State] = {}
        self.watermark = MIN_WATERMARK
        """The combined watermark, in microseconds; `MIN_WATERMARK` before the first one."""
        self.idle = False
        """Whether the downstream is marked idle."""

    def register(self, output_id: Hashable) -> None:
        """Add an output, active and at `MIN_WATERMARK`: it holds back the combined watermark until it emits (OUT-4).

        The call itself emits nothing; the next `update` does.

        Raises:
            ContractError: The id is registered already (WX-4).
        """
        if output_id in self._outputs:
            raise ContractError(
                f"an output for the split {output_id!r} exists already",
                split=str(output_id),
                rule="WX-4",
                advice="give every split a unique id, and release the output of a split before you add the split again",
            )
        self._outputs[output_id] = _State()

    def unregister(self, output_id: Hashable) -> bool:
        """Remove an output; return whether it existed. The call emits nothing; the next `update` does (WX-4)."""
        return self._outputs.pop(output_id, None) is not None

    def immediate(self, output_id: Hashable) -> WatermarkOutput:
        """Return the immediate output of a registered id: each call of it updates the combined watermark.

        Raises:
            ContractError: The id is not registered.
        """
        return _Output(output_id, self._state(output_id), self)

    def deferred(self, output_id: Hashable) -> WatermarkOutput:
        """Return the deferred output of a registered id: `update` combines it with the others.

        Raises:
            ContractError: The id is not registered.
        """
        return _Output(output_id, self._state(output_id), None)

    def watermark_of(self, output_id: Hashable) -> int:
        """Return the own watermark of an output, in microseconds; it never falls."""
        return self._state(output_id).watermark

    def idle_of(self, output_id: Hashable) -> bool:
        """Return whether an output is idle."""
        return self._state(output_id).idle

    def any_active(self) -> bool:
        """Return whether at least one output is neither idle nor finished."""
        return any(not state.idle and state.watermark != MAX_WATERMARK for state in self._outputs.values())

    def finish(self) -> None:
        """Emit `MAX_WATERMARK` once. Called at the end of a bounded input (WM-1)."""
        self._advance(MAX_WATERMARK)

    def update(self) -> None:
        """Combine all outputs; emit a changed watermark or idleness. Called on the periodic tick, after all outputs."""
        states = self._outputs.values()
        if not states or self.watermark == MAX_WATERMARK:
            return
        unfinished = [state for state in states if state.watermark != MAX_WATERMARK]
        active = [state.watermark for state in unfinished if not state.idle]
        if active:
            self._set_idle(False)
            self._advance(min(active))
        elif unfinished:
            self._advance(max(state.watermark for state in unfinished))
            self._set_idle(True)
        else:
            self._advance(MAX_WATERMARK)

    def _advance(self, us: int) -> None:
        if us > self.watermark:
            self._set_idle(False)
            self.watermark = us
            if self._downstream is not None:
                self._downstream.emit_watermark(us)

    def _set_idle(self, idle: bool) -> None:
        if idle != self.idle:
            self.idle = idle
            if self._downstream is not None:
                (self._downstream.mark_idle if idle else self._downstream.mark_active)()

    def _state(self, output_id: Hashable) -> _State:
        state = self._outputs.get(output_id)
        if state is None:
            raise ContractError(
                f"there is no output for the split {output_id!r}",
                split=str(output_id),
                rule="WX-4",
                advice="register the output when the split is added; a finished split has no output",
            )
        return state


class _State:
    """The own watermark and idleness of one output."""

    __slots__ = ("idle", "watermark")

    def __init__(self) -> None:
        self.watermark = MIN_WATERMARK
        self.idle = False


class _Output:
    """Sets the watermark and idleness of one output; then updates the multiplexer, unless the output is deferred."""

    def __init__(self, output_id: Hashable, state: _State, update: WatermarkMultiplexer | None) -> None:
        self._id = output_id
        self._state = state
        self._update = update

    def emit_watermark(self, us: int) -> None:
        us = _checked(us, self._id)
        self._state.idle = False
        advanced = us > self._state.watermark
        if advanced:
            self._state.watermark = us
        # A lower watermark cannot raise the minimum, and an update would combine deferred watermarks early (WX-2).
        if self._update is not None and (self._update.idle or (advanced and us > self._update.watermark)):
            self._update.update()

    def mark_idle(self) -> None:
        self._set_idle(True)

    def mark_active(self) -> None:
        self._set_idle(False)

    def _set_idle(self, idle: bool) -> None:
        self._state.idle = idle
        if self._update is not None:
            self._update.update()


def _checked(us: int, output_id: Hashable) -> int:
    try:
        exact = operator.index(us)
    except TypeError:
        exact = MAX_WATERMARK + 1
    if isinstance(us, bool) or not MIN_WATERMARK <= exact <= MAX_WATERMARK:
        raise ContractError(
            f"the watermark {us!r} was emitted, which is not a 64-bit int",
            split=str(output_id),
            rule="WM-1",
            advice="emit an int: microseconds since 1970-01-01 UTC, within 64 bits",
        )
    return exact


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

    def finish(self) -> None:
        """Emit `MAX_WATERMARK` once. Called at the end of a bounded input (WM-1)."""
        self._combined.finish()

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
