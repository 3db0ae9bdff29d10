# SPDX-License-Identifier: Apache-2.0
"""Parses the options that name the topics or partitions to read: `subscribe`, `subscribePattern`, `assign`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from forebay.errors import ConfigurationError, RetriableError
from forebay.sources.kafka.options.bounds import assigned_json
from forebay.sources.kafka.split import TopicPartition

_TOKEN: Final = re.compile(
    r"\\Q(?P<quoted>.*?)(?:\\E|$)"
    r"|\\k<(?P<group>\w+)>"
    r"|(?P<octal>\\0|\\[1-3][0-7][0-7])"
    r"|(?P<comments>\(\?[a-zA-Z-]*x)"
    r"|\\.|\(\?<(?=[a-zA-Z])|&&|.",
    re.DOTALL,
)
_REWRITTEN: Final = {r"\z": r"\Z", "(?<": "(?P<"}

_NAMES = "assign, subscribe, subscribePattern"


@dataclass(frozen=True)
class Subscription:
    """The topics or partitions to read; exactly one field is set.

    Args:
        topics: Topics with all their partitions.
        pattern: A pattern that matches whole names of topics.
        partitions: Single partitions.
    """

    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    partitions: tuple[TopicPartition, ...] = ()

    @classmethod
    def of(cls, subscribe: Sequence[str], pattern: str | None, assign: str | None) -> Subscription:
        """Parse the three options. Raise ConfigurationError unless exactly one is given."""
        given = [bool(subscribe), pattern is not None, assign is not None].count(True)
        if given == 0:
            raise ConfigurationError(
                f"One of the following options must be specified for Kafka source: {_NAMES}",
                option="subscribe",
                advice='set one of them, for example subscribe="topic1,topic2"',
            )
        if given > 1:
            raise ConfigurationError(
                f"Only one of the following options can be specified for Kafka source: {_NAMES}",
                option="subscribe",
                advice="set only one of them",
            )
        if assign is not None:
            return cls(partitions=tuple(assigned_json(assign)))
        if pattern is not None:
            if not pattern.strip():
                raise ConfigurationError(
                    "subscribePattern is empty", option="subscribePattern", advice="give a pattern, such as orders-.*"
                )
            return cls(pattern=compile_topics(pattern.strip()))
        return cls(tuple(dict.fromkeys(subscribe)))

    def named_topics(self) -> list[str] | None:
        """Return the names of the topics to ask the brokers for; None = all topics, to match the pattern."""
        if self.pattern is not None:
            return None
        return list(self.topics) or sorted({partition.topic for partition in self.partitions})

    def partitions_of(self, name: str, leaders: Mapping[int, int], *, first: bool) -> list[TopicPartition]:
        """Return the partitions of a topic to read.

        Args:
            name: The name of the topic.
            leaders: The leader of each existing partition; -1 = no leader.
            first: Whether the query is new. If so, each partition of `assign` must exist.

        Raises:
            ConfigurationError: The query is new, and a partition of `assign` does not exist.
            RetriableError: A partition has no leader.
        """
        wanted = [partition for partition in self.partitions if partition.topic == name]
        missing = [partition for partition in wanted if partition.partition not in leaders]
        if missing and first:
            raise ConfigurationError(
                f"the topic {name!r} has no partition {missing[0].partition}; it has {len(leaders)} in all",
                split=missing[0].split_id,
                option="assign",
                advice="name only existing partitions",
            )
        if self.partitions:  # discovery reports the missing partitions as lost
            partitions = [one for one in wanted if one.partition in leaders]
        else:
            partitions = [TopicPartition(name, number) for number in sorted(leaders)]
        alone = [partition for partition in partitions if leaders[partition.partition] < 0]
        if alone:
            raise RetriableError(
                f"the partition {alone[0].split_id} has no leader, so it cannot be read",
                split=alone[0].split_id,
                advice="check the brokers that hold the partition's replicas: they may be down",
            )
        return partitions


def compile_topics(pattern: str) -> re.Pattern[str]:
    r"""Return a Python pattern whose `fullmatch` accepts the same names as Java's `pattern`.

    Topic names have only ASCII letters, digits, dots, underscores and hyphens. For these, most syntax means the same in
    both languages. `\Q…\E`, `\z`, `(?<name>` and `\k<name>` are rewritten.

    Raises:
        ConfigurationError: The pattern is invalid, or has syntax with another meaning in Python.
    """
    try:
        return re.compile(_to_python(pattern), re.ASCII)
    except (re.error, ValueError, OverflowError) as error:
        raise ConfigurationError(
            f"subscribePattern {pattern!r} cannot be used: {error}",
            option="subscribePattern",
            advice="write a regular expression of letters, classes, groups and repetitions, such as orders-.*",
        ) from error


def _to_python(pattern: str) -> str:
    parts: list[str] = []
    class_begin: int | None = None
    for match in _TOKEN.finditer(pattern):
        text = match[0]
        if match["quoted"] is not None:
            text = re.escape(match["quoted"])
        elif match["octal"]:
            raise ValueError(f"{text} has different meanings in regular expressions of Python and Java")
        elif class_begin is not None:
            if text in ("[", "&&"):
                raise ValueError("nested classes and && exist only in Java")
            if text == "^" and match.start() == class_begin:
                class_begin += 1
            elif text == "]" and match.start() > class_begin:
                class_begin = None
        elif match["comments"]:
            raise ValueError("the flag x of regular expressions is not supported")
        elif match["group"]:
            text = f"(?P={match['group']})"
        else:
            text = _REWRITTEN.get(text, text)
            class_begin = match.end() if text == "[" else None
        parts.append(text)
    return "".join(parts)
