# SPDX-License-Identifier: Apache-2.0
"""What a stream says of itself: totals, and detail of the splits that are furthest behind, from memory (S12).

```
{"source": "orders", "n": 12, "idle": false,
 "splits": {"open": 8, "behind": 3, "done": 120}, "behind": {"rows": 5200, "bytes": 81000},
 "last": {"n": 12, "splits": 8, "rows": 1000, "bytes": 16000}, "discovery": {"seconds": 0.012, "retried": 0},
 "worst": [{"split": "eu", "position": 400, "end": 2500, "behind": 2100, "last": {"rows": 125}}, …]}
```
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Final

from forebay.framework.microbatch.offset import Agreed, Planned, To, Whole
from forebay.framework.microbatch.supply import Supply
from forebay.framework.split import Json

WORST: Final = 20
"""Splits that are told in detail."""

_LONGEST: Final = 120
"""Characters of an id or of a position."""


class Report:
    """Where a query stands, as of the last look. Called on the planning thread.

    Nothing is asked and little is done in `update`, which comes with every poll; the payload is put together when
    somebody wants it.

    Args:
        source: The format name.
        supply: Knows sizes, and how discovery goes.
    """

    def __init__(self, source: str, supply: Supply) -> None:
        self._source = source
        self._supply = supply
        self._there: Sequence[Planned] = ()
        self._taken: Mapping[str, Planned] = {}
        self._counts: dict[str, Json] = {}
        self._n = -1
        self._last: tuple[int, Sequence[Planned]] | None = None  # the micro-batch planned last
        self._payload: dict[str, Json] | None = {}

    def update(self, n: int, there: Sequence[Planned], taken: Sequence[Planned], *, splits: int, done: int) -> None:
        """Note what a look found and what was planned of it.

        Args:
            n: The number of the micro-batch: the one planned now, or the last one if nothing is new.
            there: Every split with something to read, as far as it goes now.
            taken: What the micro-batch reads.
            splits: How many splits are open.
            done: How many that were read to their end are remembered.
        """
        self._n, self._there = n, there
        self._taken = {planned.split.id: planned for planned in taken}
        self._counts = {"open": splits, "done": done}
        if taken:
            self._last = n, taken
        self._payload = None

    def payload(self) -> dict[str, Json]:
        """Return the report, JSON-ready, of a few kilobytes at most; empty before the first look."""
        if self._payload is None:
            self._payload = self._build()
        return self._payload

    def _build(self) -> dict[str, Json]:
        rest = [(planned, self._rest(planned)) for planned in self._there]
        behind = [left for _, left in rest if left is not None]
        worst = heapq.nlargest(WORST, rest, key=lambda each: self._urgency(each[1]))
        report: dict[str, Json] = {
            "source": self._source,
            "n": self._n,
            "idle": not self._taken,
            "splits": {**self._counts, "behind": len(behind)},
            "behind": self._amount(behind),
            "discovery": {"seconds": round(self._supply.took, 3), "retried": self._supply.retried},
            "worst": [self._detail(planned, left) for planned, left in worst],
        }
        if self._last is None:
            return report
        n, taken = self._last
        return {**report, "last": {"n": n, "splits": len(taken), **self._amount(taken)}}

    def _rest(self, there: Planned) -> Planned | None:
        """Return what the micro-batch leaves of a split; None = nothing."""
        taken = self._taken.get(there.split.id)
        if taken is None:
            return there
        if taken.to is None or isinstance(taken.to, (Whole, Agreed)) or taken.to == there.to:
            return None
        return Planned(there.split.at(taken.to), there.to)

    def _amount(self, parts: Sequence[Planned]) -> dict[str, Json]:
        """Return the rows and the bytes of parts, each if it is known of all of them."""
        total: dict[str, Json] = {}
        for name, measure in (("rows", distance), ("bytes", self._size)):
            amounts = [measure(part) for part in parts]
            if None not in amounts:
                total[name] = sum(amount or 0 for amount in amounts)
        return total

    def _urgency(self, left: Planned | None) -> tuple[int, int]:
        """Return what to sort by: how far a split is behind; nothing left is the least, an unknown end the next."""
        if left is None:
            return -1, 0
        return distance(left) or 0, self._size(left) or 0

    def _detail(self, there: Planned, left: Planned | None) -> dict[str, Json]:
        taken = self._taken.get(there.split.id)
        after = there.to if left is None else left.split.position
        detail: dict[str, Json] = {"split": _short(there.split.id), "position": _told(after), "end": _told(there.to)}
        if (behind := 0 if left is None else distance(left)) is not None:
            detail["behind"] = behind
        if left is not None and (size := self._size(left)) is not None:
            detail["bytes"] = size
        if taken is not None:
            detail["last"] = self._amount([taken])
        return detail

    def _size(self, part: Planned) -> int | None:
        enumerator = self._supply.enumerator
        if enumerator is None:
            return None
        try:
            return enumerator.size(part.slice())
        except Exception:  # noqa: BLE001 - planning calls it too, and there it is an error; a report must not be one
            return None


def distance(part: Planned) -> int | None:
    """Return how many positions, which are rows where a position is a row, a part spans; None = cannot be told."""
    start, to = part.split.position, part.to
    if start is None:
        start = 0
    return max(0, to - start) if isinstance(start, int) and isinstance(to, int) else None


def _told(position: To | None) -> Json:
    """Return a position for people: short, and a word where there is none."""
    if isinstance(position, (Whole, Agreed)):
        return str(position.value)
    if isinstance(position, tuple):
        return _short(str(list(position)))
    return _short(position) if isinstance(position, str) else position


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"…{text[1 - _LONGEST :]}"
