# SPDX-License-Identifier: Apache-2.0
"""`forebay.progress`: how a streaming query gets on, live, in a terminal, a notebook or a log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

from forebay.inspection.query_progress import Standings, html, lines, one_line

_log = logging.getLogger(__name__)


class Query(Protocol):
    """What is used of Spark's `StreamingQuery`."""

    @property
    def name(self) -> str | None:
        """Return the name that the user gave it."""

    @property
    def lastProgress(self) -> Any:  # noqa: ANN401, N802 - Spark's mapping, and Spark's name
        """Return the last report, None before the first."""

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - Spark's name
        """Wait for the end; return whether it came within the time."""


def progress(query: Query, *, every: float = 1.0, file: TextIO | None = None) -> None:
    """Show how a streaming query gets on until it ends. Called by users, in their own process; blocks.

    For each source of forebay: a bar of how much of the backlog is read, the rows a second, when it will have caught
    up, and how far behind the worst splits are. In a terminal it is drawn in place if `rich` is installed (the extra
    `cli`), in a notebook as HTML; anywhere else each new report is one line. What cannot be shown is left out: the
    view never ends the wait, nor the query. Interrupting it leaves the query running.

    Args:
        query: What `DataStreamWriter.start` gave.
        every: Seconds between two looks.
        file: Where to write; standard output by default.

    Raises:
        StreamingQueryException: The query failed; as from `query.awaitTermination()`.
    """
    standings = Standings()
    with _view(file or sys.stdout) as view:
        ended = False
        while not ended:
            _quietly(view, query, standings)
            ended = bool(query.awaitTermination(every))  # type: ignore[arg-type]  # fractions work, and are not said to
        _quietly(view, query, standings, ended=True)


class View(Protocol):
    """Where a standing is shown."""

    def show(self, standings: Standings) -> None:
        """Show it, in place of the last one where that can be."""


def _quietly(view: View, query: Query, standings: Standings, *, ended: bool = False) -> None:
    try:
        standings.update(query.name, query.lastProgress, ended=ended)
        view.show(standings)
    except Exception:  # noqa: BLE001 - a terminal that went away, a session that stops: the query matters, not the view
        _log.debug("the progress could not be shown", exc_info=True)


@contextmanager
def _view(file: TextIO) -> Iterator[View]:
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


class _Lines:
    """A line for each new report: for logs, and terminals that cannot draw."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._shown = ""

    def show(self, standings: Standings) -> None:
        text = one_line(standings)
        if text != self._shown:
            self._shown = text
            print(text, file=self._file, flush=True)  # what `progress` is asked for, where nothing can be redrawn


class _Terminal:
    """Drawn in place, with colours."""

    def __init__(self, live: Any) -> None:  # noqa: ANN401 - rich is optional, and so are its types
        self._live = live

    def show(self, standings: Standings) -> None:
        from rich.text import Text

        text = Text("\n".join(lines(standings)), no_wrap=True, overflow="ellipsis")
        text.highlight_regex("█+", "green")
        text.highlight_regex("░+", "bright_black")
        text.highlight_regex(r"[\d,]+ (rows|bytes|splits) behind", "yellow")
        self._live.update(text, refresh=True)


class _Notebook:
    """One output cell, replaced in place."""

    def __init__(self, display: Any) -> None:  # noqa: ANN401 - IPython's module, if there is one
        self._display = display
        self._handle: Any = None

    def show(self, standings: Standings) -> None:
        shown = self._display.HTML(html(standings))
        if self._handle is None:
            self._handle = self._display.display(shown, display_id=True)
        else:
            self._handle.update(shown)


def _notebook() -> Any:  # noqa: ANN401 - as above
    """Return IPython's module for showing things if this process is the kernel of a notebook; it is never imported."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return sys.modules.get("IPython.display") if hasattr(shell, "kernel") else None
