# SPDX-License-Identifier: Apache-2.0
"""Computes the lag of a streaming query or a consumer group: the offsets between its positions and partition ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from forebay.errors import ConfigurationError
from forebay.options import class_options, parse_options
from forebay.sources.kafka.bounds import EARLIEST, LATEST
from forebay.sources.kafka.client.client_errors import client_error
from forebay.sources.kafka.client.client_options import translate
from forebay.sources.kafka.client.cluster import KafkaCluster, Topic
from forebay.sources.kafka.source import KafkaSource
from forebay.sources.kafka.split import TopicPartition, are_of_two_topics

_OPTIONS: Final = frozenset({"kafka", "oauth_token_provider", "num_retries", "retry_interval_ms"})
"""The fields of `KafkaSource` whose options are needed to connect to brokers."""

_CLIENT: Final = "forebay-lag"
_LISTED: Final = 10
"""Maximum number of partitions listed in one note."""
_EARLIER: Final = "the position belongs to an earlier topic of this name"


@dataclass(frozen=True)
class ReadPosition:
    """The position of a streaming query or a consumer group in a partition.

    Args:
        topic_partition: The partition.
        position: The next offset to read.
        topic_id: The id of the topic when the position was stored; None = unknown.
    """

    topic_partition: TopicPartition
    position: int
    topic_id: str | None = None


@dataclass(frozen=True)
class PartitionLag:
    """The lag of a query or a group in one partition.

    Args:
        topic: The name of the topic.
        partition: The number of the partition.
        position: The next offset to read.
        end: The offset after the last record that the isolation level allows to read; None = unknown.
        lag: The number of offsets between position and end; None = unknown.
        note: A problem of the partition; empty if there is none.
    """

    topic: str
    partition: int
    position: int
    end: int | None
    lag: int | None
    note: str = ""


@dataclass(frozen=True)
class Lag:
    """The lag of a query or a group in all its partitions.

    Args:
        partitions: The lag of each partition with a position, sorted by topic and number.
        notes: Sentences about partitions that have no position yet.
    """

    partitions: tuple[PartitionLag, ...]
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """The sum of all known lags."""
        return sum(partition.lag or 0 for partition in self.partitions)


class LagReader:
    """Computes the lag of positions. Called on one thread; connects to the brokers at the first call."""

    def __init__(self, options: Mapping[str, object]) -> None:
        specs = [spec for spec in class_options(KafkaSource) if spec.python_name in _OPTIONS]
        values = parse_options(specs, options, source=KafkaSource.name)
        kafka = {"client.id": _CLIENT, **{name.lower(): value for name, value in values["kafka"].items()}}
        self._options = translate(kafka, values["oauth_token_provider"])
        interval = values["retry_interval_ms"] / 1000
        self._cluster = KafkaCluster(self._options, retries=values["num_retries"], interval=interval)

    @property
    def servers(self) -> str:
        """The addresses of the brokers, for messages."""
        return self._cluster.servers

    def of_positions(
        self, positions: Iterable[ReadPosition], *, others: str = "the checkpoint has no position of"
    ) -> Lag:
        """Return the lag of positions behind the current ends of their partitions.

        Args:
            positions: The positions. If a partition has several, the lowest position in the current topic counts.
            others: The text that begins the note about partitions of the same topics without a position.
        """
        read_positions = list(positions)
        topics = self._topics({read_position.topic_partition.topic for read_position in read_positions})
        current = _current(read_positions, topics)
        led = [partition for partition in current if _leader(topics, partition) not in (None, -1)]
        committed = self._options.read_committed
        ends = self._cluster.offsets(dict.fromkeys(led, LATEST), committed=committed)
        starts = self._cluster.offsets(dict.fromkeys(led, EARLIEST), committed=committed)
        rows = []
        for partition, read_position in sorted(current.items()):
            position, end = read_position.position, ends.get(partition)
            if end is None:
                note = "it no longer exists" if _leader(topics, partition) is None else "it has no leader"
                rows.append(PartitionLag(*partition, position, None, None, note))
            elif _is_of(read_position, topics):
                lag = None if position > end else end - position
                rows.append(PartitionLag(*partition, position, end, lag, _note(position, starts[partition], end)))
            else:
                rows.append(PartitionLag(*partition, position, end, end - starts[partition], _EARLIER))
        return Lag(tuple(rows), tuple(_missing(topics, current, others)))

    def of_group(self, group: str) -> Lag:
        """Return the lag of a consumer group's committed offsets behind the current ends of their partitions.

        Raises:
            ConfigurationError: The group has committed nothing: it does not exist, or its offsets have expired.
        """
        offsets = self._cluster.group_offsets(group, None)
        if not offsets:
            raise ConfigurationError(
                f"the group {group!r} has no committed offset on {self.servers}: there is no such group, or its "
                "offsets have expired",
                option="kafka.group.id",
                advice="check the name of the group; a forebay query commits offsets only with commitOffsets=true; "
                "for other queries, give the checkpoint directory",
            )
        positions = [ReadPosition(partition, offset) for partition, offset in offsets.items()]
        return self.of_positions(positions, others="nothing is committed yet of")

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()

    def _topics(self, names: Iterable[str]) -> dict[str, Topic]:
        topics = self._cluster.topics(sorted(names))
        for name, topic in topics.items():
            if topic.error is not None:
                raise client_error(topic.error, f"asking for the topic {name!r}", self._options)
        return topics


def _is_of(position: ReadPosition, topics: Mapping[str, Topic]) -> bool:
    """Return whether a position belongs to the current topic of its name; True if a topic id is unknown."""
    topic = topics.get(position.topic_partition.topic)
    return topic is None or not are_of_two_topics(position.topic_id, topic.topic_id)


def _current(positions: Iterable[ReadPosition], topics: Mapping[str, Topic]) -> dict[TopicPartition, ReadPosition]:
    """Return the lowest position of each partition in the current topic of its name.

    For a partition without such a position, return the lowest position in an earlier topic of the same name.
    """
    current: dict[TopicPartition, ReadPosition] = {}
    for read in sorted(positions, key=lambda read: (not _is_of(read, topics), read.position)):
        current.setdefault(read.topic_partition, read)
    return current


def _leader(topics: Mapping[str, Topic], partition: TopicPartition) -> int | None:
    """Return the leader of a partition; -1 = none, None = the partition does not exist."""
    topic = topics.get(partition.topic)
    return None if topic is None else topic.leaders.get(partition.partition)


def _note(position: int, start: int, end: int) -> str:
    if position > end:
        return "the position is beyond the end: the partition was truncated, or its topic was recreated"
    if position < start:
        return f"{start - position:,} offsets no longer exist: the partition begins at {start:,}"
    return ""


def _missing(
    topics: Mapping[str, Topic], positions: Mapping[TopicPartition, ReadPosition], others: str
) -> Iterable[str]:
    for name, topic in sorted(topics.items()):
        missing = [number for number in sorted(topic.leaders) if TopicPartition(name, number) not in positions]
        if missing:
            shown = ", ".join(map(str, missing[:_LISTED])) + (", …" if len(missing) > _LISTED else "")
            yield f"{name}: {others} {len(missing):,} more partitions ({shown})"
