# SPDX-License-Identifier: Apache-2.0
"""What every benchmark leaves: a table in the terminal, a picture, and figures in `build/bench/NAME.json`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median

from forebay.text_tables import text_table

WHERE = Path("build/bench")


@dataclass(frozen=True)
class Cell:
    """One comparison: the same work, ours and the peer's, in the same run, interleaved.

    Args:
        name: What was done.
        peer: Who else did it.
        ours_s: Our wall seconds, one per repeat.
        peer_s: The peer's.
        ours_cpu: Our CPU seconds of the whole process tree, one per repeat.
        peer_cpu: The peer's.
        rows: Rows of the work.
    """

    name: str
    peer: str
    ours_s: list[float]
    peer_s: list[float]
    ours_cpu: list[float]
    peer_cpu: list[float]
    rows: int

    @property
    def ratio(self) -> float:
        """Median peer seconds / median our seconds: more than 1 is faster."""
        return median(self.peer_s) / median(self.ours_s)

    def as_json(self) -> dict[str, object]:
        """The figures as other tools read them."""
        return {
            "cell": self.name,
            "peer": self.peer,
            "ours_s": self.ours_s,
            "peer_s": self.peer_s,
            "ratio": round(self.ratio, 3),
            "rows": self.rows,
            "ours_cpu_s_per_million_rows": round(median(self.ours_cpu) / self.rows * 1e6, 3),
            "peer_cpu_s_per_million_rows": round(median(self.peer_cpu) / self.rows * 1e6, 3),
        }

    def row(self) -> list[str]:
        """The figures as people read them."""
        figures = self.as_json()
        return [
            self.name,
            _spread(self.ours_s),
            _spread(self.peer_s),
            f"{self.ratio:.2f}×",
            f"{figures['ours_cpu_s_per_million_rows']}",
            f"{figures['peer_cpu_s_per_million_rows']}",
        ]


_HEADER = [
    "cell",
    "ours, s: median (min-max)",
    "peer, s: median (min-max)",
    "ratio",
    "our CPU s/M rows",
    "peer CPU s/M rows",
]


def publish(name: str, cells: list[Cell]) -> None:
    """Print the table; write the figures and the picture."""
    WHERE.mkdir(parents=True, exist_ok=True)
    (WHERE / f"{name}.json").write_text(json.dumps([cell.as_json() for cell in cells], indent=2) + "\n")
    (WHERE / f"{name}.svg").write_text(_picture(cells))
    print(text_table(_HEADER, [cell.row() for cell in cells]))
    print(f"ratio = median peer seconds / median our seconds; figures and picture: {WHERE}/{name}.json, .svg")


def _spread(seconds: list[float]) -> str:
    return f"{median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f})"


def _picture(cells: list[Cell]) -> str:
    """Draw one bar per cell, as long as its ratio; the line at 1 is the peer."""
    longest = max(1.5, *(cell.ratio for cell in cells))
    scale, top = 460 / longest, 30
    parts = [f'<text x="10" y="18" font-weight="bold">Times as fast as {escape(cells[0].peer)}</text>']
    for number, cell in enumerate(cells):
        y = top + 26 * number
        fill = "#2a7f62" if cell.ratio >= 1 else "#b5523b"
        parts.append(f'<text x="190" y="{y + 14}" text-anchor="end">{escape(cell.name)}</text>')
        parts.append(f'<rect x="200" y="{y}" width="{cell.ratio * scale:.0f}" height="18" fill="{fill}"/>')
        parts.append(f'<text x="{206 + cell.ratio * scale:.0f}" y="{y + 14}">{cell.ratio:.2f}×</text>')
    height = top + 26 * len(cells)
    parts.append(f'<path d="M{200 + scale:.0f} {top - 6}V{height}" stroke="#444" stroke-dasharray="4 3"/>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="740" height="{height + 10}" font-family="sans-serif" '
        f'font-size="13"><rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )
