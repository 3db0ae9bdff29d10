# SPDX-License-Identifier: Apache-2.0
"""`current_view`: the rows that a changelog, or a table with a deletion flag, has now (K7, K8)."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every user of PySpark writes it
from pyspark.sql.types import BooleanType

from forebay.changelog.shape import CHANGE_TYPE
from forebay.errors import ConfigurationError
from forebay.spark.changelog.columns import key_names, order_names, payload_fields, quoted
from forebay.spark.changelog.newest import NullKeys, default_order, is_retraction, newest
from forebay.spark.keys.found_keys import keys_of


def current_view(
    df: DataFrame,
    key: str | Sequence[str] | None = None,
    *,
    deleted: str | None = None,
    ordering: str | Sequence[str] | None = None,
    null_keys: NullKeys = "error",
) -> DataFrame:
    """Return the newest row of each key, whole, without the keys whose newest row is deleted (K7).

    NULL is data: a NULL column of the newest row stays NULL. A NULL deletion flag counts as false.

    Args:
        df: A batch DataFrame: a changelog (`_change_type`), or plain rows with a deletion flag.
        key: The columns that identify a row; by default the primary key that `key_by` or the source declared, with its
            deletion flag and ordering columns.
        deleted: The boolean column that marks deleted rows; not for a changelog, whose kinds say it.
        ordering: Columns whose largest value is the newest row; by default `_sequence`, or `_pos` within a `_split`.
        null_keys: Whether a NULL in a key column is an error, a value (`allow`), or a row to `drop`.

    Returns:
        The columns of `df`, without those of a changelog.

    Raises:
        ConfigurationError: A column does not exist or has a wrong type, there is no key, or `df` is streaming.
        DataError: While reading: a key is NULL, two different rows of a key are the newest one (K8), or a kind is
            unknown. It names the key.
    """
    if df.isStreaming:
        raise ConfigurationError(
            "current_view reads a batch DataFrame", advice="use latest_per_key or materialize on a stream"
        )
    if key is None:
        spec = keys_of(df)
        if spec.primary is None:
            raise ConfigurationError(
                "the DataFrame has no primary key", option="key", advice="give key=[…], or key_by(…, cdc=True) before"
            )
        key, ordering = spec.primary, ordering or spec.ordering
        deleted = deleted or (None if CHANGE_TYPE in df.columns else spec.deleted)
    keys = key_names(df, key)
    if ordering:
        order, within = [quoted(name) for name in order_names(df, ordering)[0]], None
    else:
        order, within = default_order(df)
    gone = F.lit(False)
    if CHANGE_TYPE in df.columns:
        if deleted:
            raise ConfigurationError(
                f"a changelog takes no deletion flag, and {deleted!r} is given",
                option="deleted",
                advice=f"drop the column {CHANGE_TYPE}, or leave out deleted",
            )
        gone = is_retraction(df)
    elif deleted:
        (flag,) = key_names(df, deleted, "deleted")
        if not isinstance(df.schema[flag].dataType, BooleanType):
            raise ConfigurationError(
                f"the column {flag!r} is {df.schema[flag].dataType.simpleString()}, not boolean",
                option="deleted",
                advice="give a boolean column",
            )
        gone = F.coalesce(quoted(flag), F.lit(False))
    found = newest(df, keys, order, within=within, null_keys=null_keys).where(~gone)
    return found.select(*(quoted(field.name) for field in payload_fields(df)))
