# SPDX-License-Identifier: Apache-2.0
"""`forebay.progress`: the live progress of a streaming query, in a terminal, a notebook or a log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

from forebay.inspection.query_progress import QueryProgress, html, lines, one_line

_log = logging.getLogger(__name__)


class Query(Protocol):
    """The methods of Spark's `StreamingQuery` that `progress` uses."""

    @property
    def name(self) -> str | None:
        """Return the name of the query."""

    @property
    def lastProgress(self) -> Any:  # noqa: ANN401, N802 - Spark's mapping, and Spark's name
        """Return the last progress report; None before the first one."""

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - Spark's name
        """Wait until the query ends, or for `timeout` seconds; return whether the query has ended."""


def progress(query: Query, *, every: float = 1.0, file: TextIO | None = None) -> None:
    """Show the progress of a streaming query until it ends. Blocks; interrupting it leaves the query running.

    For each source of forebay it shows a bar of the backlog, the rows per second, the estimated time to catch up, and
    the lag of the worst splits. A terminal is updated in place if `rich` is installed (the extra `cli`), a notebook as
    HTML; otherwise each new report is one line. An error while showing progress ends neither the wait nor the query.

    Args:
        query: The result of `DataStreamWriter.start`.
        every: Seconds between two updates.
        file: The output; standard output by default.

    Raises:
        StreamingQueryException: The query failed, as from `query.awaitTermination()`.
    """
    state = QueryProgress()
    with _view(file or sys.stdout) as view:
        ended = False
        while not ended:
            _update(view, query, state)
            ended = bool(query.awaitTermination(every))  # type: ignore[arg-type]  # fractions work, but are not typed
        _update(view, query, state, ended=True)


class View(Protocol):
    """The output of `progress`: shows the progress of a query in a terminal, a notebook or a log."""

    def show(self, state: QueryProgress) -> None:
        """Show the progress, replacing what was shown before if possible."""


def _update(view: View, query: Query, state: QueryProgress, *, ended: bool = False) -> None:
    try:
        state.update(query.name, query.lastProgress, ended=ended)
        view.show(state)
    except Exception:  # noqa: BLE001 - a closed terminal or a stopped session must not end the wait
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
    """The view for logs and simple terminals: one line for each new report."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._shown = ""

    def show(self, state: QueryProgress) -> None:
        text = one_line(state)
        if text != self._shown:
            self._shown = text
            print(text, file=self._file, flush=True)  # the output that `progress` was asked for


class _Terminal:
    """The view for terminals: lines with colours, updated in place."""

    def __init__(self, live: Any) -> None:  # noqa: ANN401 - rich is optional, and so are its types
        self._live = live

    def show(self, state: QueryProgress) -> None:
        from rich.text import Text

        text = Text("\n".join(lines(state)), no_wrap=True, overflow="ellipsis")
        text.highlight_regex("█+", "green")
        text.highlight_regex("░+", "bright_black")
        text.highlight_regex(r"[\d,]+ (rows|bytes|splits) behind", "yellow")
        self._live.update(text, refresh=True)


class _Notebook:
    """The view for notebooks: one output cell, updated in place."""

    def __init__(self, display: Any) -> None:  # noqa: ANN401 - IPython's module, if there is one
        self._display = display
        self._handle: Any = None

    def show(self, state: QueryProgress) -> None:
        shown = self._display.HTML(html(state))
        if self._handle is None:
            self._handle = self._display.display(shown, display_id=True)
        else:
            self._handle.update(shown)


def _notebook() -> Any:  # noqa: ANN401 - as above
    """Return the module IPython.display if this process is the kernel of a notebook; it is never imported here."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return sys.modules.get("IPython.display") if hasattr(shell, "kernel") else None
