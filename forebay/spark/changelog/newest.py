# SPDX-License-Identifier: Apache-2.0
"""Finds the newest row of each key of a batch DataFrame; an ambiguous order is an error that names the key (K7, K8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, get_args

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as every user of PySpark writes it
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from forebay.errors import ConfigurationError
from forebay.spark.changelog.columns import EXACT_JSON, all_set, quoted
from forebay.table.changelog.shape import (
    CHANGE_TYPE,
    CHANGE_TYPES,
    COMMIT_VERSION,
    LOG,
    POSITION,
    SEQUENCE,
    SPLIT,
    RowKind,
)

NullKeys = Literal["error", "allow", "drop"]

_RANK: Final = "__forebay_rank"
_ROW: Final = "__forebay_row"
_LEAST: Final = "__forebay_least"
_GREATEST: Final = "__forebay_greatest"


def failure(message: Sequence[Column | str], advice: str) -> Column:
    """Return an expression that raises a DataError when Spark evaluates it; `forebay.unwrap` restores the error.

    Args:
        message: The parts of the message: texts and string columns.
        advice: The next step.
    """
    parts = ["forebay.errors.DataError: ", *message, f"\n  next step: {advice}\n"]
    return F.raise_error(F.concat(*(F.lit(part) if isinstance(part, str) else part for part in parts)))


def with_sequence(df: DataFrame, columns: Sequence[str], keys: Sequence[str]) -> DataFrame:
    """Return the rows with columns of `sequence_by` that raise an error for NULL, which has no place in an order.

    A delete that has the columns of its key alone would otherwise be older than its row.
    """
    shown = F.to_json(F.struct(*(quoted(key) for key in keys)), {"ignoreNullFields": "false"})
    for name in columns:
        null = failure(
            [f"the column {name!r} of sequence_by is NULL for the key ", shown],
            "give columns that order all changes, also deletes, such as _sequence or _pos of one split",
        )
        df = df.withColumn(name, F.coalesce(quoted(name), null.cast(df.schema[name].dataType)))
    return df


def by_kind(df: DataFrame, *, update_before: object, delete: object, adds: object) -> Column:
    """Return an expression that maps `_change_type` to these values. An unknown kind raises an error with its place."""
    word = quoted(CHANGE_TYPE)
    unknown = failure(
        ["unknown change kind ", F.coalesce(word, F.lit("NULL")), _place(df)],
        f"a kind is one of {', '.join(CHANGE_TYPES)}; convert other words first",
    )
    return (
        F.when(word == F.lit(RowKind.UPDATE_BEFORE.change_type), F.lit(update_before))
        .when(word == F.lit(RowKind.DELETE.change_type), F.lit(delete))
        .when(word.isin(*(kind.change_type for kind in RowKind if kind.adds)), F.lit(adds))
        .otherwise(unknown.cast("boolean" if isinstance(adds, bool) else "int"))
    )


def is_retraction(df: DataFrame) -> Column:
    """Return a boolean expression: the change retracts its row (`update_preimage` or `delete`)."""
    return by_kind(df, update_before=True, delete=True, adds=False)


def default_order(df: DataFrame) -> tuple[list[Column], str | None]:
    """Return the columns that order the changes of a key, and the one within which alone they do, if there is one.

    For DataFrames whose plan says nothing, such as a micro-batch: `_pos` within a `_split`, else `_sequence` within a
    `_log`, else `_commit_version`.
    """
    if SPLIT in df.columns and POSITION in df.columns:
        return [quoted(POSITION)], SPLIT
    if SEQUENCE in df.columns:
        return [quoted(SEQUENCE)], LOG if LOG in df.columns else None
    return ([quoted(COMMIT_VERSION)] if COMMIT_VERSION in df.columns else []), None


def newest(
    df: DataFrame, keys: Sequence[str], order: Sequence[Column], *, within: str | None = None, null_keys: NullKeys
) -> DataFrame:
    """Return the newest row of each key. Equal rows with the same place in the order count as one.

    If the two rows of an update have the same place, `update_postimage` is the newer one.

    Args:
        df: A batch DataFrame of rows or changes.
        keys: The columns of the key.
        order: Columns whose largest value marks the newest row.
        within: `order` compares only rows with the same value of this column, such as `_split`. It is an error if the
            newest rows of two values differ. NULL fits every value.
        null_keys: For a NULL in a key column: `error` fails, `allow` takes NULL as a value, `drop` drops the row.

    Raises:
        ConfigurationError: `null_keys` is unknown.
        DataError: When the query runs: a key is NULL, or two different rows are the newest one.
    """
    if null_keys not in get_args(NullKeys):
        raise ConfigurationError(
            f"unknown null_keys {null_keys!r}", option="null_keys", advice="give 'error', 'allow' or 'drop'"
        )
    columns = df.columns
    if null_keys == "drop":
        df = df.where(all_set(keys))
    places, group = list(order), [quoted(name) for name in keys]
    if CHANGE_TYPE in columns:
        places.append(by_kind(df, update_before=0, delete=1, adds=1))
    if places:
        # NULL fits every lane: rows of a snapshot are of any log.
        whole = F.max(quoted(within)).over(Window.partitionBy(*group)) if within else None
        lane = [F.coalesce(quoted(within), whole)] if within and whole is not None else []
        window = Window.partitionBy(*group, *lane).orderBy(*(place.desc_nulls_last() for place in places))
        frame = df.withColumn(_RANK, F.rank().over(window)).where(quoted(_RANK) == F.lit(1))
    else:
        frame = df
    # Positions are not compared: a change that was delivered twice has two positions.
    fields = [field for field in df.schema if field.name not in {SPLIT, POSITION}]
    content = F.xxhash64(*(part for field in fields for part in _hashable(quoted(field.name), field.dataType)))
    row = F.struct(*(quoted(name) for name in columns))
    folded = frame.groupBy(*group).agg(
        F.first(row).alias(_ROW), F.min(content).alias(_LEAST), F.max(content).alias(_GREATEST)
    )
    return folded.select(*(_checked(df, keys, name, null_keys, bool(order)).alias(name) for name in columns))


def _checked(df: DataFrame, keys: Sequence[str], name: str, null_keys: NullKeys, is_ordered: bool) -> Column:
    """Return a column of the newest row. A key column raises an error if its key is NULL or the order is ambiguous."""
    value = quoted(_ROW).getField(name)
    if name not in keys:
        return value
    shown = F.to_json(F.struct(*(quoted(key) for key in keys)), {"ignoreNullFields": "false"})
    advice = (
        "they have one place in the order, or come from several logs: correct the rows; or let a further column order "
        "them, by sequence_by or ordering; or apply latest_per_key or materialize first"
        if is_ordered
        else "give sequence_by, columns that order the changes of a key, or bring the order as a column _sequence; or "
        "apply latest_per_key or materialize first"
    )
    ambiguous = failure(
        ["the order of the changes of the key ", shown, " is unknown: several different rows are the newest one"],
        advice,
    )
    kind = df.schema[name].dataType
    checked = F.when(quoted(_LEAST) != quoted(_GREATEST), ambiguous.cast(kind))
    if null_keys == "error":
        null = failure(
            [f"the key column {name!r} is NULL", _place(df, quoted(_ROW))],
            "fill the column first; null_keys='drop' leaves such rows out, so that a delete among them deletes nothing",
        )
        checked = F.when(value.isNull(), null.cast(kind)).when(
            quoted(_LEAST) != quoted(_GREATEST), ambiguous.cast(kind)
        )
    return checked.otherwise(value)


def _place(df: DataFrame, row: Column | None = None) -> Column:
    """Return an expression for the position of a change: a text of the `_split`, `_pos` and `_sequence` that exist."""
    names = [name for name in (SPLIT, POSITION, SEQUENCE) if name in df.columns]
    values = [quoted(name) if row is None else row.getField(name) for name in names]
    parts = [
        F.concat(F.lit(f", {name} "), F.coalesce(value.cast("string"), F.lit("NULL")))
        for name, value in zip(names, values, strict=True)
    ]
    return F.concat(F.lit(""), *parts)


def _hashable(column: Column, kind: DataType) -> list[Column]:
    """Return expressions to hash instead of a column, because `xxhash64` skips NULL and refuses maps."""
    if isinstance(kind, MapType | VariantType | StructType | ArrayType):
        column = F.to_json(F.struct(column), EXACT_JSON)
    return [column.isNull(), column]
