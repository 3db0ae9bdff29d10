# SPDX-License-Identifier: Apache-2.0
"""Stateful functions that keep one row for each key: `latest_per_key`, `normalize`, `deduplicate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame

from forebay.options.quantities import DurationLike
from forebay.spark.changelog.columns import (
    comparable_names,
    key_names,
    payload_fields,
    preference,
    quoted,
    sequence_columns,
)
from forebay.spark.changelog.declaring import declare
from forebay.spark.changelog.newest import with_sequence
from forebay.spark.changelog.state_options import microseconds, operator_state
from forebay.spark.changelog.stateful import Plan, run_stateful
from forebay.spark.changelog.strategy import ChangeOrder, change_order, refuse_lost_kind
from forebay.table.changelog.operators.first import First
from forebay.table.changelog.operators.latest import Latest
from forebay.table.changelog.operators.micro_batch import Operator
from forebay.table.changelog.traits import ChangeTraits, Images


def latest_per_key(  # noqa: PLR0913 - keywords of a function for users
    df: DataFrame,
    key: str | Sequence[str],
    *,
    sequence_by: str | Sequence[str] | None = None,
    preimages: bool = True,
    state_ttl: DurationLike | None = None,
    event_time: str | None = None,
    state_location: str | None = None,
    state_storage: Mapping[str, object] | None = None,
    shards: int | None = None,
    name: str = "latest_per_key",
) -> DataFrame:
    """Return the changelog of the last row of each key (F5, K8). A key whose last change is a delete has no row.

    A change that arrives after a newer change of its key has no effect. Without `sequence_by`, the changes of a key are
    ordered by `_pos` if they are in one split, else by `_sequence` or `_commit_version` of one log, else by the
    micro-batch; what the plan does not prove to be in order is refused.

    Args:
        df: A batch or streaming DataFrame: a changelog, or plain rows, which replace the row of their key.
        key: The columns that identify a row.
        sequence_by: Columns that order all changes of a key.
        preimages: Whether an update also gives the old row, as `update_preimage`. Without it, filters and other
            changelog functions refuse the result.
        state_ttl: See `materialize`.
        event_time: See `materialize`.
        state_location: See `materialize`.
        state_storage: See `materialize`.
        shards: See `materialize`.
        name: See `materialize`.

    Raises:
        ConfigurationError: A column or option is wrong, or nothing orders the changes of a key.
        DataError: When the query runs: two different rows of a key have the same place in the order, a column of
            `sequence_by` is NULL, or the changes of a key come from several splits or logs.
    """
    keys = key_names(df, key)
    given = sequence_columns(df, sequence_by)
    order = change_order(df, keys, given)
    df = with_sequence(df, given, keys)
    options: dict[str, object] = {"state_ttl": state_ttl, "event_time": event_time, "state_location": state_location}
    options |= {"state_storage": state_storage, "shards": shards, "name": name}
    return keep_latest(df, keys, order, preimages=preimages, **options)  # type: ignore[arg-type]  # as annotated


def keep_latest(  # noqa: PLR0913 - as above
    df: DataFrame,
    keys: tuple[str, ...],
    order: ChangeOrder,
    *,
    preimages: bool = True,
    state_ttl: DurationLike | None = None,
    event_time: str | None = None,
    state_location: str | None = None,
    state_storage: Mapping[str, object] | None = None,
    shards: int | None = None,
    name: str = "latest_per_key",
) -> DataFrame:
    """Return the changelog of the last row of each key in an order that is known to be right; see `latest_per_key`."""
    state = operator_state(state_location, name, state_storage, shards) if df.isStreaming else None
    payload = payload_fields(df)
    plan = Plan(
        Latest(preimages=preimages, lanes=order.lane is not None),
        "latest_per_key",
        keys,
        comparable_names(payload),  # detects a replay with other rows
        payload,
        order.names,
        by_version=order.by_version,
        time_to_live=microseconds(state_ttl),
        time=event_time,
        state=state,
    )
    traits = ChangeTraits(Images.FULL if preimages else Images.UPSERT, complete=True)
    return declare(run_stateful(df, plan), traits, keys, ordered=True)


def normalize(df: DataFrame, key: str | Sequence[str], *, name: str = "normalize", **options: object) -> DataFrame:
    """Return the full changelog of an upsert changelog (C16): updates with the old row, deletes with the whole row.

    An upsert changelog has only the new row of an update, and perhaps only the key of a delete. The result adds the old
    rows. It has no change for a row that stays equal, nor for the delete of an unknown key.

    Args:
        df: A batch or streaming DataFrame.
        key: The columns that identify a row.
        name: See `materialize`.
        options: Other arguments of `latest_per_key`.
    """
    return latest_per_key(df, key, preimages=True, name=name, **options)  # type: ignore[arg-type]  # checked there


def deduplicate(  # noqa: PLR0913 - as above
    df: DataFrame,
    key: str | Sequence[str],
    *,
    sequence_by: str | Sequence[str] | None = None,
    state_ttl: DurationLike | None = None,
    event_time: str | None = None,
    state_location: str | None = None,
    state_storage: Mapping[str, object] | None = None,
    shards: int | None = None,
    name: str = "deduplicate",
) -> DataFrame:
    """Return the row of each key that arrives first, and drop the later rows of the key.

    Within a micro-batch, the order of `sequence_by` decides. Unlike `dropDuplicatesWithinWatermark`, this function
    needs no watermark.

    Args:
        df: A batch or streaming DataFrame of rows that are only added.
        key: The columns that identify a row.
        sequence_by: Columns that order rows within a micro-batch; by default `_sequence`, `_commit_version` or `_pos`.
        state_ttl: How long a key is remembered after its last row.
        event_time: See `materialize`.
        state_location: See `materialize`.
        state_storage: See `materialize`.
        shards: See `materialize`.
        name: See `materialize`.

    Returns:
        The payload columns of `df`.

    Raises:
        ConfigurationError: A column or option is wrong, or the rows are changes without `_change_type`.
        DataError: When the query runs: a row is retracted (C14).
    """
    order = sequence_columns(df, sequence_by) or preference(df)[0]
    state = operator_state(state_location, name, state_storage, shards) if df.isStreaming else None
    payload = payload_fields(df)
    keys = key_names(df, key)
    refuse_lost_kind(df)
    operator: Operator = First()
    plan = Plan(
        operator,
        "deduplicate",
        keys,
        comparable_names(payload),
        payload,
        order,
        by_version=True,
        time_to_live=microseconds(state_ttl),
        time=event_time,
        state=state,
    )
    first = declare(run_stateful(df, plan), ChangeTraits(Images.APPEND, complete=True), keys, ordered=True)
    return first.select(*(quoted(field.name) for field in payload))
