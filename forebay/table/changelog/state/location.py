# SPDX-License-Identifier: Apache-2.0
"""The location and settings of the state of one operator of one query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from forebay.state.open_state_store import open_state_store
from forebay.state.retrying_state_store import RetryingStateStore
from forebay.state.state_store import StateStore
from forebay.stores.storage_options import StorageOptions
from forebay.table.changelog.state.manifest import OperatorInfo
from forebay.table.changelog.state.segments import StoredSegments
from forebay.table.changelog.state.shard import Shard, info_name


@dataclass(frozen=True)
class OperatorState:
    """The state of an operator. It is pickled to the tasks; secrets stay references.

    Args:
        location: A directory that all machines share, or `s3://bucket/prefix`.
        name: The name of the operator, which is a directory below the location.
        storage: Settings of S3, as `stateStorage.*` of a stream.
        shards: The number of shards; None if it is not known yet.
        generation: How often the state was resharded.
        inside: The directory of this generation's shards, below the directory of the operator.
        retained: How many versions before the current one stay readable, as `spark.sql.streaming.minBatchesToRetain`.
    """

    location: str
    name: str
    storage: Mapping[str, object] = field(default_factory=dict)
    shards: int | None = None
    retained: int = 100
    generation: int = 0
    inside: str = ""

    @property
    def directory(self) -> str:
        """The directory of the operator below the location, ending in a slash."""
        return f"{self.name}/"

    def store(self) -> StateStore:
        """Return the state store, which repeats failed requests, without any request to it.

        Raises:
            ConfigurationError: The store cannot keep state, or an option is unknown.
        """
        return RetryingStateStore(open_state_store(self.location, StorageOptions(self.storage)))

    def shard(self, number: int) -> Shard:
        """Return a shard, without any request to the store."""
        store = self.store()
        return Shard(
            store,
            StoredSegments(store),
            self.directory,
            number,
            self.retained,
            generation=self.generation,
            inside=self.inside,
        )

    def info(self) -> OperatorInfo | None:
        """Return the `OperatorInfo` of the last generation: what the state belongs to. None: there is no state yet."""
        store, found = self.store(), None
        for generation in count():
            name = info_name(self.directory, generation)
            data = store.get(name)
            if data is None:
                break
            found = OperatorInfo.from_bytes(data, name)
        return found

    def at(self, info: OperatorInfo) -> OperatorState:
        """Return the same state with the shards of the generation that `info` describes."""
        return replace(self, shards=info.shards, generation=info.generation, inside=info.directory)
