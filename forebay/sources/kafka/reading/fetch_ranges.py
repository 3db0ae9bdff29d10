# SPDX-License-Identifier: Apache-2.0
"""The ranges of offsets of a fetcher, the state of each, and the parts that it returns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

import pyarrow as pa

from forebay.sources.kafka.client.offset_loss import Key


@dataclass(frozen=True, slots=True)
class FetchedPart:
    """A part of one range.

    Args:
        topic: The topic.
        partition: The partition.
        batch: The records; None = only progress, or the end.
        next_offset: The next offset to read.
        finished: The range is read to its end. Reported once; the fetcher has forgotten the range.
        caught_up: All existing records of a range without an end are read. Reported once until more arrive.
    """

    topic: str
    partition: int
    batch: pa.RecordBatch | None
    next_offset: int
    finished: bool
    caught_up: bool = False


class RangeState(Enum):
    """The state of a range.

    QUEUED → READING at the next fetch, once no earlier range of its partition is left. READING → FINISHED at its end.
    A range without an end changes between READING and CAUGHT_UP.
    """

    QUEUED = auto()
    READING = auto()
    CAUGHT_UP = auto()
    FINISHED = auto()


@dataclass(slots=True)
class FetchRange:
    """A range of offsets of one partition.

    Args:
        topic: The topic.
        partition: The partition.
        offset: The next offset to read.
        end: The offset to stop before; None = no end.
        waited: Seconds that earlier attempts waited for the first record.
    """

    topic: str
    partition: int
    offset: int
    end: int | None
    waited: float = 0.0
    state: RangeState = RangeState.QUEUED
    progress_at: float = 0.0
    """When the offset last moved, moved forward by the time outside of `fetch`."""

    @property
    def key(self) -> Key:
        """Topic and partition."""
        return self.topic, self.partition

    def begin(self, now: float) -> None:
        """Leave the queue; an empty range is finished at once."""
        self.progress_at = now - self.waited
        self._move_to(self.offset)

    def advance(self, offset: int, now: float) -> bool:
        """Move to an offset; return whether that is progress."""
        if offset <= self.offset:
            return False
        self.progress_at = now
        self._move_to(offset)
        return True

    def is_at(self, partition_end: int | None) -> bool:
        """Whether a READING range without an end has reached the end of its partition."""
        at_end = partition_end is not None and self.offset >= partition_end
        return self.state is RangeState.READING and self.end is None and at_end

    def _move_to(self, offset: int) -> None:
        self.offset = offset
        done = self.end is not None and offset >= self.end
        self.state = RangeState.FINISHED if done else RangeState.READING
