# SPDX-License-Identifier: Apache-2.0
"""Functions that set, remove and compare keys. A key is metadata of columns: no function changes a row (K6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, overload

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody uses
from pyspark.sql.types import BooleanType, StructField, StructType

from forebay.errors import ConfigurationError
from forebay.spark.keys.found_keys import keys_of, warn_once
from forebay.spark.keys.plan.plan_node import analysed_plan, plan_hash
from forebay.spark.keys.row_order import RowOrder, row_order, within
from forebay.spark.keys.upsert_mark import upsert_marks
from forebay.table.changelog.shape import COMMIT_VERSION, SEQUENCE
from forebay.table.keys.field_metadata import declaration_id, key_metadata, without_key
from forebay.table.keys.key_spec import KeySpec
from forebay.table.keys.order_guarantee import OrderScope

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
        found = df.schema[deleted].dataType.simpleString()
        raise ConfigurationError(
            f"the deletion flag {deleted!r} is {found}, not boolean",
            option="deleted",
            advice="cast it to boolean first",
        )
    if df.isStreaming and not set(key.ordering) <= _VOUCHED:
        warn_once(
            f"streams ignore the ordering columns {', '.join(key.ordering)}: the row that arrives last is the latest"
        )
    order = row_order(df, analysed_plan(df))
    kept = order.lanes is not None and within(order.lanes, key.partition)
    _warn_of_lost_order(df, key, order, kept=kept)
    return set_key(df, key, ordered=kept, transactional=kept and order.transactional)


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
        one.name: without_key(one.metadata) | entries.get(one.name, {}) | dict((added or {}).get(one.name, {}))
        for one in df.schema
    }
    return _with_metadata(df, {one.name: metadata[one.name] for one in df.schema if metadata[one.name] != one.metadata})


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
        return StructType([StructField(one.name, one.dataType, one.nullable, _stripped(one.metadata)) for one in frame])
    changed = {one.name: _stripped(one.metadata) for one in frame.schema if _stripped(one.metadata) != one.metadata}
    return _with_metadata(frame, changed)


def union_keyed(left: DataFrame, right: DataFrame) -> DataFrame:
    """Return the rows of both DataFrames, matched by column name, with their common key.

    Spark's `union` takes the metadata of the left side and ignores those of the right side. Rows of one key that come
    from both sides have no order between them.

    Raises:
        ConfigurationError: The keys differ.
    """
    mine, theirs = keys_of(left), keys_of(right)
    if mine != theirs:
        raise ConfigurationError(
            f"the left side has the key {mine}, the right side {theirs}",
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
    metadata = {one.name: one.metadata for one in df.schema}
    return _with_metadata(df, {name: {**metadata[name], **mark} for name, mark in marks.items()})


def _with_metadata(df: DataFrame, changed: Mapping[str, Mapping[str, Any]]) -> DataFrame:
    """Return the DataFrame with the metadata of the columns in `changed` replaced, in one projection."""
    twice = [name for name, count in Counter(df.columns).items() if count > 1]
    if twice:
        raise ConfigurationError(
            f"the column {twice[0]!r} exists twice", option="columns", advice="rename or drop one of them first"
        )

    def column(name: str) -> Column:
        found = F.col(f"`{name.replace('`', '``')}`")
        return found.alias(name, metadata=dict(changed[name])) if name in changed else found

    return df.select(*map(column, df.columns))


def _stripped(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in without_key(metadata).items() if not name.startswith("forebay.")}


def _warn_of_lost_order(df: DataFrame, key: KeySpec, order: RowOrder, *, kept: bool) -> None:
    if order.guarantee.scope is not OrderScope.PER_KEY or SEQUENCE in df.columns:
        return
    shown = ", ".join(order.guarantee.columns)
    if not kept or order.lanes is None:
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
