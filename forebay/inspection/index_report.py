# SPDX-License-Identifier: Apache-2.0
"""`forebay index report`: jobs, versions, delay and alerts of the object types below a location, as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from forebay.errors import printable
from forebay.inspection.event_time import span
from forebay.inspection.report import Line, document, lines, spans
from forebay.table.index.monitor import Alert, alerts, open_of
from forebay.table.index.pipelines import IndexStore, IndexVersion
from forebay.table.index.runs import Run, runs
from forebay.table.index.status import Status, status
from forebay.text_tables import html_table

RUN_HEADER: Final = ("run", "job", "began", "seconds", "fact", "what it did")

_SHOWN: Final = 40
"""Runs and alerts in the tables of the page. The charts have all."""


def run_cells(run: Run) -> tuple[str, ...]:
    """Return a run as cells of a table; see `RUN_HEADER`."""
    facts = f"{run.since + 1:,} to {run.to:,}" if 0 <= run.since < run.to - 1 else f"{run.to:,}" if run.to >= 0 else ""
    counts = ", ".join(f"{count:,} {name}" for name, count in run.counts.items() if count)
    done = "; ".join(part for part in (f"{run.decision} {run.reason}".strip(), counts) if part)
    failed = f"FAILED, {run.error}: {' '.join(run.text.split())}" if run.error else ""
    return (f"{run.number}", run.subject, run.began, f"{run.seconds:.2f}", facts, failed or done)


def index_page(indexes: Sequence[IndexStore]) -> str:
    """Return the page of object types. Names from outside are escaped."""
    return document("forebay: indexes", "".join(_section(index) for index in indexes))


def _section(index: IndexStore) -> str:
    state, known, raised = status(index), runs(index), alerts(index)
    parts = [f"<h1>{_text(index.object_type)}</h1><p>{_text(_summary(state))}</p>"]
    broken = open_of(raised)
    parts.append(f"<h2>Alerts: {len(broken):,} open</h2>")
    parts += [
        f'<p class="c1">&#9650; {_text(f"{each.at} {each.rule} of {each.subject}: {each.text}")}</p>' for each in broken
    ]
    if raised:
        parts.append(html_table(("time", "alert", "what", "why"), [_alert_cells(each) for each in raised[:-_SHOWN:-1]]))
    if known:
        first, last = _at(known[0].begin), max(_at(run.begin + run.seconds) for run in known)
        rows: dict[str, list[tuple[datetime, datetime, str]]] = {}
        for run in known:
            kind = "failed" if run.error else "well"
            rows.setdefault(printable(run.subject), []).append((_at(run.begin), _at(run.begin + run.seconds), kind))
        legend = '<ul><li><span class="c1">&#9608;</span> failed</li><li><span class="c0">&#9608;</span> well</li></ul>'
        parts.append(f"<h2>Jobs</h2>{spans(rows, min(first, last), last)}{legend}")
        parts.append(_delay(index, known, first, last))
        parts.append(html_table(RUN_HEADER, [run_cells(run) for run in known[:-_SHOWN:-1]]))
    parts.append(f"<h2>Versions</h2>{_versions(index, state)}")
    return "".join(parts)


def _delay(index: IndexStore, all_runs: Sequence[Run], first: datetime, last: datetime) -> str:
    """Return the chart of the time from commits until a version served them, of the facts that the log still has."""
    drawn: dict[str, list[tuple[datetime, float | None]]] = {}
    for run in all_runs:
        entry = index.log.get(run.since + 1) if run.job in ("index", "opensearch") and not run.error else None
        if entry is not None and entry.time and run.to > run.since:
            end = _at(run.begin + run.seconds)
            waited = max(0.0, (end - datetime.fromisoformat(entry.time)).total_seconds())
            drawn.setdefault(run.subject, []).append((end, waited))
    chart = lines(
        [Line(name, f"c{at % 8}", points) for at, (name, points) in enumerate(drawn.items())], first, last, span
    )
    note = "From the commit of the oldest fact until the version that serves it."
    return f'<h2>Delay</h2><p class="note">{note}</p>{chart}' if chart else ""


def _versions(index: IndexStore, state: Status) -> str:
    rows = []
    for pipeline in state.pipelines:
        name = pipeline.version.pipeline
        for number in reversed(index.versions(name)):
            version = index.version(name, number)
            if version is not None and number > 0:
                rows.append(_version_cells(version, serving=pipeline.serving and number == pipeline.version.number))
    return html_table(("pipeline", "version", "fact", "objects", "segments", "decision", "shares"), rows)


def _version_cells(version: IndexVersion, *, serving: bool) -> tuple[str, ...]:
    shares = ", ".join(f"{changed:,} of {before:,}" for changed, before in version.shares)
    decision = f"{version.decision}: {version.reason}" + (" (serves)" if serving else "")
    name = version.pipeline
    return (
        name,
        f"{version.number:,}",
        f"{version.data:,}",
        f"{version.count:,}",
        f"{len(version.segments):,}",
        decision,
        shares,
    )


def _alert_cells(alert: Alert) -> tuple[str, ...]:
    return (alert.at, "breach" if alert.breach else "recovered", f"{alert.rule} of {alert.subject}", alert.text)


def _summary(state: Status) -> str:
    sources = ", ".join(f"{each.name} {each.rows:,} rows" for each in state.datasources)
    pending = f"{state.edits.pending:,} edits pending" + (f" since {state.edits.oldest}" if state.edits.oldest else "")
    live = next((each for each in state.pipelines if each.serving), None)
    behind = (
        f"{live.version.count:,} objects in version {live.version.number:,}, {live.behind:,} facts behind"
        if live
        else ""
    )
    built = [
        f"{each.version.pipeline} is built behind it"
        + (f", before it can serve: {', '.join(each.waits)}" if each.waits else f", {each.behind:,} facts behind")
        for each in state.pipelines
        if each.role == "is being built"
    ]
    return "; ".join([f"fact {state.head.number:,} of the log", sources, behind, *built, pending])


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _text(text: str) -> str:
    return escape(printable(text))
