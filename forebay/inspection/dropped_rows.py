# SPDX-License-Identifier: Apache-2.0
"""Explains why Spark's watermark dropped rows: names the slowest split, and the option that avoids the loss."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from forebay.errors import printable
from forebay.inspection.event_time import EventTimeState, span


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
        except ValueError:
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
    sources = [found for each in report.get("sources") or () if (found := ours(each.get("latestOffset"))) is not None]
    if not sources:
        return None
    aligned = [(source, state) for source in sources if (state := EventTimeState.of(source.get("eventTime")))]
    if len(aligned) < len(sources):
        return _unaligned([source for source in sources if not source.get("eventTime")])
    source, state = min(aligned, key=lambda one: one[1].watermark.timestamp() if one[1].watermark else float("inf"))
    return _aligned(source, state, _spark_watermark(report))


def _unaligned(sources: list[Mapping[str, Any]]) -> str:
    """Return the advice for sources that do not align their splits. The advice names the split with the largest lag."""
    found = [
        (int(each.get("behind") or each.get("bytes") or 0), source, each)
        for source in sources
        for each in source["worst"]
    ]
    nothing: Mapping[str, Any] = {}
    behind, source, worst = max(found, key=lambda one: one[0], default=(0, sources[0], nothing))
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
