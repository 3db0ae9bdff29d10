# SPDX-License-Identifier: Apache-2.0
"""Clients that outlive one read: shared ones (`cached`), borrowed ones (`lease`), a planner's calls of connectors."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from dataclasses import fields, replace
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar, overload

from forebay.clock import Clock, SystemClock
from forebay.errors import FatalError, RetriableError
from forebay.framework.runtime.connector_errors import without_secrets, wrap_errors
from forebay.framework.runtime.runtime import Runtime
from forebay.options import redact
from forebay.retry import RetryCount, RetryPolicy

_log = logging.getLogger(__name__)

UNUSED: Final = 300.0
"""Seconds after which an unused client is closed, as in Spark's pool of Kafka consumers."""
MOST: Final = 64
"""Maximum number of unused clients in a pool; the oldest ones are closed first."""

C = TypeVar("C")


class Configuration(Protocol):
    """What `cached` needs of a source: its format name and its options (dataclass fields) identify its clients."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str: ...  # noqa: D102 - see Source


S = TypeVar("S", bound=Configuration)


class _Entry:
    """A cached client. The first caller makes it, while others wait. A factory may itself use cached clients."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.client: Any = None
        self._made = False
        self._lock = threading.RLock()

    def get(self, make: Callable[[], Any]) -> Any:  # noqa: ANN401 - a client of any type
        with self._lock:
            if not self._made or _is_closed(self.client):
                self._made = False
                self.client = make()
                self._made = True
            return self.client


_clients: dict[Hashable, _Entry] = {}
_clients_lock = threading.Lock()


def discard(client: object) -> None:
    """Close a broken client of `cached` and forget it, so that the next use makes a new one. Any thread.

    A client that is not cached, or was discarded before, is only closed.
    """
    _forget(lambda entry: entry.client is client)
    if (error := _close(client)) is not None:
        _log.info("closing a discarded client (%s) failed", type(client).__name__, exc_info=without_secrets(error))


def drop_clients(source: str, error: BaseException) -> None:
    """Forget the cached clients of a source after an error, so that the next try connects again.

    Clients are not closed here, because other threads may use them: the garbage collector closes them. If the error
    has a `retry_after`, the service only asked for a pause, and the clients are kept.
    """
    if not isinstance(error, RetriableError) or error.retry_after is None:
        _forget(lambda entry: entry.source == source)


def _forget(chosen: Callable[[_Entry], bool]) -> None:
    with _clients_lock:
        for key in [key for key, entry in _clients.items() if chosen(entry)]:
            del _clients[key]


def _is_closed(client: object) -> bool:
    """Whether a client reports that it is closed, as DB-API connections and HTTP clients can."""
    flags = (getattr(client, name, None) for name in ("closed", "is_closed"))
    return any(isinstance(flag, int) and bool(flag) for flag in flags)


class cached(Generic[S, C]):  # noqa: N801 - used as a decorator
    """A decorator for a source's method that makes a client. The client becomes an attribute, and is never pickled.

    Each process makes one client per set of option values. Its threads share the client, so it must be thread-safe.

    ```python
    class Orders(SimpleSource):
        url: str
        @forebay.cached
        def http(self): return Session(self.url)     # self.http is the same object for equal options
    ```

    Args:
        factory: The method that makes the client. Called once, while other callers wait.
    """

    def __init__(self, factory: Callable[[S], C]) -> None:
        self._factory = factory
        self._name = factory.__name__
        self.__doc__ = factory.__doc__

    def __set_name__(self, owner: type[S], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, source: None, owner: type[S]) -> cached[S, C]: ...
    @overload
    def __get__(self, source: S, owner: type[S]) -> C: ...
    def __get__(self, source: S | None, owner: type[S]) -> cached[S, C] | C:
        """Return the client for this source's options; make it if this process has none."""
        if source is None:
            return self
        values = tuple(_hashable(getattr(source, field.name)) for field in fields(source))
        # The class itself, not its name: a class that a notebook defines again has clients of its own.
        key = (source.name, type(source), self._name, values)
        with _clients_lock:
            entry = _clients.setdefault(key, _Entry(source.name))
        client: C = entry.get(lambda: self._factory(source))
        return client


def _hashable(value: object) -> Hashable:
    """Return an option value as a hashable object; equal values give equal objects."""
    if isinstance(value, dict):
        return tuple(sorted((key, _hashable(part)) for key, part in value.items()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return tuple(_hashable(part) for part in value)
    return value if isinstance(value, Hashable) else repr(value)


class _Free(NamedTuple):
    since: float
    key: Hashable
    client: Any


class LeasePool:
    """The unused clients of a process, for readers to borrow. Thread-safe.

    Each borrow and each return closes the clients that were unused for `UNUSED` seconds, and the oldest beyond `MOST`.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._free: list[_Free] = []  # the one unused for longest comes first
        self._lock = threading.Lock()

    def borrow(self, key: Hashable, factory: Callable[[], C]) -> C:
        """Remove and return the unused client of `key` that was used last; if there is none, make one."""
        with self._lock:
            at = next((at for at in reversed(range(len(self._free))) if self._free[at].key == key), None)
            free = None if at is None else self._free.pop(at)
        self._close_unused()
        client: C = factory() if free is None else free.client
        return client

    def give_back(self, key: Hashable, client: object) -> None:
        """Return a client to the pool, for the next reader that borrows `key`."""
        with self._lock:
            self._free.append(_Free(self._clock.monotonic(), key, client))
        self._close_unused()

    def _close_unused(self) -> None:
        with self._lock:
            expired = self._clock.monotonic() - UNUSED
            recent = sum(1 for free in self._free if free.since > expired)
            surplus = len(self._free) - min(recent, MOST)
            unused, self._free = self._free[:surplus], self._free[surplus:]
        for lease in unused:
            # Logged, not raised: it does not concern the caller, who borrows another client.
            if (error := _close(lease.client)) is not None:
                name = type(lease.client).__name__
                _log.warning("closing an unused client (%s) failed", name, exc_info=without_secrets(error))


def _close(client: object) -> Exception | None:
    """Close a client, if it has a `close` method; return the error of `close`, or None."""
    if callable(close := getattr(client, "close", None)):
        try:
            close()
        except Exception as error:  # noqa: BLE001 - the caller reports it
            return error
    return None


leases = LeasePool()
"""The pool of clients of this process."""


class Loans:
    """The clients that one reader has borrowed. Thread-safe.

    Sources of different classes do not share clients.
    """

    def __init__(self, source: object, runtime: Runtime) -> None:
        self._owner = type(source)
        self._lock = runtime.lock()
        self._borrowed: list[tuple[Hashable, object]] = []

    def borrow(self, key: Hashable, factory: Callable[[], C]) -> C:
        """Borrow an unused client of `key`, or make one; the reader keeps it until `hand_back`."""
        full_key = (self._owner, key)
        client = leases.borrow(full_key, factory)
        with self._lock:
            self._borrowed.append((full_key, client))
        return client

    def hand_back(self, *, failed: bool) -> list[Exception]:
        """Give all borrowed clients back to the pool, or close them if `failed`; return the errors of closing."""
        with self._lock:
            borrowed, self._borrowed = self._borrowed, []
        if failed:
            return [error for _, client in borrowed if (error := _close(client)) is not None]
        for key, client in borrowed:
            leases.give_back(key, client)
        return []


# -- Calls connector methods for a planner: with a time limit, retries, and errors that name the method.

T = TypeVar("T")


_BRIEF: Final = 3
"""Maximum retries of a call without whose answer the caller can go on."""


class ConnectorCalls:
    """Calls a connector's blocking methods one at a time, each on a new thread.

    A call may take `timeout` seconds, including its retries. After that, its thread is abandoned.
    """

    def __init__(self, source: str, runtime: Runtime, *, retry: RetryPolicy, timeout: float) -> None:
        self._source = source
        self._runtime = runtime
        self._retry = retry
        self._brief = retry if retry.retries is not None else replace(retry, retries=_BRIEF)
        self._timeout = timeout

    def call(
        self, doing: str, work: Callable[[], T], *, within: tuple[str, float] | None = None, brief: bool = False
    ) -> T:
        """Run `work` on a new thread, and return its result. Called on the main thread of a planner.

        `doing` names the call in errors, such as `latest()`. `within` replaces the time-out `planningTimeout`: the name
        of the option to report, and seconds. With `brief`, the caller can go on without an answer and asks again later:
        there are few retries.

        Raises:
            ForebayError: The connector's error, wrapped in a `FatalError` unless it is a `ForebayError`.
            FatalError: The call did not return within the time-out.
        """
        option, timeout = within or ("planningTimeout", self._timeout)
        clock, pauses = self._runtime.clock, self._runtime.service_pauses
        deadline = clock.monotonic() + timeout
        count = RetryCount(self._brief if brief else self._retry, clock, self._runtime.random)
        while True:
            self._wait_for_service(doing, pauses.remaining(self._source), deadline, option)
            try:
                with wrap_errors(self._source, doing):
                    return self._call_once(doing, work, deadline, timeout=(option, timeout))
            except RetriableError as error:
                drop_clients(self._source, error)
                pauses.note(self._source, error, most=self._retry.timeout)
                pause = count.fail(error)
                if count.exhausted or clock.monotonic() + pause >= deadline:
                    raise count.last_error(error)  # noqa: B904 - it is the same error
                reason = redact(str(error))
                _log.warning("%s: %s failed and is retried in %.1f s: %s", self._source, doing, pause, reason)
                self._wait(pause, deadline)

    def _wait_for_service(self, doing: str, asked: float, deadline: float, option: str) -> None:
        """Wait for the pause that the service asked another reader for."""
        if asked <= 0:
            return
        if self._runtime.clock.monotonic() + asked >= deadline:
            raise RetriableError(
                f"{doing} would have to wait {asked:.1f} s, as the service asked another reader",
                source=self._source,
                retry_after=asked,
                advice=f"read with fewer tasks (numPartitions), or raise {option}",
            )
        _log.info("%s: %s waits %.1f s, as the service asked another reader", self._source, doing, asked)
        self._wait(asked, deadline)

    def _wait(self, seconds: float, deadline: float) -> None:
        pause = min(seconds, deadline - self._runtime.clock.monotonic())
        if pause > 0:
            self._runtime.signal().wait(pause)

    def _call_once(self, doing: str, work: Callable[[], T], deadline: float, *, timeout: tuple[str, float]) -> T:
        answered = self._runtime.signal()
        answers: list[tuple[T | None, BaseException | None]] = []

        def done(result: T | None, error: BaseException | None) -> None:
            answers.append((result, error))
            answered.set()

        self._runtime.submit(f"forebay-{self._source}-call", work, done)
        if not answered.wait(max(0.0, deadline - self._runtime.clock.monotonic())):
            raise FatalError(
                f"{doing} did not return within {timeout[1]:g} s",
                source=self._source,
                advice=f"give the connector's network calls a time-out, or raise the option {timeout[0]}",
            )
        result, error = answers[0]
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # without an error it is the result of `work`
