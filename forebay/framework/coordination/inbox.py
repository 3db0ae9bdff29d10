# SPDX-License-Identifier: Apache-2.0
"""The coordinator's queue of actions: any thread adds actions, only the coordinator thread takes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar, cast

from forebay.errors import FatalError
from forebay.framework.runtime.runtime import Runtime, Signal, run_job

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
