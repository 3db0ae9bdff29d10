# SPDX-License-Identifier: Apache-2.0
"""Replaces the index by one of another definition, which is built behind it from the same log.

The log has its beginning and its swap. So whoever commits knows both definitions, and a swap counts only after the last
fact that the new index contains: the answers of a node never go back.
"""

from __future__ import annotations

import logging
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

import numpy as np

from forebay.errors import ConfigurationError, DataError, FatalError, RetriableError
from forebay.table.index.definition import ObjectType
from forebay.table.index.edits import EDITS
from forebay.table.index.flush import SHOWN
from forebay.table.index.follower import Follower
from forebay.table.index.log import Building, Entry
from forebay.table.index.merge import Merge, RowEncoder
from forebay.table.index.node import SearchNode
from forebay.table.index.object_set import Overlay, View
from forebay.table.index.opened_segments import Newer, OpenedSegment
from forebay.table.index.pipelines import IndexStore, IndexVersion, first_version
from forebay.table.index.plan import lost_edits, refused_edits, same_rows, waits_for
from forebay.table.index.runs import recorded
from forebay.table.index.states import StateReader

_log = logging.getLogger(__name__)

SAMPLE: Final = 1_000
"""Keys that a node reads before a swap, about."""

REPLACED: Final = 16
"""Definitions that served before, and with which transactions may still be committed."""


@dataclass(frozen=True)
class Replacement:
    """What became of a replacement.

    Args:
        pipeline: The pipeline that was built, or that serves if there was nothing to replace.
        serves: Whether it serves.
        version: Its newest version; None: it is not built yet.
        waits: What is to be committed before it can serve. Then call `Funnel.replace` again.
    """

    pipeline: str
    serves: bool
    version: IndexVersion | None
    waits: tuple[str, ...] = ()

    def __str__(self) -> str:
        behind = "is not built yet" if self.version is None else "is built behind the index that serves"
        what = "serves" if self.serves else behind
        if self.version is not None:
            what += f", at fact {self.version.data:,} of the log: {self.version.count:,} objects"
        return "\n  ".join([f"the pipeline {self.pipeline} {what}", *self.waits])


def begin_replacement(
    index: IndexStore,
    definition: ObjectType | None,
    serving: str,
    *,
    swap: bool = True,
    drop_edits: Collection[str] = (),
) -> Entry:
    """Begin a replacement, unless it was begun before; one with another definition is dropped. Return the newest fact.

    Args:
        index: The store.
        definition: The definition; None: only drop what is built.
        serving: The pipeline that serves, as far as the caller knows.
        swap: Whether it is to serve as soon as it can. `IndexDaemon` lets it, if this call is not there any more.
        drop_edits: Properties whose edits by users need not count in it.

    Raises:
        RetriableError: Another one serves meanwhile. Or the location went away while the fact was put, which may count.
    """
    while True:
        head = index.head()
        if head.serving != serving:
            raise RetriableError(f"{head.serving} serves since the replacement was planned", advice="replace again")
        building = None
        if definition is not None:
            facts, before = definition.with_key_types(index.definition(head.serving).keys).to_facts(), head.building
            same = before if before is not None and before.definition == facts else None
            name, since = (same.pipeline, same.since) if same else (f"r{head.number + 1:06d}", head.number + 1)
            building = Building(name, since, facts, swap, tuple(sorted(drop_edits)))
        if building == head.building:
            return head
        entry = replace(_bare(head, "replace"), states=_kept_states(index, head, building), building=building)
        if index.log.put(entry, head, lambda newest, building=building: newest.building == building):  # type: ignore[misc] # of the loop
            _log.info("%s: fact %d of the log begins or drops a replacement", index.object_type, entry.number)
            return entry


def run_replacement(index: IndexStore, begun: Entry, follower: Callable[[str], Follower]) -> Replacement:
    """Bring a replacement up to the head of the log, prove it, and let it serve, if it is to. Others may do so too.

    Args:
        index: The store.
        begun: A fact of the log since it was begun.
        follower: Returns the follower of a pipeline.

    Raises:
        StoppedError: It was dropped meanwhile.
        ConfigurationError: Edits of users would not count any more.
        RetriableError: The store does not answer, or the location went away.
        FatalError: The index is not what the datasources say, or the location is a copy with another replacement of
            this name; the one before goes on to serve.
    """
    assert begun.building is not None  # noqa: S101 - of `begin_replacement`
    building, head = begun.building, index.head()
    stored, new = index.definition(head.serving), ObjectType.from_facts(building.definition)
    _put_first(index, building)
    if waits := tuple(waits_for(head, stored, new)):
        return Replacement(building.pipeline, serves=False, version=None, waits=waits)
    following = follower(building.pipeline)
    with _of_replacement(building.pipeline, head.serving):
        following.follow()
    with ExitStack() as proving:
        proof = None
        while True:
            with _of_replacement(building.pipeline, head.serving):
                version = following.follow(exact=True)
            head = index.head()
            if head.serving == building.pipeline:
                break
            if head.building is None or not _has_all(version, head):  # it was dropped, or a transaction was faster
                continue
            if waits := tuple(waits_for(head, stored, new)):
                return Replacement(building.pipeline, serves=False, version=version, waits=waits)
            with recorded(index, "replacement", building.pipeline) as run:
                run.did(since=version.data)
                _refuse_lost_edits(index, head, stored, new)
                proof = proof or _Proof(index, new, building.pipeline, proving)
                if not proof.holds(head, version):
                    continue
                if not head.building.swap:
                    return Replacement(building.pipeline, serves=False, version=version)
                swapped = _swapped(index, head, stored, new)
                if index.head().number != head.number:
                    continue
                _refuse_lost_edits(index, head, stored, new)  # a proof takes as long as a copy of the whole index
                if index.log.put(swapped, head, lambda newest: newest.serving == building.pipeline):
                    _log.info("%s: %s serves from fact %d on", index.object_type, building.pipeline, head.number + 1)
                    run.did(to=head.number + 1, reason="it serves", counts={"objects": version.count})
                    break
    return Replacement(building.pipeline, serves=True, version=following.follow(exact=True))


def _put_first(index: IndexStore, building: Building) -> None:
    """Put version 0 of a replacement, unless it is there.

    Raises:
        FatalError: Another one is.
    """
    first = first_version(building)
    if not index.put_version(first) and index.version(building.pipeline, 0) not in (first, None):
        raise FatalError(
            f"the pipeline {building.pipeline} of {index.object_type!r} has another definition than the replacement of "
            "this name: the location is a copy that was made while others wrote",
            option="location",
            advice="call Funnel.replace with the definition that serves, run `forebay index gc`, and replace again",
        )


@contextmanager
def _of_replacement(pipeline: str, serving: str) -> Iterator[None]:
    """Let an error of a row say that it is the replacement that cannot have it."""
    try:
        yield
    except DataError as error:
        error.message += f"; the replacement {pipeline} cannot be built with this row, and {serving} goes on to serve"
        advice = error.advice or "correct the row"
        error.advice = f"{advice}; or drop the replacement: call Funnel.replace with the definition that serves"
        raise


def _refuse_lost_edits(index: IndexStore, head: Entry, stored: ObjectType, new: ObjectType) -> None:
    """Refuse edits that users made since the replacement was planned, and that would not count in it."""
    accepted = head.building.drop_edits if head.building else ()
    if lost := tuple(refused_edits(index, head, stored, new, accepted)):
        raise ConfigurationError(
            f"the replacement of {index.object_type!r} does not serve: {'; '.join(lost)}",
            option="object_type",
            advice="then replace again",
        )


def _has_all(version: IndexVersion, head: Entry) -> bool:
    """Return whether a version follows the newest fact, so that answers do not go back if it serves."""
    return version.data == head.number


class _Proof:
    """Proves that a node answers what the datasources say: all at first, then what is new.

    Args:
        index: The store.
        definition: The definition of the replacement.
        pipeline: Its pipeline. A node answers from it, which checks each file that it copies.
        until: Closes the node, and removes its files.
    """

    def __init__(self, index: IndexStore, definition: ObjectType, pipeline: str, until: ExitStack) -> None:
        self._index = index
        self._definition = definition
        self._pipeline = pipeline
        self._until = until
        self._counted = False

    @cached_property
    def _node(self) -> SearchNode:
        cache = self._until.enter_context(tempfile.TemporaryDirectory(prefix="forebay-proof-"))
        index = self._index
        return self._until.enter_context(
            SearchNode(
                index.location,
                index.object_type,
                cache=cache,
                storage=index.storage,
                progress=lambda *_: None,
                pipeline=self._pipeline,
            )
        )

    def holds(self, head: Entry, version: IndexVersion) -> bool:
        """Check that each file can be read, the number of objects, and a sample of keys.

        Returns:
            True; False if another follower has put a newer version, or the replacement was dropped: nothing is proven.

        Raises:
            FatalError: Something differs.
        """
        try:
            self._node.refresh()
        except ConfigurationError:
            if self._pipeline in self._index.head().pipelines:
                raise
            return False  # the replacement was dropped
        view = replace(self._node.view(), overlay=Overlay())
        if view.version.number > version.number:
            return False
        wrong = [] if view.version == version else [f"a node reads version {view.version.number}"]
        if not self._counted:
            count = sum(_objects(*part) for part in view.parts)
            wrong += [] if count == version.count else [f"it has {count:,} objects instead of {version.count:,}"]
        with self._index.log.reading(head):
            wrong += _differing(self._index, head, self._definition, view, 100 if self._counted else SAMPLE)
        self._counted = True
        if wrong:
            raise FatalError(
                f"the replacement {version.pipeline} of {self._index.object_type!r} does not serve, as it is wrong: "
                f"{'; '.join(wrong[:5])}",
                option="object_type",
                advice="report this as a defect; Funnel.replace with the definition that serves drops the replacement",
            )
        return True


def _objects(opened: OpenedSegment, newer: Newer) -> int:
    """Return the number of objects of a file that no newer one overrules."""
    with opened.reading() as connection:
        count = int(connection.execute("SELECT count(*) FROM o").fetchone()[0])
    for rows in opened.scan("SELECT k FROM o") if newer.run else ():
        with opened.errors():
            count -= len(newer.overruled(key for (key,) in rows))
    return count


def _differing(index: IndexStore, head: Entry, definition: ObjectType, view: View, sample: int) -> Iterator[str]:
    """Yield what is wrong with keys of each file of the states, evenly taken."""
    reader, encoder = StateReader(index.store), RowEncoder(definition, head.shards)
    merge = Merge(definition, head, reader)
    names = [name for name in head.states if name == EDITS or definition.feeds(name)]
    for shard in range(head.shards):
        infos = [info for name in names for run in head.states[name].shards[shard] for info in run]
        hashes = [np.empty(0, np.int64)]
        for info in infos:
            known = reader.files.open(info).hashes
            places = np.linspace(0, len(known) - 1, max(sample // head.shards // len(infos), 1)).astype(np.int64)
            hashes.append(known[places])
        for rows, _ in encoder.objects(merge.of_keys(shard, np.unique(np.concatenate(hashes))), shard):
            for _, columns, exists in rows:
                of_keys = zip(definition.keys, columns, strict=False)
                key = {name: definition.columns[name].decode(value) for name, value in of_keys}
                expected = view.decoded(columns) if exists else None
                if repr(view.find(key)[1]) != repr(expected):
                    yield f"the object {key} differs from the rows of its datasources"


def _swapped(index: IndexStore, head: Entry, stored: ObjectType, new: ObjectType) -> Entry:
    """Return the fact that lets the replacement serve."""
    assert head.building is not None  # noqa: S101 - it is the one that is built
    lost = [text for texts in lost_edits(index, head, stored, new, pending=False).values() for text in texts]
    bare = _bare(head, "swap")
    edits = replace(
        bare.edits,
        dead_letters=bare.edits.dead_letters + len(lost),
        last_dead=(*bare.edits.last_dead, *lost)[-SHOWN:],
    )
    before = [each for each in head.replaced if each != new.fingerprint()]
    return replace(
        bare,
        serving=head.building.pipeline,
        building=None,
        states={name: state for name, state in head.states.items() if name == EDITS or new.feeds(name)},
        replaced=(*before, stored.fingerprint())[-REPLACED:],
        edits=edits,
    )


def _kept_states(index: IndexStore, head: Entry, building: Building | None) -> dict[str, Any]:
    """Return the states of datasources that serve, or that a new replacement has as the one that was built before."""
    stored = index.definition(head.serving)
    states = {name: state for name, state in head.states.items() if name == EDITS or stored.feeds(name)}
    if building is None or head.building is None:
        return states
    before, new = (ObjectType.from_facts(each.definition) for each in (head.building, building))
    unchanged = [source for source in new.datasources if before.feeds(source.name) and same_rows(before, source)]
    return states | {source.name: head.states[source.name] for source in unchanged if source.name in head.states}


def _bare(head: Entry, kind: Any) -> Entry:  # noqa: ANN401 - a kind of an entry
    """Return the fact after another one, with the same states, and without changes."""
    return replace(
        head,
        number=head.number + 1,
        kind=kind,
        attempt=uuid.uuid4().hex,
        datasource="",
        transaction="",
        micro_batch=False,
        changes=(),
        before=0,
        counts={},
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        edits=replace(head.edits, ids=()),
    )
