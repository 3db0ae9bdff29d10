# SPDX-License-Identifier: Apache-2.0
"""Resolves where partitions start and end, once, when they are discovered."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from forebay.errors import ConfigurationError, DataLossError
from forebay.sources.kafka.client.cluster import Cluster
from forebay.sources.kafka.planning.bounds import EARLIEST, LATEST, Bound, BoundKind
from forebay.sources.kafka.planning.offset_range import OffsetRange
from forebay.sources.kafka.split import TopicPartition

_log = logging.getLogger(__name__)


class OffsetResolver:
    """Asks the brokers what the options mean for partitions. Called on the planning thread; may block.

    Args:
        cluster: Answers.
        window: What the options say.
        committed: Ends are asked for under `read_committed`.
        fail_on_data_loss: A starting offset whose record is gone is an error.
        group: Who is asked for `startingOffsets=committed`.
    """

    def __init__(
        self,
        cluster: Cluster,
        offset_range: OffsetRange,
        *,
        committed: bool,
        fail_on_data_loss: bool,
        group: str | None,
    ) -> None:
        self._cluster = cluster
        self._window = offset_range
        self._committed = committed
        self._fail_on_data_loss = fail_on_data_loss
        self._group = group

    def starts(self, places: Collection[TopicPartition], default: BoundKind) -> dict[TopicPartition, int]:
        """Return the first offset to read of each partition.

        Args:
            places: All partitions of a new query.
            default: Where to start if the options do not say it.

        Raises:
            ConfigurationError: The options do not fit the partitions.
            DataLossError: A record that was asked for is gone.
        """
        bound = self._window.start or Bound(default, "startingOffsets")
        bound.check_names(places)
        if bound.kind is BoundKind.TIMES:
            return self._at_times(places, bound)
        if bound.kind is BoundKind.COMMITTED and self._group is not None:
            kept = self._cluster.group_offsets(self._group, places)
            missing = [place for place in places if place not in kept]
            if missing:
                _log.info("%d partitions without a committed offset start at the earliest one", len(missing))
            return self._existing({**kept, **dict.fromkeys(missing, EARLIEST)}, bound)
        if bound.kind is BoundKind.OFFSETS:
            return self._existing({place: bound.values[place] for place in places}, bound)
        return self.asked(places, LATEST if bound.kind is BoundKind.LATEST else EARLIEST)

    def ends(self, places: Collection[TopicPartition], *, streaming: bool) -> dict[TopicPartition, int]:
        """Return the offset at which a partition's reading ends, where one is known.

        Args:
            places: All partitions of a new query.
            streaming: An ending offset may lie in the future; an ending time is looked up by `TimeLimits`.

        Raises:
            ConfigurationError: The options do not fit the partitions.
        """
        bound = self._window.end
        if bound is None:
            return {}
        bound.check_names(places)
        if bound.kind is BoundKind.TIMES:
            return {} if streaming else self.ends_by_time(places)
        ends = {place: bound.values[place] for place in places if bound.values[place] != LATEST}
        if not streaming:
            for place, latest in self.asked(ends, LATEST).items():
                if ends[place] > latest:
                    raise ConfigurationError(
                        f"{bound.option} ends at {ends[place]}, and the partition goes up to {latest} so far",
                        split=place.split_id,
                        option=bound.option,
                        advice="give an offset of at most that, or -1 for the latest",
                    )
        return ends

    def ends_by_time(self, places: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset that is too late, of each partition that has one."""
        times = {place: moment for place in places if (moment := self.ending_time(place)) is not None}
        found = self._cluster.offsets(times, committed=self._committed)
        return {place: offset for place, offset in found.items() if offset >= 0}

    def ending_time(self, place: TopicPartition) -> int | None:
        """Return the time before which a partition's reading ends, ms since 1970, where the options say one."""
        bound = self._window.end
        return None if bound is None or bound.kind is not BoundKind.TIMES else _time(bound, place)

    def reads(self, place: TopicPartition) -> bool:
        """Whether a partition that is found later is read: not if the ends name others."""
        end = self._window.end
        return end is None or end.time is not None or place in end.values

    def later_end(self, place: TopicPartition) -> int | None:
        """Return where a partition that is found later ends, if the ends name it: its topic was made anew."""
        end = self._window.end
        if end is None or end.kind is not BoundKind.OFFSETS or end.values[place] == LATEST:
            return None
        return end.values[place]

    def asked(self, places: Collection[TopicPartition], spec: int) -> dict[TopicPartition, int]:
        """Return the earliest or the latest offset of each partition."""
        return self._cluster.offsets(dict.fromkeys(places, spec), committed=self._committed)

    def _at_times(self, places: Collection[TopicPartition], bound: Bound) -> dict[TopicPartition, int]:
        times = {place: moment for place in places if (moment := _time(bound, place)) is not None}
        # The end first: a record that comes between the two questions is then found by its time.
        ends = self.asked(places, LATEST)
        found = self._cluster.offsets(times, committed=self._committed)
        for place in places:
            if found[place] >= 0:
                continue
            if not self._window.latest_if_no_match:
                moment = times[place]
                raise ConfigurationError(
                    f"no record of {place.split_id} is of {moment} ({_iso(moment)}) or later",
                    split=place.split_id,
                    option=bound.option,
                    advice="give an earlier time, or startingOffsetsByTimestampStrategy=latest to wait for new records",
                )
            found[place] = ends[place]
        return found

    def _existing(self, wanted: Mapping[TopicPartition, int], bound: Bound) -> dict[TopicPartition, int]:
        """Return offsets with -2 and -1 resolved, none of which is before the first record or after the last one."""
        first, last = self.asked(wanted, EARLIEST), self.asked(wanted, LATEST)
        resolved = {}
        for place, offset in wanted.items():
            known = {EARLIEST: first[place], LATEST: last[place]}
            resolved[place] = known.get(offset, offset)
            if resolved[place] > last[place]:
                raise ConfigurationError(
                    f"{bound.option} starts at the offset {offset}, and the partition goes up to {last[place]} so far",
                    split=place.split_id,
                    option=bound.option,
                    advice="give an offset of at most that, or -1 for the latest",
                )
            if resolved[place] < first[place]:
                self._lost(place, offset, first[place], bound)
                resolved[place] = first[place]
        return resolved

    def _lost(self, place: TopicPartition, offset: int, first: int, bound: Bound) -> None:
        text = f"{bound.option} starts at the offset {offset}, and the partition begins at {first} by now"
        if self._fail_on_data_loss:
            raise DataLossError(
                text,
                split=place.split_id,
                position=offset,
                option=bound.option,
                advice=f"start at {first} or later, or give failOnDataLoss=false to go on there",
            )
        _log.warning("%s: %s; it goes on there, %d offsets are lost", place.split_id, text, first - offset)


def _time(bound: Bound, place: TopicPartition) -> int | None:
    return bound.values.get(place, bound.time)


def _iso(moment: int) -> str:
    try:
        return datetime.fromtimestamp(moment / 1000, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return "beyond all calendars"
