# SPDX-License-Identifier: Apache-2.0
"""A follower of the log: merges the keys that changed since its last version, and writes them into its index.

It takes all facts of the log that it has not seen in one step. A version is put once; whatever ends a step before,
leaves files that nothing names, and the next step does it again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final, Literal

from forebay.errors import ForebayError
from forebay.table.index.compaction import compact
from forebay.table.index.definition import ObjectType
from forebay.table.index.edits import EDITS
from forebay.table.index.facts import damaged_fact, object_of
from forebay.table.index.log import Entry, StoppedError
from forebay.table.index.merge import Merge, Merged, RowEncoder
from forebay.table.index.pipelines import IndexRun, IndexStore, IndexVersion, first_version
from forebay.table.index.runs import Recording, recorded
from forebay.table.index.segments import RunWriter
from forebay.table.index.states import StateReader

_log = logging.getLogger(__name__)

SMALL: Final = 50_000
"""Changed keys up to which a step runs in this process."""

_TRIES: Final = 3
"""How often the first version of a pipeline is looked for."""

FullIf = Literal["datasource", "objects"]


@dataclass(frozen=True)
class FullRule:
    """When a follower builds the whole index instead of merging the changed keys.

    Args:
        threshold: The share of rows that one transaction changed; None: never. Micro-batches and edits never count.
        of: The share of the rows of the `datasource` before the transaction, or of the `objects`.
    """

    threshold: Fraction | None = Fraction(4, 5)
    of: FullIf = "datasource"

    def reason(self, entries: Sequence[Entry], objects: int) -> str | None:
        """Return why the whole index is built; None if it is not."""
        if self.threshold is None:
            return None
        for entry in entries:
            before = entry.before if self.of == "datasource" else objects
            if entry.micro_batch or entry.kind == "flush" or not entry.changed:
                continue
            if entry.changed * self.threshold.denominator >= before * self.threshold.numerator:
                what = f"rows of {entry.datasource}" if self.of == "datasource" else "objects"
                if not before:
                    return f"the first {entry.changed:,} {what}"
                return f"{entry.changed:,} {what} changed, of {before:,} before"
        return None


@dataclass(frozen=True)
class BuildTask:
    """A part of a step: the objects of one shard, or all changed ones. It is pickled to the tasks of Spark.

    Args:
        index: The store.
        definition: The definition of the pipeline.
        pipeline: The pipeline.
        head: The number of the fact to which the step leads.
        shard: The shard; None: all of them, in one segment.
        since: The numbers of the facts whose changes are merged; None: all objects are.
        before: The number of the fact that the version before follows, if there are folded edits.
        low_priority: Whether it is of a whole index that does not serve yet, so that what serves goes first.
    """

    index: IndexStore
    definition: ObjectType
    pipeline: str
    head: int
    shard: int | None
    since: tuple[int, ...] | None
    before: int | None = None
    low_priority: bool = False


@dataclass(frozen=True)
class BuildResult:
    """Segments that a part of a step wrote, and how many objects there are more than before."""

    segments: IndexRun
    added: int

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> BuildResult:
        """Return the result of JSON values."""
        return object_of(cls, facts, "of a task")


def segments_prefix(index: IndexStore, pipeline: str, data: int) -> str:
    """Return the beginning of the names of segments that a step to this fact of the log writes."""
    return f"{index.pipeline_prefix(pipeline)}segments/{data:012d}-"


def build_shard(task: BuildTask) -> BuildResult:
    """Write the objects of a part: all, or those of the changed keys. Called in the driver, or in a task of Spark."""
    return _built(task, _entry(task.index, task.head))


def _built(task: BuildTask, head: Entry) -> BuildResult:
    index, definition = task.index, task.definition
    merge = Merge(definition, head, StateReader(index.store))
    encoder = RowEncoder(definition, head.shards)
    entries = [_entry(index, number) for number in task.since or ()]
    earlier = None
    if task.before is not None and task.since is not None:
        earlier = Merge(definition, _entry(index, task.before), StateReader(index.store))
    shards = range(head.shards) if task.shard is None else [task.shard]
    changed = (merge.changed_keys(entries, shard) for shard in shards)
    rows = 0  # of all shards, but few
    if task.since is None:
        rows = _most_rows(head) // head.shards
    elif task.shard is not None:
        keys = next(changed)
        rows, changed = len(keys.hashes), (each for each in [keys])
    prefix, added = segments_prefix(index, task.pipeline, task.head), 0
    with RunWriter(index.store, prefix, definition, shards=head.shards, shard=task.shard, rows=rows) as writer:
        for shard, keys in zip(shards, changed, strict=True):
            if keys.batch.num_rows:
                added += _write_changes(writer, encoder, merge.of_changes(shard, keys), earlier, shard)
            for merged in merge.of_all(shard) if task.since is None else ():
                for some, hashes in encoder.objects(merged, shard):
                    writer.add(some, hashes)
                    added += sum(exists for _, _, exists in some)
        return BuildResult(writer.finish(), added)


def _most_rows(head: Entry) -> int:
    return max((state.live for state in head.states.values()), default=0)


def _write_changes(writer: RunWriter, encoder: RowEncoder, merged: Merged, earlier: Merge | None, shard: int) -> int:
    """Write the objects of changed keys; return how many objects there are more than before."""
    keys: list[bytes] = []
    added = 0
    for rows, hashes in encoder.objects(merged, shard):
        writer.add(rows, hashes)
        keys += [key for key, _, _ in rows]
        added += sum(exists for _, _, exists in rows)
    if earlier is None or not merged.edits:
        return added - int(merged.existed.sum())
    # Whether an edited object existed does not follow from the changes of its rows: its time may have changed too.
    existed = merged.existed.copy()
    existed[list(merged.edits)] = False
    objects = encoder.objects(earlier.of_keys(shard, merged.hashes), shard)
    there = {key for rows, _ in objects for key, _, exists in rows if exists}
    return added - int(existed.sum()) - len(there & {keys[place] for place in merged.edits})


def _entry(index: IndexStore, number: int) -> Entry:
    entry = index.log.get(number)
    if entry is None:
        index.head()  # an error if the location is away; it may have been so for a moment
        entry = index.log.get(number)
    if entry is None:
        raise damaged_fact(index.log.name(number), "it does not exist")
    return entry


Launcher = Callable[[Sequence[BuildTask]], Sequence[BuildResult]]
"""Runs the parts of a step, each in a task of its own."""


class Follower:
    """Brings the index of a pipeline up to the head of the log.

    Args:
        index: The store.
        pipeline: The pipeline.
        rule: When the whole index is built.
        launch: Runs the parts of a large step; None: in this process too.
        small: Changed keys up to which a step runs in this process.
    """

    def __init__(
        self,
        index: IndexStore,
        pipeline: str,
        rule: FullRule | None = None,
        launch: Launcher | None = None,
        small: int = SMALL,
    ) -> None:
        self._index = index
        self._pipeline = pipeline
        self._rule = rule or FullRule()
        self._launch = launch
        self._small = small

    def follow(self, *, full: bool = False, exact: bool = False) -> IndexVersion:
        """Bring the index up to the head of the log; return its newest version.

        Args:
            full: Build the whole index, even if nothing has changed.
            exact: Put a version also if the last facts of the log change no object.

        Raises:
            DataError: A value does not fit the type of its property. The version before goes on to serve.
            RetriableError: Files that were written are not there, or the store does not answer. It goes on too.
            StoppedError: The pipeline follows the log no more: another one replaced it.
        """
        with recorded(self._index, "index", self._pipeline) as run:
            return self._follow(run, full=full, exact=exact)

    def _follow(self, run: Recording, *, full: bool, exact: bool) -> IndexVersion:
        while True:
            last, head = self._last()
            if last.number > 0 and head.number == last.data and head.attempt == last.fact and not full:
                return last
            run.did(since=last.data)
            try:
                version = self._step(last, head, full=full, exact=exact)
                if version is not None:
                    self._index.head()  # if the location is away, the version would be lost too
                    written = {each.name for each in version.segments} - {each.name for each in last.segments}
                    self._index.refuse_missing(f"{self._index.pipeline_prefix(self._pipeline)}segments/", written)
            except ForebayError:
                # Another follower has put a version, and files of the one before were collected meanwhile.
                newest = self._index.newest_version(self._pipeline)
                same = newest is None or newest.number == last.number
                if same and self._pipeline in self._index.head().pipelines:
                    run.did(to=head.number)
                    raise
                continue
            if version is None:
                return last
            if self._index.put_version(version) and self._is_newest(version, last):
                _log.info(
                    "%s: version %d of pipeline %s follows fact %d of the log: %s, %s; %d objects",
                    self._index.object_type,
                    version.number,
                    version.pipeline,
                    version.data,
                    version.decision,
                    version.reason,
                    version.count,
                )
                run.did(
                    to=version.data,
                    decision=version.decision,
                    reason=version.reason,
                    shares=version.shares,
                    counts={"objects": version.count},
                )
                return version

    def reason(self) -> str | None:
        """Return why the next step builds the whole index; None if it merges changed keys."""
        return self._pending(*self._last())[1]

    def _last(self) -> tuple[IndexVersion, Entry]:
        """Return the newest version, and the newest fact of the log, which is read later, so that it is not older.

        Raises:
            StoppedError: The pipeline follows the log no more.
        """
        for _ in range(_TRIES):
            last, head = self._index.newest_version(self._pipeline), self._index.head()
            if self._pipeline not in head.pipelines:
                break
            if last is not None:
                return last, head
            # Else another process has built it meanwhile, and let it serve.
            if head.building is not None and head.building.pipeline == self._pipeline:
                self._index.put_version(first_version(head.building))
        raise StoppedError(self._index.object_type, self._pipeline, self._index.head())

    def _is_newest(self, version: IndexVersion, last: IndexVersion) -> bool:
        """Return whether a version that was put after `last` counts: its number may have been collected before."""
        if version.number > 1 and self._index.version(self._pipeline, last.number) == last:
            return True
        if self._index.versions(self._pipeline)[-1:] == [version.number]:
            return True
        self._index.store.delete([self._index.version_name(self._pipeline, version.number)])
        return False

    def _pending(self, last: IndexVersion, head: Entry) -> tuple[Sequence[Entry], str | None]:
        """Return the facts with changes that a version does not have, and why everything is built, if it is."""
        if last.number == 0:
            return (), "the first version of the pipeline"
        of_last = head if head.number == last.data else self._index.log.get(last.data)
        if head.number < last.data or (of_last is not None and of_last.attempt != last.fact):
            return (), "the last version is not of this log, as in a copy"
        definition = self._index.definition(self._pipeline)
        known = [self._index.log.get(number) for number in range(last.data + 1, head.number)]
        if None in known or (EDITS in head.states and of_last is None):
            return (), "facts of the log since the last version were collected"
        entries = [*(entry for entry in known if entry is not None), *([head] if head.number > last.data else [])]
        changed = tuple(
            entry
            for entry in entries
            if entry.changed and (entry.kind == "flush" or definition.feeds(entry.datasource))
        )
        return changed, self._rule.reason(changed, last.count)

    def _step(self, last: IndexVersion, head: Entry, *, full: bool, exact: bool) -> IndexVersion | None:
        """Write the next version; None if no object has changed since the last one."""
        definition = self._index.definition(self._pipeline)
        changed, reason = self._pending(last, head)
        if full and last.number > 0:
            reason = reason or "asked for"
        nothing = not changed and reason is None and head.edits.offset == last.edits
        if nothing and not exact:
            return None
        keys = sum(entry.changed for entry in changed)
        made = replace(
            last,
            number=last.number + 1,
            data=head.number,
            shares=tuple((entry.changed, entry.before) for entry in changed),
            decision="FULL" if reason else "INCREMENTAL",
            reason=reason or ("nothing changed" if nothing else f"{keys:,} keys changed"),
            edits=head.edits.offset,
            facts={},
            fact=head.attempt,
            attempt=uuid.uuid4().hex,
        )
        if nothing:
            return made
        if reason:
            run, count = self._written(head, definition, None, _most_rows(head))
            return replace(made, runs=(run,) if run else (), count=count)
        before = last.data if EDITS in head.states else None
        run, added = self._written(head, definition, tuple(entry.number for entry in changed), keys, before)
        prefix = segments_prefix(self._index, self._pipeline, head.number)
        runs = compact(self._index, definition, head.shards, prefix, (*last.runs, run)) if run else last.runs
        return replace(made, runs=runs, count=last.count + added)

    def _written(
        self, head: Entry, definition: ObjectType, since: tuple[int, ...] | None, size: int, before: int | None = None
    ) -> tuple[IndexRun, int]:
        """Write the parts of a step, and return the segments, and how many objects there are more than before."""
        small = size <= self._small
        together = small and since is not None
        low = since is None and self._pipeline != head.serving  # a replacement has to catch up quickly
        shards: Sequence[int | None] = [None] if together else range(head.shards)
        tasks = [
            BuildTask(self._index, definition, self._pipeline, head.number, shard, since, before, low)
            for shard in shards
        ]
        results: Sequence[BuildResult]
        if together:
            results = [_built(tasks[0], head)]
        elif small or self._launch is None:
            results = [build_shard(task) for task in tasks]
        else:
            results = self._launch(tasks)
        return tuple(segment for result in results for segment in result.segments), sum(each.added for each in results)
