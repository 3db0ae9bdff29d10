# SPDX-License-Identifier: Apache-2.0
"""What a reader sees of a host that planned everything, and where it puts what it read."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from forebay.errors import ContractError
from forebay.framework.events import SourceEvent
from forebay.framework.host_options import HostOptions
from forebay.framework.microbatch.split_providers.planning_context import event_refused
from forebay.framework.reader import SourceReader, SourceReaderContext
from forebay.framework.runtime.clients import Loans
from forebay.framework.runtime.connector_errors import explained
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Position, Split

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class Delivered:
    """One record batch of a task, and where it came from."""

    split_id: str
    batch: pa.RecordBatch
    position: Position | None


class Output:
    """Where a reader puts its record batches: at most one per poll. Called on the thread that polls.

    Args:
        source: The format name, for errors.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self.delivered: Delivered | None = None
        """What the last poll gave; whoever polls takes it out."""
        self.released: list[str] = []
        """Splits that are read to their end."""
        self.caught_up: list[str] = []
        """Splits without an end that have nothing more for now."""

    def collect(self, split_id: str, batch: object, position: Position | None) -> None:
        """Take one record batch (RDR-2)."""
        if isinstance(batch, pa.RecordBatch) and self.delivered is None:
            self.delivered = Delivered(split_id, batch, position)
            return
        what = "two record batches" if isinstance(batch, pa.RecordBatch) else f"{type(batch).__name__}, no RecordBatch,"
        raise ContractError(
            f"a reader emitted {what} in one poll_next()",
            source=self._source,
            split=split_id,
            position=position,
            rule="RDR-2",
            advice="emit one pyarrow.RecordBatch, then return MORE_AVAILABLE",
        )

    def split_added(self, split: Split) -> None:
        """Nothing to open: a read without event time has one output."""

    def split_caught_up(self, split_id: str) -> None:
        """Note it."""
        self.caught_up.append(split_id)

    def split_released(self, split_id: str) -> None:
        """Note it."""
        self.released.append(split_id)


class TaskContext(SourceReaderContext):
    """A reader's view of a host that planned everything: no requests, no events, clients on loan.

    Args:
        source: What is read.
        options: Bounds and time-outs.
        runtime: Threads and time.
        index: The number of the task.
        count: How many tasks there are.
        planned: The ends of splits were planned, and the next micro-batch begins there.
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
        """Bounds and time-outs."""
        return self._options

    @property
    def ends_are_promises(self) -> bool:
        """Whether the ends were planned; a bounded source ends where it ends, and nothing is planned after that."""
        return self._planned and not self._source.bounded

    def current_parallelism(self) -> int:
        """Return how many tasks there are."""
        return self._count

    def send_split_request(self) -> None:
        """Ignored: every split of this task was planned."""

    def send_source_event(self, event: SourceEvent) -> None:
        """Refuse: there is no such channel."""
        raise event_refused(self._source.name, event)

    def lease(self, key: Hashable, factory: Callable[[], C]) -> C:
        """Borrow a client."""
        return self._loans.borrow(key, factory)

    def release(self, *, failed: bool) -> list[Exception]:
        """Hand clients back, or close them after a failure; return what their `close` raised."""
        return self._loans.hand_back(failed=failed)


def close_reader(reader: SourceReader, context: TaskContext, source: str, error: BaseException | None) -> None:
    """Close the reader and return what it borrowed; an error of closing never hides the first one.

    Raises:
        ForebayError: What `close` raised, when there was no error before.
    """
    left_early = isinstance(error, GeneratorExit)
    try:
        with explained(source, "close()"):
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
