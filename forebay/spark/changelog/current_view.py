# SPDX-License-Identifier: Apache-2.0
"""`current_view`: the rows that a changelog, or a table with a deletion flag, has now (K7, K8)."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every user of PySpark writes it
from pyspark.sql.types import BooleanType

from forebay.errors import ConfigurationError
from forebay.spark.changelog.columns import all_set, key_names, order_names, payload_fields, quoted
from forebay.spark.changelog.keyed import latest_per_key
from forebay.spark.changelog.newest import NullKeys, default_order, is_retraction, newest
from forebay.spark.keys.found_keys import keys_of
from forebay.table.changelog.row_kind import CHANGE_TYPES
from forebay.table.changelog.shape import CHANGE_TYPE


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
    """Return the newest row of each key, whole, without the keys whose newest row is deleted (K7).

    Of a streaming DataFrame, the result is the changelog of that view: what `latest_per_key` gives, with deletion flags
    as deletes. NULL is data: a NULL column of the newest row stays NULL. A NULL deletion flag counts as false.

    Args:
        df: A batch or streaming DataFrame: a changelog (`_change_type`), or plain rows with a deletion flag.
        key: The columns that identify a row; by default the primary key that `key_by` or the source declared, with its
            deletion flag and, of a batch, its ordering columns (K20).
        deleted: The boolean column that marks deleted rows; not for a changelog, whose kinds say it.
        ordering: Columns whose largest value is the newest row; by default `_sequence`, or `_pos` within a `_split`. In
            a stream without them, the row of a later micro-batch is newer.
        null_keys: Whether a NULL in a key column is an error, a value (`allow`), or a row to `drop`.
        name: Tells the stateful functions of one query apart.
        options: Of a streaming DataFrame: `state_location`, and other arguments of `latest_per_key`.

    Returns:
        The columns of `df`, without those of a changelog; of a streaming DataFrame, with those of the new changelog.

    Raises:
        ConfigurationError: A column does not exist or has a wrong type, there is no key, or an option is wrong.
        DataError: While reading: a key is NULL, two different rows of a key are the newest one (K8), or a kind is
            unknown. It names the key.
    """
    if key is None:
        spec = keys_of(df)
        if spec.primary is None:
            raise ConfigurationError(
                "the DataFrame has no primary key", option="key", advice="give key=[…], or key_by(…, cdc=True) before"
            )
        key = spec.primary
        ordering = ordering or (None if df.isStreaming else spec.ordering)
        deleted = deleted or (None if CHANGE_TYPE in df.columns else spec.deleted)
    keys = key_names(df, key)
    gone = _is_deleted(df, deleted)
    if df.isStreaming:
        return _changes(df, keys, gone, ordering, null_keys, {"name": name, **options})
    if options:
        raise ConfigurationError(
            f"a batch DataFrame has no state, and {', '.join(options)} is given",
            option=next(iter(options)),
            advice="leave it out",
        )
    if ordering:
        order, within = [quoted(one) for one in order_names(df, ordering)[0]], None
    else:
        order, within = default_order(df)
    found = newest(df, keys, order, within=within, null_keys=null_keys).where(~gone)
    return found.select(*(quoted(field.name) for field in payload_fields(df)))


def _is_deleted(df: DataFrame, deleted: str | None) -> Column:
    """Return whether a row says that its key is deleted."""
    if CHANGE_TYPE in df.columns:
        if deleted:
            raise ConfigurationError(
                f"a changelog takes no deletion flag, and {deleted!r} is given",
                option="deleted",
                advice=f"drop the column {CHANGE_TYPE}, or leave out deleted",
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
    """Return the changelog of the view of a stream."""
    if null_keys == "drop":
        df = df.where(all_set(keys))
    elif null_keys != "error":
        raise ConfigurationError(
            f"null_keys is {null_keys!r}, and a streaming DataFrame takes 'error' or 'drop'",
            option="null_keys",
            advice="replace NULL by a value before (coalesce), or give null_keys='drop'",
        )
    if CHANGE_TYPE not in df.columns:
        df = df.withColumn(CHANGE_TYPE, F.when(gone, CHANGE_TYPES[3]).otherwise(CHANGE_TYPES[0]))
    return latest_per_key(df, keys, sequence_by=ordering, **options)  # type: ignore[arg-type]  # checked there
