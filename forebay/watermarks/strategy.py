# SPDX-License-Identifier: Apache-2.0
"""The watermark strategy of a query: event times, generator, idleness and alignment (WM-3)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.options import DurationLike, to_seconds
from forebay.watermarks.event_time import (
    MIN_WATERMARK,
    ColumnTimestamps,
    EventTimes,
    TimestampAssigner,
    check_drift,
    keep_source_times,
    micros,
    watermark_before,
)

# -- Watermark generators: they compute the watermarks of a split from the event times of its batches.
#
# A watermark T asserts that no later record of the split has an event time ≤ T (WM-1).


class WatermarkOutput(Protocol):
    """Receives the watermarks and the idleness of a split, or of a reader. Called on the task thread only."""

    def emit_watermark(self, us: int) -> None:
        """Assert that no record with an event time ≤ `us` follows. Makes an idle output active (WX-3)."""

    def mark_idle(self) -> None:
        """Exclude this output from the combined watermark until `mark_active` or `emit_watermark` is called."""

    def mark_active(self) -> None:
        """Include this output in the combined watermark again, after `mark_idle`."""


class WatermarkGenerator(Protocol):
    """Makes the watermarks of one split, from the moment the split is added (OUT-4).

    Authors pass one to `WatermarkStrategy.for_generator`. Called on the task thread; it needs no lock.
    """

    def on_event(self, batch: pa.RecordBatch, times: EventTimes, output: WatermarkOutput) -> None:
        """Process a batch that has just been sent downstream (OUT-2).

        Watermarks emitted here are combined immediately (WX-2). Not called for a batch without rows or event times.

        Args:
            batch: The batch, for generators that read marker rows. Do not keep it.
            times: Its earliest and latest event time, in microseconds.
            output: The output of the split.
        """

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit on the periodic tick, every 200 ms by default. Not called while the split is idle.

        Args:
            output: The output of the split; it is combined with the others after the tick of all splits (WX-2).
        """


class BoundedDisorder:
    """Makes watermarks for events that are at most `delay` older than the latest one; with 0, they must ascend (WM-2).

    The watermark is latest − delay − 1 µs, since the next event may be exactly `delay` older. It is emitted on the
    periodic tick only, so disorder inside a batch has no effect.

    Args:
        delay: The maximum disorder in seconds of event time, 0 or more.

    Raises:
        ConfigurationError: The delay is negative or not finite.
    """

    def __init__(self, delay: float) -> None:
        self._delay = micros(delay, "watermarkDelay")
        self._latest: int | None = None

    def on_event(self, batch: pa.RecordBatch, times: EventTimes, output: WatermarkOutput) -> None:
        """Record the latest event time; a late batch never lowers it (WM-2)."""
        if self._latest is None or times.latest > self._latest:
            self._latest = times.latest

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit latest event time − delay − 1 µs; `MIN_WATERMARK` before the first event (WM-2)."""
        known = MIN_WATERMARK if self._latest is None else watermark_before(self._latest, self._delay)
        output.emit_watermark(known)


class NoWatermarks:
    """A generator that emits no watermarks, for readers that need no event time (WM-3)."""

    def on_event(self, batch: pa.RecordBatch, times: EventTimes, output: WatermarkOutput) -> None:
        """Ignore the batch."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Ignore the tick."""


# -- Idleness: decides when a silent split stops holding back the watermark.
#
# A wall-clock timeout alone would mark a starved split as idle, and the watermark would pass records that are already
# queued. So the host must prove that a split is silent for the whole timeout. The timeout counts only the time in
# which
# reading is possible (WM-4).


class ActivityClock:
    """A clock that counts the seconds in which input can be read: it stops while reading is blocked.

    Clocks are layered: under backpressure, the clock of a reader stops, and with it the clocks of its splits. The clock
    of a split also stops while the split is paused. Pauses nest: each needs its own `resume`.
    """

    def __init__(self, base: Callable[[], float] | ActivityClock) -> None:
        self._parent = base if isinstance(base, ActivityClock) else None
        self._base = base.read if isinstance(base, ActivityClock) else base
        self._hidden = 0.0
        self._stopped_at = 0.0
        self._pauses = 0

    @property
    def running(self) -> bool:
        """Whether neither this clock nor its parent is paused."""
        return self._pauses == 0 and (self._parent is None or self._parent.running)

    def read(self) -> float:
        """Return the seconds of the base clock, excluding paused time."""
        return (self._stopped_at if self._pauses else self._base()) - self._hidden

    def pause(self) -> None:
        """Stop counting until `resume` has been called as often as `pause`."""
        if self._pauses == 0:
            self._stopped_at = self._base()
        self._pauses += 1

    def resume(self) -> None:
        """End one `pause`; the clock runs again when all have ended.

        Raises:
            ValueError: The clock is not paused.
        """
        if self._pauses == 0:
            raise ValueError("the clock is not paused")
        self._pauses -= 1
        if self._pauses == 0:
            self._hidden += self._base() - self._stopped_at


class IdlenessTimer:
    """Decides at each probe whether one output is idle: silent for more than `timeout` seconds (WM-4).

    Raises:
        ConfigurationError: The timeout is 0, negative or not finite.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = check_timeout(timeout)
        self._active = False
        self._silent_since: float | None = None
        self.idle = False
        """Whether the output was idle at the last probe; False from the moment of any activity."""

    def activity(self) -> None:
        """Record activity, such as emitted rows: the output is active, and the timeout restarts."""
        self._active = True
        self.idle = False

    def probe(self, now: float, *, silent: bool, blocked: bool = False) -> bool:
        """Return whether the output is idle. The first silent probe starts the timeout.

        Args:
            now: The time in seconds, such as that of the output's `ActivityClock`.
            silent: Whether the host has proof that the output is silent; without proof, the output is active.
            blocked: Whether backpressure or a pause blocks reading; if so, the last decision is kept (AL-6).
        """
        if self._active or not silent:
            self._active = self.idle = False
            self._silent_since = None
        elif not self.idle and not blocked:
            if self._silent_since is None:
                self._silent_since = now
            self.idle = now - self._silent_since > self._timeout
        return self.idle


def check_timeout(timeout: float) -> float:
    """Check and return an idle timeout, in seconds.

    Raises:
        ConfigurationError: The timeout is 0, negative, infinite or not a number.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
        raise ConfigurationError(
            f"the idle timeout {timeout!r} s is invalid: it must be finite and more than 0",
            option="idleTimeout",
            advice="give seconds, more than 0; omit the timeout to never mark a split as idle",
        )
    return float(timeout)


@dataclass(frozen=True)
class WatermarkStrategy:
    """Sets where event times come from, how watermarks are made, when a split is idle, how far splits may drift apart.

    Create one with a builder, and refine it with the `with_…` methods, which return a new strategy. Durations are
    seconds, a timedelta, or a text such as `"10s"`. Immutable; picklable if the generator factory and the assigner are.
    Do not assign watermarks again downstream of the source: that loses the state of each split (OUT-6).

    Args:
        generator: Returns a new watermark generator; called once for each split, on the task thread.
        timestamps: Returns the final event times of a batch (step 2 of OUT-1); by default, those of the source.
        idle_timeout: Seconds of proven silence until a split is idle (WM-4); None = a split is never idle.
        max_drift: Seconds of event time that a split may be ahead of the slowest active one; None = no alignment.
    """

    generator: Callable[[], WatermarkGenerator]
    timestamps: TimestampAssigner = keep_source_times
    idle_timeout: float | None = None
    max_drift: float | None = None

    @classmethod
    def bounded_disorder(cls, delay: DurationLike) -> WatermarkStrategy:
        """Return a strategy for events that are at most `delay` older than the latest one of their split (WM-2).

        Raises:
            ConfigurationError: The delay is negative, not finite or not a duration.
        """
        seconds = _seconds(delay, "watermarkDelay")
        micros(seconds, "watermarkDelay")
        return cls(_BoundedDisorderFactory(seconds))

    @classmethod
    def monotonous(cls) -> WatermarkStrategy:
        """Return a strategy for ascending event times in each split: bounded disorder with a delay of 0 (WM-2)."""
        return cls.bounded_disorder(0)

    @classmethod
    def for_generator(cls, generator: Callable[[], WatermarkGenerator]) -> WatermarkStrategy:
        """Return a strategy with custom generators: `generator` is called once for each split, and returns a new one.

        To be picklable, `generator` must be a class or function of a module.
        """
        return cls(generator)

    @classmethod
    def none(cls) -> WatermarkStrategy:
        """Return a strategy that makes no watermarks."""
        return cls(NoWatermarks)

    def with_timestamp_assigner(self, assigner: TimestampAssigner) -> WatermarkStrategy:
        """Return this strategy with an `assigner` that replaces the event times of every batch (OUT-1)."""
        return replace(self, timestamps=assigner)

    def with_event_time(self, column: str) -> WatermarkStrategy:
        """Return this strategy with event times from a column: timestamps, or int64 microseconds since 1970 UTC."""
        return self.with_timestamp_assigner(ColumnTimestamps(column))

    def with_idleness(self, timeout: DurationLike) -> WatermarkStrategy:
        """Return this strategy with idleness: a split is idle after a `timeout` of proven silence (WM-4).

        Raises:
            ConfigurationError: The timeout is 0, negative, not finite or not a duration.
        """
        return replace(self, idle_timeout=check_timeout(_seconds(timeout, "idleTimeout")))

    def with_alignment(self, max_drift: DurationLike) -> WatermarkStrategy:
        """Return this strategy with alignment: a split more than `max_drift` ahead of the slowest pauses (AL-2, AL-6).

        Args:
            max_drift: A duration of event time, 0 or more; infinite seconds disable alignment (AL-9).

        Raises:
            ConfigurationError: The drift is negative or not a duration.
        """
        seconds = _seconds(max_drift, "alignmentMaxDrift")
        return replace(self, max_drift=None if check_drift(seconds) is None else seconds)


def _seconds(value: DurationLike, option: str) -> float:
    try:
        return to_seconds(value)
    except ValueError as error:
        raise ConfigurationError(
            f"{value!r} is not a duration: {error}",
            option=option,
            advice="give seconds, a timedelta, or a text with a unit such as '10s'",
        ) from error


@dataclass(frozen=True)
class _BoundedDisorderFactory:
    """A factory of `BoundedDisorder` generators that can be pickled and compared, unlike a lambda."""

    delay: float

    def __call__(self) -> WatermarkGenerator:
        return BoundedDisorder(self.delay)
