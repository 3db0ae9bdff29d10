# SPDX-License-Identifier: Apache-2.0
"""Look at the first rows of a source."""

from __future__ import annotations

import dataclasses
import logging
from typing import Final

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.framework.arrow.resolved_schema import resolve_schema, resolved_schema
from forebay.framework.host_options import HostOptions
from forebay.framework.inprocess.arguments import require_source
from forebay.framework.inprocess.engine import Engine
from forebay.framework.inprocess.running import schema_of, with_columns
from forebay.framework.runtime.runtime import Next, Runtime, ThreadRuntime, WaitFor
from forebay.framework.source import Source
from forebay.options import Duration, redact

_log = logging.getLogger(__name__)

_PATIENCE: Final = Duration("1s")
"""How long a look waits for its reader to end. One that waits for more data, as streams do, ends when it has some."""


def peek(
    source: Source, n: int = 20, *, options: HostOptions | None = None, runtime: Runtime | None = None
) -> pa.Table:
    """Return at most `n` rows of a source, and stop reading at once; a reader that is blocked is left behind.

    Of an unbounded source too: what is there, if it is less. Nothing is written, committed or archived by a look, and
    an error is raised as it comes, without another try by another reader.

    Args:
        source: What to look at.
        n: Most rows, 0 or more.
        options: The options of the host.
        runtime: Threads and time; a simulator's in tests.

    Raises:
        ConfigurationError: It is no source, or `n` is negative.
        ForebayError: What the source raised.
    """
    require_source(source, "forebay.peek()")
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise ConfigurationError(f"{n!r} is no number of rows", source=source.name, option="n", advice="give 0 or more")
    given = options or HostOptions()
    options = dataclasses.replace(
        given,
        max_rows_per_batch=min(given.max_rows_per_batch, max(n, 1)),
        close_timeout=min(given.close_timeout, _PATIENCE),
    )
    source = resolve_schema(source, schema_of(source))
    source, columns = with_columns(source, options.columns)
    schema = resolved_schema(source)
    runtime = runtime or ThreadRuntime()
    batches: list[pa.RecordBatch] = []
    if n:
        engine = Engine(source, schema, runtime, options, parallelism=1, checkpoints=None)
        try:
            batches = _first(engine, n)
        finally:
            for problem in engine.close():
                _log.info("%s: while ending a look: %s", source.name, redact(str(problem)))
    table = pa.Table.from_batches(batches, schema).slice(0, n)
    return table if columns is None else table.select(columns)


def _first(engine: Engine, n: int) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = []
    rows = 0
    while rows < n:
        engine.ask()
        engine.signal.clear()
        outcome = engine.step()
        batch = engine.take()
        if batch is not None:
            batches.append(batch)
            rows += batch.num_rows
        elif outcome is Next.DONE or (outcome is not Next.AGAIN and engine.caught_up()):
            break
        elif outcome is not Next.AGAIN:
            engine.signal.wait(outcome.seconds if isinstance(outcome, WaitFor) else None)
    return batches
