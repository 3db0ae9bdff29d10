# SPDX-License-Identifier: Apache-2.0
"""The log of an object type: numbered facts `log/<n>.json`. The put of a fact is the only commit of data.

A fact names all files that make up the state after it, so nobody sees a part of a transaction. Of two writers that put
the same number one wins; the other one puts the next number, if the winner committed another datasource.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from forebay.errors import ConfigurationError, FatalError, RetriableError, unwrap
from forebay.state.state_store import StateStore
from forebay.table.changelog.state.facts import SegmentInfo
from forebay.table.changelog.state.typed_values import Whole, Within
from forebay.table.index.definition import ObjectType
from forebay.table.index.facts import Fact, Microseconds, newest, numbers_of, stored_bytes

SHARDS: Final = 1 << 20
"""The most shards of an object type."""

KEPT: Final = 100
"""Facts of the log that are kept. An attempt that began more facts ago cannot commit, so that its files may go."""

KNOWN: Final = 256
"""Transactions of a datasource whose ids are remembered."""

Run = tuple[SegmentInfo, ...]
"""Segments of keyed state, in the order of their key hashes."""


@dataclass(frozen=True)
class DatasourceState:
    """The keyed state of a datasource after a fact of the log.

    Args:
        schema: The columns of its entries, as text: Arrow's serialized schema.
        shards: The runs of each shard, oldest first.
        live: The number of rows.
        moved: The number of the fact that changed the datasource last.
        owner: The streaming query that feeds the datasource; None: transactions of `Funnel.commit`.
        batch: The last micro-batch of the owner.
        applied: Digest of the id, and digest of the rows, of the last transactions.
    """

    schema: str
    shards: tuple[tuple[Run, ...], ...]
    live: Whole
    moved: int
    owner: str | None = None
    batch: int = -1
    applied: tuple[tuple[str, str], ...] = ()

    def digest_of(self, transaction: str) -> str | None:
        """Return the digest of the rows of a transaction that was applied; None if its id is not known."""
        return dict(self.applied).get(id_digest(transaction))


@dataclass(frozen=True)
class Folded:
    """What became of edits of users, up to a fact of the log.

    Args:
        offset: The offset of the last edit that was folded into the state of edits.
        time: The time of this edit, in microseconds since 1970.
        ids: The ids of the edits that a flush folded; of other facts, none.
        dead_letters: How many values of edits did not fit the definition, and were left out.
        last_dead: The last ones of them, as people read them.
    """

    offset: Whole = 0
    time: Microseconds = 0
    ids: tuple[str, ...] = ()
    dead_letters: Whole = 0
    last_dead: tuple[str, ...] = ()


@dataclass(frozen=True)
class Building:
    """A replacement that is built behind the pipeline that serves.

    Args:
        pipeline: The name of its pipeline, which no other one ever had: the number of a fact is part of it.
        since: The number of the fact that began it. Later ones are kept until it has a version.
        definition: Its definition, as JSON values.
        swap: Whether it is to serve as soon as it can.
        drop_edits: Properties whose edits by users need not count in it.
    """

    pipeline: str
    since: Whole
    definition: Mapping[str, Any]
    swap: bool = True
    drop_edits: tuple[str, ...] = ()

    @property
    def is_valid(self) -> bool:
        """Whether the definition, which comes from a file, is one; an error says why not."""
        return ObjectType.from_facts(self.definition).name != ""


@dataclass(frozen=True)
class Entry(Fact):
    """A fact of the log.

    Args:
        number: Its number.
        kind: What it does: it begins the log, commits a transaction, flushes edits of users, begins or drops a
            replacement, or lets it serve.
        attempt: A random id of the attempt that put it.
        shards: The number of shards of all states.
        serving: The name of the pipeline that serves.
        states: The state of each datasource after it.
        datasource: The datasource of the transaction.
        transaction: The id of the transaction.
        micro_batch: Whether it is a micro-batch of a stream.
        changes: The files of the changes, for each shard. They are a run of the state too, until it is merged.
        before: The rows of the datasource before the transaction.
        counts: Rows that were inserted, updated and deleted, and others that changed nothing, by name.
        time: When it was put, as people write it. Nothing is decided by it.
        edits: The edits that the state of edits has after it.
        building: The replacement that is built.
        replaced: Fingerprints of the last definitions that served before.
        log: The random id of the log. One that was removed and begun anew has another one.
    """

    number: Whole
    kind: Literal["begin", "transaction", "flush", "replace", "swap"]
    attempt: str
    shards: Annotated[int, Within(1, SHARDS)]
    serving: str
    states: Mapping[str, DatasourceState] = field(default_factory=dict)
    datasource: str = ""
    transaction: str = ""
    micro_batch: bool = False
    changes: tuple[Run, ...] = ()
    before: Whole = 0
    counts: Mapping[str, Whole] = field(default_factory=dict)
    time: str = ""
    edits: Folded = Folded()
    building: Building | None = None
    replaced: tuple[str, ...] = ()
    log: str = ""

    @property
    def pipelines(self) -> tuple[str, ...]:
        """The pipelines that follow the log: the one that serves, then the one that is built."""
        return (self.serving,) if self.building is None else (self.serving, self.building.pipeline)

    @property
    def changed(self) -> int:
        """The number of keys that the transaction inserted, updated or deleted."""
        return sum(self.counts.get(name, 0) for name in ("inserted", "updated", "deleted"))

    @property
    def changes_objects(self) -> bool:
        """Whether an index has something to take from the fact."""
        return self.changed > 0 or self.kind == "flush"

    @property
    def is_valid(self) -> bool:
        """Whether the values, which come from a file, fit each other. The first fact has no time."""
        if self.kind != "begin" and datetime.fromisoformat(self.time).tzinfo is None:
            return False
        divided = [len(state.shards) for state in self.states.values()]
        return {*divided, len(self.changes) or self.shards} == {self.shards}


class StoppedError(ConfigurationError):
    """A pipeline follows the log no more."""

    def __init__(self, object_type: str, pipeline: str, head: Entry) -> None:
        super().__init__(
            f"the pipeline {pipeline} of {object_type!r} was dropped or replaced by another one; {head.serving} serves",
            option="object_type",
            advice="Funnel.status shows what is built, and Funnel.replace begins again",
        )


class MovedError(RetriableError):
    """Others have changed what a commit was made for; nothing was committed. Made anew, it may be."""


class Log:
    """The log of an object type. For any thread.

    Args:
        store: The store.
        directory: The directory of the object type, ending in a slash.
    """

    def __init__(self, store: StateStore, directory: str) -> None:
        self._store = store
        self._prefix = f"{directory}log/"

    def name(self, number: int) -> str:
        """Return the name of a fact."""
        return f"{self._prefix}{number:012d}.json"

    def numbers(self) -> list[int]:
        """Return the numbers of the facts that there are, sorted."""
        return numbers_of(self._store.names(self._prefix), self._prefix)

    def get(self, number: int) -> Entry | None:
        """Return a fact; None if there is none with this number."""
        name = self.name(number)
        data = self._store.get(name)
        return None if data is None else Entry.from_bytes(data, name)

    @contextmanager
    def reading(self, entry: Entry) -> Iterator[None]:
        """Around what reads the files of a fact. A file that is missing is no damage if the fact was collected.

        Raises:
            RetriableError: So many facts were put meanwhile that it was.
        """
        try:
            yield
        except Exception as error:
            stored = self.get(entry.number) if isinstance(unwrap(error), FatalError) else entry
            if stored is not None and stored.attempt == entry.attempt:
                raise
            raise RetriableError(
                f"fact {entry.number} of the log was collected while its files were read: others have put many since",
                advice="do it again: it begins at the newest fact",
            ) from error

    def head(self, after: Entry | None = None) -> Entry | None:
        """Return the newest fact; None if the log is empty.

        Args:
            after: A fact that the caller knows, from which the search begins.
        """
        for _ in range(2):
            following = None if after is None else self.get(after.number + 1)
            # A fact that is still there was the newest one, if none followed before. If it is gone, the one that
            # follows may be gone too, or put again by a writer that paused for long.
            if after is None or not self._holds(after):
                break
            if following is None:
                return after
            after = following
        return newest(self.numbers, self.get, self._prefix)

    def _holds(self, entry: Entry) -> bool:
        """Return whether a fact is there, and not another one with its number."""
        data = self._store.get(self.name(entry.number))
        return data is not None and entry.attempt.encode() in data  # to parse it takes many times as long

    def begin(self, entry: Entry) -> Entry:
        """Put the first fact of the log, unless there is one; return the newest one."""
        self._store.put_if_absent(self.name(0), stored_bytes(entry, self.name(0)))
        head = self.head()
        if head is None:
            raise RetriableError(
                f"{self.name(0)} was put, and is not there",
                option="location",
                advice="look whether the location is mounted, and do it again",
            )
        return head

    def append(self, base: Entry, change: Callable[[Entry], Entry], datasource: str) -> Entry:
        """Commit a change of one datasource, after all facts that other writers have put.

        Args:
            base: The fact on which the files of the change are based.
            change: Returns the fact to put after the one that it is given: with the states of the other datasources.
            datasource: The datasource.

        Returns:
            The fact that was put.

        Raises:
            MovedError: Another writer has changed the datasource meanwhile; nothing was committed.
            RetriableError: So many facts were put meanwhile that the files may be collected, or the log is gone;
                nothing was committed. Or the location went away while the fact was put: it may be committed.
        """
        head, attempt = self.head(base), uuid.uuid4().hex
        while True:
            if head is None:
                raise RetriableError(
                    f"nothing of the log {self._prefix} is there any more; nothing was committed",
                    option="location",
                    advice="check the location; if the object type was removed, a new Funnel makes it anew",
                )
            _refuse_moved(base, head, datasource)
            if head.number - base.number >= KEPT:
                raise RetriableError(
                    f"the transaction of the datasource {datasource!r} began at fact {base.number} of the log, and the "
                    f"log is at {head.number}: its files may be collected",
                    advice="commit it again; commit large loads while few other transactions are committed",
                )
            entry = replace(change(head), number=head.number + 1, attempt=attempt)
            if self.put(entry, head, lambda newest, entry=entry: _has(newest, entry, datasource)):  # type: ignore[misc] # of the loop
                return entry
            head = self.head()

    def put(self, entry: Entry, head: Entry, is_in: Callable[[Entry], bool]) -> bool:
        """Put a fact after all others; return whether it counts. Else the log has gone on, or it is not in the log.

        Args:
            entry: The fact. Its number is that of `head`, plus one.
            head: The newest fact that the caller knows, on which the fact is based.
            is_in: Returns whether a later fact says that this one was put.

        Raises:
            RetriableError: The location went away meanwhile. The fact may count.
        """
        name = self.name(entry.number)
        won = self._store.put_if_absent(name, stored_bytes(entry, name))
        if not won and (stored := self._store.get(name)) is not None:
            if entry.attempt.encode() not in stored:
                return False
            won = True  # the answer to a request that succeeded was lost
        if won and self._holds(head) and self._holds(entry):
            return True
        # The location was away for a moment, and the fact may be below its mount point. Or the one before is gone: this
        # number was put and collected before, while this process was paused; or it was put by this attempt, and both
        # were collected since, perhaps before the answer came.
        newest = self.head()
        if newest is not None:
            if self._holds(head):
                return self._holds(entry)
            if newest.number > entry.number and is_in(newest):
                return True
            if won:
                self._store.delete([name])
            if newest.number > entry.number:
                return False
        raise RetriableError(  # the last two facts are never collected
            f"the location went away, or was removed, while {name} was put; it may be committed",
            option="location",
            advice="look whether the location is mounted, and do it again, a commit with the same transaction; if the "
            "object type was removed, a new Funnel makes it anew",
        )


def _has(head: Entry, entry: Entry, datasource: str) -> bool:
    state = head.states.get(datasource)
    newest = entry.states[datasource].applied[-1:]
    return state is not None and set(newest) <= set(state.applied)


def _refuse_moved(base: Entry, head: Entry, datasource: str) -> None:
    if head.log != base.log:
        raise MovedError(
            "the log was removed and begun anew since this transaction began", option="location", advice="commit again"
        )
    before, now = base.states.get(datasource), head.states.get(datasource)
    if (before and before.moved) == (now and now.moved):
        return
    other = f"the streaming query {now.owner}" if now and now.owner else "another transaction"
    number = now.moved if now else head.number
    raise MovedError(
        f"{other} has changed the datasource {datasource!r} since this transaction began: fact {number} of the log",
        option="datasource",
        advice="commit again; let one process at a time write a datasource",
    )


def id_digest(transaction: str) -> str:
    """Return the digest of the id of a transaction, as `DatasourceState.applied` has it."""
    return hashlib.sha256(transaction.encode()).hexdigest()[:16]
