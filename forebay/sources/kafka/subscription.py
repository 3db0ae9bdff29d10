# SPDX-License-Identifier: Apache-2.0
"""Which partitions are read: `subscribe`, `subscribePattern` or `assign`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from forebay.errors import ConfigurationError
from forebay.sources.kafka.bounds import assigned_json
from forebay.sources.kafka.patterns import compile_topics
from forebay.sources.kafka.split import Place

_NAMES = "assign, subscribe, subscribePattern"


@dataclass(frozen=True)
class Subscription:
    """What is read: exactly one of the three is set.

    Args:
        topics: These topics, all partitions.
        pattern: The topics whose whole name matches.
        places: These partitions.
    """

    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    places: tuple[Place, ...] = ()

    @classmethod
    def of(cls, subscribe: Sequence[str], pattern: str | None, assign: str | None) -> Subscription:
        """Return what the three options say.

        Raises:
            ConfigurationError: None or several are given, or what is given is wrong.
        """
        given = [bool(subscribe), pattern is not None, assign is not None].count(True)
        if given == 0:
            raise ConfigurationError(
                f"One of the following options must be specified for Kafka source: {_NAMES}",
                option="subscribe",
                advice='give for example subscribe="topic1,topic2"',
            )
        if given > 1:
            raise ConfigurationError(
                f"Only one of the following options can be specified for Kafka source: {_NAMES}",
                option="subscribe",
                advice="give the one that says what is to be read",
            )
        if assign is not None:
            return cls(places=tuple(assigned_json(assign)))
        if pattern is not None:
            if not pattern.strip():
                raise ConfigurationError(
                    "subscribePattern is empty", option="subscribePattern", advice="give a pattern, such as orders-.*"
                )
            return cls(pattern=compile_topics(pattern.strip()))
        return cls(tuple(dict.fromkeys(subscribe)))

    def named_topics(self) -> list[str] | None:
        """Return the topics that are read; None = all are to be looked at for the pattern."""
        if self.pattern is not None:
            return None
        return list(self.topics) or sorted({place.topic for place in self.places})
