# SPDX-License-Identifier: Apache-2.0
"""Work off the coordinator thread, its result back on it, now, later or at a fixed rate (CTX-5 … CTX-7)."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from forebay.errors import ContractError
from forebay.framework.coordination.inbox import Inbox
from forebay.framework.runtime.runtime import Runtime, Signal

Handler = Callable[[Any, BaseException | None], None]


@dataclass(order=True)
class _Due:
    at: float
    number: int
    work: Callable[[], Any] = field(compare=False)
    handler: Handler = field(compare=False)
    period: float | None = field(compare=False)


class AsyncCalls:
    """The calls of one enumerator. `call` and `fire_due` come on the coordinator thread; results arrive on others.

    The runs of one periodic call never overlap: a tick that comes due while the work still runs is skipped. Different
    calls may overlap.

    Args:
        name: For thread names.
        runtime: Threads and time.
        inbox: Where handlers are queued.
    """

    def __init__(self, name: str, runtime: Runtime, inbox: Inbox) -> None:
        self._name = name
        self._runtime = runtime
        self._inbox = inbox
        self._due: list[_Due] = []
        self._numbers = itertools.count()
        self._lock = runtime.lock()
        self._running: set[int] = set()
        self._first: set[int] = set()
        self._all_done: Signal = runtime.signal()

    def call(self, work: Callable[[], Any], handler: Handler, delay: float, period: float | None) -> None:
        """Plan a call; one without delay starts at the next `fire_due`.

        Raises:
            ContractError: The delay is negative, or the period is not more than 0.
        """
        if delay < 0 or (period is not None and period <= 0):
            raise ContractError(
                f"call_async cannot wait {delay!r} s or repeat every {period!r} s",
                rule="CTX-7",
                advice="give a delay of 0 or more and a period of more than 0, in seconds",
            )
        at, number = self._runtime.clock.monotonic() + delay, next(self._numbers)
        if delay == 0:
            with self._lock:
                self._first.add(number)
        heapq.heappush(self._due, _Due(at, number, work, handler, period))
        self._inbox.wake()

    def awaited(self) -> bool:
        """Whether a call that was to start at once has not given its first result."""
        with self._lock:
            return bool(self._first)

    def fire_due(self) -> float | None:
        """Start the work whose time has come; return the seconds until the next, None if none is planned."""
        now = self._runtime.clock.monotonic()
        while self._due and self._due[0].at <= now:
            due = heapq.heappop(self._due)
            if due.period is not None:
                missed = (now - due.at) // due.period
                heapq.heappush(
                    self._due,
                    _Due(due.at + (missed + 1) * due.period, due.number, due.work, due.handler, due.period),
                )
            self._start(due)
        return max(0.0, self._due[0].at - now) if self._due else None

    def close(self, timeout: float) -> bool:
        """Start nothing more and wait at most `timeout` seconds for work in flight; return whether all has ended."""
        self._due.clear()
        with self._lock:
            busy = bool(self._running)
        return not busy or self._all_done.wait(timeout)

    def _start(self, due: _Due) -> None:
        with self._lock:
            if due.number in self._running:
                return
            self._running.add(due.number)
            self._all_done.clear()

        def done(result: Any, error: BaseException | None) -> None:  # noqa: ANN401 - whatever the work gave
            self._inbox.post(lambda: due.handler(result, error))
            with self._lock:
                self._running.discard(due.number)
                self._first.discard(due.number)
                if not self._running:
                    self._all_done.set()

        self._runtime.submit(f"forebay-{self._name}-async-{due.number}", due.work, done)
