# SPDX-License-Identifier: Apache-2.0
"""Topics that were created again, and brokers that have not heard of it: a surprising answer is asked for again."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from forebay.errors import RetriableError
from forebay.sources.kafka.split import are_of_two_topics

T = TypeVar("T")

_TIMES = 3
_PAUSE = 0.2
"""How often, and after how many seconds, is asked again before a topic counts as gone, or as another."""


class RecreatedTopics:
    """Remembers the ids of topics that others of their names took the place of. Called on the planning thread.

    Args:
        source: The format name, for errors.
    """

    def __init__(self, source: str) -> None:
        self._source = source
        self._ids: set[str] = set()

    def add(self, topic_ids: Collection[str | None]) -> None:
        """Believe that these are gone for ever."""
        self._ids.update(one for one in topic_ids if one is not None)

    def surprises(self, topic_id: str | None, known: Collection[str | None]) -> bool:
        """Whether an answer may be of a broker that lags behind: of a topic that is gone, or of none that is read.

        Args:
            topic_id: What a broker says.
            known: The topics of this name that the query has read; empty: none.
        """
        new = bool(known) and all(are_of_two_topics(one, topic_id) for one in known)
        return new or topic_id in self._ids

    def check(self, ids: Mapping[str, str | None]) -> None:
        """Refuse answers of topics that are gone.

        Args:
            ids: What brokers say, by topic.

        Raises:
            RetriableError: There is one.
        """
        for name, topic_id in ids.items():
            if topic_id in self._ids:
                raise RetriableError(
                    f"a broker still tells of the topic {name!r} as it was before it was created again",
                    source=self._source,
                    advice="look at the brokers: one lags behind the controller",
                )


def repeated(ask: Callable[[], T], settled: Callable[[T], bool], found: T | None = None) -> T:
    """Return an answer that settles it, or the last one of a few; may block for a second.

    Args:
        ask: Asks the brokers.
        settled: Whether there is nothing to ask again.
        found: The first answer, if there is one already.
    """
    found = ask() if found is None else found
    for _ in range(_TIMES):
        if settled(found):
            break
        time.sleep(_PAUSE)
        found = ask()
    return found
