# SPDX-License-Identifier: Apache-2.0
"""Parses the options for start and end, with Spark's names, JSON, precedence and errors."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from forebay.errors import ConfigurationError
from forebay.sources.kafka.split import TopicPartition

EARLIEST: Final = -2
"""In JSON: the first existing offset."""

LATEST: Final = -1
"""In JSON: the offset after the last record."""


class BoundKind(Enum):
    """The kind of a bound."""

    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"
    OFFSETS = "offsets"
    TIMES = "times"


@dataclass(frozen=True)
class Bound:
    """The start or the end of a read.

    Args:
        kind: Its kind.
        option: The option that sets it, for errors.
        values: For `OFFSETS` and `TIMES`: the offset, or ms since 1970, of each partition.
        time: For `TIMES`: the time of partitions that `values` does not name; None = `values` names all.
    """

    kind: BoundKind
    option: str
    values: Mapping[TopicPartition, int] = field(default_factory=dict)
    time: int | None = None

    def check_names(self, found: Collection[TopicPartition]) -> None:
        """Check that the bound names every partition of the query and no other.

        Raises:
            ConfigurationError: A partition is missing or unknown.
        """
        if self.kind not in (BoundKind.OFFSETS, BoundKind.TIMES) or self.time is not None:
            return
        missing = sorted(set(found) - self.values.keys())
        if missing:
            raise ConfigurationError(
                f"{self.option} must name every partition, and {_listed(missing)} missing",
                option=self.option,
                advice="add them; in offsets -2 means the earliest, -1 the latest",
            )
        unknown = sorted(self.values.keys() - set(found))
        if unknown:
            raise ConfigurationError(
                f"{self.option} names partitions that are not read: {', '.join(one.split_id for one in unknown)}",
                option=self.option,
                advice="leave them out, or read their topics too",
            )


def offsets_bound(text: str, option: str) -> Bound:
    """Parse `startingOffsets` or `endingOffsets`.

    Raises:
        ConfigurationError: The text is invalid.
    """
    word = text.strip().lower()
    if word in ("earliest", "latest", "committed"):
        return Bound(BoundKind(word), option)
    values = partitions_json(text, option)
    for partition, offset in values.items():
        if offset < EARLIEST:
            raise ConfigurationError(
                f"{option} gives {partition.split_id} the offset {offset}",
                option=option,
                advice="give an offset of 0 or more, -2 for the earliest or -1 for the latest",
            )
    return Bound(BoundKind.OFFSETS, option, values)


def times_bound(text: str, option: str) -> Bound:
    """Parse `…OffsetsByTimestamp`: ms since 1970 of each partition.

    Raises:
        ConfigurationError: The text is invalid.
    """
    values = partitions_json(text, option)
    for partition, moment in values.items():
        check_time(moment, option, partition)
    return Bound(BoundKind.TIMES, option, values)


def time_bound(moment: int, option: str) -> Bound:
    """Return the bound of `startingTimestamp` or `endingTimestamp`, for every partition.

    Raises:
        ConfigurationError: The time is out of range.
    """
    check_time(moment, option)
    return Bound(BoundKind.TIMES, option, time=moment)


def check_time(moment: int, option: str, partition: TopicPartition | None = None) -> None:
    """Refuse times before 1970, since brokers read -1 and -2 as latest and earliest, and times beyond 64 bits.

    Raises:
        ConfigurationError: The time is out of range.
    """
    if not 0 <= moment < 1 << 63:
        raise ConfigurationError(
            f"{option} is {moment}" + (f" for {partition.split_id}" if partition else ""),
            option=option,
            advice="give milliseconds since 1970",
        )


def partitions_json(text: str, option: str) -> dict[TopicPartition, int]:
    """Parse `{"topic":{"0":23,"1":-2}}` into numbers by partition.

    Raises:
        ConfigurationError: The JSON is invalid.
    """
    found: dict[TopicPartition, int] = {}
    for topic, partitions in _object(text, option).items():
        if not isinstance(partitions, dict):
            raise _invalid(option, f"the value of {topic!r} is no object of partitions")
        for partition, value in partitions.items():
            if not partition.isdecimal() or isinstance(value, bool) or not isinstance(value, int):
                raise _invalid(option, f"{topic!r} has {json.dumps({partition: value})}")
            found[TopicPartition(topic, int(partition))] = value
    return found


def assigned_json(text: str, option: str = "assign") -> list[TopicPartition]:
    """Parse `{"topic":[0,1]}` into partitions.

    Raises:
        ConfigurationError: The JSON is invalid or names no partition.
    """
    advice = 'write {"topicA":[0,1],"topicB":[2,4]}'
    found: list[TopicPartition] = []
    for topic, partitions in _object(text, option, advice).items():
        for one in partitions if isinstance(partitions, list) else [None]:
            if isinstance(one, bool) or not isinstance(one, int) or one < 0:
                raise _invalid(option, f"the value of {topic!r} is no list of partition numbers", advice)
            found.append(TopicPartition(topic, one))
    if not found:
        raise _invalid(option, "it names no partition", advice)
    return sorted(set(found))


_OFFSETS: Final = 'write {"topicA":{"0":23,"1":-2},"topicB":{"0":-1}}'


def _object(text: str, option: str, advice: str = _OFFSETS) -> dict[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _invalid(option, str(error), advice) from error
    if not isinstance(found, dict):
        raise _invalid(option, "it is no JSON object", advice)
    return found


def _invalid(option: str, why: str, advice: str = _OFFSETS) -> ConfigurationError:
    words = ", nor earliest or latest" if option in ("startingOffsets", "endingOffsets") else ""
    return ConfigurationError(f"{option} is not valid JSON of partitions{words}: {why}", option=option, advice=advice)


def _listed(partitions: list[TopicPartition]) -> str:
    shown = ", ".join(one.split_id for one in partitions[:10]) + (" and more" if len(partitions) > 10 else "")
    return f"{shown} {'is' if len(partitions) == 1 else 'are'}"
