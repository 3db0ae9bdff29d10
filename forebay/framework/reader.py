# SPDX-License-Identifier: Apache-2.0
"""The contract of the side that reads: pulled by one task, fed by fetcher threads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Sequence
from concurrent.futures import Future
from enum import Enum
from typing import Protocol, TypeVar

import pyarrow as pa

from forebay.errors import ContractError
from forebay.framework.events import SourceEvent
from forebay.framework.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.split import Position, Split

C = TypeVar("C")


class InputStatus(Enum):
    """What `SourceReader.poll_next` says about the next call (STA-1)."""

    MORE_AVAILABLE = "poll again now (may be a false hint)"
    NOTHING_AVAILABLE = "wait for is_available()"
    END_OF_INPUT = "final: nothing will follow"


class ReaderOutput(Protocol):
    """Where a reader puts record batches: the host's side. Called on the task thread only."""

    def collect(self, split_id: str, batch: pa.RecordBatch, position: Position | None) -> None:
        """Take one record batch; `position` is the split's progress once the batch counts as delivered."""

    def split_added(self, split: Split) -> None:
        """Open the per-split output, from the moment the split is added, not from its first record (OUT-4)."""

    def split_caught_up(self, split_id: str) -> None:
        """Note that a split without an end has nothing more for now: one of the conditions of idleness."""

    def split_released(self, split_id: str) -> None:
        """Close the per-split output; a dead split must not hold the watermark (OUT-3)."""


class SourceReader(ABC):
    """Pulls record batches from the splits it was given; one per task.

    One task thread calls every method (RDR-2), except that `is_available` futures complete on any thread. Authors
    rarely implement this: `SourceReaderBase`, over fetcher threads and a `SplitReader`, is supplied.

    A reader starts empty; all progress arrives as splits (SRC-4).
    """

    def start(self) -> None:
        """Begin. Called once; splits may already have been added, so ask for one only if none was (RDR-1)."""

    @abstractmethod
    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Emit at most one record batch, without ever blocking (RDR-2).

        Raises:
            ForebayError: What a fetcher thread met; errors come before the end of input (RB-6, RB-8).
        """

    @abstractmethod
    def is_available(self) -> Future[None]:
        """Return a future that completes when polling may give something (RDR-3). Early completion is allowed."""

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> Sequence[Split]:
        """Return each unfinished split at the next record not yet emitted, unread ones too (RDR-4)."""

    @abstractmethod
    def add_splits(self, splits: Sequence[Split]) -> None:
        """Take more splits, at any time before `notify_no_more_splits` (RDR-7). Must not block."""

    @abstractmethod
    def notify_no_more_splits(self) -> None:
        """No split will follow: once all are read, `poll_next` gives END_OF_INPUT, again on every poll (RDR-6)."""

    def handle_source_event(self, event: SourceEvent) -> None:
        """The enumerator sent an event. By default an unknown event is an error (EVT-1).

        Raises:
            ContractError: No event is expected.
        """
        raise ContractError(
            f"{type(self).__name__} does not know the source event {type(event).__name__}",
            rule="EVT-1",
            advice="override handle_source_event(event)",
        )

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """A checkpoint is durable. May come after all fetchers are gone (RDR-10). Best effort."""

    @abstractmethod
    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Stop emitting some splits and go on with others, from the same record (RDR-8). Unknown ids: no effect."""

    @abstractmethod
    def close(self) -> None:
        """Free threads and clients within a bound, also when a fetch is blocked or the queue is full (RDR-9)."""


class SourceReaderContext(ABC):
    """What the host offers a reader (RCX-1)."""

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
        """Whether somebody goes on from the ends of the splits given, whether or not they were reached (Spark)."""
        return False

    @abstractmethod
    def current_parallelism(self) -> int:
        """Return how many readers there are now."""

    @abstractmethod
    def send_split_request(self) -> None:
        """Ask the enumerator for a split. A host that planned everything ignores it."""

    @abstractmethod
    def send_source_event(self, event: SourceEvent) -> None:
        """Send an event to the enumerator.

        Raises:
            ConfigurationError: The host has no such channel (Spark).
        """

    @abstractmethod
    def lease(self, key: Hashable, factory: Callable[[], C]) -> C:
        """Borrow an expensive client from this process: one holder at a time, kept for the next reader.

        Handed back when the reader closes; thrown away (with its `close()`, if it has one) when the reader failed.

        Args:
            key: Equal keys share clients: use all options that shape the client.
            factory: Makes a client when none is free.
        """
