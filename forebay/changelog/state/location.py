# SPDX-License-Identifier: Apache-2.0
"""Where the state of one operator of one query is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from forebay.changelog.state.manifest import OperatorInfo
from forebay.changelog.state.segments import StoredSegments
from forebay.changelog.state.shard import INFO, Shard
from forebay.state.open_state_store import open_state_store
from forebay.state.state_store import StateStore
from forebay.stores.storage_options import StorageOptions


@dataclass(frozen=True)
class OperatorState:
    """The state of an operator. It is pickled to the tasks; secrets stay references.

    Args:
        location: A directory that all machines share, or `s3://bucket/prefix`.
        name: The name of the operator, which is a directory below the location.
        storage: Settings of S3, as `stateStorage.*` of a stream.
        shards: The number of shards; None if it is not known yet.
        retained: How many versions before the current one stay readable, as `spark.sql.streaming.minBatchesToRetain`.
    """

    location: str
    name: str
    storage: Mapping[str, object] = field(default_factory=dict)
    shards: int | None = None
    retained: int = 100

    @property
    def directory(self) -> str:
        """The directory of the operator below the location, ending in a slash."""
        return f"{self.name}/"

    def store(self) -> StateStore:
        """Return the store, without access to it.

        Raises:
            ConfigurationError: The store cannot keep state, or an option is unknown.
        """
        return open_state_store(self.location, StorageOptions(self.storage))

    def shard(self, number: int) -> Shard:
        """Return a shard, without access to it."""
        store = self.store()
        return Shard(store, StoredSegments(store), self.directory, number, self.retained)

    def info(self) -> OperatorInfo | None:
        """Return what the state belongs to; None if there is no state yet."""
        name = f"{self.directory}{INFO}"
        data = self.store().get(name)
        return None if data is None else OperatorInfo.from_bytes(data, name)
