# SPDX-License-Identifier: Apache-2.0
"""Runs a source in this process: `for batch in forebay.run(source)`."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pyarrow as pa

from forebay.errors import ConfigurationError, ContractError, FatalError
from forebay.framework.arrow.casting import resolve_schema, resolved_schema, select
from forebay.framework.coordination.discovering import Backlog
from forebay.framework.inprocess.checkpoints import CheckpointStore
from forebay.framework.inprocess.deliveries import SplitProgress
from forebay.framework.inprocess.engine import CheckpointPlan, Engine, PollTimeoutError
from forebay.framework.runtime.connector_errors import without_secrets, wrap_errors
from forebay.framework.runtime.event_time_options import event_time_options, watermark_strategy
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime, ThreadRuntime
from forebay.framework.source import Source
from forebay.framework.split import Position, normalise
from forebay.options import Duration, DurationLike, redact, to_seconds
from forebay.watermarks.event_time import ColumnTimestamps, keep_source_times
from forebay.watermarks.strategy import WatermarkStrategy

# -- Checks the arguments of `run` and `peek`, and prepares the source: its schema and columns.


def require_source(source: object, who: str) -> None:
    """Check that the user passed a source. `who` names the function that the user called, for the error.

    Raises:
        ConfigurationError: `source` is a class, or an object that is not a `Source`.
    """
    if isinstance(source, Source):
        return
    if isinstance(source, type):
        name = source.__name__
        raise ConfigurationError(f"{who} takes a source, not the class {name}", advice=f"give an instance: {name}(…)")
    raise ConfigurationError(
        f"{who} takes a source, not {source!r:.80}", advice="give an instance, such as Orders(url=…)"
    )


def check_parallelism(source: Source, parallelism: int) -> None:
    """Check the parallelism of a run.

    Raises:
        ConfigurationError: `parallelism` is not an int of 1 or more.
    """
    if isinstance(parallelism, bool) or not isinstance(parallelism, int) or parallelism < 1:
        raise ConfigurationError(
            f"the parallelism {parallelism!r} is not an int of 1 or more",
            source=source.name,
            option="parallelism",
            advice="give how many times the source's fetchers read side by side",
        )


def positive_seconds(source: Source, option: str, value: DurationLike) -> float:
    """Return a positive duration in seconds; `option` is the name of the argument, for the error.

    Raises:
        ConfigurationError: `value` is not a duration, not more than 0, or infinite.
    """
    seconds = 0.0
    try:
        seconds = to_seconds(value)
        problem = "" if 0 < seconds < math.inf else "it must be finite and more than 0"
    except ValueError as error:
        problem = str(error)
    if problem:
        raise ConfigurationError(
            f"{option}={value!r} is invalid: {problem}",
            source=source.name,
            option=option,
            advice="give seconds, a timedelta, or a text with a unit such as '10s'",
        )
    return seconds


def checked_positions(source: Source, positions: object, *, checkpoint: bool) -> dict[str, Position]:
    """Return the start positions of a run by split id; lists in them, as parsed from JSON, become tuples.

    `checkpoint` says whether the run has a checkpoint directory.

    Raises:
        ConfigurationError: `positions` is not a mapping of split ids to positions, or `checkpoint` is True too.
    """
    if positions is None:
        return {}
    if checkpoint:
        raise ConfigurationError(
            "positions= and checkpoint= both set the start of the run, so they cannot be combined",
            source=source.name,
            option="positions",
            advice="give positions= if you store positions with your rows, else checkpoint=",
        )
    try:
        if isinstance(positions, Mapping) and all(isinstance(split_id, str) for split_id in positions):
            return {split_id: normalise(position, split_id) for split_id, position in positions.items()}
        problem = f"positions={positions!r:.80} is not a dict of split ids and positions"
    except ContractError as error:
        problem = f"the start position of the split {error.split!r} is invalid: {error.message}"
    raise ConfigurationError(
        problem,
        source=source.name,
        option="positions",
        advice="give a dict of split ids and positions from Run.positions() or Run.delivered",
    )


def with_columns(
    source: Source, columns: list[str] | None, *, also: str | None = None
) -> tuple[Source, list[str] | None]:
    """Return the source, which reads only `columns` if it supports that, and the columns that the host must select.

    None as columns means all columns. `also` is a column that the source must read even if it is not selected.
    """
    if columns is None:
        return source, None
    names = select(resolved_schema(source).names, columns, source.name)
    needed = names if also is None or also in names else [*names, also]
    narrowed = source.with_columns(tuple(needed))
    if narrowed is None:
        return source, names
    return narrowed, None if needed == names else names


def schema_of(source: Source) -> pa.Schema:
    """Return the result of `source.schema()`, checked; errors name the source.

    Raises:
        ForebayError: `schema()` failed, or returned an object that is not a `pyarrow.Schema`.
    """
    with wrap_errors(source.name, "schema()"):
        schema = source.schema()
    if not isinstance(schema, pa.Schema):
        raise FatalError(
            f"schema() returned a {type(schema).__name__} instead of a schema",
            source=source.name,
            advice="return a pyarrow.Schema",
        )
    return schema


def event_time_strategy(
    watermarks: WatermarkStrategy | None, source: Source, options: HostOptions
) -> tuple[WatermarkStrategy | None, str | None]:
    """Return the watermark strategy of a run, and the top-level column that it reads event times from.

    Both are None if event time is not processed. The column is None if the strategy reads no column. A strategy
    without a timestamp assigner reads the column that `Source.event_time` names.

    Raises:
        ConfigurationError: Both `watermarks` and event time options are given, or the column is missing or of an
            unsupported type.
    """
    option_names = event_time_options(options)
    if watermarks is None:
        strategy = watermark_strategy(source.name, source.event_time, options)
    elif option_names:
        raise ConfigurationError(
            f"watermarks= and the options {', '.join(option_names)} both set how event time is processed",
            source=source.name,
            option=option_names[0],
            advice="give either watermarks= or these options",
        )
    elif source.event_time is None or watermarks.timestamps is not keep_source_times:
        strategy = watermarks
    else:
        strategy = watermarks.with_event_time(source.event_time)
    if strategy is None or not isinstance(strategy.timestamps, ColumnTimestamps):
        return strategy, None
    return strategy, strategy.timestamps.check(resolved_schema(source))


# -- Reads the first rows of a source.


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
    host_options = options or HostOptions(retries=_RETRIES)
    options = dataclasses.replace(
        host_options,
        max_rows_per_batch=min(host_options.max_rows_per_batch, max(n, 1)),
        close_timeout=min(host_options.close_timeout, _CLOSE_TIMEOUT),
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


class Run(Iterator[pa.RecordBatch]):
    """A running source: an iterator of record batches, and a context manager. Created by `run`.

    Enumerator and reader run in the thread that calls `next`; fetchers read ahead on threads of their own. A run
    ends when it is exhausted or fails. End an unfinished run with `close`, or by leaving the `with` block.

    Asking for the next batch acknowledges the last one, as does `ack`. Checkpoints, including the last one at the end
    of the `with` block, cover only acknowledged batches. So the current batch is repeated after a crash, and after a
    `break` without `ack`.
    """

    def __init__(
        self,
        source: Source,
        schema: pa.Schema,
        engine: Engine,
        columns: list[str] | None,
        *,
        checkpoints: bool,
        until_caught_up: bool,
        poll_timeout: float | None,
    ) -> None:
        self._source = source
        self._schema = schema
        self._engine = engine
        self._columns = columns
        self._checkpoints = checkpoints
        self._until_caught_up = until_caught_up and not source.bounded
        self._poll_timeout = poll_timeout
        self._open = True

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        """Wait for the next record batch, and return it. This acknowledges the last one.

        Raises:
            StopIteration: All splits of a bounded source have been read, the run was closed, or it has caught up and
                was started with `until_caught_up`.
            TimeoutError: No record batch came within `poll_timeout`; call `next` again to continue.
            ForebayError: The error that ended the run, with source, split, position and the next step.
        """
        failed = self._engine.failed
        if failed is not None:
            self._shut(failed)
            raise failed
        if not self._open:
            raise StopIteration
        try:
            batch = self._engine.next_batch(until_caught_up=self._until_caught_up, timeout=self._poll_timeout)
        except PollTimeoutError:
            raise TimeoutError(
                f"{self._source.name}: no record batch came within poll_timeout={self._poll_timeout:g} s; call next() "
                "again to continue, or close() to end the run"
            ) from None
        except BaseException as error:
            if self._engine.failed is not None:  # an interrupted wait is no failure: the run continues
                self._shut(error)
            raise
        if batch is None:
            self._shut(None)
            raise StopIteration
        return batch if self._columns is None else batch.select(self._columns)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shut(error)

    def __del__(self) -> None:
        # Abandoned in a loop: free the threads, without waiting and without a checkpoint.
        if getattr(self, "_open", False) and not sys.is_finalizing():
            self._engine.close(orderly=False)

    @property
    def source(self) -> Source:
        """The source."""
        return self._source

    @property
    def schema(self) -> pa.Schema:
        """The schema of every record batch."""
        return (
            self._schema if self._columns is None else pa.schema([self._schema.field(name) for name in self._columns])
        )

    @property
    def delivered(self) -> tuple[str, Position | None] | None:
        """The split id of the last yielded batch, and the position after this batch; None before the first batch.

        For exactly-once results, store the position of each split in one transaction with the rows of the batch, and
        start the next run with `forebay.run(…, positions=…)`. Do not compare batches of different runs: they begin and
        end at other rows.
        """
        return self._engine.deliveries.delivered

    @property
    def watermark(self) -> int | None:
        """The event time, in microseconds since 1970, up to which everything was yielded; None if unknown."""
        return self._engine.watermark

    def positions(self) -> dict[str, Position]:
        """Return, by split id, the position after the rows that were yielded, for `forebay.run(…, positions=…)`.

        Splits that are still at their start are omitted. Of finished splits, only the last 10,000 are kept.
        """
        return {split.split_id: split.position for split in self.progress() if split.position is not None}

    def progress(self) -> list[SplitProgress]:
        """Return the progress of each known split, sorted by split id."""
        return self._engine.progress()

    def backlog(self) -> Backlog | None:
        """Return the numbers of known and finished splits, and the estimated bytes of the unfinished ones.

        None for a source with a `SplitEnumerator` of its own. The cost grows with the number of splits.
        """
        return self._engine.backlog()

    def to_table(self) -> pa.Table:
        """Read all remaining rows into one table, and close the run.

        Raises:
            ConfigurationError: The source is unbounded and `until_caught_up` is not set.
        """
        if not self._source.bounded and not self._until_caught_up:
            self.close()
            raise ConfigurationError(
                "to_table() needs a source with an end; this source is unbounded",
                source=self._source.name,
                advice="set until_caught_up=True, iterate over a new run, or call forebay.peek(source)",
            )
        with self:
            return pa.Table.from_batches(list(self), self.schema)

    def ack(self) -> None:
        """Acknowledge the current batch without asking for the next one: checkpoints include it from now on.

        Call it when the batch has been processed, before a `break` or a call of `checkpoint`.
        """
        self._engine.deliveries.cover()

    def checkpoint(self) -> Path:
        """Take a checkpoint of the acknowledged batches, and return its file.

        Raises:
            ConfigurationError: The run has no checkpoint directory, or it is closed.
            ForebayError: The checkpoint failed. The run continues, unless the enumerator raised an error.
        """
        path = self._engine.checkpoint() if self._checkpoints and self._open else None
        if path is None:
            raise ConfigurationError(
                f"no checkpoint was taken: the run {'has no checkpoint directory' if self._open else 'is closed'}",
                source=self._source.name,
                option="checkpoint",
                advice="call forebay.run(…, checkpoint=directory), and take checkpoints before the run is closed",
            )
        return path

    def close(self) -> None:
        """End the run within the option `closeTimeout`; a second call does nothing.

        A run with a checkpoint directory first takes a last checkpoint.

        Raises:
            ForebayError: The last checkpoint failed, or a reader or the enumerator failed to close.
        """
        self._shut(None)

    def _shut(self, error: BaseException | None) -> None:
        if not self._open:
            return
        self._open = False
        problems = self._engine.close()
        for problem in problems if error is not None else problems[1:]:
            _log.warning("%s: closing the run failed: %s", self._source.name, redact(str(problem)))
        if error is None and problems:
            raise without_secrets(problems[0])


def run(  # noqa: PLR0913 - all but the first are optional
    source: Source,
    *,
    parallelism: int = 1,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_interval: DurationLike = 10.0,
    positions: Mapping[str, Position] | None = None,
    until_caught_up: bool = False,
    poll_timeout: DurationLike | None = None,
    watermarks: WatermarkStrategy | None = None,
    options: HostOptions | None = None,
    runtime: Runtime | None = None,
) -> Run:
    """Read a source in this process, without Spark and without Java.

    ```python
    for batch in forebay.run(Orders(url=…), checkpoint="state/orders"):
        ...
    ```

    Args:
        source: The source.
        parallelism: How many times the `fetchers` of the source read side by side. A restart may use another number.
        checkpoint: A directory for this run only. If it contains a checkpoint, the run continues from there.
        checkpoint_interval: The time between checkpoints: seconds, a timedelta, or a text such as `"10s"`.
        positions: Start positions by split id, instead of a checkpoint: from `Run.positions` or `Run.delivered` of an
            earlier run. A split of an unbounded source that is not among them starts like a split that is discovered
            during the run. A connector's own `SplitEnumerator` starts without state and must assign the same ids again:
            each split gets its position when it is assigned.
        until_caught_up: End the run of an unbounded source when the reader has caught up with each split of the
            first discovery. A connector's own `SplitEnumerator` must also have handled each request, and each call that
            it started without a delay. A bounded source ends anyway.
        poll_timeout: The time that `next` waits for a record batch before it raises TimeoutError; None for no limit.
        watermarks: How event time is processed. A strategy without a timestamp assigner reads the column that the
            source declares as `event_time`. `watermarks` cannot be combined with the options `event_time_column`,
            `watermark_delay`, `alignment_max_drift` and `idle_timeout`: these make a strategy for bounded
            out-of-orderness.
        options: The options of the host.
        runtime: Threads and time, for tests.

    Raises:
        ConfigurationError: An argument is invalid, or the checkpoint is of another source.
        DataError: The checkpoint is damaged.
    """
    options = options or HostOptions()
    require_source(source, "forebay.run()")
    check_parallelism(source, parallelism)
    interval = positive_seconds(source, "checkpoint_interval", checkpoint_interval)
    timeout = None if poll_timeout is None else positive_seconds(source, "poll_timeout", poll_timeout)
    starts = checked_positions(source, positions, checkpoint=checkpoint is not None)
    # The store compares the options as given, before the schema and the columns are set.
    store = None if checkpoint is None else CheckpointStore(Path(checkpoint), source)
    source = resolve_schema(source, schema_of(source))
    strategy, event_time = event_time_strategy(watermarks, source, options)
    source, columns = with_columns(source, options.columns, also=event_time)
    schema = resolved_schema(source)
    engine = Engine(
        source,
        schema,
        runtime or ThreadRuntime(),
        options,
        parallelism=parallelism,
        checkpoints=CheckpointPlan(store, interval, starts),
        strategy=strategy,
    )
    return Run(
        source,
        schema,
        engine,
        columns,
        checkpoints=store is not None,
        until_caught_up=until_caught_up,
        poll_timeout=timeout,
    )
