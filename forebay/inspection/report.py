# SPDX-License-Identifier: Apache-2.0
"""`forebay.report`: the history of a streaming query as one HTML file."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

from forebay.errors import ConfigurationError, ForebayError, printable
from forebay.inspection.event_time import (
    EventTimeState,
    dropped_rows,
    dropped_rows_advice,
    event_time_words,
    moment,
    ours,
    span,
    time_of,
)
from forebay.inspection.offsets import LARGEST, is_micro_batch, text_of
from forebay.stores.local import LocalStore, wrap_errors
from forebay.stores.paths import refuse_password
from forebay.text_tables import html_table

# -- The history of a query, from Spark's progress reports or from the offsets of its checkpoint.

_STORE: Final = LocalStore(ignore_missing=True)
_DAMAGE: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What code raises that reads damaged JSON."""


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


def histories(query_or_directory: object) -> list[History]:
    """Return the history of a query object, or of all queries in a directory of reports or a checkpoint directory."""
    recent = getattr(query_or_directory, "recentProgress", None)
    if recent is not None:
        candidates = [of_reports([json.loads(entry.json) if hasattr(entry, "json") else entry for entry in recent])]
    elif isinstance(query_or_directory, (str, Path)):
        directory = Path(query_or_directory)
        files = _files(directory, lambda name: name.endswith(".jsonl"))
        candidates = [of_reports(_lines(file)) for file in files] if files else [_of_checkpoint(directory)]
    else:
        return []
    return [history for history in candidates if history.times]


def of_reports(reports: Iterable[Mapping[str, Any]]) -> History:
    """Return the history of a query from its progress reports. Damaged parts of reports are skipped."""
    history = History("query")
    for report in reports:
        try:
            at = time_of(report["timestamp"])
            history.name = str(report.get("name") or report.get("id") or history.name)
            history.times.append(at)
            watermark = (report.get("eventTime") or {}).get("watermark")
            if watermark is not None and not watermark.startswith("1970-01-01T00:00:00"):  # Spark's for none yet
                history.watermarks.append((at, time_of(watermark)))
            history.dropped.append((at, _amount(dropped_rows(report))))
            history.advice = dropped_rows_advice(report) or history.advice
            for index, each in enumerate(report.get("sources") or ()):
                _add(history, index, at, ours(each.get("latestOffset")))
        except _DAMAGE:
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
        source.lag.append((at, _amount(amounts[unit])))


def _amount(number: Any) -> int:  # noqa: ANN401 - JSON
    """Return a number of rows or bytes, which is small enough for a chart."""
    if abs(int(number)) >= 1 << 63:
        raise ValueError(f"{number!r:.200} is no number of rows or bytes")
    return int(number)


def _files(directory: Path, keep: Callable[[str], bool]) -> list[str]:
    """Return the sorted paths of the files of a directory, without pipes and devices; empty if there is no directory.

    Raises:
        ForebayError: The directory cannot be listed.
    """
    try:
        children = _STORE.children(str(directory), keep)
    except ValueError:  # no path has such characters
        return []
    return [] if children is None else sorted(file.path for file in children.files)


def _lines(path: str) -> Iterator[Mapping[str, Any]]:
    """Yield the reports of a file. A line that is longer than any report ends it: the file may have no other line."""
    with wrap_errors(path), _STORE.open(path) as file:
        while 0 < len(line := file.readline(LARGEST + 1)) <= LARGEST:
            try:
                parsed = json.loads(line.decode("utf-8", errors="replace"))
            except (ValueError, RecursionError):
                continue  # the last line may be half written
            if isinstance(parsed, dict):
                yield parsed


def _of_checkpoint(directory: Path) -> History:
    """Return the history of a query from the offsets in its checkpoint.

    Such a history has watermarks, and held and idle splits, but neither lag nor dropped rows.
    """
    history = History(directory.name)
    files = _files(directory / "offsets", is_micro_batch)
    for file in sorted(files, key=lambda path: int(path.rpartition("/")[2])):
        try:
            _, metadata, *entries = text_of(_STORE, file).splitlines()
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
        except (ForebayError, *_DAMAGE):
            continue
    return history if history.sources else History(directory.name)


# -- `forebay.report`: writes an HTML file with the watermarks, waits, lag and dropped rows of a streaming query.


def report(query_or_directory: object, file: str | os.PathLike[str] = "forebay-report.html") -> str:
    """Write the history of a streaming query as one HTML file, which opens offline and without JavaScript.

    The file shows over time: the watermarks of the splits and of Spark, held and idle splits, the lag, and the rows
    that Spark's watermark dropped.

    Args:
        query_or_directory: A running or finished `StreamingQuery` (Spark keeps its last 100 reports), a directory that
            `record_progress` wrote, or a local checkpoint directory (without lag and dropped rows).
        file: The file to write; an existing one is replaced.

    Returns:
        The path of the file.

    Raises:
        ConfigurationError: The query or directory has no progress, the directory cannot be read, or the file cannot be
            written.
        RetriableError: The directory cannot be read now.
    """
    if isinstance(query_or_directory, str):
        refuse_password(query_or_directory, option="directory")
    all_histories = histories(query_or_directory)
    if not all_histories:
        if isinstance(query_or_directory, (str, Path)) and not os.path.isdir(query_or_directory):
            raise ConfigurationError(
                f"there is no directory {str(query_or_directory)!r}",
                advice="give a directory that forebay.record_progress wrote, or the checkpoint directory of a query",
            )
        raise ConfigurationError(
            f"{query_or_directory!r} has no progress to report",
            advice="give a streaming query after its first micro-batch, a directory that forebay.record_progress "
            "wrote, or the checkpoint directory of a query with alignmentMaxDrift",
        )
    path = Path(file)
    try:
        path.write_text(page(all_histories), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"the report cannot be written to {str(path)!r}: {error.strerror}",
            advice="give a file in a directory that exists and that you may write to",
        ) from error
    return str(path)


# -- The HTML of a report: one file, without scripts and without links to other files.


_STYLE = """
:root{color-scheme:light dark;--c0:#1f6feb;--c1:#d1582a;--c2:#2a8f4f;--c3:#8b4fc9;--c4:#b08800;--c5:#c2377a;
--c6:#0f8b8d;--c7:#7a4a1e;--idle:#777}
@media (prefers-color-scheme:dark){:root{--c0:#6ea8ff;--c1:#ff9a6b;--c2:#6fd08c;--c3:#c39bff;--c4:#e3c04b;
--c5:#ff85b8;--c6:#5fd3d5;--c7:#d2ae92;--idle:#aaa}}
body{font:15px/1.45 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
svg{width:100%;height:auto}svg text{font-size:11px;fill:currentColor}
polyline,line{fill:none;stroke-width:1.8;stroke:currentColor;stroke-linecap:round}
svg .grid{stroke-width:.6;opacity:.18}svg .rest{stroke-width:1;opacity:.35}svg .limit{stroke-dasharray:2 5}
svg .spark{stroke-width:2.4;stroke-dasharray:9 5}svg.key{width:24px;height:8px}
rect.held,rect.failed{fill:var(--c1)}rect.idle{fill:var(--idle)}rect.well{fill:var(--c0)}
.note{font-size:13px;opacity:.75;margin:.2rem 0}
ul{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:0 1.2rem}
table{border-collapse:collapse}td,th{padding:.15rem .6rem;text-align:left;border-bottom:1px solid #8884}
td:not(:last-child){white-space:nowrap}
.c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}.c4{color:var(--c4)}
.c5{color:var(--c5)}.c6{color:var(--c6)}.c7{color:var(--c7)}.idle{color:var(--idle)}
"""

_NAMED: Final = 8
"""Number of splits with a colour of their own: those that were furthest behind the fastest split."""


def page(histories: Sequence[History]) -> str:
    """Return the HTML page, with a section for each query. Names from outside are escaped."""
    return document("forebay: event time", "".join(_query(history) for history in histories))


def document(title: str, body: str) -> str:
    """Return an HTML page in the style of the reports.

    Args:
        title: The title, without markup.
        body: HTML.
    """
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>{body}</body></html>\n"
    )


def _query(history: History) -> str:
    first, last = min(history.times), max(history.times)
    parts = [
        (
            f"<h1>{_text(history.name)}</h1><p>{len(history.times):,} micro-batches, "
            f"{moment(first.astimezone(UTC))} to {moment(last.astimezone(UTC))}</p>"
        )
    ]
    parts += [_source(history, source, first, last) for source in history.sources.values()]
    if history.dropped:
        total = sum(rows for _, rows in history.dropped)
        parts.append(f"<h2>Rows dropped by Spark's watermark: {total:,}</h2>")
        if total:
            parts.append(lines([Line("rows dropped", "c1", history.dropped)], first, last, _number))
            parts.append(f"<p>{_text(history.advice)}</p>")
    else:
        parts.append("<p>A checkpoint has neither lag nor dropped rows; forebay.record_progress records them.</p>")
    return "".join(parts)


def _source(history: History, source: SourceHistory, first: datetime, last: datetime) -> str:
    parts = [f"<h2>{_text(source.name)}</h2>"]
    splits = sorted({split.split for _, state in source.states for split in state.splits}, key=_natural)
    if source.states:
        parts.append(f"<p>{escape(event_time_words(source.states[-1][1]))}</p>")
    if chart := lines(_watermarks(history, source, splits), first, last):
        parts.append(f'<h3>Watermarks</h3><p class="note">Event time over processing time, both in UTC.</p>{chart}')
    if chart := lines(_ahead(source, splits), first, last, span):
        note = "Active splits, and alignmentMaxDrift as the limit. At the limit a split is held."
        parts.append(f'<h3>Event time ahead of the slowest active split</h3><p class="note">{note}</p>{chart}')
    rows = {printable(name): _spans(source, name, last) for name in splits}
    rows = {name: bars for name, bars in rows.items() if bars}
    if rows:
        legend = (
            '<ul><li><span class="c1">&#9608;</span> held (may not be read to its end yet)</li>'
            '<li><span class="idle">&#9644;</span> idle (holds back no others)</li></ul>'
        )
        parts.append(f"<h3>Held and idle</h3>{spans(rows, first, last)}{legend}")
    if source.lag:
        chart = lines([Line("behind", "c0", source.lag)], first, last, _number)
        parts.append(f"<h3>Lag, in {escape(source.unit)}</h3>{chart}")
    if source.states and (final := source.states[-1][1].splits):
        table = [(split.split, moment(split.watermark), "held" * split.held or "idle" * split.idle) for split in final]
        parts.append(html_table(("split", "watermark", "state"), table))
    return "".join(parts)


def _watermarks(history: History, source: SourceHistory, splits: Sequence[str]) -> list[Line]:
    """Return the lines of the watermark chart: splits, the limit of files and, above the others, Spark's watermark."""
    drawn = _by_split(
        source, splits, [{split.split: split.watermark.timestamp() for split in s.splits} for s in _of(source)]
    )
    if not splits:
        limits = [(at, state.limit.timestamp() if state.limit else None) for at, state in source.states]
        drawn.append(Line("limit: splits whose first record is later wait", "limit", limits))
    return [*drawn, Line("Spark's watermark", "spark", [(at, mark.timestamp()) for at, mark in history.watermarks])]


def _ahead(source: SourceHistory, splits: Sequence[str]) -> list[Line]:
    """Return the lines that show how far active splits were ahead of the slowest one, in seconds.

    The list is empty for fewer than two splits.
    """
    if len(splits) < 2:
        return []
    values = [
        {split.split: (split.watermark - state.watermark).total_seconds() for split in state.splits if not split.idle}
        if state.watermark
        else {}
        for state in _of(source)
    ]
    limit = Line("alignmentMaxDrift", "limit", [(at, state.max_drift) for at, state in source.states])
    return [*_by_split(source, splits, values), limit]


def _by_split(source: SourceHistory, splits: Sequence[str], values: Sequence[Mapping[str, float]]) -> list[Line]:
    """Return a line for each split. The splits that were furthest behind get colours, and their lines come last.

    `values` has the value of each split, by split id, at each report.
    """
    behind: dict[str, float] = dict.fromkeys(splits, 0.0)
    for state in _of(source):
        fastest = max((split.watermark for split in state.splits), default=None)
        for split in state.splits:
            if fastest is not None:
                behind[split.split] = max(behind[split.split], (fastest - split.watermark).total_seconds())
    named = sorted(sorted(splits, key=behind.__getitem__, reverse=True)[:_NAMED], key=_natural)
    others = [name for name in splits if name not in named]
    count = f"{len(others):,} other split{'' if len(others) == 1 else 's'}"
    drawn = []
    for name in [*others, *named]:
        points = [(at, each.get(name)) for (at, _), each in zip(source.states, values, strict=True)]
        shown = printable(name)
        drawn.append(
            Line(shown, f"c{named.index(name)}", points) if name in named else Line(count, "rest", points, shown)
        )
    return drawn


def _of(source: SourceHistory) -> list[EventTimeState]:
    return [state for _, state in source.states]


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key by which `orders/9` comes before `orders/10`."""
    return [(len(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


def _spans(source: SourceHistory, name: str, last: datetime) -> list[tuple[datetime, datetime, str]]:
    """Return the spans of time in which a split was held or idle.

    A span goes from a report to the next one, and ends earlier at a gap in the reports. `last` is the time of the last
    report.
    """
    longest = longest_interval([at for at, _ in source.states])
    bars: list[tuple[datetime, datetime, str]] = []
    for index, (at, state) in enumerate(source.states):
        until = source.states[index + 1][0] if index + 1 < len(source.states) else last
        until = until if (until - at).total_seconds() <= longest else at
        for split in state.splits:
            if split.split != name or not (split.held or split.idle):
                continue
            kind = "held" if split.held else "idle"
            if bars and bars[-1][1:] == (at, kind):  # one bar, not one for each report
                bars[-1] = (bars[-1][0], until, kind)
            else:
                bars.append((at, until, kind))
    return bars


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _text(name: str) -> str:
    return escape(printable(name))


# -- Charts as inline SVG: lines over time, and bars for spans of time.
#
# Every text is escaped. Colours come from the style of the page.


_WIDTH: Final = 900
_HEIGHT: Final = 240
_LEFT: Final = 150
"""Space for the labels, in units of the drawing."""
_ROW: Final = 18
_GAP: Final = 10
"""A line or span has a gap where the next report comes after more than this many times the usual interval."""

_TIME_STEPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_TICKS: Final = 6
"""Approximate maximum number of ticks of an axis."""


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Args:
        name: The text of the legend; lines of one name have one entry.
        style: The class of the page's style: `c0` to `c7`, `rest`, `spark` or `limit`.
        points: Pairs of time and value. A value of None, which means unknown, interrupts the line.
        title: The text on hovering; `name` if empty.
    """

    name: str
    style: str
    points: Sequence[tuple[datetime, float | None]]
    title: str = ""


def lines(drawn: Sequence[Line], first: datetime, last: datetime, label: Callable[[float], str] | None = None) -> str:
    """Return a line chart as SVG, with a legend if it has several lines; an empty text if no line has a value.

    Args:
        drawn: The lines; the last one is drawn above the others.
        first: Where the axis of processing time begins.
        last: Where it ends. No point is outside.
        label: Returns the text of a value. The axis then begins at 0. Without `label`, values are times in seconds
            since 1970.
    """
    drawn = [line for line in drawn if any(value is not None for _, value in line.points)]
    known = [value for line in drawn for _, value in line.points if value is not None]
    if not known:
        return ""
    start, end = first.timestamp(), last.timestamp()
    low, high = min(known), max(known)
    if label is None:
        label, values = _date_time, _time_ticks(low, high)
    else:
        low = min(0.0, low)
        values = _time_ticks(low, high) if label is span else _ticks(low, high)
    grid = []
    for value in values:
        y = _y(value, low, high)
        grid.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - 20}" y1="{y:.1f}" y2="{y:.1f}"/>')
        grid.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(label(value))}</text>')
    parts = []
    for line in drawn:
        title = f"<title>{escape(line.title or line.name)}</title>"
        for piece in _pieces(line.points):
            pairs = " ".join(f"{_x(at, start, end):.1f},{_y(value, low, high):.1f}" for at, value in piece)
            parts.append(f'<polyline class="{line.style}" points="{pairs}">{title}</polyline>')
    legend = {line.name: line.style for line in sorted(drawn, key=lambda line: line.style == "rest")}
    svg = _svg(_HEIGHT, [*grid, *_time_axis(start, end, _HEIGHT), *parts])
    return svg + (_legend(legend) if len(legend) > 1 else "")


def _legend(styles: Mapping[str, str]) -> str:
    entries = (
        f'<li><svg class="key" viewBox="0 0 24 8"><line class="{style}" x1="0" x2="24" y1="4" y2="4"/></svg> '
        f"{escape(name)}</li>"
        for name, style in styles.items()
    )
    return f"<ul>{''.join(entries)}</ul>"


def _pieces(points: Sequence[tuple[datetime, float | None]]) -> Iterator[list[tuple[float, float]]]:
    """Yield the parts of a line between its gaps. The point of a one-point part is doubled, so that a dot is drawn."""
    times = [at.timestamp() for at, _ in points]
    longest = longest_interval([at for at, _ in points])
    piece: list[tuple[float, float]] = []
    for at, (_, value) in zip(times, points, strict=True):
        if piece and (value is None or at - piece[-1][0] > longest):
            yield piece if len(piece) > 1 else piece * 2
            piece = []
        if value is not None:
            piece.append((at, value))
    if piece:
        yield piece if len(piece) > 1 else piece * 2


def longest_interval(times: Sequence[datetime]) -> float:
    """Return the longest interval between two reports, in seconds, that is not a gap in the recording."""
    usual = median([(after - before).total_seconds() for before, after in pairwise(times)] or [0.0])
    return _GAP * usual if usual > 0 else math.inf


def spans(rows: Mapping[str, Sequence[tuple[datetime, datetime, str]]], first: datetime, last: datetime) -> str:
    """Return an SVG chart with one row for each name, and a bar for each span (begin, end, kind) of `rows`.

    Bars of the kind `idle` are lower, so that the kinds differ without colours.
    """
    start, end = first.timestamp(), last.timestamp()
    height = 30 + _ROW * len(rows)
    drawn = []
    for index, (name, bars) in enumerate(rows.items()):
        top = 6 + _ROW * index
        shown = name if len(name) <= 22 else f"…{name[-21:]}"
        title = f"<title>{escape(name)}</title>"
        drawn.append(f'<text x="{_LEFT - 6}" y="{top + 10}" text-anchor="end">{escape(shown)}{title}</text>')
        for begin, finish, kind in bars:
            left, right = _x(begin.timestamp(), start, end), _x(finish.timestamp(), start, end)
            title = f"<title>{escape(name)}: {escape(kind)}, {begin:%H:%M:%S} to {finish:%H:%M:%S}</title>"
            inset = 4 if kind == "idle" else 0
            drawn.append(
                f'<rect class="{escape(kind)}" x="{left:.1f}" y="{top + inset}" width="{max(1.5, right - left):.1f}" '
                f'height="{_ROW - 6 - 2 * inset}">{title}</rect>'
            )
    return _svg(height, [*_time_axis(start, end, height), *drawn])


def _x(at: float, first: float, last: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - 20) * ((at - first) / (last - first) if last > first else 0.5)


def _y(value: float, low: float, high: float) -> float:
    return 10 + (_HEIGHT - 40) * (1 - ((value - low) / (high - low) if high > low else 0.5))


def _time_axis(first: float, last: float, height: int) -> list[str]:
    """Return the SVG of the horizontal axis: labels and grid lines for processing times in seconds since 1970."""
    label, drawn = _clock(first, last), []
    for at in _time_ticks(first, last):
        x = _x(at, first, last)
        drawn.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{height - 22}"/>')
        drawn.append(f'<text x="{x:.1f}" y="{height - 6}" text-anchor="middle">{label(at)}</text>')
    return drawn


def _time_ticks(low: float, high: float) -> list[float]:
    """Return round times between `low` and `high` for the labels of an axis; the only time if both are equal."""
    least = (high - low) / _TICKS
    step = next((step for step in _TIME_STEPS if step >= least), 86_400 * math.ceil(least / 86_400))
    return _multiples(low, high, step) or [low]


def _ticks(low: float, high: float) -> list[float]:
    """Return round numbers between `low` and `high` for the labels of an axis."""
    least = max(1.0, (high - low) / _TICKS)
    power = 10.0 ** math.floor(math.log10(least))
    return _multiples(low, high, next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)) or [low]


def _multiples(low: float, high: float, step: float) -> list[float]:
    return [step * index for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _clock(low: float, high: float) -> Callable[[float], str]:
    """Return a function that formats the times of an axis in UTC.

    The format has the date, unless all times have the same date.
    """
    days = {datetime.fromtimestamp(at, UTC).date() for at in (low, high)}
    pattern = "%H:%M:%S" if len(days) == 1 else "%Y-%m-%d %H:%M:%S" if high - low < 3600 else "%Y-%m-%d %H:%M"
    return lambda at: datetime.fromtimestamp(at, UTC).strftime(pattern)


def _date_time(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"


def _svg(height: int, parts: Sequence[str]) -> str:
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(parts)}</svg>'
