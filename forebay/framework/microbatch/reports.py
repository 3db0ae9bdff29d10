# SPDX-License-Identifier: Apache-2.0
"""Progress reports of a stream: totals, and details of the splits that are furthest behind (S12).

A report contains what the planner knows already; making it does not access the source.

```
{"source": "orders", "n": 12, "idle": false,
 "splits": {"open": 8, "behind": 3, "done": 120}, "behind": {"rows": 5200, "bytes": 81000},
 "last": {"n": 12, "splits": 8, "rows": 1000, "bytes": 16000}, "discovery": {"seconds": 0.012, "retried": 1,
  "error": {"at": "2026-01-31T12:00:00Z", "text": "…", "split": "eu", "over": true}},
 "worst": [{"split": "eu", "position": 400, "end": 2500, "behind": 2100, "last": {"rows": 125}}, …]}
```
If `alignmentMaxDrift` is set, it also has the field `eventTime`, see `event_time_report`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final, NamedTuple

from forebay.framework.microbatch.alignment import OrderedAlignment, StreamAlignment
from forebay.framework.microbatch.end_negotiation import NegotiatedSplits
from forebay.framework.microbatch.event_time import SplitTime, slowest_of
from forebay.framework.microbatch.offset import Planned, To, UnknownEnd
from forebay.framework.microbatch.split_provider import SplitProvider, last_of
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split import Json

# -- The report of alignment, for progress reports and offsets: limit, drift, and the split that all others wait for.
#
# The report has the watermark, the limit, the drift, how many splits are held, idle or late, the slowest split with the
# reason why it counts, and the splits that are ahead.
# Event times are texts in UTC, as in Spark's own progress; durations are in seconds.


_SHOWN: Final = 16
"""Maximum number of splits in a report: half of them are the slowest, half of them the fastest."""

_LONGEST: Final = 120
"""Maximum characters of a split id or a position in a report."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = "0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z"


def event_time_report(alignment: StreamAlignment | OrderedAlignment, options: HostOptions) -> dict[str, Json]:
    """Return the state of alignment when the source was last polled, as JSON values of about two kilobytes.

    Called on the planning thread.

    Args:
        alignment: The alignment of the query.
        options: The host's options, from which the alignment was made.
    """
    times: Mapping[str, SplitTime] = {}
    active: Mapping[str, SplitTime] = {}
    if not isinstance(alignment, OrderedAlignment):  # splits that are read in order have no watermarks
        times, active = alignment.times, alignment.active
    slowest = slowest_of(active)
    report: dict[str, Json] = {
        "held": sum(time.held for time in times.values()),
        "idle": sum(time.idle for time in times.values()),
        "late": alignment.late,
        "delay": options.watermark_delay.total_seconds(),
    }
    if options.alignment_max_drift is not None:
        report["maxDrift"] = options.alignment_max_drift.total_seconds()
    if options.idle_timeout is not None:
        report["idleTimeout"] = options.idle_timeout.total_seconds()
    if alignment.limit is not None:
        report["limit"] = utc_text(alignment.limit)
    if slowest is None:
        return report
    lowest = active[slowest].watermark
    assert lowest is not None  # noqa: S101 - `slowest_of` skips the unknown ones
    highest = max(time.watermark for time in active.values() if time.watermark is not None)
    why = "caught up" if active[slowest].caught_up else "unread"
    return {
        **report,
        "watermark": utc_text(lowest),
        "drift": _seconds(highest - lowest),
        "slowest": {"split": shortened(slowest), "watermark": utc_text(lowest), "why": why},
        "splits": [_detail(split_id, times[split_id], lowest) for split_id in _shown_time(times)],
    }


def utc_text(micros: int) -> str:
    """Return an event time (µs since 1970) as ISO 8601 in UTC; times outside the years 1 to 9999 are clamped."""
    try:
        at = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return _FIRST if micros < 0 else _LAST
    return at.strftime(f"{at.year:04}-%m-%dT%H:%M:%S.%fZ")


def _shown_time(times: Mapping[str, SplitTime]) -> list[str]:
    """Return the ids of the splits to report: the slowest and the fastest ones, sorted by watermark.

    Active splits count as slower than idle ones.
    """
    known = [(time.idle, time.watermark, split_id) for split_id, time in times.items() if time.watermark is not None]
    if len(known) > _SHOWN:
        slow = heapq.nsmallest(_SHOWN // 2, known)
        fast = heapq.nlargest(_SHOWN // 2, known, key=lambda entry: entry[1:])
        known = list({*slow, *fast})
    return [split_id for _, _, split_id in sorted(known, key=lambda entry: entry[1:])]


def _detail(split_id: str, time: SplitTime, lowest: int) -> dict[str, Json]:
    assert time.watermark is not None  # noqa: S101 - only known ones are shown
    detail: dict[str, Json] = {
        "split": shortened(split_id),
        "watermark": utc_text(time.watermark),
        "ahead": _seconds(time.watermark - lowest),
    }
    if time.held:
        detail["held"] = True
    if time.idle:
        detail["idle"] = True
    return detail


def _seconds(micros: int) -> float:
    return round(micros / 1e6, 3)


def shortened(text: str) -> str:
    """Return the end of a split id or a position that is too long for a report."""
    return text if len(text) <= _LONGEST else f"…{text[1 - _LONGEST :]}"


WORST: Final = 20
"""Maximum number of splits that are reported in detail."""

_MEASURED: Final = 5_000
"""Maximum number of splits that are measured: a report must not take longer than a micro-batch."""

_LONGEST_ERROR: Final = 500
"""Maximum characters of an error text in a report."""


class QueryReport:
    """The progress of a query when the source was last polled. Called on the planning thread.

    `update` is called with every poll, so it is cheap; `payload` builds the report on demand.

    Args:
        source: The name of the source.
        split_provider: Knows the cost and the failures of discovery.
        negotiated: Knows the failures of probes; None = there are no probes.
        event_time: Returns the field `eventTime`; None = alignment is off.
    """

    def __init__(
        self,
        source: str,
        split_provider: SplitProvider,
        negotiated: NegotiatedSplits | None = None,
        event_time: Callable[[], Json] | None = None,
    ) -> None:
        self._source = source
        self._split_provider = split_provider
        self._event_time = event_time
        self._probes = None if negotiated is None else negotiated.failures
        self._available: Sequence[Planned] = ()
        self._taken: Mapping[str, Planned] = {}
        self._counts: dict[str, Json] = {}
        self._n = -1
        self._last: tuple[int, Sequence[Planned]] | None = None  # the last planned micro-batch
        self._sizes: dict[str, tuple[Planned, _Amount]] = {}  # of splits that wait
        self._payload: dict[str, Json] | None = {}

    def update(self, n: int, available: Sequence[Planned], taken: Sequence[Planned], *, splits: int, done: int) -> None:
        """Record the result of a poll.

        Args:
            n: The number of the micro-batch that is planned now; without new data, that of the last one.
            available: Every split with new data, up to its present end.
            taken: The part of each split that the micro-batch reads.
            splits: The number of open splits.
            done: The number of remembered finished splits.
        """
        self._n, self._available = n, available
        self._taken = {planned.split.id: planned for planned in taken}
        self._counts = {"open": splits, "done": done}
        if taken:
            self._last = n, taken
        self._payload = None

    def payload(self) -> dict[str, Json]:
        """Return the report as JSON values, a few kilobytes at most; it is empty before the first poll."""
        if self._payload is None:
            self._payload = self._build()
        return self._payload

    def _build(self) -> dict[str, Json]:
        known, self._sizes = self._sizes, {}
        measured = [self._measured(planned, known) for planned in self._available[:_MEASURED]]
        behind = [remainder.left for remainder in measured if remainder.left is not None]
        others = max(0, len(self._available) - _MEASURED) - self._finished_beyond(measured)
        worst = heapq.nlargest(WORST, measured, key=lambda remainder: remainder.urgency)
        report: dict[str, Json] = {
            "source": self._source,
            "n": self._n,
            "idle": not self._taken,
            "splits": {**self._counts, "behind": len(behind) + others},
            "behind": {} if others else _total(behind),
            "discovery": self._discovery(),
            "worst": [self._detail(remainder) for remainder in worst],
        }
        if self._event_time is not None:
            report["eventTime"] = self._event_time()
        if self._last is None:
            return report
        n, taken = self._last
        return {**report, "last": {"n": n, "splits": len(taken), **_total([self._amount(part) for part in taken])}}

    def _discovery(self) -> dict[str, Json]:
        took, retried, failure = self._split_provider.status()
        if self._probes is not None:
            retried, failure = retried + self._probes.failed, last_of(failure, self._probes.failure)
        discovery: dict[str, Json] = {"seconds": round(took, 3), "retried": retried}
        if failure is None:
            return discovery
        text = failure.text if len(failure.text) <= _LONGEST_ERROR else f"{failure.text[: _LONGEST_ERROR - 1]}…"
        at = datetime.fromtimestamp(failure.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        split = {} if failure.split is None else {"split": shortened(failure.split)}
        return {**discovery, "error": {"at": at, "text": text, **split, "over": failure.over}}

    def _finished_beyond(self, measured: Sequence[_Rest]) -> int:
        """Return how many available splits that are not in `measured` the micro-batch reads to their present end."""
        missing = self._taken.keys() - {remainder.planned.split.id for remainder in measured}
        finished = 0
        for planned in islice(self._available, _MEASURED, None):
            if not missing:
                break
            if planned.split.id in missing:
                missing.remove(planned.split.id)
                finished += self._is_finished(planned)
        return finished

    def _measured(self, planned: Planned, known: Mapping[str, tuple[Planned, _Amount]]) -> _Rest:
        """Return the position of a split after the micro-batch, and the rows and bytes that are left of it then.

        A split that the micro-batch does not read is measured once, not in every report: `known` has earlier results.
        """
        split = planned.split
        taken = self._taken.get(split.id)
        if taken is not None:
            if self._is_finished(planned):
                return _Rest(planned, planned.to, None)
            assert not isinstance(taken.to, UnknownEnd)  # noqa: S101 - such a split is finished
            return _Rest(planned, taken.to, self._amount(Planned(split.at(taken.to), planned.to)))
        before, amount = known.get(split.id, (None, _UNKNOWN))
        if before is None or before.split.position != split.position or before.to != planned.to:
            amount = self._amount(planned)
        self._sizes[split.id] = planned, amount
        return _Rest(planned, split.position, amount)

    def _is_finished(self, planned: Planned) -> bool:
        """Return whether the micro-batch reads a split to its present end."""
        taken = self._taken.get(planned.split.id)
        return taken is not None and (taken.to is None or isinstance(taken.to, UnknownEnd) or taken.to == planned.to)

    def _amount(self, part: Planned) -> _Amount:
        return _Amount(part.rows, self._size(part))

    def _detail(self, remainder: _Rest) -> dict[str, Json]:
        split_id = remainder.planned.split.id
        detail: dict[str, Json] = {
            "split": shortened(split_id),
            "position": _shown(remainder.at),
            "end": _shown(remainder.planned.to),
        }
        left = _Amount(0, None) if remainder.left is None else remainder.left
        if left.rows is not None:
            detail["behind"] = left.rows
        if left.size is not None:
            detail["bytes"] = left.size
        if (taken := self._taken.get(split_id)) is not None:
            detail["last"] = _total([self._amount(taken)])
        return detail

    def _size(self, part: Planned) -> int | None:
        enumerator = self._split_provider.enumerator
        if enumerator is None:
            return None
        try:
            return enumerator.size(part.slice())
        except Exception:  # noqa: BLE001 - an error in planning, but not in a report
            return None


class _Amount(NamedTuple):
    """The rows and bytes of a part of a split; None = unknown."""

    rows: int | None
    size: int | None


_UNKNOWN: Final = _Amount(None, None)


class _Rest(NamedTuple):
    """An available split, its position after the micro-batch, and how much is `left` then; None if nothing is."""

    planned: Planned
    at: To | None
    left: _Amount | None

    @property
    def urgency(self) -> tuple[int, int]:
        """The key to sort splits by how far they are behind, in rows, then bytes; unknown amounts count as 0."""
        return (-1, 0) if self.left is None else (self.left.rows or 0, self.left.size or 0)


def _total(amounts: Sequence[_Amount]) -> dict[str, Json]:
    """Return the sum of rows and the sum of bytes; leave out a sum if one of the amounts is unknown."""
    rows = [amount.rows for amount in amounts if amount.rows is not None]
    sizes = [amount.size for amount in amounts if amount.size is not None]
    total: dict[str, Json] = {"rows": sum(rows)} if len(rows) == len(amounts) else {}
    return {**total, "bytes": sum(sizes)} if len(sizes) == len(amounts) else total


def _shown(position: To | None) -> Json:
    """Return a position in the form of reports: long texts are cut, tuples and unknown ends become texts."""
    if isinstance(position, UnknownEnd):
        return str(position.value)
    if isinstance(position, tuple):
        return shortened(str(list(position)))
    return shortened(position) if isinstance(position, str) else position
