# SPDX-License-Identifier: Apache-2.0
"""Asks the brokers which partitions exist, and compares topic ids."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from forebay.errors import ConfigurationError, RetriableError
from forebay.sources.kafka.client.client_errors import client_error
from forebay.sources.kafka.client.cluster import Cluster, Topic, ask_until
from forebay.sources.kafka.options.kafka_options import KafkaOptions
from forebay.sources.kafka.split import KafkaSplit, TopicPartition, are_of_two_topics


@dataclass(frozen=True)
class TopicIdentity:
    """The partitions that the brokers report, compared with the known splits by topic id.

    Args:
        kept: Known splits whose topic still has the same topic id.
        recreated: Partitions whose topic now has another id, with the known splits of the earlier topic.
        new: Partitions without a known split.
        topic_ids: The topic id of each partition, from the brokers.
    """

    kept: Sequence[KafkaSplit]
    recreated: Mapping[TopicPartition, Sequence[KafkaSplit]]
    new: Sequence[TopicPartition]
    topic_ids: Mapping[TopicPartition, str | None]

    @classmethod
    def compare(cls, found: Mapping[TopicPartition, str | None], known: Iterable[KafkaSplit]) -> TopicIdentity:
        """Compare the known splits with the partitions that the brokers report (`found`, with topic ids)."""
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
        return cls(kept, recreated, new, found)


class TopicDiscovery:
    """Finds the partitions that a query reads. Called on the planning thread; may block."""

    def __init__(self, source: KafkaOptions, cluster: Cluster) -> None:
        self._source = source
        self._cluster = cluster
        self._replaced_ids: set[str] = set()
        self._gone: set[TopicPartition] = set()

    def partitions(self, known: Collection[KafkaSplit], *, first: bool) -> TopicIdentity:
        """Ask the brokers for the partitions to read, and compare them with the known splits.

        A broker with stale metadata may miss topics and partitions, or report an earlier topic of the same name. If an
        answer may be stale, the request is repeated a few times. In a new query, each topic that the options name must
        exist; later, if `failOnDataLoss` is set, each such topic without a known split.

        Raises:
            RetriableError: A broker still reports a topic that was recreated.
            ConfigurationError: A topic or partition that the options name does not exist.
        """
        ids: dict[TopicPartition, set[str | None]] = {}
        for split in known:
            ids.setdefault(split.topic_partition, set()).add(split.topic_id)
        expected = ids.keys() - self._gone
        optional = set() if first else {partition.topic for partition in ids}

        def ask() -> dict[TopicPartition, str | None]:
            return {
                partition: topic.topic_id
                for name, topic in self._topics(optional, first=first).items()
                for partition in self._source.subscription.partitions_of(name, topic.leaders, first=first)
            }

        def has_known_ids(found: Mapping[TopicPartition, str | None]) -> bool:
            return not any(self._may_be_stale(topic_id, ids.get(one, set())) for one, topic_id in found.items())

        found = ask_until(ask, lambda found: expected <= found.keys())
        if not has_known_ids(found):
            found = ask_until(ask, lambda found: expected <= found.keys() and has_known_ids(found), found)
        self._check_not_replaced({partition.topic: topic_id for partition, topic_id in found.items()})
        self._gone = (self._gone | expected) - found.keys()
        identity = TopicIdentity.compare(found, known)
        replaced = (one.topic_id for earlier in identity.recreated.values() for one in earlier)
        self._replaced_ids.update(topic_id for topic_id in replaced if topic_id is not None)
        return identity

    def topic_ids(self, splits: Sequence[KafkaSplit]) -> dict[str, str | None]:
        """Return by topic name the current topic ids of these splits' topics.

        If an id has changed, ask again, because the answer may be stale.
        """
        expected = {split.topic_partition.topic: split.topic_id for split in splits}
        ids = ask_until(
            lambda: {name: topic.topic_id for name, topic in self._cluster.topics(expected.keys()).items()},
            lambda ids: not any(are_of_two_topics(topic_id, ids.get(name)) for name, topic_id in expected.items()),
        )
        self._check_not_replaced(ids)
        return ids

    def _may_be_stale(self, topic_id: str | None, known: set[str | None]) -> bool:
        """Return whether a reported topic id belongs to a replaced topic, or is not in `known`."""
        differs = bool(known) and all(are_of_two_topics(one, topic_id) for one in known)
        return differs or topic_id in self._replaced_ids

    def _check_not_replaced(self, ids: Mapping[str, str | None]) -> None:
        for name, topic_id in ids.items():
            if topic_id in self._replaced_ids:
                raise RetriableError(
                    f"a broker still reports the recreated topic {name!r} with its old topic id",
                    source=self._source.name,
                    advice="check the brokers: the metadata of one broker is older than the controller's",
                )

    def _topics(self, optional: Collection[str], *, first: bool) -> dict[str, Topic]:
        subscription = self._source.subscription
        names, pattern = subscription.named_topics(), subscription.pattern
        topics = self._cluster.topics(names)
        if pattern is not None:
            topics = {name: topic for name, topic in topics.items() if not topic.internal and pattern.fullmatch(name)}
        for name, topic in topics.items():
            if topic.error is not None:
                raise client_error(topic.error, f"asking for the topic {name!r}", self._source.client_options)
        for name in names or ():
            if name not in topics and name not in optional and (first or self._source.fail_on_data_loss):
                raise ConfigurationError(
                    f"there is no topic {name!r} on {self._cluster.servers}, or the user may not see it",
                    option="assign" if subscription.partitions else "subscribe",
                    advice="check the name of the topic; use subscribePattern to read topics that are created later",
                )
        return topics
