# SPDX-License-Identifier: Apache-2.0
"""Folds the changes of a micro-batch to one for each key, and checks them before a target writes anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every user of PySpark writes it
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    CalendarIntervalType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from forebay.errors import ConfigurationError
from forebay.spark.changelog.columns import key_names, payload_fields, quoted
from forebay.spark.changelog.newest import default_order, failure, is_retraction, newest
from forebay.spark.changelog.strategy import ChangeOrder
from forebay.table.changelog.shape import CHANGE_TYPE

DELETED: Final = "__DELETED"
"""Boolean: whether the change deletes its key."""

SEQUENCE: Final = "__SEQUENCE"
"""The value of `sequence_by`, which targets store to recognise older changes that arrive later."""

LANE: Final = "__LANE"
"""The value of `ChangeOptions.lane`: the log in which the sequence counts."""

START_AT: Final = "__START_AT"
END_AT: Final = "__END_AT"
"""The sequences at which a version begins and ends (SCD type 2; `create_auto_cdc_flow` uses these names)."""

RESERVED: Final = (DELETED, SEQUENCE, LANE, START_AT, END_AT, "__TASK", "__PRECEDENCE")


@dataclass(frozen=True)
class ChangeOptions:
    """How rows are read as changes. The arguments are those of `apply_changes`."""

    keys: str | Sequence[str]
    sequence_by: str | Column | None = None
    apply_as_deletes: str | Column | None = None
    except_column_list: Sequence[str] = ()
    stored_as_scd_type: Literal[1, 2, "1", "2"] = 1
    null_keys: Literal["error", "drop"] = "error"
    order: ChangeOrder | None = None
    """What orders the changes of a key within a micro-batch; None: `default_order`."""
    lane: str | None = None
    """A column within whose values `sequence_by` orders changes, such as `_log`; None: it orders all of them."""


@dataclass(frozen=True)
class Changes:
    """The folded changes of a micro-batch.

    Attributes:
        df: The columns of `fields`, `__SEQUENCE` if there is a sequence, `__LANE` if it has a lane, and `__DELETED`.
        keys: The names of the key columns.
        fields: The columns that a target stores.
        sequence: The type of `__SEQUENCE`, or None.
        history: Whether the target keeps all versions (SCD type 2); then there is a change for each key and sequence.
    """

    df: DataFrame
    keys: tuple[str, ...]
    fields: tuple[StructField, ...]
    sequence: DataType | None
    history: bool

    @property
    def names(self) -> list[str]:
        """The names of `fields`."""
        return [field.name for field in self.fields]


def fold_changes(df: DataFrame, options: ChangeOptions) -> Changes:
    """Return the last change of each key of a micro-batch; for SCD type 2, of each key and sequence.

    Raises:
        ConfigurationError: A column does not exist, or the arguments contradict one another.
        DataError: When the query runs: see `newest`.
    """
    keys = key_names(df, options.keys, "keys")
    history = _is_history(options)
    _check_names(df, keys, options)
    deleted = _deletion(df, options.apply_as_deletes)
    if options.order is None:
        order, within = default_order(df)
    else:
        order, within = [quoted(name) for name in options.order.columns], options.order.lane
    frame, group = df, list(keys)
    if options.sequence_by is not None:
        frame = frame.withColumn(SEQUENCE, _sequence(df, keys, options.sequence_by))
        order, within = [quoted(SEQUENCE)], options.lane
        if history:
            group.append(SEQUENCE)
    frame = frame.withColumn(DELETED, deleted)
    folded = newest(frame, group, order, within=within, null_keys=options.null_keys)
    excepted = set(options.except_column_list)
    fields = tuple(field for field in payload_fields(df) if field.name not in excepted)
    columns = [quoted(field.name).alias(field.name) for field in fields]
    if options.sequence_by is None:
        return Changes(folded.select(*columns, quoted(DELETED)), keys, fields, None, history)
    kind = frame.schema[SEQUENCE].dataType
    lane = [] if options.lane is None else [quoted(options.lane).alias(LANE)]
    return Changes(folded.select(*columns, quoted(SEQUENCE), *lane, quoted(DELETED)), keys, fields, kind, history)


_UNORDERED: Final = (ArrayType, MapType, StructType, VariantType, CalendarIntervalType, YearMonthIntervalType)
"""Types whose values targets cannot compare, or not store."""


def _sequence(df: DataFrame, keys: Sequence[str], sequence_by: str | Column) -> Column:
    """Return the expression `sequence_by`, which raises an error for NULL."""
    value = _expression(sequence_by)
    kind = df.select(value.alias(SEQUENCE)).schema[SEQUENCE].dataType
    # A collation orders the texts of a micro-batch, and bytes those of two.
    collated = isinstance(kind, StringType) and kind.collation != "UTF8_BINARY"
    if collated or isinstance(kind, _UNORDERED):
        raise ConfigurationError(
            f"sequence_by is {kind.simpleString()}, which targets cannot compare",
            option="sequence_by",
            advice="give a number, a time, or a text (by collate to UTF8_BINARY)",
        )
    shown = F.to_json(F.struct(*(quoted(name) for name in keys)))
    null = failure(["sequence_by is NULL for the key ", shown], "give an expression that orders all changes")
    return F.coalesce(value, null.cast(kind))


def _is_history(options: ChangeOptions) -> bool:
    kind = str(options.stored_as_scd_type)
    if kind not in {"1", "2"}:
        raise ConfigurationError(
            f"unknown SCD type {options.stored_as_scd_type!r}", option="stored_as_scd_type", advice="give 1 or 2"
        )
    if kind == "2" and options.sequence_by is None:
        raise ConfigurationError(
            "a history (SCD type 2) needs the order of all changes",
            option="sequence_by",
            advice="give the column or expression that orders the changes of a key",
        )
    if options.null_keys not in {"error", "drop"}:
        raise ConfigurationError(
            f"unknown null_keys {options.null_keys!r}", option="null_keys", advice="give 'error' or 'drop'"
        )
    return kind == "2"


def _check_names(df: DataFrame, keys: Sequence[str], options: ChangeOptions) -> None:
    if isinstance(options.except_column_list, str):
        raise ConfigurationError(
            "except_column_list is a string, not a list",
            option="except_column_list",
            advice="give a list of column names",
        )
    for name in options.except_column_list:
        if name not in df.columns or name in keys:
            what = "is a key column" if name in keys else "does not exist"
            raise ConfigurationError(
                f"the column {name!r} {what}",
                option="except_column_list",
                advice=f"give columns of {', '.join(name for name in df.columns if name not in keys)}",
            )
    # Spark finds columns in upper or lower case, such as `__deleted` of Debezium.
    stored = {*df.columns} - {*options.except_column_list}
    if taken := sorted({*RESERVED} & {*df.columns} | {name for name in stored if name.upper() in RESERVED}):
        raise ConfigurationError(
            f"the column {taken[0]!r} has a name that targets reserve",
            advice="rename it" if taken[0] in RESERVED else "rename it, or name it in except_column_list",
        )


def _deletion(df: DataFrame, apply_as_deletes: str | Column | None) -> Column:
    if CHANGE_TYPE not in df.columns:
        if apply_as_deletes is None:
            return F.lit(False)
        flag = _expression(apply_as_deletes)
        kind = df.select(flag.alias(DELETED)).schema[DELETED].dataType
        if not isinstance(kind, BooleanType):
            raise ConfigurationError(
                f"apply_as_deletes is {kind.simpleString()}, not boolean",
                option="apply_as_deletes",
                advice="give a condition, such as \"op = 'd'\"",
            )
        return F.coalesce(flag, F.lit(False))
    if apply_as_deletes is not None:
        raise ConfigurationError(
            f"apply_as_deletes is given, but the DataFrame is a changelog: {CHANGE_TYPE} marks deletes",
            option="apply_as_deletes",
            advice="leave out apply_as_deletes",
        )
    return is_retraction(df)


def _expression(text: str | Column) -> Column:
    return F.expr(text) if isinstance(text, str) else text
