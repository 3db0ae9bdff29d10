# SPDX-License-Identifier: Apache-2.0
"""`current_view`: the current rows of a changelog, or of a table with a deletion flag (K7, K8)."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every user of PySpark writes it
from pyspark.sql.types import BooleanType

from forebay.errors import ConfigurationError
from forebay.spark.changelog.columns import all_set, key_names, payload_fields, quoted, sequence_columns
from forebay.spark.changelog.materialize import keep_latest
from forebay.spark.changelog.newest import NullKeys, is_retraction, newest
from forebay.spark.changelog.strategy import change_order
from forebay.spark.keys.found_keys import keys_of
from forebay.table.changelog.shape import CHANGE_TYPE, CHANGE_TYPES


def current_view(
    df: DataFrame,
    key: str | Sequence[str] | None = None,
    *,
    deleted: str | None = None,
    ordering: str | Sequence[str] | None = None,
    null_keys: NullKeys = "error",
    name: str = "current_view",
    **options: object,
) -> DataFrame:
    """Return the newest row of each key, except for keys whose newest row is deleted (K7).

    All values come from the newest row, also its NULLs. A NULL deletion flag counts as false. For a streaming
    DataFrame, the result is the changelog of this view, as from `latest_per_key`; a true flag becomes a delete.

    Args:
        df: A batch or streaming DataFrame: a changelog (`_change_type`), or plain rows with a deletion flag.
        key: The columns that identify a row; by default the primary key that `key_by` or the source declared, with its
            deletion flag and, for a batch DataFrame, its ordering columns (K20).
        deleted: The boolean column that marks deleted rows; not for a changelog, which has `_change_type` for it.
        ordering: Columns whose largest value marks the newest row; by default `_pos` if the changes of a key are in one
            `_split`, else `_sequence`, else `_commit_version`. For a stream, this is `sequence_by` of `latest_per_key`.
        null_keys: For a NULL in a key column: `error` fails, `allow` takes NULL as a value, `drop` drops the row.
        name: Names the state below `state_location`. Give each stateful function of a query its own name.
        options: For a streaming DataFrame: `state_location`, and other arguments of `latest_per_key`.

    Returns:
        The payload columns of `df`; for a streaming DataFrame also `_change_type` and `_commit_version`.

    Raises:
        ConfigurationError: A column does not exist or has a wrong type, there is no key, or an option is wrong.
        DataError: When the query runs: a key is NULL, two different rows of a key are the newest one (K8), or a change
            kind is unknown.
    """
    if key is None:
        spec = keys_of(df)
        if spec.primary is None:
            raise ConfigurationError(
                "the DataFrame has no primary key", option="key", advice="give key=[…], or call key_by(…, cdc=True)"
            )
        key = spec.primary
        ordering = ordering or (None if df.isStreaming or CHANGE_TYPE in df.columns else spec.ordering)
        deleted = deleted or (None if CHANGE_TYPE in df.columns else spec.deleted)
    keys = key_names(df, key)
    gone = _is_deleted(df, deleted)
    if df.isStreaming:
        return _changes(df, keys, gone, ordering, null_keys, {"name": name, **options})
    if options:
        raise ConfigurationError(
            f"{', '.join(options)} is given, but current_view keeps no state for a batch DataFrame",
            option=next(iter(options)),
            advice="remove the argument",
        )
    order = change_order(df, keys, sequence_columns(df, ordering), unordered=True, flagged=True)
    places = [quoted(name) for name in order.columns]
    rows = newest(df, keys, places, within=order.lane, null_keys=null_keys).where(~gone)
    return rows.select(*(quoted(field.name) for field in payload_fields(df)))


def _is_deleted(df: DataFrame, deleted: str | None) -> Column:
    """Return a boolean expression: the row deletes its key."""
    if CHANGE_TYPE in df.columns:
        if deleted:
            raise ConfigurationError(
                f"deleted={deleted!r} is given, but the DataFrame is a changelog: {CHANGE_TYPE} marks deletes",
                option="deleted",
                advice=f"drop the column {CHANGE_TYPE}, or remove the argument deleted",
            )
        return is_retraction(df)
    if not deleted:
        return F.lit(False)
    (flag,) = key_names(df, deleted, "deleted")
    if not isinstance(df.schema[flag].dataType, BooleanType):
        raise ConfigurationError(
            f"the column {flag!r} is {df.schema[flag].dataType.simpleString()}, not boolean",
            option="deleted",
            advice="give a boolean column",
        )
    return F.coalesce(quoted(flag), F.lit(False))


def _changes(
    df: DataFrame,
    keys: tuple[str, ...],
    gone: Column,
    ordering: str | Sequence[str] | None,
    null_keys: NullKeys,
    options: dict[str, object],
) -> DataFrame:
    """Return the changelog of the current view of a stream. `gone` is true for rows that delete their key."""
    if null_keys == "drop":
        df = df.where(all_set(keys))
    elif null_keys != "error":
        raise ConfigurationError(
            f"null_keys is {null_keys!r}, but a streaming DataFrame takes only 'error' or 'drop'",
            option="null_keys",
            advice="replace NULL by a value first (coalesce), or give null_keys='drop'",
        )
    order = change_order(df, keys, sequence_columns(df, ordering), flagged=True)
    if CHANGE_TYPE not in df.columns:
        df = df.withColumn(CHANGE_TYPE, F.when(gone, CHANGE_TYPES[3]).otherwise(CHANGE_TYPES[0]))
    return keep_latest(df, keys, order, **options)  # type: ignore[arg-type]  # checked there
