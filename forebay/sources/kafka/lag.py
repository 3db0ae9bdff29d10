# SPDX-License-Identifier: Apache-2.0
"""How far somebody is behind the topics he reads: positions, from a checkpoint or a group, beside the brokers' ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from forebay.errors import ConfigurationError
from forebay.options import class_options, parse_options
from forebay.sources.kafka.client.client_errors import client_error
from forebay.sources.kafka.client.client_options import translate
from forebay.sources.kafka.client.cluster import Cluster, Topic
from forebay.sources.kafka.options.bounds import EARLIEST, LATEST
from forebay.sources.kafka.source import KafkaSource
from forebay.sources.kafka.split import TopicPartition, are_of_two_topics

_OPTIONS: Final = frozenset({"kafka", "oauth_token_provider", "num_retries", "retry_interval_ms"})
"""Those of the source's options that say how to reach brokers."""

_CLIENT: Final = "forebay-lag"
_NAMED: Final = 10
_EARLIER: Final = "the position is of an earlier topic of this name"


@dataclass(frozen=True)
class Standing:
    """Where somebody stands in a partition.

    Args:
        topic_partition: The partition.
        position: The offset of the next record to be read.
        topic_id: What the cluster called its topic; None = that is not known.
    """

    topic_partition: TopicPartition
    position: int
    topic_id: str | None = None


@dataclass(frozen=True)
class PartitionLag:
    """How far one partition is read.

    Args:
        topic: Its topic.
        partition: Its number.
        position: The offset of the next record to be read.
        end: The offset after the last one there is, under the isolation level that was asked for; None = nobody knows.
        lag: How many offsets are between them; None if that means nothing.
        note: What is wrong with it, in words; empty if nothing is.
    """

    topic: str
    partition: int
    position: int
    end: int | None
    lag: int | None
    note: str = ""


@dataclass(frozen=True)
class Lag:
    """How far a query or a group is behind.

    Args:
        partitions: Each partition that it reads, by topic and number.
        notes: What else there is to know: partitions that it does not read yet.
    """

    partitions: tuple[PartitionLag, ...]
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Offsets behind, of all partitions of which that is known."""
        return sum(one.lag or 0 for one in self.partitions)


class LagReader:
    """Asks brokers how far partitions go. Called by the command line, on one thread; connects at the first question.

    Args:
        options: Texts, as the user gives them: `kafka.bootstrap.servers`, `kafka.security.protocol`, …

    Raises:
        ConfigurationError: An option is unknown or wrong, or no brokers are named.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        specs = [spec for spec in class_options(KafkaSource) if spec.python_name in _OPTIONS]
        values = parse_options(specs, options, source=KafkaSource.name)
        kafka = {"client.id": _CLIENT, **{name.lower(): value for name, value in values["kafka"].items()}}
        self._options = translate(kafka, values["oauth_token_provider"])
        interval = values["retry_interval_ms"] / 1000
        self._cluster = Cluster(self._options, retries=values["num_retries"], interval=interval)

    @property
    def servers(self) -> str:
        """The brokers, for messages."""
        return self._cluster.servers

    def of_standings(self, standings: Iterable[Standing], *, others: str = "the checkpoint has no position of") -> Lag:
        """Return how far somebody is behind the present ends.

        Args:
            standings: Where he stands. Of several in one partition the least counts, as long as its topic is the same.
            others: What is the matter with the topics' other partitions, for a note.

        Raises:
            ForebayError: The brokers do not answer, or refuse to.
        """
        found = list(standings)
        topics = self._topics({one.topic_partition.topic for one in found})
        positions = _present(found, topics)
        living = [topic_partition for topic_partition in positions if _leader(topics, topic_partition) >= 0]
        ends = self._cluster.offsets(dict.fromkeys(living, LATEST), committed=self._options.read_committed)
        starts = self._cluster.offsets(dict.fromkeys(living, EARLIEST), committed=self._options.read_committed)
        rows = []
        for topic_partition in sorted(positions):
            position, end = positions[topic_partition].position, ends.get(topic_partition)
            if end is None:
                note = "it has no leader" if _has(topics, topic_partition) else "it is gone"
                rows.append(PartitionLag(*topic_partition, position, None, None, note))
            elif _is_of(positions[topic_partition], topics):
                note = _note(position, starts[topic_partition], end)
                rows.append(
                    PartitionLag(*topic_partition, position, end, None if position > end else end - position, note)
                )
            else:
                rows.append(PartitionLag(*topic_partition, position, end, end - starts[topic_partition], _EARLIER))
        return Lag(tuple(rows), tuple(_missing(topics, positions, others)))

    def of_group(self, group: str) -> Lag:
        """Return how far what a consumer group has committed is behind the present ends.

        Raises:
            ConfigurationError: The group has committed nothing: it does not exist, or its offsets have expired.
            ForebayError: The brokers do not answer, or refuse to.
        """
        positions = self._cluster.group_offsets(group, None)
        if not positions:
            raise ConfigurationError(
                f"the group {group!r} has committed no offset on {self.servers}: there is no such group, or its "
                "offsets have expired",
                option="kafka.group.id",
                advice="check its name; a query of forebay commits with commitOffsets=true only, and has a checkpoint",
            )
        standings = [Standing(topic_partition, position) for topic_partition, position in positions.items()]
        return self.of_standings(standings, others="nothing is committed yet of")

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()

    def _topics(self, names: Iterable[str]) -> dict[str, Topic]:
        topics = self._cluster.topics(sorted(names))
        for name, topic in topics.items():
            if topic.error is not None:
                raise client_error(topic.error, f"asking for the topic {name!r}", self._options)
        return topics


def _is_of(standing: Standing, topics: Mapping[str, Topic]) -> bool:
    """Whether it is about the topic that has this name now, as far as one knows."""
    topic = topics.get(standing.topic_partition.topic)
    return topic is None or not are_of_two_topics(standing.topic_id, topic.topic_id)


def _present(standings: Iterable[Standing], topics: Mapping[str, Topic]) -> dict[TopicPartition, Standing]:
    """Of each partition the least position in its present topic; if there is none, in an earlier one."""
    found: dict[TopicPartition, Standing] = {}
    for one in sorted(standings, key=lambda one: (not _is_of(one, topics), one.position)):
        found.setdefault(one.topic_partition, one)
    return found


def _has(topics: Mapping[str, Topic], topic_partition: TopicPartition) -> bool:
    return topic_partition.topic in topics and topic_partition.partition in topics[topic_partition.topic].leaders


def _leader(topics: Mapping[str, Topic], topic_partition: TopicPartition) -> int:
    return topics[topic_partition.topic].leaders[topic_partition.partition] if _has(topics, topic_partition) else -1


def _note(position: int, start: int, end: int) -> str:
    if position > end:
        return "beyond the end: it was truncated, or its topic made anew"
    if position < start:
        return f"{start - position:,} offsets are gone: it begins at {start:,}"
    return ""


def _missing(topics: Mapping[str, Topic], positions: Mapping[TopicPartition, Standing], others: str) -> Iterable[str]:
    for name, topic in sorted(topics.items()):
        missing = [number for number in sorted(topic.leaders) if TopicPartition(name, number) not in positions]
        if missing:
            shown = ", ".join(map(str, missing[:_NAMED])) + (", …" if len(missing) > _NAMED else "")
            yield f"{name}: {others} {len(missing):,} more partitions ({shown})"
