# SPDX-License-Identifier: Apache-2.0
"""One virtual reader for an enumerator of FLIP-27's own kind: what it assigns is what gets planned."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from forebay.clock import Clock
from forebay.errors import ConfigurationError, ContractError, FatalError
from forebay.framework.enumerator import SplitEnumerator, SplitEnumeratorContext
from forebay.framework.events import SourceEvent
from forebay.framework.runtime.connector_errors import closing, explained
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.split import Split

T = TypeVar("T")

_Timer = tuple[float, int, Callable[[], None]]


@dataclass
class AsyncCall:
    """One `call_async`, and when it was started last."""

    work: Callable[[], Any]
    handler: Callable[[Any, BaseException | None], None]
    period: float | None
    began: float = 0.0


class PlanningContext(SplitEnumeratorContext):
    """Runs a `SplitEnumerator` on the planning thread, with one virtual reader, subtask 0 of 1.

    `plan` drives the enumerator of a bounded read, `AssignedContext` that of a stream. `call_async` work runs on
    worker threads, its handlers on the planning thread.

    Args:
        source: The format name, for errors.
        runtime: Threads, clock, locks.
        timeout: Seconds the whole planning may take.
        streaming: A stream is planned.
    """

    def __init__(self, source: str, runtime: Runtime, *, timeout: float, streaming: bool = False) -> None:
        self._source = source
        self._streaming = streaming
        self._runtime = runtime
        self._timeout = timeout
        self._lock = runtime.lock()
        self._wake = runtime.signal()
        self._actions: deque[Callable[[], None]] = deque()
        self._timers: list[_Timer] = []
        self._timer_count = 0
        self._registered = False
        self._assigned: dict[str, Split] = {}
        self._no_more = False
        self._closed = False
        self._bounded = True
        self._home = runtime.thread_id()
        self._running = 0
        """Calls of the enumerator's that have not come back: one that is repeated waits between two of them."""

    @property
    def clock(self) -> Clock:
        """Where time comes from."""
        return self._runtime.clock

    @property
    def streaming(self) -> bool:
        """Whether a stream is planned."""
        return self._streaming

    def current_parallelism(self) -> int:
        """Return 1: the virtual reader."""
        return 1

    def registered_readers(self) -> Mapping[int, str | None]:
        """Return the virtual reader, once it has registered."""
        return {0: None} if self._registered else {}

    def assign_splits(self, assignment: Mapping[int, Sequence[Split]]) -> None:
        """Take splits into the plan, all or none, and ask for the next one; from another thread: a little later.

        Raises:
            ContractError: A target is not reader 0 (CTX-2), or an id came before (SPL-1).
        """
        self._here(lambda: self._assign(assignment))

    def signal_no_more_splits(self, subtask: int) -> None:
        """End the planning once everything queued before has run."""
        self._here(lambda: self._signal_no_more(subtask))

    def send_event_to_reader(self, subtask: int, event: SourceEvent) -> None:
        """Refuse: there is no such channel."""
        raise event_refused(self._source, event)

    def call_async(
        self,
        work: Callable[[], T],
        handler: Callable[[T | None, BaseException | None], None],
        *,
        delay: float = 0.0,
        period: float | None = None,
    ) -> None:
        """Run `work` on a worker thread, its handler on the planning thread; dropped once planning ended."""
        call = AsyncCall(work, handler, period)
        if delay > 0:
            due = self.clock.monotonic() + delay
            self.run_in_coordinator_thread(lambda: self._delay(call, due))
        else:
            self._start(call)

    def run_in_coordinator_thread(self, action: Callable[[], None]) -> None:
        """Queue an action for the planning thread; dropped once planning ended."""
        with self._lock:
            if not self._closed:
                self._actions.append(action)
        self._wake.set()

    def plan(self, enumerator: SplitEnumerator, *, bounded: bool = True) -> list[Split]:
        """Ask the enumerator for splits until it signals that there are no more, and close it. Called once.

        Args:
            enumerator: Of the source.
            bounded: Whether the source is. The enumerator of another one may never signal, and is not waited for once
                everything that it began has come back.

        Raises:
            ConfigurationError: It is that of an unbounded source, and did not signal.
            FatalError: It never signals, or it failed.
            ContractError: It broke a rule of the contract.
        """
        self._bounded = bounded
        deadline = self.clock.monotonic() + self._timeout
        with closing(self._source, lambda: self.end(enumerator)):
            self._begin(enumerator)
            self._ask()
            while self._step(deadline):
                pass
        return list(self._assigned.values())

    def end(self, enumerator: SplitEnumerator) -> None:
        """Drop what is still to come, and close the enumerator."""
        with self._lock:
            self._closed = True
            self._actions.clear()
        enumerator.close()

    def _begin(self, enumerator: SplitEnumerator) -> None:
        self._home = self._runtime.thread_id()
        self._enumerator = enumerator
        self._run("start()", enumerator.start)
        self._registered = True
        self._run("add_reader()", lambda: enumerator.add_reader(0))

    def _here(self, action: Callable[[], None]) -> None:
        """Run an action of the enumerator, or queue it if another thread calls (CTX-9)."""
        if self._runtime.thread_id() == self._home:
            action()
        else:
            self.run_in_coordinator_thread(action)

    def _assign(self, assignment: Mapping[int, Sequence[Split]]) -> None:
        wrong = [subtask for subtask in assignment if not (subtask == 0 and self._registered)]
        if wrong:
            raise ContractError(
                f"splits were assigned to reader {wrong[0]}, which is not registered",
                source=self._source,
                rule="CTX-2",
                advice="on Spark there is one reader, number 0: assign to context.registered_readers() only",
            )
        splits = tuple(assignment.get(0, ()))
        seen: set[str] = set()
        for split in splits:
            if split.id in seen or self._is_given(split.id):
                raise repeated_id(self._source, split.id)
            seen.add(split.id)
        self._assigned.update((split.id, split) for split in splits)
        if splits:
            self._took_some()

    def _is_given(self, split_id: str) -> bool:
        return split_id in self._assigned

    def _took_some(self) -> None:
        self.run_in_coordinator_thread(self._ask)

    def _signal_no_more(self, subtask: int) -> None:
        if subtask != 0:
            raise ContractError(
                f"there is no reader {subtask}", source=self._source, rule="CTX-3", advice="on Spark there is reader 0"
            )
        self._no_more = True

    def _delay(self, call: AsyncCall, due: float) -> None:
        self._running += 1
        self._at(due, lambda: self._begin_delayed(call))

    def _begin_delayed(self, call: AsyncCall) -> None:
        self._running -= 1
        self._start(call)

    def _start(self, call: AsyncCall) -> None:
        call.began = self.clock.monotonic()
        self._running += 1
        self._submit(call, lambda result, error: self._returned(call, result, error))

    def _returned(self, call: AsyncCall, result: object, error: BaseException | None) -> None:
        self._running -= 1
        self._handle(call, result, error)

    def _submit(self, call: AsyncCall, handle: Callable[[Any, BaseException | None], None]) -> None:
        def done(result: object, error: BaseException | None) -> None:
            self.run_in_coordinator_thread(lambda: handle(result, error))

        self._runtime.submit(f"forebay-{self._source}-planning", call.work, done)

    def _handle(self, call: AsyncCall, result: object, error: BaseException | None) -> None:
        if call.period is not None:
            self._at(call.began + call.period, lambda: self._start(call))
        call.handler(result, error)

    def _next_action(self) -> Callable[[], None] | None:
        with self._lock:
            return self._actions.popleft() if self._actions else None

    def _step(self, deadline: float) -> bool:
        """Run one action, or wait for one; False once there is nothing left to do."""
        self._wake.clear()
        action = self._next_action()
        late = self.clock.monotonic() >= deadline  # an enumerator that gives out splits for ever is late too
        if action is not None and not late:
            self._run("a handler of the enumerator", action)
            return True
        if self._no_more:
            return False
        now = self.clock.monotonic()
        if self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
            return True
        if not self._bounded and self._running == 0:
            raise ConfigurationError(
                "the source is unbounded, and its enumerator does not say that it has assigned everything",
                source=self._source,
                advice="stream it, with spark.readStream or forebay.run; or let the enumerator call "
                "context.signal_no_more_splits(0) where context.streaming is False: then it can be read once",
            )
        if late or now >= deadline:
            raise FatalError(
                f"the enumerator neither assigned a split nor signalled the end within {self._timeout:g} s",
                source=self._source,
                rule="ENU-2",
                advice="call context.signal_no_more_splits(0) once everything is assigned; a source without an end "
                "must be streamed",
            )
        until = min(deadline, self._timers[0][0]) if self._timers else deadline
        self._wake.wait(until - now)
        return True

    def _ask(self) -> None:
        if not self._no_more:
            self._run("handle_split_request()", lambda: self._enumerator.handle_split_request(0, None))

    def _at(self, due: float, action: Callable[[], None]) -> None:
        self._timer_count += 1
        heapq.heappush(self._timers, (due, self._timer_count, action))

    def _run(self, doing: str, action: Callable[[], None]) -> None:
        with explained(self._source, doing):
            action()


def repeated_id(source: str, split_id: str) -> ContractError:
    """Return the error for a split id that came twice."""
    return ContractError(
        "two splits have the same id",
        source=source,
        split=split_id,
        rule="SPL-1",
        advice="make split ids unique: derive each from what the split is",
    )


def event_refused(source: str, event: SourceEvent) -> ConfigurationError:
    """Return the error for a source event on a host that has no channel for it."""
    return ConfigurationError(
        f"the source event {type(event).__name__} cannot be sent: Spark has no channel between enumerator and readers",
        source=source,
        rule="EVT-1",
        advice="put what readers need into the split, or run the source in-process with forebay.run",
    )
