# SPDX-License-Identifier: Apache-2.0
"""`apply_changes`: applies a stream of changes to a target, each micro-batch exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from forebay.errors import ConfigurationError
from forebay.spark.changelog.strategy import fold_order
from forebay.spark.changelog.targets.changes import ChangeOptions, fold_changes
from forebay.spark.changelog.targets.target import Target, apply_folded

_QUERY_ID = "sql.streaming.queryId"


def apply_changes(  # noqa: PLR0913 - keywords of a function for users
    df: DataFrame,
    target: Target,
    *,
    keys: str | Sequence[str],
    checkpoint_location: str,
    sequence_by: str | Column | None = None,
    apply_as_deletes: str | Column | None = None,
    except_column_list: Sequence[str] = (),
    stored_as_scd_type: Literal[1, 2, "1", "2"] = 1,
    null_keys: Literal["error", "drop"] = "error",
    adopt: bool = False,
    trigger: Mapping[str, Any] | None = None,
    output_mode: Literal["append", "update"] = "append",
    query_name: str | None = None,
) -> StreamingQuery:
    """Start a query that applies a stream of changes to a target, each micro-batch exactly once.

    The arguments have the names and meanings of Spark's `create_auto_cdc_flow`. The target writes the rows of a
    micro-batch and the id of that micro-batch in one atomic step, so a micro-batch that Spark repeats is skipped.

    Args:
        df: A streaming DataFrame: a changelog (`_change_type`), or plain rows, which replace the row of their key.
        target: A `PostgresTarget`, a `DeltaTarget`, an `ArchiveTarget` or the `target` of a `forebay.index.Funnel`.
        keys: The columns that identify a row of the target.
        checkpoint_location: The checkpoint of the query.
        sequence_by: A column, or SQL text of an expression, that orders all changes of a key. The target stores it, so
            a change that arrives in a later micro-batch than a newer one has no effect. Without it, the plan must
            prove that changes come in order; within a micro-batch, columns such as `_split` and `_pos` order them.
        apply_as_deletes: A condition, as a column or SQL text, that marks plain rows as deletes. NULL is false.
        except_column_list: Columns that the target does not store.
        stored_as_scd_type: 1 keeps the row of each key; 2 keeps all versions, from `__START_AT` to `__END_AT`.
        null_keys: For a row with a NULL in a key column: `error` fails, `drop` drops the row.
        adopt: Take over a target that another query wrote. From then on, the target refuses that query.
        trigger: The arguments of `DataStreamWriter.trigger`, such as `{"availableNow": True}`.
        output_mode: `update` for an aggregation, whose rows replace those of earlier micro-batches.
        query_name: The name of the query.

    Returns:
        The running query.

    Raises:
        ConfigurationError: `df` is no stream, an argument does not fit it, or `sequence_by` is missing, and nothing
            proves that the changes of a key come in order. Errors of `Target.apply` end the query.
    """
    if not df.isStreaming:
        raise ConfigurationError(
            "apply_changes takes a streaming DataFrame, and this one is a batch DataFrame",
            advice="call target.apply(df, batch_id, query_id, keys=…)",
        )
    # Wrong arguments are refused here, not by the first micro-batch.
    options = ChangeOptions(keys, sequence_by, apply_as_deletes, except_column_list, stored_as_scd_type, null_keys)
    options = target.options(df, options)
    changes = fold_changes(df, options)
    sequenced, flagged = options.sequence_by is not None, options.apply_as_deletes is not None
    options = replace(options, order=fold_order(df, changes.keys, sequenced=sequenced, flagged=flagged))

    def write(batch: DataFrame, batch_id: int) -> None:
        apply_folded(target, batch, batch_id, _query_id(batch), options, adopt=adopt)

    writer = df.writeStream.foreachBatch(write).outputMode(output_mode)
    writer = writer.option("checkpointLocation", checkpoint_location)
    if query_name:
        writer = writer.queryName(query_name)
    if trigger:
        writer = writer.trigger(**trigger)
    return writer.start()


def _query_id(batch: DataFrame) -> str:
    """Return the id of the streaming query that calls `foreachBatch` on this thread."""
    try:
        found = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
    except Exception as error:  # Spark Connect has no SparkContext, and says so by an error of its own
        raise ConfigurationError(
            "on Spark Connect, foreachBatch does not get the id of its query",
            advice="in foreachBatch, call target.apply(batch, batch_id, query_id, keys=…) with an id of your own that "
            "is the same after each restart",
        ) from error
    if found is None:
        raise ConfigurationError(
            "this thread does not run foreachBatch of a streaming query", advice="call target.apply with a query id"
        )
    return str(found)
