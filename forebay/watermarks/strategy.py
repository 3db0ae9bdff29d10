# SPDX-License-Identifier: Apache-2.0
"""The watermark strategy of a query: event times, generator, idleness and alignment (WM-3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from forebay.errors import ConfigurationError
from forebay.options import DurationLike, to_seconds
from forebay.watermarks.alignment import check_drift
from forebay.watermarks.event_time import ColumnTimestamps, TimestampAssigner, keep_source_times, micros
from forebay.watermarks.generators import BoundedDisorder, NoWatermarks, WatermarkGenerator
from forebay.watermarks.idleness import check_timeout


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
