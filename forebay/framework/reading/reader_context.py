# SPDX-License-Identifier: Apache-2.0
"""The context of a reader, its output in a task, and how it is made and closed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from forebay.errors import ContractError
from forebay.framework.enumerator import SourceEvent
from forebay.framework.reader import SourceReader, SourceReaderContext
from forebay.framework.reading.source_reader import create_reader
from forebay.framework.runtime.clients import Loans
from forebay.framework.runtime.connector_errors import event_refused, wrap_errors
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Position, Split
from forebay.options import Duration

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


class ReaderContext(SourceReaderContext):
    """The `SourceReaderContext` of a reader. In a task of Spark it ignores requests and refuses source events.

    Args:
        source: The source.
        options: The host's options.
        runtime: Threads and time.
        index: The number of the reader, from 0.
        count: The number of readers.
        fetcher_factor: See `SourceReaderContext.fetcher_factor`.
        planned: Whether the ends of the splits are planned. If so, the next micro-batch begins at these ends.
        request: Asks the enumerator for a split; None if every split is planned.
        send_event: Sends an event to the enumerator; None if the host cannot.
    """

    def __init__(  # noqa: PLR0913 - what a host decides about a reader
        self,
        source: Source,
        options: HostOptions,
        runtime: Runtime,
        *,
        index: int = 0,
        count: int = 1,
        fetcher_factor: int = 1,
        planned: bool = False,
        request: Callable[[], None] | None = None,
        send_event: Callable[[SourceEvent], None] | None = None,
    ) -> None:
        self._source = source
        self._options = options
        self._runtime = runtime
        self._index = index
        self._count = count
        self.fetcher_factor = fetcher_factor
        self._planned = planned
        self._request = request
        self._send_event = send_event
        self._detached = False
        self._loans = Loans(source, runtime)

    @property
    def runtime(self) -> Runtime:
        """Threads and time."""
        return self._runtime

    @property
    def subtask(self) -> int:
        """The number of the reader."""
        return self._index

    @property
    def options(self) -> HostOptions:
        """The host's options. After `detach`, `close_timeout` is the time that remains."""
        return self._options

    @property
    def ends_are_promises(self) -> bool:
        """Whether the next read begins at the ends of these splits: they are planned, and the source is unbounded."""
        return self._planned and not self._source.bounded

    def current_parallelism(self) -> int:
        """Return the number of readers."""
        return self._count

    def send_split_request(self) -> None:
        """Ask the enumerator for a split, if splits are not planned."""
        if self._request is not None and not self._detached:
            self._request()

    def send_source_event(self, event: SourceEvent) -> None:
        """Send an event to the enumerator.

        Raises:
            ConfigurationError: The host has no channel for it (Spark).
        """
        if self._send_event is None:
            raise event_refused(self._source.name, event)
        if not self._detached:
            self._send_event(event)

    def detach(self, close_timeout: float) -> None:
        """Drop all requests and events of the reader from now on; limit its `close` to `close_timeout` seconds."""
        self._detached = True
        self._options = dataclasses.replace(self._options, close_timeout=Duration(max(0.0, close_timeout)))

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


def close_reader(reader: SourceReader, context: ReaderContext, source: str, error: BaseException | None) -> None:
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
