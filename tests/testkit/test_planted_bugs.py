# SPDX-License-Identifier: Apache-2.0
"""Bugs that authors really make: `check` alone finds each; its first line has the rule, what happened, the next step.

Each is a small connector that looks correct. The input of most does not change while it is checked.
"""

from __future__ import annotations

import socket
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from forebay.framework.arrow.row_packer import Batch
from forebay.framework.enumerator import SplitEnumerator
from forebay.framework.simple import SimpleSource
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay.testkit import ConformanceError, check
from forebay.testkit.scripted import COUNTING_SCHEMA, counting_batch

RELEASE = threading.Event()


@pytest.fixture(autouse=True)
def _release():
    """End the threads that a connector left blocked."""
    RELEASE.clear()
    yield
    RELEASE.set()


class Rows(SimpleSource):
    """Correct: an unbounded source of numbered rows, `page` rows a page; a position is the last number plus one."""

    bounded = False
    ids: tuple[int, ...] = tuple(range(10))
    page: int = 3

    def schema(self):
        return COUNTING_SCHEMA

    def splits(self):
        return ["a", "b"]

    def latest(self, split):
        return self.ids[-1] + 1

    def get(self, ge: int, lt: int | None = None) -> list[int]:
        """Return the first page of the rows from `ge` up to, and not including, `lt`: what a service would answer."""
        return [n for n in self.ids if n >= ge and (lt is None or n < lt)][: self.page]

    def read(self, split):
        at = split.position or 0
        while page := self.get(at, split.end):
            at = page[-1] + 1
            yield Batch([(split.id, n) for n in page], at)


SPARSE = (3, 7, 8, 20, 21, 25, 31, 40, 44, 57)


class Feed(Rows):
    """Correct: the same without `latest`; a position is how many rows there were, and the number of the last."""

    def latest(self, split):
        return None

    def read(self, split):
        count, after = split.position or (0, -1)
        while page := self.get(after + 1):
            if split.end is not None:
                page = page[: split.end[0] - count]
            count, after = count + len(page), page[-1]
            yield Batch([(split.id, n) for n in page], (count, after))
            if (count, after) == split.end:
                return


class Reader(SplitReader):
    """Correct: one page a fetch; waits, wakeable, when it is caught up."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.splits: dict[str, Split] = {}
        self.woken = threading.Event()

    def add_splits(self, splits):
        self.splits |= {split.id: split for split in splits}

    def fetch(self):
        for split_id, split in list(self.splits.items()):
            at, end = split.position or 0, split.end
            if end is not None and at >= end:
                del self.splits[split_id]
                return [Fetched(split_id, position=at, finished=True)]
            if stop := self.stop(at, end):
                self.splits[split_id] = split.at(stop)
                return [Fetched(split_id, counting_batch(split_id, at, stop), stop)]
        if self.woken.wait(0.1):
            self.woken.clear()
        return [Fetched(split_id, caught_up=True) for split_id in self.splits]

    def stop(self, at: int, end: int | None) -> int | None:
        """Return where the page that begins at `at` ends; None if there is none."""
        stop = min(at + self.source.page, len(self.source.ids), len(self.source.ids) if end is None else end)
        return stop if stop > at else None

    def wake_up(self):
        self.woken.set()


class Pushes(SplitEnumerator):
    """Correct: a raw enumerator, which gives each reader its share as soon as all are there."""

    def __init__(self, source: Any, context: Any) -> None:
        self.context = context
        self.waiting = [Split(f"s{n}", 0) for n in range(source.parts)]

    def restore_state(self, state):
        self.waiting = [Split.from_json(stored) for stored in state]

    def add_reader(self, subtask):
        self.push()

    def push(self):
        readers = sorted(self.context.registered_readers())
        if len(readers) == self.context.current_parallelism():
            while self.waiting:
                split = self.waiting.pop()
                self.context.assign_splits({readers[len(self.waiting) % len(readers)]: [split]})

    def handle_split_request(self, subtask, host):
        self.push()

    def add_splits_back(self, splits, subtask):
        self.waiting += splits
        self.push()

    def snapshot_state(self, checkpoint_id):
        return [split.to_json() for split in self.waiting]


class Raw(Source):
    """Correct: the full layer, with a raw enumerator and a split reader."""

    bounded = False
    ids: tuple[int, ...] = tuple(range(40))
    parts: int = 5
    page: int = 7
    enumerator: ClassVar[Callable[..., Any]] = Pushes
    reader: ClassVar[Callable[..., Any]] = Reader

    def schema(self):
        return COUNTING_SCHEMA

    def create_enumerator(self, context):
        return type(self).enumerator(self, context)

    def create_split_reader(self, context):
        return type(self).reader(self)


# ---- broken ones

PLANTED: list[Any] = []


def planted(rule: str, *words: str, **options: Any):
    """Register a connector, the rule that it breaks, and words that the first line must have."""

    def note(source):
        PLANTED.append(pytest.param(lambda: source(**options), rule, words, id=source.__name__))
        return source

    return note


class OnRequest(Pushes):
    def push(self):
        """Wait to be asked."""

    def handle_split_request(self, subtask, host):
        if self.waiting and subtask in self.context.registered_readers():
            self.context.assign_splits({subtask: [self.waiting.pop(0)]})


@planted(
    "ENU-11",
    "4 of 5 splits stayed unassigned",
    "'s1', 's2', 's3', 's4'",
    "requests a split once",
    "before readers request them",
)
class AssignsOnRequestOnly(Raw):
    enumerator = OnRequest


@planted("SPL-1", "a second discovery returned other split ids", "derive ids from the part of the input")
class ItsIdsChangeAtEveryDiscovery(Rows):
    def splits(self):
        return [str(uuid.uuid4()), str(uuid.uuid4())]


@planted("SPL-1", "a second discovery returned other split ids", "derive ids from the part of the input")
class ItsIdsChangeWithoutLatest(Feed):
    def splits(self):
        return [f"at {time.time_ns()}"]


@planted("SR-2", "ends inside a page", "split.end", "old end")
class PagesBeyondItsEnd(Rows):
    def read(self, split):
        at = split.position or 0
        while page := self.get(at):
            at = page[-1] + 1
            yield Batch([(split.id, n) for n in page], at)


@planted("SR-2", "ends inside a page", "split.end", "old end")
class PagesBeyondItsEndWithoutLatest(Feed):
    def read(self, split):
        count, after = split.position or (0, -1)
        while page := self.get(after + 1):
            count, after = count + len(page), page[-1]
            yield Batch([(split.id, n) for n in page], (count, after))
            if (count, after) == split.end:
                return


class FetchesWholePages(Reader):
    def stop(self, at, end):
        stop = min(at + self.source.page, len(self.source.ids))
        return stop if stop > at else None


@planted("SR-2", "ends inside a page", "split.end", "old end")
class FetchesPagesBeyondTheEnd(Raw):
    reader = FetchesWholePages


@planted("SR-2", "beyond the end", "stop exactly at split.end")
class PagesBeyondItsEndWhenItGrows(PagesBeyondItsEnd):
    """Its positions are no columns of its rows; the input grows whenever it is asked for its end."""

    there: ClassVar[list[int]] = [11]

    def latest(self, split):
        self.there[0] = min(100, self.there[0] + 3)
        return 1_000 + 10 * self.there[0]

    def read(self, split):
        at = ((split.position or 1_000) - 1_000) // 10
        while (stop := min(at + 4, self.there[0])) > at:
            yield Batch([(split.id, n * n) for n in range(at, stop)], 1_000 + 10 * stop)
            at = stop


@planted("DIS-1", "latest() returned 9", "the position of the newest row", "the position after the newest row")
class ItsLatestIsInclusive(Rows):
    def latest(self, split):
        return self.ids[-1]


@planted(
    "DIS-1", "latest() returned 57", "the position of the newest row", "the position after the newest row", ids=SPARSE
)
class ItsLatestIsInclusiveAndSparse(ItsLatestIsInclusive):
    """The same with sparse ids."""


@planted("SR-2", "stop exactly at split.end", ids=SPARSE)
class ReadsItsEndTooWithSparseIds(Rows):
    def read(self, split):
        at = split.position or 0
        while page := self.get(at, split.end + 1):
            at = page[-1] + 1
            yield Batch([(split.id, n) for n in page], at)


class LosesRowsWhenWoken(Reader):
    def fetch(self):
        self.woken.clear()
        fetched = super().fetch()
        return [] if self.woken.wait(0.003) else fetched


@planted("SR-1", "with calls of wake_up() (schedule", "wake_up()")
class OverridesCreateReaderAndReturnsNone(Raw):
    parts: int = 2
    reader = LosesRowsWhenWoken

    def create_reader(self, context):
        return None


@planted("SPL-3", "'3'", "'20'", "order_key")
class ItsPositionsAreNumbersInText(Rows):
    ids: tuple[int, ...] = tuple(range(20))

    def latest(self, split):
        return str(self.ids[-1] + 1)

    def read(self, split):
        at = int(split.position or 0)
        while page := self.get(at, int(split.end)):
            at = page[-1] + 1
            yield Batch([(split.id, n) for n in page], str(at))


@planted("SPL-3", "'9'", "'12'", "order_key")
class ItsCursorsAreNumbersInText(Rows):
    ids: tuple[int, ...] = tuple(range(20))

    def latest(self, split):
        return None

    def read(self, split):
        at = int(split.position or 0)
        while page := self.get(at, None if split.end is None else int(split.end)):
            at = page[-1] + 1
            yield Batch([(split.id, n) for n in page], str(at))


@planted("RDR-5", "begin exactly at split.position")
class SkipsOneWhenResumed(Rows):
    def read(self, split):
        at = split.position + 1 if split.position else 0
        while page := self.get(at, split.end):
            at = page[-1] + 1
            yield Batch([(split.id, n) for n in page], at)


@planted("RDR-5", "started at position", "begin exactly at split.position", ids=SPARSE)
class ResumesOneLateWithSparseIds(SkipsOneWhenResumed):
    """The same with sparse ids."""


@planted("RDR-3", "read() gave 10 rows", "has not returned", "return from read() when the split is caught up")
class BlocksWithoutLatest(Feed):
    def read(self, split):
        yield from super().read(split)
        while not RELEASE.wait(0.1):
            pass


@planted("RDR-3", "read() gave 10 rows", "has not returned", "return from read() when the split is caught up")
class YieldsNothingForEverWithoutLatest(Feed):
    def read(self, split):
        yield from super().read(split)
        while not RELEASE.wait(0.01):
            yield Batch([], (10, 9))


@planted("RDR-9", "sqlite3.Connection", "close")
class LeavesConnectionsToTheCollector(Rows):
    def read(self, split):
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        connection.execute("SELECT 1")
        yield from super().read(split)


@planted("RDR-9", "socket", "close")
class LeavesSocketsToTheCollector(Rows):
    def read(self, split):
        pair = socket.socketpair()
        pair[0].send(b"hello")
        yield from super().read(split)


@planted("ENU-9", "socket", "close")
class AsksForItsEndOnANewSocketEachTime(Rows):
    def latest(self, split):
        pair = socket.socketpair()
        pair[0].send(b"hello")
        return super().latest(split)


class LosesItsConnection(Reader):
    def __init__(self, source):
        super().__init__(source)
        self.connection = sqlite3.connect(":memory:", check_same_thread=False)
        self.itself = self  # as a callback would


@planted("SR-6", "sqlite3.Connection", "close")
class DoesNotCloseItsConnection(Raw):
    reader = LosesItsConnection


@planted("RDR-9", "threads", "close")
class LeavesAThreadPerRead(Rows):
    def read(self, split):
        threading.Thread(target=RELEASE.wait, name="prefetch", daemon=True).start()
        yield from super().read(split)


# ---- the proof


def first_line(source: Source, **how: Any) -> str:
    """Return the first line of the verdict on a broken connector."""
    with pytest.raises(ConformanceError) as caught:
        check(source, **how)
    return str(caught.value).splitlines()[0]


@pytest.mark.soak(
    but=[
        "AssignsOnRequestOnly",
        "ItsIdsChangeAtEveryDiscovery",
        "PagesBeyondItsEnd",
        "ItsLatestIsInclusive",
        "ItsPositionsAreNumbersInText",
        "SkipsOneWhenResumed",
        "LeavesSocketsToTheCollector",
        "LeavesAThreadPerRead",
    ]
)
@pytest.mark.parametrize(("make", "rule", "words"), PLANTED)
def test_a_planted_bug_is_reported_in_the_first_line(make, rule, words):
    """With the checks of its rule alone; the soak test runs all checks."""
    first = first_line(make(), seconds=6, rules={rule})
    assert f" breaks {rule}: " in first and "; next step: " in first, first
    assert [word for word in words if word not in first] == [], first


@pytest.mark.soak
@pytest.mark.parametrize(("make", "rule", "words"), PLANTED)
def test_check_alone_reports_a_planted_bug_in_its_first_line(make, rule, words):
    first = first_line(make())
    assert f" breaks {rule}: " in first and "; next step: " in first, first
    assert [word for word in words if word not in first] == [], first


CORRECT = {
    "sparse rows": lambda: Rows(ids=SPARSE),
    "many rows": lambda: Rows(ids=tuple(range(200)), page=20),
    "a sparse feed": lambda: Feed(ids=SPARSE),
    "raw": Raw,
}


@pytest.mark.soak("many rows", "sparse rows")
@pytest.mark.parametrize("name", CORRECT)
def test_a_correct_source_passes(in_one_process, name):
    report = check(CORRECT[name]())
    assert (report.verdict, report.failed) == ("passed", []), str(report)
