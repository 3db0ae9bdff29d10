# SPDX-License-Identifier: Apache-2.0
"""Asynchronous calls: work runs on another thread, its handler on the coordinator thread (CTX-5 … CTX-7)."""

from __future__ import annotations

import dataclasses
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
