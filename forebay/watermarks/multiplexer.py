# SPDX-License-Identifier: Apache-2.0
"""One watermark out of many: the minimum over the active outputs, never backwards (WX-1…4).

Used inside a reader over its splits, and by a host over its readers.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable

from forebay.errors import ContractError
from forebay.watermarks.event_time import MAX_WATERMARK, MIN_WATERMARK
from forebay.watermarks.generators import WatermarkOutput


class WatermarkMultiplexer:
    """Combines the watermarks and the idleness of many outputs into those of one.

    - The combined watermark is the minimum over active outputs, forwarded only when greater than the last (WX-1).
    - An *immediate* output combines on each call, a *deferred* one at `on_periodic_emit`; an id has both, over the
      same state (WX-2).
    - All idle: the maximum over the outputs is flushed, whatever the order in which they fell silent, then the
      downstream is marked idle, once. Before anything follows it is marked active, once (WX-3).
    - No outputs: nothing is emitted, and the downstream is not idle (WX-4).
    - An output at `MAX_WATERMARK` is finished. It leaves the minimum, and `MAX_WATERMARK` goes downstream only when all
      outputs are finished: one that is merely idle may come back, and must not find everything late.

    Args:
        downstream: Where the combined watermark goes. It sees `mark_active` before a watermark that ends idleness.
    """

    def __init__(self, downstream: WatermarkOutput) -> None:
        self._downstream = downstream
        self._outputs: dict[Hashable, _State] = {}
        self._combined = MIN_WATERMARK
        self._idle = False

    @property
    def watermark(self) -> int:
        """The last combined watermark; `MIN_WATERMARK` before the first."""
        return self._combined

    @property
    def idle(self) -> bool:
        """Whether the downstream was last told idle."""
        return self._idle

    def register(self, output_id: Hashable) -> None:
        """Add an output, active and at `MIN_WATERMARK`: it holds the minimum until it emits (OUT-4).

        Emits nothing by itself; the next update does.

        Raises:
            ContractError: There is an output of that id (WX-4).
        """
        if output_id in self._outputs:
            raise ContractError(
                f"there is already an output for {output_id!r}",
                split=str(output_id),
                rule="WX-4",
                advice="give every split an id of its own, and release the output of a split before it is added again",
            )
        self._outputs[output_id] = _State()

    def unregister(self, output_id: Hashable) -> bool:
        """Drop an output. Emits nothing by itself, not even if it was the lowest; the next update does (WX-4).

        Returns:
            Whether there was one.
        """
        return self._outputs.pop(output_id, None) is not None

    def immediate(self, output_id: Hashable) -> WatermarkOutput:
        """Return the output of a registered id that combines on each call.

        Raises:
            ContractError: The id is not registered.
        """
        return _Immediate(self, output_id, self._state(output_id))

    def deferred(self, output_id: Hashable) -> WatermarkOutput:
        """Return the output of a registered id that is combined at the next update.

        Raises:
            ContractError: The id is not registered.
        """
        return _Deferred(output_id, self._state(output_id))

    def watermark_of(self, output_id: Hashable) -> int:
        """Return the output's own watermark, which never goes back either."""
        return self._state(output_id).watermark

    def idle_of(self, output_id: Hashable) -> bool:
        """Return whether the output itself is idle."""
        return self._state(output_id).idle

    def any_active(self) -> bool:
        """Return whether an output is neither idle nor finished: without one, nobody should wait for this watermark."""
        return any(not state.idle and state.watermark != MAX_WATERMARK for state in self._outputs.values())

    def on_periodic_emit(self) -> None:
        """Combine what deferred outputs were told. Called on the periodic tick, after all of them had theirs."""
        self.update()

    def finish(self) -> None:
        """The bounded input has ended: emit `MAX_WATERMARK`, once (WM-1)."""
        self._advance(MAX_WATERMARK)

    def update(self) -> None:
        """Combine all outputs and tell the downstream what changed. Nothing follows `MAX_WATERMARK`."""
        states = self._outputs.values()
        if not states or self._combined == MAX_WATERMARK:
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
        if us > self._combined:
            self._set_idle(False)
            self._combined = us
            self._downstream.emit_watermark(us)

    def _set_idle(self, idle: bool) -> None:
        if idle != self._idle:
            self._idle = idle
            if idle:
                self._downstream.mark_idle()
            else:
                self._downstream.mark_active()

    def _state(self, output_id: Hashable) -> _State:
        state = self._outputs.get(output_id)
        if state is None:
            raise ContractError(
                f"there is no output for {output_id!r}",
                split=str(output_id),
                rule="WX-4",
                advice="register the output when the split is added; a finished split has none any more",
            )
        return state


class _State:
    """What one output was told last."""

    __slots__ = ("idle", "watermark")

    def __init__(self) -> None:
        self.watermark = MIN_WATERMARK
        self.idle = False

    def set_watermark(self, us: int) -> bool:
        """Take a watermark if it is higher than the last; active in any case (WX-3). Returns whether it was higher."""
        self.idle = False
        advanced = us > self.watermark
        if advanced:
            self.watermark = us
        return advanced


class _Deferred:
    """Changes the state only."""

    def __init__(self, output_id: Hashable, state: _State) -> None:
        self._id = output_id
        self._state = state

    def emit_watermark(self, us: int) -> None:
        self._state.set_watermark(_checked(us, self._id))

    def mark_idle(self) -> None:
        self._state.idle = True

    def mark_active(self) -> None:
        self._state.idle = False


class _Immediate:
    """Changes the state, then combines."""

    def __init__(self, multiplexer: WatermarkMultiplexer, output_id: Hashable, state: _State) -> None:
        self._multiplexer = multiplexer
        self._id = output_id
        self._state = state

    def emit_watermark(self, us: int) -> None:
        us = _checked(us, self._id)
        advanced = self._state.set_watermark(us)
        # A lower watermark cannot move the minimum up; combining anyway would hurry deferred watermarks (WX-2).
        if self._multiplexer.idle or (advanced and us > self._multiplexer.watermark):
            self._multiplexer.update()

    def mark_idle(self) -> None:
        self._state.idle = True
        self._multiplexer.update()

    def mark_active(self) -> None:
        self._state.idle = False
        self._multiplexer.update()


def _checked(us: int, output_id: Hashable) -> int:
    try:
        exact = operator.index(us)
    except TypeError:
        exact = MAX_WATERMARK + 1
    if isinstance(us, bool) or not MIN_WATERMARK <= exact <= MAX_WATERMARK:
        raise ContractError(
            f"a generator emitted the watermark {us!r}",
            split=str(output_id),
            rule="WM-1",
            advice="emit an int: microseconds since 1970-01-01 UTC, within 64 bits",
        )
    return exact
