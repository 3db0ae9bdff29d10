# SPDX-License-Identifier: Apache-2.0
"""Shows the key of a DataFrame, and how rows are spread over its values (K26, K29)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody uses

from forebay.errors import ConfigurationError
from forebay.spark.keys.found_keys import find_key, keys_of
from forebay.spark.keys.plan.plan_node import analysed_plan
from forebay.spark.keys.row_order import RowOrder, row_order
from forebay.table.changelog.shape import CHANGE_TYPE
from forebay.table.keys.key_spec import KeySpec


def describe_keys(df: DataFrame) -> str:
    """Return the key as text: a line for each of its columns, what was lost, and the guarantee of order (K29).

    For a changelog, further lines say which rows its changes hold, whether each comes exactly once, and where the plan
    lost that.
    """
    plan = analysed_plan(df)
    found, order = find_key(df, plan), row_order(df, plan)
    types = {field.name: field.dataType.simpleString() for field in df.schema}
    lines = [f"{name} {types[name]}: {', '.join(_roles(found.key, name))}" for name in found.key.columns]
    warnings = [f"warning: {text}" for text in found.warnings]
    return "\n".join([*(lines or ["no key"]), *warnings, f"order: {order.guarantee}", *_traits(df, order)])


@dataclass(frozen=True)
class KeyProfile:
    """How rows are spread over the values of a key.

    Args:
        rows: The number of rows.
        keys: The number of different values.
        top: The most frequent values, each with its number of rows.
    """

    rows: int
    keys: int
    top: tuple[tuple[tuple[Any, ...], int], ...]

    @property
    def biggest_share(self) -> float:
        """The share of rows with the most frequent value, 0 to 1. More than `1 / biggest_share` tasks do not help."""
        return self.top[0][1] / self.rows if self.top else 0.0


def key_profile(df: DataFrame, *, top: int = 10) -> KeyProfile:
    """Count the rows of each value of the partition key (K26). Runs two jobs.

    Args:
        df: A batch DataFrame with a key.
        top: How many of the most frequent values are listed.

    Raises:
        ConfigurationError: The DataFrame is streaming, or has no partition key.
    """
    columns = list(keys_of(df).partition)
    if df.isStreaming or not columns:
        raise ConfigurationError(
            "the rows of a stream cannot be counted" if df.isStreaming else "the DataFrame has no partition key",
            option="df",
            advice="profile a batch read of the same source" if df.isStreaming else "call key_by first",
        )
    quoted = [f"`{name.replace('`', '``')}`" for name in columns]
    counts = df.groupBy(*quoted).agg(F.count(F.lit(1)).alias("_rows"))
    total = counts.agg(F.sum("_rows"), F.count(F.lit(1))).collect()[0]
    first = counts.orderBy(F.desc("_rows"), *quoted).limit(top).collect()
    return KeyProfile(int(total[0] or 0), int(total[1]), tuple((tuple(row)[:-1], int(row["_rows"])) for row in first))


def _traits(df: DataFrame, order: RowOrder) -> list[str]:
    changes = order.changes
    if changes is None or (CHANGE_TYPE not in df.columns and not changes.kinds):
        return []
    images = "not declared" if changes.images is None else changes.images.name.lower()
    history = "complete" if changes.complete else "unknown"
    broken = [f"no table: {changes.broken[0]}"] if changes.broken else []
    return [f"images: {images}", f"history: {history}", *(f"lost: {text}" for text in changes.lost), *broken]


def _roles(key: KeySpec, name: str) -> list[str]:
    roles = [
        f"{role} key {columns.index(name) + 1} of {len(columns)}"
        for role, columns in (("partition", key.partition), ("primary", key.primary or ()))
        if name in columns
    ]
    roles += ["deletion flag"] if name == key.deleted else []
    return roles + ([f"ordering {key.ordering.index(name) + 1} of {len(key.ordering)}"] if name in key.ordering else [])
