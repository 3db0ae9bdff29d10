# SPDX-License-Identifier: Apache-2.0
"""The contract of the reading side: a task polls a reader; fetcher threads feed it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Sequence
from concurrent.futures import Future
from enum import Enum
from typing import Protocol, TypeVar

import pyarrow as pa

from forebay.errors import ContractError
from forebay.framework.enumerator import SourceEvent
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.split import Position, Split

C = TypeVar("C")


class InputStatus(Enum):
    """The result of `SourceReader.poll_next`: when the host must call it again (STA-1)."""

    MORE_AVAILABLE = "poll again now (may be a false hint)"
    NOTHING_AVAILABLE = "wait for is_available()"
    END_OF_INPUT = "final: nothing will follow"


class ReaderOutput(Protocol):
    """Receives the record batches of a reader. Implemented by the host; called on the task thread only."""

    def collect(self, split_id: str, batch: pa.RecordBatch, position: Position | None) -> None:
        """Take one record batch of a split; `position` is the split's position after the batch."""

    def split_added(self, split: Split) -> None:
        """Open the output of a split when it is added, before its first record (OUT-4)."""

    def split_caught_up(self, split_id: str) -> None:
        """Record that a split without an end has no more records for now. Only such a split can become idle."""

    def split_released(self, split_id: str) -> None:
        """Close the output of a split, so that it no longer holds back the watermark (OUT-3)."""


class SourceReader(ABC):
    """Emits the record batches of its splits; one per task. Restored progress arrives by `add_splits` alone (SRC-4).

    The host calls all methods on one task thread (RDR-2); the futures of `is_available` complete on any thread.
    Authors rarely implement this class: `SourceReaderBase` runs a `SplitReader` on fetcher threads.
    """

    def start(self) -> None:
        """Request a first split, unless splits were added before. Called once (RDR-1)."""

    @abstractmethod
    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Emit at most one record batch; never block (RDR-2).

        Raises:
            ForebayError: A fetcher thread failed. The error is raised before END_OF_INPUT is returned (RB-6, RB-8).
        """

    @abstractmethod
    def is_available(self) -> Future[None]:
        """Return a future that completes when `poll_next` may have a batch (RDR-3). It may complete too early."""

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> Sequence[Split]:
        """Return all unfinished splits, each at its next record not yet emitted (RDR-4)."""

    @abstractmethod
    def add_splits(self, splits: Sequence[Split]) -> None:
        """Take more splits, at any time before `notify_no_more_splits` (RDR-7). Must not block."""

    @abstractmethod
    def notify_no_more_splits(self) -> None:
        """Record that no split follows: after the last one, every `poll_next` returns END_OF_INPUT (RDR-6)."""

    def handle_source_event(self, event: SourceEvent) -> None:
        """Handle an event that the enumerator sent (EVT-1).

        Raises:
            ContractError: By default, for any event.
        """
        raise ContractError(
            f"the enumerator sent the event {type(event).__name__}, which {type(self).__name__} does not handle",
            rule="EVT-1",
            advice="override handle_source_event(event) in the reader",
        )

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Record that a checkpoint is durable. Best effort; may come after all fetchers have ended (RDR-10)."""

    @abstractmethod
    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Stop emitting some splits, and resume others at the same record (RDR-8). Unknown ids have no effect."""

    @abstractmethod
    def close(self) -> None:
        """End threads and free clients within a time limit, also if a fetch blocks or the queue is full (RDR-9)."""


class SourceReaderContext(ABC):
    """What a host offers to a reader: its options, threads, clients and messages to the enumerator (RCX-1)."""

    fetcher_factor: int = 1
    """How many times `Source.fetchers` a reader should have fetchers: `parallelism` of `forebay.run`, else 1."""

    @property
    @abstractmethod
    def runtime(self) -> Runtime:
        """Threads, locks, clock and random numbers."""

    @property
    @abstractmethod
    def subtask(self) -> int:
        """The index of this reader, from 0."""

    @property
    @abstractmethod
    def options(self) -> HostOptions:
        """The host's options: sizes of record batches and of the queue, time-outs, retries."""

    @property
    def ends_are_promises(self) -> bool:
        """Whether the next read starts at the ends of the splits, even if this read stops before them, as on Spark."""
        return False

    @abstractmethod
    def current_parallelism(self) -> int:
        """Return the number of readers."""

    @abstractmethod
    def send_split_request(self) -> None:
        """Ask the enumerator for a split. A host that plans splits before the read, such as Spark, ignores the call."""

    @abstractmethod
    def send_source_event(self, event: SourceEvent) -> None:
        """Send an event to the enumerator.

        Raises:
            ConfigurationError: The host delivers no events (Spark).
        """

    @abstractmethod
    def lease(self, key: Hashable, factory: Callable[[], C]) -> C:
        """Borrow a client from the pool of this process. A client has one borrower at a time.

        The client returns to the pool when the reader closes. After a failure of the reader it is closed instead.

        Args:
            key: All options that the client depends on: readers with equal keys share clients.
            factory: Makes a client if the pool has no free one.
        """
