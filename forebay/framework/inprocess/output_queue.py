# SPDX-License-Identifier: Apache-2.0
"""What readers bring: checked when it comes, used in its order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from forebay.errors import ContractError
from forebay.framework.inprocess.delivery_log import DeliveryLog
from forebay.framework.inprocess.event_time import EventTime
from forebay.framework.reader import ReaderOutput
from forebay.framework.split import Position, Split


@dataclass(frozen=True, slots=True)
class Collected:
    """A record batch to yield, and the split's position once it is."""

    subtask: int
    split_id: str
    batch: pa.RecordBatch
    position: Position | None


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """A split without an end has nothing more for now."""

    subtask: int
    split_id: str


@dataclass(frozen=True, slots=True)
class Released:
    """A split has been read to its end."""

    subtask: int
    split_id: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A reader gave END_OF_INPUT."""

    subtask: int


Event = Collected | CaughtUp | Released | Ended


class OutputQueue:
    """The outputs of all readers, and the queue of what they brought. The consumer's thread calls everything.

    An event takes effect when its turn comes; if its reader fails before, it never happened, and is read again.

    Args:
        source: The name of the source, for errors.
        schema: What every record batch must have.
        deliveries: Says which reader holds a split.
        event_time: Record batches pass through its outputs; None without event time.
    """

    def __init__(self, source: str, schema: pa.Schema, deliveries: DeliveryLog, event_time: EventTime | None) -> None:
        self._source = source
        self._schema = schema
        self._deliveries = deliveries
        self._event_time = event_time
        self._events: deque[Event] = deque()
        self._collected = 0

    def __len__(self) -> int:
        return len(self._events)

    def output(self, subtask: int) -> ReaderOutput:
        """Return the output for one poll of a reader."""
        self._collected = 0
        return _Output(self, subtask)

    def put(self, event: Event) -> None:
        """Queue an event."""
        self._events.append(event)

    def take(self) -> Event | None:
        """Return the event whose turn it is, or None."""
        return self._events.popleft() if self._events else None

    def drop(self, subtask: int) -> None:
        """A reader failed: what it brought and was not used is read again."""
        self._events = deque(event for event in self._events if event.subtask != subtask)

    def waiting(self) -> Sequence[str]:
        """Return the splits of which a record batch waits."""
        return [event.split_id for event in self._events if isinstance(event, Collected)]

    def added(self, subtask: int, split: Split) -> None:
        """A reader took a split: it holds the watermark from now on (OUT-4)."""
        if self._event_time is not None:
            self._event_time.add(subtask, split.id)

    def collect(self, subtask: int, split_id: str, batch: pa.RecordBatch, position: Position | None) -> None:
        """Check a record batch and queue it.

        Raises:
            ContractError: It is none of the schema, the second of one poll, without progress, or of a split that the
                reader does not hold.
        """
        problem = self._problem(subtask, split_id, batch, position)
        if problem is not None:
            message, rule, advice = problem
            raise ContractError(
                message, source=self._source, split=split_id, position=position, rule=rule, advice=advice
            )
        self._collected += 1
        if self._event_time is not None:
            # Its outputs give the batch to `put`, by the way that `open` was told, and then look at its times.
            self._event_time.collect(subtask, split_id, batch, position)
        else:
            self.put(Collected(subtask, split_id, batch, position))

    def open(self, subtask: int) -> None:
        """A reader starts: make its outputs."""
        if self._event_time is not None:
            self._event_time.open(
                subtask, lambda split_id, batch, position: self.put(Collected(subtask, split_id, batch, position))
            )

    def _problem(
        self, subtask: int, split_id: str, batch: object, position: Position | None
    ) -> tuple[str, str, str] | None:
        if not isinstance(batch, pa.RecordBatch):
            return f"a reader emitted a {type(batch).__name__}", "RDR-2", "emit pyarrow.RecordBatch objects"
        if self._collected:
            return "a reader emitted two record batches in one poll_next()", "RDR-2", "emit one, then MORE_AVAILABLE"
        if self._deliveries.owner(split_id) != subtask:
            return f"reader {subtask} emitted for a split it does not hold", "RB-5", "emit for splits that were added"
        if position is None:
            return "records came without the position after them", "RDR-4", "give the position to resume at"
        if not batch.schema.equals(self._schema):
            return (
                f"a record batch has the schema {_columns(batch.schema)}, and schema() says {_columns(self._schema)}",
                "SR-2",
                "give record batches of exactly schema()",
            )
        return None


class _Output:
    """Where one reader puts what it reads, in one poll."""

    def __init__(self, outputs: OutputQueue, subtask: int) -> None:
        self._outputs = outputs
        self._subtask = subtask

    def collect(self, split_id: str, batch: pa.RecordBatch, position: Position | None) -> None:
        self._outputs.collect(self._subtask, split_id, batch, position)

    def split_added(self, split: Split) -> None:
        self._outputs.added(self._subtask, split)

    def split_caught_up(self, split_id: str) -> None:
        self._outputs.put(CaughtUp(self._subtask, split_id))

    def split_released(self, split_id: str) -> None:
        self._outputs.put(Released(self._subtask, split_id))


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in schema)
