# SPDX-License-Identifier: Apache-2.0
"""Reads and formats the `eventTime` of a progress report or offset: watermark, drift, and the slowest split."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Self

from forebay.errors import printable

_LONGEST: Final = 1e12
"""Seconds that no difference of two times exceeds."""


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
        reported = [_split(each) for each in report.get("splits", ())]
        # The slowest split sets the limit for all, also for itself, but waits for no other.
        splits = [replace(each, held=each.held and each.split != slowest.get("split")) for each in reported]
        held = int(report["held"]) - sum(each.held for each in reported) + sum(each.held for each in splits)
        return cls(
            watermark=time_of(report["watermark"]) if "watermark" in report else None,
            drift=_seconds(report.get("drift", 0.0)),
            max_drift=_seconds(report.get("maxDrift", 0.0)),
            delay=_seconds(report.get("delay", 0.0)),
            held=held,
            idle=int(report["idle"]),
            late=int(report.get("late", 0)),
            slowest=str(slowest.get("split", "")),
            why=str(slowest.get("why", "")),
            splits=tuple(splits),
            limit=time_of(report["limit"]) if "limit" in report else None,
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
        str(each["split"]), time_of(each["watermark"]), each.get("held") is True, each.get("idle") is True
    )


def time_of(text: str) -> datetime:
    """Return a time of a report.

    Raises:
        ValueError, TypeError: It is damaged: no time, or none that can be shown in UTC.
    """
    at = datetime.fromisoformat(text)
    try:
        at.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{text!r:.200} is no time in UTC") from error
    if at.tzinfo is None:
        raise ValueError(f"{text!r:.200} has no time zone")
    return at


def _seconds(number: object) -> float:
    if not isinstance(number, int | float) or not abs(number) <= _LONGEST:
        raise ValueError(f"{number!r:.200} is no number of seconds")
    return float(number)


# -- Explains why Spark's watermark dropped rows: names the slowest split, and the option that avoids the loss.


def dropped_rows(report: Mapping[str, Any]) -> int:
    """Return how many rows Spark dropped in the micro-batch of a progress report.

    More input rows may be lost: an aggregation counts rows after each task has combined its input rows.
    """
    return sum(int(each.get("numRowsDroppedByWatermark") or 0) for each in report.get("stateOperators") or ())


def ours(latest: object) -> Mapping[str, Any] | None:
    """Return the progress report that a source of forebay puts into `latestOffset`.

    None if `latest` is from another source.
    """
    if isinstance(latest, str):
        try:
            latest = json.loads(latest)
        except (ValueError, RecursionError):
            return None
    return latest if isinstance(latest, Mapping) and {"source", "splits", "worst"} <= latest.keys() else None


def dropped_rows_advice(report: Mapping[str, Any]) -> str | None:
    """Return advice on how to avoid the dropped rows of a progress report. External names are escaped.

    Args:
        report: A progress report of Spark, as JSON values.

    Returns:
        The advice; None if no row was dropped, or the query has no source of forebay.
    """
    if not dropped_rows(report):
        return None
    sources = [
        progress for each in report.get("sources") or () if (progress := ours(each.get("latestOffset"))) is not None
    ]
    if not sources:
        return None
    aligned = [(source, state) for source in sources if (state := EventTimeState.of(source.get("eventTime")))]
    if len(aligned) < len(sources):
        return _unaligned([source for source in sources if not source.get("eventTime")])
    source, state = min(
        aligned, key=lambda entry: entry[1].watermark.timestamp() if entry[1].watermark else float("inf")
    )
    return _aligned(source, state, _spark_watermark(report))


def _unaligned(sources: list[Mapping[str, Any]]) -> str:
    """Return the advice for sources that do not align their splits. The advice names the split with the largest lag."""
    candidates = [
        (int(each.get("behind") or each.get("bytes") or 0), source, each)
        for source in sources
        for each in source["worst"]
    ]
    nothing: Mapping[str, Any] = {}
    behind, source, worst = max(candidates, key=lambda candidate: candidate[0], default=(0, sources[0], nothing))
    name = _name(source["source"])
    advice = "set alignmentMaxDrift, and a withWatermark delay of at least alignmentMaxDrift + watermarkDelay"
    if not behind:
        return f"no split of {name} is behind now; for splits that fall behind in event time, {advice}"
    unit = "rows" if worst.get("behind") else "bytes"
    return f"the split of {name} that is furthest behind is {_name(worst['split'])}, by {behind:,} {unit}; {advice}"


def _aligned(source: Mapping[str, Any], state: EventTimeState, spark: datetime | None) -> str:
    """Return the advice for a source that aligns its splits. The advice names the split with the lowest watermark.

    `spark` is Spark's own watermark; None if unknown.
    """
    earliest = min(state.splits, key=lambda split: split.watermark, default=None)
    parts = []
    if earliest is not None:
        parts.append(f"the split of {_name(source['source'])} that is furthest behind is {_name(earliest.split)}")
        if spark is not None and spark > earliest.watermark:
            parts[0] += f", {span((spark - earliest.watermark).total_seconds())} behind Spark's watermark"
        parts[0] += " (idle)" if earliest.idle else ""
    if state.late and earliest is None and not state.idle:  # such as files, which are never idle
        parts.append(
            f"{state.late:,} new split{'' if state.late == 1 else 's'} began earlier in event time than "
            "watermarkDelay allows: set a longer watermarkDelay"
        )
    elif state.late or (earliest is not None and earliest.idle):
        parts.append("other splits did not wait for an idle or new split: set a longer idleTimeout")
    least = state.max_drift + state.delay
    parts.append(
        f"withWatermark needs a delay of at least alignmentMaxDrift + watermarkDelay, {span(least)}, and more for "
        "records that are out of order by more than watermarkDelay"
    )
    return "; ".join(parts)


def _spark_watermark(report: Mapping[str, Any]) -> datetime | None:
    text = (report.get("eventTime") or {}).get("watermark")
    return None if text is None else datetime.fromisoformat(text)


def _name(text: object) -> str:
    shown = printable(str(text))
    return repr(shown if len(shown) <= 80 else f"…{shown[-79:]}")
