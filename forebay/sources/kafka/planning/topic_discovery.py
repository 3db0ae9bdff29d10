# SPDX-License-Identifier: Apache-2.0
"""Asks the brokers which partitions exist, and distrusts an answer that may come from a broker with stale metadata."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from forebay.errors import ConfigurationError, RetriableError
from forebay.sources.kafka.client.client_errors import client_error
from forebay.sources.kafka.client.client_options import ClientOptions
from forebay.sources.kafka.client.cluster import Cluster, Topic
from forebay.sources.kafka.options.kafka_options import KafkaOptions
from forebay.sources.kafka.split import KafkaSplit, TopicPartition, are_of_two_topics

T = TypeVar("T")

_RETRIES = 3
_PAUSE = 0.2
"""Retry count and delay in seconds before a topic counts as deleted or recreated."""


@dataclass(frozen=True)
class TopicIdentity:
    """The partitions of the brokers beside the known splits, compared by topic id.

    Args:
        kept: Known splits whose topic still has its id.
        recreated: Partitions whose topic has another id now, with the known splits of the earlier topic.
        new: Partitions without a known split.
    """

    kept: Sequence[KafkaSplit]
    recreated: Mapping[TopicPartition, Sequence[KafkaSplit]]
    new: Sequence[TopicPartition]

    @classmethod
    def compare(cls, found: Mapping[TopicPartition, str | None], known: Iterable[KafkaSplit]) -> TopicIdentity:
        """Return which partitions are kept, recreated and new.

        Args:
            found: The topic id of each partition, from the brokers.
            known: The splits of the query; one partition may have splits of several topics of one name.
        """
        splits: dict[TopicPartition, list[KafkaSplit]] = {}
        for split in known:
            splits.setdefault(split.topic_partition, []).append(split)
        kept, recreated, new = [], {}, []
        for partition, topic_id in found.items():
            earlier = splits.get(partition, [])
            same = [one for one in earlier if not are_of_two_topics(one.topic_id, topic_id)]
            if same:
                kept += same
            elif earlier:
                recreated[partition] = earlier
            else:
                new.append(partition)
        return cls(kept, recreated, new)


class TopicDiscovery:
    """Finds the partitions that a query reads. Called on the planning thread; may block.

    Args:
        source: The options.
        cluster: Asks the brokers.
        options: Names the brokers in errors.
    """

    def __init__(self, source: KafkaOptions, cluster: Cluster, options: ClientOptions) -> None:
        self._source = source
        self._cluster = cluster
        self._options = options
        self._subscription = source.subscription()
        self._replaced_ids: set[str] = set()
        self._gone: set[TopicPartition] = set()

    def partitions(self, known: Mapping[str, KafkaSplit], *, first: bool) -> dict[TopicPartition, str | None]:
        """Return the existing partitions with the ids of their topics.

        A broker with stale metadata misses new topics and partitions, or still reports a deleted topic. Such an answer
        is requested again a few times.

        Args:
            known: The splits of the query, by id.
            first: The query is new, so each topic that the options name must exist.

        Raises:
            RetriableError: A broker still reports a topic that was recreated.
            ConfigurationError: A topic or partition that the options name does not exist.
        """
        ids: dict[TopicPartition, set[str | None]] = {}
        for split in known.values():
            ids.setdefault(split.topic_partition, set()).add(split.topic_id)
        expected = ids.keys() - self._gone

        def ask() -> dict[TopicPartition, str | None]:
            return self._existing(known, first=first)

        def has_known_ids(found: Mapping[TopicPartition, str | None]) -> bool:
            return not any(self._may_be_stale(topic_id, ids.get(one, set())) for one, topic_id in found.items())

        found = _ask_until(ask, lambda found: expected <= found.keys())
        if not has_known_ids(found):
            found = _ask_until(ask, lambda found: expected <= found.keys() and has_known_ids(found), found)
        self._check_not_replaced({partition.topic: topic_id for partition, topic_id in found.items()})
        self._gone = (self._gone | expected) - found.keys()
        return found

    def topic_ids(self, splits: Sequence[KafkaSplit]) -> dict[str, str | None]:
        """Return the current id of each split's topic; asks again where an id has changed.

        Raises:
            RetriableError: A broker still reports a topic that was recreated.
        """
        expected = {split.topic_partition.topic: split.topic_id for split in splits}
        ids = _ask_until(
            lambda: {name: topic.topic_id for name, topic in self._cluster.topics(expected.keys()).items()},
            lambda ids: not any(are_of_two_topics(topic_id, ids.get(name)) for name, topic_id in expected.items()),
        )
        self._check_not_replaced(ids)
        return ids

    def mark_replaced(self, splits: Iterable[KafkaSplit]) -> None:
        """Remember that the topics of these splits no longer exist under their ids."""
        self._replaced_ids.update(one.topic_id for one in splits if one.topic_id is not None)

    def _may_be_stale(self, topic_id: str | None, known: set[str | None]) -> bool:
        """Whether a reported id is that of a replaced topic, or differs from all `known` ids of this partition."""
        differs = bool(known) and all(are_of_two_topics(one, topic_id) for one in known)
        return differs or topic_id in self._replaced_ids

    def _check_not_replaced(self, ids: Mapping[str, str | None]) -> None:
        for name, topic_id in ids.items():
            if topic_id in self._replaced_ids:
                raise RetriableError(
                    f"a broker still reports the topic {name!r} with the id it had before it was recreated",
                    source=self._source.name,
                    advice="check the brokers: one has metadata older than the controller's",
                )

    def _existing(self, known: Mapping[str, KafkaSplit], *, first: bool) -> dict[TopicPartition, str | None]:
        topics = self._topics(known, first=first)
        return {
            partition: topic.topic_id
            for name, topic in topics.items()
            for partition in self._subscription.partitions_of(name, topic.leaders, first=first)
        }

    def _topics(self, known: Mapping[str, KafkaSplit], *, first: bool) -> dict[str, Topic]:
        names, pattern = self._subscription.named_topics(), self._subscription.pattern
        topics = self._cluster.topics(names)
        if pattern is not None:
            topics = {name: topic for name, topic in topics.items() if not topic.internal and pattern.fullmatch(name)}
        for name, topic in topics.items():
            if topic.error is not None:
                raise client_error(topic.error, f"asking for the topic {name!r}", self._options)
        known_names = set() if first else {split.topic_partition.topic for split in known.values()}
        for name in names or ():
            if name not in topics and name not in known_names and (first or self._source.fail_on_data_loss):
                raise ConfigurationError(
                    f"there is no topic {name!r} on {self._cluster.servers}, or the user may not see it",
                    option="assign" if self._subscription.partitions else "subscribe",
                    advice="check its name; a topic that comes later is found by subscribePattern",
                )
        return topics


def _ask_until(ask: Callable[[], T], accept: Callable[[T], bool], answer: T | None = None) -> T:
    """Return the first accepted answer, or the last one after all retries; blocks for less than a second.

    Args:
        ask: Asks the brokers.
        accept: Whether an answer needs no retry.
        answer: The first answer, if it exists already.
    """
    answer = ask() if answer is None else answer
    for _ in range(_RETRIES):
        if accept(answer):
            break
        time.sleep(_PAUSE)
        answer = ask()
    return answer
