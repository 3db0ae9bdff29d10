# SPDX-License-Identifier: Apache-2.0
"""The split of the Kafka source: one partition of a topic, with its position."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self, TypeGuard

from forebay.errors import ContractError
from forebay.framework.split import Split

_ID: Final = re.compile(r"([a-zA-Z0-9._-]{1,249})/([0-9]{1,10})(:[a-zA-Z0-9_-]+)?", re.ASCII)
"""The id of a split: Kafka has no other names of topics."""
_PARTITIONS: Final = 2**31


def is_split_id(text: str) -> bool:
    """Return whether a text of a checkpoint is the id of a split: Kafka can have its topic and its partition."""
    named = _ID.fullmatch(text)
    return named is not None and named[1] not in (".", "..") and int(named[2]) < _PARTITIONS


def is_offset(value: object) -> TypeGuard[int]:
    """Return whether a value of a checkpoint is the offset of a record, now or later."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    @property
    def split_id(self) -> str:
        """The id of the partition's split, `topic/partition`. Topic names never have a slash."""
        return f"{self.topic}/{self.partition}"

    @classmethod
    def of(cls, split_id: str) -> TopicPartition:
        """Return the partition that a split id names."""
        topic, _, partition = split_id.rpartition("/")
        return cls(topic, int(partition.partition(":")[0]))


def are_of_two_topics(one: str | None, other: str | None) -> bool:
    """Return whether both topic ids are known and differ, so that there are two topics, possibly of the same name."""
    return one is not None and other is not None and one != other


class KafkaSplit(Split):
    """One partition of a topic; position and end are offsets.

    The split id is `topic/partition`, or `topic/partition:topic id` if the topic was recreated during the query.

    Args:
        topic_id: The id that the cluster gave the topic, new for a recreated topic; None from old brokers.
    """

    topic_id: str | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild a split from a checkpoint; see `Split.from_json`.

        Raises:
            ContractError: The id is not that of a partition of a topic, or the position is no offset.
        """
        split = super().from_json(data)
        if not is_split_id(split.id):
            raise ContractError(f"the split {split.id!r:.300} is no topic/partition", rule="SPL-1")
        if not all(position is None or is_offset(position) for position in (split.position, split.end)):
            raise ContractError(f"the position of the split {split.id!r} is no offset", split=split.id, rule="SPL-1")
        return split

    @property
    def topic_partition(self) -> TopicPartition:
        """The topic and the number of the partition."""
        return TopicPartition.of(self.id)

    @property
    def start(self) -> int:
        """The offset of the next record to read."""
        return self.position if isinstance(self.position, int) else 0

    @property
    def left(self) -> int | None:
        """The number of offsets left to read; None without an end."""
        return max(0, self.end - self.start) if isinstance(self.end, int) else None
