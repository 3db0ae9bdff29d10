# SPDX-License-Identifier: Apache-2.0
"""Runs an operator on a DataFrame: rows go to the shard of their key, and a task runs the operator on its shard.

A streaming DataFrame keeps state: Spark gives each task the id of the micro-batch, which is the version of the state.
The result is an ordinary DataFrame, for any sink; a retried or repeated micro-batch gives the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta

import numpy as np
import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as every user of PySpark writes it
from pyspark.sql.types import LongType, StringType, StructField, StructType

from forebay.errors import ConfigurationError, FatalError
from forebay.options import Duration
from forebay.options.quantities import DurationLike
from forebay.spark.changelog.columns import ORDERED_WITHIN, hash_of, key_names, kind_column, map_in_arrow, quoted
from forebay.spark.changelog.newest import failure
from forebay.spark.conform import arrow_schema
from forebay.spark.errors import as_spark_error
from forebay.spark.processes import freeze_modules
from forebay.table.changelog.operators.events import Layout, collect
from forebay.table.changelog.operators.micro_batch import Expiry, Operator, run_micro_batch
from forebay.table.changelog.shape import CHANGE_TYPE, COMMIT_VERSION, POSITION, SPLIT
from forebay.table.changelog.state.manifest import MOST_SHARDS, OperatorInfo
from forebay.table.changelog.state.segments import KEY_HASH, KIND, ORDER, PREFIX, ROW_HASH, TOUCHED
from forebay.table.changelog.state.shard import OperatorState, lookup

# -- Checks the options of stateful functions for the place and the lifetime of state.


def operator_state(
    location: str | None,
    name: str,
    storage: Mapping[str, object] | None,
    shards: int | None,
) -> OperatorState:
    """Check and return the state options of a streaming function.

    Raises:
        ConfigurationError: There is no location, or a value is out of range.
    """
    if location is None:
        raise ConfigurationError(
            f"{name} of a streaming DataFrame keeps state, and needs a place for it",
            option="state_location",
            advice="give each query its own state_location: a directory that all machines share, or s3://bucket/prefix",
        )
    if not name or "/" in name or name.startswith("."):
        raise ConfigurationError(
            f"the name {name!r} cannot name a directory",
            option="name",
            advice="give a name without '/' that does not begin with '.'",
        )
    if shards is not None and not 1 <= shards <= MOST_SHARDS:
        raise ConfigurationError(f"shards is {shards}", option="shards", advice=f"give 1 to {MOST_SHARDS:,}")
    return OperatorState(location, name, dict(storage or {}), shards)


def with_shards(state: OperatorState, spark: SparkSession) -> OperatorState:
    """Return the state with its numbers of shards and of retained versions filled in. Called on the driver.

    A stored state keeps its number of shards.

    Raises:
        ConfigurationError: The stored state has another number of shards, or the store cannot keep state.
    """
    retained = spark.conf.get("spark.sql.streaming.minBatchesToRetain", "100")
    state = replace(state, retained=max(1, int(retained or 100)))
    info = state.info()
    if info is None:
        context = getattr(spark, "_sc", None)
        default = 8 if context is None else int(context.defaultParallelism)  # Spark Connect does not show it
        return replace(state, shards=state.shards or default)
    if state.shards not in (None, info.shards):
        raise ConfigurationError(
            f"the state below {state.location!r} has {info.shards} shards, not {state.shards}",
            option="shards",
            advice=f"leave shards out, or stop the query and run `forebay state reshard {state.location} "
            f"--name {state.name} --shards {state.shards}`",
        )
    return state.at(info)


def microseconds(time_to_live: DurationLike | None) -> int | None:
    """Return a time to live in microseconds.

    Args:
        time_to_live: Seconds, a timedelta, a text such as `7 days`, or None.

    Raises:
        ConfigurationError: The value is not a duration, or is 0.
    """
    if time_to_live is None:
        return None
    try:
        micros = Duration(time_to_live) // timedelta(microseconds=1)
    except ValueError as error:
        raise ConfigurationError(f"state_ttl is {time_to_live!r}: {error}", option="state_ttl") from error
    if micros == 0:
        raise ConfigurationError("state_ttl is 0", option="state_ttl", advice="leave it out to keep state for ever")
    return micros


_OUTPUT_ROWS = 50_000
"""Maximum rows of a record batch that a task returns to Spark."""

BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True)
class OperatorPlan:
    """What a stateful function runs: the operator, the columns that it reads, and its state.

    Args:
        operator: The operator that each task runs.
        title: Names the function in the state and in errors, such as `materialize retract`.
        key: The key columns.
        identity: The columns that identify a row within its key.
        payload: The columns of a row.
        order: The columns that order changes.
        by_version: Whether the micro-batch id orders changes before `order`.
        time_to_live: Microseconds; None keeps state for ever.
        time: The column with the time of a row for the time to live; None: the time of the micro-batch.
        state: Where state is kept; None for a batch DataFrame.
        null_keys: Whether NULL is a value of the key, rather than an error.
    """

    operator: Operator
    title: str
    key: tuple[str, ...]
    identity: tuple[str, ...]
    payload: list[StructField]
    order: tuple[str, ...] = ()
    by_version: bool = True
    time_to_live: int | None = None
    time: str | None = None
    state: OperatorState | None = None
    null_keys: bool = False


@dataclass(frozen=True)
class _Task:
    """The function that `mapInArrow` runs in each task. Spark pickles it to the workers."""

    plan: OperatorPlan
    layout: Layout
    shards: int
    keys: tuple[tuple[str, str], ...] = field(default=())

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_modules()
        with as_spark_error(self.plan.title, "running"):
            changes = self._run(batches)
        for start in range(0, changes.num_rows, _OUTPUT_ROWS):
            yield changes.slice(start, _OUTPUT_ROWS)

    def _run(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        from pyspark import TaskContext

        plan, context = self.plan, TaskContext.get()
        if plan.state is None:
            events = collect(batches, self.layout)
            nothing = lookup([], np.empty(0, np.int64), timed=self.layout.timed)
            return plan.operator.apply(events, nothing, Expiry(), 0).changes
        version = None if context is None else context.getLocalProperty(BATCH_ID)
        if context is None or version is None:
            raise FatalError(
                "Spark does not tell this task the id of its micro-batch",
                advice="run the function in a streaming query with a micro-batch trigger",
            )
        query = context.getLocalProperty(QUERY_ID) or ""
        ordered = f" in the order of {', '.join(plan.order)}" if plan.order else ""
        info = OperatorInfo(query, f"{plan.title}{ordered}", self.shards, self.keys, int(version))
        shard = plan.state.shard(context.partitionId())
        return run_micro_batch(
            plan.operator, shard, info, int(version), batches, layout=self.layout, time_to_live=plan.time_to_live
        ).changes


def run_stateful(df: DataFrame, plan: OperatorPlan) -> DataFrame:
    """Run the operator of `plan` on a DataFrame, and return its changes.

    Raises:
        ConfigurationError: The location cannot keep state, the stored state has another number of shards, or another
            function of the plan has the same state.
    """
    return run_prepared(df.select(*prepared_columns(df, plan)), plan)


def prepared_columns(df: DataFrame, plan: OperatorPlan) -> list[Column]:
    """Return the columns that tasks read: payload, hashes of key and row, change kind, order, position and time."""
    kind = kind_column(df)
    columns = [quoted(column.name) for column in plan.payload]
    columns += [hash_of(plan.key).alias(KEY_HASH), hash_of(plan.identity).alias(ROW_HASH), kind.alias(KIND)]
    columns += [quoted(name).alias(f"{ORDER}{place}") for place, name in enumerate(plan.order)]
    if CHANGE_TYPE in df.columns:
        columns.append(F.when(kind < 0, quoted(CHANGE_TYPE)).alias(f"{PREFIX}word"))
    for place, name in enumerate(name for name in (SPLIT, POSITION) if name in df.columns):
        columns.append(quoted(name).alias(f"{PREFIX}at{place}"))
    if plan.time_to_live is not None:
        columns.append(_time(df, plan).alias(TOUCHED))
    return columns


def _time(df: DataFrame, plan: OperatorPlan) -> Column:
    """Return the time of a row for the time to live, in microseconds; a NULL event time is an error."""
    if plan.time is None:
        return F.unix_micros(F.current_timestamp())
    (name,) = key_names(df, plan.time, "event_time")
    shown = F.to_json(F.struct(*(quoted(key) for key in plan.key)))
    null = failure(
        [f"the event time {name!r} is NULL for the key ", shown],
        "fill the column first, or leave event_time out to use the time of the micro-batch",
    )
    return F.coalesce(F.unix_micros(quoted(name).cast("timestamp")), null.cast("bigint"))


def run_prepared(prepared: DataFrame, plan: OperatorPlan, output: StructType | None = None) -> DataFrame:
    """Send prepared rows to the shards of their keys, and run the operator there. Return its changes.

    Args:
        prepared: The columns of `prepared_columns`.
        plan: The operator.
        output: The schema of the result; by default a changelog of the payload.
    """
    spark = prepared.sparkSession
    state = plan.state if prepared.isStreaming else None
    if state is None:
        conf = spark.conf.get("spark.sql.shuffle.partitions")
        shards = int(conf or 200)
    else:
        state = with_shards(state, spark)
        shards = state.shards or 1
    schema = StructType([StructField(column.name, column.dataType) for column in plan.payload])
    arrow = arrow_schema(prepared.schema)
    orders = tuple(arrow.field(name).type for name in arrow.names if name.startswith(ORDER))
    layout = Layout(
        plan.key,
        plan.identity,
        arrow_schema(schema),
        orders,
        by_version=plan.by_version,
        timed=plan.time_to_live is not None,
        null_keys=plan.null_keys,
    )
    types = tuple((name, schema[name].dataType.simpleString()) for name in plan.key)
    task = _Task(replace(plan, state=state), layout, shards, types)
    shard = F.pmod(F.col(KEY_HASH), F.lit(shards)).cast("int")
    result = output or changelog_schema(schema, plan.key)
    if state is None:
        return map_in_arrow(prepared.repartitionById(shards, shard), task, result)
    # Spark prunes operators over an empty input, but not `observe`. So each micro-batch runs all shards.
    with own_names():
        seen = prepared.observe(f"{state.location}/{state.name}", F.count(F.lit(1)).alias("events"))
    changes = map_in_arrow(seen.repartitionById(shards, shard), task, result)
    # This shuffle ends the stage. A coalesce, union or limit in the stage would change the partition ids, which are the
    # shards, and some shards would not run.
    numbered = changes.withColumn(f"{PREFIX}shard", F.spark_partition_id())
    return numbered.repartitionById(shards, F.col(f"{PREFIX}shard")).drop(f"{PREFIX}shard")


@contextmanager
def own_names() -> Iterator[None]:
    """Raise a ConfigurationError in a block that puts two functions with one state into one plan."""
    try:
        yield
    except AnalysisException as error:
        if error.getCondition() != "DUPLICATED_METRICS_NAME":
            raise
        state = (error.getMessageParameters() or {}).get("metricName", "")
        raise ConfigurationError(
            f"two functions of the query have the same state, {state}",
            option="name",
            advice="give each function a name of its own: normalize(…, name='orders'), normalize(…, name='customers')",
        ) from error


def changelog_schema(payload: StructType, key: Sequence[str]) -> StructType:
    """Return the Spark schema of a changelog whose `_commit_version` orders the changes of each value of `key`."""
    version = StructField(COMMIT_VERSION, LongType(), metadata={ORDERED_WITHIN: list(key)})
    return StructType([*payload.fields, StructField(CHANGE_TYPE, StringType()), version])
