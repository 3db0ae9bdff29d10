# SPDX-License-Identifier: Apache-2.0
"""The watermark strategy: how event time is read from a source, chosen by the host for a query (WM-3)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from forebay.errors import ConfigurationError
from forebay.options import DurationLike, to_seconds
from forebay.watermarks.event_time import ColumnTimestamps, TimestampAssigner, keep_source_times, micros
from forebay.watermarks.generators import BoundedDisorder, NoWatermarks, WatermarkGenerator
from forebay.watermarks.idleness import check_timeout


@dataclass(frozen=True)
class WatermarkStrategy:
    """Where event times come from, how watermarks follow them, when a split is idle, how far splits may drift apart.

    Made by one of the four builders, refined by the `with_…` methods, each of which returns a new strategy. These take
    seconds, a timedelta, or a text such as `"10s"`. Immutable;
    picklable if the generator factory and the assigner are. Assigning watermarks again behind the source would
    throw away what is known about each split: do it here or not at all (OUT-6).

    Args:
        generator: Makes a fresh generator; called once for each split, on the task thread.
        timestamps: The second step of OUT-1; by default what the source said holds.
        idle_timeout: Seconds of proven silence until a split is idle (WM-4); None = never.
        max_drift: Seconds of event time a split may be ahead of the slowest active one; None = no alignment.
    """

    generator: Callable[[], WatermarkGenerator]
    timestamps: TimestampAssigner = keep_source_times
    idle_timeout: float | None = None
    max_drift: float | None = None

    @classmethod
    def bounded_disorder(cls, delay: DurationLike) -> WatermarkStrategy:
        """Events of a split come at most `delay` of event time behind its latest one (WM-2).

        Raises:
            ConfigurationError: The delay is negative, not finite or no duration.
        """
        seconds = _seconds(delay, "watermarkDelay")
        micros(seconds, "watermarkDelay")
        return cls(_BoundedDisorderFactory(seconds))

    @classmethod
    def monotonous(cls) -> WatermarkStrategy:
        """Event times of a split never fall: bounded disorder with a delay of 0 (WM-2)."""
        return cls.bounded_disorder(0)

    @classmethod
    def for_generator(cls, generator: Callable[[], WatermarkGenerator]) -> WatermarkStrategy:
        """Watermarks of the author's own making.

        Args:
            generator: Makes a generator for one split; a class or a function of a module can be pickled.
        """
        return cls(generator)

    @classmethod
    def none(cls) -> WatermarkStrategy:
        """No watermarks at all."""
        return cls(NoWatermarks)

    def with_timestamp_assigner(self, assigner: TimestampAssigner) -> WatermarkStrategy:
        """Let `assigner` have the last word on the event times of every batch (OUT-1)."""
        return replace(self, timestamps=assigner)

    def with_event_time(self, column: str) -> WatermarkStrategy:
        """Take the event times from a column: a timestamp, or int64 microseconds since 1970-01-01 UTC."""
        return self.with_timestamp_assigner(ColumnTimestamps(column))

    def with_idleness(self, timeout: DurationLike) -> WatermarkStrategy:
        """Call a split idle after a `timeout` of proven silence (WM-4).

        Raises:
            ConfigurationError: The timeout is 0, negative, not finite or no duration.
        """
        return replace(self, idle_timeout=check_timeout(_seconds(timeout, "idleTimeout")))

    def with_alignment(self, max_drift: DurationLike) -> WatermarkStrategy:
        """Hold splits back that are more than `max_drift` of event time ahead of the slowest (AL-2, AL-6).

        There is no group and no interval: the limit is found where it is needed, without an announcement.

        Args:
            max_drift: A duration, 0 or more; infinite seconds switch alignment off (AL-9).

        Raises:
            ConfigurationError: The drift is negative or no duration.
        """
        seconds = _seconds(max_drift, "alignmentMaxDrift")
        return replace(self, max_drift=None if check_drift(seconds) is None else seconds)


def check_drift(max_drift: float) -> int | None:
    """Return a drift given in seconds as microseconds, None if it is infinite: no alignment (AL-9).

    Raises:
        ConfigurationError: It is negative or not a number.
    """
    if isinstance(max_drift, float) and math.isinf(max_drift) and max_drift > 0:
        return None
    try:
        return micros(max_drift, "alignmentMaxDrift")
    except ConfigurationError as error:
        raise ConfigurationError(
            f"an alignment drift of {max_drift!r} s is none: it must be 0 or more",
            option="alignmentMaxDrift",
            advice="give seconds of event time, 0 or more; leave the drift away to switch alignment off",
        ) from error


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
    """A factory that pickles and compares, as a lambda would not."""

    delay: float

    def __call__(self) -> WatermarkGenerator:
        return BoundedDisorder(self.delay)
