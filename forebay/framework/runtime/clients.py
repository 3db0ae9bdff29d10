# SPDX-License-Identifier: Apache-2.0
"""Clients that outlive one read: `cached` on a source's method, `Loans` behind `SourceReaderContext.lease`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar, overload

from forebay.clock import Clock, SystemClock
from forebay.errors import RetriableError
from forebay.framework.runtime.connector_errors import without_secrets
from forebay.framework.runtime.runtime import Runtime

_log = logging.getLogger(__name__)

UNUSED: Final = 300.0
"""Seconds after which a client that nobody borrows is closed, as Spark does it with its Kafka consumers."""
MOST: Final = 64
"""Clients that are kept for the next reader."""

C = TypeVar("C")


class Configuration(Protocol):
    """What identifies the clients of a source: its format name, and its options as dataclass fields."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str: ...  # noqa: D102 - see Source


S = TypeVar("S", bound=Configuration)


class _Key(NamedTuple):
    """Which client: of which class and method, with which options."""

    source: str
    owner: type[object]
    method: str
    values: tuple[Hashable, ...]


class _Entry:
    """One client, made by whoever asks first; others wait for it alone, and a factory may ask for other clients."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._made: list[Any] = []

    def get(self, make: Callable[[], C]) -> C:
        with self._lock:
            if self._made and _is_closed(self._made[0]):
                self._made.clear()
            if not self._made:
                self._made.append(make())
            client: C = self._made[0]
            return client

    def holds(self, client: object) -> bool:
        return any(made is client for made in self._made)


_clients: dict[_Key, _Entry] = {}
_clients_lock = threading.Lock()


def discard(client: object) -> None:
    """Close a client of `cached` and forget it: whoever asks next gets a new one.

    Called by a source's author, in any method and on any thread, when a client is dead. A client that is not cached,
    or was discarded before, is only closed.
    """
    with _clients_lock:
        for key in [key for key, entry in _clients.items() if entry.holds(client)]:
            del _clients[key]
    if (error := _closed(client)) is not None:
        _log.info("closing a discarded client failed", exc_info=without_secrets(error))


def drop_clients(source: str, error: BaseException) -> None:
    """Forget the cached clients of a source after an error: the next try connects anew. Called by the framework.

    They are not closed, because other threads may use them: the garbage collector does that. A service that asks for
    a pause is well, and its clients stay.
    """
    if isinstance(error, RetriableError) and error.retry_after is not None:
        return
    with _clients_lock:
        for key in [key for key in _clients if key.source == source]:
            del _clients[key]


def _is_closed(client: object) -> bool:
    """Whether a client says that it is closed, as connections of DB-API drivers and HTTP clients do."""
    said = (getattr(client, name, None) for name in ("closed", "is_closed"))
    return any(isinstance(one, int) and bool(one) for one in said)


class cached(Generic[S, C]):  # noqa: N801 - used as a decorator
    """A thread-safe client, made once per process and per set of options, never pickled.

    ```python
    class Orders(SimpleSource):
        url: str
        @forebay.cached
        def http(self): return Session(self.url)     # self.http is the same object for equal options
    ```

    Args:
        factory: The method that makes the client; called once, while others who ask for this client wait.
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
        """Return the client of this source's options, made now if this process has none yet."""
        if source is None:
            return self
        values = tuple(repr_of_value(getattr(source, field.name)) for field in fields(source))
        # The class itself: one that was defined anew, as in a notebook, has clients of its own.
        with _clients_lock:
            entry = _clients.setdefault(_Key(source.name, type(source), self._name, values), _Entry())
        return entry.get(lambda: self._factory(source))


def repr_of_value(value: object) -> Hashable:
    """Return something hashable that is equal for equal option values."""
    if isinstance(value, dict):
        return tuple(sorted((key, repr_of_value(part)) for key, part in value.items()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return tuple(repr_of_value(part) for part in value)
    return value if isinstance(value, Hashable) else repr(value)


class _Free(NamedTuple):
    """A client that nobody has borrowed."""

    since: float
    key: Hashable
    client: Any


class LeasePool:
    """The clients of this process that readers borrow, one holder at a time. Thread-safe.

    Those that are not borrowed again are closed after `UNUSED` seconds, and earlier where there are more than `MOST`,
    once another one is borrowed or given back.

    Args:
        clock: Says how long a client was not used.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._free: list[_Free] = []  # who has waited longest comes first
        self._lock = threading.Lock()

    def borrow(self, key: Hashable, factory: Callable[[], C]) -> C:
        """Take the free client of this key that was used last, or make one."""
        with self._lock:
            at = next((at for at in reversed(range(len(self._free))) if self._free[at].key == key), None)
            found = None if at is None else self._free.pop(at)
            unused = self._unused()
        _end(unused)
        if found is None:
            return factory()
        client: C = found.client
        return client

    def give_back(self, key: Hashable, client: object) -> None:
        """Keep a client for the next reader."""
        with self._lock:
            self._free.append(_Free(self._clock.monotonic(), key, client))
            unused = self._unused()
        _end(unused)

    def _unused(self) -> list[_Free]:
        """Take out those that are not kept any longer."""
        before = self._clock.monotonic() - UNUSED
        recent = sum(1 for one in self._free if one.since > before)
        gone = len(self._free) - min(recent, MOST)
        unused, self._free = self._free[:gone], self._free[gone:]
        return unused


def _end(clients: Sequence[_Free]) -> None:
    for one in clients:
        # Whoever borrows another client has no part in it.
        if (error := _closed(one.client)) is not None:
            _log.warning("closing a client that was not used any more failed", exc_info=without_secrets(error))


def _closed(client: object) -> Exception | None:
    """Close a client that is thrown away, if it can be closed; return what that raised."""
    if callable(close := getattr(client, "close", None)):
        try:
            close()
        except Exception as error:  # noqa: BLE001 - the caller has something else to do, and tells it
            return error
    return None


leases = LeasePool()
"""The pool of this process."""


class Loans:
    """What one reader has borrowed from the pool of this process. Thread-safe.

    Args:
        source: Whose clients: those of another class are never given out.
        runtime: For the lock.
    """

    def __init__(self, source: object, runtime: Runtime) -> None:
        self._owner = type(source)
        self._lock = runtime.lock()
        self._borrowed: list[tuple[Hashable, object]] = []

    def borrow(self, key: Hashable, factory: Callable[[], C]) -> C:
        """Take a free client, or make one; it is handed back by `hand_back`."""
        full_key = (self._owner, key)
        client = leases.borrow(full_key, factory)
        with self._lock:
            self._borrowed.append((full_key, client))
        return client

    def hand_back(self, *, failed: bool) -> list[Exception]:
        """Hand clients back, or close them after a failure; return what their `close` raised."""
        with self._lock:
            borrowed, self._borrowed = self._borrowed, []
        errors = []
        for key, client in borrowed:
            if not failed:
                leases.give_back(key, client)
            elif (error := _closed(client)) is not None:
                errors.append(error)
        return errors
