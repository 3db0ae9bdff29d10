# SPDX-License-Identifier: Apache-2.0
"""`forebay.progress`: the live progress of a streaming query or a run, in a terminal, a notebook or a log."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Any, Final, NamedTuple, Protocol, TextIO, overload

import pyarrow as pa

from forebay.errors import printable
from forebay.framework.inprocess.running import Run
from forebay.framework.microbatch.offset import UnknownEnd
from forebay.inspection.event_time import EventTimeState, dropped_rows, dropped_rows_advice, event_time_words, ours

# -- The outputs of progress: a terminal, a notebook, or lines of text.


_log = logging.getLogger(__name__)

_WIDTH: Final = 24
_FULL, _EMPTY = "█", "░"


class Shown(NamedTuple):
    """A rendered progress, with one form for each kind of output."""

    lines: Sequence[str]
    line: str
    html: str


class ProgressView(Protocol):
    """An output of `forebay.progress`."""

    def show(self, shown: Shown) -> None:
        """Show the progress, replacing what was shown before if possible."""


@contextmanager
def open_view(file: TextIO) -> Iterator[ProgressView]:
    """Yield the view for an output: a notebook cell (for standard output in a notebook), a terminal, or lines."""
    if file is sys.stdout and (display := _notebook()) is not None:
        yield _Notebook(display)
        return
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        yield _Lines(file)
        return
    console = Console(file=file)
    if not console.is_terminal:
        yield _Lines(file)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield _Terminal(live)


def try_show(view: ProgressView, progress: Callable[[], Shown]) -> None:
    """Show progress. Log an error, such as that of a closed terminal, because it must not end the query or run."""
    try:
        view.show(progress())
    except Exception:  # noqa: BLE001 - see above
        _log.debug("the progress could not be shown", exc_info=True)


def bar(share: float) -> str:
    """Return a bar in block characters that is full at a share of 1."""
    filled = int(_WIDTH * share)
    return _FULL * filled + _EMPTY * (_WIDTH - filled)


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    return _notebook() is not None


class _Lines:
    """The view for logs and simple terminals: one line for each new report."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._shown = ""

    def show(self, shown: Shown) -> None:
        if shown.line != self._shown:
            self._shown = shown.line
            print(shown.line, file=self._file, flush=True)  # the output that `progress` was asked for


class _Terminal:
    """The view for terminals: lines with colours, updated in place."""

    def __init__(self, live: Any) -> None:  # noqa: ANN401 - rich is optional, and so are its types
        self._live = live

    def show(self, shown: Shown) -> None:
        from rich.text import Text

        text = Text("\n".join(shown.lines), no_wrap=True, overflow="ellipsis")
        text.highlight_regex("█+", "green")
        text.highlight_regex("░+", "bright_black")
        text.highlight_regex(r"[\d,]+ (rows|bytes|splits) behind", "yellow")
        self._live.update(text, refresh=True)


class _Notebook:
    """The view for notebooks: one output cell, updated in place."""

    def __init__(self, display: Any) -> None:  # noqa: ANN401 - IPython's module, if there is one
        self._display = display
        self._handle: Any = None

    def show(self, shown: Shown) -> None:
        cell = self._display.HTML(shown.html)
        if self._handle is None:
            self._handle = self._display.display(cell, display_id=True)
        else:
            self._handle.update(cell)


def _notebook() -> Any:  # noqa: ANN401 - as above
    """Return the module IPython.display if this process is a notebook's kernel; else None. Never imports IPython."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return sys.modules.get("IPython.display") if hasattr(shell, "kernel") else None


class QueryWithProgress(Protocol):
    """The methods of Spark's `StreamingQuery` that `progress` uses."""

    @property
    def name(self) -> str | None:
        """Return the name of the query."""

    @property
    def lastProgress(self) -> Any:  # noqa: ANN401, N802 - Spark's mapping, and Spark's name
        """Return the last progress report; None before the first one."""

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - Spark's name
        """Wait until the query ends, or for `timeout` seconds; return whether the query has ended."""


@overload
def progress(read: QueryWithProgress, *, every: float = 1.0, file: TextIO | None = None) -> None: ...


@overload
def progress(read: Run, *, every: float = 1.0, file: TextIO | None = None) -> Iterator[pa.RecordBatch]: ...


def progress(
    read: QueryWithProgress | Run, *, every: float = 1.0, file: TextIO | None = None
) -> Iterator[pa.RecordBatch] | None:
    """Show the progress of a streaming query until it ends, or of a run while it is read.

    For a query, `progress` blocks; interrupting it leaves the query running. Each source of forebay has a bar of the
    backlog, the rows per second, the estimated time to catch up, and the lag of the worst splits.

    For a run, `for batch in forebay.progress(forebay.run(source))`, `progress` yields the record batches. The output
    shows the finished and total splits (files) and bytes, and the rates. Bytes count when their split is finished.

    A terminal is updated in place if `rich` is installed (the extra `cli`), and a notebook shows HTML. Otherwise each
    new report is one line. An error while showing progress ends neither the wait nor the read.

    Args:
        read: The result of `DataStreamWriter.start`, or of `forebay.run`.
        every: Seconds between two updates.
        file: The output. The default for a query is standard output. The default for a run is standard error if it is a
            terminal, else no output.

    Raises:
        StreamingQueryException: The query failed, as from `query.awaitTermination()`.
    """
    if isinstance(read, Run):
        return follow(read, every=every, file=file)
    query = read
    state = QueryProgress()
    with open_view(file or sys.stdout) as view:
        ended = False
        while not ended:
            _update(view, query, state)
            ended = bool(query.awaitTermination(every))  # type: ignore[arg-type]  # fractions work, but are not typed
        _update(view, query, state, ended=True)
    return None


def _update(view: ProgressView, query: QueryWithProgress, state: QueryProgress, *, ended: bool = False) -> None:
    def shown() -> Shown:
        state.update(query.name, query.lastProgress, ended=ended)
        return Shown(lines(state), one_line(state), html(state))

    try_show(view, shown)


# -- The progress of a streaming query from Spark's reports: backlog, rate, and estimated time to catch up.


_SPLITS: Final = 5
_WINDOW: Final = 12
"""Number of reports over which the speed is averaged."""

_NO_POSITION: Final = {UnknownEnd.WHOLE.value, UnknownEnd.NEGOTIATED.value}


@dataclass(frozen=True)
class SplitLag:
    """A split that is behind. `at` is its position as text; `behind` is its lag in rows, None if unknown."""

    name: str
    at: str
    behind: int | None


@dataclass(frozen=True)
class SourceProgress:
    """The progress of one source of a query.

    Args:
        name: The source's format name; Spark's name for the source if it is not one of forebay.
        ours: Whether it is a source of forebay.
        rate: Rows per second, as Spark processes them.
        behind: The unread amount, in `unit`; None if unknown.
        unit: `rows`, `bytes` or `splits`.
        share: The fraction of the backlog that has been read, 0 to 1; None if unknown.
        seconds: Estimated seconds until the source catches up; None if unknown, infinite if the lag does not shrink.
        splits: The splits with the largest lag.
        more: The number of other splits that are behind.
        problem: The error of the last discovery, as text; empty if it succeeded.
        event_time: The state of alignment; None if alignment is off.
    """

    name: str
    ours: bool
    rate: float
    behind: int | None = None
    unit: str = "rows"
    share: float | None = None
    seconds: float | None = None
    splits: tuple[SplitLag, ...] = ()
    more: int = 0
    problem: str = ""
    event_time: EventTimeState | None = None


class QueryProgress:
    """The progress of a query, computed from its progress reports.

    For one thread. A repeated report has no effect.
    """

    def __init__(self) -> None:
        self.query = "query"
        """The name of the query."""
        self.batch: int | None = None
        """The number of the query's last micro-batch; None before the first report."""
        self.ended = False
        """Whether the query has ended."""
        self.sources: tuple[SourceProgress, ...] = ()
        """The progress of each source of the query."""
        self.dropped = 0
        """The number of rows that Spark's watermark dropped, summed over all reports so far."""
        self.advice = ""
        """Advice on how to avoid dropped rows; empty if none were dropped."""
        self._stamp: object = None
        self._backlogs: dict[int, _WorkLeft] = {}

    def update(self, name: str | None, report: Mapping[str, Any] | None, *, ended: bool = False) -> None:
        """Update the state from the query's last progress report.

        `name` is the name of the query; `ended` is whether the query has ended.
        """
        self.query, self.ended = printable(name or "query"), ended
        if not report or report["timestamp"] == self._stamp:
            return
        self._stamp, self.batch = report["timestamp"], report["batchId"]
        now = datetime.fromisoformat(report["timestamp"]).timestamp()
        self.sources = tuple(self._source(index, each, now) for index, each in enumerate(report["sources"]))
        self.dropped += dropped_rows(report)
        self.advice = dropped_rows_advice(report) or self.advice

    def _source(self, index: int, source: Mapping[str, Any], now: float) -> SourceProgress:
        rate = float(source.get("processedRowsPerSecond") or 0.0)
        report = ours(source.get("latestOffset"))
        if report is None:
            return SourceProgress(printable(_short_class(str(source.get("description")))), False, rate)
        unit, behind = _behind(report)
        backlog = self._backlogs.setdefault(index, _WorkLeft())
        backlog.add(now, behind, int((report.get("last") or {}).get(unit) or 0), unit)
        worst = [each for each in report["worst"] if each.get("behind") != 0]
        return SourceProgress(
            printable(str(report["source"])),
            True,
            rate,
            behind,
            unit,
            backlog.share(),
            backlog.seconds(),
            tuple(_split(each) for each in worst[:_SPLITS]),
            max(0, int(report["splits"]["behind"]) - min(_SPLITS, len(worst))),
            _problem(report.get("discovery") or {}),
            EventTimeState.of(report.get("eventTime")),
        )


class _WorkLeft:
    """The backlog of a source over time.

    The progress bar's length is all that there was to read since the source last caught up: what was read, and the
    backlog, which may grow.
    """

    def __init__(self) -> None:
        self._read = self._whole = 0
        self._unit = ""
        self._history: deque[tuple[float, int]] = deque(maxlen=_WINDOW)

    def add(self, now: float, behind: int, read: int, unit: str) -> None:
        if unit != self._unit:
            self._read, self._whole, self._unit = 0, 0, unit
            self._history.clear()
        self._read += read
        self._whole = max(self._whole, self._read + behind)
        if not behind:
            self._read = self._whole = 0
        self._history.append((now, behind))

    def share(self) -> float:
        behind = self._history[-1][1]
        return (self._whole - behind) / self._whole if behind else 1.0

    def seconds(self) -> float | None:
        (first, before), (last, behind) = self._history[0], self._history[-1]
        if not behind:
            return 0.0
        if last <= first:
            return None
        speed = (before - behind) / (last - first)
        return behind / speed if speed > 0 else float("inf")


def lines(state: QueryProgress) -> list[str]:
    """Return the lines for a terminal: the query, each source with its bar, and its worst splits."""
    shown = [_title(state)]
    for source in state.sources:
        # Two lines, to fit into a narrow terminal.
        shown += [f"  {source.name}  {_bar(source)}".rstrip(), f"    {_words(source)}"]
        width = max((len(split.name) for split in source.splits), default=0)
        for split in source.splits:
            behind = "behind by an unknown amount" if split.behind is None else f"{split.behind:,} behind"
            shown.append(f"    {split.name.ljust(width)}  {behind}, {split.at}")
        if source.more:
            shown.append(f"    and {source.more:,} more behind")
        shown += [f"    {remark}" for remark in _remarks(source)]
    if state.dropped:
        shown.append(f"  {_dropped(state)}")
    return shown


def one_line(state: QueryProgress) -> str:
    """Return one line for a log, without the splits."""
    sources = [f"{source.name} {_percent(source)}{_words(source)}" for source in state.sources]
    remarks = [remark for source in state.sources for remark in _remarks(source)]
    return "; ".join([_title(state), *sources, *remarks, *([_dropped(state)] if state.dropped else [])])


def html(state: QueryProgress) -> str:
    """Return the HTML for a notebook."""
    parts = [f"<p><b>{escape(_title(state))}</b></p>"]
    for source in state.sources:
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
        parts += [f"<p>{escape(remark)}</p>" for remark in _remarks(source)]
    if state.dropped:
        parts.append(f"<p>{escape(_dropped(state))}</p>")
    return "".join(parts)


def _remarks(source: SourceProgress) -> list[str]:
    """Return lines about a source besides its backlog: alignment, and the error of the last discovery."""
    event_time = [] if source.event_time is None else [event_time_words(source.event_time)]
    return [*event_time, *([source.problem] if source.problem else [])]


def _dropped(state: QueryProgress) -> str:
    text = f"Spark's watermark dropped {state.dropped:,} row{'s' * (state.dropped != 1)}"
    return f"{text}: {state.advice}" if state.advice else text


def _title(state: QueryProgress) -> str:
    if state.batch is None:
        phase = "ended before its first micro-batch" if state.ended else "starting"
    else:
        phase = f"micro-batch {state.batch:,}{', ended' if state.ended else ''}"
    return f"{state.query}, {phase}"


def _bar(source: SourceProgress) -> str:
    return "" if source.share is None else f"{bar(source.share)} {_percent(source)}"


def _percent(source: SourceProgress) -> str:
    # Rounded down: 100 % means caught up.
    return "" if source.share is None else f"{int(source.share * 100 + 1e-9)} %  "


def _words(source: SourceProgress) -> str:
    speed = f"{source.rate:,.0f} rows/s"
    if not source.ours or source.behind is None:
        return speed
    if source.behind == 0:
        return f"caught up, {speed}"
    held = source.event_time is not None and source.event_time.held > 0
    when = ", held back in event time" if held and source.seconds == float("inf") else _when(source.seconds)
    return f"{source.behind:,} {source.unit} behind, {speed}{when}"


def _when(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds == float("inf"):
        return ", not catching up"
    if seconds < 90:
        return f", caught up in about {max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f", caught up in about {minutes} min" if minutes < 90 else f", caught up in about {round(seconds / 3600)} h"


def _behind(report: Mapping[str, Any]) -> tuple[str, int]:
    amounts = report["behind"]
    for unit in ("rows", "bytes"):
        if unit in amounts:
            return unit, int(amounts[unit])
    return "splits", int(report["splits"]["behind"])


def _problem(discovery: Mapping[str, Any]) -> str:
    error = discovery.get("error")
    if not error or error["over"]:
        return ""
    at = datetime.fromisoformat(error["at"])
    return f"the last discovery failed at {at:%H:%M:%S} UTC: {printable(str(error['text']).partition(chr(10))[0])}"


def _split(each: Mapping[str, Any]) -> SplitLag:
    name = printable(str(each["split"]))
    position, end = each.get("position"), each.get("end")
    at = "not begun" if position is None else f"at {_number(position)}"
    if end is not None and end not in _NO_POSITION:
        at += f" of {_number(end)}"
    behind = each.get("behind")
    return SplitLag(name if len(name) <= 40 else f"…{name[-39:]}", at, None if behind is None else int(behind))


def _number(position: object) -> str:
    return f"{position:,}" if isinstance(position, int) else printable(str(position))


def _short_class(description: str) -> str:
    """Return Spark's description of a source without packages and memory addresses."""
    return re.sub(r"^(?:\w+\.)+|@[0-9a-f]+$", "", description) or "source"


# -- The progress of a run in this process: finished splits (or files), finished bytes, and the rate.


_SHARE: Final = 20
"""Updates take at most 1 / `_SHARE` of the time: one update takes a second for a million splits."""


def follow(run: Run, *, every: float, file: TextIO | None) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a run, and show its progress. See `forebay.progress`."""
    out = file or (sys.stdout if in_notebook() else sys.stderr if sys.stderr.isatty() else None)
    if out is None:
        yield from run
        return
    state = RunProgress(run)
    with open_view(out) as view:
        due = 0.0
        for batch in run:
            state.rows += batch.num_rows
            began = time.monotonic()
            if began >= due:
                try_show(view, state.shown)
                ended = time.monotonic()
                due = ended + max(every, _SHARE * (ended - began))
            yield batch
        try_show(view, state.shown)


class RunProgress:
    """The progress of a run. For the thread that reads the run.

    Args:
        run: The run, before its first record batch.
    """

    def __init__(self, run: Run) -> None:
        self.rows = 0
        """Number of rows yielded so far."""
        self._run = run
        self._began = time.monotonic()
        self._seen = False
        self._bytes: int | None = None  # of all splits, at the first record batch; None if unknown

    def shown(self) -> Shown:
        """Return the current progress, rendered for each kind of output."""
        source = self._run.source
        seconds = max(time.monotonic() - self._began, 1e-3)
        words, share = [], None
        backlog = self._run.backlog()
        if backlog is not None:
            unit = "files" if source.name == "forebay_files" else "splits"
            words.append(f"{backlog.finished:,} of {backlog.splits:,} {unit}")
            share = backlog.finished / max(backlog.splits, 1) if source.bounded else None
            if not self._seen:
                self._seen, self._bytes = True, backlog.bytes_left
            if source.bounded and self._bytes and backlog.bytes_left is not None:
                done = max(0, self._bytes - backlog.bytes_left)
                words += [f"{_megabytes(done)} of {_megabytes(self._bytes)} MB", f"{_megabytes(done / seconds)} MB/s"]
                share = done / self._bytes
        words.append(f"{self.rows / seconds:,.0f} rows/s")
        name, text = printable(source.name), ", ".join(words)
        percent = "" if share is None else f"{int(share * 100)} %"  # rounded down, as of a query
        head = "" if share is None else f'<progress value="{share:.3f}" max="1"></progress> '
        return Shown(
            [f"{name}  {'' if share is None else bar(share)} {percent}", f"  {text}"],
            f"{name} {percent}: {text}",
            f"<p>{escape(name)} {head}{escape(text)}</p>",
        )


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.1f}"
