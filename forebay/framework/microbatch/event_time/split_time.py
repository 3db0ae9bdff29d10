# SPDX-License-Identifier: Apache-2.0
"""The event time of one split, as far as the planner knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forebay.framework.split import Position
from forebay.watermarks.alignment import watermark_before
from forebay.watermarks.idleness import IdlenessTimer


@dataclass(slots=True)
class SplitTime:
    """The event time of one split, as far as the planner has looked it up. Times are in microseconds since 1970.

    A lookup asks for the event time of the split's next record, or of its last record if it has caught up.

    Attributes:
        timer: Decides whether the split is idle; None = it is never idle.
        watermark: All unread records that are on time have a later event time; None = not known yet. It only rises.
        next_time: The event time that the last lookup found; None = unknown.
        position: The position of the split at the last lookup.
        unknown_lookups: How many lookups in a row found no event time of a next record.
        looked_up: Whether the last lookup is valid: there was one, and the split has not got its next record since.
        at_end: Whether the split had caught up at the last lookup.
        empty: Whether the last lookup found no record, although the end of the split is beyond its position.
        caught_up: Whether the split has no data to read now.
        held: Whether alignment keeps the split from being read to its present end.
        returned: Whether the split was idle, has records again, and was not looked up since.
        behind: Whether the split has records older than the lowest watermark that the other splits waited for.
        warned: Whether a warning about an event time in the future was logged.
    """

    timer: IdlenessTimer | None
    watermark: int | None = None
    next_time: int | None = None
    position: Position | None = None
    unknown_lookups: int = 0
    looked_up: bool = False
    at_end: bool = False
    empty: bool = False
    caught_up: bool = False
    held: bool = False
    returned: bool = False
    behind: bool = False
    warned: bool = False

    @property
    def idle(self) -> bool:
        """Whether the split had no new record for longer than `idleTimeout`, so it does not hold back other splits."""
        return self.timer is not None and self.timer.idle

    @property
    def must_be_looked_at(self) -> bool:
        """Whether the split must be looked up before it is read, because it is new or was idle."""
        return self.returned or (self.watermark is None and not self.looked_up)

    def knows(self, position: Position | None) -> bool:
        """Return whether the last lookup was at this position and is still valid."""
        return self.looked_up and self.position == position

    def later_than(self, latest: int, position: Position | None) -> bool:
        """Return whether the record at `position` is known to be later than `latest`, in microseconds."""
        return self.knows(position) and self.next_time is not None and self.next_time > latest

    def note(self, position: Position | None, event_time: int | None, delay: int, *, at_end: bool) -> None:
        """Record the result of a lookup, and raise the watermark to `event_time` less `delay` (microseconds).

        `event_time` is None if it is unknown. `at_end` says whether the split had caught up.
        """
        self.looked_up, self.at_end, self.position, self.next_time = True, at_end, position, event_time
        self.returned = False
        self.unknown_lookups = self.unknown_lookups + 1 if event_time is None and not at_end else 0
        if event_time is not None:
            found = watermark_before(event_time, delay)
            self.watermark = found if self.watermark is None else max(self.watermark, found)

    def follow(self, position: Position | None, *, with_data: bool) -> None:
        """Record the position of the split, and whether it has data to read. Called before the lookups of a poll."""
        self.held, self.caught_up = False, not with_data
        self.returned = with_data and (self.returned or self.idle)
        self.empty = self.empty and self.knows(position)
        if with_data and self.at_end:  # the lookup was of the last record, and now there is a next one
            self.looked_up = False

    def judge(self, looked_at: float, *, silent: bool) -> None:
        """Update the idle timer (WM-4): at the monotonic time `looked_at`, the source was asked for the split's end.

        `silent` says whether the split had no new record.
        """
        if self.timer is not None:
            self.timer.probe(looked_at, silent=silent)


def slowest_of(times: Mapping[str, SplitTime]) -> str | None:
    """Return the id of the split with the lowest watermark; None if no split has a watermark yet."""
    known = ((time.watermark, split_id) for split_id, time in times.items() if time.watermark is not None)
    found = min(known, default=None)
    return None if found is None else found[1]
