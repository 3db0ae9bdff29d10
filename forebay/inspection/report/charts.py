# SPDX-License-Identifier: Apache-2.0
"""Charts as inline SVG: lines over time, and spans. Every text is escaped; colours come from the style of the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

from forebay.inspection.event_time import moment

_WIDTH: Final = 900
_HEIGHT: Final = 220
_LEFT: Final = 150
"""Room for the labels, in units of the drawing."""
_COLOURS: Final = 8
_ROW: Final = 18

Points = Sequence[tuple[datetime, float]]


def lines(series: Mapping[str, Points], label: Callable[[float], str]) -> str:
    """Return a chart with one line for each name, and a legend.

    Args:
        series: Points by name.
        label: Returns the text of a value on the axis.
    """
    at = [when.timestamp() for points in series.values() for when, _ in points]
    values = [value for points in series.values() for _, value in points]
    if not at:
        return ""
    first, last, low, high = min(at), max(at), min(values), max(values)
    drawn = []
    for index, (name, points) in enumerate(series.items()):
        pairs = " ".join(
            f"{_x(when.timestamp(), first, last):.1f},{_y(value, low, high):.1f}" for when, value in points
        )
        title = f"<title>{escape(name)}</title>"
        drawn.append(f'<polyline class="c{index % _COLOURS}" points="{pairs}">{title}</polyline>')
    axis = [
        f'<text x="{_LEFT - 6}" y="{_y(value, low, high) + 4:.1f}" text-anchor="end">{escape(label(value))}</text>'
        for value in sorted({low, (low + high) / 2, high})
    ]
    legend = "".join(
        f'<li><span class="c{index % _COLOURS}">&#9632;</span> {escape(name)}</li>' for index, name in enumerate(series)
    )
    return f"{_svg(_HEIGHT, [*axis, *_time_axis(first, last, _HEIGHT), *drawn])}<ul>{legend}</ul>"


def spans(rows: Mapping[str, Sequence[tuple[datetime, datetime, str]]], first: datetime, last: datetime) -> str:
    """Return a chart with one row for each name, and a bar for each span: its begin, its end and its kind."""
    start, end = first.timestamp(), last.timestamp()
    height = 30 + _ROW * len(rows)
    drawn = []
    for index, (name, bars) in enumerate(rows.items()):
        top = 6 + _ROW * index
        shown = name if len(name) <= 22 else f"…{name[-21:]}"
        drawn.append(f'<text x="{_LEFT - 6}" y="{top + 11}" text-anchor="end">{escape(shown)}</text>')
        for begin, finish, kind in bars:
            left, right = _x(begin.timestamp(), start, end), _x(finish.timestamp(), start, end)
            title = f"<title>{escape(name)}: {escape(kind)}</title>"
            drawn.append(
                f'<rect class="{escape(kind)}" x="{left:.1f}" y="{top}" width="{max(1.5, right - left):.1f}" '
                f'height="{_ROW - 6}">{title}</rect>'
            )
    return _svg(height, [*drawn, *_time_axis(start, end, height)])


def _x(at: float, first: float, last: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - 20) * ((at - first) / (last - first) if last > first else 0.5)


def _y(value: float, low: float, high: float) -> float:
    return 10 + (_HEIGHT - 40) * (1 - ((value - low) / (high - low) if high > low else 0.5))


def _time_axis(first: float, last: float, height: int) -> list[str]:
    ends = [(_LEFT, first, "start"), (_WIDTH - 20, last, "end")]
    return [f'<text x="{x}" y="{height - 6}" text-anchor="{anchor}">{_clock(at)}</text>' for x, at, anchor in ends]


def _clock(at: float) -> str:
    return moment(datetime.fromtimestamp(at, UTC))


def _svg(height: int, parts: Sequence[str]) -> str:
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(parts)}</svg>'
