# SPDX-License-Identifier: Apache-2.0
"""How many bytes an offset takes, about: what brokers keep on their disks, by the offsets there are."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Final

from forebay.clock import Clock
from forebay.sources.kafka.client.cluster import Cluster
from forebay.sources.kafka.split import TopicPartition

GUESS: Final = 1024
"""Bytes of a record of which nothing is known, nor of any other partition's."""

_GOOD_FOR = 60.0
_TRY_AGAIN = 2.0


class Estimates:
    """Remembers the bytes per offset of partitions; asks for them again once a minute. Called on the planning thread.

    Args:
        cluster: Answers.
        clock: The time.
    """

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._per_offset: dict[TopicPartition, float] = {}
        self._asked: float | None = None
        self._mean: float = GUESS
        self._asked_of: set[TopicPartition] = set()
        self._failed = False
        self._refused = False

    def refresh(self, first: Mapping[TopicPartition, int], last: Mapping[TopicPartition, int]) -> None:
        """Ask the brokers how much there is of each partition; may block.

        Args:
            first: The earliest offset of each.
            last: The latest one.
        """
        self._asked = self._clock.monotonic()
        self._asked_of |= first.keys()
        sizes = self._cluster.sizes({place.topic for place in first}) if first else {}
        self._failed, self._refused = not sizes, sizes is None
        for place, size in (sizes or {}).items():
            offsets = last[place] - first[place] if place in first else 0
            if offsets > 0 and size > 0:
                self._per_offset[place] = size / offsets
        self._mean = fmean(self._per_offset.values()) if self._per_offset else GUESS

    def due(self, last: Mapping[TopicPartition, int]) -> bool:
        """Whether to ask again: a minute has gone, or nothing is known of a partition with records.

        One that was never asked for does not wait, unless the last question failed: it may have taken long.
        """
        if self._asked is None or (not self._failed and not self._asked_of.issuperset(last)):
            return True
        since = self._clock.monotonic() - self._asked
        return since >= _GOOD_FOR or (
            since >= _TRY_AGAIN and any(end > 0 and place not in self._per_offset for place, end in last.items())
        )

    def of(self, place: TopicPartition) -> float:
        """Return the bytes of one offset; where nobody told, as many as other partitions have, or a guess."""
        return self._per_offset.get(place, self._mean)

    def refused(self, place: TopicPartition) -> bool:
        """Whether the brokers say that the user may not know, and it was not known before."""
        return self._refused and place not in self._per_offset
