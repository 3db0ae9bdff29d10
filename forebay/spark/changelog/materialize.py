# SPDX-License-Identifier: Apache-2.0
"""`materialize`: a changelog with one row for each key, correct for changes that arrive in any order (C7–C15)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from pyspark.sql import DataFrame
from pyspark.sql.functions import lit

from forebay.errors import ConfigurationError
from forebay.options.quantities import DurationLike
from forebay.spark.changelog.columns import (
    check_comparable,
    comparable_names,
    key_names,
    payload_fields,
    preference,
    sequence_columns,
)
from forebay.spark.changelog.declaring import declare
from forebay.spark.changelog.newest import with_sequence
from forebay.spark.changelog.state_options import microseconds, operator_state
from forebay.spark.changelog.stateful import Plan, run_stateful
from forebay.spark.changelog.strategy import Strategy, choose_strategy
from forebay.table.changelog.operators.latest import Latest
from forebay.table.changelog.operators.micro_batch import Operator
from forebay.table.changelog.operators.retract import Retract
from forebay.table.changelog.row_kind import RowKind
from forebay.table.changelog.shape import CHANGE_TYPE
from forebay.table.changelog.traits import ChangeTraits, Images


def materialize(  # noqa: PLR0913 - keywords of a function for users
    df: DataFrame,
    key: str | Sequence[str],
    *,
    mode: Literal["auto", "none", "force"] = "auto",
    strategy: Strategy | None = None,
    sequence_by: str | Sequence[str] | None = None,
    on_conflict: Literal["deduplicate", "nothing", "error"] | None = None,
    on_missing_retraction: Literal["warn", "error", "hold"] = "warn",
    state_ttl: DurationLike | None = None,
    event_time: str | None = None,
    null_keys: Literal["error", "allow"] = "error",
    preimages: bool = True,
    state_location: str | None = None,
    state_storage: Mapping[str, object] | None = None,
    shards: int | None = None,
    name: str = "materialize",
) -> DataFrame:
    """Return a changelog with at most one row for each key, correct for changes that arrive in any order.

    The input is a changelog (`_change_type`), or plain rows, which count as inserts. Each micro-batch gives at most one
    change for each key (two with `preimages`), and only for keys whose row changed. A sink that applies these changes
    to a table gets the current rows of the input. For a batch DataFrame, all rows are inserts.

    | strategy | correct if | state |
    |---|---|---|
    | `none` | changes of a key arrive in order | none |
    | `position` | all changes of a key are in one `_split` | one row for each key, deleted ones too |
    | `sequence` | a column orders the changes of a key | one row for each key, deleted ones too |
    | `barrier` | a micro-batch holds all changes of a source transaction | one row for each key |
    | `retract` | every row is retracted by a change with equal columns; any order of arrival | live rows |

    Args:
        df: A batch or streaming DataFrame.
        key: The columns that identify a row of the target. With `mode="force"` it may be empty: whole rows are the key.
        mode: `auto` chooses the first strategy that the plan proves to be right, and logs why; `none` passes changes
            on; `force` keeps state even if the changes of a key arrive in order.
        strategy: Use this strategy instead of a choice by `mode`.
        sequence_by: Columns that order all changes of a key.
        on_conflict: For a key with several live rows: `deduplicate` keeps the last row, `nothing` the first one,
            `error` fails. By default `error` for `barrier`, otherwise `deduplicate`.
        on_missing_retraction: For a retraction before its row: `warn` holds it and logs a warning, `hold` only holds
            it, `error` fails. `barrier` always fails.
        state_ttl: A key without events for this time leaves the state, and its row is deleted from the result.
        event_time: The timestamp column for `state_ttl`; by default the time of the micro-batch.
        null_keys: For a NULL in a key column: `error` fails, `allow` takes NULL as a value.
        preimages: Whether an update also gives the old row, as `update_preimage`.
        state_location: Where state is kept: a directory that all machines share, or `s3://bucket/prefix`.
        state_storage: Settings of S3, as `stateStorage.*` of a stream.
        shards: The number of state shards, with one task each. The first micro-batch fixes it; by default the session's
            parallelism.
        name: Names the state below `state_location`. Give each stateful function of a query its own name.

    Returns:
        The payload, `_change_type`, and `_commit_version`, which is the micro-batch id. With the strategy `none`: `df`
        with `_change_type`.

    Raises:
        ConfigurationError: A column or option is wrong, no strategy is proven to be right, or the state belongs to
            another query.
        DataError: When the query runs: a key or a column of `sequence_by` is NULL, or the changes contradict what the
            strategy needs.
    """
    _check_choice("on_conflict", on_conflict, (None, "deduplicate", "nothing", "error"))
    _check_choice("on_missing_retraction", on_missing_retraction, ("warn", "error", "hold"))
    _check_choice("strategy", strategy, (None, *get_args(Strategy)))
    payload = payload_fields(df)
    keys = tuple(field.name for field in payload) if mode == "force" and not key else key_names(df, key)
    given = sequence_columns(df, sequence_by)
    chosen = "force" if strategy not in (None, "none") and mode == "auto" else mode
    verdict = choose_strategy(df, keys, mode=chosen, strategy=strategy, sequence_by=given)
    if verdict.strategy == "none":
        if CHANGE_TYPE in df.columns:
            return df
        rows = df.withColumn(CHANGE_TYPE, lit(RowKind.INSERT.change_type))
        return declare(rows, ChangeTraits(), keys, ordered=True)
    operator: Operator
    order, by_version = verdict.order.names, verdict.order.by_version
    if verdict.strategy in ("position", "sequence"):
        df = with_sequence(df, given, keys)
        operator = Latest(preimages=preimages, lanes=verdict.order.lane is not None)
    else:
        barrier = verdict.strategy == "barrier"
        conflict = (strategy and on_conflict) or "error" if barrier else on_conflict or "deduplicate"
        operator = Retract(preimages, "error" if barrier else on_missing_retraction, conflict)
        check_comparable(payload, "df")
        order, by_version = (given, False) if given else preference(df)
    time_to_live = microseconds(state_ttl)
    plan = Plan(
        operator,
        f"materialize {verdict.strategy}",
        keys,
        comparable_names(payload),  # all columns, unless only places are compared
        payload,
        order,
        by_version=by_version,
        time_to_live=time_to_live,
        time=event_time,
        state=operator_state(state_location, name, state_storage, shards) if df.isStreaming else None,
        null_keys=null_keys == "allow",
    )
    traits = ChangeTraits(Images.FULL if preimages else Images.UPSERT, complete=True)
    return declare(run_stateful(df, plan), traits, plan.key, ordered=True)


def _check_choice(option: str, value: object, choices: Sequence[object]) -> None:
    if value not in choices:
        raise ConfigurationError(
            f"unknown {option} {value!r}",
            option=option,
            advice=f"give one of {', '.join(repr(choice) for choice in choices if choice is not None)}",
        )
