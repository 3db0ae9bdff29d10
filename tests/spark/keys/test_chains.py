# SPDX-License-Identifier: Apache-2.0
"""Random chains of operations of Spark against Foundry's rules."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from key_chains import COLUMNS, FLAG, Reference, Step, chains
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from forebay.keys import KeySpec, from_foundry_schema, key_by, keys_of, strip_keys, to_foundry_schema


def same(rows):
    return rows


def transformed(df: DataFrame, step: Step, place: int) -> DataFrame:
    """Apply a step; which of several operations of one kind is told by its place in the chain."""
    match step.what:
        case "rename":
            (old,) = step.columns
            other = df.select([F.col(name).alias(step.name) if name == old else F.col(name) for name in df.columns])
            return df.withColumnRenamed(old, step.name) if place % 2 else other
        case "drop":
            return df.drop(*step.columns)
        case "overwrite":
            (name,) = step.columns
            return df.withColumn(name, F.coalesce(name, F.lit("")) if place % 2 else F.upper(name))
        case "key" | "cdc":
            return key_by(df, *step.columns, cdc=step.what == "cdc", deleted=step.name or None)
        case "stateful":
            return df.distinct() if place % 2 else df.groupBy(*df.columns).agg(F.count("*").alias("n")).drop("n")
        case "function":
            return df.mapInArrow(same, df.schema)
        case _:
            ways = (
                df.filter("1 = 1"),
                df.repartition(2),
                df.union(df),
                df.join(df.limit(1).select(F.lit(1)), how="cross"),
            )
            return ways[place % 4].select(*df.columns)


KINDS = ("rename", "drop", "overwrite", "key", "cdc", "keep", "stateful", "function")


@pytest.mark.soak
@given(chains(KINDS, max_size=7))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_keys_follow_the_rules_through_spark(session, steps):
    """P11: after every step, both as Foundry reads keys and as we do; and Foundry's JSON gives the key back."""
    df = session.createDataFrame([], ", ".join(f"{name} {'boolean' if name == FLAG else 'string'}" for name in COLUMNS))
    references = (Reference(lenient=True), Reference(lenient=False))
    for place, step in enumerate(steps):
        df = transformed(df, step, place)
        for reference in references:
            reference.apply(step)
            expected = KeySpec(reference.partition, reference.primary, reference.deleted)
            assert keys_of(df, lenient=reference.lenient) == expected
    again = keys_of(from_foundry_schema(strip_keys(df), to_foundry_schema(df)))
    key = keys_of(df)
    # The JSON marks the columns of a partition key, and has no place for their order.
    ordered = key.partition if key.primary else tuple(name for name in df.columns if name in key.partition)
    assert again == KeySpec(ordered, key.primary, key.deleted)
