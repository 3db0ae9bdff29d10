# SPDX-License-Identifier: Apache-2.0
"""Finds the partitions, their ends, and what is lost of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from kafka.errors import UnknownTopicOrPartitionError

from forebay.clock import Clock
from forebay.errors import ConfigurationError, DataLossError, RetriableError
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.split import Json, Position, Split
from forebay.sources.kafka.client.client_errors import client_error
from forebay.sources.kafka.client.cluster import Cluster, Topic
from forebay.sources.kafka.options import KafkaOptions
from forebay.sources.kafka.planning.bounds import EARLIEST, LATEST, BoundKind
from forebay.sources.kafka.planning.estimates import Estimates
from forebay.sources.kafka.planning.group_progress import GroupProgress
from forebay.sources.kafka.planning.ranges import divide
from forebay.sources.kafka.planning.recreated_topics import RecreatedTopics, repeated
from forebay.sources.kafka.planning.start_resolver import OffsetResolver
from forebay.sources.kafka.planning.time_limits import TimeLimits
from forebay.sources.kafka.split import KafkaSplit, TopicPartition, are_of_two_topics

_log = logging.getLogger(__name__)

_IDS_TRUSTED = 2.0
"""Seconds for which a topic is taken for the same one without asking."""


class KafkaEnumerator(DiscoveryEnumerator):
    """One split per partition; positions and ends are offsets, so budgets of rows and slices are exact in offsets.

    Args:
        source: The options.
        clock: How old an answer is.
        streaming: A stream is planned: it starts at the latest offsets unless told otherwise.

    Raises:
        ConfigurationError: The options do not fit the host.
    """

    exact_ends = True  # but for control records and compacted ones, as with Spark's own source
    # A few milliseconds that nobody else waits for; records that have come are seen so much sooner.
    refresh_floor = 0.015
    discovery_floor = 1.0
    refresh_share = 0.2

    def __init__(self, source: KafkaOptions, clock: Clock, *, streaming: bool) -> None:
        self._source = source
        self._streaming = streaming
        self._subscription = source.subscription()
        offset_range = source.offset_range()
        offset_range.check(streaming=streaming)
        self._options = source.client_options()
        self._retries, self._pause = source.num_retries, source.retry_interval_ms / 1000
        self._cluster = Cluster(self._options, retries=self._retries, interval=self._pause)
        self._resolver = OffsetResolver(
            self._cluster,
            offset_range,
            committed=self._options.read_committed,
            fail_on_data_loss=source.fail_on_data_loss,
            group=source.group_id,
        )
        self._limits = TimeLimits(self._resolver)
        self._estimates = Estimates(self._cluster, clock)
        self._clock = clock
        group = source.group_id if source.commit_offsets else None
        self._progress = None if group is None else GroupProgress(self._options, group, clock)
        self._recreated: set[str] = set()
        self._replaced = RecreatedTopics(source.name)
        self._gone: set[TopicPartition] = set()
        self._looked_at = float("-inf")
        self._warned: set[str] = set()

    # ---- what there is

    def discover(self, known: Mapping[str, Split], first: bool) -> Discovered:
        """Ask for the topics; new partitions of a new query start where the options say, later ones at the earliest."""
        found = self._found(known, first)
        self._looked_at = self._clock.monotonic()
        earlier: dict[TopicPartition, list[KafkaSplit]] = {}
        for split in map(_own, known.values()):
            earlier.setdefault(split.place, []).append(split)
        old, new = [], []
        for place, topic_id in found.items():
            same = [one for one in earlier.get(place, ()) if not are_of_two_topics(one.topic_id, topic_id)]
            old += same
            new += [place] * (not same)
        anew = [one for place in new for one in earlier.get(place, ())]
        self._recreated = {one.id for one in anew}
        self._replaced.add([one.topic_id for one in anew])
        if first:
            starts = self._resolver.starts(new, BoundKind.LATEST if self._streaming else BoundKind.EARLIEST)
            ends: Mapping[TopicPartition, int | None] = self._resolver.ends(new, streaming=self._streaming)
        else:
            new = [place for place in new if self._resolver.reads(place)]
            starts = self._later_starts([place for place in new if place not in earlier], known)
            starts |= self._resolver.asked([place for place in new if place in earlier], EARLIEST)
            ends = {place: self._resolver.later_end(place) for place in new}
        self._look_at_sizes(list(found))
        fresh = [
            KafkaSplit(
                id=f"{place.split_id}:{found[place]}" if place in earlier else place.split_id,
                position=starts[place],
                end=ends.get(place),
                topic_id=found[place],
            )
            for place in sorted(new)
        ]
        splits = [*old, *fresh]
        if self._streaming:
            self._limits.of(splits)
        return Discovered(splits, state=self._limits.state({split.id for split in splits}))

    def restore_state(self, state: Json) -> None:
        """Take back where ending times stop the partitions."""
        self._limits.restore(state, self._source.name)

    def adopt(self, offset: Mapping[str, Json]) -> Sequence[Split] | None:
        """Go on from an offset of Spark's own source: `{"topic":{"0":12}}`."""
        places: dict[TopicPartition, int] = {}
        for topic, partitions in offset.items():
            if not isinstance(partitions, Mapping) or not partitions:
                return None
            for number, position in partitions.items():
                if not number.isdecimal() or isinstance(position, bool) or not isinstance(position, int):
                    return None
                places[TopicPartition(topic, int(number))] = position
        topics = self._cluster.topics({place.topic for place in places})
        return [
            KafkaSplit(
                id=place.split_id,
                position=position,
                end=self._end_after(place, position),
                topic_id=topics[place.topic].topic_id if place.topic in topics else None,
            )
            for place, position in sorted(places.items())
        ]

    def latest(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Return the end of each partition under the query's isolation level, or its ending time if that is earlier.

        Raises:
            DataLossError: A partition ends before what was read of it: it was truncated or made anew.
        """
        own = {split.place: split for split in map(_own, splits)}
        ends = self._ends(own)
        for _ in range(self._retries):  # a new leader may not know its end yet (KAFKA-7703)
            if all(ends[place] >= split.start for place, split in own.items()):
                break
            time.sleep(self._pause)
            ends = self._ends(own)
        for place, split in own.items():
            if ends[place] < split.start:
                self._lose(
                    f"the partition ends at the offset {ends[place]}, and was read up to {split.start}: it was "
                    "truncated, or its topic was deleted and created again",
                    split,
                )
        behind = [place for place, end in ends.items() if end > own[place].start]
        if behind and self._estimates.due({place: ends[place] for place in behind}):
            self._estimates.refresh(self._resolver.asked(behind, EARLIEST), ends)
        for place, limit in self._limits.of([own[place] for place in behind]).items() if self._streaming else ():
            ends[place] = min(ends[place], max(limit, own[place].start))
        return {own[place].id: end for place, end in ends.items()}

    def vanished(self, splits: Sequence[Split]) -> bool:
        """Partitions are gone, or are of another topic of the same name: an error, or they are dropped.

        Raises:
            DataLossError: Under `failOnDataLoss`.
        """
        split = splits[0]
        if split.id in self._recreated:
            why = "its topic was deleted and created again: what was not read of the old one is gone"
        else:
            why = "its topic was deleted, or is no longer among those that are read"
        more = f" (and {len(splits) - 1} more partitions)" if len(splits) > 1 else ""
        self._lose(f"the partition is gone: {why}{more}", split)
        return True

    # ---- what hosts plan with

    def positions_at(self, event_time: int, splits: Sequence[Split]) -> Mapping[str, Position] | None:
        """Return the first record at or after a time (µs since 1970), or the end; by what brokers index."""
        ids = {_own(split).place: split.id for split in splits}
        ends = self._resolver.asked(ids, LATEST)
        moment = max(0, -(-event_time // 1000))
        found = self._cluster.offsets(dict.fromkeys(ids, moment), committed=self._options.read_committed)
        return {ids[place]: found[place] if found[place] >= 0 else ends[place] for place in ids}

    def size(self, split: Split) -> int | None:
        """Estimate the bytes on disk, or guess them."""
        own = _own(split)
        return None if own.left is None else int(own.left * self._estimates.of(own.place))

    def slices(self, split: Split, count: int) -> Sequence[Split]:
        """Cut the range of offsets in equal parts."""
        return divide(_own(split), count)

    def tasks(self, slices: Sequence[Split]) -> Sequence[Sequence[Split]] | None:
        """Cut as `minPartitions` and `maxRecordsPerPartition` say, if one is given: one range is one task then."""
        own = [_own(split) for split in slices]
        if self._clock.monotonic() - self._looked_at < _IDS_TRUSTED:
            return self._source.range_rules().tasks(own)
        # A replay comes before any look, and a run to a fixed target has none between its micro-batches: a topic that
        # was made anew since has other records at these offsets.
        ids = self._ids_of(own)
        self._looked_at = self._clock.monotonic()
        gone = [one for one in own if are_of_two_topics(one.topic_id, ids.get(one.place.topic))]
        for one in gone:
            self._lose("its topic was deleted and created again: what was planned of the old one is gone", one)
        if not gone:
            return self._source.range_rules().tasks(own)
        own = [one.slice(one.end, one.end) if one in gone else one for one in own]
        return self._source.range_rules().tasks(own, keep_empty=True) or [(one,) for one in own]

    def advance(self, split: Split, *, rows: int | None = None, byte_budget: int | None = None) -> Position | None:
        """Return how far a budget reaches: exact in offsets, estimated in bytes unless brokers refuse to tell sizes."""
        own = _own(split)
        reach = [own.end] if isinstance(own.end, int) else []
        if rows is not None:
            reach.append(own.start + rows)
        if byte_budget is not None:
            if self._estimates.refused(own.place):
                return None
            reach.append(own.start + int(byte_budget / self._estimates.of(own.place)))
        return min(reach, default=None)

    def committed(self, positions: Mapping[str, Position]) -> None:
        """Publish progress to the group, with `commitOffsets`."""
        if self._progress is not None:
            self._progress.tell(
                {TopicPartition.of(name): offset for name, offset in positions.items() if isinstance(offset, int)}
            )

    def close(self) -> None:
        """Close the connections."""
        self._cluster.close()
        if self._progress is not None:
            self._progress.close()

    # ---- inside

    def _found(self, known: Mapping[str, Split], first: bool) -> dict[TopicPartition, str | None]:
        """Return the partitions that are there, with their topics' ids.

        A broker that has not heard of a topic yet, or not of all its partitions, answers as if there were none; one
        that has not heard of its end tells of the topic that was there before. So both are asked for again.

        Raises:
            RetriableError: All that was heard is of an earlier topic.
        """
        ids: dict[TopicPartition, set[str | None]] = {}
        for split in map(_own, known.values()):
            ids.setdefault(split.place, set()).add(split.topic_id)
        wanted = ids.keys() - self._gone

        def same(found: Mapping[TopicPartition, str | None]) -> bool:
            return not any(self._replaced.surprises(found[place], ids.get(place, ())) for place in found)

        found = repeated(lambda: self._places(known, first), lambda found: wanted <= found.keys())
        if not same(found):
            found = repeated(
                lambda: self._places(known, first), lambda found: wanted <= found.keys() and same(found), found
            )
        self._replaced.check({place.topic: topic_id for place, topic_id in found.items()})
        self._gone = (self._gone | wanted) - found.keys()
        return found

    def _ids_of(self, splits: Sequence[KafkaSplit]) -> dict[str, str | None]:
        """Return the ids of topics; asks again where they are others, as `_found` does."""
        expected = {split.place.topic: split.topic_id for split in splits}
        ids = repeated(
            lambda: {name: topic.topic_id for name, topic in self._cluster.topics(expected.keys()).items()},
            lambda ids: not any(are_of_two_topics(topic_id, ids.get(name)) for name, topic_id in expected.items()),
        )
        self._replaced.check(ids)
        return ids

    def _places(self, known: Mapping[str, Split], first: bool) -> dict[TopicPartition, str | None]:
        topics = self._topics(known, first)
        read = {name: self._subscription.read_of(name, topic.leaders, first=first) for name, topic in topics.items()}
        return {place: topics[name].topic_id for name, places in read.items() for place in places}

    def _end_after(self, place: TopicPartition, position: int) -> int | None:
        end = self._resolver.later_end(place) if self._resolver.reads(place) else position
        return None if end is None else max(end, position)

    def _topics(self, known: Mapping[str, Split], first: bool) -> dict[str, Topic]:
        names = self._subscription.named_topics()
        topics = self._cluster.topics(names)
        pattern = self._subscription.pattern
        if pattern is not None:
            topics = {name: topic for name, topic in topics.items() if not topic.internal and pattern.fullmatch(name)}
        for name, topic in topics.items():
            if topic.error is not None:
                raise client_error(topic.error, f"asking for the topic {name!r}", self._options)
        once = set() if first else {TopicPartition.of(split_id).topic for split_id in known}
        for name in names or ():
            if name not in topics and name not in once and (first or self._source.fail_on_data_loss):
                raise ConfigurationError(
                    f"there is no topic {name!r} on {self._cluster.servers}, or the user may not see it",
                    option="assign" if self._subscription.places else "subscribe",
                    advice="check its name; a topic that comes later is found by subscribePattern",
                )
        return topics

    def _ends(self, own: Mapping[TopicPartition, KafkaSplit]) -> dict[TopicPartition, int]:
        """Return the end of each partition; where a transaction is open before what was read, that is what was read."""
        ends = self._living_ends(own)
        if self._options.read_committed:
            before = [place for place, split in own.items() if ends[place] < split.start]
            for place, end in self._cluster.offsets(dict.fromkeys(before, LATEST), committed=False).items():
                if end >= own[place].start:
                    ends[place] = own[place].start
        return ends

    def _living_ends(self, own: Mapping[TopicPartition, KafkaSplit]) -> dict[TopicPartition, int]:
        """Return what brokers say; a partition that was deleted since it was found ends where it was read up to."""
        try:
            return self._resolver.asked(own, LATEST)
        except RetriableError as error:
            if not isinstance(error.__cause__, UnknownTopicOrPartitionError):
                raise
            topics = self._cluster.topics({place.topic for place in own})
            gone = {
                place
                for place in own
                if place.topic not in topics or place.partition not in topics[place.topic].leaders
            }
            if not gone:
                raise
        for place in sorted(gone):
            self._lose("the partition is gone: its topic was deleted", own[place])
        living = self._resolver.asked(own.keys() - gone, LATEST)
        return {**living, **{place: own[place].start for place in gone}}

    def _later_starts(self, new: Sequence[TopicPartition], known: Mapping[str, Split]) -> dict[TopicPartition, int]:
        starts = self._resolver.asked(new, EARLIEST)
        topics = {TopicPartition.of(split_id).topic for split_id in known}
        for place, offset in starts.items():
            if offset > 0 and place.topic not in topics:
                if not known:  # a run that begins at stored positions: it tells of what is new in its next look
                    continue
                self._warn(f"{place.split_id}: the topic is new, and begins at the offset {offset}: read from there")
            elif offset > 0:
                self._lose(
                    f"the partition is new and begins at the offset {offset}, not at 0: earlier records are gone",
                    KafkaSplit(id=place.split_id, position=0),
                )
        return starts

    def _look_at_sizes(self, places: Sequence[TopicPartition]) -> None:
        if places and not self._streaming:
            self._estimates.refresh(self._resolver.asked(places, EARLIEST), self._resolver.asked(places, LATEST))

    def _lose(self, text: str, split: Split) -> None:
        """Raise, or warn once for each partition and reason."""
        if self._source.fail_on_data_loss:
            raise DataLossError(
                text,
                source=self._source.name,
                split=split.id,
                position=split.position,
                advice="start a new checkpoint, or give failOnDataLoss=false to go on with what there is",
            )
        self._warn(f"{split.id}: {text}")

    def _warn(self, said: str) -> None:
        if said not in self._warned:
            self._warned.add(said)
            _log.warning("%s: %s", self._source.name, said)


def _own(split: Split) -> KafkaSplit:
    if not isinstance(split, KafkaSplit):
        raise TypeError(f"{type(split).__name__} is no KafkaSplit")
    return split
