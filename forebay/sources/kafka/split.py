# SPDX-License-Identifier: Apache-2.0
"""The split: one partition of a topic and its position."""

from __future__ import annotations

from typing import NamedTuple

from forebay.framework.split import Split


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    @property
    def split_id(self) -> str:
        """The id of the partition's split, `topic/partition`. Names of topics have no slash."""
        return f"{self.topic}/{self.partition}"

    @classmethod
    def of(cls, split_id: str) -> TopicPartition:
        """Return the partition that a split id names."""
        topic, _, partition = split_id.rpartition("/")
        return cls(topic, int(partition.partition(":")[0]))


def are_of_two_topics(one: str | None, other: str | None) -> bool:
    """Return whether both topic ids are known and differ: two topics, possibly with the same name."""
    return one is not None and other is not None and one != other


class KafkaSplit(Split):
    """One partition; position and end are offsets.

    The split id is `topic/partition`, or `topic/partition:topic id` if the topic was recreated during the query.

    Args:
        topic_id: The topic id in the cluster, which is new for a recreated topic; None from old brokers.
    """

    topic_id: str | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        """Topic and partition."""
        return TopicPartition.of(self.id)

    @property
    def start(self) -> int:
        """The offset of the next record."""
        return self.position if isinstance(self.position, int) else 0

    @property
    def left(self) -> int | None:
        """The number of offsets left to read; None without an end."""
        return max(0, self.end - self.start) if isinstance(self.end, int) else None
