# SPDX-License-Identifier: Apache-2.0
"""Cuts the available splits at an event time.

If the source can find the position of an event time, a split is cut there; else it is taken whole or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from forebay.errors import ContractError
from forebay.framework.coordination.fixed_ends import before
from forebay.framework.microbatch.event_time.lookup import EventTimeLookup
from forebay.framework.microbatch.event_time.split_time import SplitTime
from forebay.framework.microbatch.offsets.offset import Planned, To, UnknownEnd
from forebay.framework.source import Source
from forebay.framework.split import Position, Split

_MOST_STEPS: Final = 20
"""A micro-batch reads at most 2 to the power of this many records without event times of one split."""


class _Answer(NamedTuple):
    """A cached answer: `to` is the position of the first record in [`position`, `end`) that is later than `latest`.

    If no such record exists, `to` is `end`.
    """

    latest: int
    position: Position | None
    end: To | None
    to: Position


class Cuts:
    """Finds how far each split may be read so that it stays below an event time. Called on the planning thread.

    Args:
        source: The source; its `order_key` orders positions.
        lookup: Finds positions by event time.
    """

    def __init__(self, source: Source, lookup: EventTimeLookup) -> None:
        self._source = source
        self._lookup = lookup
        self._answers: dict[str, _Answer] = {}

    def at(self, latest: int, available: Sequence[Planned], times: Mapping[str, SplitTime]) -> list[Planned]:
        """Return the part of each split up to its first record later than `latest`, in microseconds since 1970.

        Splits without such a part are left out. Sets `held` in `times` for each split that is not returned whole.
        """
        self._ask(latest, [one for one in available if not times[one.split.id].later_than(latest, one.split.position)])
        self._answers = {one: known for one, known in self._answers.items() if one in times}
        aligned = []
        for planned in available:
            time = times[planned.split.id]
            part = self._part(planned, latest, time)
            time.held = part is not planned
            if not part.empty:
                aligned.append(part)
        return aligned

    def undated(self, available: Sequence[Planned], times: Mapping[str, SplitTime]) -> list[Planned]:
        """Return a part of a few records of each split whose next record has no event time; leave out other splits.

        Sets `held` in `times` for all splits.
        """
        aligned = []
        for planned in available:
            time = times[planned.split.id]
            time.held = True
            if time.knows(planned.split.position) and time.next_time is None:
                aligned.append(self._steps(planned, time))
        return aligned

    def _ask(self, latest: int, wanted: Sequence[Planned]) -> None:
        """Ask for the position of the first record later than `latest` in each split without a valid cached answer."""
        wanted = [planned for planned in wanted if self._answer(planned, latest) is None]
        found = self._lookup.positions_at(latest + 1, [planned.slice() for planned in wanted])
        for planned in wanted:
            split, to = planned.split, found.get(planned.split.id)
            if to is None:
                self._answers.pop(split.id, None)
                continue
            self._check(split, to)
            if not isinstance(planned.to, UnknownEnd) and planned.to is not None:
                to = planned.to if self._before(planned.to, to, split) else to
            self._answers[split.id] = _Answer(latest, split.position, planned.to, to)

    def _answer(self, planned: Planned, latest: int) -> _Answer | None:
        """Return the cached answer for a split if it is still valid, else None.

        An answer stays valid when records are appended, unless it is that there is no later record.
        """
        known = self._answers.get(planned.split.id)
        if known is None or known.latest != latest or known.position != planned.split.position:
            return None
        return known if known.to != known.end or known.end == planned.to else None

    def _part(self, planned: Planned, latest: int, time: SplitTime) -> Planned:
        """Return the part of a split up to the event time `latest`; if that is all of it, return `planned` itself."""
        split = planned.split
        nothing = Planned(split, split.position)
        if time.must_be_looked_at or time.later_than(latest, split.position):
            return nothing
        unknown = time.knows(split.position) and time.next_time is None
        answer = self._answer(planned, latest)
        if answer is None:  # the source cannot find a time
            if not time.knows(split.position):
                return nothing  # first, the event time of the next record must be looked up
            return self._steps(planned, time) if unknown else planned
        to = answer.to
        if to == planned.to:
            return planned
        if split.position is None:
            return nothing if to == 0 else Planned(split, to)
        if self._before(split.position, to, split):
            return Planned(split, to)
        return self._steps(planned, time) if unknown else nothing

    def _steps(self, planned: Planned, time: SplitTime) -> Planned:
        """Return a part of a few records of a split whose next record has no event time: 1, then 2, 4 and so on."""
        if isinstance(planned.to, UnknownEnd):
            return planned
        part = planned.slice()
        to = self._lookup.after_rows(part, 1 << min(time.unknown_lookups - 1, _MOST_STEPS))
        if to is None or to == part.position or not self._before(to, part.end, part):
            return planned
        return Planned(planned.split, to)

    def _check(self, split: Split, to: Position) -> None:
        if split.position is not None and self._before(to, split.position, split):
            raise ContractError(
                f"positions_at() returned {to!r:.200}, before the split's position {split.position!r}",
                source=self._source.name,
                split=split.id,
                position=split.position,
                rule="DIS-4",
                advice="in the connector, let positions_at() return the split's position or a later one, or leave out "
                "the split if the answer is unknown",
            )

    def _before(self, one: Position, other: Position, split: Split) -> bool:
        return before(self._source, one, other, split.id)
