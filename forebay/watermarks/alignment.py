# SPDX-License-Identifier: Apache-2.0
"""Watermark alignment: how far a split or reader may run ahead of the slowest one in event time (AL-1…9)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from forebay.errors import ConfigurationError
from forebay.watermarks.event_time import MAX_WATERMARK, MIN_WATERMARK, micros


def max_allowed(watermarks: Iterable[int | None], max_drift: float) -> int:
    """Return the limit for the watermark of each member: the lowest watermark of an active one plus the drift (AL-2).

    The limit is computed on demand, so no announcement interval caps the speed of catching up (AL-8). It may fall when
    an idle member becomes active again.

    Args:
        watermarks: The watermark of each member, a reader or a split, in microseconds. `MAX_WATERMARK` stands for an
            idle or finished member, None or `MIN_WATERMARK` for one without a watermark; these limit no other (AL-1).
        max_drift: Seconds of event time; infinite disables alignment (AL-9).

    Returns:
        Microseconds; `MAX_WATERMARK` if no member is active.

    Raises:
        ConfigurationError: The drift is negative or not a number.
    """
    drift = check_drift(max_drift)
    active = (us for us in watermarks if us is not None and us not in (MIN_WATERMARK, MAX_WATERMARK))
    slowest = min(active, default=None)
    return MAX_WATERMARK if slowest is None or drift is None else min(MAX_WATERMARK, slowest + drift)


def splits_ahead(watermarks: Mapping[str, int], limit: int) -> set[str]:
    """Return the ids of the splits to pause: those whose watermark is above the limit, not equal to it (AL-5…7)."""
    return {split_id for split_id, watermark in watermarks.items() if watermark > limit}


def watermark_before(event_time: int, delay: int) -> int:
    """Return the watermark of a split with a record at `event_time`, if later records are at most `delay` older (WM-2).

    All values are in microseconds. In process, the record is the latest one read (`BoundedDisorder`); on Spark, it is
    the next unread one. The result is above `MIN_WATERMARK`, which means that there was no record.
    """
    return max(MIN_WATERMARK + 1, event_time - delay - 1)


def last_event_time(limit: int, delay: int) -> int:
    """Return the latest event time, in microseconds, that a split may read: its watermark then stays below the limit.

    An engine whose own watermark is the latest event time less D drops no record on time, if D is at least the drift
    plus the delay: docs/event-time.md has the proof.

    Args:
        limit: The result of `max_allowed`, in microseconds.
        delay: The delay of the watermarks, in microseconds.
    """
    return min(MAX_WATERMARK - 1, limit + delay)


def check_drift(max_drift: float) -> int | None:
    """Return a drift in seconds as microseconds; None if it is infinite, which disables alignment (AL-9).

    Raises:
        ConfigurationError: The drift is negative or not a number.
    """
    if isinstance(max_drift, float) and math.isinf(max_drift) and max_drift > 0:
        return None
    try:
        return micros(max_drift, "alignmentMaxDrift")
    except ConfigurationError as error:
        raise ConfigurationError(
            f"the alignment drift {max_drift!r} s is invalid: it must be 0 or more",
            option="alignmentMaxDrift",
            advice="give seconds of event time, 0 or more; omit the drift to disable alignment",
        ) from error
