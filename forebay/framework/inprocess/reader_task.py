# SPDX-License-Identifier: Apache-2.0
"""One subtask of a run: the reader, its messages from the coordinator, and its replacements after failures."""

from __future__ import annotations

import dataclasses
import random
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from forebay.errors import FatalError, ForebayError, RetriableError
from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.coordination.inbox import AddSplits, EnumeratorEvent, NoMoreSplits, ToReader
from forebay.framework.enumerator import SourceEvent
from forebay.framework.reader import InputStatus, ReaderOutput, SourceReader, SourceReaderContext
from forebay.framework.reading.source_reader import create_reader
from forebay.framework.runtime.clients import Loans
from forebay.framework.runtime.connector_errors import connector_error, is_programming_error
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime, Signal
from forebay.framework.source import Source
from forebay.framework.split import Position, Split
from forebay.framework.split_reader import check_may_catch_up
from forebay.options import Duration
from forebay.retry import RetryPolicy

# -- Records which reader reads each split, and up to which positions its rows are delivered and acknowledged.


_MOST_FINISHED = 10_000
"""Finished splits kept for progress reports; the oldest are dropped first. The enumerator remembers all of them."""


@dataclass(frozen=True, slots=True)
class SplitProgress:
    """The progress of one split.

    Args:
        split_id: The id of the split.
        position: The position after the last record batch that was yielded.
        end: The end of the split, exclusive; None if it has no end, or it is unknown.
        rows: Rows yielded in this run.
        bytes: Bytes of Arrow memory yielded in this run.
        state: "waiting" for a reader, "reading", "caught up" (no more rows for now), "paused" (by alignment), or
            "finished".
    """

    split_id: str
    position: Position | None
    end: Position | None
    rows: int
    bytes: int
    state: str


@dataclass(slots=True)
class _Entry:
    split: Split
    position: Position | None
    owner: int | None
    rows: int = 0
    nbytes: int = 0
    caught_up: bool = False

    def progress(self, state: str) -> SplitProgress:
        return SplitProgress(self.split.id, self.position, self.split.end, self.rows, self.nbytes, state)


class DeliveryLog:
    """Records for each split of a run its delivered and its covered position. Used on the consumer's thread.

    A batch that the run has yielded is *delivered*: it is not read again after its reader fails. When the consumer
    acknowledges it, or asks for the next one, it is *covered*: checkpoints include it. So at most one delivered batch
    is not covered.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._finished: dict[str, _Entry] = {}
        self._never_caught_up: dict[str, None] = {}
        self._uncovered: tuple[str, Position | None] | None = None
        self.delivered: tuple[str, Position | None] | None = None

    def give(self, subtask: int, splits: Iterable[Split]) -> None:
        """Record that splits were assigned to a reader."""
        for split in splits:
            old = self._entries.get(split.id) or self._finished.pop(split.id, None)
            rows, nbytes = (old.rows, old.nbytes) if old else (0, 0)
            if old is None:
                self._never_caught_up[split.id] = None
            self._entries[split.id] = _Entry(split, split.position, subtask, rows, nbytes)

    def owner(self, split_id: str) -> int | None:
        """Return the subtask of the reader that reads an unfinished split; None if no reader does."""
        entry = self._entries.get(split_id)
        return None if entry is None else entry.owner

    def unfinished(self) -> list[str]:
        """Return the ids of all splits that were assigned and are not finished."""
        return list(self._entries)

    def position(self, split_id: str) -> Position | None:
        """Return the delivered position of a split; None if the split is at its start, or unknown."""
        entry = self._entries.get(split_id) or self._finished.get(split_id)
        return None if entry is None else entry.position

    def deliver(self, split_id: str, batch: pa.RecordBatch, position: Position | None) -> None:
        """Record that a record batch is yielded to the consumer; `position` is the position after it."""
        entry = self._entries[split_id]
        self._uncovered = (split_id, entry.position)
        entry.position = position
        entry.rows += batch.num_rows
        entry.nbytes += batch.nbytes
        entry.caught_up = False
        self.delivered = (split_id, position)

    def cover(self) -> None:
        """Record that the consumer has processed the last delivered batch, so that checkpoints include it."""
        self._uncovered = None

    def caught_up(self, split_id: str) -> None:
        """Record that a reader has caught up with a split: it has no more rows for now."""
        if split_id in self._entries:
            self._entries[split_id].caught_up = True
            self._never_caught_up.pop(split_id, None)

    def check_may_catch_up(self, split_id: str, source: str) -> None:
        """Raise a ContractError if a reader must not report `caught_up` for this split (SR-4)."""
        if (entry := self._entries.get(split_id)) is not None:
            check_may_catch_up(entry.split.at(entry.position), source)

    def is_caught_up(self, split_id: str) -> bool:
        """Whether a split has no more rows for now, or is finished."""
        entry = self._entries.get(split_id)
        return split_id in self._finished if entry is None else entry.caught_up

    def never_caught_up(self) -> Collection[str]:
        """Return the ids of the unfinished splits that readers have never caught up with in this run."""
        return self._never_caught_up.keys()

    def finish(self, split_id: str) -> Split:
        """Record that a split is delivered to its end; return it with its last position."""
        entry = self._entries.pop(split_id)
        self._never_caught_up.pop(split_id, None)
        entry.owner = None
        self._finished[split_id] = entry
        while len(self._finished) > _MOST_FINISHED:
            del self._finished[next(iter(self._finished))]
        return entry.split.at(entry.position)

    def take_back(self, subtask: int) -> list[Split]:
        """Record that a reader lost its unfinished splits; return them at their delivered positions."""
        held = [entry for entry in self._entries.values() if entry.owner == subtask]
        for entry in held:
            entry.owner = None
            entry.caught_up = False
        return [entry.split.at(entry.position) for entry in held]

    def held_by(self, subtask: int) -> list[str]:
        """Return the ids of a reader's unfinished splits."""
        return [split_id for split_id, entry in self._entries.items() if entry.owner == subtask]

    def checkpoint(self, snapshots: Mapping[str, Split], queued: Sequence[str]) -> list[Split]:
        """Return the unfinished splits that readers have, at their covered positions, sorted by id.

        Args:
            snapshots: The readers' snapshots of their splits, by id. If all emitted rows of a split are covered, the
                position in its snapshot is used. It may be after the last batch, if later records gave no rows.
            queued: Ids of splits with batches that a reader has emitted and the run has not yielded.
        """
        splits = []
        for split_id, entry in sorted(self._entries.items()):
            if entry.owner is None:
                continue  # it is in the snapshot of the enumerator
            if self._uncovered is not None and self._uncovered[0] == split_id:
                splits.append(entry.split.at(self._uncovered[1]))
            elif split_id in queued or split_id not in snapshots:
                splits.append(entry.split.at(entry.position))
            else:
                splits.append(snapshots[split_id])
        return splits

    def covered(self) -> dict[str, Position]:
        """Return the covered positions by split id, without splits at their start."""
        positions = {split_id: entry.position for split_id, entry in (*self._finished.items(), *self._entries.items())}
        if self._uncovered is not None:
            positions[self._uncovered[0]] = self._uncovered[1]
        return {split_id: position for split_id, position in positions.items() if position is not None}

    def progress(self, paused: Iterable[str]) -> dict[str, SplitProgress]:
        """Return, by split id, the progress of each split that was assigned; `paused` are ids of paused splits."""
        paused = set(paused)
        progress = {split_id: entry.progress("finished") for split_id, entry in self._finished.items()}
        for split_id, entry in self._entries.items():
            state = "waiting" if entry.owner is None else "caught up" if entry.caught_up else "reading"
            progress[split_id] = entry.progress("paused" if split_id in paused else state)
        return progress


# -- Failures of readers: after which errors, and how often, a reader is replaced; the error that ends the run.


MAX_RESTARTS = 3
"""Maximum consecutive replacements of a reader without a delivered record batch of the split."""


class ReaderFailures:
    """Counts consecutive failures of each split, and of each reader that failed without having a split.

    With `restarts` False, no reader is replaced.
    """

    def __init__(self, source: str, options: HostOptions, deliveries: DeliveryLog, *, restarts: bool) -> None:
        self.source = source
        self.options = options
        self._deliveries = deliveries
        self._restarts = restarts
        self._in_a_row: dict[str | int, int] = {}

    def progressed(self, subtask: int, split_id: str) -> None:
        """Record that a reader delivered a batch of a split, or finished the split.

        The failure counts of the reader and of the split start from 0 again.
        """
        self._in_a_row.pop(split_id, None)
        self._in_a_row.pop(subtask, None)

    def restart_pause(self, subtask: int, error: BaseException, chance: random.Random) -> float:
        """Count a failure of a reader; return the seconds until the reader may be replaced.

        `chance` makes the pause random, see `RetryPolicy`.

        Raises:
            BaseException: The reader must not be replaced. The error is `error`, with source, split and position.
        """
        split_ids = self._deliveries.held_by(subtask)
        times = self._count(subtask, split_ids, error)
        if self._restarts and may_restart(error, times, self.options.retries):
            return RetryPolicy.of(self.options).pause(times, chance, error)
        raise self._surfaced(subtask, split_ids, error, times)

    def _count(self, subtask: int, split_ids: Collection[str], error: BaseException) -> int:
        """Count a failure for the split that the error names, else for all splits of the reader, else for the reader.

        Returns:
            The highest of the counts that were increased.
        """
        named = getattr(error, "split", None)
        blamed: Collection[str | int] = [named] if named is not None and named in split_ids else split_ids or [subtask]
        for each in blamed:
            self._in_a_row[each] = self._in_a_row.get(each, 0) + 1
        return max(self._in_a_row[each] for each in blamed)

    def _surfaced(self, subtask: int, split_ids: list[str], error: BaseException, times: int) -> BaseException:
        if isinstance(error, Exception):
            named = getattr(error, "split", None)
            split = named if named is not None else split_ids[0] if len(split_ids) == 1 else None
            position = None if split is None else self._deliveries.position(split)
            doing = f"reader {subtask}"
            error = connector_error(error, source=self.source, doing=doing, split=split, position=position)
        if times > MAX_RESTARTS:
            error.add_note(f"reader {subtask} failed again after it was replaced {MAX_RESTARTS} times in a row")
        return error


def may_pass(error: BaseException) -> bool:
    """Whether a new reader may succeed after this error.

    True for a `RetriableError` and for exceptions of client libraries, also if a `FatalError` wraps them. False for all
    other errors of forebay (options, data, contract, loss), and for mistakes in the connector's code.
    """
    if isinstance(error, FatalError) and error.__cause__ is not None:
        return may_pass(error.__cause__)  # the framework wrapped an exception of the connector
    if isinstance(error, ForebayError):
        return isinstance(error, RetriableError)
    return isinstance(error, Exception) and not is_programming_error(error)


def may_restart(error: BaseException, times: int, retries: int | None) -> bool:
    """Whether a reader is replaced after it has failed `times` times in a row, now with `error`.

    Each failure with a `RetriableError` counts as the `1 + retries` tries of its fetcher, and up to four tries are made
    in total, as for a Spark task. If `retries` is None, the fetcher has retried as long as `retryTimeout` allows.
    """
    if isinstance(error, RetriableError) and retries is None:
        return False
    rounds = (times + 1) * (1 + (retries or 0)) if isinstance(error, RetriableError) else times + 1
    return rounds <= 1 + MAX_RESTARTS and may_pass(error)


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
