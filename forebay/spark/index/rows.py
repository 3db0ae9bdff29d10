# SPDX-License-Identifier: Apache-2.0
"""From a DataFrame to the rows that a transaction commits: mapped columns, the key with its type, hashes, the shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as every user of PySpark writes it
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from forebay.errors import ConfigurationError
from forebay.spark.changelog.columns import EXACT_JSON, quoted
from forebay.spark.changelog.newest import failure
from forebay.spark.conform import arrow_schema
from forebay.spark.keys.found_keys import keys_of
from forebay.table.changelog.shape import CHANGE_TYPE
from forebay.table.changelog.state.segments import KEY_HASH, ORDINAL, PREFIX
from forebay.table.index.changelog import DELETED, DIGESTS
from forebay.table.index.columns import arrow_type, refuse_other_meaning
from forebay.table.index.definition import Datasource, ObjectType, check_key_type
from forebay.table.index.states import KEY, LANE, SEQUENCE, VALUE
from forebay.table.index.transactions import Incoming
from forebay.table.index.types import SparkType, parse_type, quoted_name

SHARD: Final = f"{PREFIX}shard"
"""The column with the shard of a row."""

_TEXT: Final = "t_"
"""Prefix of columns with a nested value as text, to be hashed."""

_JSON: Final = {**EXACT_JSON, "timeZone": "UTC"}
"""Hashed texts do not depend on the zone of the session, in which a transaction may be committed again."""

_BATCH: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
"""0 and less stand for no limit, but not where PySpark makes a DataFrame of an Arrow table."""

_CHAR: Final = "__CHAR_VARCHAR_TYPE_STRING"
"""Metadata entry by which Spark remembers that a string column was declared CHAR."""


def key_columns(df: DataFrame, definition: ObjectType, source: Datasource) -> dict[str, StructField]:
    """Return the column of a DataFrame for each key of the object type.

    By default it has the name of the key; else the DataFrame's primary key has it (`forebay.keys`).

    Raises:
        ConfigurationError: There is no such column.
    """
    names = {name: source.key.get(name, name) for name in definition.keys}
    if not source.key and any(name not in df.columns for name in names.values()):
        primary = keys_of(df).primary or ()
        if len(primary) == len(names):
            names = dict(zip(names, primary, strict=True))
    return {name: field_of(df, column, source, "key") for name, column in names.items()}


def key_hashes(spark: SparkSession, definition: ObjectType, keys: Sequence[tuple[Any, ...]]) -> list[int]:
    """Return the hashes by which states find keys, as `prepare` computes them for rows.

    Args:
        spark: The session.
        definition: The definition, with the types of the keys.
        keys: The values of the key columns of each key.

    Raises:
        ConfigurationError: A setting of the session keeps PySpark from taking a table of Arrow.
    """
    batch = spark.conf.get(_BATCH)
    if batch is not None and int(batch) <= 0:
        raise ConfigurationError(
            f"PySpark makes no DataFrame of an Arrow table while {_BATCH} is {batch}",
            option=_BATCH,
            advice="set it to 10000, by spark.conf.set or in spark-defaults.conf, and flush again; nothing was flushed",
        )
    kinds = {f"{KEY}{name}": parse_type(kind) for name, kind in definition.keys.items()}
    columns = [pa.array([key[at] for key in keys], arrow_type(kind)) for at, kind in enumerate(kinds.values())]
    places = pa.array(range(len(keys)), pa.int64())
    schema = ", ".join([f"{ORDINAL} bigint", *(f"{_sql(name)} {kind.text}" for name, kind in kinds.items())])
    frame = spark.createDataFrame(pa.table([places, *columns], names=[ORDINAL, *kinds]), schema)
    table = frame.selectExpr(ORDINAL, f"{_key_hash(kinds)} AS {KEY_HASH}").toArrow().sort_by(ORDINAL)
    hashes: list[int] = table[KEY_HASH].to_pylist()
    return hashes


def _key_hash(columns: Iterable[str]) -> str:
    """Return as SQL the hash by which states find a key."""
    return f"xxhash64({', '.join(map(_sql, columns))})"


def key_types(df: DataFrame, definition: ObjectType, source: Datasource) -> dict[str, str]:
    """Return the type of each key, of the DataFrame if the definition has none: integers become `bigint`.

    Raises:
        ConfigurationError: Values of the type cannot be a key.
    """
    types = {}
    for name, column in key_columns(df, definition, source).items():
        kind = definition.keys[name] or _widest(column.dataType)
        where = f" of the column {column.name!r} for the key {name!r} of the datasource {source.name!r}"
        check_key_type(name, parse_type(kind, where))
        types[name] = kind
    return types


def prepare(
    df: DataFrame,
    definition: ObjectType,
    source: Datasource,
    shards: int,
    *,
    deletes: Column | None = None,
    sequence: tuple[Column, Column] | None = None,
    delete: bool = False,
) -> tuple[DataFrame, Incoming]:
    """Return the rows of a transaction, with the columns of `ShardTask.incoming` and the shard; and what they are.

    Args:
        df: The rows.
        definition: The definition that serves, with the types of the keys. Values are to fit its types too.
        source: The datasource, of this definition or of the one that replaces it.
        shards: The number of shards.
        deletes: Whether a row deletes its key; None: the flag of the datasource says so.
        sequence: What orders the changes of a key, and the log within which it does.
        delete: Whether all rows delete their keys, and have no other columns.

    Raises:
        ConfigurationError: A column does not exist, or has a type that cannot be used.
    """
    keys = key_columns(df, definition, source)
    kinds = {name: parse_type(kind) for name, kind in definition.keys.items()}
    fields = {} if delete else {name: field_of(df, name, source, "properties") for name in source.columns}
    stored = {name: _storable(field, source) for name, field in fields.items()}
    served = [each for each in definition.datasources if each.name == source.name and each != source]
    if fields:
        _refuse_other_types(df, fields, source)
        for each_source in served:
            try:
                _refuse_other_types(df, fields, each_source)
            except ConfigurationError as error:
                error.advice = (
                    "until the new definition serves, rows have to fit both: let its property read another column, "
                    "with Property(column=…), and commit a snapshot with both columns"
                )
                raise
    made = {} if deletes is None else {DELETED: deletes}
    made |= dict(zip((SEQUENCE, LANE), sequence or (), strict=False))
    as_they_are = {DELETED: "true" if delete or deletes is not None else deleted_flag(df, source) or "false"}
    hashed = [
        _sql(name) for name in (DELETED, *(f"{KEY}{name}" for name in keys), *((SEQUENCE, LANE) if sequence else ()))
    ]
    for name, field in keys.items():
        as_they_are[f"{KEY}{name}"] = _sql(field.name)
        if (key := _key(field, name, kinds[name], source)) is not None:
            made[f"{KEY}{name}"] = key
    for name, field in fields.items():
        column = f"{VALUE}{name}"
        as_they_are[column] = _sql(field.name)
        if stored[name].is_nested:
            made[column] = _canonical(quoted(field.name), stored[name])
            column = f"{_TEXT}{name}"
            made[column] = F.to_json(F.struct(made[f"{VALUE}{name}"].alias("c")), _JSON)
        # Hashes skip NULL, also within arrays and structs.
        hashed += [f"isnull({_sql(column)})", _sql(column)]
    payload = pa.schema(
        [
            *(pa.field(f"{KEY}{name}", arrow_type(kind)) for name, kind in kinds.items()),
            *(pa.field(f"{VALUE}{name}", arrow_type(kind)) for name, kind in stored.items()),
        ]
    )
    # Each function that Python calls to make a column costs a message to the JVM; a text costs one for all.
    frame = df.select("*", *(value.alias(f"{PREFIX}{name}") for name, value in made.items())) if made else df
    columns = as_they_are | {name: _sql(f"{PREFIX}{name}") for name in made}
    selected = frame.selectExpr(*(f"{text} AS {_sql(name)}" for name, text in columns.items())).selectExpr(
        f"{_key_hash(f'{KEY}{name}' for name in keys)} AS {KEY_HASH}",
        f"xxhash64({', '.join(hashed)}) AS {DIGESTS[0]}",
        f"bigint(hash({', '.join(hashed)})) AS {DIGESTS[1]}",
        f"int(pmod(crc32({_key_text(kinds)}), {shards})) AS {SHARD}",
        *(_sql(name) for name in columns if not name.startswith(_TEXT)),
    )
    sequence_type = None
    if sequence is not None:
        sequence_type = arrow_schema(StructType([selected.schema[SEQUENCE]])).field(SEQUENCE).type
    # A stream cannot correct a row that it brings again and again: its rows are committed, and hold up the index.
    fits = {
        (f"{VALUE}{each.column or name}", each.kind): None
        for each_source in (() if delete or deletes is not None else (source, *served))
        for name, each in each_source.properties.items()
    }
    return selected, Incoming(payload, tuple(f"{KEY}{name}" for name in keys), sequence_type, tuple(fits))


def _sql(name: str) -> str:
    """Return the name of a column as SQL."""
    return f"`{name.replace('`', '``')}`"


def _key_text(kinds: Mapping[str, SparkType]) -> str:
    """Return as SQL the text of a key whose CRC-32 decides its shard, as `KeyCodec.hash` computes it."""
    texts = {
        "boolean": "int({})",
        "binary": "hex({})",
        "date": "unix_date({})",
        "timestamp": "unix_micros({})",
        # timestampdiff would take it for a time of the session's zone, which has none for an hour of each year.
        "timestamp_ntz": "bigint(cast({} - TIMESTAMP_NTZ'1970-01-01 00:00:00' as decimal(19,6)) * 1000000)",
    }
    parts = (f"string({texts.get(kind.name, '{}').format(_sql(f'{KEY}{name}'))})" for name, kind in kinds.items())
    return f"binary(concat_ws(chr(1), {', '.join(parts)}))"


def field_of(df: DataFrame, name: str, source: Datasource, option: str) -> StructField:
    """Return a column of a DataFrame; upper and lower case are the same, as in Spark.

    Raises:
        ConfigurationError: It does not exist, or is there twice.
    """
    alike = [field for field in df.schema if field.name.lower() == name.lower()]
    if len(alike) > 1 and (df.sparkSession.conf.get("spark.sql.caseSensitive") or "").lower() == "true":
        alike = [field for field in alike if field.name == name]
    if len(alike) == 1:
        return alike[0]
    kept = option == "properties" and name in source.keep
    raise ConfigurationError(
        f"the column {name!r} of the datasource {source.name!r} {'is ambiguous' if alike else 'does not exist'}"
        f"{', and keep names it' if kept else ''}",
        option="keep" if kept else option,
        advice=f"the DataFrame has {', '.join(df.columns)}; map the column with Property(column=…) or "
        "Datasource(key=…), or add it",
    )


def refuse_changelog(df: DataFrame, source: Datasource) -> None:
    """Check that a DataFrame has rows, not changes.

    Raises:
        ConfigurationError: It is a changelog.
    """
    if CHANGE_TYPE in df.columns:
        raise ConfigurationError(
            f"the DataFrame for the datasource {source.name!r} is a changelog: it has {CHANGE_TYPE}",
            option="df",
            advice="apply it with apply_changes(changes, funnel.target(…), …), or commit its current_view as snapshot",
        )


def _widest(kind: DataType) -> str:
    if isinstance(kind, IntegralType):
        return "bigint"
    if isinstance(kind, DecimalType):
        return f"decimal(38,{kind.scale})"
    return "string" if isinstance(kind, StringType) else kind.simpleString()


def _key(field: StructField, name: str, kind: SparkType, source: Datasource) -> Column | None:
    """Return a key column with the type of the key; a value that the type does not have is an error.

    None: the column is as it should be.
    """
    data_type = field.dataType
    if data_type.simpleString() == kind.text or (
        isinstance(data_type, StringType) and kind.name == "string" and data_type.collation == "UTF8_BINARY"
    ):
        # CHAR(5) and VARCHAR meet without the blanks that pad the first.
        return F.rtrim(quoted(field.name)) if str(field.metadata.get(_CHAR, "")).startswith("char") else None
    numbers = (IntegralType, DecimalType)
    if not isinstance(data_type, numbers) or kind.name not in ("bigint", "decimal"):
        raise ConfigurationError(
            f"the key {name!r} is {kind.text}, and the column {field.name!r} of the datasource {source.name!r} is "
            f"{data_type.simpleString()}",
            option="key",
            advice=f"cast the column to {kind.text} first; or define the key with a type, as key={{{name!r}: "
            "'string'}, and cast the columns of all datasources to it",
        )
    column = quoted(field.name)
    made = column.try_cast(kind.text)
    bad = failure(
        [f"the key {name!r} is {kind.text}, and the datasource {source.name!r} has the value ", column.cast("string")],
        "define the key with a type that has all values, or correct the row",
    )
    exact = column.isNull() | F.coalesce(made.try_cast(data_type.simpleString()) == column, F.lit(False))
    return F.when(exact, made).otherwise(bad.cast(kind.text))


def deleted_flag(df: DataFrame, source: Datasource) -> str | None:
    """Return as SQL whether a row counts as deleted; NULL is no. None: nothing says so of any row.

    Raises:
        ConfigurationError: The flag of the datasource does not exist, or is not boolean.
    """
    name = source.deleted
    if name is None:
        name = keys_of(df).deleted
        if name is None:
            return None
    field = field_of(df, name, source, "deleted")
    if not isinstance(field.dataType, BooleanType):
        raise ConfigurationError(
            f"the flag {name!r} of the datasource {source.name!r} is {field.dataType.simpleString()}, not boolean",
            option="deleted",
            advice="make it a boolean column, as with df.withColumn",
        )
    return f"coalesce({_sql(field.name)}, false)"


def storable_columns(df: DataFrame) -> set[str]:
    """Return the columns of a DataFrame that a state can keep."""
    storable = set()
    for field in df.schema:
        with suppress(ConfigurationError):
            _stored_type(field.dataType)
            storable.add(field.name)
    return storable


def _stored_type(data_type: DataType) -> SparkType:
    """Return the type of a column of a state.

    Raises:
        ConfigurationError: A state cannot keep it, such as a variant, or a text with a collation.
    """
    kind = parse_type(_type_text(data_type))
    if any(part.name == "map" and part.fields[0][1].is_nested for part in _parts(kind)):
        raise ConfigurationError("a map with nested keys")
    return kind


def _parts(kind: SparkType) -> Iterator[SparkType]:
    parts = [kind]
    while parts:
        part = parts.pop()
        yield part
        parts += [each for _, each in part.fields]


def _type_text(data_type: DataType) -> str:
    """Return a type as Spark's SQL writes it; `simpleString` does not quote the names of fields."""
    match data_type:
        case StructType():
            fields = (f"{quoted_name(field.name)}:{_type_text(field.dataType)}" for field in data_type.fields)
            return f"struct<{','.join(fields)}>"
        case ArrayType():
            return f"array<{_type_text(data_type.elementType)}>"
        case MapType():
            return f"map<{_type_text(data_type.keyType)},{_type_text(data_type.valueType)}>"
    return data_type.simpleString()


def _storable(field: StructField, source: Datasource) -> SparkType:
    try:
        return _stored_type(field.dataType)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"the column {field.name!r} of the datasource {source.name!r} has the type "
            f"{field.dataType.simpleString():.200}, which cannot be kept",
            option="properties",
            advice="cast it first: NULLs without a type to that of the property, texts by collate to UTF8_BINARY, "
            "others to string",
        ) from error


def _refuse_other_types(df: DataFrame, fields: Mapping[str, StructField], source: Datasource) -> None:
    for name, each in source.properties.items():
        _refuse_other_type(fields[each.column or name], name, each.kind, source)
    if source.timestamp is not None:
        _check_time(field_of(df, source.timestamp, source, "timestamp"), source)


def _refuse_other_type(field: StructField, name: str, kind: SparkType, source: Datasource) -> None:
    """Refuse a type of which no value is cast, before a stream commits rows that hold up the index."""
    try:
        refuse_other_meaning(arrow_type(_stored_type(field.dataType)), arrow_type(kind))
    except pa.ArrowNotImplementedError as error:
        raise ConfigurationError(
            f"the column {field.name!r} of the datasource {source.name!r} is {field.dataType.simpleString():.200}, and "
            f"the property {name!r} is {kind.text:.200}",
            option="properties",
            advice=f"cast the column to {kind.text:.200} in the DataFrame, or give the property another type",
        ) from error


def _check_time(field: StructField, source: Datasource) -> None:
    if not isinstance(field.dataType, TimestampType | TimestampNTZType):
        raise ConfigurationError(
            f"the timestamp {field.name!r} of the datasource {source.name!r} is {field.dataType.simpleString()}",
            option="timestamp",
            advice="convert it to a timestamp first; a date does not say which of two changes of a day came later",
        )


def _canonical(column: Column, kind: SparkType) -> Column:
    """Return a column with the entries of its maps in the order of their keys, so that equal maps are equal."""
    if not _has_map(kind):
        return column
    if kind.name == "map":
        entries = F.map_entries(column)
        value = kind.fields[1][1]
        if _has_map(value):
            entries = F.transform(
                entries,
                lambda each: F.struct(each["key"].alias("key"), _canonical(each["value"], value).alias("value")),
            )
        ordered = F.array_sort(
            entries,
            lambda one, other: F.when(one["key"] < other["key"], -1).when(one["key"] > other["key"], 1).otherwise(0),
        )
        return F.map_from_entries(ordered)
    if kind.name == "array":
        return F.transform(column, lambda each: _canonical(each, kind.fields[0][1]))
    fields = [_canonical(column.getField(name), part).alias(name) for name, part in kind.fields]
    return F.when(column.isNotNull(), F.struct(*fields))


def _has_map(kind: SparkType) -> bool:
    return any(part.name == "map" for part in _parts(kind))
