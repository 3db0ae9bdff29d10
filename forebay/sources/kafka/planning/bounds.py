# SPDX-License-Identifier: Apache-2.0
"""Where a read starts and ends, as the options say it: Spark's names, forms, precedence and errors."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from forebay.errors import ConfigurationError
from forebay.sources.kafka.split import TopicPartition

EARLIEST: Final = -2
"""In JSON: the first offset there is."""

LATEST: Final = -1
"""In JSON: the offset of the next record to be written."""


class BoundKind(Enum):
    """How a bound is said."""

    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"
    OFFSETS = "offsets"
    TIMES = "times"


@dataclass(frozen=True)
class Bound:
    """One end of a read.

    Args:
        kind: How it is said.
        option: The option that said it, for errors.
        values: For `OFFSETS` and `TIMES`: an offset, or milliseconds since 1970, of each partition.
        time: For `TIMES`: the time of partitions that `values` does not name; None = all must be named.
    """

    kind: BoundKind
    option: str
    values: Mapping[TopicPartition, int] = field(default_factory=dict)
    time: int | None = None

    def check_names(self, found: Collection[TopicPartition]) -> None:
        """Check that every partition is named, and none that is not read.

        Raises:
            ConfigurationError: One is missing, or unknown.
        """
        if self.kind not in (BoundKind.OFFSETS, BoundKind.TIMES) or self.time is not None:
            return
        missing = sorted(set(found) - self.values.keys())
        if missing:
            raise ConfigurationError(
                f"{self.option} must name every partition, and {_named(missing)} missing",
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
    """Return the bound that `startingOffsets` or `endingOffsets` says.

    Raises:
        ConfigurationError: It says nothing of the kind.
    """
    word = text.strip().lower()
    if word in ("earliest", "latest", "committed"):
        return Bound(BoundKind(word), option)
    values = places_json(text, option)
    for place, offset in values.items():
        if offset < EARLIEST:
            raise ConfigurationError(
                f"{option} gives {place.split_id} the offset {offset}",
                option=option,
                advice="give an offset of 0 or more, -2 for the earliest or -1 for the latest",
            )
    return Bound(BoundKind.OFFSETS, option, values)


def times_bound(text: str, option: str) -> Bound:
    """Return the bound that `…OffsetsByTimestamp` says: milliseconds since 1970 of each partition.

    Raises:
        ConfigurationError: It says nothing of the kind.
    """
    values = places_json(text, option)
    for place, moment in values.items():
        check_time(moment, option, place)
    return Bound(BoundKind.TIMES, option, values)


def time_bound(moment: int, option: str) -> Bound:
    """Return the bound that `startingTimestamp` or `endingTimestamp` says, for every partition.

    Raises:
        ConfigurationError: It is no time.
    """
    check_time(moment, option)
    return Bound(BoundKind.TIMES, option, time=moment)


def check_time(moment: int, option: str, place: TopicPartition | None = None) -> None:
    """Refuse times before 1970, since what -1 and -2 mean to a broker is no time, and those that no broker knows.

    Raises:
        ConfigurationError: It is one.
    """
    if not 0 <= moment < 1 << 63:
        raise ConfigurationError(
            f"{option} is {moment}" + (f" for {place.split_id}" if place else ""),
            option=option,
            advice="give milliseconds since 1970",
        )


def places_json(text: str, option: str) -> dict[TopicPartition, int]:
    """Return the numbers of `{"topic":{"0":23,"1":-2}}`, by partition.

    Raises:
        ConfigurationError: It is no such JSON.
    """
    found: dict[TopicPartition, int] = {}
    for topic, partitions in _object(text, option).items():
        if not isinstance(partitions, dict):
            raise _shape(option, f"{topic!r} has no partitions in braces")
        for partition, value in partitions.items():
            if not partition.isdecimal() or isinstance(value, bool) or not isinstance(value, int):
                raise _shape(option, f"{topic!r} has {json.dumps({partition: value})}")
            found[TopicPartition(topic, int(partition))] = value
    return found


def assigned_json(text: str, option: str = "assign") -> list[TopicPartition]:
    """Return the partitions of `{"topic":[0,1]}`.

    Raises:
        ConfigurationError: It is no such JSON, or names none.
    """
    advice = 'write {"topicA":[0,1],"topicB":[2,4]}'
    found: list[TopicPartition] = []
    for topic, partitions in _object(text, option, advice).items():
        for one in partitions if isinstance(partitions, list) else [None]:
            if isinstance(one, bool) or not isinstance(one, int) or one < 0:
                raise _shape(option, f"{topic!r} has no list of partition numbers", advice)
            found.append(TopicPartition(topic, one))
    if not found:
        raise _shape(option, "there is no partition", advice)
    return sorted(set(found))


_OFFSETS: Final = 'write {"topicA":{"0":23,"1":-2},"topicB":{"0":-1}}'


def _object(text: str, option: str, advice: str = _OFFSETS) -> dict[str, object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _shape(option, str(error), advice) from error
    if not isinstance(found, dict):
        raise _shape(option, "it is no object", advice)
    return found


def _shape(option: str, why: str, advice: str = _OFFSETS) -> ConfigurationError:
    words = " or one of the words earliest, latest" if option in ("startingOffsets", "endingOffsets") else ""
    return ConfigurationError(f"{option} is no JSON of partitions{words}: {why}", option=option, advice=advice)


def _named(places: list[TopicPartition]) -> str:
    shown = ", ".join(one.split_id for one in places[:10]) + (" and more" if len(places) > 10 else "")
    return f"{shown} {'is' if len(places) == 1 else 'are'}"
