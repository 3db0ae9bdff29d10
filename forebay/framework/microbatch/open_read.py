# SPDX-License-Identifier: Apache-2.0
"""A reader of some splits that the caller polls without blocking, and closes when it has read enough."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future

from forebay.framework.reader import InputStatus
from forebay.framework.reading.reader_context import Delivered, Output, ReaderContext, close_reader
from forebay.framework.runtime.connector_errors import wrap_errors
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Position, Split


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
        self._context = ReaderContext(source, options, runtime, index=index, count=count)
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
        return next((part.position for part in held if part.id == split_id), self._reached[split_id])

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
