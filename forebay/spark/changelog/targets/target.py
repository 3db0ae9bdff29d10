# SPDX-License-Identifier: Apache-2.0
"""The base class of targets, which apply each micro-batch of a query exactly once."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from forebay.errors import ConfigurationError, unwrap
from forebay.spark.changelog.strategy import fold_order
from forebay.spark.changelog.targets.changes import ChangeOptions, Changes, fold_changes
from forebay.table.changelog.state.typed_values import is_text

_SPARK_STOPPED: Final = "py4j.protocol.Py4JJavaError: An error occurred while calling"
_INTERRUPTED = re.compile(
    r"An error occurred while calling [^\n]*\n: java\.(lang\.InterruptedException|io\.InterruptedIOException|"
    r"nio\.channels\.ClosedByInterruptException)"
)
"""The text of an interrupted call of the JVM."""


class Target(ABC):
    """A table or archive of a changelog's rows. `apply_changes` writes a stream to it, `apply` one micro-batch."""

    def apply(  # noqa: PLR0913 - keywords of a function for users
        self,
        df: DataFrame,
        batch_id: int,
        query_id: str,
        *,
        keys: str | Sequence[str],
        sequence_by: str | Column | None = None,
        apply_as_deletes: str | Column | None = None,
        except_column_list: Sequence[str] = (),
        stored_as_scd_type: Literal[1, 2, "1", "2"] = 1,
        null_keys: Literal["error", "drop"] = "error",
        adopt: bool = False,
    ) -> bool:
        """Apply the changes of one micro-batch, unless they are applied already. Called in `foreachBatch`.

        Args:
            df: The micro-batch.
            batch_id: The id of the micro-batch, which grows within a query.
            query_id: The id of the query, the same after each restart (`StreamingQuery.id`).
            keys: See `apply_changes`.
            sequence_by: See `apply_changes`.
            apply_as_deletes: See `apply_changes`.
            except_column_list: See `apply_changes`.
            stored_as_scd_type: See `apply_changes`.
            null_keys: See `apply_changes`.
            adopt: See `apply_changes`.

        Returns:
            Whether the changes were applied; False for a micro-batch that was applied before.

        Raises:
            ConfigurationError: The arguments or the target do not fit the changes, or another query wrote the target.
            DataError: A change cannot be applied: its key is NULL, its order is unknown, a value does not fit.
            RetriableError: The target does not answer.
        """
        if df.isStreaming:
            raise ConfigurationError(
                "apply takes one micro-batch, and this DataFrame is a stream",
                advice="call it in foreachBatch, or call apply_changes with the stream",
            )
        if isinstance(batch_id, bool) or not isinstance(batch_id, int) or not 0 <= batch_id < 1 << 63:
            raise ConfigurationError(
                f"the micro-batch is {batch_id!r:.100}", option="batch_id", advice="pass the id that foreachBatch gets"
            )
        if not is_text(query_id):
            raise ConfigurationError(
                f"the query is {query_id!r:.100}",
                option="query_id",
                advice="pass a text that stays the same after each restart, as StreamingQuery.id",
            )
        options = ChangeOptions(keys, sequence_by, apply_as_deletes, except_column_list, stored_as_scd_type, null_keys)
        return apply_folded(self, df, batch_id, query_id, options, adopt=adopt)

    def options(self, df: DataFrame, options: ChangeOptions) -> ChangeOptions:
        """Return the options with the defaults of the target. Called before changes are folded."""
        return options

    @abstractmethod
    def _apply(self, changes: Changes, batch_id: int, query_id: str, *, adopt: bool) -> bool:
        """Write changes and micro-batch id in one atomic step; return False if the micro-batch was written before."""


def apply_folded(
    target: Target, df: DataFrame, batch_id: int, query_id: str, options: ChangeOptions, *, adopt: bool = False
) -> bool:
    """Fold the changes of a micro-batch as `options` say, and apply them to a target; see `Target.apply`."""
    try:
        return target._apply(fold_changes(df, target.options(df, options)), batch_id, query_id, adopt=adopt)  # noqa: SLF001 - of this module
    except Exception as error:
        if _INTERRUPTED.search(str(error)):
            # StreamingQuery.stop. Spark matches a pattern against the text, and a long text overflows its stack.
            raise RuntimeError(f"{_SPARK_STOPPED} a micro-batch: java.lang.InterruptedException") from None
        unwrapped = unwrap(error)
        if unwrapped is None or unwrapped is error:
            raise
        raise unwrapped from error


def check_owner(target: str, owner: str | None, query_id: str, *, adopt: bool) -> None:
    """Check that no other query wrote the target, unless this query adopts it.

    Args:
        target: The name of the target, for the error.
        owner: The id of the query that wrote the target last, or None.
        query_id: The id of the query that is about to write.
        adopt: Whether this query takes the target over.

    Raises:
        ConfigurationError: Another query wrote the target.
    """
    if owner is None or owner == query_id or adopt:
        return
    raise ConfigurationError(
        f"{target} was written by the query {owner}, and this is the query {query_id}",
        option="adopt",
        advice="continue with the checkpoint of that query; to let this one take over, stop the other one and start "
        "this one with adopt=True",
    )


# -- `apply_changes`: applies a stream of changes to a target, each micro-batch exactly once.


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
    sequenced = options.sequence_by is not None
    flagged = apply_as_deletes is not None  # a flag that the target supplies does not say what changes mean
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
        query_id = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
    except Exception as error:  # Spark Connect has no SparkContext, and says so by an error of its own
        raise ConfigurationError(
            "on Spark Connect, foreachBatch does not get the id of its query",
            advice="in foreachBatch, call target.apply(batch, batch_id, query_id, keys=…) with an id of your own that "
            "is the same after each restart",
        ) from error
    if query_id is None:
        raise ConfigurationError(
            "this thread does not run foreachBatch of a streaming query", advice="call target.apply with a query id"
        )
    return str(query_id)
