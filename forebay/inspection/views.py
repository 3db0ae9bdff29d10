# SPDX-License-Identifier: Apache-2.0
"""The outputs of progress: a terminal, a notebook, or lines of text."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol, TextIO

_log = logging.getLogger(__name__)

_WIDTH: Final = 24
_FULL, _EMPTY = "█", "░"


class Shown(NamedTuple):
    """A rendered progress, with one form for each kind of output."""

    lines: Sequence[str]
    line: str
    html: str


class View(Protocol):
    """An output of `forebay.progress`."""

    def show(self, shown: Shown) -> None:
        """Show the progress, replacing what was shown before if possible."""


@contextmanager
def open_view(file: TextIO) -> Iterator[View]:
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


def try_show(view: View, progress: Callable[[], Shown]) -> None:
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
