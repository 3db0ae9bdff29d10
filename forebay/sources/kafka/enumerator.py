# SPDX-License-Identifier: Apache-2.0
"""The enumerator of the Kafka source: finds partitions, where they start and end, and lost records."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from kafka.errors import UnknownTopicOrPartitionError

from forebay.clock import Clock
from forebay.errors import ConfigurationError, DataLossError, RetriableError
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.split import Json, Position, Split
from forebay.sources.kafka.bounds import EARLIEST, LATEST, BoundKind
from forebay.sources.kafka.client.client_options import ClientOptions
from forebay.sources.kafka.client.cluster import COORDINATOR_RETRIES, KafkaCluster, ask_until
from forebay.sources.kafka.event_times import RecordTimes, TimeLimits
from forebay.sources.kafka.offset_resolver import OffsetResolver, TopicDiscovery, TopicIdentity
from forebay.sources.kafka.options import KafkaOptions
from forebay.sources.kafka.split import KafkaSplit, TopicPartition, are_of_two_topics, is_offset, is_split_id

# -- Commits progress to a consumer group. A failed commit never stops the query.


_log = logging.getLogger(__name__)

_TIMEOUT_MS = 5_000
"""Request timeout in ms. The next micro-batch waits for the answer."""
_RETRIES = 4
"""Retries of a commit while the group coordinator is unavailable; the first commit has more."""
_PAUSE = 30.0
"""Minimum seconds between a failed commit and the next try."""


class GroupProgress:
    """Commits offsets to a consumer group. Called by one thread at a time; connects at the first commit."""

    def __init__(self, options: ClientOptions, group: str, clock: Clock) -> None:
        request_timeout = options.settings.get("request_timeout_ms")
        timeout = min(_TIMEOUT_MS, request_timeout) if isinstance(request_timeout, int) else _TIMEOUT_MS
        short = {"request_timeout_ms": timeout, "bootstrap_timeout_ms": timeout}
        self._cluster = KafkaCluster(replace(options, settings={**options.settings, **short}), retries=0, interval=0)
        self._group = group
        self._clock = clock
        self._published: dict[str, tuple[str | None, int]] = {}  # topic id and offset by split
        self._pending: dict[str, KafkaSplit] = {}
        self._retries = COORDINATOR_RETRIES
        self._failed_at: float | None = None

    def publish(self, splits: Iterable[KafkaSplit]) -> None:
        """Commit the position of each split, except those already committed. May block.

        A failure is logged once. After a pause, a later call tries again with all positions of failed commits.
        """
        self._pending |= {split.id: split for split in splits}
        self._pending = {
            name: split
            for name, split in self._pending.items()
            if self._published.get(name) != (split.topic_id, split.start)
        }
        if not self._pending or (self._failed_at is not None and self._clock.monotonic() - self._failed_at < _PAUSE):
            return
        # A cluster creates its topic for group offsets at the first commit, which takes seconds.
        retries, self._retries = self._retries, _RETRIES
        try:
            self._cluster.commit(self._group, self._pending.values(), retries=retries)
        except Exception as error:  # noqa: BLE001 - whatever a client raises, the query goes on
            if self._failed_at is None:
                text = "committing progress to the group %r failed; the query continues and retries every %.0f s: %s"
                _log.warning(text, self._group, _PAUSE, error)
            self._failed_at = self._clock.monotonic()
            return
        if self._failed_at is not None:
            _log.info("committing progress to the group %r works again", self._group)
        self._published |= {split.id: (split.topic_id, split.start) for split in self._pending.values()}
        self._pending, self._failed_at = {}, None

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()


# -- The enumerator of the Kafka source: finds partitions, where they start and end, and lost records.


_IDS_TRUSTED = 2.0
"""Seconds after a discovery for which `tasks` does not check the topic ids again."""


class KafkaEnumerator(DiscoveryEnumerator):
    """Creates one split per partition. Positions and ends are offsets, so row limits and slices count offsets."""

    exact_ends = True  # except before control or compacted records, as in Spark's own source
    # A request for ends takes milliseconds and blocks no other work; a short floor shows new records sooner.
    refresh_floor = 0.015
    discovery_floor = 1.0
    refresh_share = 0.2

    def __init__(self, source: KafkaOptions, clock: Clock, *, streaming: bool, follows_history: bool = False) -> None:
        self._source = source
        self._streaming = streaming
        self._start = BoundKind.LATEST if streaming and not follows_history else BoundKind.EARLIEST
        source.offset_range.check(streaming=streaming)
        self._pause = source.retry_interval_ms / 1000
        self._cluster = KafkaCluster(source.client_options, retries=source.num_retries, interval=self._pause)
        self._discovery = TopicDiscovery(source, self._cluster)
        self._resolver = OffsetResolver(source, self._cluster)
        self._limits = TimeLimits(self._resolver)
        self._estimates = SizeEstimates(self._cluster, clock)
        self._ranges = RangeRules(source.min_partitions, source.max_records_per_partition)
        self._record_times = RecordTimes(source, clock)
        self._clock = clock
        group = source.group_id if source.commit_offsets else None
        self._progress = None if group is None else GroupProgress(source.client_options, group, clock)
        self._topic_ids: dict[str, str | None] = {}  # by split; of splits that are only committed the id is unknown
        self._reached: dict[str, int] = {}  # committed offsets by split that are not yet published
        self._publishing = threading.Lock()  # in process, `discover` and `committed` run on two threads
        self._recreated: set[str] = set()
        self._discovered_at = float("-inf")
        self._warned: set[str] = set()

    # ---- discovery

    def discover(self, known: Mapping[str, Split], first: bool) -> Discovered:
        """Find the partitions to read.

        In a new query, they start where the options say; partitions found later start at the earliest offset.
        """
        splits = [_own(split) for split in known.values()]
        identity = self._discovery.partitions(splits, first=first)
        topic_ids = identity.topic_ids
        self._discovered_at = self._clock.monotonic()
        self._recreated = {split.id for earlier in identity.recreated.values() for split in earlier}
        ends: Mapping[TopicPartition, int | None]
        if first:
            starts = self._resolver.starts([*identity.recreated, *identity.new], self._start)
            if self._source.changelog_history == "complete":
                _refuse_late_beginnings(starts)
            ends = self._resolver.ends(starts, streaming=self._streaming)
        else:
            starts = self._later_starts(identity, splits)
            ends = {partition: self._resolver.later_end(partition) for partition in starts}
        if topic_ids and not self._streaming:
            self._estimates.refresh(
                self._resolver.offsets(topic_ids, EARLIEST), self._resolver.offsets(topic_ids, LATEST)
            )
        fresh = [
            KafkaSplit(
                id=f"{partition.split_id}:{topic_ids[partition]}"
                if partition in identity.recreated
                else partition.split_id,
                position=starts[partition],
                end=ends.get(partition),
                topic_id=topic_ids[partition],
            )
            for partition in sorted(starts)
        ]
        current = [*identity.kept, *fresh]
        if self._streaming:
            self._limits.of(current)
        self._publish([*splits, *current])
        return Discovered(current, state=self._limits.state({split.id for split in current}))

    def restore_state(self, state: Json) -> None:
        """Restore the end offsets that were found for ending times before a restart."""
        self._limits.restore(state, self._source.name)

    def adopt(self, offset: Mapping[str, Json]) -> Sequence[Split] | None:
        """Return the splits for an offset of Spark's own Kafka source, `{"topic":{"0":12}}`; None for other JSON.

        Raises:
            DataLossError: A topic no longer exists, and `failOnDataLoss` is set. Without its id, a later topic of its
                name would be read from the old position.
        """
        positions = _spark_positions(offset)
        if positions is None:
            return None
        names = {partition.topic for partition in positions}
        # A broker with stale metadata may miss a topic.
        topics = ask_until(lambda: self._cluster.topics(names), lambda answer: names <= answer.keys())
        for partition, position in sorted(positions.items()):
            if partition.topic not in topics:
                self._report_loss("its topic was deleted", KafkaSplit(id=partition.split_id, position=position))
        return [
            KafkaSplit(
                id=partition.split_id,
                position=position,
                end=self._adopted_end(partition, position),
                topic_id=topics[partition.topic].topic_id,
            )
            for partition, position in sorted(positions.items())
            if partition.topic in topics
        ]

    def latest(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Return the end offset of each partition under the isolation level; if lower, the offset of its ending time.

        Raises:
            DataLossError: A partition no longer exists or ends before its position, and `failOnDataLoss` is set.
        """
        own = {split.topic_partition: split for split in map(_own, splits)}
        ends = ask_until(  # a new leader may not know its end yet (KAFKA-7703)
            lambda: self._ends(own),
            lambda ends: all(ends[partition] >= split.start for partition, split in own.items()),
            retries=self._source.num_retries,
            pause=self._pause,
        )
        for partition, split in own.items():
            if ends[partition] < split.start:
                self._report_loss(
                    f"the partition ends at the offset {ends[partition]}, before the position {split.start}: it was "
                    "truncated, or its topic was deleted and created again",
                    split,
                )
        behind = {partition: end for partition, end in ends.items() if end > own[partition].start}
        if behind and self._estimates.due(behind):
            self._estimates.refresh(self._resolver.offsets(behind, EARLIEST), ends)
        if self._streaming:
            for partition, limit in self._limits.of([own[partition] for partition in behind]).items():
                ends[partition] = min(ends[partition], max(limit, own[partition].start))
        return {own[partition].id: end for partition, end in ends.items()}

    def vanished(self, splits: Sequence[Split]) -> bool:
        """Log a warning, and return True, so that these splits, which the last discovery did not find, are dropped.

        Raises:
            DataLossError: `failOnDataLoss` is set.
        """
        split = splits[0]
        if split.id in self._recreated:
            why = "its topic was deleted and created again, and the unread records of the old topic no longer exist"
        else:
            why = "its topic was deleted, or the query no longer reads it"
        more = f" (and {len(splits) - 1} more partitions)" if len(splits) > 1 else ""
        self._report_loss(f"the partition was not found: {why}{more}", split)
        return True

    # ---- planning

    def positions_at(self, event_time: int, splits: Sequence[Split]) -> Mapping[str, Position] | None:
        """Return for each split the first offset at or after a time (µs since 1970), or the split's end.

        The brokers look up the time in their time indexes.
        """
        own = {split.topic_partition: split for split in map(_own, splits)}
        ends = {partition: split.end for partition, split in own.items() if isinstance(split.end, int)}
        ends |= self._resolver.offsets(own.keys() - ends.keys(), LATEST)
        resolved = self._resolver.at_time(own, max(0, -(-event_time // 1000)))
        return self._record_times.first_at(
            event_time,
            [(split.slice(split.start, ends[partition]), *resolved[partition]) for partition, split in own.items()],
        )

    def event_times(self, splits: Sequence[Split], column: str) -> Mapping[str, int] | None:
        """Return the timestamp of each split's next record, or else of its last record, in µs since 1970.

        None if `column` is not the column `timestamp`. For splits that are omitted, see `RecordTimes.of`.
        """
        return self._record_times.of(map(_own, splits)) if column == "timestamp" else None

    def size(self, split: Split) -> int | None:
        """Estimate the bytes of a split from its partition's size on disk."""
        own = _own(split)
        return None if own.left is None else int(own.left * self._estimates.of(own.topic_partition))

    def slices(self, split: Split, count: int) -> Sequence[Split]:
        """Cut the split's range of offsets into `count` equal parts; not at all if the order of its keys counts."""
        return [split] if self._source.in_key_order else divide(_own(split), count)

    def tasks(self, slices: Sequence[Split]) -> Sequence[Sequence[Split]] | None:
        """Return one task per range if `minPartitions` or `maxRecordsPerPartition` is set; else None.

        The method checks the topic ids, because a topic that was recreated after planning has other records at the
        planned offsets. The last discovery is not enough: a replayed micro-batch comes before the first discovery, and
        a run to a fixed end has no discovery between its micro-batches.
        """
        own = [_own(split) for split in slices]
        if self._clock.monotonic() - self._discovered_at < _IDS_TRUSTED:
            return self._ranges.tasks(own)
        ids = self._discovery.topic_ids(own)
        self._discovered_at = self._clock.monotonic()
        gone = [split for split in own if are_of_two_topics(split.topic_id, ids.get(split.topic_partition.topic))]
        for lost in gone:
            self._report_loss("the topic was deleted and created again, and the planned records no longer exist", lost)
        if not gone:
            return self._ranges.tasks(own)
        own = [split.slice(split.end, split.end) if split in gone else split for split in own]
        return self._ranges.tasks(own, keep_empty=True) or [(split,) for split in own]

    def advance(self, split: Split, *, rows: int | None = None, byte_budget: int | None = None) -> Position | None:
        """Return the position after at most `rows` offsets (exact), or after about `byte_budget` bytes (estimated).

        None if there is a byte budget, and the user lacks the permission to see the size of the partition.
        """
        own = _own(split)
        limits = [own.end] if isinstance(own.end, int) else []
        if rows is not None:
            limits.append(own.start + rows)
        if byte_budget is not None:
            if self._estimates.refused(own.topic_partition):
                return None
            limits.append(own.start + int(byte_budget / self._estimates.of(own.topic_partition)))
        return min(limits, default=None)

    def committed(self, positions: Mapping[str, Position]) -> None:
        """Commit progress to the consumer group, if `commitOffsets` is set.

        After a restart this waits for the next discovery, as positions come without the ids of their topics.
        """
        self._publish((), {name: offset for name, offset in positions.items() if isinstance(offset, int)})

    def _publish(self, splits: Iterable[KafkaSplit], reached: Mapping[str, int] | None = None) -> None:
        """Publish the committed offsets of all splits whose topic ids are known; those of `splits` are from now on."""
        if self._progress is None:
            return
        with self._publishing:
            self._reached |= reached or {}
            self._topic_ids |= {split.id: split.topic_id for split in splits}
            known = [name for name in self._reached if name in self._topic_ids]
            if known:
                self._progress.publish(
                    KafkaSplit(id=name, position=self._reached.pop(name), topic_id=self._topic_ids[name])
                    for name in known
                )

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()
        self._record_times.close()
        if self._progress is not None:
            self._progress.close()

    # ---- starts and ends

    def _later_starts(self, identity: TopicIdentity, known: Sequence[KafkaSplit]) -> dict[TopicPartition, int]:
        """Return the starts of partitions found during the query, without those that the ending options leave out."""
        to_read = [added for added in (*identity.new, *identity.recreated) if self._resolver.reads(added)]
        starts = self._resolver.offsets(to_read, EARLIEST)
        topics = {split.topic_partition.topic for split in known}
        if self._source.in_key_order:
            self._check_growth(identity, starts)
        for partition, offset in starts.items():
            if offset == 0 or partition in identity.recreated:
                continue
            if partition.topic in topics:
                self._report_loss(
                    f"the partition is new and begins at the offset {offset}, not at 0: earlier records no longer "
                    "exist",
                    KafkaSplit(id=partition.split_id, position=0),
                )
            elif known:  # a run from stored positions has no known splits yet; its next discovery warns
                self._warn(
                    f"{partition.split_id}: the recreated topic begins at offset {offset}, and reading starts there"
                )
        return starts

    def _check_growth(self, identity: TopicIdentity, starts: Iterable[TopicPartition]) -> None:
        """Raise ConfigurationError for new partitions of a topic whose changes are in the order of their key."""
        before = [split.topic_partition for split in identity.kept]
        for topic in sorted(
            {partition.topic for partition in identity.new if partition in starts}
            & {partition.topic for partition in before}
        ):
            old, new = (
                sorted(partition.partition for partition in ones if partition.topic == topic)
                for ones in (before, starts)
            )
            raise ConfigurationError(
                f"the topic {topic!r} has new partitions, so producers may send a key to another one than before: "
                f"changes of one key have no order between the partitions {_numbers(old)} and the new partitions "
                f"{_numbers(new)}",
                source=self._source.name,
                option="keyOrder",
                advice="read with a new checkpoint and keyOrder=none, and order the changes by changelogSequence",
            )

    def _adopted_end(self, partition: TopicPartition, position: int) -> int | None:
        end = self._resolver.later_end(partition) if self._resolver.reads(partition) else position
        return None if end is None else max(end, position)

    def _ends(self, own: Mapping[TopicPartition, KafkaSplit]) -> dict[TopicPartition, int]:
        """Return the end of each partition; or its position, if only an open transaction puts the end before it."""
        ends = self._existing_ends(own)
        if self._source.client_options.read_committed:
            before = [partition for partition, split in own.items() if ends[partition] < split.start]
            for partition, end in self._cluster.offsets(dict.fromkeys(before, LATEST), committed=False).items():
                if end >= own[partition].start:
                    ends[partition] = own[partition].start
        return ends

    def _existing_ends(self, own: Mapping[TopicPartition, KafkaSplit]) -> dict[TopicPartition, int]:
        """Return the end that the brokers report for each partition; for a deleted partition, its position."""
        try:
            return self._resolver.offsets(own, LATEST)
        except RetriableError as error:
            if not isinstance(error.__cause__, UnknownTopicOrPartitionError):
                raise
            topics = self._cluster.topics({partition.topic for partition in own})
            gone = {
                partition
                for partition in own
                if partition.topic not in topics or partition.partition not in topics[partition.topic].leaders
            }
            if not gone:
                raise
        for partition in sorted(gone):
            self._report_loss("the partition no longer exists: its topic was deleted", own[partition])
        existing = self._resolver.offsets(own.keys() - gone, LATEST)
        return {**existing, **{partition: own[partition].start for partition in gone}}

    # ---- data loss

    def _report_loss(self, text: str, split: Split) -> None:
        """Raise DataLossError if `failOnDataLoss` is set; else log a warning, once per partition and reason."""
        if self._source.fail_on_data_loss:
            raise DataLossError(
                text,
                source=self._source.name,
                split=split.id,
                position=split.position,
                advice=self._source.after_loss,
            )
        self._warn(f"{split.id}: {text}")

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            _log.warning("%s: %s", self._source.name, text)


def _numbers(partitions: Sequence[int]) -> str:
    return ", ".join(map(str, partitions[:20])) + (", …" if len(partitions) > 20 else "")


def _refuse_late_beginnings(starts: Mapping[TopicPartition, int]) -> None:
    """Raise a ConfigurationError if a partition no longer has its first records, whose changes `complete` needs."""
    for partition, offset in sorted(starts.items()):
        if offset > 0:
            raise ConfigurationError(
                f"changelogHistory=complete needs the first change of each row, but the partition begins at the offset "
                f"{offset}: earlier records no longer exist",
                split=partition.split_id,
                option="changelogHistory",
                advice="remove changelogHistory: changes are then put in order by position, which needs no history",
            )


def _own(split: Split) -> KafkaSplit:
    if not isinstance(split, KafkaSplit):
        raise TypeError(f"{type(split).__name__} is not a KafkaSplit")
    return split


def _spark_positions(offset: Mapping[str, Json]) -> dict[TopicPartition, int] | None:
    """Return the positions in an offset of Spark's own Kafka source, `{"topic":{"0":12}}`; None for other JSON."""
    positions: dict[TopicPartition, int] = {}
    for topic, partitions in offset.items():
        if not isinstance(partitions, Mapping) or not partitions:
            return None
        for number, position in partitions.items():
            if not is_offset(position) or not number.isdecimal() or not is_split_id(f"{topic}/{number}"):
                return None
            positions[TopicPartition(topic, int(number))] = position
    return positions


# -- Estimates the bytes per offset of partitions from their sizes on the brokers' disks.


GUESS: Final = 1024
"""Bytes per offset until the size of any partition is known."""

_REFRESH_SECONDS = 60.0
_RETRY_SECONDS = 2.0


class SizeEstimates:
    """Caches the bytes per offset of partitions and refreshes them once a minute. Called by one thread at a time."""

    def __init__(self, cluster: KafkaCluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._per_offset: dict[TopicPartition, float] = {}
        self._asked_at: float | None = None
        self._mean: float = GUESS
        self._asked_for: set[TopicPartition] = set()
        self._failed = False
        self._refused = False

    def refresh(self, first: Mapping[TopicPartition, int], last: Mapping[TopicPartition, int]) -> None:
        """Ask the brokers for the sizes of partitions whose offsets go from `first` to `last`; may block."""
        self._asked_at = self._clock.monotonic()
        self._asked_for |= first.keys()
        sizes = self._cluster.sizes({partition.topic for partition in first}) if first else {}
        self._failed, self._refused = not sizes, sizes is None
        for partition, size in (sizes or {}).items():
            offsets = last[partition] - first[partition] if partition in first else 0
            if offsets > 0 and size > 0:
                self._per_offset[partition] = size / offsets
        self._mean = fmean(self._per_offset.values()) if self._per_offset else GUESS

    def due(self, last: Mapping[TopicPartition, int]) -> bool:
        """Return whether to call `refresh`: at once for a new partition, otherwise a minute after the last call.

        After two seconds already, if a partition with records has no estimate. After a failed request, a new partition
        waits these two seconds too, because a failing request may block for long.
        """
        if self._asked_at is None or (not self._failed and not self._asked_for.issuperset(last)):
            return True
        age = self._clock.monotonic() - self._asked_at
        unknown = any(end > 0 and partition not in self._per_offset for partition, end in last.items())
        return age >= _REFRESH_SECONDS or (age >= _RETRY_SECONDS and unknown)

    def of(self, partition: TopicPartition) -> float:
        """Return the bytes per offset of a partition; if unknown, the mean of the known partitions, or else `GUESS`."""
        return self._per_offset.get(partition, self._mean)

    def refused(self, partition: TopicPartition) -> bool:
        """Return whether the user lacks the permission to see sizes, and the partition has no earlier estimate."""
        return self._refused and partition not in self._per_offset


# -- Cuts ranges of offsets into tasks by `minPartitions` and `maxRecordsPerPartition`, with Spark's arithmetic.


@dataclass(frozen=True)
class RangeRules:
    """The options `minPartitions` and `maxRecordsPerPartition`.

    If neither option is set, the host cuts slices and packs tasks.

    Args:
        min_partitions: The approximate minimum number of tasks; large ranges are cut in proportion to their size.
        max_records: The maximum number of offsets in one task.
    """

    min_partitions: int | None = None
    max_records: int | None = None

    def tasks(self, slices: Sequence[KafkaSplit], *, keep_empty: bool = False) -> list[tuple[KafkaSplit]] | None:
        """Cut ranges as the options say, and return one task per range; None if neither option is set.

        Empty ranges are left out, unless `keep_empty` is set.
        """
        if self.min_partitions is None and self.max_records is None:
            return None
        ranges = [split for split in slices if keep_empty or split.left != 0]
        most = self.max_records
        if most is not None:
            ranges = [part for split in ranges for part in divide(split, -(-(split.left or 0) // most))]
        if self.min_partitions is not None and self.min_partitions > len(ranges):
            ranges = self._spread(ranges, self.min_partitions)
        return [(split,) for split in ranges]

    @staticmethod
    def _spread(ranges: Sequence[KafkaSplit], count: int) -> list[KafkaSplit]:
        """Cut big ranges in proportion to their size, into about `count` ranges in total.

        The shares are computed without the ranges that are not cut (SPARK-36576).
        """
        sizes = [split.left or 0 for split in ranges]
        total = sum(sizes)
        whole = [_parts(size, total, count) == 1 for size in sizes]
        left = total - sum(size for size, uncut in zip(sizes, whole, strict=True) if uncut)
        parts_left = max(1, count - sum(whole))
        return [
            part
            for split, size, uncut in zip(ranges, sizes, whole, strict=True)
            for part in ([split] if uncut else divide(split, _parts(size, left, parts_left)))
        ]


def divide(split: KafkaSplit, count: int) -> list[KafkaSplit]:
    """Cut a range into `count` parts with equal numbers of offsets; into fewer parts if there are fewer offsets."""
    left = split.left
    if left is None or count <= 1 or left <= 1:
        return [split]
    count = min(count, left)
    cuts = [split.start + left * number // count for number in range(count + 1)]
    return [split.slice(low, high) for low, high in itertools.pairwise(cuts)]


def _parts(size: int, total: int, count: int) -> int:
    return max(1, int(size / total * count + 0.5)) if total else 1
