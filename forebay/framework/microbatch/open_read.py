# SPDX-License-Identifier: Apache-2.0
"""A reader of some splits that the caller polls without blocking, and closes when it has read enough."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from forebay.errors import ContractError
from forebay.framework.enumerator import SourceEvent
from forebay.framework.microbatch.split_provider import event_refused
from forebay.framework.reader import InputStatus, SourceReader, SourceReaderContext
from forebay.framework.reading.source_reader import create_reader
from forebay.framework.runtime.clients import Loans
from forebay.framework.runtime.connector_errors import wrap_errors
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Position, Split

# -- The context and the output of a reader in a task.


C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Delivered:
    """One record batch that a task delivers, with its split's id and the split's position after it."""

    split_id: str
    batch: pa.RecordBatch
    position: Position | None


class Output:
    """The output of a reader: at most one record batch per poll. Called on the polling thread."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.delivered: Delivered | None = None
        """The record batch of the last poll, until the poller takes it."""
        self.released: list[str] = []
        """Ids of the splits that were read to their end."""
        self.caught_up: list[str] = []
        """Ids of the splits without an end that have no more data for now."""

    def collect(self, split_id: str, batch: object, position: Position | None) -> None:
        """Keep one record batch in `delivered` (RDR-2).

        Raises:
            ContractError: `batch` is not a record batch, or the reader emits a second one in the same poll.
        """
        if isinstance(batch, pa.RecordBatch) and self.delivered is None:
            self.delivered = Delivered(split_id, batch, position)
            return
        what = "two record batches" if isinstance(batch, pa.RecordBatch) else f"a {type(batch).__name__}"
        raise ContractError(
            f"the reader emitted {what} in one poll_next(), not one pyarrow.RecordBatch",
            source=self._source,
            split=split_id,
            position=position,
            rule="RDR-2",
            advice="in the connector, let poll_next() emit one pyarrow.RecordBatch, then return MORE_AVAILABLE",
        )

    def split_added(self, split: Split) -> None:
        """Do nothing: a read without event time has one output."""

    def split_caught_up(self, split_id: str) -> None:
        """Record that a split has no more data for now."""
        self.caught_up.append(split_id)

    def split_released(self, split_id: str) -> None:
        """Record that a split is read to its end."""
        self.released.append(split_id)


class TaskContext(SourceReaderContext):
    """The `SourceReaderContext` of a reader in a task: it ignores requests for splits, and refuses source events.

    Args:
        source: The source.
        options: The host's options.
        runtime: Threads and time.
        index: The number of the task, from 0.
        count: The number of tasks of the read.
        planned: Whether the ends of the splits are planned. If so, the next micro-batch begins at these ends.
    """

    def __init__(
        self,
        source: Source,
        options: HostOptions,
        runtime: Runtime,
        *,
        index: int = 0,
        count: int = 1,
        planned: bool = False,
    ) -> None:
        self._source = source
        self._options = options
        self._runtime = runtime
        self._index = index
        self._count = count
        self._planned = planned
        self._loans = Loans(source, runtime)

    @property
    def runtime(self) -> Runtime:
        """Threads and time."""
        return self._runtime

    @property
    def subtask(self) -> int:
        """The number of the task."""
        return self._index

    @property
    def options(self) -> HostOptions:
        """The host's options."""
        return self._options

    @property
    def ends_are_promises(self) -> bool:
        """Whether the next read begins at the ends of these splits: they are planned, and the source is unbounded."""
        return self._planned and not self._source.bounded

    def current_parallelism(self) -> int:
        """Return the number of tasks of the read."""
        return self._count

    def send_split_request(self) -> None:
        """Do nothing: every split of this task was planned."""

    def send_source_event(self, event: SourceEvent) -> None:
        """Raise a ConfigurationError: Spark has no channel to send an event to the enumerator."""
        raise event_refused(self._source.name, event)

    def lease(self, key: Hashable, factory: Callable[[], C]) -> C:
        """Return this process's client for `key`, borrowed until the reader closes; `factory` creates it if needed."""
        return self._loans.borrow(key, factory)

    def new_reader(self, split: str | None, *, until_caught_up: bool = False) -> SourceReader:
        """Return a new reader; if its creation fails, close the clients it has borrowed. Errors name `split`.

        With `until_caught_up`, the reader finishes a split without an end when it has caught up.
        """
        try:
            with wrap_errors(self._source.name, "create_reader()", split):
                return create_reader(self._source, self, self._options, until_caught_up=until_caught_up)
        except BaseException:  # also when interrupted
            self.release(failed=True)
            raise

    def release(self, *, failed: bool) -> list[Exception]:
        """Give borrowed clients back to the pool, or close them after a failure; return the errors of closing."""
        return self._loans.hand_back(failed=failed)


def close_reader(reader: SourceReader, context: TaskContext, source: str, error: BaseException | None) -> None:
    """Close a reader and give its clients back to the pool. If `error` is given, errors of closing become its notes.

    Raises:
        ForebayError: The error of `close`, if `error` is None.
    """
    left_early = isinstance(error, GeneratorExit)
    try:
        with wrap_errors(source, "close()"):
            reader.close()
    except Exception as second:
        context.release(failed=True)
        if error is None or left_early:
            raise
        error.add_note(f"and then closing failed with {type(second).__name__}: {second}")
    else:
        for late in context.release(failed=error is not None and not left_early):
            if error is not None:
                error.add_note(f"and then closing a client failed with {type(late).__name__}: {late}")


# -- A reader of some splits that the caller polls without blocking, and closes when it has read enough.


class OpenRead:
    """A running `SourceReader` of some splits, polled by one thread. It goes on reading splits that have caught up.

    Args:
        source: The source.
        splits: The splits; each is read from its position exactly to its end, if it has one.
        options: The host's options.
        runtime: Threads and time.
        index: The number of the task, from 0.
        count: The number of tasks of the read.

    Raises:
        ForebayError: The source cannot create its reader.
    """

    def __init__(
        self,
        source: Source,
        splits: Sequence[Split],
        options: HostOptions,
        runtime: Runtime,
        *,
        index: int = 0,
        count: int = 1,
    ) -> None:
        self._source = source.name
        self._splits = {split.id: split for split in splits}
        self._only = splits[0].id if len(splits) == 1 else None
        self._context = TaskContext(source, options, runtime, index=index, count=count)
        self._output = Output(source.name)
        self._reached: dict[str, Position | None] = {split.id: split.position for split in splits}
        self._more = True
        self.caught_up: set[str] = set()
        """Ids of the splits that have caught up at least once."""
        self.finished: set[str] = set()
        """Ids of the splits that were read to their end."""
        self._reader = self._context.new_reader(self._only)
        try:
            with wrap_errors(self._source, "reading", self._only):
                self._reader.add_splits(splits)
                self._reader.notify_no_more_splits()
                self._reader.start()
        except BaseException as error:
            self.close(error)
            raise

    def poll(self) -> Delivered | None:
        """Return the next record batch, or None if there is none now; never blocks.

        Raises:
            ForebayError: The source failed or broke a rule.
        """
        output = self._output
        with wrap_errors(self._source, "reading", self._only):
            status = self._reader.poll_next(output)
        delivered, output.delivered = output.delivered, None
        if delivered is not None:
            self._reached[delivered.split_id] = delivered.position
        self.caught_up.update(output.caught_up)
        self.finished.update(output.released)
        output.caught_up.clear()
        output.released.clear()
        if status is InputStatus.END_OF_INPUT:
            self.finished.update(self._splits)
        self._more = status is InputStatus.MORE_AVAILABLE
        return delivered

    def pause(self, split_id: str) -> None:
        """Stop reading one of the splits."""
        with wrap_errors(self._source, "pause_or_resume_splits()", split_id):
            self._reader.pause_or_resume_splits([split_id], [])

    def position(self, split_id: str) -> Position | None:
        """Return the reader's position in a split. It may be beyond the last record batch, if rows are filtered."""
        split = self._splits[split_id]
        if split_id in self.finished:
            return self._reached[split_id] if split.end is None else split.end
        with wrap_errors(self._source, "snapshot_state()", split_id):
            held = self._reader.snapshot_state(0)
        return next((one.position for one in held if one.id == split_id), self._reached[split_id])

    def available(self) -> Future[None]:
        """Return a future that completes when the next `poll` may have a record batch."""
        if self._more:
            done: Future[None] = Future()
            done.set_result(None)
            return done
        return self._reader.is_available()

    def close(self, error: BaseException | None = None) -> None:
        """Close the reader within `closeTimeout`, and give back its clients; errors become notes of `error`, if given.

        Raises:
            ForebayError: The reader failed to close, and `error` is None.
        """
        close_reader(self._reader, self._context, self._source, error)


class FutureWaiter:
    """Waits until one of several futures is done. Used by one thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._signal = runtime.signal()
        self._watched: list[Future[None]] = []

    def wait(self, futures: Iterable[Future[None]], timeout: float) -> None:
        """Return when one of the futures is done, or after `timeout` seconds. May return early."""
        watched = list(futures)
        for future in watched:
            if not any(future is known for known in self._watched):
                future.add_done_callback(lambda _: self._signal.set())
        self._watched = watched
        if not any(future.done() for future in watched):
            self._signal.wait(timeout)
        self._signal.clear()
