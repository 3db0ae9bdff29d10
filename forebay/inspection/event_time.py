# SPDX-License-Identifier: Apache-2.0
"""Reads and formats the `eventTime` of a progress report or offset: watermark, drift, and the slowest split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self

from forebay.errors import printable


@dataclass(frozen=True)
class SplitEventTime:
    """The event time of one split.

    Args:
        split: The id of the split.
        watermark: The split's watermark: no unread record that is on time has an earlier event time.
        held: Whether the split waits for the slowest one: alignment stops reading it before its present end.
        idle: Whether the split is idle: no other split waits for it.
    """

    split: str
    watermark: datetime
    held: bool = False
    idle: bool = False


@dataclass(frozen=True)
class EventTimeState:
    """The result of alignment for the last planned micro-batch.

    Args:
        watermark: The lowest watermark of an active split; None if no watermark is known.
        drift: Seconds between the lowest and the highest watermark of active splits.
        max_drift: `alignmentMaxDrift`, in seconds.
        delay: `watermarkDelay`, in seconds.
        held: The number of splits that wait for the slowest one: alignment stops them before their present ends.
        idle: The number of splits that no other split waits for.
        late: How often an idle or new split had records before the watermark of the other splits. If splits are read in
            order: how many began more than `watermarkDelay` earlier in event time than splits that were read before.
        slowest: The split with the lowest watermark, for which held splits wait; empty if unknown.
        why: Why the slowest split holds back others: `unread` (it has unread records) or `caught up`.
        splits: The slowest and the fastest splits.
        limit: The event time up to which splits may be read. If splits are read in order, a split whose first record
            is later waits. None if not known yet.
    """

    watermark: datetime | None
    drift: float
    max_drift: float
    delay: float
    held: int
    idle: int
    late: int
    slowest: str
    why: str
    splits: tuple[SplitEventTime, ...]
    limit: datetime | None = None

    @classmethod
    def of(cls, report: object) -> Self | None:
        """Return the state that the planner put into a progress report as `eventTime`; None if alignment is off.

        Raises:
            ValueError, KeyError, TypeError: The report is damaged.
        """
        if not isinstance(report, Mapping):
            return None
        slowest = report.get("slowest") or {}
        found = [_split(each) for each in report.get("splits", ())]
        # The slowest split sets the limit for all, also for itself, but waits for no other.
        splits = [replace(each, held=each.held and each.split != slowest.get("split")) for each in found]
        held = int(report["held"]) - sum(each.held for each in found) + sum(each.held for each in splits)
        return cls(
            watermark=_time(report["watermark"]) if "watermark" in report else None,
            drift=float(report.get("drift", 0.0)),
            max_drift=float(report.get("maxDrift", 0.0)),
            delay=float(report.get("delay", 0.0)),
            held=held,
            idle=int(report["idle"]),
            late=int(report.get("late", 0)),
            slowest=str(slowest.get("split", "")),
            why=str(slowest.get("why", "")),
            splits=tuple(splits),
            limit=_time(report["limit"]) if "limit" in report else None,
        )


def event_time_words(state: EventTimeState) -> str:
    """Format the state as one line: the watermark, the drift, and the waiting splits. External names are escaped.

    Splits that are read in order, such as files, have no watermarks. Their line shows the limit instead.
    """
    if state.watermark is None:
        return _limit_words(state)
    parts = [f"watermark {moment(state.watermark)}, drift {span(state.drift)} of {span(state.max_drift)}"]
    if state.held:
        slowest = printable(state.slowest)
        slowest = slowest if len(slowest) <= 40 else f"…{slowest[-39:]}"
        parts.append(f"{_count(state.held)} held for {slowest} ({printable(state.why)})")
    if state.idle:
        parts.append(f"{_count(state.idle)} idle")
    if state.late:
        parts.append(f"idle or new splits were late {state.late:,} time{'' if state.late == 1 else 's'}")
    return ", ".join(parts)


def _limit_words(state: EventTimeState) -> str:
    if state.limit is None:
        parts = ["no event time of a split is known"]
    else:
        parts = [f"event time limit {moment(state.limit)} (alignmentMaxDrift {span(state.max_drift)})"]
    if state.idle:
        parts.append(f"{_count(state.idle)} idle")
    if state.late:
        parts.append(f"{_count(state.late)} late by more than watermarkDelay ({span(state.delay)})")
    return ", ".join(parts)


def moment(at: datetime) -> str:
    """Format an event time for people, in UTC, with whole seconds."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def span(seconds: float) -> str:
    """Format a number of seconds for people: `0.5 s`, `45 s`, `12.5 min`, `7.2 h`, `3.5 d`."""
    for unit, size, most in (("s", 1.0, 120.0), ("min", 60.0, 7_200.0), ("h", 3600.0, 172_800.0)):
        if abs(seconds) < most:
            return f"{round(seconds / size, 1):,g} {unit}"
    return f"{round(seconds / 86_400, 1):,} d"


def _count(number: int) -> str:
    return f"{number:,} split{'' if number == 1 else 's'}"


def _split(each: Mapping[str, Any]) -> SplitEventTime:
    return SplitEventTime(
        str(each["split"]), _time(each["watermark"]), each.get("held") is True, each.get("idle") is True
    )


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
