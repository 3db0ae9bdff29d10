# SPDX-License-Identifier: Apache-2.0
"""Reads the first rows of a source."""

from __future__ import annotations

import dataclasses
import logging
from typing import Final

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.framework.arrow.schemas import resolve_schema, resolved_schema
from forebay.framework.inprocess.engine import Engine
from forebay.framework.inprocess.preparation import require_source, schema_of, with_columns
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime, ThreadRuntime
from forebay.framework.source import Source
from forebay.options import Duration, redact

_log = logging.getLogger(__name__)

_RETRIES: Final = 3
"""Default retries of a retriable error in a peek."""

_CLOSE_TIMEOUT: Final = Duration("1s")
"""Maximum close time-out of a peek. It is short, because the reader of a stream may block until new data arrives."""


def peek(
    source: Source, n: int = 20, *, options: HostOptions | None = None, runtime: Runtime | None = None
) -> pa.Table:
    """Return the first rows of a source, at most `n`, and stop reading.

    An unbounded source is read up to its current end. Nothing is written, committed or archived. If the reader fails,
    its error is raised. A reader that does not close within a second is abandoned.

    Args:
        source: The source.
        n: Maximum number of rows, 0 or more.
        options: The options of the host; by default those of `HostOptions`, but fewer retries: somebody waits.
        runtime: Threads and time, for tests.

    Raises:
        ConfigurationError: `source` is not a source, or `n` is negative.
        ForebayError: The source failed.
    """
    require_source(source, "forebay.peek()")
    if isinstance(n, bool) or not isinstance(n, int) or n < 0:
        raise ConfigurationError(
            f"n is {n!r}, not a number of rows", source=source.name, option="n", advice="give an int of 0 or more"
        )
    given = options or HostOptions(retries=_RETRIES)
    options = dataclasses.replace(
        given,
        max_rows_per_batch=min(given.max_rows_per_batch, max(n, 1)),
        close_timeout=min(given.close_timeout, _CLOSE_TIMEOUT),
    )
    source = resolve_schema(source, schema_of(source))
    source, columns = with_columns(source, options.columns)
    schema = resolved_schema(source)
    runtime = runtime or ThreadRuntime()
    batches: list[pa.RecordBatch] = []
    if n:
        engine = Engine(source, schema, runtime, options, parallelism=1, checkpoints=None)
        try:
            rows = 0
            while rows < n and (batch := engine.next_batch(until_caught_up=True)) is not None:
                batches.append(batch)
                rows += batch.num_rows
        finally:
            for problem in engine.close():
                _log.info("%s: closing a peek failed: %s", source.name, redact(str(problem)))
    table = pa.Table.from_batches(batches, schema).slice(0, n)
    return table if columns is None else table.select(columns)
