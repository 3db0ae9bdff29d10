# SPDX-License-Identifier: Apache-2.0
"""Charts as inline SVG: lines over time, and bars for spans of time.

Every text is escaped. Colours come from the style of the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from statistics import median
from typing import Final

from forebay.inspection.event_time import span

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
