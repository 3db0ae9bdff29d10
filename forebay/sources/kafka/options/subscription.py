# SPDX-License-Identifier: Apache-2.0
"""The partitions that a query reads: `subscribe`, `subscribePattern` or `assign`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forebay.errors import ConfigurationError, RetriableError
from forebay.sources.kafka.options.bounds import assigned_json
from forebay.sources.kafka.options.topic_patterns import compile_topics
from forebay.sources.kafka.split import TopicPartition

_NAMES = "assign, subscribe, subscribePattern"


@dataclass(frozen=True)
class Subscription:
    """The topics or partitions to read; exactly one field is set.

    Args:
        topics: Topics with all their partitions.
        pattern: A pattern that matches whole names of topics.
        partitions: Partitions.
    """

    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    partitions: tuple[TopicPartition, ...] = ()

    @classmethod
    def of(cls, subscribe: Sequence[str], pattern: str | None, assign: str | None) -> Subscription:
        """Parse the three options.

        Raises:
            ConfigurationError: None or several are given, or one is invalid.
        """
        given = [bool(subscribe), pattern is not None, assign is not None].count(True)
        if given == 0:
            raise ConfigurationError(
                f"One of the following options must be specified for Kafka source: {_NAMES}",
                option="subscribe",
                advice='give for example subscribe="topic1,topic2"',
            )
        if given > 1:
            raise ConfigurationError(
                f"Only one of the following options can be specified for Kafka source: {_NAMES}",
                option="subscribe",
                advice="give only one of them",
            )
        if assign is not None:
            return cls(partitions=tuple(assigned_json(assign)))
        if pattern is not None:
            if not pattern.strip():
                raise ConfigurationError(
                    "subscribePattern is empty", option="subscribePattern", advice="give a pattern, such as orders-.*"
                )
            return cls(pattern=compile_topics(pattern.strip()))
        return cls(tuple(dict.fromkeys(subscribe)))

    def named_topics(self) -> list[str] | None:
        """Return the topics to ask for; None = all, to match the pattern."""
        if self.pattern is not None:
            return None
        return list(self.topics) or sorted({partition.topic for partition in self.partitions})

    def partitions_of(self, name: str, leaders: Mapping[int, int], *, first: bool) -> list[TopicPartition]:
        """Return the partitions of a topic to read.

        Args:
            name: The topic.
            leaders: The leader of each existing partition; -1 = none.
            first: The query is new, so each partition of `assign` must exist.

        Raises:
            ConfigurationError: A partition of `assign` does not exist.
            RetriableError: A partition has no leader.
        """
        chosen = [partition for partition in self.partitions if partition.topic == name]
        if self.partitions:
            missing = [partition for partition in chosen if partition.partition not in leaders]
            if missing and first:
                raise ConfigurationError(
                    f"the topic {name!r} has no partition {missing[0].partition}: it has {len(leaders)}",
                    split=missing[0].split_id,
                    option="assign",
                    advice="name only existing partitions",
                )
            chosen = [
                partition for partition in chosen if partition not in missing
            ]  # discovery reports the missing ones as lost
            if not chosen:
                return []
        partitions = chosen or [TopicPartition(name, number) for number in sorted(leaders)]
        alone = [partition for partition in partitions if leaders[partition.partition] < 0]
        if alone:
            raise RetriableError(
                f"the partition {alone[0].split_id} has no leader, so it cannot be read",
                split=alone[0].split_id,
                advice="check the brokers that hold its replicas: they are down",
            )
        return partitions
