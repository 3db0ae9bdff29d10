# SPDX-License-Identifier: Apache-2.0
"""`IndexTarget`: the datasource of an object type as a target of `apply_changes`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every user of PySpark writes it

from forebay.errors import ConfigurationError
from forebay.spark.changelog.columns import quoted
from forebay.spark.changelog.targets.changes import DELETED, LANE, SEQUENCE, ChangeOptions, Changes
from forebay.spark.changelog.targets.target import Target
from forebay.spark.index.rows import key_columns
from forebay.table.changelog.shape import LOG
from forebay.table.changelog.shape import SEQUENCE as LOG_SEQUENCE
from forebay.table.index.definition import Datasource, ObjectType
from forebay.table.index.transactions import Committed, Transaction

Apply = Callable[[DataFrame, Transaction, Column | None, tuple[Column, Column] | None], Committed]
"""Commits the rows of a transaction: which of them delete their key; what orders the changes of a key, in which log."""


class IndexTarget(Target):
    """A datasource of an object type. Each micro-batch of a stream is a transaction, committed exactly once.

    Made by `Funnel.target`. If the stream has `_sequence`, that is what orders the changes of a key, unless
    `sequence_by` is given: an older change that comes late changes nothing.
    """

    def __init__(self, object_type: ObjectType, source: Datasource, apply: Apply) -> None:
        self._object_type = object_type
        self._source = source
        self._commit = apply

    def __repr__(self) -> str:
        return f"IndexTarget({self._object_type.name}.{self._source.name})"

    def options(self, df: DataFrame, options: ChangeOptions) -> ChangeOptions:
        """Return the options with `_sequence` as the order, if the DataFrame has it and no other one is given."""
        if options.sequence_by is None and LOG_SEQUENCE in df.columns:
            return replace(options, sequence_by=LOG_SEQUENCE, lane=LOG if LOG in df.columns else None)
        return options

    def _apply(self, changes: Changes, batch_id: int, query_id: str, *, adopt: bool) -> bool:
        if changes.history:
            raise ConfigurationError(
                "a datasource keeps the last row of each key, not a history",
                option="stored_as_scd_type",
                advice="leave out stored_as_scd_type",
            )
        keys = {field.name for field in key_columns(changes.df, self._object_type, self._source).values()}
        if keys != set(changes.keys):
            raise ConfigurationError(
                f"the changes have the key ({', '.join(changes.keys)}), and the datasource {self._source.name!r} has "
                f"the key ({', '.join(sorted(keys))})",
                option="keys",
                advice=f"give keys={sorted(keys)!r}",
            )
        transaction = Transaction(
            self._source.name, f"{query_id}/{batch_id}", "update", owner=query_id, batch=batch_id, adopt=adopt
        )
        sequence = None
        if changes.sequence is not None:
            lane = quoted(LANE) if LANE in changes.df.columns else F.lit(None).cast("string")
            sequence = quoted(SEQUENCE), lane
        return self._commit(changes.df, transaction, quoted(DELETED), sequence).applied
