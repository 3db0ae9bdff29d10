# SPDX-License-Identifier: Apache-2.0
"""Resolves the options for start and end to offsets, once, when partitions are discovered."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from forebay.errors import ConfigurationError, DataLossError, RetriableError
from forebay.sources.kafka.bounds import EARLIEST, LATEST, Bound, BoundKind
from forebay.sources.kafka.client.client_errors import client_error
from forebay.sources.kafka.client.cluster import KafkaCluster, Topic, ask_until
from forebay.sources.kafka.options import KafkaOptions
from forebay.sources.kafka.split import KafkaSplit, TopicPartition, are_of_two_topics

# -- Asks the brokers which partitions exist, and compares topic ids.


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
    def compare(cls, topic_ids: Mapping[TopicPartition, str | None], known: Iterable[KafkaSplit]) -> TopicIdentity:
        """Compare the known splits with the topic ids that the brokers report, by partition."""
        splits: dict[TopicPartition, list[KafkaSplit]] = {}
        for split in known:
            splits.setdefault(split.topic_partition, []).append(split)
        kept, recreated, new = [], {}, []
        for partition, topic_id in topic_ids.items():
            earlier = splits.get(partition, [])
            same = [split for split in earlier if not are_of_two_topics(split.topic_id, topic_id)]
            if same:
                kept += same
            elif earlier:
                recreated[partition] = earlier
            else:
                new.append(partition)
        return cls(kept, recreated, new, topic_ids)


class TopicDiscovery:
    """Finds the partitions that a query reads. Called by one thread at a time; may block."""

    def __init__(self, source: KafkaOptions, cluster: KafkaCluster) -> None:
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

        def has_known_ids(answer: Mapping[TopicPartition, str | None]) -> bool:
            return not any(
                self._may_be_stale(topic_id, ids.get(partition, set())) for partition, topic_id in answer.items()
            )

        topic_ids = ask_until(ask, lambda answer: expected <= answer.keys())
        if not has_known_ids(topic_ids):
            topic_ids = ask_until(ask, lambda answer: expected <= answer.keys() and has_known_ids(answer), topic_ids)
        self._check_not_replaced({partition.topic: topic_id for partition, topic_id in topic_ids.items()})
        self._gone = (self._gone | expected) - topic_ids.keys()
        identity = TopicIdentity.compare(topic_ids, known)
        replaced = (split.topic_id for earlier in identity.recreated.values() for split in earlier)
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

    def _may_be_stale(self, topic_id: str | None, known_ids: set[str | None]) -> bool:
        """Return whether a reported topic id belongs to a replaced topic, or is not in `known_ids`."""
        differs = bool(known_ids) and all(are_of_two_topics(known_id, topic_id) for known_id in known_ids)
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


# -- Resolves the options for start and end to offsets, once, when partitions are discovered.


_log = logging.getLogger(__name__)


class OffsetResolver:
    """Resolves starts and ends of partitions. Called by one thread at a time; may block."""

    def __init__(self, source: KafkaOptions, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._range = source.offset_range
        self._committed = source.client_options.read_committed
        self._fail_on_data_loss = source.fail_on_data_loss
        self._group = source.group_id

    def starts(self, partitions: Collection[TopicPartition], default: BoundKind) -> dict[TopicPartition, int]:
        """Return for each partition of a new query the first offset to read.

        `default` applies if no option sets the start.

        Raises:
            ConfigurationError: The options do not fit the partitions.
            DataLossError: The record at a starting offset no longer exists.
        """
        bound = self._range.start or Bound(default, "startingOffsets")
        bound.check_names(partitions)
        if bound.kind is BoundKind.TIMES:
            return self._at_times(partitions, bound)
        if bound.kind is BoundKind.COMMITTED and self._group is not None:
            committed = self._cluster.group_offsets(self._group, partitions)
            missing = [partition for partition in partitions if partition not in committed]
            if missing:
                _log.info("%d partitions without a committed offset start at the earliest offset", len(missing))
            return self._existing({**committed, **dict.fromkeys(missing, EARLIEST)}, bound)
        if bound.kind is BoundKind.OFFSETS:
            return self._existing({partition: bound.values[partition] for partition in partitions}, bound)
        return self.offsets(partitions, LATEST if bound.kind is BoundKind.LATEST else EARLIEST)

    def ends(self, partitions: Collection[TopicPartition], *, streaming: bool) -> dict[TopicPartition, int]:
        """Return the end of each partition of a new query for which the options set one.

        In a stream, an ending offset may be beyond the current end; ending times are resolved later, by `TimeLimits`.

        Raises:
            ConfigurationError: The options do not fit the partitions.
        """
        bound = self._range.end
        if bound is None:
            return {}
        bound.check_names(partitions)
        if bound.kind is BoundKind.TIMES:
            return {} if streaming else self.ends_by_time(partitions)
        ends = {partition: bound.values[partition] for partition in partitions if bound.values[partition] != LATEST}
        if not streaming:
            for partition, latest in self.offsets(ends, LATEST).items():
                if ends[partition] > latest:
                    raise ConfigurationError(
                        f"{bound.option} ends at {ends[partition]}, beyond the end of the partition at offset {latest}",
                        split=partition.split_id,
                        option=bound.option,
                        advice=f"give an offset of at most {latest}, or -1 for the latest",
                    )
        return ends

    def ends_by_time(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return by partition the first offset at or after its ending time; omit partitions without such a record."""
        times = {partition: moment for partition in partitions if (moment := self.ending_time(partition)) is not None}
        offsets = self._cluster.offsets(times, committed=self._committed)
        return {partition: offset for partition, offset in offsets.items() if offset >= 0}

    def ending_time(self, partition: TopicPartition) -> int | None:
        """Return the ending time of a partition in ms since 1970; None if the options set none."""
        bound = self._range.end
        return None if bound is None or bound.kind is not BoundKind.TIMES else bound.time_of(partition)

    def reads(self, partition: TopicPartition) -> bool:
        """Return whether to read a partition that was found during the query.

        False if the ending options name only other partitions.
        """
        end = self._range.end
        return end is None or end.time is not None or partition in end.values

    def later_end(self, partition: TopicPartition) -> int | None:
        """Return the end offset of a partition found during the query (as of a recreated topic); None = no end."""
        end = self._range.end
        if end is None or end.kind is not BoundKind.OFFSETS or end.values[partition] == LATEST:
            return None
        return end.values[partition]

    def offsets(self, partitions: Collection[TopicPartition], spec: int) -> dict[TopicPartition, int]:
        """Return by partition the earliest offset (`spec` -2), the latest (-1), or the first at or after a time."""
        return self._cluster.offsets(dict.fromkeys(partitions, spec), committed=self._committed)

    def at_time(self, partitions: Collection[TopicPartition], moment: int) -> dict[TopicPartition, tuple[int, int]]:
        """Return by partition the offset and timestamp of the first record at or after a time (ms since 1970).

        The offset is -1 if there is no such record.
        """
        return self._cluster.timed_offsets(dict.fromkeys(partitions, moment), committed=self._committed)

    def _at_times(self, partitions: Collection[TopicPartition], bound: Bound) -> dict[TopicPartition, int]:
        times = {partition: moment for partition in partitions if (moment := bound.time_of(partition)) is not None}
        # Ask for the ends first, so that the second request finds a record that arrives in between by its time.
        ends = self.offsets(partitions, LATEST)
        offsets = self._cluster.offsets(times, committed=self._committed)
        for partition in partitions:
            if offsets[partition] >= 0:
                continue
            if not self._range.latest_if_no_match:
                moment = times[partition]
                raise ConfigurationError(
                    f"{partition.split_id} has no record at or after {moment} ({_iso(moment)})",
                    split=partition.split_id,
                    option=bound.option,
                    advice="give an earlier time, or wait for new records by startingOffsetsByTimestampStrategy=latest",
                )
            offsets[partition] = ends[partition]
        return offsets

    def _existing(self, offsets: Mapping[TopicPartition, int], bound: Bound) -> dict[TopicPartition, int]:
        """Replace -2 and -1 by existing offsets, and check that each offset is within its partition."""
        first, last = self.offsets(offsets, EARLIEST), self.offsets(offsets, LATEST)
        resolved = {}
        for partition, offset in offsets.items():
            known = {EARLIEST: first[partition], LATEST: last[partition]}
            resolved[partition] = known.get(offset, offset)
            if resolved[partition] > last[partition]:
                raise ConfigurationError(
                    f"{bound.option} starts at {offset}, beyond the end of the partition at offset {last[partition]}",
                    split=partition.split_id,
                    option=bound.option,
                    advice=f"give an offset of at most {last[partition]}, or -1 for the latest",
                )
            if resolved[partition] < first[partition]:
                begin = resolved[partition] = first[partition]
                text = f"{bound.option} starts at the offset {offset}, but the first offset of the partition is {begin}"
                if self._fail_on_data_loss:
                    raise DataLossError(
                        text,
                        split=partition.split_id,
                        position=offset,
                        option=bound.option,
                        advice=f"start at {begin} or later, or set failOnDataLoss=false to start at {begin}",
                    )
                lost = "%s: %s; reading starts there, and %d offsets are lost"
                _log.warning(lost, partition.split_id, text, begin - offset)
        return resolved


def _iso(moment: int) -> str:
    try:
        return datetime.fromtimestamp(moment / 1000, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return "beyond the year 9999"
