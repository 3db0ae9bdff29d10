# SPDX-License-Identifier: Apache-2.0
"""For each rule that a connector must keep: connectors that break it.

Each is a correct one with one thing changed.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime
from typing import Any, ClassVar

import pyarrow as pa

from forebay.framework.arrow.row_packer import Batch
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumerator
from forebay.framework.reader import InputStatus, SourceReader
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay.testkit.scripted import COUNTING_SCHEMA, counting_batch
from kit_connectors.correct import Dealer, Dealt, Finder, Full, Numbers, Own, OwnReader, Pages, Reader

RELEASE = threading.Event()
"""Ends the waits of broken connectors when their test ends, so that their threads end."""


BROKEN: list[tuple[str, str, Callable[[], Source]]] = []

# The source around a broken part, and the attribute for it.
LAYERS: dict[type, tuple[type[Source], str]] = {
    SplitReader: (Full, "reader"),
    DiscoveryEnumerator: (Full, "finder"),
    SplitEnumerator: (Dealt, "dealer"),
    SourceReader: (OwnReader, "own"),
}


def breaks(rule: str, layer: type[Source] | None = None, **options: Any):
    """Register a broken connector, or a broken part of one, and the rule that the kit must name."""

    def note(broken):
        source = broken
        for part, (around, attribute) in LAYERS.items():
            if issubclass(broken, part):
                source = type(f"{broken.__name__}Source", (layer or around,), {attribute: broken})
        BROKEN.append((rule, broken.__name__, lambda: source(**options)))
        return broken

    return note


@breaks("RDR-5")
class LosesARowOnResuming(Numbers):
    def read(self, split):
        for n in range(split.position + 1 if split.position else 0, self.count):
            yield {"split": split.id, "n": n}


@breaks("RDR-5")
class RepeatsARowOnResuming(Numbers):
    def read(self, split):
        for n in range(max(0, (split.position or 0) - 1), self.count):
            yield {"split": split.id, "n": n}


@breaks("RDR-5")
class IgnoresThePosition(Numbers):
    def read(self, split):
        for n in range(self.count):
            yield {"split": split.id, "n": n}


@breaks("RDR-5")
class GivesOtherRowsEachTime(Numbers):
    def read(self, split):
        for _ in range(split.position or 0, self.count):
            yield {"split": split.id, "n": random.randrange(10**9)}


@breaks("SR-2")
class GoesBeyondItsEnd(Pages):
    count: int = 7

    def read(self, split):
        at = split.position or 0
        while at < split.end:
            yield Batch([(split.id, n) for n in (at, at + 1)], at + 2)
            at += 2


@breaks("SR-2")
class EndsOneRowEarly(Reader):
    def add_splits(self, splits):
        natural = self.source.count
        super().add_splits([s if s.end in (natural, s.position) else s.slice(s.position, s.end - 1) for s in splits])


@breaks("SR-2")
class ItsPositionStays(Pages):
    def read(self, split):
        yield Batch([(split.id, n) for n in range(self.count)], 0)
        yield Batch([(split.id, n) for n in range(self.count)], 0)


@breaks("SPL-2")
class HasFloatsAsPositions(Pages):
    def latest(self, split):
        return None

    def read(self, split):
        yield Batch([(split.id, 0)], time.time())


@breaks("SPL-2")
class ChangesTheSplitItReads(Reader):
    def fetch(self):
        for split in self.splits.values():
            object.__setattr__(split, "end", split.end)
            object.__setattr__(split, "position", (split.position or 0))
        fetched = super().fetch()
        for part in fetched:
            if part.split_id in self.originals and part.position is not None:
                object.__setattr__(self.originals[part.split_id], "position", part.position)
        return fetched

    def add_splits(self, splits):
        self.originals = {split.id: split for split in splits}
        super().add_splits(splits)


class Labelled(Split):
    label: str = ""


class OfSplits(Numbers):
    """A source whose splits have a field more."""

    split_class: ClassVar[Any] = Labelled

    def splits(self):
        return [type(self).split_class(name, label=name * 2) for name in ("a", "b")]


class Forgetful(Labelled):
    def to_json(self):
        return {name: value for name, value in super().to_json().items() if name != "label"}


@breaks("SER-2")
class ItsSplitsLoseAField(OfSplits):
    split_class = Forgetful


class Restless(Labelled):
    def to_json(self):
        return super().to_json() | {"label": f"{self.label}!"}


@breaks("SER-2")
class ItsSplitsChangeInJson(OfSplits):
    split_class = Restless


class WithoutProgress(Labelled):
    def to_json(self):
        return {name: value for name, value in super().to_json().items() if name != "position"}


@breaks("SER-3")
class ItsSplitsLoseTheirProgress(OfSplits):
    split_class = WithoutProgress


class Trusting(Labelled):
    @classmethod
    def from_json(cls, data):
        return super().from_json({**data, "v": cls.version})


@breaks("SER-1")
class TakesNewerSplits(OfSplits):
    split_class = Trusting


@breaks("SER-1")
class HidesItsSplitClass(OfSplits):
    split_class = Split

    def splits(self):
        return [Labelled("a", label="b")]


class Amnesiac(Labelled):
    def at(self, position):
        return type(self)(self.id, position, self.end)


@breaks("SPL-2")
class ItsSplitsForgetWhenMoved(OfSplits):
    split_class = Amnesiac


@breaks("SPL-1")
class RepeatsIds(Numbers):
    def splits(self):
        return ["a", "b", "a"]


@breaks("SPL-1")
class MakesUpIds(Numbers):
    def splits(self):
        return [str(uuid.uuid4()), str(uuid.uuid4())]


@breaks("SRC-1")
class CannotBePickled(Numbers):
    def check(self):
        object.__setattr__(self, "client", threading.Lock())


@breaks("SRC-1")
class IsAnotherSourceWhenCopied(Numbers):
    def __getstate__(self):
        return {"count": 3}


@breaks("SRC-1")
class ItsCopyReadsSomethingElse(Numbers):
    def __setstate__(self, state):
        self.__dict__.update(state)
        object.__setattr__(self, "_copied", True)

    def read(self, split):
        for n in range(split.position or 0, self.count):
            yield {"split": split.id, "n": -n if hasattr(self, "_copied") else n}


@breaks("SRC-2")
class SharesItsPositions(Reader):
    shared: ClassVar[dict[str, Split]] = {}

    def add_splits(self, splits):
        self.splits = type(self).shared
        super().add_splits(splits)


@breaks("SRC-2")
class ItsEnumeratorsShareAConnection(Finder):
    open: ClassVar[set[int]] = set()

    def __init__(self, source):
        super().__init__(source)
        self.open.add(0)

    def discover(self, known, first):
        if not self.open:
            raise ConnectionError("the connection was closed by another enumerator")
        return super().discover(known, first)

    def close(self):
        self.open.clear()


@breaks("SRC-4")
class ItsReadersKeepSplits(Own):
    left: ClassVar[dict[str, Split]] = {}

    def __init__(self, source, context):
        super().__init__(source, context)
        self.splits.update(self.left)

    def add_splits(self, splits):
        super().add_splits(splits)
        self.left.update(self.splits)

    def close(self):
        super().close()
        self.left.clear()


@breaks("SRC-7")
class GivesOtherTypes(Reader):
    def fetch(self):
        small = pa.schema([("split", pa.string()), ("n", pa.int32())])
        return [
            Fetched(p.split_id, p.batch and p.batch.cast(small), p.position, p.finished, p.caught_up)
            for p in super().fetch()
        ]


@breaks("SRC-7")
class ChangesItsSchema(Numbers):
    def schema(self):
        return COUNTING_SCHEMA.append(pa.field(f"column_{next(NUMBERS)}", pa.int64()))


NUMBERS = itertools.count()


@breaks("RDR-3", endless=True)
class Spins(Reader):
    def fetch(self):
        self.woken.set()
        return super().fetch()


@breaks("RDR-3", endless=True)
class SpinsInSilence(Reader):
    def fetch(self):
        self.woken.set()
        return [part for part in super().fetch() if part.batch is not None]


@breaks("RDR-3")
class IsAlwaysAvailable(Own):
    def is_available(self):
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def readable(self):
        # Its data come late, so that there is something to wait for.
        return super().readable() if time.monotonic() > self.ready else []

    def __init__(self, source, context):
        super().__init__(source, context)
        self.ready = time.monotonic() + 0.6


@breaks("RDR-3")
class IsNeverAvailable(Own):
    def add_splits(self, splits):
        super().add_splits(splits)
        self.ready = time.monotonic() + 0.1

    def readable(self):
        return super().readable() if time.monotonic() > self.ready else []

    def is_available(self):
        return Future()


@breaks("RDR-2")
class BlocksInPolling(Own):
    def poll_next(self, output):
        status = super().poll_next(output)
        if status is InputStatus.NOTHING_AVAILABLE or not self.splits:
            RELEASE.wait()
        return status


@breaks("RDR-2")
class GivesTwoAtOnce(Own):
    def poll_next(self, output):
        super().poll_next(output)
        return super().poll_next(output)


@breaks("RDR-4")
class SnapshotsOnlyWhatItBegan(Own):
    def snapshot_state(self, checkpoint_id):
        return [split for split in self.splits.values() if split.position]


@breaks("RDR-5")
class SnapshotsARecordBehind(Own):
    def snapshot_state(self, checkpoint_id):
        return [split.at(max(0, split.position - 1)) for split in self.splits.values()]


@breaks("RDR-4")
class ForgetsWhatItSnapshots(Own):
    def snapshot_state(self, checkpoint_id):
        held = list(self.splits.values())
        self.splits = dict(list(self.splits.items())[:1])
        return held


@breaks("RDR-6")
class EndsUntold(Own):
    def poll_next(self, output):
        status = super().poll_next(output)
        return InputStatus.END_OF_INPUT if not self.splits and not self.new else status


@breaks("RDR-6")
class EndsOnlyOnce(Own):
    def poll_next(self, output):
        status = super().poll_next(output)
        if status is InputStatus.END_OF_INPUT and hasattr(self, "ended"):
            return InputStatus.NOTHING_AVAILABLE
        if status is InputStatus.END_OF_INPUT:
            self.ended = True
        return status


@breaks("RDR-6")
class NeverEndsWithoutASplit(Own):
    def poll_next(self, output):
        status = super().poll_next(output)
        self.had_any = getattr(self, "had_any", False) or bool(self.splits)
        if self.had_any:
            return status
        self.future = Future()
        return InputStatus.NOTHING_AVAILABLE


@breaks("RDR-6")
class EndsTooEarly(Own):
    def poll_next(self, output):
        status = super().poll_next(output)
        return InputStatus.END_OF_INPUT if self.no_more and len(self.splits) == 1 else status


@breaks("RDR-7")
class TakesSplitsOnlyOnce(Own):
    def add_splits(self, splits):
        if not self.splits:
            super().add_splits(splits)


@breaks("RDR-8")
class EmitsWhatIsPaused(Own):
    def pause_or_resume_splits(self, pause, resume):
        """Do nothing."""


@breaks("RDR-8")
class LosesARowByPausing(Own):
    def pause_or_resume_splits(self, pause, resume):
        for split_id in set(pause) & self.splits.keys():
            split = self.splits[split_id]
            self.splits[split_id] = split.at(min(split.position + 1, split.end))
        super().pause_or_resume_splits(pause, resume)


@breaks("RDR-8")
class KnowsNoUnknownIds(Own):
    def pause_or_resume_splits(self, pause, resume):
        for split_id in (*pause, *resume):
            assert split_id in self.splits
        super().pause_or_resume_splits(pause, resume)


@breaks("RDR-9")
class HangsInClosing(Reader):
    def close(self):
        RELEASE.wait()


@breaks("SR-6")
class LeavesThreads(Reader):
    def __init__(self, source):
        super().__init__(source)
        threading.Thread(target=RELEASE.wait, daemon=True).start()


@breaks("SR-6")
class LeavesFilesOpen(Reader):
    kept: ClassVar[list[Any]] = []

    def __init__(self, source):
        super().__init__(source)
        self.kept.append(open(__file__))  # noqa: SIM115 - the point is that nobody closes it


@breaks("RDR-9", count=3)
class WaitsForMoreForEver(Pages):
    def latest(self, split):
        return None

    def read(self, split):
        for n in range(split.position or 0, self.count):
            yield Batch([(split.id, n)], n + 1)
        if split.position == self.count and split.end is None:
            RELEASE.wait()


@breaks("SR-1", endless=True)
class IgnoresWakeUps(Reader):
    def wake_up(self):
        """Do nothing."""

    def fetch(self):
        running = [s for s in self.splits.values() if s.end is None]
        if running and all((split.position or 0) >= self.source.count for split in running):
            if len(self.reported) >= len(running):
                RELEASE.wait()
            self.reported |= {split.id for split in running}
            return [Fetched(split.id, caught_up=True) for split in running]
        return super().fetch()

    def __init__(self, source):
        super().__init__(source)
        self.reported: set[str] = set()


@breaks("SR-1")
class LosesWhatItHasWhenWoken(Reader):
    def fetch(self):
        self.woken.clear()
        fetched = super().fetch()
        return [] if self.woken.wait(0.005) else fetched


@breaks("SR-2")
class BeginsAgainWithEachFetch(Reader):
    def fetch(self):
        for split in self.splits.values():
            if split.position == 3:
                self.splits[split.id] = split.at(2)
                break
        return super().fetch()


@breaks("SR-3")
class NeverFinishesEmptySplits(Reader):
    def add_splits(self, splits):
        super().add_splits([split for split in splits if split.position != split.end])

    def fetch(self):
        return super().fetch() if self.splits else self.woken.wait(0.1) or []


@breaks("SR-3")
class BlocksInAddingSplits(Reader):
    def add_splits(self, splits):
        super().add_splits(splits)
        if any(split.position == split.end for split in splits):
            RELEASE.wait()


@breaks("SR-4")
class FinishesTwice(Reader):
    def fetch(self):
        fetched = super().fetch()
        return [*fetched, *(part for part in fetched if part.finished)]


@breaks("SR-4")
class GivesRowsOfAnotherSplit(Reader):
    def fetch(self):
        return [*super().fetch(), Fetched("z", counting_batch("z", 0, 1), 1)]


@breaks("SR-5")
class FetchesWhatIsPaused(Reader):
    def pause_or_resume_splits(self, pause, resume):
        return True


@breaks("SR-5")
class BlocksWhenAllIsPaused(Reader):
    def fetch(self):
        if self.splits and self.paused.issuperset(self.splits):
            RELEASE.wait()
        return super().fetch()


@breaks("SR-6")
class CannotCloseUnused(Reader):
    def add_splits(self, splits):
        super().add_splits(splits)
        self.client = "connected"

    def close(self):
        assert self.client


@breaks("ENU-2")
class AssignsToTheDead(Dealer):
    def __init__(self, source, context):
        super().__init__(source, context)
        self.asking: list[int] = []

    def handle_split_request(self, subtask, host):
        self.asking.append(subtask)
        self.context.call_async(lambda: time.sleep(0.03), self.answer)

    def answer(self, _nothing, _error):
        subtask = self.asking.pop(0)
        if self.waiting:
            self.context.assign_splits({subtask: [self.waiting.pop(0)]})
        elif subtask in self.context.registered_readers():
            self.context.signal_no_more_splits(subtask)


@breaks("ENU-2")
class ForgetsWhoAsked(Dealer):
    def handle_split_request(self, subtask, host):
        if len(self.waiting) == 3 and not hasattr(self, "asked"):
            self.asked = True
            return
        super().handle_split_request(subtask, host)


@breaks("ENU-3")
class DropsWhatComesBack(Dealer):
    def add_splits_back(self, splits, subtask):
        if subtask is None:
            super().add_splits_back(splits, subtask)


@breaks("ENU-3")
class LosesTheProgressOfWhatComesBack(Dealer):
    def add_splits_back(self, splits, subtask):
        super().add_splits_back([split.at(0) for split in splits], subtask)


@breaks("ENU-4")
class KnowsTheFirstReaderOnly(Dealer):
    readers = 0

    def add_reader(self, subtask):
        self.readers += 1
        super().add_reader(subtask)

    def handle_split_request(self, subtask, host):
        if self.readers == 1:
            super().handle_split_request(subtask, host)
        else:
            self.context.signal_no_more_splits(subtask)


@breaks("ENU-5")
class SnapshotsNothing(Dealer):
    def snapshot_state(self, checkpoint_id):
        return []


@breaks("ENU-5")
class SnapshotsObjects(Dealer):
    def snapshot_state(self, checkpoint_id):
        return self.waiting

    def restore_state(self, state):
        self.waiting = list(state)


@breaks("ENU-6")
class BeginsAgainAfterARestore(Dealer):
    def restore_state(self, state):
        """Keep what a fresh one has."""


@breaks("ENU-5")
class ItsStateIsNoJson(Finder):
    def discover(self, known, first):
        return Discovered(super().discover(known, first).splits, state={"seen": {1, 2}})  # type: ignore[dict-item]


@breaks("ENU-6")
class FindsEverythingAgainUnderNewIds(Finder):
    generation = 0

    def restore_state(self, state):
        self.generation = state + 1

    def discover(self, known, first):
        found = [
            Split(f"{split.id}-{self.generation}", 0, split.end) for split in super().discover(known, first).splits
        ]
        return Discovered(found, state=self.generation)


@breaks("ENU-9")
class ItsEnumeratorLeavesThreads(Finder):
    def __init__(self, source):
        super().__init__(source)
        threading.Thread(target=RELEASE.wait, daemon=True).start()


@breaks("ENU-9")
class ItsEnumeratorCannotCloseUnused(Finder):
    def discover(self, known, first):
        self.client = "connected"
        return super().discover(known, first)

    def close(self):
        assert self.client


@breaks("ENU-10")
class TellsOnlyWhoHadASplit(Dealer):
    def __init__(self, source, context):
        super().__init__(source, context)
        self.had: set[int] = set()

    def handle_split_request(self, subtask, host):
        if self.waiting:
            self.had.add(subtask)
        if self.waiting or subtask in self.had:
            super().handle_split_request(subtask, host)


@breaks("S4")
class ItsEndGoesBack(Pages):
    def latest(self, split):
        return self.count - next(NUMBERS)


@breaks("DIS-1")
class StopsBeforeItsEnd(Pages):
    def read(self, split):
        at = split.position or 0
        for n in range(at, split.end - (split.end - at > 1)):
            yield Batch([(split.id, n)], n + 1)


@breaks("DIS-2")
class ItsSlicesOverlap(Finder):
    def slices(self, split, count):
        middle = (split.position + split.end) // 2
        return [split.slice(split.position, middle + 1), split.slice(middle, split.end)]


@breaks("DIS-2")
class ItsSlicesHaveOtherIds(Finder):
    def slices(self, split, count):
        return [Split(f"{split.id}/{n}", n, n + 1) for n in range(split.position, split.end)]


@breaks("DIS-3")
class ReachesTooFar(Finder):
    def advance(self, split, *, rows=None, byte_budget=None):
        return min(split.end, split.position + rows + 1) if rows is not None else None


@breaks("DIS-3")
class ReachesBeyondTheEnd(Finder):
    def advance(self, split, *, rows=None, byte_budget=None):
        return split.end + 5


class Timed(Full):
    event_time = "n"


@breaks("DIS-4", layer=Timed)
class FindsEventTimesTooLate(Finder):
    def positions_at(self, event_time, splits):
        return {split.id: event_time + 1 for split in splits}


@breaks("DIS-4", layer=Timed)
class FindsEventTimesBeforeThePosition(Finder):
    def positions_at(self, event_time, splits):
        return {split.id: 0 for split in splits}


@breaks("DIS-6", layer=Timed)
class TellsTheLastEventTime(Finder):
    def event_times(self, splits, column):
        return {split.id: split.end - 1 for split in splits}


@breaks("DIS-6", layer=Timed)
class TellsTheNextEventTimeAtTheEnd(Finder):
    def event_times(self, splits, column):
        return {split.id: split.position for split in splits}


@breaks("DIS-6", layer=Timed)
class TellsFractionsOfSeconds(Finder):
    def event_times(self, splits, column):
        return {split.id: min(split.position, split.end - 1) / 1e6 for split in splits}


class TimedPages(Pages):
    """Tells event times and finds positions by them: record n is at n µs."""

    event_time = "n"

    def event_time_at(self, split):
        return min(split.position or 0, self.count - 1)

    def position_at(self, split, event_time):
        return min(max(event_time, split.position or 0), split.end)


@breaks("DIS-6")
class TellsTheEventTimeOfTheRecordBefore(TimedPages):
    def event_time_at(self, split):
        return max(0, (split.position or 0) - 1)


@breaks("DIS-6")
class TellsADatetimeWithoutAZone(TimedPages):
    def event_time_at(self, split):
        return datetime(1970, 1, 1)


@breaks("DIS-4")
class FindsPositionsBeforeItsOwn(TimedPages):
    def position_at(self, split, event_time):
        return event_time


@breaks("DIS-4")
class FindsThePositionAfter(TimedPages):
    def position_at(self, split, event_time):
        return min(event_time + 1, split.end)


@breaks("DIS-4")
class FindsPositionsBeyondTheEnd(TimedPages):
    def position_at(self, split, event_time):
        return self.count + 1


@breaks("DIS-5")
class ItsSizeIsAFraction(Finder):
    def size(self, split):
        return 0.5


@breaks("SRC-8")
class LosesRowsWithColumns(Numbers):
    extra_keys = True
    columns_read: str = ""

    def schema(self):
        names = self.columns_read.split(",") if self.columns_read else COUNTING_SCHEMA.names
        return pa.schema([COUNTING_SCHEMA.field(name) for name in names])

    def with_columns(self, columns):
        return type(self)(count=self.count - 1, columns_read=",".join(columns))
