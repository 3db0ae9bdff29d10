# SPDX-License-Identifier: Apache-2.0
"""The enumerator of a planner, and the context that it gets: one virtual reader, whose splits are planned."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, TypeVar

from forebay.clock import Clock
from forebay.errors import ConfigurationError, ContractError, FatalError
from forebay.framework.coordination.inbox import AsyncCalls, Handler, Inbox
from forebay.framework.coordination.validation import checked_enumerator, repeated_id
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.enumerator import SourceEvent, SplitEnumerator, SplitEnumeratorContext
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.runtime.connector_errors import closing, wrap_errors
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Split


def create_enumerator(
    source: Source, context: SplitEnumeratorContext, calls: ConnectorCalls
) -> DiscoveryEnumerator | SplitEnumerator:
    """Return a new enumerator of the source, created with `context`.

    Raises:
        ContractError: The source's `create_enumerator()` returned no enumerator.
    """
    made = calls.call("create_enumerator()", lambda: source.create_enumerator(context))
    return checked_enumerator(source, made)


def event_refused(source: str, event: SourceEvent) -> ConfigurationError:
    """Return the error for a connector that sends a source event on Spark, which has no channel for it."""
    return ConfigurationError(
        f"the source event {type(event).__name__} cannot be sent: Spark has no channel between enumerator and readers",
        source=source,
        rule="EVT-1",
        advice="put the data that readers need into the split, or run the source in-process with forebay.run",
    )


T = TypeVar("T")


class PlanningContext(SplitEnumeratorContext):
    """Runs a `SplitEnumerator` on the planning thread, with one virtual reader, subtask 0 of 1.

    `plan` drives the enumerator of a bounded read, `AssignedContext` that of a stream. Calls from other threads are
    queued for the planning thread (CTX-9).

    Args:
        source: The name of the source.
        runtime: Threads and time.
        timeout: Maximum seconds until all splits are assigned.
        streaming: Whether a stream is planned, not a bounded read.
    """

    def __init__(self, source: str, runtime: Runtime, *, timeout: float, streaming: bool = False) -> None:
        self._source = source
        self._streaming = streaming
        self._runtime = runtime
        self._timeout = timeout
        self._signal = runtime.signal()
        self._inbox = Inbox(runtime, self._signal)
        self._async_calls = AsyncCalls(source, runtime, self._inbox, on_start=self._on_start, now=self._now)
        self._planning_thread = runtime.thread_id()
        self._registered = False
        self._requested = False
        self._assigned: dict[str, Split] = {}
        self._held: Container[str] = ()
        self._outstanding = 0  # calls without a first result, except repeated polls
        self._answered: set[object] = set()  # handlers that have got a result
        self._unhandled: set[Handler] = set()  # handlers of started runs
        self.no_more = False
        """Whether the enumerator has signalled that no split follows."""

    @property
    def clock(self) -> Clock:
        """The runtime's clock."""
        return self._runtime.clock

    @property
    def streaming(self) -> bool:
        """Whether a stream is planned, not a bounded read."""
        return self._streaming

    @property
    def reads_once(self) -> bool:
        """Whether a bounded read is planned."""
        return not self._streaming

    def current_parallelism(self) -> int:
        """Return 1: there is only the virtual reader."""
        return 1

    def registered_readers(self) -> Mapping[int, str | None]:
        """Return the virtual reader, number 0, once it is registered; before that, no reader."""
        return {0: None} if self._registered else {}

    def assign_splits(self, assignment: Mapping[int, Sequence[Split]]) -> None:
        """Assign splits to the virtual reader, all of them or none.

        Raises:
            ContractError: Splits are assigned to another reader than 0 (CTX-2), or a split twice (SPL-1).
        """
        self._on_planning_thread(lambda: self._assign(assignment))

    def signal_no_more_splits(self, subtask: int) -> None:
        """Record that all splits are assigned. A bounded read is planned when all queued actions have run."""
        self._on_planning_thread(lambda: self._signal_no_more(subtask))

    def send_event_to_reader(self, subtask: int, event: SourceEvent) -> None:
        """Raise a ConfigurationError: Spark has no channel to send an event to readers."""
        raise event_refused(self._source, event)

    def call_async(
        self,
        work: Callable[[], T],
        handler: Callable[[T | None, BaseException | None], None],
        *,
        delay: float = 0.0,
        period: float | None = None,
    ) -> None:
        """Run `work` on another thread, then `handler` on the planning thread, unless planning has ended by then."""
        self._on_planning_thread(lambda: self._call(work, handler, delay, period))

    def run_in_coordinator_thread(self, action: Callable[[], None]) -> None:
        """Queue an action for the planning thread. If planning has ended, the action is dropped."""
        self._inbox.post(action)

    def plan(self, enumerator: SplitEnumerator, *, bounded: bool = True) -> list[Split]:
        """Request splits until the enumerator signals that there are no more, close it, and return them. Called once.

        Args:
            enumerator: The enumerator of the source.
            bounded: Whether the source is bounded. If not, its enumerator may never signal: planning then fails as soon
                as all its asynchronous calls have returned once. A later call with a delay, whose handler has got a
                result before, is a repeated poll and is not waited for.

        Raises:
            ConfigurationError: The source is unbounded, and its enumerator did not call `signal_no_more_splits`.
            FatalError: The enumerator failed, or did not call `signal_no_more_splits` in time.
            ContractError: The enumerator broke a rule of the contract.
        """
        deadline = self.clock.monotonic() + self._timeout
        with closing(self._source, lambda: self.end(enumerator)):
            self._begin(enumerator)
            if not self.no_more:
                self._request()
            while self._step(deadline, bounded=bounded):
                pass
        return list(self._assigned.values())

    def end(self, enumerator: SplitEnumerator) -> None:
        """Drop queued actions and close the enumerator."""
        self._inbox.close()
        enumerator.close()

    def _now(self) -> float:
        """Return the monotonic time up to which asynchronous calls are started."""
        return self.clock.monotonic()

    def _on_start(self, handler: Handler) -> Handler | None:
        """Return the handler for a run of asynchronous work, or None to skip the run.

        A run is skipped while the result of the previous run is not handled: this may take until the next poll of the
        stream, and each run must see the effects of the handler before it.
        """
        if handler in self._unhandled:
            return None
        self._unhandled.add(handler)

        def handled(result: object, error: BaseException | None) -> None:
            self._unhandled.discard(handler)
            handler(result, error)

        return handled

    def _begin(self, enumerator: SplitEnumerator) -> None:
        self._planning_thread = self._runtime.thread_id()
        self._enumerator = enumerator
        self._run("start()", enumerator.start)
        self._registered = True
        self._run("add_reader()", lambda: enumerator.add_reader(0))

    def _on_planning_thread(self, action: Callable[[], None]) -> None:
        if self._runtime.thread_id() == self._planning_thread:
            action()
        else:
            self._inbox.post(action)

    def _assign(self, assignment: Mapping[int, Sequence[Split]]) -> None:
        wrong = [subtask for subtask in assignment if not (subtask == 0 and self._registered)]
        if wrong:
            raise ContractError(
                f"the enumerator assigned splits to reader {wrong[0]}, which is not registered",
                source=self._source,
                rule="CTX-2",
                advice="on Spark there is one reader, number 0: assign to context.registered_readers() only",
            )
        splits: dict[str, Split] = {}
        for split in assignment.get(0, ()):
            if split.id in splits or split.id in self._assigned or split.id in self._held:
                raise repeated_id(self._source, split.id)
            splits[split.id] = split
        self._assigned |= splits
        if splits:
            self._requested = False

    def _signal_no_more(self, subtask: int) -> None:
        if subtask != 0:
            raise ContractError(
                f"signal_no_more_splits({subtask}) was called, but there is no reader {subtask}",
                source=self._source,
                rule="CTX-3",
                advice="on Spark there is one reader, number 0: call signal_no_more_splits(0)",
            )
        self.no_more = True

    def _call(self, work: Callable[[], Any], handler: Handler, delay: float, period: float | None) -> None:
        # Each poll is a new call, mostly of a bound method, which has the code of its function.
        key: object = getattr(handler, "__code__", handler)
        polls_again = delay > 0 and key in self._answered
        first = not polls_again

        def handle(result: object, error: BaseException | None) -> None:
            nonlocal first
            self._outstanding -= first
            first = False
            if error is None:
                self._answered.add(key)
            handler(result, error)

        self._async_calls.call(work, handle, delay, period)
        self._outstanding += first

    def _step(self, deadline: float, *, bounded: bool) -> bool:
        """Run one queued action, or wait for one; return whether planning must go on.

        Raises:
            ConfigurationError: See `plan`.
            FatalError: See `plan`.
        """
        self._signal.clear()
        due = self._async_calls.fire_due()
        action = self._inbox.take()
        left = deadline - self.clock.monotonic()
        if action is not None and left > 0:  # an enumerator that assigns splits without end is late too
            self._run("a handler of the enumerator", action)
        elif self.no_more:
            return False
        elif not self._requested and left > 0:
            self._request()
        elif not bounded and self._outstanding == 0:
            raise ConfigurationError(
                "an unbounded source cannot be read once, because its enumerator did not call signal_no_more_splits(0)",
                source=self._source,
                advice="read it with spark.readStream or forebay.run; or, in the connector, let the enumerator call "
                "context.signal_no_more_splits(0) after the last assignment if context.reads_once is True",
            )
        elif left <= 0:
            raise FatalError(
                f"the enumerator did not call signal_no_more_splits(0) within {self._timeout:g} s",
                source=self._source,
                rule="ENU-2",
                advice="in the connector, call context.signal_no_more_splits(0) after the last assignment (of an "
                "unbounded source: if context.reads_once is True); or, if the work needs longer, raise planningTimeout",
            )
        else:
            self._signal.wait(left if due is None else min(left, due))
        return True

    def _request(self) -> None:
        self._requested = True
        self._run("handle_split_request()", lambda: self._enumerator.handle_split_request(0, None))

    def _run(self, doing: str, action: Callable[[], None]) -> None:
        with wrap_errors(self._source, doing):
            action()
