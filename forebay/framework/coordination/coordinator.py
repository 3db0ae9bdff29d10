# SPDX-License-Identifier: Apache-2.0
"""The coordinator: runs one enumerator in steps, for a host with one reader (ENU-1 … ENU-9, CTX-1 … CTX-11)."""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from forebay.clock import Clock
from forebay.errors import ContractError, FatalError
from forebay.framework.coordination.validation import repeated_id
from forebay.framework.enumerator import SourceEvent, SplitEnumerator, SplitEnumeratorContext
from forebay.framework.runtime.connector_errors import event_refused, wrap_errors
from forebay.framework.runtime.runtime import Runtime, Signal, run_job
from forebay.framework.split import Json, Split

T = TypeVar("T")

Handler = Callable[[Any, BaseException | None], None]
"""Takes the result or the error of an asynchronous call."""

_CLOSE_ASYNC_CALLS = 5.0
"""Maximum seconds that `close` waits for running asynchronous calls. Later results are dropped; their threads are
daemons."""


class AssignedReader(Protocol):
    """The one reader of a host, as an enumerator sees it; called on the coordinator thread. Must not block or raise."""

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Take assigned splits."""

    def notify_no_more_splits(self) -> None:
        """Take the notice that no split follows."""

    def handle_source_event(self, event: SourceEvent) -> None:
        """Take an event.

        Raises:
            ConfigurationError: The host delivers no events (Spark).
        """


class Coordinator(SplitEnumeratorContext):
    """The `SplitEnumeratorContext` of every host: it runs an enumerator for one reader, subtask 0 of 1.

    The reader is that of a run in process, or a planner on Spark. Hosts call all methods on one thread at a time, the
    coordinator thread; an enumerator may call those of `SplitEnumeratorContext` on any thread (CTX-9). An exception of
    the enumerator is raised by the host's call, wrapped as all errors of connectors (COO-3).

    Args:
        source: The name of the source.
        runtime: Threads and time.
        signal: Set when there is an action to run.
        streaming: Whether the host plans micro-batches.
        reads_once: Whether the host plans a bounded read.
    """

    def __init__(
        self,
        source: str,
        runtime: Runtime,
        *,
        signal: Signal | None = None,
        streaming: bool = False,
        reads_once: bool = False,
    ) -> None:
        self.signal: Signal = signal or runtime.signal()
        self.no_more = False
        """Whether the enumerator has signalled that no split follows."""
        self.held: Container[str] = ()
        """Ids of splits that the reader has from before this coordinator, and that must not be assigned again."""
        self.at_start: Callable[[Split], Split] | None = None
        """Moves an assigned split to the start position that the user gave."""
        self._source = source
        self._runtime = runtime
        self._streaming = streaming
        self._reads_once = reads_once
        self._planned = streaming or reads_once
        self._inbox = Inbox(runtime, self.signal)
        self.async_calls = AsyncCalls(source, runtime, self._inbox)
        self._enumerator: SplitEnumerator | None = None
        self._reader: AssignedReader | None = None
        # Replaced, never changed, so that earlier views can be read on any thread.
        self._hosts: Mapping[int, str | None] = MappingProxyType({})
        self._assigned: set[str] = set()
        self._closed = False
        self._lock = runtime.lock()
        self._stepping: int | None = None
        self._resting: Signal = runtime.signal()

    # ---- called by the enumerator

    @property
    def clock(self) -> Clock:
        """The clock of the host."""
        return self._runtime.clock

    @property
    def streaming(self) -> bool:
        """Whether the host plans micro-batches of a stream."""
        return self._streaming

    @property
    def reads_once(self) -> bool:
        """Whether the host plans a bounded read."""
        return self._reads_once

    def current_parallelism(self) -> int:
        """Return 1, the number of readers (CTX-4)."""
        return 1

    def registered_readers(self) -> Mapping[int, str | None]:
        """Return the reader, number 0, and its host name, once it is registered; before that, no reader (CTX-4)."""
        return self._hosts

    def assign_splits(self, assignment: Mapping[int, Sequence[Split]]) -> None:
        """Assign splits to the reader, all of them or none (CTX-1 … CTX-3, SPL-1)."""
        copied = {subtask: tuple(splits) for subtask, splits in assignment.items()}
        self._here(lambda: self._assign(copied))

    def signal_no_more_splits(self, subtask: int) -> None:
        """Tell the reader that it gets no more splits (CTX-3)."""
        self._here(lambda: self._signal_no_more(subtask))

    def send_event_to_reader(self, subtask: int, event: SourceEvent) -> None:
        """Send an event to the reader, in order with assignments (CTX-10). A planner refuses it (EVT-1)."""
        if self._planned:
            raise event_refused(self._source, event)
        self._here(lambda: self._registered(subtask, "CTX-10").handle_source_event(event))

    def call_async(
        self,
        work: Callable[[], T],
        handler: Callable[[T | None, BaseException | None], None],
        *,
        delay: float = 0.0,
        period: float | None = None,
    ) -> None:
        """Run `work` on another thread, then `handler` on the coordinator thread (CTX-5 … CTX-7); see `AsyncCalls`."""
        self._here(lambda: self.async_calls.call(work, handler, delay, period))

    def run_in_coordinator_thread(self, action: Callable[[], None]) -> None:
        """Queue an action of the enumerator or the host for the coordinator thread, behind all earlier ones (CTX-8)."""
        self._inbox.post(action)

    # ---- called by the host

    def attach(self, enumerator: SplitEnumerator) -> None:
        """Take the enumerator that was made with this context; `close` closes it. Called once, before `begin`."""
        self._enumerator = enumerator

    def begin(self, returned: Sequence[Split] = ()) -> None:
        """Start the enumerator, which is restored if there is a checkpoint (COO-2, FLIP-537).

        `returned` are the splits that the reader held at the checkpoint. The enumerator gets them back after its
        `start` and before the reader registers.
        """
        with self._calling("start()"):
            self.enumerator.start()
        if returned:
            with self._calling("add_splits_back()"):
                self.enumerator.add_splits_back(returned, None)

    def restore(self, state: Json) -> None:
        """Restore the enumerator from a result of `snapshot`, before `begin` (ENU-6)."""
        with self._calling("restore_state()"):
            self.enumerator.restore_state(state)

    def register(self, reader: AssignedReader, host: str | None) -> None:
        """Register the reader and the name of its machine; after a failure, its replacement (ENU-4)."""
        self._reader = reader
        self._hosts = MappingProxyType({0: host})
        with self._calling("add_reader()"):
            self.enumerator.add_reader(0)

    def request(self) -> None:
        """Pass a request of the reader for a split to the enumerator.

        It is dropped if the reader has failed, or was told that no split follows (CTX-3).
        """
        if self._reader is not None and not self.no_more:
            with self._calling("handle_split_request()"):
                self.enumerator.handle_split_request(0, self._hosts[0])

    def handle_source_event(self, event: SourceEvent) -> None:
        """Pass an event of the reader to the enumerator (ENU-8)."""
        with self._calling("handle_source_event()"):
            self.enumerator.handle_source_event(0, event)

    def splits_finished(self, splits: Sequence[Split]) -> None:
        """Tell the enumerator which splits were delivered to their end."""
        self._assigned.difference_update(split.id for split in splits)
        with self._calling("handle_splits_finished()"):
            self.enumerator.handle_splits_finished(0, splits)

    def forget(self, splits: Sequence[Split]) -> None:
        """Forget assignments that the host has recorded, so that `held` must contain them from now on."""
        self._assigned.difference_update(split.id for split in splits)

    def reader_failed(self, splits: Sequence[Split]) -> None:
        """Unregister the failed reader, and give its splits back, each at its delivered position (COO-4, ENU-3)."""
        self._reader, self._hosts, self.no_more = None, MappingProxyType({}), False
        self._assigned.difference_update(split.id for split in splits)
        with self._calling("add_splits_back()"):
            self.enumerator.add_splits_back(splits, 0)

    def snapshot(self, checkpoint_id: int) -> Json:
        """Return the enumerator's snapshot, without the splits of the reader (COO-6, ENU-5). Its errors are raised."""
        self._inbox.enter()
        return self.enumerator.snapshot_state(checkpoint_id)

    def checkpoint_complete(self, checkpoint_id: int) -> None:
        """Tell the enumerator that a checkpoint is durable (ENU-7)."""
        with self._calling("notify_checkpoint_complete()"):
            self.enumerator.notify_checkpoint_complete(checkpoint_id)

    def run_next(self) -> bool:
        """Start asynchronous calls that are due, then run one queued action; return whether there was one.

        Raises:
            BaseException: The error of the action.
        """
        with self._lock:
            if self._closed:
                return False
            self._stepping = self._runtime.thread_id()
        try:
            with self._calling("a handler of the enumerator"):
                action = self._inbox.take()
                self.async_calls.fire_due()
                if action is not None:
                    action()
            return action is not None
        finally:
            with self._lock:
                self._stepping = None
            self._resting.set()

    def due_in(self) -> float | None:
        """Start asynchronous calls that are due; return the seconds until the next one is, or None."""
        return self.async_calls.fire_due()

    def run_queued(self) -> None:
        """Run the actions that are queued now, so that a snapshot contains what they do."""
        for _ in range(len(self._inbox)):
            self.run_next()

    def is_idle(self, *, delayed: bool = False) -> bool:
        """Whether no action is queued, and each asynchronous call has got a result; see `AsyncCalls.awaited`."""
        return not len(self._inbox) and not self.async_calls.awaited(delayed=delayed)

    def close(self, timeout: float) -> None:
        """Drop all queued actions and close the enumerator, once (ENU-9, CTX-11).

        Waits at most `timeout` seconds for an action that is running on another thread.

        Raises:
            BaseException: The error of the enumerator's `close`.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            elsewhere = self._stepping not in (None, self._runtime.thread_id())
            if elsewhere:
                self._resting.clear()
        self._inbox.close()
        if elsewhere:
            self._resting.wait(timeout)
        self.signal.set()
        try:
            if self._enumerator is not None:
                self._enumerator.close()
        finally:
            self.async_calls.close(min(timeout, _CLOSE_ASYNC_CALLS))

    @property
    def enumerator(self) -> SplitEnumerator:
        """The enumerator.

        Raises:
            ContractError: There is none yet (COO-1).
        """
        if self._enumerator is None:
            raise ContractError(
                "a host misused the coordinator: a method was called before attach",
                source=self._source,
                rule="COO-1",
                advice="report this as a bug",
            )
        return self._enumerator

    # ---- on the coordinator thread

    def _here(self, action: Callable[[], None]) -> None:
        # A planner runs its queue at the next poll of the stream: a foreign thread must not wait for that.
        self._inbox.call(action, wait=not self._planned)

    def _calling(self, doing: str) -> AbstractContextManager[None]:
        self._inbox.enter()
        return wrap_errors(self._source, doing)

    def _assign(self, assignment: Mapping[int, tuple[Split, ...]]) -> None:
        for subtask in assignment:
            self._registered(subtask, "CTX-2")
            if self.no_more and not self._planned:  # a planner can still take splits
                raise self._broken(
                    f"splits were assigned to reader {subtask} after signal_no_more_splits({subtask})",
                    "CTX-3",
                    "signal only after every split is assigned",
                )
        splits = assignment.get(0, ())
        ids: set[str] = set()
        for split in splits:
            if not isinstance(split, Split):
                raise self._broken(f"assign_splits() got {split!r}, not a Split", "SPL-1", "assign Split objects")
            if split.id in ids or split.id in self._assigned or split.id in self.held:
                raise repeated_id(self._source, split.id)
            ids.add(split.id)
        if splits and self._reader is not None:
            if self.at_start is not None:
                splits = tuple(map(self.at_start, splits))
            self._assigned |= ids  # recorded before the reader gets them (CTX-1)
            self._reader.add_splits(splits)

    def _signal_no_more(self, subtask: int) -> None:
        reader = self._registered(subtask, "CTX-3")
        self.no_more = True
        reader.notify_no_more_splits()

    def _registered(self, subtask: int, rule: str) -> AssignedReader:
        if subtask == 0 and self._reader is not None:
            return self._reader
        raise self._broken(
            f"reader {subtask!r} is not registered; the registered readers are {sorted(self._hosts)}",
            rule,
            "there is one reader, number 0: wait for add_reader, or check context.registered_readers()",
        )

    def _broken(self, message: str, rule: str, advice: str) -> ContractError:
        return ContractError(message, source=self._source, rule=rule, advice=advice)


# -- The coordinator's queue of actions: any thread adds actions, only the coordinator thread takes them.


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

    def enter(self) -> None:
        """Make the calling thread the coordinator thread."""
        self._thread = self._runtime.thread_id()

    def take(self) -> Callable[[], None] | None:
        """Remove and return the oldest action, or return None. Called on the coordinator thread."""
        with self._lock:
            return self._actions.popleft() if self._actions else None

    def __len__(self) -> int:
        """Return the number of queued actions."""
        with self._lock:
            return len(self._actions)

    def wake(self) -> None:
        """Make the coordinator step again."""
        self._signal.set()

    def call(self, action: Callable[[], None], *, wait: bool) -> None:
        """Run an action on the coordinator thread (CTX-9).

        If the caller is on the coordinator thread, or there is none yet, the action runs at once. On any other thread
        it is queued; with `wait`, the caller waits for it.

        Raises:
            FatalError: The coordinator closed before the action ran.
            BaseException: The action's error, if the caller waits; it does not fail the run.
        """
        if self._thread in (None, self._runtime.thread_id()):
            action()
            return
        if not wait:
            self.post(action)
            return
        call = _Call(action, self._runtime.signal())
        with self._lock:
            self._calls.add(call)
        if not self.post(lambda: self._run(call)):
            self._forget(call)
            raise _closed()
        call.done.wait()
        if call.error is not None:
            raise call.error

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

    def __init__(self, action: Callable[[], None], done: Signal) -> None:
        self.action = action
        self.done = done
        self.error: BaseException | None = None

    def finish(self, _result: object, error: BaseException | None) -> None:
        self.error = error
        self.done.set()


def _closed() -> FatalError:
    return FatalError(
        "the enumerator called its context after the coordinator had closed",
        rule="CTX-9",
        advice="end the enumerator's background threads in its close()",
    )


# -- Asynchronous calls: work runs on another thread, its handler on the coordinator thread (CTX-5 … CTX-7).


@dataclass(order=True)
class _Due:
    at: float
    number: int
    work: Callable[[], Any] = field(compare=False)
    handler: Handler = field(compare=False)
    period: float | None = field(compare=False)


class AsyncCalls:
    """The asynchronous calls of one enumerator. All methods must be called on the coordinator thread.

    Runs of a periodic call do not overlap: a run is skipped if the result of the one before it is not handled yet, so
    that each run sees the effects of the handler before it. Different calls may overlap.

    Args:
        name: The name of the source, for the names of threads.
        runtime: Threads and time.
        inbox: Gets the results as actions, which call the handlers on the coordinator thread.
    """

    on_start: Callable[[Handler], Handler] | None = None
    """Called with the handler when a run starts; returns the handler to use."""

    def __init__(self, name: str, runtime: Runtime, inbox: Inbox) -> None:
        self._name = name
        self._runtime = runtime
        self._inbox = inbox
        self.now: Callable[[], float] = runtime.clock.monotonic
        """Returns the monotonic time at which calls count as due."""
        self._due: list[_Due] = []
        self._numbers = itertools.count()
        self._unhandled: set[int] = set()
        self._awaited: dict[int, bool] = {}  # calls without a result, and whether they are delayed
        self._answered: set[object] = set()
        self._lock = runtime.lock()
        self._running = 0
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
        at = self._runtime.clock.monotonic() + delay if delay else self.now()
        number = next(self._numbers)
        if not delay or _code(handler) not in self._answered:
            self._awaited[number] = delay > 0
        heapq.heappush(self._due, _Due(at, number, work, handler, period))
        self._inbox.wake()

    def awaited(self, *, delayed: bool) -> bool:
        """Whether a call has no first result or error yet.

        Calls with a delay count only if `delayed` is set, and not if their handler has got a result before: they are
        repeated polls.
        """
        return any(delayed or not has_delay for has_delay in self._awaited.values())

    def fire_due(self) -> float | None:
        """Start all work that is due; return the seconds until the next work is due, or None if none is scheduled."""
        now = self.now()
        while self._due and self._due[0].at <= now:
            due = heapq.heappop(self._due)
            if due.period is not None:
                missed = (now - due.at) // due.period
                heapq.heappush(self._due, dataclasses.replace(due, at=due.at + (missed + 1) * due.period))
            if due.number not in self._unhandled:
                self._start(due)
        return max(0.0, self._due[0].at - now) if self._due else None

    def close(self, timeout: float) -> bool:
        """Start no more work, and wait at most `timeout` seconds for running work; return whether it has all ended."""
        self._due.clear()
        with self._lock:
            busy = bool(self._running)
        return not busy or self._all_done.wait(timeout)

    def _start(self, due: _Due) -> None:
        handler = due.handler if self.on_start is None else self.on_start(due.handler)
        self._unhandled.add(due.number)
        with self._lock:
            self._running += 1
            self._all_done.clear()

        def handle(result: object, error: BaseException | None) -> None:
            self._unhandled.discard(due.number)
            self._awaited.pop(due.number, None)
            if error is None:
                self._answered.add(_code(due.handler))
            handler(result, error)

        def done(result: object, error: BaseException | None) -> None:
            self._inbox.post(lambda: handle(result, error))
            with self._lock:
                self._running -= 1
                if not self._running:
                    self._all_done.set()

        self._runtime.submit(f"forebay-{self._name}-async-{due.number}", due.work, done)


def _code(handler: Handler) -> object:
    """Return what the handlers of all polls share: each is a new object, mostly a bound method."""
    function = handler.func if isinstance(handler, functools.partial) else handler
    return getattr(function, "__code__", type(function))
