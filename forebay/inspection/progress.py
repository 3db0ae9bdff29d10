# SPDX-License-Identifier: Apache-2.0
"""`forebay.progress`: the live progress of a streaming query or a run, in a terminal, a notebook or a log."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Protocol, TextIO, overload

import pyarrow as pa

from forebay.framework.inprocess.running import Run
from forebay.inspection.query_progress import QueryProgress, html, lines, one_line
from forebay.inspection.run_progress import follow
from forebay.inspection.views import Shown, View, open_view, try_show


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


@overload
def progress(read: Query, *, every: float = 1.0, file: TextIO | None = None) -> None: ...


@overload
def progress(read: Run, *, every: float = 1.0, file: TextIO | None = None) -> Iterator[pa.RecordBatch]: ...


def progress(read: Query | Run, *, every: float = 1.0, file: TextIO | None = None) -> Iterator[pa.RecordBatch] | None:
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


def _update(view: View, query: Query, state: QueryProgress, *, ended: bool = False) -> None:
    def shown() -> Shown:
        state.update(query.name, query.lastProgress, ended=ended)
        return Shown(lines(state), one_line(state), html(state))

    try_show(view, shown)
