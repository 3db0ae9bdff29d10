# SPDX-License-Identifier: Apache-2.0
"""The HTML of a report: one file, without scripts and without links to other files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from forebay.errors import printable
from forebay.inspection.event_time import EventTimeState, event_time_words, moment, span
from forebay.inspection.report.charts import Line, lines, longest_interval, spans
from forebay.inspection.report.history import History, SourceHistory
from forebay.inspection.tables import html_table

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
rect.held{fill:var(--c1)}rect.idle{fill:var(--idle)}.note{font-size:13px;opacity:.75;margin:.2rem 0}
ul{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:0 1.2rem}
table{border-collapse:collapse}td,th{padding:.15rem .6rem;text-align:left;border-bottom:1px solid #8884}
.c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}.c4{color:var(--c4)}
.c5{color:var(--c5)}.c6{color:var(--c6)}.c7{color:var(--c7)}.idle{color:var(--idle)}
"""

_NAMED: Final = 8
"""Number of splits with a colour of their own: those that were furthest behind the fastest split."""


def page(histories: Sequence[History]) -> str:
    """Return the HTML page, with a section for each query. Names from outside are escaped."""
    body = "".join(_query(history) for history in histories)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>forebay: event time</title>'
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
        table = [(one.split, moment(one.watermark), "held" * one.held or "idle" * one.idle) for one in final]
        parts.append(html_table(("split", "watermark", "state"), table))
    return "".join(parts)


def _watermarks(history: History, source: SourceHistory, splits: Sequence[str]) -> list[Line]:
    """Return the lines of the watermark chart: splits, the limit of files and, above the others, Spark's watermark."""
    drawn = _by_split(source, splits, [{one.split: one.watermark.timestamp() for one in s.splits} for s in _of(source)])
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
        {one.split: (one.watermark - state.watermark).total_seconds() for one in state.splits if not one.idle}
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
        fastest = max((one.watermark for one in state.splits), default=None)
        for one in state.splits:
            if fastest is not None:
                behind[one.split] = max(behind[one.split], (fastest - one.watermark).total_seconds())
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
    found: list[tuple[datetime, datetime, str]] = []
    for index, (at, state) in enumerate(source.states):
        until = source.states[index + 1][0] if index + 1 < len(source.states) else last
        until = until if (until - at).total_seconds() <= longest else at
        for split in state.splits:
            if split.split != name or not (split.held or split.idle):
                continue
            kind = "held" if split.held else "idle"
            if found and found[-1][1:] == (at, kind):  # one bar, not one for each report
                found[-1] = (found[-1][0], until, kind)
            else:
                found.append((at, until, kind))
    return found


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _text(name: str) -> str:
    return escape(printable(name))
