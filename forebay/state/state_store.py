# SPDX-License-Identifier: Apache-2.0
"""The protocol of a state store: it stores small durable facts of streams, written once and never changed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Final, NamedTuple, Protocol, TypeVar

from forebay.clock import Clock, SystemClock
from forebay.errors import ConfigurationError, RetriableError
from forebay.retry import RetryCount, RetryPolicy

OPTION: Final = "stateLocation"
"""The option that errors of these stores name."""


class Purpose(NamedTuple):
    """What a store keeps, and how its user sets it up; for errors.

    Args:
        what: What is kept.
        option: The option or argument that gives the location.
        storage: The beginning of the names of settings of S3.
        again: What to do after a write has failed and the disk is well again.
        backup: What has to be restored together.
    """

    what: str = "the state of the stream"
    option: str = OPTION
    storage: str = "stateStorage."
    again: str = (
        "start the query again: it continues where it stopped; or copy the directory to another disk and set "
        "stateLocation to the copy"
    )
    backup: str = "the state location and the checkpoint"


STREAM: Final = Purpose()

_NAME_BYTES: Final = 255
"""Maximum bytes of one part of a name, as in most file systems."""


def is_safe_name(name: object) -> bool:
    """Return whether the name of a fact stays below the location of its store, in whatever store. For any thread.

    Manifests, offsets and listings contain names, and whoever writes to the state or the checkpoint chooses them.
    """
    parts = name.split("/") if isinstance(name, str) else [""]
    return all(part not in ("", ".", "..") and _is_file_name(part) for part in parts)


def _is_file_name(part: str) -> bool:
    try:
        return "\x00" not in part and len(part.encode()) <= _NAME_BYTES
    except UnicodeEncodeError:
        return False


def checked_name(name: str, location: str, purpose: Purpose = STREAM) -> str:
    """Return the name of a fact, or of a directory without its last slash. Called by stores before each request.

    Raises:
        ConfigurationError: The name would leave the location; see `is_safe_name`.
    """
    if not is_safe_name(name):
        raise ConfigurationError(
            f"the state below {location!r} names the file {name!r:.300}, which would be outside of it",
            option=purpose.option,
            advice=f"restore {purpose.backup} from one backup, and find out who else writes there",
        )
    return name


def checked_prefix(prefix: str, location: str, purpose: Purpose = STREAM) -> str:
    """Return a prefix that is empty, or the name of a directory and a slash; see `checked_name`."""
    if prefix:
        checked_name(prefix.removesuffix("/"), location, purpose)
    return prefix


class StateStore(Protocol):
    """Stores facts, which are bytes with a name, below one location. Threads, processes and machines share it.

    A name has parts, with slashes between them. All methods refuse a name that is not safe (`is_safe_name`) with a
    ConfigurationError, before any request. They raise ConfigurationError if a permission is missing or the store lacks
    the operation, and RetriableError if the store does not answer, is full or is read-only.

    Attributes:
        location: The directory or URL, as the option gives it.
    """

    location: str

    def get(self, name: str) -> bytes | None:
        """Return the bytes of the fact `name`; None if it does not exist."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a fact unless it exists; return whether this call wrote it.

        At most one of several writers gets True. If the answer to a successful request is lost, its writer gets False
        too: read the fact to see whose is stored.
        """

    def names(self, prefix: str) -> list[str]:
        """Return the sorted names of the facts directly below a prefix that ends in `/`, without deeper levels."""

    def directories(self, prefix: str) -> list[str]:
        """Return the sorted directories directly below a prefix that is empty or ends in `/`; they end in `/` too."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete facts by name; missing ones are ignored."""

    def local_path(self, name: str) -> Path | None:
        """Return the path of the file with the fact `name`, so that callers can map it; None if the store is remote."""


# -- A state store that repeats requests, for callers that nobody calls again: tasks with keyed state.


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
        listed = list(names)
        self._call(lambda: self._store.delete(listed))

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
