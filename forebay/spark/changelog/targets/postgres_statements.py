# SPDX-License-Identifier: Apache-2.0
"""Builds the SQL statements of a target in PostgreSQL. Every name is quoted; values arrive by COPY."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as every user of PySpark writes it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from forebay.errors import ConfigurationError
from forebay.spark.changelog.columns import EXACT_JSON
from forebay.spark.changelog.targets.changes import DELETED, END_AT, SEQUENCE, START_AT, Changes

# -- Maps Spark types to PostgreSQL types, and converts values to the form that COPY reads.


_TYPES: Final[dict[type[DataType], str]] = {
    BooleanType: "boolean",
    ByteType: "smallint",
    ShortType: "smallint",
    IntegerType: "integer",
    LongType: "bigint",
    FloatType: "real",
    DoubleType: "double precision",
    StringType: "text",
    BinaryType: "bytea",
    DateType: "date",
    TimestampType: "timestamp with time zone",
    TimestampNTZType: "timestamp without time zone",
    ArrayType: "jsonb",
    MapType: "jsonb",
    StructType: "jsonb",
    VariantType: "jsonb",
}
_WIDER: Final = {
    "smallint": {"integer", "bigint", "numeric"},
    "integer": {"bigint", "numeric"},
    "bigint": {"numeric"},
    "real": {"double precision"},
    "text": {"character varying"},
    "jsonb": {"json"},
}
_NESTED: Final = (ArrayType, MapType, StructType, VariantType)
_READ_FROM_TEXT: Final = {"uuid", "json", "jsonb", "inet", "cidr", "macaddr", "macaddr8", "interval", "citext"}
"""Types whose values PostgreSQL reads from a string. Enums and arrays are others."""
_ELEMENTS: Final = (
    *(BooleanType, ByteType, ShortType, IntegerType, LongType),
    FloatType,
    DoubleType,
    DecimalType,
    StringType,
)
"""Types of elements that can be stored in an array of PostgreSQL; arrays of others become jsonb."""


class TableColumn(NamedTuple):
    """The type of a column of the target.

    Args:
        kind: The type as `format_type` prints it.
        is_enum: Whether it is an enum.
        element: The type of the elements of an array; None for other types.
        collation: Its quoted name, if it is not the default of the database.
    """

    kind: str
    is_enum: bool = False
    element: TableColumn | None = None
    collation: str | None = None

    @property
    def definition(self) -> str:
        """The type as a definition of a column has it."""
        return f"{self.kind} COLLATE {self.collation}" if self.collation else self.kind


def postgres_type(field: StructField) -> str:
    """Return the PostgreSQL type that holds every value of a Spark field.

    Raises:
        ConfigurationError: PostgreSQL has no such type.
    """
    kind = field.dataType
    if isinstance(kind, DecimalType):
        return f"numeric({kind.precision},{kind.scale})"
    for spark, name in _TYPES.items():
        if isinstance(kind, spark):
            return name
    raise ConfigurationError(
        f"the column {field.name!r} is {kind.simpleString()}, which PostgreSQL has no type for",
        advice="cast it to a string or a number first, or name it in except_column_list",
    )


def fits(field: StructField, column: TableColumn) -> bool:
    """Return whether a column of PostgreSQL takes a field: it holds every value, or reads the strings that it accepts.

    PostgreSQL checks strings for enums, arrays and types such as `uuid` when they are copied.
    """
    needed, kind = postgres_type(field), field.dataType
    if needed == column.kind:
        return True
    if isinstance(kind, StringType) and (column.is_enum or column.element or column.kind in _READ_FROM_TEXT):
        return True
    if isinstance(kind, ArrayType) and column.element:
        element = StructField(field.name, kind.elementType)
        return isinstance(kind.elementType, _ELEMENTS) and fits(element, column.element)
    base, _, modifier = column.kind.partition("(")
    if isinstance(kind, DecimalType):
        if base != "numeric" or not modifier:
            return column.kind == "numeric"
        precision, scale = (int(part) for part in modifier.rstrip(")").split(","))
        return scale >= kind.scale and precision - scale >= kind.precision - kind.scale
    return base in _WIDER.get(needed, set()) and (base != "numeric" or not modifier)


def copied(column: Column, kind: DataType, *, to_array: bool = False) -> Column:
    """Return a column in the form that COPY reads: types that Arrow's CSV writer cannot write become text.

    `to_array`: the column of the table is an array of PostgreSQL, not jsonb.
    """
    if isinstance(kind, BinaryType):
        return F.concat(F.lit("\\x"), F.hex(column))
    if isinstance(kind, DecimalType):
        return column.cast("string")
    if isinstance(kind, VariantType):
        return F.to_json(column)
    if isinstance(kind, ArrayType) and to_array:
        return F.concat(F.lit("{"), F.array_join(F.transform(column, _element), ","), F.lit("}"))
    if isinstance(kind, _NESTED):
        return F.to_json(column, EXACT_JSON)
    return column


def _element(value: Column) -> Column:
    text = F.regexp_replace(value.cast("string"), r'(["\\])', r"\\$1")
    return F.when(value.isNull(), F.lit("NULL")).otherwise(F.concat(F.lit('"'), text, F.lit('"')))


# -- Builds the SQL statements of a target in PostgreSQL. Every name is quoted; values arrive by COPY.


LONGEST: Final = 63
"""Maximum bytes of a name in PostgreSQL."""
_SYSTEM_COLUMNS: Final = {"cmax", "cmin", "ctid", "tableoid", "xmax", "xmin"}

TOMBSTONES: Final = "tombstones"
"""The suffix of the table of deleted keys."""

TASK: Final = "__TASK"
"""The column with the id of the task attempt that copied a row. The merge skips attempts whose result Spark dropped."""

PRECEDENCE: Final = "__PRECEDENCE"
"""Which of several changes of a key at one sequence counts: the largest. A reserved name, as those of `changes`."""


def quoted_name(*names: str) -> str:
    """Return names as a quoted SQL identifier, with a dot between them."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def derived_name(table: str, suffix: str) -> str:
    """Return the name of a table that belongs to `table`. A long name is cut, and a digest keeps it unique."""
    name = f"{table}__{suffix}"
    if len(name.encode()) <= LONGEST:
        return name
    digest = hashlib.blake2s(table.encode(), digest_size=6).hexdigest()
    room = LONGEST - len(f"__{digest}__{suffix}")
    return f"{table.encode()[:room].decode(errors='ignore')}__{digest}__{suffix}"


def is_name(text: str) -> bool:
    """Return whether PostgreSQL keeps a text as a name: it cuts longer ones, so that two names become one."""
    try:
        return 0 < len(text.encode()) <= LONGEST and "\0" not in text
    except UnicodeEncodeError:
        return False


def check_names(names: Iterable[str]) -> None:
    """Check that PostgreSQL can have columns with these names.

    Raises:
        ConfigurationError: It cannot.
    """
    for name in names:
        if not is_name(name) or name in _SYSTEM_COLUMNS:
            raise ConfigurationError(
                f"PostgreSQL cannot have a column {name!r}: a name has 1 to {LONGEST} bytes, no NUL, and is not "
                "that of a system column",
                advice="rename the column first, or name it in except_column_list",
            )


@dataclass(frozen=True)
class TableInfo:
    """What the merge must know of the target.

    Attributes:
        columns: The type of each column.
        takes_on_conflict: Whether `ON CONFLICT` accepts the index of the key: it refuses deferrable ones.
        row_checks: The names of other unique and exclusion constraints that are checked at each row of a statement.
        inexact_keys: The key columns in which different values of Spark can be equal, such as two spellings of a UUID.
    """

    columns: Mapping[str, TableColumn] = field(default_factory=dict)
    takes_on_conflict: bool = True
    row_checks: frozenset[str] = frozenset()
    inexact_keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Statements:
    """The statements for the changes of a micro-batch.

    Args:
        schema: The schema of the target.
        table: The name of the target.
        changes: The changes.
        staging: The quoted name of the staging table.
        tasks: The ids of the task attempts whose rows are merged.
        rows: The physical row ids (`ctid`) of the staged rows that are merged; all of them if empty.
        info: What the inspection of the target has found.
    """

    schema: str
    table: str
    changes: Changes
    staging: str
    tasks: Sequence[int] = ()
    rows: Sequence[str] = ()
    info: TableInfo = field(default_factory=TableInfo)

    @property
    def target(self) -> str:
        """The quoted name of the target."""
        return quoted_name(self.schema, self.table)

    @property
    def tombstones(self) -> str:
        """The quoted name of the table of deleted keys, which exists only with a sequence."""
        return quoted_name(self.schema, derived_name(self.table, TOMBSTONES))

    def definitions(self) -> dict[str, str]:
        """Return the SQL type of each column of the target, also of `__SEQUENCE`, `__START_AT` and `__END_AT`."""
        definitions = {field.name: postgres_type(field) for field in self.changes.fields}
        if self.changes.history:
            return {**definitions, START_AT: self._sequence_type, END_AT: self._sequence_type}
        return {**definitions, SEQUENCE: self._sequence_type} if self.changes.sequence else definitions

    @property
    def identity(self) -> list[str]:
        """The columns that identify a row of the target."""
        return [*self.changes.keys, *([START_AT] if self.changes.history else [])]

    def create_target(self) -> str:
        """Return the statement that creates the target if it does not exist."""
        columns = [f"{quoted_name(name)} {kind}" for name, kind in self.definitions().items()]
        return f"CREATE TABLE IF NOT EXISTS {self.target} ({', '.join(columns)}, PRIMARY KEY ({_list(self.identity)}))"

    def create_tombstones(self) -> str:
        """Return the statement that creates the table of deleted keys if it does not exist."""
        own = [f"{quoted_name(name)} {self._types[name]}" for name in self.changes.keys]
        keys = [*self.changes.keys, *([SEQUENCE] if self.changes.history else [])]
        return (
            f"CREATE TABLE IF NOT EXISTS {self.tombstones} ({', '.join(own)}, "
            f"{quoted_name(SEQUENCE)} {self._sequence_type}, PRIMARY KEY ({_list(keys)}))"
        )

    def create_staging(self) -> str:
        """Return the statement for the unlogged staging table. A server crash empties it; the retry stages again.

        Its columns have the types of the target, so that COPY finds every value that does not fit.
        """
        columns = [f"{quoted_name(column.name)} {self._types[column.name]}" for column in self.changes.fields]
        if self.changes.sequence:
            columns.append(f"{quoted_name(SEQUENCE)} {self._sequence_type}")
        columns += [f"{quoted_name(DELETED)} boolean", f"{quoted_name(TASK)} bigint"]
        return f"CREATE UNLOGGED TABLE {self.staging} ({', '.join(columns)})"

    def respelled(self) -> str:
        """Return the query for a key that two staged rows have, in different spellings."""
        keys = [*self.changes.keys, *([SEQUENCE] if self.changes.history else [])]
        names = _list(self.changes.keys)
        return f"SELECT {names} FROM {self._staged} s GROUP BY {_list(keys)} HAVING count(*) > 1 LIMIT 1"

    def staged_upserts(self) -> str:
        """Return the query for the physical row ids of the staged upserts."""
        return f"SELECT ctid::text FROM {self._staged} s WHERE NOT {_DELETES}"

    def deletes(self) -> Iterator[str]:
        """Yield the statements that apply the staged deletes."""
        sequence, keys = quoted_name(SEQUENCE), self.changes.keys
        if self.changes.history:
            yield (
                f"INSERT INTO {self.tombstones} ({_list([*keys, SEQUENCE])}) "
                f"SELECT {_list([*keys, SEQUENCE])} FROM {self._staged} s WHERE {_DELETES} ON CONFLICT DO NOTHING"
            )
            return
        matching = f"DELETE FROM {self.target} t USING {self._staged} s WHERE {_same(keys, 's', 't')} AND {_DELETES}"
        if self.changes.sequence is None:
            yield matching
            return
        yield f"{matching} AND (t.{sequence} IS NULL OR t.{sequence} < s.{sequence})"
        yield (
            f"INSERT INTO {self.tombstones} AS t ({_list([*keys, SEQUENCE])}) "
            f"SELECT {_list([*keys, SEQUENCE], 's')} FROM {self._staged} s WHERE {_DELETES} "
            f"ON CONFLICT ({_list(keys)}) DO UPDATE SET {sequence} = greatest(t.{sequence}, excluded.{sequence})"
        )

    def upserts(self) -> Iterator[str]:
        """Yield the statements that apply the staged upserts; for SCD type 2, also the ends of versions."""
        names = self._written
        assigned = [name for name in names if name not in self.identity]
        if self.info.takes_on_conflict:
            values = ", ".join(f"{quoted_name(name)} = excluded.{quoted_name(name)}" for name in assigned)
            action = f"DO UPDATE SET {values} WHERE {self._changes_row('excluded')}" if values else "DO NOTHING"
            # A partial unique index of current versions has room for new ones after the old ones have ended.
            order = f" ORDER BY s.{quoted_name(END_AT)} IS NULL" if self.changes.history else ""
            yield (
                f"INSERT INTO {self.target} AS t ({_list(names)}) SELECT {_list(names, 's')} FROM {self._source} s"
                f"{order} ON CONFLICT ({_list(self.identity)}) {action}"
            )
            return
        same = _same(self.identity, "s", "t")
        if assigned:
            values = ", ".join(f"{quoted_name(name)} = s.{quoted_name(name)}" for name in assigned)
            yield (
                f"UPDATE {self.target} t SET {values} FROM {self._source} s WHERE {same} AND {self._changes_row('s')}"
            )
        yield (
            f"INSERT INTO {self.target} ({_list(names)}) SELECT {_list(names, 's')} FROM {self._source} s "
            f"WHERE NOT EXISTS (SELECT FROM {self.target} t WHERE {same})"
        )

    def removal(self) -> str:
        """Return the statement that removes the rows that `upserts` would update, so that it inserts them again."""
        same = _same(self.identity, "s", "t")
        return f"DELETE FROM {self.target} t USING {self._source} s WHERE {same} AND {self._changes_row('s')}"

    @property
    def _written(self) -> list[str]:
        """The columns of the target that are written."""
        names = self.changes.names
        if self.changes.history:
            return [*names, START_AT, END_AT]
        return [*names, SEQUENCE] if self.changes.sequence else names

    def _changes_row(self, of: str) -> str:
        """Return the condition that the row `of` replaces the row `t` of the target."""
        if self.changes.history:
            names = [name for name in self._written if name not in self.identity]
            return f"({self._compared(names, 't')}) IS DISTINCT FROM ({self._compared(names, of)})"
        sequence = quoted_name(SEQUENCE)
        return f"(t.{sequence} IS NULL OR t.{sequence} <= {of}.{sequence})" if self.changes.sequence else "true"

    @property
    def _source(self) -> str:
        """The subquery of the rows to upsert.

        If an upsert and a delete have equal sequences, the upsert wins. In a history, each version of a row ends where
        the next change of its key begins.
        """
        staged = f"SELECT * FROM {self._staged} s WHERE NOT {_DELETES}"
        sequence, start, end = quoted_name(SEQUENCE), quoted_name(START_AT), quoted_name(END_AT)
        if self.changes.sequence is None:
            return f"({staged})"
        if not self.changes.history:
            same = _same(self.changes.keys, "s", "d")
            newer = f"SELECT FROM {self.tombstones} d WHERE {same} AND d.{sequence} > s.{sequence}"
            return f"({staged} AND NOT EXISTS ({newer}))"
        keys, names = _list(self.changes.keys), _list(self.changes.names)
        deleted, precedence = quoted_name(DELETED), quoted_name(PRECEDENCE)

        def touched(of: str) -> str:
            return f"EXISTS (SELECT FROM {self._staged} k WHERE {_same(self.changes.keys, 'k', of)})"

        nulls = ", ".join(quoted_name(name) if name in self.changes.keys else "NULL" for name in self.changes.names)
        events = (
            f"SELECT {self._compared(self.changes.names, 't')}, {start}, false AS {deleted}, 1 AS {precedence} "
            f"FROM {self.target} t WHERE {touched('t')} "
            f"UNION ALL SELECT {self._compared(self.changes.names, 's')}, {sequence}, false, 2 "
            f"FROM {self._staged} s WHERE NOT {_DELETES} "
            f"UNION ALL SELECT {nulls}, {sequence}, true, 0 FROM {self.tombstones} d WHERE {touched('d')}"
        )
        last = f"SELECT DISTINCT ON ({keys}, {start}) * FROM ({events}) e ORDER BY {keys}, {start}, {precedence} DESC"
        next_start = f"lead({start}) OVER (PARTITION BY {keys} ORDER BY {start})"
        versions = f"SELECT {names}, {start}, {next_start} AS {end}, {deleted} FROM ({last}) l"
        return f"(SELECT * FROM ({versions}) v WHERE NOT {deleted})"

    def _compared(self, names: Sequence[str], of: str) -> str:
        """Return columns as comparable SQL: `json` has no equality, so it is cast to jsonb."""
        return ", ".join(
            f"{of}.{quoted_name(name)}{'::jsonb' if self._types[name] == 'json' else ''}" for name in names
        )

    @property
    def _types(self) -> dict[str, str]:
        """The SQL type of each column: that of the target where it is known."""
        return self.definitions() | {name: column.definition for name, column in self.info.columns.items()}

    @property
    def _staged(self) -> str:
        tasks = ",".join(str(task) for task in self.tasks)
        rows = ",".join(f'"{row}"' for row in self.rows)
        only = f" AND ctid = ANY('{{{rows}}}'::tid[])" if self.rows else ""
        return f"(SELECT *, ctid FROM {self.staging} WHERE {quoted_name(TASK)} = ANY('{{{tasks}}}'){only})"

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


def _same(names: Sequence[str], left: str, right: str) -> str:
    return " AND ".join(f"{left}.{quoted_name(name)} = {right}.{quoted_name(name)}" for name in names)


def _list(names: Sequence[str], of: str = "") -> str:
    return ", ".join((f"{of}." if of else "") + quoted_name(name) for name in names)


_DELETES = f"s.{quoted_name(DELETED)}"
