# SPDX-License-Identifier: Apache-2.0
"""The progress of a run in this process: finished splits (or files), finished bytes, and the rate."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from html import escape
from typing import Final, TextIO

import pyarrow as pa

from forebay.errors import printable
from forebay.framework.inprocess.running import Run
from forebay.inspection.views import Shown, bar, in_notebook, open_view, try_show

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
