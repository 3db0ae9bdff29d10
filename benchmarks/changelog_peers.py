# SPDX-License-Identifier: Apache-2.0
"""The same materializer by Spark's own stateful functions in Python: a signed multiset of rows for each key."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from forebay.table.changelog.shape import CHANGE_TYPES

CHANGES = StructType(
    [
        StructField("key", LongType()),
        StructField("value", LongType()),
        StructField("name", StringType()),
        StructField("_change_type", StringType()),
    ]
)
ROW = StructType([StructField("value", LongType()), StructField("name", StringType())])
COUNTED = StructType([StructField("count", IntegerType()), StructField("sequence", LongType())])
ADDS = frozenset((CHANGE_TYPES[0], CHANGE_TYPES[2]))

Rows = dict[tuple[Any, Any], tuple[int, int]]
"""The count of each row and the sequence of its last add."""


def winner(rows: Rows) -> tuple[Any, Any] | None:
    """Return the live row that was added last."""
    live = [(sequence, row) for row, (count, sequence) in rows.items() if count > 0]
    return max(live)[1] if live else None


def count(rows: Rows, row: tuple[Any, Any], word: str, sequence: int) -> None:
    """Count a change."""
    number, last = rows.get(row, (0, -1))
    rows[row] = (number + 1, max(last, sequence)) if word in ADDS else (number - 1, last)


def transition(before: tuple[Any, Any] | None, after: tuple[Any, Any] | None) -> tuple[str, Any] | None:
    """Return the change of the current row: the word and the row."""
    if before == after:
        return None
    if after is None:
        return CHANGE_TYPES[3], before
    return CHANGE_TYPES[0 if before is None else 2], after


class SignedMultiset(StatefulProcessor):
    """`transformWithState`: a map from rows to counts."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Called by Spark."""
        self.rows = handle.getMapState("rows", ROW, COUNTED)

    def handleInputRows(self, key: tuple[int], rows: Iterator[Row], timerValues: object) -> Iterator[Row]:  # noqa: N802, N803 - Spark's
        """Called by Spark, once for each key in a micro-batch."""
        stored = {tuple(row): tuple(counted) for row, counted in self.rows.iterator()}
        after = dict(stored)
        for row in rows:
            count(after, (row["value"], row["name"]), row["_change_type"], row["_sequence"])
        for row, counted in after.items():
            if not counted[0]:
                if row in stored:
                    self.rows.removeKey(row)
            elif stored.get(row) != counted:
                self.rows.updateValue(row, counted)
        changed = transition(winner(stored), winner(after))
        if changed:
            word, current = changed
            yield Row(key=key[0], value=current[0], name=current[1], _change_type=word)

    def close(self) -> None:
        """Called by Spark."""


def transform_with_state(df: DataFrame) -> DataFrame:
    """Materialize by `transformWithState` with rows."""
    return df.groupBy("key").transformWithState(
        statefulProcessor=SignedMultiset(), outputStructType=CHANGES, outputMode="Update", timeMode="None"
    )


def _in_pandas(key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    rows: Rows = pickle.loads(state.get[0]) if state.exists else {}
    before = winner(rows)
    for frame in frames:
        columns = (frame[name].tolist() for name in ("value", "name", "_change_type", "_sequence"))
        for value, name, word, sequence in zip(*columns, strict=True):
            count(rows, (value, name), word, sequence)
    rows = {row: counted for row, counted in rows.items() if counted[0]}
    state.update((pickle.dumps(rows),))
    changed = transition(before, winner(rows))
    if changed:
        word, current = changed
        yield pd.DataFrame({"key": [key[0]], "value": [current[0]], "name": [current[1]], "_change_type": [word]})


def apply_in_pandas_with_state(df: DataFrame) -> DataFrame:
    """Materialize by `applyInPandasWithState`; all rows of a key are one pickled value."""
    return df.groupBy("key").applyInPandasWithState(_in_pandas, CHANGES, "rows binary", "update", "NoTimeout")
