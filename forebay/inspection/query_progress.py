# SPDX-License-Identifier: Apache-2.0
"""How a streaming query stands, from Spark's progress reports: bars, rates, and when it will have caught up."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Any, Final

from forebay.framework.microbatch.offsets.offset import Agreed, Whole
from forebay.inspection.tables import printable

_WIDTH: Final = 24
_SPLITS: Final = 5
_WINDOW: Final = 12
"""Reports over which the speed is taken."""

_NO_POSITION: Final = {Whole.WHOLE.value, Agreed.AGREED.value}
_FULL, _EMPTY = "█", "░"


@dataclass(frozen=True)
class SplitStanding:
    """One split that is behind.

    Args:
        name: Its id.
        at: Where it stands, in words.
        behind: How far it is behind; None = not known.
    """

    name: str
    at: str
    behind: int | None


@dataclass(frozen=True)
class SourceStanding:
    """One source of a query.

    Args:
        name: Its format name, or what Spark calls it if it is none of forebay's.
        ours: Whether it is one of forebay's.
        rate: Rows a second, as Spark processes them.
        behind: How much is there and not read, in `unit`; None = not known.
        unit: `rows`, `bytes` or `splits`.
        share: How much of the backlog is read, 0 to 1; None = not known.
        seconds: Until it has caught up, at this speed; None = not known, infinite = it does not.
        splits: Those that are furthest behind.
        more: How many more are behind.
        trouble: Why the last look at what there is failed, in words; empty if it did not.
    """

    name: str
    ours: bool
    rate: float
    behind: int | None = None
    unit: str = "rows"
    share: float | None = None
    seconds: float | None = None
    splits: tuple[SplitStanding, ...] = ()
    more: int = 0
    trouble: str = ""


class Standings:
    """What the reports say, one after the other. Called on one thread; the same report again changes nothing."""

    def __init__(self) -> None:
        self.query = "query"
        """The name of the query."""
        self.batch: int | None = None
        """The number of its last micro-batch; None before the first report."""
        self.ended = False
        """Whether the query has ended."""
        self.sources: tuple[SourceStanding, ...] = ()
        """Its sources."""
        self._stamp: object = None
        self._backlogs: dict[int, _Backlog] = {}

    def update(self, name: str | None, report: Mapping[str, Any] | None, *, ended: bool = False) -> None:
        """Take the last report of a query.

        Args:
            name: The name of the query.
            report: Spark's progress report; None before the first.
            ended: The query has ended.
        """
        self.query, self.ended = printable(name or "query"), ended
        if not report or report["timestamp"] == self._stamp:
            return
        self._stamp, self.batch = report["timestamp"], report["batchId"]
        now = datetime.fromisoformat(report["timestamp"]).timestamp()
        self.sources = tuple(self._source(index, each, now) for index, each in enumerate(report["sources"]))

    def _source(self, index: int, source: Mapping[str, Any], now: float) -> SourceStanding:
        rate = float(source.get("processedRowsPerSecond") or 0.0)
        report = _ours(source.get("latestOffset"))
        if report is None:
            return SourceStanding(printable(_short_class(str(source.get("description")))), False, rate)
        unit, behind = _behind(report)
        backlog = self._backlogs.setdefault(index, _Backlog())
        backlog.add(now, behind, int((report.get("last") or {}).get(unit) or 0), unit)
        worst = [each for each in report["worst"] if each.get("behind") != 0]
        return SourceStanding(
            printable(str(report["source"])),
            True,
            rate,
            behind,
            unit,
            backlog.share(),
            backlog.seconds(),
            tuple(_split(each) for each in worst[:_SPLITS]),
            max(0, int(report["splits"]["behind"]) - min(_SPLITS, len(worst))),
            _trouble(report.get("discovery") or {}),
        )


class _Backlog:
    """How much there is to read, over time: the largest of it since it was last caught up is the whole of the bar."""

    def __init__(self) -> None:
        self._whole = 0
        self._unit = ""
        self._seen: deque[tuple[float, int]] = deque(maxlen=_WINDOW)

    def add(self, now: float, behind: int, read: int, unit: str) -> None:
        if unit != self._unit:
            self._whole, self._unit = 0, unit
            self._seen.clear()
        if not self._whole:
            self._whole = behind + read  # what the first micro-batch took was there too
        self._whole = max(self._whole, behind) if behind else 0
        self._seen.append((now, behind))

    def share(self) -> float:
        behind = self._seen[-1][1]
        return (self._whole - behind) / self._whole if behind else 1.0

    def seconds(self) -> float | None:
        (first, before), (last, behind) = self._seen[0], self._seen[-1]
        if not behind:
            return 0.0
        if last <= first:
            return None
        speed = (before - behind) / (last - first)
        return behind / speed if speed > 0 else float("inf")


def lines(standings: Standings) -> list[str]:
    """Return the view for a terminal: the query, each source with its bar, and each of its worst splits."""
    shown = [_title(standings)]
    for source in standings.sources:
        # Two lines, so that a narrow terminal cuts nothing off.
        shown += [f"  {source.name}  {_bar(source)}".rstrip(), f"    {_words(source)}"]
        width = max((len(split.name) for split in source.splits), default=0)
        for split in source.splits:
            behind = "behind, how far is not known" if split.behind is None else f"{split.behind:,} behind"
            shown.append(f"    {split.name.ljust(width)}  {behind}, {split.at}")
        if source.more:
            shown.append(f"    and {source.more:,} more behind")
        if source.trouble:
            shown.append(f"    {source.trouble}")
    return shown


def one_line(standings: Standings) -> str:
    """Return the view for a log: all of it in one line, without the splits."""
    told = [f"{one.name} {_percent(one)}{_words(one)}" for one in standings.sources]
    return "; ".join([_title(standings), *told, *(one.trouble for one in standings.sources if one.trouble)])


def html(standings: Standings) -> str:
    """Return the view for a notebook."""
    parts = [f"<p><b>{escape(_title(standings))}</b></p>"]
    for source in standings.sources:
        bar = "" if source.share is None else f'<progress value="{source.share:.3f}" max="1"></progress> '
        parts.append(f"<p>{escape(source.name)} {bar}{escape(_words(source))}</p>")
        cells = (
            f"<tr><td>{escape(split.name)}</td><td>{'' if split.behind is None else f'{split.behind:,}'}</td>"
            f"<td>{escape(split.at)}</td></tr>"
            for split in source.splits
        )
        if source.splits:
            head = "<tr><th>split</th><th>behind</th><th>position</th></tr>"
            parts.append(f"<table><thead>{head}</thead><tbody>{''.join(cells)}</tbody></table>")
        if source.more:
            parts.append(f"<p>and {source.more:,} more behind</p>")
        if source.trouble:
            parts.append(f"<p>{escape(source.trouble)}</p>")
    return "".join(parts)


def _title(standings: Standings) -> str:
    if standings.batch is None:
        state = "ended before its first micro-batch" if standings.ended else "starting"
    else:
        state = f"micro-batch {standings.batch:,}{', ended' if standings.ended else ''}"
    return f"{standings.query}, {state}"


def _bar(source: SourceStanding) -> str:
    if source.share is None:
        return ""
    full = int(source.share * _WIDTH)
    return f"{_FULL * full}{_EMPTY * (_WIDTH - full)} {_percent(source)}"


def _percent(source: SourceStanding) -> str:
    # Rounded down: 100 % means caught up.
    return "" if source.share is None else f"{int(source.share * 100 + 1e-9)} %  "


def _words(source: SourceStanding) -> str:
    speed = f"{source.rate:,.0f} rows/s"
    if not source.ours or source.behind is None:
        return speed
    if source.behind == 0:
        return f"caught up, {speed}"
    return f"{source.behind:,} {source.unit} behind, {speed}{_when(source.seconds)}"


def _when(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds == float("inf"):
        return ", not catching up"
    if seconds < 90:
        return f", caught up in about {max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f", caught up in about {minutes} min" if minutes < 90 else f", caught up in about {round(seconds / 3600)} h"


def _ours(latest: object) -> Mapping[str, Any] | None:
    """Return a source's own report, if it is one of forebay's."""
    if isinstance(latest, str):
        try:
            latest = json.loads(latest)
        except ValueError:
            return None
    return latest if isinstance(latest, Mapping) and {"source", "splits", "worst"} <= latest.keys() else None


def _behind(report: Mapping[str, Any]) -> tuple[str, int]:
    amounts = report["behind"]
    for unit in ("rows", "bytes"):
        if unit in amounts:
            return unit, int(amounts[unit])
    return "splits", int(report["splits"]["behind"])


def _trouble(discovery: Mapping[str, Any]) -> str:
    error = discovery.get("error")
    if not error or error["over"]:
        return ""
    at = datetime.fromisoformat(error["at"])
    return f"the last look failed at {at:%H:%M:%S} UTC: {printable(str(error['text']).partition(chr(10))[0])}"


def _split(each: Mapping[str, Any]) -> SplitStanding:
    name = printable(str(each["split"]))
    position, end = each.get("position"), each.get("end")
    at = "not begun" if position is None else f"at {_number(position)}"
    if end is not None and end not in _NO_POSITION:
        at += f" of {_number(end)}"
    behind = each.get("behind")
    return SplitStanding(name if len(name) <= 40 else f"…{name[-39:]}", at, None if behind is None else int(behind))


def _number(position: object) -> str:
    return f"{position:,}" if isinstance(position, int) else printable(str(position))


def _short_class(description: str) -> str:
    """Return what Spark calls a source, without packages and addresses in memory."""
    return re.sub(r"^(?:\w+\.)+|@[0-9a-f]+$", "", description) or "source"
