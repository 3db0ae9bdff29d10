# SPDX-License-Identifier: Apache-2.0
"""What the planner knows about the event time of one split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forebay.framework.split import Position
from forebay.watermarks.alignment import watermark_before
from forebay.watermarks.idleness import IdlenessTimer


@dataclass(slots=True)
class SplitTime:
    """The event time of one split, as far as the planner has looked.

    Attributes:
        timer: Decides whether the split is idle; None = never.
        watermark: No record on time that is unread has an event time up to this one; None = not known yet. Only rises.
        next_time: The event time of the record at `position`, or of the last one before it; None = unknown.
        position: Where `next_time` was looked up.
        unknown_looks: How many looks in a row found no event time of a next record.
        looked: Whether there was a look, and it still tells what the next record is.
        at_end: Whether the split was caught up at that look.
        empty: Whether the last look found no record, although the end of the split is beyond its position.
        caught_up: Whether the last poll found nothing to read.
        held: Whether the split may not be read to its present end.
        returned: Whether it was idle and has records again, which were not looked at yet.
        behind: Whether it went on with records that are older than the others allow.
        warned: Whether there was a warning of an event time in the future.
    """

    timer: IdlenessTimer | None
    watermark: int | None = None
    next_time: int | None = None
    position: Position | None = None
    unknown_looks: int = 0
    looked: bool = False
    at_end: bool = False
    empty: bool = False
    caught_up: bool = False
    held: bool = False
    returned: bool = False
    behind: bool = False
    warned: bool = False

    @property
    def idle(self) -> bool:
        """Whether the split holds nobody back: it was caught up for the idle timeout."""
        return self.timer is not None and self.timer.idle

    @property
    def must_be_looked_at(self) -> bool:
        """Whether the split may not be read before a look, which counts it if the others have left it behind."""
        return self.returned or (self.watermark is None and not self.looked)

    def knows(self, position: Position | None) -> bool:
        """Return whether there was a look at this position."""
        return self.looked and self.position == position

    def later_than(self, latest: int, position: Position | None) -> bool:
        """Return whether the next record is known to be later."""
        return self.knows(position) and self.next_time is not None and self.next_time > latest

    def note(self, position: Position | None, event_time: int | None, delay: int, *, at_end: bool) -> None:
        """Note an answer, in microseconds; the watermark only rises."""
        self.looked, self.at_end, self.position, self.next_time = True, at_end, position, event_time
        self.returned = False
        self.unknown_looks = self.unknown_looks + 1 if event_time is None and not at_end else 0
        if event_time is not None:
            found = watermark_before(event_time, delay)
            self.watermark = found if self.watermark is None else max(self.watermark, found)

    def follow(self, position: Position | None, *, with_data: bool) -> None:
        """Note where the split is now, and whether there is something to read."""
        self.held, self.caught_up = False, not with_data
        self.returned = with_data and (self.returned or self.idle)
        self.empty = self.empty and self.knows(position)
        if with_data and self.at_end:  # the last record was looked at, and now there is a next one
            self.looked = False

    def judge(self, looked_at: float, *, silent: bool) -> None:
        """Judge idleness as of a completed look for new records, in seconds (WM-4)."""
        if self.timer is not None:
            self.timer.probe(looked_at, silent=silent)


def slowest_of(times: Mapping[str, SplitTime]) -> str | None:
    """Return the id of the split with the lowest watermark; None if no watermark is known."""
    known = ((time.watermark, split_id) for split_id, time in times.items() if time.watermark is not None)
    found = min(known, default=None)
    return None if found is None else found[1]
