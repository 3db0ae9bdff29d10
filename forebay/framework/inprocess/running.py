# SPDX-License-Identifier: Apache-2.0
"""Run a source in this process: `for batch in forebay.run(source)`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from forebay.errors import ConfigurationError, FatalError
from forebay.framework.arrow.column_selection import select
from forebay.framework.arrow.resolved_schema import resolve_schema, resolved_schema
from forebay.framework.host_options import HostOptions
from forebay.framework.inprocess.arguments import (
    check_parallelism,
    checked_positions,
    positive_seconds,
    require_source,
)
from forebay.framework.inprocess.checkpointing import CheckpointPlan
from forebay.framework.inprocess.checkpoints import CheckpointStore
from forebay.framework.inprocess.delivery_log import SplitProgress
from forebay.framework.inprocess.engine import Engine
from forebay.framework.runtime.connector_errors import explained, without_secrets
from forebay.framework.runtime.runtime import Next, Runtime, ThreadRuntime, WaitFor
from forebay.framework.source import Source
from forebay.framework.split import Position
from forebay.options import DurationLike, redact
from forebay.watermarks.event_time import keep_source_times
from forebay.watermarks.strategy import WatermarkStrategy

_log = logging.getLogger(__name__)


class Run(Iterator[pa.RecordBatch]):
    """A running source: an iterator of record batches, and a context manager.

    Everything runs in the thread that asks for the next batch; only fetchers have threads of their own, and read a
    little ahead. A run ends itself when it is exhausted or fails; leave an unfinished one by `close`, or by the `with`
    block.

    A batch is acknowledged when the next one is asked for, or by `ack`. A checkpoint covers what was acknowledged, also
    the last one that leaving the `with` block takes. So the batch in hand comes again after a crash, and after a
    `break` before `ack`. Made by `run`.

    Args:
        source: What is read.
        schema: Its schema.
        engine: What does the work.
        columns: What the consumer wants to see of each batch; None for all.
        checkpoints: Whether checkpoints are written.
        until_caught_up: The run of an unbounded source ends when it is caught up.
        poll_timeout: Seconds that `next` waits at most; None for ever.
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
        """Return the next record batch; waits for one. Asking acknowledges the last one.

        Raises:
            StopIteration: Every split of a bounded source has been read, the run is caught up and was to end then, or
                it was closed.
            TimeoutError: No record batch came within `poll_timeout`. The run goes on when it is asked again.
            ForebayError: What ended the run; with source, split, position and the next step.
        """
        if self._engine.failed is not None:
            raise self._engine.failed
        if not self._open:
            raise StopIteration
        self._engine.ask()
        timeout, clock = self._poll_timeout, self._engine.clock
        give_up_at = None if timeout is None else clock.monotonic() + timeout
        while True:
            self._engine.signal.clear()
            try:
                outcome = self._engine.step()
            except BaseException as error:
                self._shut(error)
                raise
            batch = self._engine.take()
            if batch is not None:
                return batch if self._columns is None else batch.select(self._columns)
            if outcome is Next.DONE or (self._until_caught_up and self._engine.caught_up()):
                self._shut(None)
                raise StopIteration
            waits = [outcome.seconds] if isinstance(outcome, WaitFor) else []
            if give_up_at is not None:
                waits.append(give_up_at - clock.monotonic())
                if waits[-1] <= 0:
                    raise self._timed_out()
            if outcome is not Next.AGAIN:
                self._engine.signal.wait(min(waits, default=None))

    def _timed_out(self) -> TimeoutError:
        self._engine.stop_asking()
        return TimeoutError(
            f"{self._source.name}: no record batch came within {self._poll_timeout:g} s; ask for the next one to go "
            "on, or leave the block to end the run"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shut(error)

    def __del__(self) -> None:
        # Left in the middle of a loop: free the threads, without waiting and without a checkpoint.
        if getattr(self, "_open", False) and not sys.is_finalizing():
            self._engine.close(orderly=False)

    @property
    def schema(self) -> pa.Schema:
        """The schema of every record batch."""
        return (
            self._schema if self._columns is None else pa.schema([self._schema.field(name) for name in self._columns])
        )

    @property
    def delivered(self) -> tuple[str, Position | None] | None:
        """The split of the batch that was yielded last, and its position after that batch; None before the first.

        Stored in one transaction with the batch's rows, it makes them exactly once: start the next run there, by
        `forebay.run(…, positions=…)`. Batches themselves cannot be compared, because their borders differ between runs.
        `positions` says the same of every split.
        """
        return self._engine.deliveries.delivered

    @property
    def watermark(self) -> int | None:
        """The event time, in microseconds since 1970, up to which everything was yielded; None if not known."""
        return self._engine.watermark

    def positions(self) -> dict[str, Position]:
        """Return, by split id, where each split goes on after what was yielded; `forebay.run(…, positions=…)` takes it.

        Splits that begin at their start are left out, and so are the oldest of more than 10,000 finished ones.
        """
        return {split.split_id: split.position for split in self.progress() if split.position is not None}

    def progress(self) -> list[SplitProgress]:
        """Return how far each known split is, by id."""
        return self._engine.progress()

    def to_table(self) -> pa.Table:
        """Read everything that is left into one table, and close.

        Raises:
            ConfigurationError: The source is unbounded, so there is no everything, and `until_caught_up` is not set.
        """
        if not self._source.bounded and not self._until_caught_up:
            self.close()
            raise ConfigurationError(
                "an unbounded source has no last row, so it cannot become a table",
                source=self._source.name,
                advice="set until_caught_up=True, iterate over the run, or look at some rows with forebay.peek(source)",
            )
        with self:
            return pa.Table.from_batches(list(self), self.schema)

    def ack(self) -> None:
        """Acknowledge the batch in hand, without asking for another: checkpoints cover it, so it does not come again.

        Call it when the batch has been processed, before a `break` or `checkpoint`.
        """
        self._engine.deliveries.cover()

    def checkpoint(self) -> Path:
        """Take a checkpoint now, and return its file. It covers what was acknowledged (see `Run`).

        Raises:
            ConfigurationError: The run has no checkpoint directory, or is closed.
            ForebayError: The checkpoint could not be taken; the run goes on.
        """
        path = self._engine.checkpoint() if self._checkpoints and self._open else None
        if path is None:
            raise ConfigurationError(
                "there is nowhere to write a checkpoint to" if self._open else "the run is closed",
                source=self._source.name,
                option="checkpoint",
                advice="give forebay.run(…, checkpoint=directory), and take checkpoints before the run is closed",
            )
        return path

    def close(self) -> None:
        """End the run, within the option `closeTimeout`; with a directory, take a last checkpoint. Repeatable.

        Raises:
            ForebayError: Something did not close, or the last checkpoint failed.
        """
        self._shut(None)

    def _shut(self, error: BaseException | None) -> None:
        if not self._open:
            return
        self._open = False
        problems = self._engine.close()
        for problem in problems if error is not None else problems[1:]:
            _log.warning("%s: while closing: %s", self._source.name, redact(str(problem)))
        if error is None and problems:
            raise without_secrets(problems[0])


def run(  # noqa: PLR0913 - a user names those that he wants
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
        source: What to read.
        parallelism: How many readers share the splits. A restart may use another number.
        checkpoint: A directory of this run's own. If there is a checkpoint in it, the run goes on from there.
        checkpoint_interval: The time between checkpoints: seconds, a timedelta, or a text such as `"10s"`.
        positions: Where splits begin, by id, instead of a checkpoint: what an earlier run said in `Run.positions` and
            `Run.delivered`. Other splits begin where the source says; those of an unbounded one as if they came during
            the query, unless no position is given at all. A raw `SplitEnumerator` begins afresh, and its splits are
            moved when it assigns them: it must assign the same ids again.
        until_caught_up: End the run of an unbounded source once the readers have caught up with each split that the
            first look found. A raw `SplitEnumerator` must have handled each request, and each call that it started
            without a delay. A bounded source ends anyway.
        poll_timeout: How long `next` waits for a record batch before it raises TimeoutError; None for ever.
        watermarks: How event time is treated; its column is the source's `event_time` unless the strategy says more.
        options: The options of the host.
        runtime: Threads and time; a simulator's in tests.

    Raises:
        ConfigurationError: An argument is out of range, or the checkpoint does not belong to this source.
        DataError: The checkpoint is damaged.
    """
    options = options or HostOptions()
    require_source(source, "forebay.run()")
    check_parallelism(source, parallelism)
    interval = positive_seconds(source, "checkpoint_interval", checkpoint_interval)
    patience = None if poll_timeout is None else positive_seconds(source, "poll_timeout", poll_timeout)
    starts = checked_positions(source, positions, checkpoint=checkpoint is not None)
    # The store looks at the options as they were given, not at what the schema and the columns make of them.
    store = None if checkpoint is None else CheckpointStore(Path(checkpoint), source)
    source = resolve_schema(source, schema_of(source))
    strategy = _with_column(watermarks, source)
    source, columns = with_columns(source, options.columns, also=None if strategy is watermarks else source.event_time)
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
        poll_timeout=patience,
    )


def with_columns(
    source: Source, columns: list[str] | None, *, also: str | None = None
) -> tuple[Source, list[str] | None]:
    """Return the source reading only these columns, or itself, and what the host must select, if anything.

    Args:
        source: With all its columns.
        columns: What the user wants.
        also: A column that the host needs itself.
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
    """Ask a source for its schema, once per read; errors name the source."""
    with explained(source.name, "schema()"):
        schema = source.schema()
    if not isinstance(schema, pa.Schema):
        raise FatalError(
            f"schema() gave a {type(schema).__name__}", source=source.name, advice="return a pyarrow.Schema"
        )
    return schema


def _with_column(strategy: WatermarkStrategy | None, source: Source) -> WatermarkStrategy | None:
    if strategy is None or source.event_time is None or strategy.timestamps is not keep_source_times:
        return strategy
    return strategy.with_event_time(source.event_time)
