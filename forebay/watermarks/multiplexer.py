# SPDX-License-Identifier: Apache-2.0
"""Combines many watermarks into one: the minimum of the active outputs, which never falls (WX-1…4).

Used inside a reader over its splits, and by a host over its readers.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable

from forebay.errors import ContractError
from forebay.watermarks.event_time import MAX_WATERMARK, MIN_WATERMARK
from forebay.watermarks.generators import WatermarkOutput


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
