# SPDX-License-Identifier: Apache-2.0
"""Builds the SQL statements of a target in PostgreSQL. Every name is quoted; values arrive by COPY."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql.types import StringType, StructField

from forebay.spark.changelog.targets.changes import DELETED, END_AT, SEQUENCE, START_AT, Changes
from forebay.spark.changelog.targets.postgres.copying import TASK
from forebay.spark.changelog.targets.postgres.types import postgres_type

_LONGEST = 63  # maximum bytes of a name in PostgreSQL


def quoted_name(*names: str) -> str:
    """Return names as a quoted SQL identifier, with a dot between them."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def derived_name(table: str, suffix: str) -> str:
    """Return the name of a table that belongs to `table`. A long name is cut, and a digest keeps it unique."""
    name = f"{table}__{suffix}"
    if len(name.encode()) <= _LONGEST:
        return name
    digest = hashlib.blake2s(table.encode(), digest_size=6).hexdigest()
    room = _LONGEST - len(f"__{digest}__{suffix}")
    return f"{table.encode()[:room].decode(errors='ignore')}__{digest}__{suffix}"


@dataclass(frozen=True)
class Statements:
    """The statements for the changes of a micro-batch.

    Args:
        schema: The schema of the target.
        table: The name of the target.
        changes: The changes.
        staging: The quoted name of the staging table.
        tasks: The ids of the task attempts whose rows are merged.
    """

    schema: str
    table: str
    changes: Changes
    staging: str
    tasks: Sequence[int] = ()

    @property
    def target(self) -> str:
        """The quoted name of the target."""
        return quoted_name(self.schema, self.table)

    @property
    def tombstones(self) -> str:
        """The quoted name of the table of deleted keys, which exists only with a sequence."""
        return quoted_name(self.schema, derived_name(self.table, "tombstones"))

    def definitions(self) -> dict[str, str]:
        """Return the SQL type of each column of the target, also of `__SEQUENCE`, `__START_AT` and `__END_AT`."""
        found = {field.name: postgres_type(field) for field in self.changes.fields}
        if self.changes.history:
            return {**found, START_AT: self._sequence_type, END_AT: self._sequence_type}
        return {**found, SEQUENCE: self._sequence_type} if self.changes.sequence else found

    @property
    def identity(self) -> list[str]:
        """The columns that identify a row of the target."""
        return [*self.changes.keys, *([START_AT] if self.changes.history else [])]

    def create_target(self) -> Iterator[str]:
        """Yield the statements that create the target and its table of deleted keys, if they do not exist."""
        columns = [f"{quoted_name(name)} {kind}" for name, kind in self.definitions().items()]
        yield f"CREATE TABLE IF NOT EXISTS {self.target} ({', '.join(columns)}, PRIMARY KEY ({_list(self.identity)}))"
        if self.changes.sequence is None:
            return
        kinds = {field.name: postgres_type(field) for field in self.changes.fields}
        own = [f"{quoted_name(name)} {kinds[name]}" for name in self.changes.keys]
        keys = [*self.changes.keys, *([SEQUENCE] if self.changes.history else [])]
        yield (
            f"CREATE TABLE IF NOT EXISTS {self.tombstones} ({', '.join(own)}, "
            f"{quoted_name(SEQUENCE)} {self._sequence_type}, PRIMARY KEY ({_list(keys)}))"
        )

    def create_staging(self) -> str:
        """Return the statement for the unlogged staging table. A server crash empties it; the retry stages again."""
        columns = [f"{quoted_name(field.name)} {postgres_type(field)}" for field in self.changes.fields]
        if self.changes.sequence:
            columns.append(f"{quoted_name(SEQUENCE)} {self._sequence_type}")
        columns += [f"{quoted_name(DELETED)} boolean", f"{quoted_name(TASK)} bigint"]
        return f"CREATE UNLOGGED TABLE {self.staging} ({', '.join(columns)})"

    def copy(self) -> str:
        """Return the COPY statement that each task runs."""
        return f"COPY {self.staging} ({_list([*self.changes.df.columns, TASK])}) FROM STDIN (FORMAT csv)"

    def merge(self, *, deletes: bool) -> Iterator[str]:
        """Yield the statements that apply the staged rows of `tasks`. `deletes`: whether some of them are deletes."""
        if self.changes.history:
            yield from self._merge_versions()
        elif self.changes.sequence:
            yield from self._merge_sequenced(deletes=deletes)
        else:
            if deletes:
                yield f"DELETE FROM {self.target} t USING {self._staged} s WHERE {self._same('s', 't')} AND {_DELETES}"
            yield f"{self._insert(self.changes.names)} {self._on_conflict(self.changes.names)}"

    def _merge_sequenced(self, *, deletes: bool) -> Iterator[str]:
        """Yield the statements for ordered changes. If an upsert and a delete have equal sequences, the upsert wins."""
        sequence = quoted_name(SEQUENCE)
        names = [*self.changes.names, SEQUENCE]
        if deletes:
            yield (
                f"DELETE FROM {self.target} t USING {self._staged} s WHERE {self._same('s', 't')} AND {_DELETES} "
                f"AND (t.{sequence} IS NULL OR t.{sequence} < s.{sequence})"
            )
            keys = self.changes.keys
            yield (
                f"INSERT INTO {self.tombstones} AS t ({_list([*keys, SEQUENCE])}) "
                f"SELECT {_list(keys, 's')}, s.{sequence} FROM {self._staged} s WHERE {_DELETES} "
                f"ON CONFLICT ({_list(keys)}) DO UPDATE SET {sequence} = greatest(t.{sequence}, excluded.{sequence})"
            )
        newer = (
            f"AND NOT EXISTS (SELECT FROM {self.tombstones} d WHERE {self._same('s', 'd')} "
            f"AND d.{sequence} > s.{sequence})"
        )
        older = f"WHERE t.{sequence} IS NULL OR t.{sequence} <= excluded.{sequence}"
        yield f"{self._insert(names)} {newer} {self._on_conflict(names)} {older}"

    def _merge_versions(self) -> Iterator[str]:
        """Yield the statements for SCD type 2: each version of a row ends where the next change of its key begins."""
        sequence, start, end = quoted_name(SEQUENCE), quoted_name(START_AT), quoted_name(END_AT)
        keys, names = _list(self.changes.keys), _list(self.changes.names)
        yield (
            f"INSERT INTO {self.tombstones} ({keys}, {sequence}) SELECT {keys}, {sequence} FROM {self._staged} s "
            f"WHERE {_DELETES} ON CONFLICT DO NOTHING"
        )
        touched = f"(SELECT DISTINCT {keys} FROM {self._staged} s)"
        nulls = ", ".join(
            name if raw in self.changes.keys else "NULL"
            for raw, name in ((name, quoted_name(name)) for name in self.changes.names)
        )
        events = (
            f"SELECT {self._compared(self.changes.names, 't')}, {start} AS at, false AS gone, 1 AS later "
            f"FROM {self.target} t "
            f"WHERE EXISTS (SELECT FROM {touched} k WHERE {self._same('k', 't')}) "
            f"UNION ALL SELECT {names}, {sequence}, false, 2 FROM {self._staged} s WHERE NOT {_DELETES} "
            f"UNION ALL SELECT {nulls}, {sequence}, true, 0 FROM {self.tombstones} d "
            f"WHERE EXISTS (SELECT FROM {touched} k WHERE {self._same('k', 'd')})"
        )
        last = f"SELECT DISTINCT ON ({keys}, at) * FROM ({events}) e ORDER BY {keys}, at, later DESC"
        versions = f"SELECT {names}, at, lead(at) OVER (PARTITION BY {keys} ORDER BY at) AS until, gone FROM ({last}) l"
        values = [name for name in self.changes.names if name not in self.changes.keys]
        assigned = ", ".join(f"{quoted_name(name)} = excluded.{quoted_name(name)}" for name in [*values, END_AT])
        old, new = (self._compared([*values, END_AT], side) for side in ("t", "excluded"))
        yield (
            f"INSERT INTO {self.target} AS t ({names}, {start}, {end}) "
            f"SELECT {names}, at, until FROM ({versions}) v WHERE NOT gone "
            f"ON CONFLICT ({_list(self.identity)}) DO UPDATE SET {assigned} "
            f"WHERE ({old}) IS DISTINCT FROM ({new})"
        )

    def _insert(self, names: Sequence[str]) -> str:
        return (
            f"INSERT INTO {self.target} AS t ({_list(names)}) SELECT {_list(names, 's')} FROM {self._staged} s "
            f"WHERE NOT {_DELETES}"
        )

    def _on_conflict(self, names: Sequence[str]) -> str:
        values = [name for name in names if name not in self.changes.keys]
        assigned = ", ".join(f"{quoted_name(name)} = excluded.{quoted_name(name)}" for name in values)
        action = f"DO UPDATE SET {assigned}" if assigned else "DO NOTHING"
        return f"ON CONFLICT ({_list(self.identity)}) {action}"

    def _same(self, one: str, other: str) -> str:
        return " AND ".join(f"{one}.{quoted_name(name)} = {other}.{quoted_name(name)}" for name in self.changes.keys)

    def _compared(self, names: Sequence[str], of: str) -> str:
        """Return columns as comparable SQL: nested ones are cast to jsonb, because `json` has no equality."""
        nested = {field.name for field in self.changes.fields if postgres_type(field) == "jsonb"}
        return ", ".join(f"{of}.{quoted_name(name)}{'::jsonb' if name in nested else ''}" for name in names)

    @property
    def _staged(self) -> str:
        tasks = ",".join(str(task) for task in self.tasks)
        return f"(SELECT * FROM {self.staging} WHERE {quoted_name(TASK)} = ANY('{{{tasks}}}'))"

    @property
    def _sequence_type(self) -> str:
        assert self.changes.sequence is not None  # noqa: S101 - only asked for with a sequence
        kind = postgres_type(StructField(SEQUENCE, self.changes.sequence))
        # Spark compares texts by their bytes; the database may compare them by the rules of a language.
        return f'{kind} COLLATE "C"' if isinstance(self.changes.sequence, StringType) else kind


def staging_name(table: str, query_id: str) -> tuple[str, str]:
    """Return a new name for a staging table, and the prefix that the names of all staging tables of the query have."""
    query = hashlib.blake2s(query_id.encode(), digest_size=5).hexdigest()
    unique = uuid.uuid4().hex[:8]
    name = derived_name(table, f"staging_{query}_{unique}")
    return name, name.removesuffix(unique)


def _list(names: Sequence[str], of: str = "") -> str:
    return ", ".join((f"{of}." if of else "") + quoted_name(name) for name in names)


_DELETES = f"s.{quoted_name(DELETED)}"
