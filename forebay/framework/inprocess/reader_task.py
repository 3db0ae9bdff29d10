# SPDX-License-Identifier: Apache-2.0
"""One subtask of a run: its mailbox, its reader, and the reader's replacements."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.coordination.messages import AddSplits, EnumeratorEvent, NoMoreSplits, ToReader
from forebay.framework.host_options import HostOptions
from forebay.framework.inprocess.reader_context import HOST, LocalReaderContext
from forebay.framework.reader import InputStatus, ReaderOutput, SourceReader
from forebay.framework.reading.source_reader import create_reader
from forebay.framework.runtime.runtime import Runtime, Signal
from forebay.framework.source import Source
from forebay.framework.split import Split


class ReaderTask:
    """A place for one reader. The consumer's thread calls everything.

    Args:
        subtask: Its index.
        source: Makes the readers.
        coordinator: Readers register there.
        runtime: Threads, locks, time and chance.
        options: The host's.
        parallelism: How many readers there are.
        signal: Set when the reader may have something, or a message came.
        received: Told of the splits of each message, when it comes.
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
        self._context: LocalReaderContext | None = None
        self._reader: SourceReader | None = None
        self._awaited: Future[None] | None = None

    @property
    def reader(self) -> SourceReader | None:
        """The reader, while there is one."""
        return self._reader

    def start(self) -> None:
        """Make a reader, register it, start it (RDR-1). A failure is a failure of this reader (SRC-3)."""
        self.restart_at = None
        self._awaited = None
        mailbox = self._mailbox = deque()
        context = self._context = LocalReaderContext(
            self._source, self._coordinator, self._runtime, self._options, self.subtask, self._parallelism
        )
        self._reader = create_reader(self._source, context, self._options)
        self._coordinator.register_reader(self.subtask, HOST, lambda message: self._receive(mailbox, message))
        self._reader.start()

    def may_poll(self) -> bool:
        """Whether a poll may give something: a message waits, or the reader's future has completed (RDR-3)."""
        return (
            self._reader is not None
            and not self.ended
            and (bool(self._mailbox) or self._awaited is None or self._awaited.done())
        )

    def poll(self, output: ReaderOutput) -> InputStatus:
        """Hand the messages to the reader, in order, and poll it once."""
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
        """Close and open the gate of some splits (RDR-8)."""
        if self._reader is not None:
            self._reader.pause_or_resume_splits(pause, resume)

    def snapshot(self, checkpoint_id: int) -> Mapping[str, Split]:
        """Return what the reader says of its splits, by id."""
        if self._reader is None:
            return {}
        return {split.id: split for split in self._reader.snapshot_state(checkpoint_id)}

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """A checkpoint is durable; also told to a reader that has ended (RDR-10)."""
        if self._reader is not None:
            self._reader.notify_checkpoint_complete(checkpoint_id)

    def close(self, timeout: float, *, failed: bool) -> list[Exception]:
        """Close the reader and settle its clients; return what that raised. Without a reader, nothing."""
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
            except Exception as error:  # noqa: BLE001 - whoever closes decides, after all has been closed
                errors.append(error)
        return errors + context.hand_back(failed=failed or bool(errors))

    def _receive(self, mailbox: deque[ToReader], message: ToReader) -> None:
        mailbox.append(message)
        # The coordinator may still send to a reader that has just failed; it takes those splits back at the reset.
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
