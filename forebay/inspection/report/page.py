# SPDX-License-Identifier: Apache-2.0
"""The HTML of a report: one file, without scripts and without links to other files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

from forebay.inspection.event_time import event_time_words, moment
from forebay.inspection.report.charts import lines, spans
from forebay.inspection.report.history import History, SourceHistory
from forebay.inspection.tables import html_table, printable

_STYLE = """
:root{color-scheme:light dark;--c0:#1f6feb;--c1:#d1582a;--c2:#2a8f4f;--c3:#8b4fc9;--c4:#b08800;--c5:#c2377a;
--c6:#0f8b8d;--c7:#777}
@media (prefers-color-scheme:dark){:root{--c0:#6ea8ff;--c1:#ff9a6b;--c2:#6fd08c;--c3:#c39bff;--c4:#e3c04b;
--c5:#ff85b8;--c6:#5fd3d5;--c7:#aaa}}
body{font:15px/1.45 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
svg{width:100%;height:auto}svg text{font-size:11px;fill:currentColor}
polyline{fill:none;stroke-width:1.6;stroke:currentColor}rect.held{fill:var(--c1)}rect.idle{fill:var(--c7)}
ul{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:0 1.2rem}
table{border-collapse:collapse}td,th{padding:.15rem .6rem;text-align:left;border-bottom:1px solid #8884}
.c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}.c4{color:var(--c4)}
.c5{color:var(--c5)}.c6{color:var(--c6)}.c7{color:var(--c7)}
"""


def page(histories: Sequence[History]) -> str:
    """Return the page, with a section for each query. Names that others chose are escaped."""
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
            parts.append(lines({"rows dropped": history.dropped}, _number))
            parts.append(f"<p>{_text(history.advice)}</p>")
    else:
        parts.append("<p>A checkpoint tells neither lag nor dropped rows; forebay.record_progress keeps them.</p>")
    return "".join(parts)


def _source(history: History, source: SourceHistory, first: datetime, last: datetime) -> str:
    parts = [f"<h2>{_text(source.name)}</h2>"]
    splits = sorted({split.split for _, state in source.states for split in state.splits})
    if source.states:
        parts.append(f"<p>{escape(event_time_words(source.states[-1][1]))}</p>")
    # Spark's watermark is the last line: it is drawn above the others.
    series = {
        printable(name): [
            (at, split.watermark.timestamp())
            for at, state in source.states
            for split in state.splits
            if split.split == name
        ]
        for name in splits
    }
    if history.watermarks:
        series["Spark's watermark"] = [(at, mark.timestamp()) for at, mark in history.watermarks]
    if any(series.values()):
        parts.append(f"<h3>Watermarks</h3>{lines(series, _event_time)}")
    rows = {printable(name): _spans(source, name, last) for name in splits}
    rows = {name: bars for name, bars in rows.items() if bars}
    if rows:
        legend = '<ul><li><span class="c1">&#9632;</span> held</li><li><span class="c7">&#9632;</span> idle</li></ul>'
        parts.append(f"<h3>Held and idle</h3>{spans(rows, first, last)}{legend}")
    if source.lag:
        parts.append(f"<h3>Lag, in {escape(source.unit)}</h3>{lines({'behind': source.lag}, _number)}")
    if source.states:
        header = ("split", "watermark", "state")
        final = source.states[-1][1].splits
        table = [(one.split, moment(one.watermark), "held" * one.held or "idle" * one.idle) for one in final]
        parts.append(html_table(header, table))
    return "".join(parts)


def _spans(source: SourceHistory, name: str, last: datetime) -> list[tuple[datetime, datetime, str]]:
    """Return when a split was held or idle: from a report to the next one."""
    found: list[tuple[datetime, datetime, str]] = []
    for index, (at, state) in enumerate(source.states):
        until = source.states[index + 1][0] if index + 1 < len(source.states) else last
        found += [
            (at, until, "held" if split.held else "idle")
            for split in state.splits
            if split.split == name and (split.held or split.idle)
        ]
    return found


def _event_time(seconds: float) -> str:
    return moment(datetime.fromtimestamp(seconds, UTC))


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _text(name: str) -> str:
    return escape(printable(name))
