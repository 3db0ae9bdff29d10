# SPDX-License-Identifier: Apache-2.0
"""`changelog_join`: the join of two changelogs, with updates and deletes on both sides (C18)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every user of PySpark writes it
from pyspark.sql.types import StructField, StructType

from forebay.errors import ConfigurationError
from forebay.options.quantities import DurationLike
from forebay.spark.changelog.columns import (
    all_set,
    check_comparable,
    hash_of,
    key_names,
    kind_column,
    payload_fields,
    quoted,
)
from forebay.spark.changelog.declaring import declare
from forebay.spark.changelog.state_options import microseconds, operator_state
from forebay.spark.changelog.stateful import Plan, changelog_schema, own_names, run_prepared
from forebay.spark.changelog.strategy import require_whole
from forebay.spark.keys.set_keys import strip_keys
from forebay.table.changelog.operators.join import LEFT, RIGHT, Join
from forebay.table.changelog.shape import CHANGE_TYPE, COMMIT_VERSION, POSITION, SPLIT
from forebay.table.changelog.state.entries import KEY_HASH, KIND, PREFIX, ROW_HASH, TOUCHED
from forebay.table.changelog.state.location import OperatorState
from forebay.table.changelog.traits import ChangeTraits, Images

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
        StructType([StructField(one.name, one.dataType) for one in payload_fields(df) if one.name not in names])
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
) -> Plan:
    return Plan(
        operator,
        f"changelog_join {operator.how}",
        keys,
        (*keys, *_SIDES),
        payload,
        time_to_live=time_to_live,
        state=state,
        null_keys=True,
    )


def _prepared(df: DataFrame, names: Sequence[str], keys: Sequence[str], plan: Plan, side: int) -> DataFrame:
    """Return one input with the columns that tasks read. `side` is 0 for the left input, 1 for the right one."""
    if side == 1 or plan.operator in (Join("inner"), Join("semi")):
        df = df.where(all_set(names))  # NULL matches nothing
    rows = [field.name for field in payload_fields(df)]
    kind = kind_column(df)
    columns = [quoted(name).alias(key) for name, key in zip(names, keys, strict=True)]
    for place, part in enumerate(_SIDES):
        struct = plan.payload[len(keys) + place].dataType
        assert isinstance(struct, StructType)  # noqa: S101 - for the type checker
        given = F.struct(*(quoted(field.name) for field in struct)) if place == side else F.lit(None).cast(struct)
        columns.append(given.alias(part))
    hashed = hash_of(rows).bitwiseAND(F.lit(-2)).bitwiseOR(F.lit(side))
    shared = F.xxhash64(*(quoted(name) for name in names))
    columns += [shared.alias(KEY_HASH), hashed.alias(ROW_HASH), kind.alias(KIND)]
    word = quoted(CHANGE_TYPE) if CHANGE_TYPE in df.columns else F.lit(None).cast("string")
    columns.append(F.when(kind < 0, word).alias(f"{PREFIX}word"))
    for place, name in enumerate((SPLIT, POSITION)):
        given = quoted(name).cast("string") if name in df.columns else F.lit(None).cast("string")
        columns.append(given.alias(f"{PREFIX}at{place}"))
    if plan.time_to_live is not None:
        columns.append(F.unix_micros(F.current_timestamp()).alias(TOUCHED))
    return df.select(*columns)


def _check_sides(left: DataFrame, right: DataFrame, keys: Sequence[str], others: Sequence[str], how: str) -> None:
    for one, other in zip(keys, others, strict=True):
        types = left.schema[one].dataType, right.schema[other].dataType
        if types[0] != types[1]:
            raise ConfigurationError(
                f"the column {one!r} is {types[0].simpleString()} on the left and {types[1].simpleString()} on the "
                "right",
                option="on",
                advice="cast one of them before the join",
            )
    fields = [*payload_fields(left), *payload_fields(right)]
    check_comparable(fields, "on")
    if how in ("inner", "left"):
        mine = {field.name.lower() for field in payload_fields(left)} - {key.lower() for key in keys}
        both = [field.name for field in payload_fields(right) if field.name.lower() in mine]
        if both:
            raise ConfigurationError(
                f"both inputs have the column {both[0]!r}", option="on", advice="rename it on one side, or join on it"
            )
