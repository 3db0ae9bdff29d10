# SPDX-License-Identifier: Apache-2.0
"""Where a stateful function keeps its state, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from pyspark.sql import SparkSession

from forebay.changelog.state.manifest import OperatorInfo
from forebay.changelog.state.segments import StoredSegments
from forebay.changelog.state.shard import INFO, Shard
from forebay.errors import ConfigurationError
from forebay.options import Duration
from forebay.options.quantities import DurationLike
from forebay.state.open_state_store import open_state_store
from forebay.stores.storage_options import StorageOptions


@dataclass(frozen=True)
class StateOptions:
    """The state of one function in one query. It is pickled to the tasks; secrets stay references.

    Args:
        location: A directory that all machines share, or `s3://bucket/prefix`.
        name: Tells functions of one query apart.
        storage: Settings of S3, as `stateStorage.*` of a stream.
        shards: The number of shards; None takes that of the state, or the session's parallelism.
        retained: How many versions before the current one stay readable, as `spark.sql.streaming.minBatchesToRetain`.
    """

    location: str
    name: str
    storage: Mapping[str, object] = field(default_factory=dict)
    shards: int | None = None
    retained: int = 100

    @property
    def directory(self) -> str:
        """The directory of the function below the location, ending in a slash."""
        return f"{self.name}/"

    def shard(self, number: int) -> Shard:
        """Return a shard, without access to it."""
        store = open_state_store(self.location, StorageOptions(self.storage))
        return Shard(store, StoredSegments(store), self.directory, number, self.retained)

    def number_of_shards(self, spark: SparkSession) -> int:
        """Return the number of shards: that of the state if there is one. Called on the driver.

        Raises:
            ConfigurationError: The state has another number than `shards`, or the store cannot keep state.
        """
        name = f"{self.directory}{INFO}"
        data = open_state_store(self.location, StorageOptions(self.storage)).get(name)
        if data is not None:
            found = OperatorInfo.from_bytes(data, name).shards
            if self.shards not in (None, found):
                raise ConfigurationError(
                    f"the state below {self.location!r} has {found} shards, not {self.shards}",
                    option="shards",
                    advice=f"leave shards out, or stop the query and run `forebay state reshard {self.location} "
                    f"{self.name} {self.shards}`",
                )
            return found
        context = getattr(spark, "_sc", None)
        return self.shards or (int(context.defaultParallelism) if context is not None else 8)


def state_options(
    location: str | None,
    name: str,
    storage: Mapping[str, object] | None,
    shards: int | None,
) -> StateOptions:
    """Check and return the state options of a streaming function.

    Raises:
        ConfigurationError: There is no location, or a value is out of range.
    """
    if location is None:
        raise ConfigurationError(
            f"{name} of a streaming DataFrame keeps state, and needs a place for it",
            option="state_location",
            advice="give state_location: a directory that all machines share, or s3://bucket/prefix; one for a query",
        )
    if not name or "/" in name or name.startswith("."):
        raise ConfigurationError(f"the name {name!r} is no name of a directory", option="name")
    if shards is not None and shards < 1:
        raise ConfigurationError(f"shards is {shards}", option="shards", advice="give 1 or more")
    return StateOptions(location, name, dict(storage or {}), shards)


def microseconds(time_to_live: DurationLike | None) -> int | None:
    """Return a time to live in microseconds.

    Args:
        time_to_live: Seconds, a timedelta, a text such as `7 days`, or None.

    Raises:
        ConfigurationError: It is no duration, or is 0.
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
