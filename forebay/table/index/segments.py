# SPDX-License-Identifier: Apache-2.0
"""Segments of an index: immutable SQLite files of objects, with indexes and a full-text index.

| table | holds |
|---|---|
| `o` | a row for each object: its key as bytes (`k`), keys and properties (`c0`, `c1` …), times of rows (`s0` …) |
| `d` | deleted keys: as bytes, their columns, and folded edits (`e`), which count if the object exists again |
| `f` | the words of the texts (FTS5, without the texts) |
| `m` | what the segment is, as JSON |
"""

from __future__ import annotations

import hashlib
import heapq
import json
import sqlite3
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from forebay.errors import ConfigurationError, FatalError, RetriableError
from forebay.state.state_store import StateStore, is_safe_name
from forebay.table.changelog.state.typed_values import Whole
from forebay.table.index.definition import ObjectType
from forebay.table.index.text import UNICODE, indexed_words

FORMAT: Final = 1
"""The format version of segments."""

ROWS: Final = 250_000
"""Rows of a file, about. A run with more rows has several files, which divide the keys by their hash."""

Row = tuple[bytes, tuple[Any, ...], bool]
"""The key as bytes; the columns of the object, and the times of its rows in `most_recent` datasources, or those of the
key and folded edits if it is deleted; whether the object exists."""


@dataclass(frozen=True)
class IndexSegment:
    """The description of a segment.

    Args:
        name: The name of the file in the store.
        size: Its bytes.
        digest: The SHA-256 of the bytes.
        rows: The number of objects.
        deleted: The number of deleted keys.
        shard: The shard of all keys; None: keys of all shards.
        part: The part of the keys that the file has: those whose hash, divided by the number of shards, modulo
            `parts` is this number.
        parts: The number of parts.
    """

    name: str
    size: Whole
    digest: str
    rows: Whole
    deleted: Whole
    shard: Whole | None
    part: Whole
    parts: Whole

    def may_hold(self, key_hash: int, shards: int) -> bool:
        """Return whether the segment is where a key with this hash would be."""
        return self.shard in (None, key_hash % shards) and key_hash // shards % self.parts == self.part

    @property
    def is_valid(self) -> bool:
        """Whether the values, which come from a file, fit each other. A key takes more than a byte."""
        return is_safe_name(self.name) and self.part < self.parts and self.rows + self.deleted <= self.size


class _File:
    """A segment that is being written."""

    def __init__(self, path: Path, definition: ObjectType) -> None:
        self.path = path
        self._definition = definition
        self._columns = list(definition.columns)
        self._width = len(definition.keys)
        self._texts = [self._columns.index(name) for name in definition.texts]
        self.rows = self.deleted = 0
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._insert = f"INSERT INTO o VALUES (?, ?{', ?' * (len(self._columns) + len(definition.stamps))})"
        texts = [f"t{place}" for place in range(len(self._texts))]
        self._insert_text = f"INSERT INTO f ({', '.join(['rowid', *texts])}) VALUES (?{', ?' * len(texts)})"
        try:
            for statement in (
                "PRAGMA journal_mode = OFF",
                "PRAGMA synchronous = OFF",
                "PRAGMA cache_size = -4096",  # rows are appended; and a large shard writes many files at once
                "BEGIN",
                *_tables(definition),
            ):
                self._connection.execute(statement)
        except sqlite3.OperationalError as error:
            if "fts5" not in str(error):
                raise
            raise ConfigurationError(
                f"the sqlite3 of this Python has no full-text index: {error}",
                option="text",
                advice="use a Python whose sqlite3 has FTS5, such as that of python.org; or leave out text=True",
            ) from error

    def add(self, rows: Sequence[Row]) -> None:
        alive = [(key, columns) for key, columns, exists in rows if exists]
        numbered = list(enumerate(alive, self.rows + 1))
        self._connection.executemany(self._insert, ((number, key, *columns) for number, (key, columns) in numbered))
        if self._texts:
            words = ((number, *_words(columns, self._texts)) for number, (_, columns) in numbered)
            self._connection.executemany(self._insert_text, words)
        gone = [(key, *columns) for key, columns, exists in rows if not exists]
        self._connection.executemany(f"INSERT INTO d VALUES (?{', ?' * (self._width + 1)})", gone)
        self.rows += len(alive)
        self.deleted += len(gone)

    def finish(self) -> sqlite3.Connection:
        connection = self._connection
        connection.execute("PRAGMA cache_size = -16384")  # to sort
        for statement in _indexes(self._definition):
            connection.execute(statement)
        facts = {"format": FORMAT, "definition": self._definition.fingerprint(), "unicode": UNICODE}
        connection.execute("INSERT INTO m VALUES (?)", (json.dumps(facts),))
        connection.execute("COMMIT")
        return connection

    def close(self) -> None:
        self._connection.close()


def _words(columns: Sequence[Any], texts: Sequence[int]) -> list[str | None]:
    return [None if columns[place] is None else indexed_words(columns[place]) for place in texts]


def _tables(definition: ObjectType) -> list[str]:
    """Return the statements that make the tables of a segment, as the segment itself has them."""
    columns = [f"c{place}" for place in range(len(definition.columns))]
    names = ", ".join([*columns, *(f"s{place}" for place in range(len(definition.stamps)))])
    keys = ", ".join(columns[: len(definition.keys)])
    texts = ", ".join(f"t{place}" for place in range(len(definition.texts)))
    return [
        f"CREATE TABLE o (id INTEGER PRIMARY KEY, k BLOB NOT NULL, {names})",
        f"CREATE TABLE d (k BLOB PRIMARY KEY, {keys}, e) WITHOUT ROWID",
        "CREATE TABLE m (facts TEXT NOT NULL)",
        *([f"CREATE VIRTUAL TABLE f USING fts5({texts}, content='', tokenize='ascii')"] if texts else []),
    ]


def _indexes(definition: ObjectType) -> list[str]:
    columns = list(definition.columns)
    places = [columns.index(name) for name in definition.filters]
    return ["CREATE UNIQUE INDEX ok ON o (k)", *(f"CREATE INDEX o{place} ON o (c{place}, k)" for place in places)]


@contextmanager
def temporary_files() -> Iterator[None]:
    """Let an error of the local disk, while temporary files are written, be one of forebay.

    Raises:
        RetriableError: They cannot be written.
    """
    try:
        yield
    except (sqlite3.OperationalError, OSError) as error:
        raise RetriableError(
            f"a temporary file below {tempfile.tempdir or 'the directory of this system'} cannot be written: {error}",
            advice="free its disk, or let the environment variable TMPDIR name another directory, and call it again",
        ) from error


class RunWriter:
    """Writes a run of segments, in a `with` block. Used on one thread.

    Args:
        store: The store.
        prefix: The beginning of the names of the files.
        definition: The definition of the object type.
        shards: The number of shards.
        shard: The shard of all keys; None: keys of all shards.
        rows: The number of rows, about.
    """

    def __init__(
        self, store: StateStore, prefix: str, definition: ObjectType, *, shards: int, shard: int | None, rows: int
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._definition = definition
        self._shards = shards
        self._shard = shard
        self._parts = max(1, -(-rows // ROWS))
        self._files: dict[int, _File] = {}
        with temporary_files():
            self._directory = tempfile.TemporaryDirectory(prefix="forebay-index-")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()
        with suppress(OSError):
            self._directory.cleanup()

    def add(self, rows: Sequence[Row], hashes: Sequence[int]) -> None:
        """Add rows, each key once in the run. `hashes` are the hashes of their keys (`KeyCodec.hash`)."""
        divided: dict[int, list[Row]] = {}
        if self._parts == 1 and rows:
            divided[0] = list(rows)
        else:
            for row, key_hash in zip(rows, hashes, strict=True):
                divided.setdefault(key_hash // self._shards % self._parts, []).append(row)
        with temporary_files():
            for part, some in divided.items():
                if part not in self._files:
                    self._files[part] = _File(Path(self._directory.name) / f"{part}.db", self._definition)
                self._files[part].add(some)

    def finish(self) -> tuple[IndexSegment, ...]:
        """Put the files into the store under names that no other attempt has, and return their descriptions."""
        return tuple(self._put(part, file) for part, file in sorted(self._files.items()))

    def _put(self, part: int, file: _File) -> IndexSegment:
        with temporary_files():
            file.finish().close()
            data = file.path.read_bytes()
            file.path.unlink()
        segment = IndexSegment(
            name=f"{self._prefix}{uuid.uuid4().hex}.db",
            size=len(data),
            digest=hashlib.sha256(data).hexdigest(),
            rows=file.rows,
            deleted=file.deleted,
            shard=self._shard,
            part=part,
            parts=self._parts,
        )
        self._store.put_if_absent(segment.name, data)
        return segment


def memory_segment(definition: ObjectType, rows: Sequence[Row]) -> tuple[IndexSegment, sqlite3.Connection]:
    """Return a segment in memory, and a connection to it. Any thread may use it, to read."""
    file = _File(Path(":memory:"), definition)
    file.add(rows)
    return IndexSegment(":memory:", 0, "", file.rows, file.deleted, None, 0, 1), file.finish()


def open_segment(path: Path, name: str, definition: ObjectType) -> sqlite3.Connection:
    """Open a segment to read it. Any thread may use the connection.

    Args:
        path: The file.
        name: Its name in the store.
        definition: The definition of its pipeline.

    Raises:
        sqlite3.DatabaseError: The file is no database.
        FatalError: It has other tables than the definition. A view in their place may take for ever.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise damaged_segment(name, f"{str(path)!r} is no regular file")
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True, isolation_level=None, check_same_thread=False
    )
    # A file that is mapped into memory ends the process (SIGBUS) if the disk fails or the file is cut.
    connection.execute("PRAGMA mmap_size = 0")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA trusted_schema = OFF")
    try:
        _check_content(connection, name, definition)
    except BaseException:  # of an interrupt too: nobody else has the connection
        connection.close()
        raise
    return connection


def _check_content(connection: sqlite3.Connection, name: str, definition: ObjectType) -> None:
    stored = connection.execute("SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall()
    # FTS5 keeps `f` in tables of its own, `f_data` and others.
    of_fts = {
        sql
        for kind, table, sql in stored
        if kind == "table" and table.startswith("f_") and "VIRTUAL" not in sql.upper()
    }
    own = {sql for _, _, sql in stored} - (of_fts if definition.texts else set())
    known = {*_tables(definition), *_indexes(definition)}
    for sql in (*sorted(own - known), *sorted(known - own)):
        raise damaged_segment(name, f"it {'lacks' if sql in known else 'has'} {sql!r:.200}")
    for table in ("o", "d"):  # bytes sort after everything else
        first = connection.execute(f"SELECT typeof(k) FROM {table} ORDER BY k LIMIT 1").fetchone()
        if first not in (None, ("blob",)):
            raise damaged_segment(name, f"a key is {first[0]}, and not bytes")


def damaged_segment(name: str, reason: str) -> FatalError:
    """Return the error for a segment with other content than this package writes."""
    return FatalError(
        f"the segment {name} is damaged: {reason}",
        option="location",
        advice="call Funnel.follow(full=True), which writes all segments again",
    )


def segment_rows(connection: sqlite3.Connection) -> Iterator[Row]:
    """Yield the rows of a segment in the order of their keys, deleted keys among them."""

    def rows(table: str, start: int, *, exist: bool) -> Iterator[Row]:
        with closing(connection.execute(f"SELECT * FROM {table} ORDER BY k")) as cursor:
            for row in cursor:
                yield row[start], row[start + 1 :], exist

    return heapq.merge(rows("o", 1, exist=True), rows("d", 0, exist=False), key=lambda row: row[0])


def newest_rows(segments: Iterable[Iterator[Row]], *, keep_deleted: bool) -> Iterator[Row]:
    """Yield the newest row of each key of several segments, in the order of the keys.

    Args:
        segments: The rows of the segments, newest first, each in the order of the keys.
        keep_deleted: Whether to yield deleted keys, because an older segment may still have them. Those with folded
            edits are always yielded.
    """
    last: bytes | None = None
    # Of rows with one key, `merge` yields that of the first segment first.
    for key, columns, exists in heapq.merge(*segments, key=lambda row: row[0]):
        if key != last and (exists or keep_deleted or columns[-1] is not None):
            yield key, columns, exists
        last = key
