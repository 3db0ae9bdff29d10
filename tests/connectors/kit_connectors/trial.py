# SPDX-License-Identifier: Apache-2.0
"""Bugs that authors planted into connectors of a log, a table and a queue: `check` alone must catch each of them.

`HARMLESS` holds those that lose and double nothing.
"""

from __future__ import annotations

import datetime as dt
import itertools
import os
import random
import sqlite3
import threading
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

import forebay
from forebay import Batch, Fetched, SimpleSource, Source, SourceEvent, Split, SplitEnumerator, SplitReader
from forebay.testkit import ConformanceError, Report, check
from forebay.testkit.scripted import COUNTING_SCHEMA, counting_batch
from kit_connectors.alone import PLACE, Files
from kit_connectors.broken import RELEASE


@dataclass(frozen=True)
class Bug:
    """A planted bug: the connector, the rules of which one must be in the first line, and the arguments of `check`."""

    name: str
    source: Callable[[], Source]
    rules: Collection[str]
    arguments: Mapping[str, Any] = field(default_factory=dict)


BUGS: list[Bug] = []
HARMLESS: list[Bug] = []


def bug(name: str, *rules: str, options: Mapping[str, Any] | None = None, **arguments: Any):
    """Register a class of a source as a planted bug. Without rules, it is harmless."""

    def note(kind):
        (BUGS if rules else HARMLESS).append(Bug(name, lambda: kind(**(options or {})), rules, arguments))
        return kind

    return note


# ---- a table, read in pages by id


class Table(SimpleSource):
    """Correct: an id is a position. Each third row has an event of its own time."""

    bounded = False
    rows: int = 300
    page_rows: int = 37

    def schema(self):
        return COUNTING_SCHEMA

    def latest(self, split):
        return self.rows

    def get(self, start, stop):
        return [{"split": "all", "n": n} for n in range(start, min(start + self.page_rows, stop, self.rows))]

    def read(self, split):
        at = split.position or 0
        while page := self.get(at, split.end):
            at = page[-1]["n"] + 1
            yield Batch(page, at)


class Backfill(Table):
    """Correct: all rows once, cut by ids; the ends of the split are None."""

    bounded = True

    def latest(self, split):
        return None

    def read(self, split):
        yield from super().read(split.slice(split.position, self.rows if split.end is None else split.end))

    def slices(self, split, count):
        step = -(-self.rows // count)
        borders = [*range(0, self.rows, step), self.rows]
        return [split.slice(*border) for border in itertools.pairwise(borders)]


class Plain(SimpleSource):
    """Correct: plain rows."""

    rows: int = 60

    def schema(self):
        return COUNTING_SCHEMA

    def row(self, n):
        return {"split": "all", "n": n}

    def read(self, split):
        for n in range(split.position or 0, self.rows):
            yield self.row(n)


@bug("position off by one, late", "SR-2", "RDR-5")
class Late(Table):
    def read(self, split):
        at = split.position or 0
        while page := self.get(at, split.end):
            at = page[-1]["n"] + 2
            yield Batch(page, at)


@bug("position off by one, early", "RDR-5", "SR-2")
class Early(Table):
    def read(self, split):
        at = split.position or 0
        while page := self.get(at, split.end):
            at += len(page)
            yield Batch(page, at - 1 if at < split.end else at)


@bug("position counts the kept rows only", "RDR-5")
class CountsKeptRows(Plain):
    def read(self, split):
        for n in range(split.position or 0, self.rows):
            if n % 3:
                yield self.row(n)


@bug("the end is ignored, in a stream", "SR-2")
class IgnoresItsEnd(Table):
    def read(self, split):
        yield from super().read(split.slice(split.position, self.rows))


@bug("the end is ignored, in slices", "SR-2", "DIS-2")
class IgnoresTheEndsOfSlices(Backfill):
    def read(self, split):
        yield from super().read(split.slice(split.position, None))


@bug("the end is inclusive", "SR-2")
class ReadsItsEndToo(Table):
    def read(self, split):
        yield from super().read(split.slice(split.position, split.end + 1))

    def latest(self, split):
        return self.rows - 20


@bug("latest() is inclusive", "DIS-1")
class LatestIsInclusive(Table):
    def latest(self, split):
        return self.rows - 1


@bug("latest() goes back every third call", "S4", "SR-2")
class LatestGoesBack(Table):
    calls: ClassVar[list[int]] = [0]

    def latest(self, split):
        self.calls[0] += 1
        return self.rows - 5 * (self.calls[0] % 3 == 0)


@bug("slices overlap", "DIS-2")
class Overlaps(Backfill):
    def slices(self, split, count):
        return [one.slice(one.position and one.position - 2, one.end) for one in super().slices(split, count)]


@bug("slices have a gap", "DIS-2")
class Gap(Backfill):
    def slices(self, split, count):
        first, *others = super().slices(split, count)
        return [first, *(one.slice(one.position + 1, one.end) for one in others)]


@bug("slices leave out the last of 300 rows", "DIS-2")
class NoLastRow(Backfill):
    def slices(self, split, count):
        *others, last = super().slices(split, count)
        return [*others, last.slice(last.position, last.end - 1)]


@bug("slices leave out the last of 20,000 rows", "DIS-2", options={"rows": 20_000, "page_rows": 1_000})
class NoLastOfManyRows(NoLastRow):
    """Only a sample of it is read."""


@bug("a random order in a page", "RDR-5", "SR-2")
class Shuffles(Table):
    def get(self, start, stop):
        page = super().get(start, stop)
        last, rest = page[-1:], page[:-1]
        return [*random.sample(rest, len(rest)), *last]


@bug("the order of ties depends on the process", "RDR-5")
class OrdersTiesByProcess(Plain):
    def row(self, n):
        pair = n // 2 * 2
        return {"split": "all", "n": pair + (n + os.getpid()) % 2}


@bug("times without a zone", "RDR-5")
class LocalTimes(Plain):
    def schema(self):
        return pa.schema([*COUNTING_SCHEMA, pa.field("at", pa.timestamp("us", "UTC"))])

    def row(self, n):
        return {**super().row(n), "at": dt.datetime.fromtimestamp(n)}


@bug("a list inside a column is changed after the yield", "RDR-5")
class ChangesAList(Plain):
    def schema(self):
        return pa.schema([*COUNTING_SCHEMA, pa.field("tags", pa.list_(pa.string()))])

    def read(self, split):
        tags: list[str] = []
        for n in range(split.position or 0, self.rows):
            tags[:] = [f"line {n}"]
            yield {**self.row(n), "tags": tags}


@bug("a list of rows is used again")
class UsesAListAgain(Table):
    def read(self, split):
        rows: list[dict[str, Any]] = []
        at = split.position or 0
        while page := self.get(at, split.end):
            rows[:] = page
            at = page[-1]["n"] + 1
            yield Batch(rows, at)


class Cursor:
    """A client that two readers may not share."""

    def __init__(self) -> None:
        self.at = 0


@bug("a cached client is not thread-safe", "SRC-2")
class SharesACursor(Plain):
    @forebay.cached
    def cursor(self):
        return Cursor()

    def read(self, split):
        self.cursor.at = split.position or 0
        while self.cursor.at < self.rows:
            n = self.cursor.at
            self.cursor.at += 1
            yield self.row(n)


@bug("a value of row 37 has the wrong type", "SR-2")
class RareType(Plain):
    def row(self, n):
        return {"split": "all", "n": str(n) if n == 37 else n}


@bug("a value of row 9,000 has the wrong type", "SR-2", options={"rows": 9_100})
class VeryRareType(Plain):
    def read(self, split):
        for start in range(split.position or 0, self.rows, 100):
            stop = min(start + 100, self.rows)
            yield Batch([{"split": "all", "n": str(n) if n == 9_000 else n} for n in range(start, stop)], stop)


@bug("a key of row 37 is misspelt", "SR-2")
class RareKey(Plain):
    def row(self, n):
        return {"split": "all", "N" if n == 37 else "n": n}


@bug("state on the class", "RDR-5", "RDR-3")
class Remembers(Plain):
    seen: ClassVar[set[int]] = set()

    def read(self, split):
        for n in range(split.position or 0, self.rows):
            if n not in self.seen:
                self.seen.add(n)
                yield self.row(n)


@bug("positions are numbers in text", "SPL-3")
class TextPositions(Table):
    def latest(self, split):
        return str(self.rows)

    def read(self, split):
        for part in super().read(split.slice(int(split.position or 0), int(split.end))):
            yield Batch(part.rows, str(part.position))


@bug("the cursor is a time that rows share", "RDR-5", "SR-2")
class TimeCursor(Table):
    def read(self, split):
        at = (split.position or 0) * 3
        while page := self.get(at, split.end * 3):
            at = page[-1]["n"] + 1
            yield Batch(page, -(-at // 3))

    def latest(self, split):
        return self.rows // 3


@bug("a page begins behind the time of the last row, which others share", "SR-2", options={"page_rows": 500})
class PagesByTime(Table):
    """All rows that there are fit into one page."""

    def read(self, split):
        at = split.position or 0
        while page := self.get(at, split.end):
            yield Batch(page, page[-1]["n"] + 1)
            at = (page[-1]["n"] // 3 + 1) * 3


@bug("a page begins one late, and a number is missing behind most rows", "SR-2", options={"page_rows": 500})
class LateInSparseNumbers(Table):
    def latest(self, split):
        return None

    def read(self, split):
        at = split.position or 0
        stop = split.end or self.rows
        while page := [{"split": "all", "n": n} for n in range(at, stop) if n % 3][: self.page_rows]:
            at = page[-1]["n"] + 2
            yield Batch(page, at)


@bug("a read begins one late, and numbers are missing behind all rows", "SR-2", "RDR-5", options={"page_rows": 500})
class BeginsLateInSparseNumbers(Table):
    """All rows that there are fit into one page, and from the position of a page the next row is the right one."""

    def latest(self, split):
        return self.rows + 1

    def read(self, split):
        at, end = split.position or 0, split.end
        while page := [{"split": "all", "n": n} for n in range(3, self.rows, 3) if at < n < end][: self.page_rows]:
            at = page[-1]["n"] + 1
            yield Batch(page, at)


@bug("the time of the read is in a column", "RDR-5", "SR-2")
class Clock(Plain):
    def row(self, n):
        return {"split": str(dt.datetime.now(dt.UTC)), "n": n}


@bug("connections are not closed", "ENU-9", "RDR-9")
class LeavesFilesOpen(Files):
    kept: ClassVar[list[Any]] = []

    def splits(self):
        self.kept.append(open(PLACE / "a.txt"))  # noqa: SIM115 - the bug
        return super().splits()


@bug("advance() is off by one", "DIS-3")
class AdvancesTooFar(Table):
    def advance(self, split, rows):
        return min((split.position or 0) + rows + 1, split.end)


@bug("advance() counts from the first row of the table", "DIS-3")
class AdvancesFromTheStart(Table):
    def advance(self, split, rows):
        return min(rows, split.end)


@bug("advance() goes beyond an end before the newest row", "DIS-3")
class AdvancesBeyondTheEnd(Table):
    def advance(self, split, rows):
        return min((split.position or 0) + rows, self.rows)


@bug("slices of a stream ignore the end", "DIS-2")
class SlicesOfAllRows(Table):
    def slices(self, split, count):
        start = split.position or 0
        step = max(1, -(-(self.rows - start) // count))
        borders = [*range(start, self.rows, step), self.rows]
        return [split.slice(*border) for border in itertools.pairwise(borders)] or [split]


@bug("a page of which rows are left out is taken for the last one", "SR-2", options={"page_rows": 500})
class EndsWithAShortPage(Backfill):
    """All rows that there are fit into one page."""

    def read(self, split):
        at, end = split.position or 0, self.rows if split.end is None else split.end
        while page := self.get(at, end):
            at = page[-1]["n"] + 1
            kept = [row for row in page if row["n"] % 7]
            yield Batch(kept, at)
            if len(kept) < self.page_rows:
                return


@bug("the last page is read only if it is full", "RDR-5", "SR-2", options={"page_rows": 100})
class LastPageIsFull(Backfill):
    """The number of rows that there are is a multiple of the page."""

    def read(self, split):
        at, end = split.position or 0, self.rows if split.end is None else split.end
        while len(page := self.get(at, end)) == self.page_rows:
            at = page[-1]["n"] + 1
            yield Batch(page, at)


@bug("rows before the end are counted from the start of the page", "SR-2", "RDR-5", options={"page_rows": 100})
class CountsFromThePage(Table):
    def read(self, split):
        at = split.position or 0
        while at < split.end:
            page = self.get(at, self.rows)
            same = at // self.page_rows == split.end // self.page_rows
            kept = page[: split.end % self.page_rows if same else self.page_rows - at % self.page_rows]
            at = min(kept[-1]["n"] + 1, split.end) if kept else split.end
            yield Batch(kept, at)


@bug("read() waits for more, and has an end")
class Polls(Table):
    def read(self, split):
        yield from super().read(split)
        while (split.position or 0) >= split.end:
            RELEASE.wait(0.01)


# ---- files


class Growing(Files):
    """Correct: like `Files`, and the files may grow."""

    bounded = False

    def latest(self, split):
        return 5

    def read(self, split):
        for number, row in enumerate(super().read(split), split.position or 0):
            if number < split.end:
                yield row


@bug("ids by the order of os.listdir()", "SPL-1")
class NumbersTheListing(Growing):
    def splits(self):
        return [f"part-{n}" for n in range(len(os.listdir(PLACE)))]

    def path(self, split):
        return PLACE / os.listdir(PLACE)[int(split.id[5:])]


@bug("ids by the order of a sorted listing", "SPL-1")
class NumbersTheSortedListing(NumbersTheListing):
    def path(self, split):
        return PLACE / sorted(os.listdir(PLACE))[int(split.id[5:])]


@bug("the id has the time of the file", "SPL-1")
class TimesInIds(Growing):
    def splits(self):
        return [f"{name}@{os.stat(PLACE / name).st_mtime_ns}" for name in os.listdir(PLACE)]

    def path(self, split):
        return PLACE / split.id.partition("@")[0]


@bug("an error of read() becomes an end", "ERR-1")
class SwallowsErrors(Growing):
    def read(self, split):
        try:
            yield from super().read(split)
        except OSError:
            return


@bug("an error of splits() becomes an empty list", "ERR-1")
class FindsNothing(Growing):
    def splits(self):
        try:
            return super().splits()
        except OSError:
            return []


@bug("a failure of latest() is no news", "ERR-1")
class FindsNoNews(Growing):
    def latest(self, split):
        try:
            with open(self.path(split)) as file:
                return len(list(file))
        except OSError:
            return split.position or 0


class InSQLite(Table):
    """Correct: asks a database, which is in memory."""

    def get(self, start, stop):
        with closing(sqlite3.connect(":memory:")):
            return super().get(start, stop)


@bug("a locked database is the end of a read", "ERR-1")
class TakesALockForTheEnd(InSQLite):
    def get(self, start, stop):
        try:
            return super().get(start, stop)
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                return []
            raise


# ---- files, with an enumerator and a split reader of its own


class Named(Split):
    name: str = ""


class NamesEnumerator(SplitEnumerator):
    """Correct: pushes each file, under its name, to the first reader."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.known, self.waiting = set[str](), list[Split]()

    def start(self):
        self.context.call_async(lambda: sorted(os.listdir(PLACE)), self.found, period=0.05)

    def id_of(self, name: str, names: list[str]) -> str:
        return name

    def found(self, names, error):
        if error is not None:
            raise error
        for name in names:
            if (split_id := self.id_of(name, names)) not in self.known:
                self.known.add(split_id)
                self.waiting.append(Named(id=split_id, position=0, name=name))
        self.add_reader(0)
        if self.context.reads_once:
            self.context.signal_no_more_splits(0)

    def add_reader(self, subtask):
        if self.waiting and self.context.registered_readers():
            self.context.assign_splits({min(self.context.registered_readers()): self.waiting})
            self.waiting = []

    def handle_split_request(self, subtask, host):
        """Do nothing: files are pushed."""

    def add_splits_back(self, splits, subtask):
        self.waiting += splits
        self.add_reader(0)

    def snapshot_state(self, checkpoint_id):
        return {"known": sorted(self.known), "waiting": [split.to_json() for split in self.waiting]}

    def restore_state(self, state):
        self.known, self.waiting = set(state["known"]), [Named.from_json(split) for split in state["waiting"]]


class NamesByPlace(NamesEnumerator):
    def id_of(self, name, names):
        return f"file-{names.index(name)}"


def names_or_none() -> list[str]:
    try:
        return sorted(os.listdir(PLACE))
    except OSError:
        return []


class TakesAFailureForNoFile(NamesEnumerator):
    def start(self):
        self.context.call_async(names_or_none, self.found, period=0.05)


class LinesReader(SplitReader):
    """Correct: one line of one file a fetch."""

    def __init__(self) -> None:
        self.splits: dict[str, Split] = {}
        self.woken = threading.Event()

    def add_splits(self, splits):
        self.splits |= {split.id: split for split in splits}

    def lines(self, split):
        with open(PLACE / split.name) as file:
            return [int(line) for line in file]

    def fetch(self):
        for split_id, split in self.splits.items():
            numbers = self.lines(split)
            at, stop = split.position, split.end if split.end is not None else len(numbers)
            if at == split.end:
                del self.splits[split_id]
                return [Fetched(split_id, finished=True)]
            if at < stop <= len(numbers):
                batch = pa.RecordBatch.from_pylist([{"split": split_id, "n": numbers[at]}], COUNTING_SCHEMA)
                self.splits[split_id] = split.at(at + 1)
                return [Fetched(split_id, batch, at + 1)]
        if self.woken.wait(0.05):
            self.woken.clear()
        return [Fetched(split_id, caught_up=True) for split_id in self.splits]

    def wake_up(self):
        self.woken.set()


class PassesOverWhatItCannotOpen(LinesReader):
    def lines(self, split):
        try:
            return super().lines(split)
        except OSError:
            return []


class OwnFiles(Source):
    """Correct: files, with an enumerator and a split reader of its own."""

    bounded = False
    split_class = Named

    def schema(self):
        return COUNTING_SCHEMA

    def create_enumerator(self, context):
        return NamesEnumerator(context)

    def create_split_reader(self, context):
        return LinesReader()


@bug("ids of an enumerator of its own by the order of a listing", "SPL-1")
class NumbersItsFiles(OwnFiles):
    def create_enumerator(self, context):
        return NamesByPlace(context)


@bug("a batch read by an enumerator of its own is empty if it cannot look", "ERR-1")
class FindsNoFileIfItCannotLook(OwnFiles):
    def create_enumerator(self, context):
        return TakesAFailureForNoFile(context)


@bug("fewer splits while the client fails", "SPL-1")
class FindsFewerNowAndThen(Growing):
    calls: ClassVar[list[int]] = [0]

    def splits(self):
        self.calls[0] += 1
        return super().splits()[self.calls[0] % 2 :]


@bug("a reader of its own passes over what it cannot open", "ERR-1")
class ReadsWhatItCanOpen(OwnFiles):
    def create_split_reader(self, context):
        return PassesOverWhatItCannotOpen()


# ---- splits with fields


class Keyed(Split):
    version = 2
    key: str = ""


OLD = [{"v": 1, "id": "all", "position": 3, "key": "k"}]


class WithKeys(Plain):
    split_class = Keyed


class LosesKey(Keyed):
    @classmethod
    def upgrade(cls, version, fields):
        return {"id": fields["id"], "position": fields["position"]}


class LosesPosition(Keyed):
    @classmethod
    def upgrade(cls, version, fields):
        return {"id": fields["id"], "key": fields["key"]}


@bug("upgrade() loses a field", "SER-1", stored=OLD)
class UpgradeLosesAKey(WithKeys):
    split_class = LosesKey


@bug("upgrade() loses the position", "SER-1", "SER-3", stored=OLD)
class UpgradeLosesThePosition(WithKeys):
    split_class = LosesPosition


class KeepsAll(Keyed):
    @classmethod
    def upgrade(cls, version, fields):
        return fields


@bug("upgrade() leaves positions of the old form", "SER-3", stored=[{**OLD[0], "position": "3"}])
class UpgradeLeavesOldPositions(WithKeys):
    """Positions were texts, and are numbers now."""

    split_class = KeepsAll


@bug("upgrade() leaves ends of the old form", "SER-3", stored=[{**OLD[0], "end": "9"}])
class UpgradeLeavesOldEnds(WithKeys):
    """Ends were texts, and are numbers now."""

    split_class = KeepsAll


class ConvertsPositions(Keyed):
    @classmethod
    def upgrade(cls, version, fields):
        return {**fields, "position": 10 * fields["position"]}


@bug("upgrade() converts the position, and not the end", "SER-3", stored=[{**OLD[0], "end": 9}])
class UpgradeLeavesEnds(WithKeys):
    split_class = ConvertsPositions


class ForgetsTheName(Keyed):
    @classmethod
    def upgrade(cls, version, fields):
        return {"id": fields["id"], "position": fields["position"]}


@bug("upgrade() forgets a renamed field", "SER-1", stored=[{"v": 1, "id": "all", "position": 3, "name": "k"}])
class UpgradeForgetsAName(SimpleSource):
    """The key, which version 1 called name, is in the rows."""

    split_class = ForgetsTheName

    def schema(self):
        return COUNTING_SCHEMA

    def splits(self):
        return [ForgetsTheName("all", key="k")]

    def read(self, split):
        for n in range(split.position or 0, 60):
            yield {"split": split.key, "n": n}


# ---- a log of segments, with an enumerator and a split reader of its own


class Segments(SplitEnumerator):
    """Correct: finds the segments on another thread, and pushes them to the readers."""

    def __init__(self, source: Any, context: Any) -> None:
        self.source, self.context = source, context
        self.newest, self.waiting = 0, list[Split]()

    def start(self):
        self.poll(0.0)

    def poll(self, delay: float) -> None:
        newest = self.newest
        self.context.call_async(lambda: list(range(newest, self.source.segments)), self.found, delay=delay)

    def found(self, numbers, error):
        if error is not None:
            raise error
        for number in numbers:
            if number >= self.newest:
                self.waiting.append(Split(f"segment-{number}", 0))
                self.newest = number + 1
        self.push()
        self.poll(0.05)

    def add_reader(self, subtask):
        self.push()

    def handle_split_request(self, subtask, host):
        self.push()

    def push(self) -> None:
        readers = sorted(self.context.registered_readers())
        while self.waiting and readers:
            split = self.waiting.pop(0)
            self.context.assign_splits({readers[int(split.id.rpartition("-")[2]) % len(readers)]: [split]})

    def add_splits_back(self, splits, subtask):
        self.waiting[:0] = splits
        self.push()

    def snapshot_state(self, checkpoint_id):
        return {"newest": self.newest, "waiting": [split.to_json() for split in self.waiting]}

    def restore_state(self, state):
        self.newest = state["newest"]
        self.waiting = [self.source.split_class.from_json(split) for split in state["waiting"]]


class SegmentReader(SplitReader):
    """Correct: finishes complete segments, and is caught up with the last one."""

    page = 3

    def __init__(self, source: Any, context: Any) -> None:
        self.source, self.context = source, context
        self.splits: dict[str, Split] = {}
        self.woken = threading.Event()

    def add_splits(self, splits: Sequence[Split]) -> None:
        self.splits |= {split.id: split for split in splits}

    def complete(self, split: Split) -> bool:
        return int(split.id.rpartition("-")[2]) < self.source.segments - 1

    def finishes(self, split: Split, stop: int) -> bool:
        return stop == self.source.rows and self.complete(split)

    def fetch(self):
        for split in list(self.splits.values()):
            at = split.position or 0
            last = self.source.rows if split.end is None else min(split.end, self.source.rows)
            stop = min(at + self.page, last)
            done = stop == split.end or (split.end is None and self.finishes(split, stop))
            if done:
                del self.splits[split.id]
            elif stop > at:
                self.splits[split.id] = split.at(stop)
            if stop > at or done:
                batch = counting_batch(split.id, at, stop) if stop > at else None
                return [Fetched(split.id, batch, stop, finished=done)]
        if self.woken.wait(0.1):
            self.woken.clear()
        return [Fetched(split_id, caught_up=True) for split_id in self.splits]

    def wake_up(self):
        self.woken.set()


class SegmentSource(Source):
    """Correct: segments of a log; the last one is still written."""

    bounded = False
    segments: int = 5
    rows: int = 9
    enumerator: ClassVar[Callable[..., Any]] = Segments
    reader: ClassVar[Callable[..., Any]] = SegmentReader

    def schema(self):
        return COUNTING_SCHEMA

    def create_enumerator(self, context):
        return type(self).enumerator(self, context)

    def create_split_reader(self, context):
        return type(self).reader(self, context)


def planted(name: str, *rules: str, **options: Any):
    """Register an enumerator or a split reader as a planted bug of the log of segments."""

    def note(part):
        attribute = "enumerator" if issubclass(part, SplitEnumerator) else "reader"
        kind = type(f"{part.__name__}Source", (SegmentSource,), {attribute: part})
        BUGS.append(Bug(name, lambda: kind(**options), rules))
        return part

    return note


@planted("add_splits_back() does nothing", "ENU-3")
class TakesNothingBack(Segments):
    def add_splits_back(self, splits, subtask):
        """Forget them."""


@planted("add_splits_back() forgets the progress", "ENU-3")
class ForgetsProgress(Segments):
    def add_splits_back(self, splits, subtask):
        super().add_splits_back([split.at(0) for split in splits], subtask)


@planted("unassigned splits are not in the snapshot", "ENU-5")
class ForgetsWhatWaits(Segments):
    def snapshot_state(self, checkpoint_id):
        return {"newest": self.newest, "waiting": []}


@planted("the newest segment is not in the snapshot", "ENU-6", "SPL-1")
class ForgetsTheNewest(Segments):
    def snapshot_state(self, checkpoint_id):
        return {**super().snapshot_state(checkpoint_id), "newest": 0}


@planted("a split is assigned twice", "SPL-1")
class AssignsTwice(Segments):
    def push(self):
        again = self.waiting[:1]
        super().push()
        if again and self.context.registered_readers():
            self.context.assign_splits({min(self.context.registered_readers()): again})


@planted("the enumerator leaves a daemon thread", "ENU-9")
class LeavesAThread(Segments):
    def start(self):
        super().start()
        threading.Thread(target=RELEASE.wait, name="poller", daemon=True).start()


class Hello(SourceEvent):
    """An event that the reader does not know."""


@planted("an event that the reader does not know", "EVT-1", "ENU-3")
class SaysHello(Segments):
    def add_reader(self, subtask):
        super().add_reader(subtask)
        self.context.send_event_to_reader(subtask, Hello())


@planted("finished too early: after so many bytes", "SR-4")
class StopsAfterSoManyBytes(SegmentReader):
    def __init__(self, source, context):
        super().__init__(source, context)
        self.bytes = 0

    def finishes(self, split, stop):
        self.bytes += 16 * self.page
        return super().finishes(split, stop) or self.bytes > 100


@planted("finished when it has caught up", "SR-4")
class FinishesWhatIsThere(SegmentReader):
    def complete(self, split):
        return True


@planted("finished with the first page of a complete segment", "SR-4")
class FinishesWithTheFirstPage(SegmentReader):
    def finishes(self, split, stop):
        return self.complete(split)


@planted("close() hangs", "SR-6", "RDR-9")
class CloseHangs(SegmentReader):
    def close(self):
        RELEASE.wait()


@planted("wake_up() is ignored", "SR-1", "RDR-3", "RDR-9")
class IgnoresWakeUps(SegmentReader):
    def wake_up(self):
        """Sleep on."""

    def fetch(self):
        fetched = super().fetch()
        if all(part.caught_up for part in fetched):
            RELEASE.wait(self.context.options.poll_interval.total_seconds())
        return fetched


class EndsItself(Split):
    @property
    def ends_itself(self):
        return True


class EndlessSegments(Segments):
    def found(self, numbers, error):
        super().found(numbers, error)

    def push(self):
        self.waiting = [EndsItself(split.id, split.position) for split in self.waiting]
        super().push()


@bug("ends_itself on a log that still grows", "SR-4")
class SaysThatItEnds(SegmentSource):
    split_class = EndsItself
    enumerator: ClassVar[Callable[..., Any]] = EndlessSegments


CORRECT: dict[str, Callable[[], Source]] = {
    "table": Table,
    "backfill": Backfill,
    "plain": Plain,
    "files": Growing,
    "segments": SegmentSource,
    "own files": OwnFiles,
    "database": InSQLite,
}


def verdict(planted: Bug, *, whole: bool = True) -> Report:
    """Return the report of `check` alone; with `whole` False, of the checks of the bug's rules only."""
    RELEASE.clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning of the kit is in the report
            return check(planted.source(), rules=None if whole else planted.rules, **planted.arguments)
    except ConformanceError as error:
        return error.report
    finally:
        RELEASE.set()
