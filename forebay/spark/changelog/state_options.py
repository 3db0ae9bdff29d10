# SPDX-License-Identifier: Apache-2.0
"""Checks the options of stateful functions for the place and the lifetime of state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from pyspark.sql import SparkSession

from forebay.errors import ConfigurationError
from forebay.options import Duration
from forebay.options.quantities import DurationLike
from forebay.table.changelog.state.location import OperatorState


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
    if shards is not None and shards < 1:
        raise ConfigurationError(f"shards is {shards}", option="shards", advice="give 1 or more")
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
        found = Duration(time_to_live) // timedelta(microseconds=1)
    except ValueError as error:
        raise ConfigurationError(f"state_ttl is {time_to_live!r}: {error}", option="state_ttl") from error
    if found == 0:
        raise ConfigurationError("state_ttl is 0", option="state_ttl", advice="leave it out to keep state for ever")
    return found
