# SPDX-License-Identifier: Apache-2.0
"""Which partitions are read: `subscribe`, `subscribePattern` or `assign`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forebay.errors import ConfigurationError, RetriableError
from forebay.sources.kafka.planning.bounds import assigned_json
from forebay.sources.kafka.planning.topic_patterns import compile_topics
from forebay.sources.kafka.split import TopicPartition

_NAMES = "assign, subscribe, subscribePattern"


@dataclass(frozen=True)
class Subscription:
    """What is read: exactly one of the three is set.

    Args:
        topics: These topics, all partitions.
        pattern: The topics whose whole name matches.
        places: These partitions.
    """

    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    places: tuple[TopicPartition, ...] = ()

    @classmethod
    def of(cls, subscribe: Sequence[str], pattern: str | None, assign: str | None) -> Subscription:
        """Return what the three options say.

        Raises:
            ConfigurationError: None or several are given, or what is given is wrong.
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
                advice="give the one that says what is to be read",
            )
        if assign is not None:
            return cls(places=tuple(assigned_json(assign)))
        if pattern is not None:
            if not pattern.strip():
                raise ConfigurationError(
                    "subscribePattern is empty", option="subscribePattern", advice="give a pattern, such as orders-.*"
                )
            return cls(pattern=compile_topics(pattern.strip()))
        return cls(tuple(dict.fromkeys(subscribe)))

    def named_topics(self) -> list[str] | None:
        """Return the topics that are read; None = all are to be looked at for the pattern."""
        if self.pattern is not None:
            return None
        return list(self.topics) or sorted({place.topic for place in self.places})

    def read_of(self, name: str, leaders: Mapping[int, int], *, first: bool) -> list[TopicPartition]:
        """Return the partitions of a topic that are read.

        Args:
            name: The topic.
            leaders: The broker that leads each partition it has; -1 = none does.
            first: The query is new: what is named must be there.

        Raises:
            ConfigurationError: A partition that is named is not there.
            RetriableError: One has no leader.
        """
        chosen = [place for place in self.places if place.topic == name]
        if self.places:
            missing = [place for place in chosen if place.partition not in leaders]
            if missing and first:
                raise ConfigurationError(
                    f"the topic {name!r} has no partition {missing[0].partition}: it has {len(leaders)}",
                    split=missing[0].split_id,
                    option="assign",
                    advice="name only partitions that there are",
                )
            chosen = [place for place in chosen if place not in missing]  # lost, if they were there before
            if not chosen:
                return []
        places = chosen or [TopicPartition(name, number) for number in sorted(leaders)]
        alone = [place for place in places if leaders[place.partition] < 0]
        if alone:
            raise RetriableError(
                f"the partition {alone[0].split_id} has no leader, so nobody can read it",
                split=alone[0].split_id,
                advice="look at the brokers: those with its replicas are down",
            )
        return places
