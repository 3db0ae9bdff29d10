# SPDX-License-Identifier: Apache-2.0
"""Proves that an index is equal to the states of datasources and edits: by a scan of both, with keys that differ."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from forebay.errors import ConfigurationError, FatalError
from forebay.table.changelog.state.segments import StoredSegments
from forebay.table.changelog.state.typed_values import UNREADABLE
from forebay.table.index.compaction import rows_of_runs
from forebay.table.index.definition import ObjectType
from forebay.table.index.edits import EditRules
from forebay.table.index.log import Entry
from forebay.table.index.merge import Merge, RowEncoder
from forebay.table.index.object_set import View
from forebay.table.index.pipelines import IndexStore, IndexVersion
from forebay.table.index.segments import Row
from forebay.table.index.states import StateReader

BUCKETS: Final = 256
"""Parts of the keys whose sums are compared. Only the keys of parts that differ are kept in memory."""

NAMED: Final = 20
"""Differing keys that are named."""

Columns = tuple[Any, ...]


@dataclass(frozen=True)
class Verification:
    """The result of a comparison of an index with the states of its datasources.

    Args:
        version: The version of the index.
        data: The number of the fact of the log whose states were compared.
        log: The number of the newest fact of the log.
        edits: The number of edits that are pending in the version of a node.
        objects: The number of objects of the states.
        differing: The number of keys that are missing, that are not to be there, or whose object differs.
        named: Some of these keys, each with what is wrong.
        problems: Files that are missing or damaged; then nothing was compared. Or a wrong number of objects, or
            documents of OpenSearch that hold no object.
    """

    version: int
    data: int
    objects: int = 0
    differing: int = 0
    named: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    log: int = 0
    edits: int = 0

    @property
    def is_equal(self) -> bool:
        """Whether the index is equal to the states."""
        return not self.differing and not self.problems

    def __str__(self) -> str:
        what = f"version {self.version}, at fact {self.data} of the log"
        if self.log > self.data:
            what += f", which is at {self.log}"
        if self.is_equal:
            edited = f" and {self.edits:,} pending edits" if self.edits else ""
            return f"{what}: equal to the states of all datasources{edited}, {self.objects:,} objects"
        if self.problems:
            return "\n  ".join([f"{what}: damaged", *self.problems])
        return "\n  ".join([f"{what}: {self.differing:,} keys differ", *self.named])


def verify(index: IndexStore, view: View | None = None, *, replacement: bool = False) -> Verification:
    """Compare the newest version of the serving pipeline with the states; or the version that a node answers from.

    Args:
        index: The store.
        view: What a node reads (`SearchNode.view`); None: the segments of the store.
        replacement: Whether to compare the replacement that is built instead of the index that serves.

    Raises:
        ConfigurationError: There is no index yet, or the states of the version were collected.
        RetriableError: They were while they were compared.
    """
    head = index.head()
    if replacement and head.building is None:
        raise ConfigurationError(
            f"no replacement of {index.object_type!r} is built", option="replacement", advice="leave it out"
        )
    if view is not None:
        version = view.version
    elif replacement and head.building is not None:
        version = index.built(head.building.pipeline)
    else:
        version = index.serving(head)
    entry, log = index.log.get(version.data), max(head.number, version.data)
    if entry is None:
        raise ConfigurationError(
            f"the states of version {version.number} of {index.object_type!r} were collected",
            option="location",
            advice="bring the node up to date with refresh, and verify again",
        )
    with index.log.reading(entry):
        problems = (*_damaged(index, version), *damaged_states(index, entry))
        if problems and index.log.get(version.data) is not None:
            return Verification(version.number, version.data, problems=problems, log=log)
        definition = index.definition(version.pipeline)
        rows = partial(_of_states, index, entry, definition)
        if view is None:
            verification = compared(entry, definition, rows, partial(_of_segments, index, version, definition))
        else:
            verification = compared(entry, definition, partial(_with_pending, rows, view), partial(_of_view, view))
    count = version.count if view is None else version.count + view.overlay.added
    if verification.is_equal and verification.objects != count:
        miscounted = f"the version has {verification.objects:,} objects, and says {count:,}"
        verification = replace(verification, problems=(miscounted,))
    if view is not None and not verification.is_equal:
        view.mark_damaged()
    edits = 0 if view is None else len(view.overlay.edits)
    return replace(verification, version=version.number, log=log, edits=edits)


def _damaged(index: IndexStore, version: IndexVersion) -> Iterator[str]:
    for segment in version.segments:
        data = index.store.get(segment.name)
        if data is None:
            yield f"{segment.name} does not exist"
        elif len(data) != segment.size or hashlib.sha256(data).hexdigest() != segment.digest:
            yield f"{segment.name} has not the bytes that its version names"


def damaged_states(index: IndexStore, entry: Entry) -> Iterator[str]:
    """Yield what is wrong with the files of the states of a fact of the log."""
    files = StoredSegments(index.store)
    for info in {each for state in entry.states.values() for runs in state.shards for run in runs for each in run}:
        try:
            files.check(info)
        except FatalError as error:
            yield error.message


def merged_rows(index: IndexStore, entry: Entry, definition: ObjectType) -> Iterator[Row]:
    """Yield all objects of a fact of the log: keys, properties and times of rows, as SQLite stores them."""
    merge, encoder = Merge(definition, entry, StateReader(index.store)), RowEncoder(definition, entry.shards)
    for shard in range(entry.shards):
        for rows, _ in (some for merged in merge.of_all(shard) for some in encoder.objects(merged, shard)):
            yield from (row for row in rows if row[2])


def compared(
    entry: Entry,
    definition: ObjectType,
    stored: Callable[[], Iterable[Columns]],
    indexed: Callable[[], Iterable[Columns]],
) -> Verification:
    """Compare objects of an index with those of a fact of the log.

    Args:
        entry: The fact.
        definition: The definition of the objects.
        stored: Returns the objects of the fact: keys and properties as SQLite stores them. Called twice if they differ.
        indexed: Returns the objects of the index.
    """
    width, key_hash, codec = len(definition.keys), definition.codec.hasher(), definition.codec

    def bucket(columns: Columns) -> int:
        return key_hash(columns[:width]) // entry.shards % BUCKETS

    (sums, objects), (others, _) = _sums(stored(), bucket), _sums(indexed(), bucket)
    wrong = {place for place in range(BUCKETS) if sums[place] != others[place]}
    if not wrong:
        return Verification(entry.number, entry.number, objects)
    expected = {columns[:width]: columns for columns in stored() if bucket(columns) in wrong}
    named: list[str] = []
    differing = 0
    for key, problem in _differences(expected, (columns for columns in indexed() if bucket(columns) in wrong), width):
        differing += 1
        if len(named) < NAMED:
            named.append(f"({codec.shown(key)}) {problem}")
    return Verification(entry.number, entry.number, objects, differing, tuple(named))


def _with_pending(merged: Callable[[], Iterable[Columns]], view: View) -> Iterator[Columns]:
    """Yield rows after the edits that are pending in a view, by the rules alone."""
    definition = view.definition
    rules, width, encode = EditRules(definition), len(definition.keys), definition.codec.encoder()
    pending = dict(view.overlay.keys)
    for columns in merged():
        edited = pending.pop(encode(columns[:width]), None)
        made = columns if edited is None else rules.apply(columns[:width], columns, edited.edits)
        if made is not None:
            yield made
    for edited in pending.values():
        made = edited.object(rules)
        if made is not None:
            yield made


def _sums(rows: Iterable[Columns], bucket: Callable[[Columns], int]) -> tuple[list[int], int]:
    """Return for each bucket a sum of the digests of its rows, and the number of all rows."""
    sums, count = [0] * BUCKETS, 0
    for columns in rows:
        sums[bucket(columns)] += int.from_bytes(hashlib.blake2b(repr(columns).encode(), digest_size=16).digest())
        count += 1
    return sums, count


def _differences(
    expected: Mapping[Columns, Columns], indexed: Iterable[Columns], width: int
) -> Iterator[tuple[Columns, str]]:
    left, seen = dict(expected), set()
    for columns in indexed:
        key = columns[:width]
        if key in seen:
            yield key, "is there twice"
        elif key not in left:
            yield key, "is in the index, and in no datasource"
        elif repr(left.pop(key)) != repr(columns):
            yield key, "differs from the rows of its datasources"
        seen.add(key)
    for key in left:
        yield key, "is missing in the index"


def _of_states(index: IndexStore, entry: Entry, definition: ObjectType) -> Iterator[Columns]:
    return (columns for _, columns, _ in merged_rows(index, entry, definition))


def _of_segments(index: IndexStore, version: IndexVersion, definition: ObjectType) -> Iterator[Columns]:
    rows = rows_of_runs(index, definition, version.runs[::-1], keep_deleted=False)
    return (columns for _, columns, exists in rows if exists)


def _of_view(view: View) -> Iterator[Columns]:
    """Yield the rows as the queries of a node find them."""
    encode, width = view.definition.codec.encoder(), len(view.definition.keys)
    for opened, newer in view.parts:
        for rows in opened.scan("SELECT * FROM o"):
            with opened.errors():
                gone = newer.overruled(key for _, key, *_ in rows)
            for _, key, *columns in rows:
                try:
                    matches = encode(tuple(columns[:width])) == key
                except UNREADABLE as error:
                    raise opened.failure(error) from error
                if not matches:
                    raise opened.failure(ValueError(f"a key is not that of its row: {columns!r:.200}"))
                if key not in gone:
                    yield tuple(columns)
