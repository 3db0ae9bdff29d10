# SPDX-License-Identifier: Apache-2.0
"""The common parts of sessions and the host: the reader's context, closing, and the maximum time without a result."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from forebay.framework.runtime.host_options import HostOptions
from forebay.testkit.outcomes import Broken
from forebay.testkit.scripted import RecordingContext

C = TypeVar("C")

_SPIN_COUNT = 400
_SPIN_SECONDS = 0.4
"""`_SPIN_COUNT` calls without a record within `_SPIN_SECONDS` are a busy loop (RDR-3)."""


class KitContext(RecordingContext):
    """A reader context that lends clients from the kit's own pool. With `promised`, ends are promises, as on Spark."""

    def __init__(self, options: HostOptions, pool: dict[Hashable, list[Any]], *, promised: bool = False) -> None:
        super().__init__(options=options)
        self._promised = promised
        self._pool = pool
        self._borrowed: list[tuple[Hashable, Any]] = []

    @property
    def ends_are_promises(self) -> bool:
        """Whether the next read starts at the ends of the splits, wherever this one stops."""
        return self._promised

    def lease(self, key: Hashable, factory: Callable[[], C]) -> C:
        """Return a free client of this key, or a new one."""
        free = self._pool.setdefault(key, [])
        client: C = free.pop() if free else factory()
        self._borrowed.append((key, client))
        return client

    def hand_back(self) -> None:
        """Return the reader's clients to the pool, after it has closed."""
        borrowed, self._borrowed = self._borrowed, []
        for key, client in borrowed:
            self._pool[key].append(client)


class Closing(ABC):
    """Base class: closes itself at the end of a `with` block. After an error, errors of closing are ignored."""

    @abstractmethod
    def close(self) -> None:
        """Close the opened resources."""

    def abandon(self) -> None:
        """Close the session after an error, and ignore errors of closing."""
        with suppress(Exception):
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()


class Silence:
    """Measures the time since the last result. More than `patience` seconds are too long."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self.reset()

    def reset(self) -> None:
        """Begin again, because a result came."""
        self._calls = 0
        self._since = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the last result."""
        return time.monotonic() - self._since

    @property
    def left(self) -> float:
        """Seconds until the silence is too long."""
        return self._patience - self.seconds

    def count_call(self, saw: Callable[[int, float], str], advice: str) -> None:
        """Count a call without a result. Raise `Broken` for a busy loop: too many calls in too short a time."""
        self._calls += 1
        if self._calls >= _SPIN_COUNT and self.seconds < _SPIN_SECONDS * self._calls / _SPIN_COUNT:
            raise Broken(saw(self._calls, self.seconds), advice, rule="RDR-3")
