# SPDX-License-Identifier: Apache-2.0
"""One partition of a topic, with the progress made in it."""

from __future__ import annotations

from typing import NamedTuple

from forebay.framework.split import Split


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    @property
    def split_id(self) -> str:
        """The id of its split: a topic's name has no slash."""
        return f"{self.topic}/{self.partition}"

    @classmethod
    def of(cls, split_id: str) -> TopicPartition:
        """Return the partition that a split id names."""
        topic, _, partition = split_id.rpartition("/")
        return cls(topic, int(partition.partition(":")[0]))


def are_of_two_topics(one: str | None, other: str | None) -> bool:
    """Whether two topic ids are known to be of two topics, maybe of one name."""
    return one is not None and other is not None and one != other


class KafkaSplit(Split):
    """One partition; position and end are offsets.

    Its id is `topic/partition`, or `topic/partition:topic id` where the query has read an earlier topic of that name.

    Args:
        topic_id: What the cluster calls the topic: another one after it was deleted and created again. None where the
            brokers are too old to tell.
    """

    topic_id: str | None = None

    @property
    def place(self) -> TopicPartition:
        """Topic and partition."""
        return TopicPartition.of(self.id)

    @property
    def start(self) -> int:
        """The offset of the next record."""
        return self.position if isinstance(self.position, int) else 0

    @property
    def left(self) -> int | None:
        """How many offsets are left; None while it has no end."""
        return max(0, self.end - self.start) if isinstance(self.end, int) else None
