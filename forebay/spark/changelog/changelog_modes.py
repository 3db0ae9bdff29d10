# SPDX-License-Identifier: Apache-2.0
"""Finds the kinds of changes that a DataFrame may hold, and refuses operators that cannot take them (C1, C14)."""

from __future__ import annotations

from pyspark.sql import DataFrame

from forebay.errors import ConfigurationError
from forebay.spark.keys.found_keys import find_key
from forebay.spark.keys.plan.plan_node import PlanNode, analysed_plan
from forebay.table.changelog.mode import ALL, APPEND, UPDATES, UPSERT, ChangelogMode
from forebay.table.changelog.shape import CHANGE_TYPE


def changelog_mode(df: DataFrame) -> ChangelogMode:
    """Return which kinds of changes a DataFrame may hold (C1).

    | the DataFrame | mode |
    |---|---|
    | has the column `_change_type` | all kinds |
    | has a primary key with a deletion flag | inserts, updates without the old row, deletes |
    | has a primary key, or is a streaming aggregate | inserts, updates without the old row |
    | anything else | inserts |

    A streaming aggregate counts as written in the output mode `update`.

    Raises:
        ConfigurationError: The plan has a window function or a join of two streams over changes. Both would treat each
            change as a row (C14).
    """
    return mode_of(df, analysed_plan(df))


def mode_of(df: DataFrame, plan: PlanNode | None) -> ChangelogMode:
    """Return the kinds of changes that a DataFrame with this plan may hold; `plan` is None on Spark Connect.

    Raises:
        ConfigurationError: See `changelog_mode`.
    """
    if plan is not None:
        _refuse_updates(plan)
    if CHANGE_TYPE in df.columns:
        return ALL
    key = find_key(df, plan).key
    if key.primary is not None:
        return UPDATES if key.deleted is None else UPSERT
    return UPDATES if plan is not None and _aggregates(plan) else APPEND


def _aggregates(plan: PlanNode) -> bool:
    return plan.streaming and any(node.kind == "Aggregate" for node in plan.walk())


def _refuse_updates(plan: PlanNode) -> None:
    for node in plan.walk():
        updating = [child for child in node.children if _updates(child)]
        streams = [child for child in node.children if child.streaming]
        if updating and (node.kind == "Window" or (node.kind == "Join" and len(streams) > 1)):
            name = "a window function"
            advice = "materialize the changes, and apply the window function to the rows of the target"
            if node.kind == "Join":
                name, advice = ("a join of two streams", "use changelog_join, which takes changes on both sides")
            got = ALL if any(column.name == CHANGE_TYPE for column in updating[0].output) else UPDATES
            raise ConfigurationError(f"{name} needs append-only rows, but gets {got}: {node.text}", advice=advice)


def _updates(node: PlanNode) -> bool:
    return any(column.name == CHANGE_TYPE for column in node.output) or _aggregates(node)
