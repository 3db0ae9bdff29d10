# SPDX-License-Identifier: Apache-2.0
"""Parses the options for the start and the end of a read, with the names, JSON, precedence and errors of Spark."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal, Self

from forebay.errors import ConfigurationError
from forebay.sources.kafka.split import TopicPartition

EARLIEST: Final = -2
"""In JSON offsets: the first existing offset of a partition."""

LATEST: Final = -1
"""In JSON offsets: the offset after the last record of a partition."""


class BoundKind(Enum):
    """How the start or the end of a read is given: as a word of Spark's, as offsets, or as times."""

    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"
    OFFSETS = "offsets"
    TIMES = "times"


@dataclass(frozen=True)
class Bound:
    """The start or the end of a read, as its options give it.

    Args:
        kind: How the bound is given.
        option: The name of the option that sets the bound, for errors.
        values: For `OFFSETS`, the offset of each partition; for `TIMES`, its time in ms since 1970.
        time: For `TIMES`: the time (ms since 1970) of all partitions not in `values`; None = `values` must name all.
    """

    kind: BoundKind
    option: str
    values: Mapping[TopicPartition, int] = field(default_factory=dict)
    time: int | None = None

    @classmethod
    def of(
        cls, side: Literal["starting", "ending"], time: int | None, times: str | None, offsets: str | None
    ) -> Self | None:
        """Parse the options for one side of a read; return None if none of them is set.

        `time` (for all partitions) takes precedence over `times` (JSON, by partition), and `times` over `offsets`.
        """
        if time is not None:
            _check_time(time, option := f"{side}Timestamp")
            return cls(BoundKind.TIMES, option, time=time)
        if times is not None:
            values = _partitions_json(times, option := f"{side}OffsetsByTimestamp")
            for partition, moment in values.items():
                _check_time(moment, option, f" for {partition.split_id}")
            return cls(BoundKind.TIMES, option, values)
        if offsets is None:
            return None
        option, word = f"{side}Offsets", offsets.strip().lower()
        if word in ("earliest", "latest", "committed"):
            return cls(BoundKind(word), option)
        values = _partitions_json(offsets, option)
        for partition, offset in values.items():
            if not EARLIEST <= offset < 1 << 63:
                raise ConfigurationError(
                    f"{option} gives {partition.split_id} the invalid offset {offset}",
                    option=option,
                    advice="give an offset of 0 or more, -2 for the earliest or -1 for the latest",
                )
        return cls(BoundKind.OFFSETS, option, values)

    def time_of(self, partition: TopicPartition) -> int | None:
        """Return the time of a partition in ms since 1970. Only for the kind `TIMES`."""
        return self.values.get(partition, self.time)

    def check_names(self, partitions: Collection[TopicPartition]) -> None:
        """Raise ConfigurationError unless a bound by partition names exactly `partitions`, those of the query."""
        if self.kind not in (BoundKind.OFFSETS, BoundKind.TIMES) or self.time is not None:
            return
        missing = sorted(set(partitions) - self.values.keys())
        if missing:
            raise ConfigurationError(
                f"{self.option} must name every partition, but {_listed(missing)} missing",
                option=self.option,
                advice="add the missing partitions; as an offset, -2 means the earliest and -1 the latest",
            )
        unknown = sorted(self.values.keys() - set(partitions))
        if unknown:
            raise ConfigurationError(
                f"{self.option} names partitions that are not read: {', '.join(one.split_id for one in unknown)}",
                option=self.option,
                advice="remove these partitions, or read their topics too",
            )


@dataclass(frozen=True)
class OffsetRange:
    """The start and the end of a query.

    Args:
        start: The start; None = earliest in a batch, latest in a stream.
        end: The end; None = the latest offset.
        latest_if_no_match: Whether a partition without a record at or after its starting time starts at its end. If
            False, such a partition raises an error.
    """

    start: Bound | None
    end: Bound | None
    latest_if_no_match: bool

    @classmethod
    def of(cls, start: Bound | None, end: Bound | None, *, latest_if_no_match: bool) -> Self:
        """Return the range between two bounds. Raise ConfigurationError for an end that leaves nothing to read."""
        if end is not None:
            earliest = end.kind is BoundKind.OFFSETS and EARLIEST in end.values.values()
            if end.kind in (BoundKind.EARLIEST, BoundKind.COMMITTED) or earliest:
                raise ConfigurationError(
                    f"{end.option}={end.kind.value if not earliest else 'earliest (-2)'} leaves nothing to read",
                    option=end.option,
                    advice="set the end to latest, to offsets or to a time",
                )
        return cls(start, None if end is not None and end.kind is BoundKind.LATEST else end, latest_if_no_match)

    @property
    def wants_group(self) -> bool:
        """Whether the query starts at the committed offsets of a consumer group."""
        return self.start is not None and self.start.kind is BoundKind.COMMITTED

    def check(self, *, streaming: bool) -> None:
        """Raise ConfigurationError for a batch query that starts at the latest offsets."""
        start = self.start
        if streaming or start is None:
            return
        latest = start.kind is BoundKind.OFFSETS and LATEST in start.values.values()
        if start.kind is BoundKind.LATEST or latest:
            raise ConfigurationError(
                f"starting offset can't be latest{' (-1)' if latest else ''} for batch queries on Kafka",
                option=start.option,
                advice="set the start to earliest, to offsets or to a time; or use readStream",
            )


def assigned_json(text: str) -> list[TopicPartition]:
    """Parse the option `assign`, such as `{"topic":[0,1]}`, into partitions."""
    option, advice = "assign", 'write {"topicA":[0,1],"topicB":[2,4]}'
    assigned: list[TopicPartition] = []
    for topic, partitions in _object(text, option, advice).items():
        for number in partitions if isinstance(partitions, list) else [None]:
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise _invalid(option, f"the value of {topic!r} is not a list of partition numbers", advice)
            assigned.append(TopicPartition(topic, number))
    if not assigned:
        raise _invalid(option, "it names no partition", advice)
    return sorted(set(assigned))


_OFFSETS: Final = 'write {"topicA":{"0":23,"1":-2},"topicB":{"0":-1}}'


def _partitions_json(text: str, option: str) -> dict[TopicPartition, int]:
    """Parse JSON such as `{"topic":{"0":23,"1":-2}}` into a number (offset or time) for each partition."""
    offsets: dict[TopicPartition, int] = {}
    for topic, partitions in _object(text, option).items():
        if not isinstance(partitions, dict):
            raise _invalid(option, f"the value of {topic!r} is not an object of partitions")
        for partition, value in partitions.items():
            if not partition.isdecimal() or isinstance(value, bool) or not isinstance(value, int):
                raise _invalid(option, f"{topic!r} has the invalid entry {json.dumps({partition: value})}")
            offsets[TopicPartition(topic, int(partition))] = value
    return offsets


def _check_time(moment: int, option: str, of: str = "") -> None:
    """Refuse times beyond 64 bits and before 1970, because brokers read -1 and -2 as latest and earliest."""
    if not 0 <= moment < 1 << 63:
        raise ConfigurationError(
            f"{option} is {moment}{of}, which is not a valid time", option=option, advice="give milliseconds since 1970"
        )


def _object(text: str, option: str, advice: str = _OFFSETS) -> dict[str, object]:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _invalid(option, str(error), advice) from error
    if not isinstance(parsed, dict):
        raise _invalid(option, "it is not a JSON object", advice)
    return parsed


def _invalid(option: str, why: str, advice: str = _OFFSETS) -> ConfigurationError:
    words = ", nor earliest or latest" if option in ("startingOffsets", "endingOffsets") else ""
    return ConfigurationError(f"{option} is not valid JSON of partitions{words}: {why}", option=option, advice=advice)


def _listed(partitions: list[TopicPartition]) -> str:
    shown = ", ".join(partition.split_id for partition in partitions[:10]) + (
        " and more" if len(partitions) > 10 else ""
    )
    return f"{shown} {'is' if len(partitions) == 1 else 'are'}"
