# SPDX-License-Identifier: Apache-2.0
"""The report of alignment, for progress reports and offsets: limit, drift, and the split that all others wait for.

```
{"watermark": "2026-01-31T11:59:09.999999Z", "limit": "2026-01-31T12:00:09.999999Z", "drift": 59.2,
 "maxDrift": 60.0, "delay": 0.0, "idleTimeout": 30.0, "held": 3, "idle": 1, "late": 0,
 "slowest": {"split": "eu", "watermark": "2026-01-31T11:59:09.999999Z", "why": "unread"},
 "splits": [{"split": "us", "watermark": "2026-01-31T12:00:09.199999Z", "ahead": 59.2, "held": true}, …]}
```
Event times are texts in UTC, as in Spark's own progress; durations are in seconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from forebay.framework.microbatch.event_time.alignment import StreamAlignment
from forebay.framework.microbatch.event_time.ordered_alignment import OrderedAlignment
from forebay.framework.microbatch.event_time.split_time import SplitTime, slowest_of
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split import Json

_SHOWN: Final = 16
"""Maximum number of splits in a report: half of them are the slowest, half of them the fastest."""

_LONGEST: Final = 120
"""Maximum characters of a split id or a position in a report."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = "0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z"


def event_time_report(alignment: StreamAlignment | OrderedAlignment, options: HostOptions) -> dict[str, Json]:
    """Return the state of alignment when the source was last polled, as JSON values of about two kilobytes.

    Called on the planning thread.

    Args:
        alignment: The alignment of the query.
        options: The host's options, from which the alignment was made.
    """
    times: Mapping[str, SplitTime] = {}
    active: Mapping[str, SplitTime] = {}
    if not isinstance(alignment, OrderedAlignment):  # splits that are read in order have no watermarks
        times, active = alignment.times, alignment.active
    slowest = slowest_of(active)
    report: dict[str, Json] = {
        "held": sum(time.held for time in times.values()),
        "idle": sum(time.idle for time in times.values()),
        "late": alignment.late,
        "delay": options.watermark_delay.total_seconds(),
    }
    if options.alignment_max_drift is not None:
        report["maxDrift"] = options.alignment_max_drift.total_seconds()
    if options.idle_timeout is not None:
        report["idleTimeout"] = options.idle_timeout.total_seconds()
    if alignment.limit is not None:
        report["limit"] = utc_text(alignment.limit)
    if slowest is None:
        return report
    lowest = active[slowest].watermark
    assert lowest is not None  # noqa: S101 - `slowest_of` skips the unknown ones
    highest = max(time.watermark for time in active.values() if time.watermark is not None)
    why = "caught up" if active[slowest].caught_up else "unread"
    return {
        **report,
        "watermark": utc_text(lowest),
        "drift": _seconds(highest - lowest),
        "slowest": {"split": shortened(slowest), "watermark": utc_text(lowest), "why": why},
        "splits": [_detail(split_id, times[split_id], lowest) for split_id in _shown(times)],
    }


def utc_text(micros: int) -> str:
    """Return an event time (µs since 1970) as ISO 8601 in UTC; times outside the years 1 to 9999 are clamped."""
    try:
        at = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return _FIRST if micros < 0 else _LAST
    return at.strftime(f"{at.year:04}-%m-%dT%H:%M:%S.%fZ")


def _shown(times: Mapping[str, SplitTime]) -> list[str]:
    """Return the ids of the splits to report: the slowest and the fastest ones, sorted by watermark.

    Active splits count as slower than idle ones.
    """
    known = [(time.idle, time.watermark, split_id) for split_id, time in times.items() if time.watermark is not None]
    if len(known) > _SHOWN:
        slow = heapq.nsmallest(_SHOWN // 2, known)
        fast = heapq.nlargest(_SHOWN // 2, known, key=lambda one: one[1:])
        known = list({*slow, *fast})
    return [split_id for _, _, split_id in sorted(known, key=lambda one: one[1:])]


def _detail(split_id: str, time: SplitTime, lowest: int) -> dict[str, Json]:
    assert time.watermark is not None  # noqa: S101 - only known ones are shown
    detail: dict[str, Json] = {
        "split": shortened(split_id),
        "watermark": utc_text(time.watermark),
        "ahead": _seconds(time.watermark - lowest),
    }
    if time.held:
        detail["held"] = True
    if time.idle:
        detail["idle"] = True
    return detail


def _seconds(micros: int) -> float:
    return round(micros / 1e6, 3)


def shortened(text: str) -> str:
    """Return the end of a split id or a position that is too long for a report."""
    return text if len(text) <= _LONGEST else f"…{text[1 - _LONGEST :]}"
