# SPDX-License-Identifier: Apache-2.0
"""Splits with event times that a test writes down, and an enumerator that finds times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa
from manual_clock import ManualClock

from forebay.errors import RetriableError
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.source import Source
from forebay.framework.split import Split

US = 1_000_000
BASE = 1_700_000_000


class Log:
    """Splits with the event times of their records, in seconds after BASE; None = a record without one."""

    def __init__(self, **splits: Iterable[int | None]) -> None:
        self.records: dict[str, list[Any]] = {split_id: list(times) for split_id, times in splits.items()}
        self.clock = ManualClock(BASE + 1_000_000)
        self.calls: list[tuple[Any, ...]] = []
        self.fail: dict[str, int] = {}
        self.by_time = True
        self.by_position = True

    def called(self, what: str, *arguments: object) -> None:
        """Note a call; fail as often as the test asked for."""
        self.calls.append((what, *arguments))
        if self.fail.get(what, 0):
            self.fail[what] -= 1
            raise RetriableError(f"{what} is not there")


class Enumerator(DiscoveryEnumerator):
    """Positions are row numbers; finds times from the position."""

    exact_ends = True

    def __init__(self, log: Log) -> None:
        self.log = log

    def discover(self, known: Mapping[str, Split], first: bool) -> Discovered:
        return Discovered([Split(split_id, position=0) for split_id in self.log.records])

    def latest(self, splits: Sequence[Split]) -> Mapping[str, int]:
        self.log.called("latest")
        return {split.id: len(self.log.records[split.id]) for split in splits}

    def advance(self, split: Split, *, rows: int | None = None, byte_budget: int | None = None) -> int:
        return min(int(split.position) + (rows or 0), int(split.end))

    def positions_at(self, event_time: int, splits: Sequence[Split]) -> Mapping[str, int] | None:
        self.log.called("positions_at", event_time)
        if not self.log.by_time:
            return None
        return {
            split.id: next(
                (
                    index
                    for index, at in enumerate(self.log.records[split.id])
                    if index >= split.position and at is not None and (BASE + at) * US >= event_time
                ),
                split.end,
            )
            for split in splits
        }

    def event_times(self, splits: Sequence[Split], column: str) -> Mapping[str, int]:
        self.log.called("event_times", {split.id: split.position for split in splits})
        found = {}
        for split in splits:
            rows = self.log.records[split.id]
            at = rows[split.position] if split.position < split.end else (rows[split.position - 1 :] or [None])[0]
            if split.position == 0 == split.end:
                at = None
            if at is not None:
                found[split.id] = (BASE + at) * US
        return found


class Timed(Source):
    """Unbounded, with the event time in `at`."""

    name = "timed"
    bounded = False
    event_time: ClassVar[str | None] = "at"
    outside: ClassVar[Log]

    def schema(self) -> pa.Schema:
        return pa.schema({"at": pa.timestamp("us", "UTC")})

    def create_enumerator(self, context: Any) -> Enumerator:
        return Enumerator(self.outside)

    def create_split_reader(self, context: Any) -> Any:
        raise NotImplementedError
