# SPDX-License-Identifier: Apache-2.0
"""For each test of `SourceContract` that writes: a broken connector that this test catches, and no other one does."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any, ClassVar

from forebay.framework.arrow.row_packer import Batch
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.simple import SimpleSource
from forebay.framework.split import Split
from forebay.testkit import ConformanceError, SourceContract
from forebay.testkit.scripted import COUNTING_SCHEMA

INPUT: dict[str, list[tuple[str, int]]] = {}
SPOOL: dict[str, list[tuple[str, int]]] = {}
"""What a source that consumes its input has taken from `INPUT`."""


class Lists(SimpleSource):
    """Reads the lists of `INPUT`, which grow."""

    bounded = False

    def schema(self):
        return COUNTING_SCHEMA

    def splits(self):
        return list(INPUT)

    def latest(self, split):
        return len(INPUT[split.id])

    def read(self, split):
        for at in range(split.position or 0, split.end):
            yield Batch([INPUT[split.id][at]], at + 1)


class OfLists(SourceContract):
    kind: type[Lists] = Lists

    def setup_method(self):
        INPUT.clear()
        SPOOL.clear()

    def source(self):
        return self.kind()

    def add_split(self):
        split_id = f"split {len(INPUT)}"
        INPUT[split_id] = []
        return split_id

    def write(self, split_id, n):
        start = len(INPUT[split_id])
        INPUT[split_id] += [(split_id, start + i) for i in range(n)]
        return [{"split": split_id, "n": start + i} for i in range(n)]


WRITTEN: dict[str, type[Lists]] = {}
"""The name of a test → the broken connector."""


def only(test: str) -> Callable[[type[Lists]], type[Lists]]:
    """Register a broken connector, and the only test that catches it."""

    def note(kind: type[Lists]) -> type[Lists]:
        assert test not in WRITTEN, test
        WRITTEN[test] = kind
        return kind

    return note


@only("test_sr_2_rows_are_those_written")
class GivesOnePageOfFifteen(Lists):
    def latest(self, split):
        return min(15, len(INPUT[split.id]))


@only("test_sr_3_an_empty_split_is_finished")
class FindsNothingWithoutARow(Lists):
    def splits(self):
        return list(INPUT) if any(INPUT.values()) else ["none"]

    def latest(self, split):
        return len(INPUT.get(split.id, []))


@only("test_sr_4_a_split_of_one_record_gives_it_once")
class WaitsForASecondRow(Lists):
    def latest(self, split):
        return len(INPUT[split.id]) if sum(map(len, INPUT.values())) > 1 else 0


class Remembering(Lists):
    """Knows how many readers there were when it read a split to its last end, and so whether a reader goes on there."""

    ends: ClassVar[dict[tuple[str, int], int]] = {}
    readers: ClassVar[Any] = itertools.count()
    newest: ClassVar[list[int]] = [0]

    def create_split_reader(self, context):
        self.newest[0] = next(self.readers)
        return super().create_split_reader(context)

    def read(self, split):
        start, rows = split.position or 0, INPUT[split.id]
        known = self.ends.get((split.id, start)) if 0 < start < len(rows) else None
        if split.end == len(rows):
            self.ends[split.id, split.end] = self.newest[0]
        skipped = 0 if known is None else int(self.skips(known == self.newest[0]))
        for at in range(start + skipped, split.end):
            yield Batch([rows[at]], at + 1)

    def skips(self, same_reader: bool) -> bool:
        """Whether a row is lost where the split has grown."""
        raise NotImplementedError


@only("test_sr_2_rows_written_later_follow_from_the_position_reached")
class SkipsWhatGrewBetweenReaders(Remembering):
    def skips(self, same_reader):
        return not same_reader


@only("test_rdr_5_rows_written_while_readers_run_come_once")
class SkipsWhatGrewUnderAReader(Remembering):
    def skips(self, same_reader):
        return same_reader


@only("test_sr_2_an_old_end_stays_an_end")
class PagesBeyondItsEnd(Lists):
    """Takes what a page has, and does not look at its end. Its positions do not follow from its rows."""

    def latest(self, split):
        return 10 * len(INPUT[split.id])

    def read(self, split):
        at = (split.position or 0) // 10
        while page := INPUT[split.id][at : at + 2]:
            at += len(page)
            yield Batch(page, 10 * at)


class Once(DiscoveryEnumerator):
    def __init__(self, source):
        self.source = source

    def discover(self, known, first):
        return Discovered([Split(split_id) for split_id in self.source.splits()] if first else [])

    def latest(self, splits):
        return {split.id: self.source.latest(split) for split in splits}


@only("test_ctx_7_splits_added_later_are_found_once")
class FindsSplitsOnce(Lists):
    """Knows no split that came after the first discovery."""

    def create_enumerator(self, context):
        return Once(self)


@only("test_err_1_a_failure_while_records_are_taken_loses_none")
class AcknowledgesBeforeItStores(Lists):
    """Takes the rows away from `INPUT`, and opens the database that keeps them afterwards."""

    consumes = True

    def latest(self, split):
        taken, kept = INPUT[split.id][:], SPOOL.setdefault(split.id, [])
        INPUT[split.id].clear()
        with closing(sqlite3.connect(":memory:")):
            kept += taken
        return len(kept)

    def read(self, split):
        for at in range(split.position or 0, split.end):
            yield Batch([SPOOL[split.id][at]], at + 1)


def test_names() -> list[str]:
    """Return the names of all tests of `SourceContract`."""
    return [name for name in dir(SourceContract) if name.startswith("test_")]


def caught_by(test: str) -> tuple[str, tuple[str, ...]]:
    """Run all tests on the broken connector of a test; return the rule that it named, and the tests that failed."""
    kind = type("Broken", (OfLists,), {"kind": WRITTEN[test], "seconds": 6.0})
    rule, caught = "", []
    for name in test_names():
        case: Any = kind()
        case.setup_method()
        Remembering.ends.clear()
        try:
            getattr(case, name)()
        except ConformanceError as error:
            caught.append(name)
            if name == test:
                (rule,) = error.report.rules("failed")
        except BaseException as skipped:
            if type(skipped).__name__ != "Skipped":
                raise
    return rule, tuple(caught)
