# SPDX-License-Identifier: Apache-2.0
"""For each check of the kit: a broken connector that this check catches, and no other one does."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from forebay.framework.arrow.row_packer import Batch
from forebay.framework.discovery import Discovered
from forebay.framework.reader import InputStatus
from forebay.framework.simple import SimpleEnumerator, SimpleSource
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched
from forebay.testkit.scripted import COUNTING_SCHEMA, counting_batch
from kit_connectors import broken
from kit_connectors.broken import LAYERS, RELEASE
from kit_connectors.correct import Dealer, Finder, Full, Numbers, Own, OwnReader, Pages, Reader

ALONE: dict[str, Callable[[], Source]] = {}
"""The name of a check → what makes the broken connector."""


def only(check: str, layer: type[Source] | None = None, **options: Any):
    """Register a broken connector, or a broken part of one, and the only check that catches it."""

    def note(kind):
        source = kind
        for part, (around, attribute) in LAYERS.items():
            if issubclass(kind, part):
                source = type(kind.__name__, (layer or around,), {attribute: kind})
        assert check not in ALONE, check
        ALONE[check] = lambda: source(**options)
        return kind

    return note


# ---- source, splits


@only("pickled")
class LosesAnOptionInItsCopies(Numbers):
    label: str = ""

    def __getstate__(self):
        return {"count": self.count, "label": "lost"}


@only("schema_stable")
class ItsCopyHasAnotherSchema(Numbers):
    def __setstate__(self, state):
        self.__dict__.update(state)
        object.__setattr__(self, "_copied", True)

    def schema(self):
        kind = pa.int32() if hasattr(self, "_copied") else pa.int64()
        return pa.schema([COUNTING_SCHEMA.field("split"), pa.field("n", kind)])


@only("copy_reads_the_same")
class ItsCopyReadsSomethingElse(broken.ItsCopyReadsSomethingElse):
    """Its copy has other rows."""


@only("ids_stable")
class ItsIdsAreThoseOfObjects(Numbers):
    def splits(self):
        return [f"{name} of {id(self)}" for name in ("a", "b")]


@only("newer_refused")
class TakesNewerSplits(broken.TakesNewerSplits):
    """Its splits are of any version."""


class Lossy(Split):
    version = 2
    key: str = ""

    @classmethod
    def from_json(cls, data):
        fields = {name: value for name, value in data.items() if name != "v"}
        if data["v"] > cls.version:
            return super().from_json(data)
        return cls(**(fields if data["v"] == 2 else {"id": fields["id"], "key": fields["key"]}))


class KeepsWhatWasStored(Lossy):
    @classmethod
    def from_json(cls, data):
        fields = {name: value for name, value in data.items() if name != "v"}
        return cls(**fields) if data["v"] <= 2 else super().from_json(data)


STORED = {
    "older_versions_restored": [{"v": 1, "id": "a", "position": 2, "key": "k"}],
    "older_positions_order": [{"v": 1, "id": "a", "position": "2", "key": "k"}],
}
"""The splits of older versions that the check of a connector is given, by the name of the check."""


@only("older_versions_restored")
class ForgetsThePositionOfOlderSplits(Numbers):
    split_class = Lossy


@only("older_positions_order")
class KeepsThePositionOfOlderSplitsAsItWas(Numbers):
    split_class = KeepsWhatWasStored


@only("round_trip")
class ItsSplitsLoseAField(broken.ItsSplitsLoseAField):
    """A stored split has a field less."""


@only("copies_keep_fields")
class ItsSplitsForgetWhenMoved(broken.ItsSplitsForgetWhenMoved):
    """A moved split has a field less."""


@only("unchanged_by_reading")
class ChangesTheSplitItReads(broken.ChangesTheSplitItReads):
    """Its progress is in the split."""


class TextFinder(Finder):
    def discover(self, known, first):
        return Discovered([Split(split_id, None, str(self.source.count)) for split_id in ("a", "b")])


class TextPositions(OwnReader):
    count: int = 12
    finder = TextFinder


@only("positions_order", layer=TextPositions)
class ItsPositionsAreNumbersInText(Own):
    def add_splits(self, splits):
        super().add_splits([split.slice(int(split.position or 0), int(split.end)) for split in splits])

    def emit(self, output, split):
        at = split.position
        output.collect(split.id, counting_batch(split.id, at, at + 1), str(at + 1))

    def snapshot_state(self, checkpoint_id):
        return [split.slice(str(split.position), str(split.end)) for split in self.splits.values()]


class WithContext(Full):
    """Gives its split reader the context too."""

    def create_split_reader(self, context):
        return type(self).reader(self, context)


@only("deterministic", layer=WithContext)
class LosesARowInLargeBatches(Reader):
    def __init__(self, source, context):
        super().__init__(source)
        self.batch_rows = context.options.max_rows_per_batch

    def fetch(self):
        fetched = super().fetch()
        if self.batch_rows < 1_000:
            return fetched
        return [Fetched(p.split_id, p.batch if p.position != 3 else None, p.position, p.finished) for p in fetched]


# ---- enumerators


@only("state_is_json")
class ItsStateHasNumbersAsKeys(Finder):
    def discover(self, known, first):
        return Discovered(super().discover(known, first).splits, state={1: "seen"})  # type: ignore[dict-item]


@only("discovery_restored")
class FindsEverythingAgainUnderNewIds(broken.FindsEverythingAgainUnderNewIds):
    """Its ids depend on what it restored."""


@only("enumerator_closes")
class ItsEnumeratorLeavesThreads(broken.ItsEnumeratorLeavesThreads):
    """Each enumerator leaves a thread."""


@only("enumerators_share_nothing")
class ItsEnumeratorsShareAConnection(broken.ItsEnumeratorsShareAConnection):
    """One enumerator closes the connection of the others."""


@only("idle_readers_end")
class TellsOnlyWhoHadASplit(broken.TellsOnlyWhoHadASplit):
    """After a restart with nothing left to read, the reader never ends."""


@only("readers_register_late")
class EndsAReaderThatComesAfterItsDiscovery(Dealer):
    registered = discovered = late = False

    def start(self):
        self.context.call_async(lambda: None, self.found)

    def found(self, _nothing, _error):
        self.discovered = True

    def add_reader(self, subtask):
        self.late = self.late or (self.discovered and not self.registered)
        self.registered = True

    def handle_split_request(self, subtask, host):
        if self.late:
            self.context.signal_no_more_splits(subtask)
        else:
            super().handle_split_request(subtask, host)


@only("killed_readers")
class LosesTheProgressOfFailedReaders(Dealer):
    def add_splits_back(self, splits, subtask):
        super().add_splits_back(splits if subtask is None else [split.at(0) for split in splits], subtask)


@only("dead_requesters_skipped")
class AssignsToTheDead(broken.AssignsToTheDead):
    """It does not look who is registered."""


@only("crashes")
class SnapshotsNothing(Dealer):
    """Its snapshot lacks the unassigned splits, if there are readers."""

    def snapshot_state(self, checkpoint_id):
        return [] if self.context.registered_readers() else super().snapshot_state(checkpoint_id)


@only("crashes_without_readers")
class SnapshotsNothingWithoutReaders(Dealer):
    def snapshot_state(self, checkpoint_id):
        return super().snapshot_state(checkpoint_id) if self.context.registered_readers() else []


@only("all_splits_are_assigned", endless=True)
class AssignsOnRequestOnly(Dealer):
    def __init__(self, source, context):
        super().__init__(source, context)
        self.waiting = [Split(f"s{n}", 0) for n in range(5)]

    def handle_split_request(self, subtask, host):
        if self.waiting and subtask in self.context.registered_readers():
            self.context.assign_splits({subtask: [self.waiting.pop(0)]})


# ---- readers


@only("available")
class GoesBeyondItsEnd(broken.GoesBeyondItsEnd):
    """Its page is longer than its split."""


@only("readers_share_nothing")
class ItsReadersShareThePositionOfASplit(Reader):
    positions: ClassVar[dict[str, int]] = {}

    def add_splits(self, splits):
        super().add_splits(splits)
        self.positions.update({split.id: split.position or 0 for split in splits})

    def fetch(self):
        self.splits = {
            split_id: split.at(max(split.position or 0, self.positions[split_id]))
            for split_id, split in self.splits.items()
        }
        fetched = super().fetch()
        self.positions.update({part.split_id: part.position for part in fetched if part.position is not None})
        return fetched


@only("reader_starts_empty")
class TakesTheSplitsOfItsSubtask(Own):
    left: ClassVar[dict[int, dict[str, Split]]] = {}

    def add_splits(self, splits):
        super().add_splits(splits)
        self.left[self.context.subtask] = self.splits

    def snapshot_state(self, checkpoint_id):
        return list((self.splits or self.left.get(self.context.subtask, {})).values())

    def close(self):
        super().close()
        self.left.pop(self.context.subtask, None)


@only("resumes_from_snapshots")
class MixesUpThePositionsOfItsSplits(Own):
    def snapshot_state(self, checkpoint_id):
        held = super().snapshot_state(checkpoint_id)
        positions = [split.position for split in held]
        return [split.at(position) for split, position in zip(held, [*positions[1:], *positions[:1]], strict=True)]


@only("resumes_anywhere")
class EndsOneRowEarly(Reader):
    def add_splits(self, splits):
        cut = [s for s in splits if s.end != self.source.count and s.end - s.position > 1]
        super().add_splits([s.slice(s.position, s.end - 1) if s in cut else s for s in splits])


@only("snapshots_are_complete")
class ForgetsWhatItSnapshots(broken.ForgetsWhatItSnapshots):
    """Its snapshot takes its splits away."""


@only("ends_once_told")
class EndsOnlyOnce(Own):
    ended = had = False

    def poll_next(self, output):
        self.had = self.had or bool(self.splits)
        status = super().poll_next(output)
        if status is InputStatus.END_OF_INPUT and self.had:
            status = InputStatus.NOTHING_AVAILABLE if self.ended else status
            self.ended = True
        return status


@only("ends_without_splits")
class EndsOnlyOnceWithoutASplit(Own):
    ended = had = False

    def poll_next(self, output):
        self.had = self.had or bool(self.splits)
        status = super().poll_next(output)
        if status is InputStatus.END_OF_INPUT and not self.had:
            status = InputStatus.NOTHING_AVAILABLE if self.ended else status
            self.ended = True
        return status


@only("splits_come_late")
class TakesSplitsOnlyOnce(broken.TakesSplitsOnlyOnce):
    """It drops the splits that come later."""


@only("pauses")
class EmitsWhatIsPaused(broken.EmitsWhatIsPaused):
    """It cannot pause."""


@only("waits", endless=True)
class SpinsAfterAWhile(Own):
    spins = False

    def __init__(self, source, context):
        super().__init__(source, context)
        self.timer = threading.Timer(0.2, self.spin)

    def start(self):
        super().start()
        self.timer.start()

    def spin(self):
        self.spins = True
        self.changed()

    def poll_next(self, output):
        status = super().poll_next(output)
        if self.spins:
            self.changed()
        return status

    def close(self):
        self.timer.cancel()
        super().close()


@only("closes_clean")
class LeavesAThreadForEachReader(Own):
    def start(self):
        threading.Thread(target=RELEASE.wait, daemon=True).start()
        super().start()


@only("closes_while_waiting", endless=True)
class SleepsOnAThreadWhenItIsCaughtUp(Own):
    def poll_next(self, output):
        status = super().poll_next(output)
        if status is InputStatus.NOTHING_AVAILABLE and self.splits and not hasattr(self, "sleeping"):
            self.sleeping = threading.Thread(
                target=RELEASE.wait, args=[self.context.options.poll_interval.seconds], daemon=True
            )
            self.sleeping.start()
        return status


# ---- split readers


@only("woken")
class LosesWhatItHasWhenWokenTwice(Reader):
    def __init__(self, source):
        super().__init__(source)
        self.wakes = 0

    def wake_up(self):
        self.wakes += 1
        super().wake_up()

    def fetch(self):
        twice, self.wakes = self.wakes > 1, 0
        fetched = super().fetch()
        return [] if twice else fetched


@only("woken_from_waiting", layer=WithContext, endless=True)
class SleepsThroughItsPollInterval(Reader):
    def __init__(self, source, context):
        super().__init__(source)
        self.seconds = context.options.poll_interval.seconds

    def wake_up(self):
        """Do nothing."""

    def fetch(self):
        self.woken.clear()
        if all((split.position or 0) >= self.source.count and split.end is None for split in self.splits.values()):
            RELEASE.wait(self.seconds)
            return [Fetched(split_id, caught_up=True) for split_id in self.splits]
        return super().fetch()


@only("empty_ranges_finish")
class ReadsBeforeItLooksAtItsEnd(Reader):
    def add_splits(self, splits):
        empty = [split for split in splits if split.position == split.end and split.end < self.source.count]
        super().add_splits(
            [split.slice(split.position, split.end + 1) if split in empty else split for split in splits]
        )


@only("finished_once")
class ReadsToTheEndOfAnotherSplit(Reader):
    def add_splits(self, splits):
        end = max(split.end for split in splits)
        super().add_splits(
            [split if split.position == split.end else split.slice(split.position, end) for split in splits]
        )


@only("own_ends_are_reached", endless=True)
class ItsOwnEndIsNotThereYet(Finder):
    def discover(self, known, first):
        return Discovered([Split(split_id, 0, self.source.count + 5) for split_id in ("a", "b")])


@only("fetch_pauses")
class FetchesWhatIsPaused(broken.FetchesWhatIsPaused):
    """It says that it pauses, and does not."""


@only("closes_at_any_time")
class LeavesThreads(broken.LeavesThreads):
    """Each split reader leaves a thread."""


# ---- what a host asks


class GoesBack(SimpleEnumerator):
    asked = False

    def latest(self, splits):
        ends = {split_id: end + (not self.asked) for split_id, end in super().latest(splits).items()}
        self.asked = True
        return ends


@only("latest_is_an_end")
class ItsEndGoesBack(Pages):
    """The first answer of each enumerator is one more than the later ones."""

    def create_enumerator(self, context):
        return GoesBack(self)

    def read(self, split):
        for n in range(split.position or 0, min(split.end, self.count)):
            yield Batch([(split.id, n)], n + 1)


@only("finished_splits_are_complete", endless=True)
class FinishesWhatItHasCaughtUpWith(Reader):
    def fetch(self):
        fetched = super().fetch()
        for part in fetched:
            if part.caught_up:
                del self.splits[part.split_id]
        return [Fetched(p.split_id, p.batch, p.position, finished=p.finished or p.caught_up) for p in fetched]


@only("latest_is_exclusive")
class ItsLatestIsInclusive(Pages):
    def latest(self, split):
        return self.count - 1

    def read(self, split):
        for n in range(split.position or 0, min(split.end, self.count)):
            yield Batch([(split.id, n)], n + 1)


@only("old_ends")
class PagesBeyondItsEnd(Pages):
    def read(self, split):
        at = split.position or 0
        while at < self.count:
            stop = min(at + 4, self.count)
            yield Batch([(split.id, n) for n in range(at, stop)], stop)
            at = stop


@only("pages_of_any_size")
class BeginsAPageBehindTheTimeOfTheLastRow(Pages):
    """Three rows share a time; what it reads fits into one page."""

    page_rows: int = 100

    def read(self, split):
        at = split.position or 0
        while rows := range(at, split.end)[: self.page_rows]:
            yield Batch([(split.id, n) for n in rows], rows[-1] + 1)
            at = (rows[-1] // 3 + 1) * 3


SPARSE = (3, 7, 8, 20, 21, 25, 31, 40)


@only("resumes_in_gaps")
class BeginsAtTheNextNumberOnly(Pages):
    """From a position in a gap, where no record is, it skips the record after the gap."""

    bounded = True  # else the check of old ends catches it too

    def latest(self, split):
        return SPARSE[-1] + 1

    def read(self, split):
        at = split.position or 0
        known = {0, *(n + 1 for n in SPARSE)}
        rows = [n for n in SPARSE if at <= n < split.end]
        for n in rows if at in known else rows[1:]:
            yield Batch([(split.id, n)], n + 1)


@only("ends_move_with_records")
class ItsEndIsATime(Pages):
    def latest(self, split):
        return time.time_ns()

    def read(self, split):
        for n in range(split.position or 0, min(split.end, self.count)):
            yield Batch([(split.id, n)], n + 1)


for name, kind in {
    "slices_are_the_split": "ItsSlicesOverlap",
    "advance_is_exact": "ReachesTooFar",
    "positions_at_lose_nothing": "FindsEventTimesTooLate",
    "event_times_are_those_of_the_rows": "TellsTheLastEventTime",
    "size_is_a_number": "ItsSizeIsAFraction",
    "columns_are_pruned": "LosesRowsWithColumns",
}.items():
    ALONE[name] = next(make for _, found, make in broken.BROKEN if found == kind)


# ---- what the outside does


PLACE = Path(tempfile.mkdtemp(prefix="kit-connectors-"))
"""A directory of three files, each with numbers; it goes when the process ends."""

atexit.register(shutil.rmtree, PLACE, ignore_errors=True)
for _first, _name in enumerate(("c.txt", "a.txt", "b.txt")):
    (PLACE / _name).write_text("".join(f"{10 * _first + n}\n" for n in range(5)))


class Files(SimpleSource):
    """Correct: a split is a file, by its name."""

    def schema(self):
        return COUNTING_SCHEMA

    def splits(self):
        return sorted(os.listdir(PLACE))

    def path(self, split):
        return PLACE / split.id

    def read(self, split):
        with open(self.path(split)) as file:
            for line in itertools.islice(file, split.position or 0, None):
                yield {"split": split.id, "n": int(line)}


@only("ids_outlive_growth")
class NumbersItsFiles(Files):
    def splits(self):
        return [f"part-{n}" for n, _ in enumerate(super().splits())]

    def path(self, split):
        return PLACE / super().splits()[int(split.id.removeprefix("part-"))]


@only("failing_discovery_is_an_error")
class FindsNothingIfItCannotLook(Files):
    def splits(self):
        try:
            return super().splits()
        except OSError:
            return []


@only("failing_reads_are_errors")
class EndsIfItCannotRead(Files):
    def read(self, split):
        try:
            yield from super().read(split)
        except OSError:
            return


@only("other_processes_read_the_same")
class ReadsTheClockOnTheWall(Numbers):
    def read(self, split):
        for row in super().read(split):
            yield {**row, "n": row["n"] + time.localtime(0).tm_hour}
