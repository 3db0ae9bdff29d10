# SPDX-License-Identifier: Apache-2.0
"""What a stream says of itself: totals, and detail of the splits that are furthest behind, from memory (S12).

```
{"source": "orders", "n": 12, "idle": false,
 "splits": {"open": 8, "behind": 3, "done": 120}, "behind": {"rows": 5200, "bytes": 81000},
 "last": {"n": 12, "splits": 8, "rows": 1000, "bytes": 16000}, "discovery": {"seconds": 0.012, "retried": 1,
  "error": {"at": "2026-01-31T12:00:00Z", "text": "…", "split": "eu", "over": true}},
 "worst": [{"split": "eu", "position": 400, "end": 2500, "behind": 2100, "last": {"rows": 125}}, …]}
```
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Final, NamedTuple

from forebay.framework.microbatch.end_negotiation.negotiated_splits import NegotiatedSplits
from forebay.framework.microbatch.offsets.offset import Agreed, Planned, To, Whole
from forebay.framework.microbatch.split_providers.refresh_policy import last_of
from forebay.framework.microbatch.split_providers.split_provider import SplitProvider
from forebay.framework.split import Json

WORST: Final = 20
"""Splits that are told in detail."""

_MEASURED: Final = 5_000
"""Splits of which it is told how much is left, the first ones: a report must not take longer than a micro-batch."""

_LONGEST: Final = 120
"""Characters of an id or of a position."""

_LONGEST_ERROR: Final = 500
"""Characters of an error."""


class Report:
    """Where a query stands, as of the last look. Called on the planning thread.

    Nothing is asked and little is done in `update`, which comes with every poll; the payload is put together when
    somebody wants it.

    Args:
        source: The format name.
        supply: Knows sizes, and how discovery goes.
        agreed: Looks for more where no end is known; None where it does not.
    """

    def __init__(self, source: str, supply: SplitProvider, agreed: NegotiatedSplits | None = None) -> None:
        self._source = source
        self._supply = supply
        self._looks = None if agreed is None else agreed.trouble
        self._there: Sequence[Planned] = ()
        self._taken: Mapping[str, Planned] = {}
        self._counts: dict[str, Json] = {}
        self._n = -1
        self._last: tuple[int, Sequence[Planned]] | None = None  # the micro-batch planned last
        self._sizes: dict[str, tuple[Planned, _Amount]] = {}  # of what waits
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
        known, self._sizes = self._sizes, {}
        rest = [self._measured(there, known) for there in self._there[:_MEASURED]]
        behind = [one.left for one in rest if one.left is not None]
        others = max(0, len(self._there) - _MEASURED) - self._finished_beyond(rest)
        worst = heapq.nlargest(WORST, rest, key=lambda one: one.urgency)
        report: dict[str, Json] = {
            "source": self._source,
            "n": self._n,
            "idle": not self._taken,
            "splits": {**self._counts, "behind": len(behind) + others},
            "behind": {} if others else _total(behind),
            "discovery": self._discovery(),
            "worst": [self._detail(one) for one in worst],
        }
        if self._last is None:
            return report
        n, taken = self._last
        return {**report, "last": {"n": n, "splits": len(taken), **_total([self._amount(part) for part in taken])}}

    def _discovery(self) -> dict[str, Json]:
        retried, failure = self._supply.retried, self._supply.failure
        if self._looks is not None:
            retried, failure = retried + self._looks.failed, last_of(failure, self._looks.failure)
        told: dict[str, Json] = {"seconds": round(self._supply.took, 3), "retried": retried}
        if failure is None:
            return told
        text = failure.text if len(failure.text) <= _LONGEST_ERROR else f"{failure.text[: _LONGEST_ERROR - 1]}…"
        at = datetime.fromtimestamp(failure.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        split = {} if failure.split is None else {"split": _short(failure.split)}
        return {**told, "error": {"at": at, "text": text, **split, "over": failure.over}}

    def _finished_beyond(self, measured: Sequence[_Rest]) -> int:
        """Return how many more the micro-batch reads to their end; behind those taken, nothing is looked at."""
        missing = self._taken.keys() - {one.there.split.id for one in measured}
        finished = 0
        for there in islice(self._there, _MEASURED, None):
            if not missing:
                break
            if there.split.id in missing:
                missing.remove(there.split.id)
                finished += self._is_finished(there)
        return finished

    def _measured(self, there: Planned, known: Mapping[str, tuple[Planned, _Amount]]) -> _Rest:
        """Return what the micro-batch leaves of a split; one that waits is measured once, not in every report."""
        taken = self._taken.get(there.split.id)
        if taken is not None:
            if self._is_finished(there):
                return _Rest(there, there.to, None)
            assert not isinstance(taken.to, (Whole, Agreed))  # noqa: S101 - such a one is finished
            left = Planned(there.split.at(taken.to), there.to)
            return _Rest(there, taken.to, self._amount(left))
        before, amount = known.get(there.split.id, (None, _UNKNOWN))
        if before is None or before.split.position != there.split.position or before.to != there.to:
            amount = self._amount(there)
        self._sizes[there.split.id] = there, amount
        return _Rest(there, there.split.position, amount)

    def _is_finished(self, there: Planned) -> bool:
        """Whether the micro-batch reads as far as the split goes now."""
        taken = self._taken.get(there.split.id)
        return taken is not None and (taken.to is None or isinstance(taken.to, (Whole, Agreed)) or taken.to == there.to)

    def _amount(self, part: Planned) -> _Amount:
        return _Amount(distance(part), self._size(part))

    def _detail(self, one: _Rest) -> dict[str, Json]:
        split_id = one.there.split.id
        detail: dict[str, Json] = {"split": _short(split_id), "position": _told(one.at), "end": _told(one.there.to)}
        left = _Amount(0, None) if one.left is None else one.left
        if left.rows is not None:
            detail["behind"] = left.rows
        if left.size is not None:
            detail["bytes"] = left.size
        if (taken := self._taken.get(split_id)) is not None:
            detail["last"] = _total([self._amount(taken)])
        return detail

    def _size(self, part: Planned) -> int | None:
        enumerator = self._supply.enumerator
        if enumerator is None:
            return None
        try:
            return enumerator.size(part.slice())
        except Exception:  # noqa: BLE001 - planning calls it too, and there it is an error; a report must not be one
            return None


class _Amount(NamedTuple):
    """How much a part of a split is; None = not known."""

    rows: int | None
    size: int | None


_UNKNOWN: Final = _Amount(None, None)


class _Rest(NamedTuple):
    """A split with something to read: as far as it goes, where the micro-batch leaves it, and what is left then."""

    there: Planned
    at: To | None
    left: _Amount | None

    @property
    def urgency(self) -> tuple[int, int]:
        """What to sort by: how far the split is behind; nothing left is the least, what is not known the next."""
        return (-1, 0) if self.left is None else (self.left.rows or 0, self.left.size or 0)


def _total(amounts: Sequence[_Amount]) -> dict[str, Json]:
    """Return the rows and the bytes of parts, each if it is known of all of them."""
    rows = [amount.rows for amount in amounts if amount.rows is not None]
    sizes = [amount.size for amount in amounts if amount.size is not None]
    total: dict[str, Json] = {"rows": sum(rows)} if len(rows) == len(amounts) else {}
    return {**total, "bytes": sum(sizes)} if len(sizes) == len(amounts) else total


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
