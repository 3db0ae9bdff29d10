# SPDX-License-Identifier: Apache-2.0
"""Functions that set, remove and compare keys. A key is metadata of columns: no function changes a row (K6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, overload

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody uses
from pyspark.sql import types as spark_types
from pyspark.sql.types import ArrayType, BooleanType, DataType, DecimalType, MapType, StructField, StructType

from forebay.errors import ConfigurationError
from forebay.spark.keys.found_keys import find_key, keys_of, upsert_marks, warn_once
from forebay.spark.keys.plan import analysed_plan, plan_hash
from forebay.spark.keys.row_order import RowOrder, row_order, within
from forebay.table.changelog.shape import CHANGE_TYPE, COMMIT_VERSION, SEQUENCE
from forebay.table.keys import (
    KeySpec,
    OrderScope,
    custom_metadata_json,
    declaration_id,
    key_metadata,
    key_of_json,
    primary_key_json,
    without_key,
)

_VOUCHED: Final = {SEQUENCE, COMMIT_VERSION}


def key_by(
    df: DataFrame, *columns: str, cdc: bool = False, deleted: str | None = None, ordering: Sequence[str] | None = None
) -> DataFrame:
    """Declare the key of a DataFrame; an earlier key is replaced (K18).

    Only metadata change: rows are neither moved nor sorted (K6, K19). A new key cannot restore an order that was not
    kept before; a warning says so (K24, K28).

    Args:
        df: A batch or streaming DataFrame.
        columns: The columns of the partition key.
        cdc: Make them the primary key too: the latest row of a key is the current one.
        deleted: The boolean column that is true if the record is deleted; NULL counts as false.
        ordering: Columns whose largest value marks the latest row of a batch DataFrame. Streams ignore them (K20).

    Returns:
        The DataFrame with the key.

    Raises:
        ConfigurationError: A column does not exist or exists twice, `deleted` is no boolean column, or `deleted` or
            `ordering` is given without `cdc`.
    """
    key = KeySpec.keyed_by(columns, cdc=cdc, deleted=deleted, ordering=ordering or ())
    key.check(df.columns)
    if deleted is not None and not isinstance(df.schema[deleted].dataType, BooleanType):
        type_name = df.schema[deleted].dataType.simpleString()
        raise ConfigurationError(
            f"the deletion flag {deleted!r} is {type_name}, not boolean",
            option="deleted",
            advice="cast it to boolean first",
        )
    if df.isStreaming and not set(key.ordering) <= _VOUCHED:
        warn_once(
            f"streams ignore the ordering columns {', '.join(key.ordering)}: the row that arrives last is the latest"
        )
    order = row_order(df, analysed_plan(df))
    ordered = order.lanes is not None and within(order.lanes, key.partition)
    _warn_of_lost_order(df, key, order, ordered=ordered)
    return set_key(df, key, ordered=ordered, transactional=ordered and order.transactional)


def set_key(
    df: DataFrame,
    key: KeySpec,
    *,
    ordered: bool = False,
    transactional: bool = False,
    added: Mapping[str, Mapping[str, Any]] | None = None,
) -> DataFrame:
    """Return the DataFrame with this key instead of its own, without the checks and warnings of `key_by`.

    Args:
        df: The DataFrame.
        key: The key.
        ordered: Whether rows are known to be in order within the partition key. Set by converters, which know more than
            the plan shows, and used where no plan is visible, as after a checkpoint.
        transactional: Whether all changes of a transaction are known to be in one micro-batch.
        added: Other metadata entries to set, by the name of the column.

    Raises:
        ConfigurationError: A column does not exist, or exists twice.
    """
    key.check(df.columns)
    declaration = declaration_id(plan_hash(df), key)
    entries = key_metadata(key, declaration, ordered=ordered, transactional=transactional)
    metadata = {
        field.name: without_key(field.metadata) | entries.get(field.name, {}) | dict((added or {}).get(field.name, {}))
        for field in df.schema
    }
    return _with_metadata(
        df, {field.name: metadata[field.name] for field in df.schema if metadata[field.name] != field.metadata}
    )


def set_metadata(df: DataFrame, added: Mapping[str, Mapping[str, Any]]) -> DataFrame:
    """Return the DataFrame with metadata entries added to columns, by the name of the column."""
    return _with_metadata(df, {name: {**df.schema[name].metadata, **entry} for name, entry in added.items()})


@overload
def strip_keys(frame: DataFrame) -> DataFrame: ...
@overload
def strip_keys(frame: StructType) -> StructType: ...
def strip_keys(frame: DataFrame | StructType) -> DataFrame | StructType:
    """Return a DataFrame or schema without keys, those of `with_upsert_key`, and what is declared of changes.

    Args:
        frame: A DataFrame, or a schema to pass to `mapInPandas` and its like, which would otherwise take the key over.
    """
    if isinstance(frame, StructType):
        return StructType(
            [StructField(field.name, field.dataType, field.nullable, _stripped(field.metadata)) for field in frame]
        )
    changed = {
        field.name: _stripped(field.metadata) for field in frame.schema if _stripped(field.metadata) != field.metadata
    }
    return _with_metadata(frame, changed)


def union_keyed(left: DataFrame, right: DataFrame) -> DataFrame:
    """Return the rows of both DataFrames, matched by column name, with their common key.

    Spark's `union` takes the metadata of the left side and ignores those of the right side. Rows of one key that come
    from both sides have no order between them.

    Raises:
        ConfigurationError: The keys differ.
    """
    left_key, right_key = keys_of(left), keys_of(right)
    if left_key != right_key:
        raise ConfigurationError(
            f"the left side has the key {left_key}, the right side {right_key}",
            option="columns",
            advice="call key_by with the same columns on both sides, or call strip_keys on both and use Spark's union",
        )
    return left.unionByName(right)


def with_upsert_key(df: DataFrame, *columns: str) -> DataFrame:
    """Assert that columns are an upsert key: they identify a row, and the changes of a row arrive in order (C6).

    Use it where the plan does not show the key, such as after a user-defined function. `upsert_keys` and `materialize`
    rely on it; if it is wrong, results are wrong.

    Raises:
        ConfigurationError: No column is named, or a column does not exist or exists twice.
    """
    KeySpec.keyed_by(columns).check(df.columns)
    marks = upsert_marks(columns, declaration_id(plan_hash(df), columns))
    metadata = {field.name: field.metadata for field in df.schema}
    return _with_metadata(df, {name: {**metadata[name], **mark} for name, mark in marks.items()})


def _with_metadata(df: DataFrame, changed: Mapping[str, Mapping[str, Any]]) -> DataFrame:
    """Return the DataFrame with the metadata of the columns in `changed` replaced, in one projection."""
    twice = [name for name, count in Counter(df.columns).items() if count > 1]
    if twice:
        raise ConfigurationError(
            f"the column {twice[0]!r} exists twice", option="columns", advice="rename or drop one of them first"
        )

    def column(name: str) -> Column:
        expression = F.col(f"`{name.replace('`', '``')}`")
        return expression.alias(name, metadata=dict(changed[name])) if name in changed else expression

    return df.select(*map(column, df.columns))


def _stripped(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in without_key(metadata).items() if not name.startswith("forebay.")}


def _warn_of_lost_order(df: DataFrame, key: KeySpec, order: RowOrder, *, ordered: bool) -> None:
    if order.guarantee.scope is not OrderScope.PER_KEY or SEQUENCE in df.columns:
        return
    shown = ", ".join(order.guarantee.columns)
    if not ordered or order.lanes is None:
        warn_once(
            f"key_by({', '.join(key.partition)}) cannot restore order: rows are in order within ({shown}) only. "
            "Changes of a value of the new key may arrive in any order; use materialize to correct this"
        )
    elif len(key.partition) > len(order.lanes):
        finer = [name for name in key.partition if not any(name in names for names in order.lanes)]
        warn_once(
            f"the key ({', '.join(key.partition)}) is finer than before: rows with different values of "
            f"{', '.join(finer)} have no order any more"
        )


# -- Converts the schema and key of a DataFrame to the schema JSON of Foundry, and back (K21–K23).


_NAMES: Final[dict[type[DataType], str]] = {
    spark_types.BooleanType: "BOOLEAN",
    spark_types.ByteType: "BYTE",
    spark_types.ShortType: "SHORT",
    spark_types.IntegerType: "INTEGER",
    spark_types.LongType: "LONG",
    spark_types.FloatType: "FLOAT",
    spark_types.DoubleType: "DOUBLE",
    spark_types.StringType: "STRING",
    spark_types.BinaryType: "BINARY",
    spark_types.DateType: "DATE",
    spark_types.TimestampType: "TIMESTAMP",
}


def to_foundry_schema(df: DataFrame) -> dict[str, Any]:
    """Return the schema of a DataFrame as JSON of Foundry: `fieldSchemaList` and `primaryKey`.

    Raises:
        ConfigurationError: A column has a type that Foundry does not have, or the key has ordering columns.
    """
    key = keys_of(df)
    fields = [{**_field(field), "customMetadata": custom_metadata_json(key, field.name)} for field in df.schema]
    return {"fieldSchemaList": fields, "primaryKey": primary_key_json(key)}


def from_foundry_schema(df: DataFrame, schema: Mapping[str, Any]) -> DataFrame:
    """Return the DataFrame with the key of a Foundry schema JSON. If the JSON has no key, keys are removed (K23).

    Raises:
        ConfigurationError: The JSON is not a schema, misspells `includeInPartitioning`, or names a column that it or
            the DataFrame does not have.
    """
    key = key_of_json(schema)
    return strip_keys(df) if key == KeySpec() else set_key(df, key)


def _field(field: StructField) -> dict[str, Any]:
    return {"name": field.name, "nullable": field.nullable, **_type(field.dataType, field.name)}


def _type(data_type: DataType, column: str) -> dict[str, Any]:
    if isinstance(data_type, DecimalType):
        return {"type": "DECIMAL", "precision": data_type.precision, "scale": data_type.scale}
    if isinstance(data_type, ArrayType):
        return {"type": "ARRAY", "arraySubtype": _type(data_type.elementType, column)}
    if isinstance(data_type, MapType):
        keys, values = _type(data_type.keyType, column), _type(data_type.valueType, column)
        return {"type": "MAP", "mapKeyType": keys, "mapValueType": values}
    if isinstance(data_type, StructType):
        return {"type": "STRUCT", "subSchemas": [_field(field) for field in data_type]}
    name = _NAMES.get(type(data_type))
    if name is None:
        raise ConfigurationError(
            f"the column {column!r} is {data_type.simpleString()}, which Foundry does not have",
            option="df",
            advice="cast the column, or drop it",
        )
    return {"type": name}


# -- Shows the key of a DataFrame, and how rows are spread over its values (K26, K29).


def describe_keys(df: DataFrame) -> str:
    """Return the key as text: a line for each of its columns, what was lost, and the guarantee of order (K29).

    For a changelog, further lines say which rows its changes hold, whether each comes exactly once, and where the plan
    lost that.
    """
    plan = analysed_plan(df)
    found_key, order = find_key(df, plan), row_order(df, plan)
    types = {field.name: field.dataType.simpleString() for field in df.schema}
    lines = [f"{name} {types[name]}: {', '.join(_roles(found_key.key, name))}" for name in found_key.key.columns]
    warnings = [f"warning: {text}" for text in found_key.warnings]
    return "\n".join([*(lines or ["no key"]), *warnings, f"order: {order.guarantee}", *_traits(df, order)])


@dataclass(frozen=True)
class KeyProfile:
    """How rows are spread over the values of a key.

    Args:
        rows: The number of rows.
        keys: The number of different values.
        top: The most frequent values, each with its number of rows.
    """

    rows: int
    keys: int
    top: tuple[tuple[tuple[Any, ...], int], ...]

    @property
    def biggest_share(self) -> float:
        """The share of rows with the most frequent value, 0 to 1. More than `1 / biggest_share` tasks do not help."""
        return self.top[0][1] / self.rows if self.top else 0.0


def key_profile(df: DataFrame, *, top: int = 10) -> KeyProfile:
    """Count the rows of each value of the partition key (K26). Runs two jobs.

    Args:
        df: A batch DataFrame with a key.
        top: How many of the most frequent values are listed.

    Raises:
        ConfigurationError: The DataFrame is streaming, or has no partition key.
    """
    columns = list(keys_of(df).partition)
    if df.isStreaming or not columns:
        raise ConfigurationError(
            "the rows of a stream cannot be counted" if df.isStreaming else "the DataFrame has no partition key",
            option="df",
            advice="profile a batch read of the same source" if df.isStreaming else "call key_by first",
        )
    quoted = [f"`{name.replace('`', '``')}`" for name in columns]
    counts = df.groupBy(*quoted).agg(F.count(F.lit(1)).alias("_rows"))
    total = counts.agg(F.sum("_rows"), F.count(F.lit(1))).collect()[0]
    first = counts.orderBy(F.desc("_rows"), *quoted).limit(top).collect()
    return KeyProfile(int(total[0] or 0), int(total[1]), tuple((tuple(row)[:-1], int(row["_rows"])) for row in first))


def _traits(df: DataFrame, order: RowOrder) -> list[str]:
    changes = order.changes
    if changes is None or (CHANGE_TYPE not in df.columns and not changes.kinds):
        return []
    images = "not declared" if changes.images is None else changes.images.name.lower()
    history = "complete" if changes.complete else "unknown"
    broken = [f"no table: {changes.broken[0]}"] if changes.broken else []
    return [f"images: {images}", f"history: {history}", *(f"lost: {text}" for text in changes.lost), *broken]


def _roles(key: KeySpec, name: str) -> list[str]:
    roles = [
        f"{role} key {columns.index(name) + 1} of {len(columns)}"
        for role, columns in (("partition", key.partition), ("primary", key.primary or ()))
        if name in columns
    ]
    roles += ["deletion flag"] if name == key.deleted else []
    return roles + ([f"ordering {key.ordering.index(name) + 1} of {len(key.ordering)}"] if name in key.ordering else [])
