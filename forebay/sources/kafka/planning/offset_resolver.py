# SPDX-License-Identifier: Apache-2.0
"""Resolves the options for start and end to offsets, once, when partitions are discovered."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from forebay.errors import ConfigurationError, DataLossError
from forebay.sources.kafka.client.cluster import Cluster
from forebay.sources.kafka.options.bounds import EARLIEST, LATEST, Bound, BoundKind
from forebay.sources.kafka.options.kafka_options import KafkaOptions
from forebay.sources.kafka.split import TopicPartition

_log = logging.getLogger(__name__)


class OffsetResolver:
    """Resolves starts and ends of partitions. Called on the planning thread; may block."""

    def __init__(self, source: KafkaOptions, cluster: Cluster) -> None:
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
            kept = self._cluster.group_offsets(self._group, partitions)
            missing = [partition for partition in partitions if partition not in kept]
            if missing:
                _log.info("%d partitions without a committed offset start at the earliest offset", len(missing))
            return self._existing({**kept, **dict.fromkeys(missing, EARLIEST)}, bound)
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
        found = self._cluster.offsets(times, committed=self._committed)
        return {partition: offset for partition, offset in found.items() if offset >= 0}

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
        found = self._cluster.offsets(times, committed=self._committed)
        for partition in partitions:
            if found[partition] >= 0:
                continue
            if not self._range.latest_if_no_match:
                moment = times[partition]
                raise ConfigurationError(
                    f"{partition.split_id} has no record at or after {moment} ({_iso(moment)})",
                    split=partition.split_id,
                    option=bound.option,
                    advice="give an earlier time, or wait for new records by startingOffsetsByTimestampStrategy=latest",
                )
            found[partition] = ends[partition]
        return found

    def _existing(self, wanted: Mapping[TopicPartition, int], bound: Bound) -> dict[TopicPartition, int]:
        """Replace -2 and -1 by existing offsets, and check that each offset is within its partition."""
        first, last = self.offsets(wanted, EARLIEST), self.offsets(wanted, LATEST)
        resolved = {}
        for partition, offset in wanted.items():
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
