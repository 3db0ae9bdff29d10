# SPDX-License-Identifier: Apache-2.0
"""A range of offsets that a fetcher reads, and its state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from forebay.sources.kafka.client.offset_loss import Key


class RangeState(Enum):
    """The state of a range of offsets that a fetcher reads.

    A range is NEW until the next fetch, then READING, and FINISHED at its end. A range without an end changes between
    READING and CAUGHT_UP.
    """

    NEW = auto()
    READING = auto()
    CAUGHT_UP = auto()
    FINISHED = auto()


@dataclass(slots=True)
class FetchRange:
    """A range of offsets of one partition.

    Args:
        split_id: The id of the split of this range.
        key: Topic and number of the partition.
        offset: The next offset to read.
        end: The offset to stop before; None = no end.
        waited: Seconds for which earlier attempts waited for the first record.
        topic_id: The id of the topic; None = unknown.
    """

    split_id: str
    key: Key
    offset: int
    end: int | None
    waited: float = 0.0
    topic_id: str | None = None
    state: RangeState = RangeState.NEW
    progress_at: float = 0.0
    """When the offset last moved, in clock seconds; shifted by the time spent outside of `fetch`."""

    def begin(self, now: float) -> None:
        """Start reading the range. An empty range is finished at once."""
        self.progress_at = now - self.waited
        self._move_to(self.offset)

    def advance(self, offset: int, now: float) -> bool:
        """Move the range to an offset; return whether it is after the present one."""
        if offset <= self.offset:
            return False
        self.progress_at = now
        self._move_to(offset)
        return True

    def is_at(self, partition_end: int | None) -> bool:
        """Return whether a READING range without an end has reached the end of its partition."""
        at_end = partition_end is not None and self.offset >= partition_end
        return self.state is RangeState.READING and self.end is None and at_end

    def _move_to(self, offset: int) -> None:
        self.offset = offset
        done = self.end is not None and offset >= self.end
        self.state = RangeState.FINISHED if done else RangeState.READING
