# SPDX-License-Identifier: Apache-2.0
"""The queue of the readers' output. Record batches are checked when they are added, and keep their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from forebay.errors import ContractError
from forebay.framework.inprocess.event_time import EventTime
from forebay.framework.inprocess.reader_task import DeliveryLog
from forebay.framework.reader import ReaderOutput
from forebay.framework.split import Position, Split


@dataclass(frozen=True, slots=True)
class Collected:
    """A reader emitted a record batch of a split; `position` is the split's position after it."""

    subtask: int
    split_id: str
    batch: pa.RecordBatch
    position: Position | None


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """A reader has caught up with a split: it has no more rows for now."""

    subtask: int
    split_id: str


@dataclass(frozen=True, slots=True)
class Released:
    """A reader has read a split to its end."""

    subtask: int
    split_id: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A reader returned END_OF_INPUT."""

    subtask: int


Event = Collected | CaughtUp | Released | Ended


class OutputQueue:
    """Queues the events of all readers, and makes the output of each reader. Used on the consumer's thread.

    An event takes effect when it is taken. If its reader fails before that, the event is dropped and its rows are read
    again. With event time, record batches pass through `SourceOutputs`.
    """

    def __init__(self, source: str, schema: pa.Schema, deliveries: DeliveryLog, event_time: EventTime | None) -> None:
        self._source = source
        self._schema = schema
        self._deliveries = deliveries
        self._event_time = event_time
        self._events: deque[Event] = deque()

    def __len__(self) -> int:
        return len(self._events)

    def output(self, subtask: int) -> ReaderOutput:
        """Return the output that a reader may use during one `poll_next`."""
        return _Output(self, subtask, self._source, self._schema, self._deliveries, self._event_time)

    def put(self, event: Event) -> None:
        """Queue an event."""
        self._events.append(event)

    def take(self) -> Event | None:
        """Remove and return the oldest event, or return None."""
        return self._events.popleft() if self._events else None

    def drop(self, subtask: int) -> None:
        """Drop the events of a failed reader."""
        self._events = deque(event for event in self._events if event.subtask != subtask)

    def waiting(self) -> Sequence[str]:
        """Return the ids of the splits that have queued record batches."""
        return [event.split_id for event in self._events if isinstance(event, Collected)]

    def open(self, subtask: int) -> None:
        """Record that a reader starts: with event time, create its outputs."""
        if self._event_time is not None:
            self._event_time.open(
                subtask, lambda split_id, batch, position: self.put(Collected(subtask, split_id, batch, position))
            )


class _Output:
    """The `ReaderOutput` of one reader during one `poll_next`."""

    def __init__(
        self,
        queue: OutputQueue,
        subtask: int,
        source: str,
        schema: pa.Schema,
        deliveries: DeliveryLog,
        event_time: EventTime | None,
    ) -> None:
        self._queue = queue
        self._subtask = subtask
        self._source = source
        self._schema = schema
        self._deliveries = deliveries
        self._event_time = event_time
        self._collected = False

    def collect(self, split_id: str, batch: pa.RecordBatch, position: Position | None) -> None:
        problem = self._problem(split_id, batch, position)
        if problem is not None:
            message, rule, advice = problem
            raise ContractError(
                message, source=self._source, split=split_id, position=position, rule=rule, advice=advice
            )
        self._collected = True
        if self._event_time is not None:
            self._event_time.collect(self._subtask, split_id, batch, position)
        else:
            self._queue.put(Collected(self._subtask, split_id, batch, position))

    def split_added(self, split: Split) -> None:
        if self._event_time is not None:
            self._event_time.add(self._subtask, split.id)

    def split_caught_up(self, split_id: str) -> None:
        self._deliveries.check_may_catch_up(split_id, self._source)
        self._queue.put(CaughtUp(self._subtask, split_id))

    def split_released(self, split_id: str) -> None:
        self._queue.put(Released(self._subtask, split_id))

    def _problem(self, split_id: str, batch: object, position: Position | None) -> tuple[str, str, str] | None:
        if not isinstance(batch, pa.RecordBatch):
            return (
                f"a reader emitted a {type(batch).__name__} instead of a record batch",
                "RDR-2",
                "emit pyarrow.RecordBatch objects",
            )
        if self._collected:
            advice = "emit one record batch, then return MORE_AVAILABLE"
            return "a reader emitted two record batches in one poll_next()", "RDR-2", advice
        if self._deliveries.owner(split_id) != self._subtask:
            emitted = f"reader {self._subtask} emitted a record batch of a split that it does not have"
            return emitted, "RB-5", "emit only rows of splits that were added to this reader"
        if position is None:
            return "a reader emitted a record batch without a position", "RDR-4", "pass the position after the batch"
        if not batch.schema.equals(self._schema):
            return (
                f"a record batch has the schema {_columns(batch.schema)}, but schema() is {_columns(self._schema)}",
                "SR-2",
                "emit record batches with exactly the schema that schema() returns",
            )
        return None


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in schema)
