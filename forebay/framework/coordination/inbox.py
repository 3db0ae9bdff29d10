# SPDX-License-Identifier: Apache-2.0
"""What reaches the coordinator, and what it sends: its queue of actions, asynchronous calls, messages to readers."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from forebay.errors import ContractError, FatalError
from forebay.framework.enumerator import SourceEvent
from forebay.framework.runtime.runtime import Runtime, Signal, run_job
from forebay.framework.split import Split

# -- The messages that the coordinator sends to a reader.


MAX_SPLITS_PER_MESSAGE = 1000
"""Maximum splits in one message: a message may cross the network, and a first discovery can find a million files."""


@dataclass(frozen=True, slots=True)
class AddSplits:
    """Tells a reader to read these splits too."""

    splits: tuple[Split, ...]


@dataclass(frozen=True, slots=True)
class NoMoreSplits:
    """Tells a reader that it gets no more splits."""


@dataclass(frozen=True, slots=True)
class EnumeratorEvent:
    """Passes an event that the enumerator sent to a reader."""

    event: SourceEvent


ToReader = AddSplits | NoMoreSplits | EnumeratorEvent

Gateway = Callable[[ToReader], None]
"""Sends messages to one registered reader, in order. Called on the coordinator thread; must not block or raise."""


# -- The coordinator's queue of actions: any thread adds actions, only the coordinator thread takes them.


T = TypeVar("T")


class Inbox:
    """A FIFO queue of actions. `post` and `call` may be called on any thread, `take` on the coordinator thread only."""

    def __init__(self, runtime: Runtime, signal: Signal) -> None:
        self._runtime = runtime
        self._signal = signal
        self._lock = runtime.lock()
        self._actions: deque[Callable[[], None]] = deque()
        self._calls: set[_Call] = set()
        self._thread: int | None = None
        self._open = True

    def post(self, action: Callable[[], None]) -> bool:
        """Queue an action and return True; drop it and return False if the inbox is closed (CTX-11)."""
        with self._lock:
            if self._open:
                self._actions.append(action)
            accepted = self._open
        if accepted:
            self._signal.set()
        return accepted

    def take(self) -> Callable[[], None] | None:
        """Remove and return the oldest action, or return None. Called by the coordinator's step."""
        self._thread = self._runtime.thread_id()
        with self._lock:
            return self._actions.popleft() if self._actions else None

    def is_empty(self) -> bool:
        """Whether no action is queued."""
        with self._lock:
            return not self._actions

    def wake(self) -> None:
        """Make the coordinator step again."""
        self._signal.set()

    def call(self, action: Callable[[], T]) -> T:
        """Run an action on the coordinator thread and return its result (CTX-9).

        If the caller is on the coordinator thread, the action runs at once. On any other thread, the caller waits.

        Raises:
            FatalError: The coordinator closed before the action ran.
            BaseException: The action's error; it does not fail the run.
        """
        if self._runtime.thread_id() == self._thread:
            return action()
        call = _Call(action, self._runtime.signal())
        with self._lock:
            self._calls.add(call)
        if not self.post(lambda: self._run(call)):
            self._forget(call)
            raise _closed()
        call.done.wait()
        if call.error is not None:
            raise call.error
        return cast("T", call.result)

    def close(self) -> None:
        """Drop all queued actions and refuse new ones; each waiting `call` raises a FatalError."""
        with self._lock:
            self._open = False
            self._actions.clear()
            calls, self._calls = self._calls, set()
        for call in calls:
            call.finish(None, _closed())

    def _run(self, call: _Call) -> None:
        self._forget(call)
        run_job(call.action, call.finish)

    def _forget(self, call: _Call) -> None:
        with self._lock:
            self._calls.discard(call)


class _Call:
    """An action that another thread passed to `Inbox.call`; that thread waits for `done`."""

    def __init__(self, action: Callable[[], object], done: Signal) -> None:
        self.action = action
        self.done = done
        self.result: object = None
        self.error: BaseException | None = None

    def finish(self, result: object, error: BaseException | None) -> None:
        self.result, self.error = result, error
        self.done.set()


def _closed() -> FatalError:
    return FatalError(
        "the enumerator called its context after the coordinator had closed",
        rule="CTX-9",
        advice="end the enumerator's background threads in its close()",
    )


# -- Asynchronous calls: work runs on another thread, its handler on the coordinator thread (CTX-5 … CTX-7).


Handler = Callable[[Any, BaseException | None], None]


@dataclass(order=True)
class _Due:
    at: float
    number: int
    work: Callable[[], Any] = field(compare=False)
    handler: Handler = field(compare=False)
    period: float | None = field(compare=False)


class AsyncCalls:
    """The asynchronous calls of one enumerator. `call` and `fire_due` must be called on the coordinator thread.

    Runs of a periodic call do not overlap: a run that is due while the previous one is running is skipped. Different
    calls may overlap.

    Args:
        name: The name of the source, for the names of threads.
        runtime: Threads and time.
        inbox: Gets the results as actions, which call the handlers on the coordinator thread.
        on_start: Called with the handler when a run starts; returns the handler to use, or None to skip this run.
        now: The monotonic time at which calls count as due; by default that of the runtime's clock.
    """

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        inbox: Inbox,
        *,
        on_start: Callable[[Handler], Handler | None] | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._name = name
        self._runtime = runtime
        self._inbox = inbox
        self._on_start = on_start
        self._now = now or runtime.clock.monotonic
        self._due: list[_Due] = []
        self._numbers = itertools.count()
        self._lock = runtime.lock()
        self._running: set[int] = set()
        self._immediate: set[int] = set()
        self._all_done: Signal = runtime.signal()

    def call(self, work: Callable[[], Any], handler: Handler, delay: float, period: float | None) -> None:
        """Schedule `work`; `handler` gets its result or its error.

        `delay` and `period` are in seconds. With a delay of 0, `work` starts at the next `fire_due`. Without a period,
        it runs once.

        Raises:
            ContractError: The delay is negative, or the period is not positive.
        """
        if delay < 0 or (period is not None and period <= 0):
            raise ContractError(
                f"call_async() got a delay of {delay!r} s and a period of {period!r} s, which is invalid",
                rule="CTX-7",
                advice="give a delay of at least 0 and a period above 0, in seconds",
            )
        at = self._runtime.clock.monotonic() + delay if delay else self._now()
        number = next(self._numbers)
        if delay == 0:
            with self._lock:
                self._immediate.add(number)
        heapq.heappush(self._due, _Due(at, number, work, handler, period))
        self._inbox.wake()

    def awaited(self) -> bool:
        """Whether a call without a delay has not yet returned its first result or error."""
        with self._lock:
            return bool(self._immediate)

    def fire_due(self) -> float | None:
        """Start all work that is due; return the seconds until the next work is due, or None if none is scheduled."""
        now = self._now()
        while self._due and self._due[0].at <= now:
            due = heapq.heappop(self._due)
            if due.period is not None:
                missed = (now - due.at) // due.period
                heapq.heappush(self._due, dataclasses.replace(due, at=due.at + (missed + 1) * due.period))
            self._start(due)
        return max(0.0, self._due[0].at - now) if self._due else None

    def close(self, timeout: float) -> bool:
        """Start no more work, and wait at most `timeout` seconds for running work; return whether it has all ended."""
        self._due.clear()
        with self._lock:
            busy = bool(self._running)
        return not busy or self._all_done.wait(timeout)

    def _start(self, due: _Due) -> None:
        with self._lock:
            if due.number in self._running:
                return
        handler = due.handler if self._on_start is None else self._on_start(due.handler)
        if handler is None:
            return
        with self._lock:
            self._running.add(due.number)
            self._all_done.clear()

        def done(result: Any, error: BaseException | None) -> None:  # noqa: ANN401 - the result of any work
            self._inbox.post(lambda: handler(result, error))
            with self._lock:
                self._running.discard(due.number)
                self._immediate.discard(due.number)
                if not self._running:
                    self._all_done.set()

        self._runtime.submit(f"forebay-{self._name}-async-{due.number}", due.work, done)
