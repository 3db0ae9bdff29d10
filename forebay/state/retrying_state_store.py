# SPDX-License-Identifier: Apache-2.0
"""A state store that repeats requests, for callers that nobody calls again: tasks with keyed state."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import TypeVar

from forebay.clock import Clock, SystemClock
from forebay.errors import RetriableError
from forebay.retry import RetryCount, RetryPolicy
from forebay.state.state_store import StateStore

T = TypeVar("T")

_log = logging.getLogger(__name__)


class RetryingStateStore:
    """Repeats the requests of another store that fail with a RetriableError. Implements `StateStore`. Methods block.

    Args:
        store: The other store.
        policy: How long requests are repeated.
        clock: The clock.
        sleep: Waits for seconds.
    """

    def __init__(
        self,
        store: StateStore,
        policy: RetryPolicy | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.location = store.location
        self._store = store
        self._policy = policy or RetryPolicy()
        self._clock = clock or SystemClock()
        self._sleep = sleep

    def get(self, name: str) -> bytes | None:
        """Return a fact, or None; see `StateStore.get`."""
        return self._call(lambda: self._store.get(name))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a fact unless it exists; see `StateStore.put_if_absent`."""
        return self._call(lambda: self._store.put_if_absent(name, data))

    def names(self, prefix: str) -> list[str]:
        """Return the names below a prefix; see `StateStore.names`."""
        return self._call(lambda: self._store.names(prefix))

    def directories(self, prefix: str) -> list[str]:
        """Return the directories below a prefix; see `StateStore.directories`."""
        return self._call(lambda: self._store.directories(prefix))

    def delete(self, names: Iterable[str]) -> None:
        """Delete facts; see `StateStore.delete`."""
        wanted = list(names)
        self._call(lambda: self._store.delete(wanted))

    def local_path(self, name: str) -> Path | None:
        """Return the path of a fact, or None; see `StateStore.local_path`."""
        return self._store.local_path(name)

    def _call(self, request: Callable[[], T]) -> T:
        count = RetryCount(self._policy, self._clock, Random())
        while True:
            try:
                return request()
            except RetriableError as error:
                pause = count.fail(error)
                if count.exhausted:
                    raise count.last_error(error)  # noqa: B904 - it is the same error
                _log.warning("a request to the state is retried in %.1f s: %s", pause, error)
            self._sleep(pause)
