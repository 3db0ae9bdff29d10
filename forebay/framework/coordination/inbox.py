# SPDX-License-Identifier: Apache-2.0
"""The coordinator's queue of things to do: anyone puts in, only the coordinator's thread takes out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar, cast

from forebay.errors import FatalError
from forebay.framework.runtime.runtime import Runtime, Signal

T = TypeVar("T")


class Inbox:
    """First in, first out. `post` and `call` come from any thread; `take` makes its caller the coordinator thread.

    Args:
        runtime: Lock, signals, and who is calling.
        signal: Set whenever something came in.
    """

    def __init__(self, runtime: Runtime, signal: Signal) -> None:
        self._runtime = runtime
        self._signal = signal
        self._lock = runtime.lock()
        self._actions: deque[Callable[[], None]] = deque()
        self._calls: set[_Call] = set()
        self._thread: int | None = None
        self._open = True

    def post(self, action: Callable[[], None]) -> bool:
        """Put an action at the end; return False, dropping it, once the inbox is closed (CTX-11)."""
        with self._lock:
            if self._open:
                self._actions.append(action)
            accepted = self._open
        if accepted:
            self._signal.set()
        return accepted

    def take(self) -> Callable[[], None] | None:
        """Return the oldest action, or None. Called by the coordinator's step."""
        self._thread = self._runtime.thread_id()
        with self._lock:
            return self._actions.popleft() if self._actions else None

    def is_empty(self) -> bool:
        """Return whether nothing waits."""
        with self._lock:
            return not self._actions

    def wake(self) -> None:
        """Let the coordinator step again, for what it must look at beside this queue."""
        self._signal.set()

    def call(self, action: Callable[[], T]) -> T:
        """Run an action on the coordinator thread and return its outcome (CTX-9).

        On that thread itself, which under a simulator is the only one, it runs at once. From another thread it is
        queued behind what waits, and the caller waits for its turn.

        Raises:
            FatalError: The coordinator closed before the action ran.
            BaseException: What the action raised, to this caller alone.
        """
        if self._runtime.thread_id() == self._thread:
            return action()
        call = _Call(cast("Callable[[], object]", action), self._runtime.signal())
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
        """Drop everything that waits and refuse the rest; whoever waits for a call gets an error."""
        with self._lock:
            self._open = False
            self._actions.clear()
            calls, self._calls = self._calls, set()
        for call in calls:
            call.finish(None, _closed())

    def _run(self, call: _Call) -> None:
        self._forget(call)
        try:
            result = call.action()
        except BaseException as error:  # noqa: BLE001 - it belongs to the caller, on its own thread
            call.finish(None, error)
        else:
            call.finish(result, None)

    def _forget(self, call: _Call) -> None:
        with self._lock:
            self._calls.discard(call)


class _Call:
    """A call that waits on another thread for its outcome."""

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
        "the coordinator has closed, so the call cannot run",
        rule="CTX-9",
        advice="let background threads of the enumerator end in its close()",
    )
