# SPDX-License-Identifier: Apache-2.0
"""Object types without Spark: rows are Python dictionaries, and this process does what tasks do."""

from __future__ import annotations

import hashlib
import itertools
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from opensearch_server import OpenSearchServer

from forebay.index import Datasource, ObjectType, Property, SearchNode
from forebay.table.changelog.state.segments import KEY_HASH, KIND
from forebay.table.index.changelog import DELETED, DIGESTS, rows_digest, run_shard
from forebay.table.index.columns import arrow_type
from forebay.table.index.flush import flush
from forebay.table.index.follower import Follower, FullRule
from forebay.table.index.keys import KeyCodec
from forebay.table.index.pipelines import IndexStore, fed_datasource
from forebay.table.index.plan import make_plan
from forebay.table.index.replacement import Replacement, begin_replacement, run_replacement
from forebay.table.index.states import KEY, LANE, SEQUENCE, VALUE, StateReader
from forebay.table.index.transactions import (
    Committed,
    Incoming,
    Transaction,
    check_owner,
    commit,
    known_digest,
    refuse_other_rows,
    shard_tasks,
)
from forebay.table.index.types import parse_type

OBJECT = ObjectType(
    "O",
    key={"id": "bigint"},
    datasources=[
        Datasource("a", {"name": Property("string", filter=True), "note": Property("string", text=True)}),
        Datasource("b", {"city": Property("string", filter=True)}),
    ],
)


def hashed(*parts: object) -> int:
    """A 64-bit hash of values, signed as Arrow's."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), signed=True)


class Objects:
    """An object type below a location. `commit` does what `Funnel.commit` does, for rows of Python."""

    def __init__(self, location: Path | str, cache: Path, definition: ObjectType, **options: Any) -> None:
        self.location, self.definition = str(location), definition
        self.index = IndexStore(self.location, definition.name, options.pop("storage", None))
        self.shards = options.pop("shards", 2)
        self.rule = options.pop("rule", FullRule())
        self.key_hash: Callable[[Sequence[Any]], int] = options.pop("key_hash", lambda key: hashed("key", *key))
        self.types: dict[str, dict[str, str]] = options.pop("types", {})
        self.small = options.pop("small", 50_000)
        self.frames: set[str] | None = None  # the columns of DataFrames; None: those of their rows
        assert not options
        self._cache, self._numbers = cache, itertools.count()
        self.nodes: list[SearchNode] = []

    def begin(self):
        return self.index.begin(self.definition, self.shards, lambda: self.definition.keys)

    def commit(
        self,
        source: str,
        rows: Sequence[Mapping[str, Any]],
        kind: str = "update",
        transaction: str | None = None,
        *,
        follow: bool = True,
        base: Any = None,
        **options: Any,
    ) -> Committed:
        """Commit rows: `deleted` marks a delete, `sequence` orders the changes of a key."""
        head, definition = self.begin()
        if base is not None:
            head, definition = base, self.index.definition(base.serving)
        wanted = Transaction(source, transaction or uuid.uuid4().hex, kind, **options)
        check_owner(head.states, wanted)
        names = {name for row in rows for name in row} if self.frames is None else self.frames
        fed = fed_datasource(head, definition, self.definition, source, names)
        table, incoming, shards = self._prepared(fed, rows, head.shards, kind)
        digests = [int(np.asarray(table.column(name)).view(np.uint64).sum(dtype=np.uint64)) for name in DIGESTS]
        known = known_digest(head, wanted)
        if known is not None:
            refuse_other_rows(wanted, known, rows_digest(len(rows), *digests), incoming.columns_digest)
            committed = Committed(wanted.id, applied=False, number=head.number)
        else:
            tasks = shard_tasks(self.index, head, wanted, incoming)
            with self.index.log.reading(head):
                results = [
                    run_shard(task, table.filter(pa.array(shards == task.shard)).to_batches(max_chunksize=3))
                    for task in tasks
                ]
            committed = commit(self.index, head, wanted, tasks, results)
        if follow:
            self.follow()
        return committed

    def follow(self, **options: Any):
        """Bring the index up to date."""
        return self.follower(self.begin()[0].serving).follow(**options)

    def follower(self, pipeline: str) -> Follower:
        """The follower of a pipeline."""
        return Follower(self.index, pipeline, self.rule, small=self.small)

    def plan(self, **options: Any):
        """What the definition needs."""
        return make_plan(self.index, self.definition, self.rule, **options)

    def replace(self, *, swap: bool = True, **options: Any) -> Replacement:
        """Replace the definition that serves, as `Funnel.replace` does."""
        plan, serving = self.plan(**options), self.index.head().serving
        assert plan.kind in ("REPLACEMENT", "INCREMENTAL"), plan
        if plan.kind == "INCREMENTAL":
            begin_replacement(self.index, None, serving)
            return Replacement(serving, serves=True, version=None)
        begun = begin_replacement(self.index, self.definition, serving, swap=swap, **options)
        return run_replacement(self.index, begun, self.follower)

    def defined(self, definition: ObjectType, **options: Any) -> Objects:
        """The same location with another definition."""
        storage = self.index.storage or None
        options = {"types": self.types, "key_hash": self.key_hash, "shards": self.shards, "rule": self.rule} | options
        made = Objects(self.location, self._cache / definition.fingerprint(), definition, storage=storage, **options)
        made.nodes = self.nodes
        return made

    def flush(self, *, follow: bool = True) -> Committed:
        """Fold the pending edits."""
        done = flush(self.index, lambda definition, keys: [self.key_hash(key) for key in keys])
        if follow:
            self.follow()
        return done

    def node(self, **options: Any) -> SearchNode:
        """A new node."""
        options.setdefault("cache", self._cache / f"node{next(self._numbers)}")
        self.nodes.append(SearchNode(self.location, self.definition.name, **options))
        return self.nodes[-1]

    @staticmethod
    def rows(node: SearchNode, *names: str):
        """The objects of a node as tuples, in the order of their keys."""
        page, found = node.objects.limit(7).fetch(), []
        while page.rows:
            found += [tuple(row[name] for name in names) if names else dict(row) for row in page.rows]
            page = page.next_page()
        return found

    def changes(self, number: int):
        """The changes of a fact of the log, as pairs of key and kind."""
        entry = self.index.log.get(number)
        assert entry is not None
        files = StateReader(self.index.store).files
        batches = [files.open(info).batch for run in entry.changes for info in run]
        return sorted((row[f"{KEY}id"], row[KIND]) for batch in batches for row in batch.to_pylist() if row[KIND] >= 0)

    def _prepared(self, source: Datasource, rows: Sequence[Mapping[str, Any]], shards: int, kind: str):
        kinds = {name: parse_type(text) for name, text in self.definition.keys.items()}
        codec = KeyCodec(kinds)
        types: dict[str, Any] = dict.fromkeys(source.columns, pa.string())
        types |= {each.column or name: arrow_type(each.kind) for name, each in source.properties.items()}
        types |= {name: arrow_type(parse_type(text)) for name, text in self.types.get(source.name, {}).items()}
        payload = pa.schema(
            [
                *(pa.field(f"{KEY}{name}", arrow_type(each)) for name, each in kinds.items()),
                *(pa.field(f"{VALUE}{name}", types[name]) for name in source.columns if kind != "delete"),
            ]
        )
        keys = [[row[name] for name in kinds] for row in rows]
        encoded = [[each.encode(value) for each, value in zip(kinds.values(), key, strict=True)] for key in keys]
        own = ("deleted", "sequence", "log")
        columns = {
            KEY_HASH: pa.array([self.key_hash(key) for key in keys], pa.int64()),
            DELETED: pa.array([bool(row.get("deleted")) or kind == "delete" for row in rows], pa.bool_()),
            **{
                digest: pa.array(
                    [
                        hashed(digest, *map(row.get, own), *(row.get(name[2:]) for name in payload.names))
                        for row in rows
                    ],
                    pa.int64(),
                )
                for digest in DIGESTS
            },
        }
        sequence = pa.int64() if any("sequence" in row for row in rows) else None
        if sequence is not None:
            columns[SEQUENCE] = pa.array([row["sequence"] for row in rows], sequence)
            columns[LANE] = pa.array([row.get("log") for row in rows], pa.string())
        for field in payload:
            columns[field.name] = pa.array([row.get(field.name[2:]) for row in rows], field.type)
        hashes = [codec.hash(key) if None not in key else 0 for key in encoded]
        divided = np.array([each % shards for each in hashes], np.int64)
        return pa.table(columns), Incoming(payload, tuple(f"{KEY}{name}" for name in kinds), sequence), divided


@pytest.fixture
def objects_at(tmp_path):
    """Make object types below a location of their own."""
    made: list[Objects] = []

    def make(definition: ObjectType = OBJECT, location: Any = None, **options: Any) -> Objects:
        place = tmp_path / f"o{len(made)}"
        made.append(Objects(location or place / "store", place, definition, **options))
        return made[-1]

    yield make
    for each in made:
        for node in each.nodes:
            node.close()


@pytest.fixture
def objects(objects_at) -> Objects:
    """Two datasources `a` and `b`, two shards."""
    return objects_at()


@pytest.fixture
def interrupted(monkeypatch):
    """Lets something happen once before a call of a store, by the number of the call, or its method and file."""

    def interrupt(index, happens, number=0, method="", file=""):
        calls, store, armed = itertools.count(1), index.store, [True]

        def hooked(name):
            plain = getattr(store, name)

            def call(*arguments):
                count = next(calls)
                if armed and (count == number or (name == method and str(arguments[0]).endswith(file))):
                    armed.clear()
                    happens()
                return plain(*arguments)

            return call

        for name in ("get", "put_if_absent", "names", "delete"):
            monkeypatch.setattr(store, name, hooked(name))
        return armed

    return interrupt


@pytest.fixture(scope="session")
def opensearch(tmp_path_factory):
    """A real OpenSearch."""
    with OpenSearchServer(tmp_path_factory.mktemp("opensearch")) as server:
        yield server


@pytest.fixture(scope="session")
def new_objects():
    """Make object types below any location, for property tests, which need several."""
    return lambda store, cache, definition=OBJECT, **options: Objects(store, cache, definition, **options)
