# SPDX-License-Identifier: Apache-2.0
"""`materialize`: a changelog with one row for each key, correct for changes that arrive in any order (C7–C15)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every user of PySpark writes it
from pyspark.sql.functions import lit
from pyspark.sql.types import StructField, StructType

from forebay.errors import ConfigurationError
from forebay.options.quantities import DurationLike
from forebay.spark.changelog.columns import (
    all_set,
    check_comparable,
    comparable_names,
    hash_of,
    key_names,
    kind_column,
    payload_fields,
    preference,
    quoted,
    sequence_columns,
)
from forebay.spark.changelog.converting import declare
from forebay.spark.changelog.newest import with_sequence
from forebay.spark.changelog.stateful import (
    OperatorPlan,
    changelog_schema,
    microseconds,
    operator_state,
    own_names,
    run_prepared,
    run_stateful,
)
from forebay.spark.changelog.strategy import (
    ChangeOrder,
    Strategy,
    change_order,
    choose_strategy,
    refuse_lost_kind,
    require_whole,
)
from forebay.spark.keys.set_keys import strip_keys
from forebay.table.changelog.operators.latest import First, Latest
from forebay.table.changelog.operators.micro_batch import Operator
from forebay.table.changelog.operators.retract import LEFT, RIGHT, Join, Retract
from forebay.table.changelog.shape import CHANGE_TYPE, COMMIT_VERSION, POSITION, SPLIT, ChangeTraits, Images, RowKind
from forebay.table.changelog.state.segments import KEY_HASH, KIND, PREFIX, ROW_HASH, TOUCHED
from forebay.table.changelog.state.shard import OperatorState

# -- `changelog_join`: the join of two changelogs, with updates and deletes on both sides (C18).


_SIDES = (LEFT, RIGHT)


def changelog_join(  # noqa: PLR0913 - keywords of a function for users
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str],
    *,
    how: Literal["inner", "left", "semi", "anti"] = "inner",
    state_ttl: DurationLike | None = None,
    state_location: str | None = None,
    state_storage: Mapping[str, object] | None = None,
    shards: int | None = None,
    name: str = "changelog_join",
) -> DataFrame:
    """Return the changelog of a join of two changelogs.

    Apply both inputs to two tables and the result to a third: after each micro-batch, the third is the join of the two.
    An input without `_change_type` has inserts only. If a row changes, each joined pair with it is deleted and inserted
    again. To write the result to a table by another key than that of the join, pass it through `materialize`.

    Args:
        left: A batch or streaming DataFrame.
        right: A batch or streaming DataFrame.
        on: Columns that both inputs have, with the same types. NULL matches nothing.
        how: `inner`; `left`, which gives NULL for rows without a match; `semi` and `anti`, which give rows of `left`.
        state_ttl: A row leaves the state and the result if its join key has had no event for this time.
        state_location: See `materialize`.
        state_storage: See `materialize`.
        shards: See `materialize`.
        name: See `materialize`.

    Returns:
        The columns of the join, the other columns of `left`, those of `right`, `_change_type`, `_commit_version`.

    Raises:
        ConfigurationError: A column is missing or on both sides, types differ, an option is wrong, or an input is not
            proven to retract each row by an equal one, exactly once: `normalize` makes it so.
    """
    if how not in ("inner", "left", "semi", "anti"):
        raise ConfigurationError(f"unknown join type {how!r}", option="how", advice="give inner, left, semi or anti")
    keys = key_names(left, on, "on")
    others = key_names(right, on, "on")
    _check_sides(left, right, keys, others, how)
    if taken := [key for key in keys if key.lower() in _SIDES]:
        raise ConfigurationError(
            f"the column {taken[0]!r} has a name that changelog_join reserves",
            option="on",
            advice="rename it on both sides",
        )
    once = [require_whole(left, "left"), require_whole(right, "right")]
    streaming = left.isStreaming or right.isStreaming
    state = operator_state(state_location, name, state_storage, shards) if streaming else None
    structs = [
        StructType([StructField(field.name, field.dataType) for field in payload_fields(df) if field.name not in names])
        for df, names in ((left, keys), (right, others))
    ]
    payload = [StructField(key, left.schema[key].dataType) for key in keys]
    payload += [StructField(side, struct) for side, struct in zip(_SIDES, structs, strict=True)]
    plan = _plan(Join(how), keys, payload, microseconds(state_ttl), state)
    with own_names():
        prepared = _prepared(left, keys, keys, plan, 0).unionByName(_prepared(right, others, keys, plan, 1))
    joined = run_prepared(prepared, plan, changelog_schema(StructType(payload), ()))
    shown = [quoted(key) for key in keys]
    shown += [F.col(LEFT).getField(field.name).alias(field.name) for field in structs[0]]
    if how in ("inner", "left"):
        shown += [F.col(RIGHT).getField(field.name).alias(field.name) for field in structs[1]]
    result = strip_keys(joined.select(*shown, CHANGE_TYPE, COMMIT_VERSION))
    return declare(result, ChangeTraits(Images.FULL, complete=all(once)))


def _plan(
    operator: Join,
    keys: tuple[str, ...],
    payload: list[StructField],
    time_to_live: int | None,
    state: OperatorState | None,
) -> OperatorPlan:
    return OperatorPlan(
        operator,
        f"changelog_join {operator.how}",
        keys,
        (*keys, *_SIDES),
        payload,
        time_to_live=time_to_live,
        state=state,
        null_keys=True,
    )


def _prepared(df: DataFrame, names: Sequence[str], keys: Sequence[str], plan: OperatorPlan, side: int) -> DataFrame:
    """Return one input with the columns that tasks read. `side` is 0 for the left input, 1 for the right one."""
    if side == 1 or plan.operator in (Join("inner"), Join("semi")):
        df = df.where(all_set(names))  # NULL matches nothing
    rows = [field.name for field in payload_fields(df)]
    kind = kind_column(df)
    columns = [quoted(name).alias(key) for name, key in zip(names, keys, strict=True)]
    for place, part in enumerate(_SIDES):
        struct = plan.payload[len(keys) + place].dataType
        assert isinstance(struct, StructType)  # noqa: S101 - for the type checker
        column = F.struct(*(quoted(field.name) for field in struct)) if place == side else F.lit(None).cast(struct)
        columns.append(column.alias(part))
    hashed = hash_of(rows).bitwiseAND(F.lit(-2)).bitwiseOR(F.lit(side))
    shared = F.xxhash64(*(quoted(name) for name in names))
    columns += [shared.alias(KEY_HASH), hashed.alias(ROW_HASH), kind.alias(KIND)]
    word = quoted(CHANGE_TYPE) if CHANGE_TYPE in df.columns else F.lit(None).cast("string")
    columns.append(F.when(kind < 0, word).alias(f"{PREFIX}word"))
    for place, name in enumerate((SPLIT, POSITION)):
        column = quoted(name).cast("string") if name in df.columns else F.lit(None).cast("string")
        columns.append(column.alias(f"{PREFIX}at{place}"))
    if plan.time_to_live is not None:
        columns.append(F.unix_micros(F.current_timestamp()).alias(TOUCHED))
    return df.select(*columns)


def _check_sides(left: DataFrame, right: DataFrame, keys: Sequence[str], others: Sequence[str], how: str) -> None:
    for name, other in zip(keys, others, strict=True):
        types = left.schema[name].dataType, right.schema[other].dataType
        if types[0] != types[1]:
            raise ConfigurationError(
                f"the column {name!r} is {types[0].simpleString()} on the left and {types[1].simpleString()} on the "
                "right",
                option="on",
                advice="cast one of them before the join",
            )
    fields = [*payload_fields(left), *payload_fields(right)]
    check_comparable(fields, "on")
    if how in ("inner", "left"):
        left_names = {field.name.lower() for field in payload_fields(left)} - {key.lower() for key in keys}
        shared = [field.name for field in payload_fields(right) if field.name.lower() in left_names]
        if shared:
            raise ConfigurationError(
                f"both inputs have the column {shared[0]!r}", option="on", advice="rename it on one side, or join on it"
            )


# -- Stateful functions that keep one row for each key: `latest_per_key`, `normalize`, `deduplicate`.


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
    sequence = sequence_columns(df, sequence_by)
    order = change_order(df, keys, sequence)
    df = with_sequence(df, sequence, keys)
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
    plan = OperatorPlan(
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
    plan = OperatorPlan(
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
    sequence = sequence_columns(df, sequence_by)
    chosen = "force" if strategy not in (None, "none") and mode == "auto" else mode
    verdict = choose_strategy(df, keys, mode=chosen, strategy=strategy, sequence_by=sequence)
    if verdict.strategy == "none":
        if CHANGE_TYPE in df.columns:
            return df
        rows = df.withColumn(CHANGE_TYPE, lit(RowKind.INSERT.change_type))
        return declare(rows, ChangeTraits(), keys, ordered=True)
    operator: Operator
    order, by_version = verdict.order.names, verdict.order.by_version
    if verdict.strategy in ("position", "sequence"):
        df = with_sequence(df, sequence, keys)
        operator = Latest(preimages=preimages, lanes=verdict.order.lane is not None)
    else:
        barrier = verdict.strategy == "barrier"
        conflict = (strategy and on_conflict) or "error" if barrier else on_conflict or "deduplicate"
        operator = Retract(preimages, "error" if barrier else on_missing_retraction, conflict)
        check_comparable(payload, "df")
        order, by_version = (sequence, False) if sequence else preference(df)
    time_to_live = microseconds(state_ttl)
    plan = OperatorPlan(
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
