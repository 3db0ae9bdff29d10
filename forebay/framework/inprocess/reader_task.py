# SPDX-License-Identifier: Apache-2.0
"""One subtask of a run: the reader, its messages from the coordinator, and its replacements after failures."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeVar

from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.coordination.messages import AddSplits, EnumeratorEvent, NoMoreSplits, ToReader
from forebay.framework.enumerator import SourceEvent
from forebay.framework.reader import InputStatus, ReaderOutput, SourceReader, SourceReaderContext
from forebay.framework.reading.source_reader import create_reader
from forebay.framework.runtime.clients import Loans
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime, Signal
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.options import Duration

C = TypeVar("C")

HOST = "localhost"
"""The host name of every reader of this host."""


class ReaderTask:
    """Runs the reader of one subtask, and after a failure its replacement. The consumer's thread calls all methods.

    Args:
        subtask: The index of the reader, from 0.
        source: Creates the readers.
        coordinator: Registers the readers.
        runtime: Threads, locks, time and random numbers.
        options: The host's options.
        parallelism: The number of readers of the run.
        signal: Set when the reader may have data, or a message has arrived.
        received: Called with the subtask and the splits when the coordinator has assigned splits to the reader.
    """

    def __init__(
        self,
        subtask: int,
        source: Source,
        coordinator: Coordinator,
        runtime: Runtime,
        options: HostOptions,
        parallelism: int,
        *,
        signal: Signal,
        received: Callable[[int, tuple[Split, ...]], None],
    ) -> None:
        self.subtask = subtask
        self.restart_at: float | None = runtime.clock.monotonic()
        self.ended = False
        self._source = source
        self._coordinator = coordinator
        self._runtime = runtime
        self._options = options
        self._parallelism = parallelism
        self._signal = signal
        self._received = received
        self._mailbox: deque[ToReader] = deque()
        self._context: InProcessReaderContext | None = None
        self._reader: SourceReader | None = None
        self._awaited: Future[None] | None = None

    def start(self) -> None:
        """Create, register and start a reader (RDR-1). An error here counts as a failure of the reader (SRC-3)."""
        self.restart_at = None
        self._awaited = None
        mailbox = self._mailbox = deque()
        context = self._context = InProcessReaderContext(
            self._source, self._coordinator, self._runtime, self._options, self.subtask, self._parallelism
        )
        self._reader = create_reader(self._source, context, self._options)
        self._coordinator.register_reader(self.subtask, HOST, lambda message: self._receive(mailbox, message))
        self._reader.start()

    def may_poll(self) -> bool:
        """Whether a poll may make progress: a message is queued, or the reader's future has completed (RDR-3)."""
        return (
            self._reader is not None
            and not self.ended
            and (bool(self._mailbox) or self._awaited is None or self._awaited.done())
        )

    def poll(self, output: ReaderOutput) -> InputStatus:
        """Pass the queued messages to the reader, then poll it once."""
        reader = self._reader
        if reader is None:
            return InputStatus.NOTHING_AVAILABLE
        while self._mailbox:
            self._hand_over(reader, self._mailbox.popleft())
        status = reader.poll_next(output)
        self.ended = status is InputStatus.END_OF_INPUT
        if status is InputStatus.NOTHING_AVAILABLE:
            self._await(reader.is_available())
        else:
            self._awaited = None
        return status

    def pause_or_resume(self, pause: Sequence[str], resume: Sequence[str]) -> None:
        """Let the reader pause and resume splits, given by id (RDR-8)."""
        if self._reader is not None:
            self._reader.pause_or_resume_splits(pause, resume)

    def snapshot(self, checkpoint_id: int) -> Mapping[str, Split]:
        """Return the reader's snapshot of its splits, by id."""
        if self._reader is None:
            return {}
        return {split.id: split for split in self._reader.snapshot_state(checkpoint_id)}

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Notify the reader of a durable checkpoint, even if it has returned END_OF_INPUT (RDR-10)."""
        if self._reader is not None:
            self._reader.notify_checkpoint_complete(checkpoint_id)

    def close(self, timeout: float, *, failed: bool) -> list[Exception]:
        """Close the reader within `timeout` seconds, and return its clients to the pool; return all errors.

        If `failed`, the clients are closed instead.
        """
        reader, self._reader = self._reader, None
        context, self._context = self._context, None
        self._mailbox = deque()
        if context is None:
            return []
        context.detach(timeout)
        errors: list[Exception] = []
        if reader is not None:
            try:
                reader.close()
            except Exception as error:  # noqa: BLE001 - returned after everything is closed
                errors.append(error)
        return errors + context.hand_back(failed=failed or bool(errors))

    def _receive(self, mailbox: deque[ToReader], message: ToReader) -> None:
        mailbox.append(message)
        # The coordinator may still send splits to a reader that has just failed; it takes them back at the reset.
        if isinstance(message, AddSplits) and mailbox is self._mailbox:
            self._received(self.subtask, message.splits)
        self._signal.set()

    def _hand_over(self, reader: SourceReader, message: ToReader) -> None:
        match message:
            case AddSplits(splits):
                reader.add_splits(splits)
            case NoMoreSplits():
                reader.notify_no_more_splits()
            case EnumeratorEvent(event):
                reader.handle_source_event(event)

    def _await(self, future: Future[None]) -> None:
        if future is not self._awaited:
            self._awaited = future
            future.add_done_callback(lambda _done: self._signal.set())


class InProcessReaderContext(SourceReaderContext):
    """The `SourceReaderContext` of one reader, until the reader fails or closes."""

    def __init__(
        self,
        source: Source,
        coordinator: Coordinator,
        runtime: Runtime,
        options: HostOptions,
        subtask: int,
        parallelism: int,
    ) -> None:
        self._loans = Loans(source, runtime)
        self._coordinator: Coordinator | None = coordinator
        self._runtime = runtime
        self._options = options
        self._subtask = subtask
        self._parallelism = parallelism

    @property
    def runtime(self) -> Runtime:
        """Threads, locks, time and random numbers."""
        return self._runtime

    @property
    def subtask(self) -> int:
        """The index of this reader, from 0."""
        return self._subtask

    @property
    def options(self) -> HostOptions:
        """The host's options. While the run closes, `close_timeout` is the time that remains for all readers."""
        return self._options

    def current_parallelism(self) -> int:
        """Return the number of readers."""
        return self._parallelism

    def send_split_request(self) -> None:
        """Ask the enumerator for a split."""
        if self._coordinator is not None:
            self._coordinator.handle_split_request(self._subtask, HOST)

    def send_source_event(self, event: SourceEvent) -> None:
        """Send an event to the enumerator."""
        if self._coordinator is not None:
            self._coordinator.handle_source_event(self._subtask, event)

    def lease(self, key: Hashable, factory: Callable[[], C]) -> C:
        """Borrow a client of this process for `key` until the reader closes; `factory` makes one if needed."""
        return self._loans.borrow(key, factory)

    # ---- called by the host

    def detach(self, close_timeout: float) -> None:
        """Drop all requests and events of the reader from now on; limit its `close` to `close_timeout` seconds."""
        self._coordinator = None
        self._options = dataclasses.replace(self._options, close_timeout=Duration(max(0.0, close_timeout)))

    def hand_back(self, *, failed: bool) -> list[Exception]:
        """Return the borrowed clients to the pool, or close them after a failure; return the errors of closing."""
        return self._loans.hand_back(failed=failed)
