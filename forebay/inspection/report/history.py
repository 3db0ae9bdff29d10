# SPDX-License-Identifier: Apache-2.0
"""The history of a query, from Spark's progress reports or from the offsets of its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from forebay.inspection.dropped_rows import dropped_rows, dropped_rows_advice, ours
from forebay.inspection.event_time import EventTimeState


@dataclass
class SourceHistory:
    """The history of one source: at each report, the state of alignment, and the lag in `unit`."""

    name: str
    states: list[tuple[datetime, EventTimeState]] = field(default_factory=list)
    lag: list[tuple[datetime, int]] = field(default_factory=list)
    unit: str = "rows"


@dataclass
class History:
    """The history of one query.

    Args:
        name: The name or id of the query.
        times: When each micro-batch was reported.
        watermarks: Spark's own watermark.
        dropped: The rows that Spark's watermark dropped in each micro-batch; empty if the history is from a checkpoint,
            which does not have these numbers.
        sources: The sources of forebay.
        advice: How to avoid the loss of the dropped rows; see `dropped_rows_advice`.
    """

    name: str
    times: list[datetime] = field(default_factory=list)
    watermarks: list[tuple[datetime, datetime]] = field(default_factory=list)
    dropped: list[tuple[datetime, int]] = field(default_factory=list)
    sources: dict[int, SourceHistory] = field(default_factory=dict)
    advice: str = ""


def histories(given: object) -> list[History]:
    """Return the history of a query object, or of all queries in a directory of reports or a checkpoint directory."""
    recent = getattr(given, "recentProgress", None)
    if recent is not None:
        found = [of_reports([json.loads(one.json) if hasattr(one, "json") else one for one in recent])]
    elif isinstance(given, (str, Path)) and Path(given).is_dir():
        files = sorted(Path(given).glob("*.jsonl"))
        found = [of_reports(_lines(file)) for file in files] if files else [_of_checkpoint(Path(given))]
    else:
        return []
    return [history for history in found if history.times]


def of_reports(reports: Iterable[Mapping[str, Any]]) -> History:
    """Return the history of a query from its progress reports. Damaged parts of reports are skipped."""
    history = History("query")
    for report in reports:
        try:
            at = datetime.fromisoformat(report["timestamp"])
            history.name = str(report.get("name") or report.get("id") or history.name)
            history.times.append(at)
            watermark = (report.get("eventTime") or {}).get("watermark")
            if watermark is not None and not watermark.startswith("1970-01-01T00:00:00"):  # Spark's for none yet
                history.watermarks.append((at, datetime.fromisoformat(watermark)))
            history.dropped.append((at, dropped_rows(report)))
            history.advice = dropped_rows_advice(report) or history.advice
            for index, each in enumerate(report.get("sources") or ()):
                _add(history, index, at, ours(each.get("latestOffset")))
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return history


def _add(history: History, index: int, at: datetime, report: Mapping[str, Any] | None) -> None:
    if report is None:
        return
    source = history.sources.setdefault(index, SourceHistory(str(report["source"])))
    if (state := EventTimeState.of(report.get("eventTime"))) is not None:
        source.states.append((at, state))
    amounts = report.get("behind") or {}
    unit = next((unit for unit in ("rows", "bytes") if unit in amounts), None)
    if unit is not None:
        source.unit = unit
        source.lag.append((at, int(amounts[unit])))


def _lines(file: Path) -> Iterable[Mapping[str, Any]]:
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue  # the last line may be half written
        if isinstance(found, dict):
            yield found


def _of_checkpoint(directory: Path) -> History:
    """Return the history of a query from the offsets in its checkpoint.

    Such a history has watermarks, and held and idle splits, but neither lag nor dropped rows.
    """
    history = History(directory.name)
    files = [file for file in (directory / "offsets").glob("*") if file.name.isdecimal()]
    for file in sorted(files, key=lambda one: int(one.name)):
        try:
            _, metadata, *entries = file.read_text(encoding="utf-8").splitlines()
            spark = json.loads(metadata)
            at = datetime.fromtimestamp(spark["batchTimestampMs"] / 1000, UTC)
            offsets = [json.loads(entry) for entry in entries if entry.startswith("{")]
            history.times.append(at)
            if (mark := spark.get("batchWatermarkMs", 0)) > 0:
                history.watermarks.append((at, datetime.fromtimestamp(mark / 1000, UTC)))
            for index, offset in enumerate(offsets):
                if (state := EventTimeState.of(offset.get("eventTime"))) is not None:
                    source = history.sources.setdefault(index, SourceHistory(str(offset["source"])))
                    source.states.append((at, state))
        except (OSError, KeyError, TypeError, ValueError, AttributeError, OverflowError):
            continue
    return history if history.sources else History(directory.name)
