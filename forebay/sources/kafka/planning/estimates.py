# SPDX-License-Identifier: Apache-2.0
"""Estimates the bytes per offset of partitions from their sizes on the brokers' disks."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Final

from forebay.clock import Clock
from forebay.sources.kafka.client.cluster import Cluster
from forebay.sources.kafka.split import TopicPartition

GUESS: Final = 1024
"""Bytes per offset until the size of any partition is known."""

_REFRESH_SECONDS = 60.0
_RETRY_SECONDS = 2.0


class SizeEstimates:
    """Caches the bytes per offset of partitions and refreshes them once a minute. Called on the planning thread."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._per_offset: dict[TopicPartition, float] = {}
        self._asked_at: float | None = None
        self._mean: float = GUESS
        self._asked_for: set[TopicPartition] = set()
        self._failed = False
        self._refused = False

    def refresh(self, first: Mapping[TopicPartition, int], last: Mapping[TopicPartition, int]) -> None:
        """Ask the brokers for the sizes of partitions whose offsets go from `first` to `last`; may block."""
        self._asked_at = self._clock.monotonic()
        self._asked_for |= first.keys()
        sizes = self._cluster.sizes({partition.topic for partition in first}) if first else {}
        self._failed, self._refused = not sizes, sizes is None
        for partition, size in (sizes or {}).items():
            offsets = last[partition] - first[partition] if partition in first else 0
            if offsets > 0 and size > 0:
                self._per_offset[partition] = size / offsets
        self._mean = fmean(self._per_offset.values()) if self._per_offset else GUESS

    def due(self, last: Mapping[TopicPartition, int]) -> bool:
        """Return whether to call `refresh`: at once for a new partition, otherwise a minute after the last call.

        After two seconds already, if a partition with records has no estimate. After a failed request, a new partition
        waits these two seconds too, because a failing request may block for long.
        """
        if self._asked_at is None or (not self._failed and not self._asked_for.issuperset(last)):
            return True
        age = self._clock.monotonic() - self._asked_at
        unknown = any(end > 0 and partition not in self._per_offset for partition, end in last.items())
        return age >= _REFRESH_SECONDS or (age >= _RETRY_SECONDS and unknown)

    def of(self, partition: TopicPartition) -> float:
        """Return the bytes per offset of a partition; if unknown, the mean of the known partitions, or else `GUESS`."""
        return self._per_offset.get(partition, self._mean)

    def refused(self, partition: TopicPartition) -> bool:
        """Return whether the user lacks the permission to see sizes, and the partition has no earlier estimate."""
        return self._refused and partition not in self._per_offset
