# SPDX-License-Identifier: Apache-2.0
"""The coordinator: calls one enumerator in steps, in order, and keeps the error that ends the run (COO-1 … COO-6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from forebay.errors import ContractError, ForebayError
from forebay.framework.coordination.context import AssignmentTracker, CoordinatorContext, StartPositions
from forebay.framework.coordination.discovering import DiscoveringEnumerator
from forebay.framework.coordination.inbox import Gateway, Inbox
from forebay.framework.coordination.validation import checked_enumerator
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.enumerator import SourceEvent, SplitEnumerator
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Next, Runtime, Signal, WaitFor
from forebay.framework.source import Source
from forebay.framework.split import Json, Position, Split

SnapshotDone = Callable[[Json, Exception | None], None]

_CLOSE_ASYNC_CALLS = 5.0
"""Maximum seconds that `close` waits for running asynchronous calls. Later results are dropped; their threads are
daemons."""


class Coordinator:
    """A `Worker` that calls the methods of one enumerator, one in each step (ENU-1).

    The methods other than `step` only queue an action and may be called on any thread, unless they say otherwise. An
    error of the enumerator ends the coordinator: the exception is kept in `error`, and `signal` is set (COO-3).
    """

    def __init__(
        self,
        source: Source,
        runtime: Runtime,
        *,
        parallelism: int,
        options: HostOptions,
        signal: Signal | None = None,
    ) -> None:
        self.signal: Signal = signal or runtime.signal()
        self.error: BaseException | None = None
        self._source = source
        self._runtime = runtime
        self._options = options
        self._inbox = Inbox(runtime, self.signal)
        self._tracker = AssignmentTracker()
        self._context = CoordinatorContext(source.name, runtime, self._inbox, self._tracker, parallelism)
        self._enumerator: SplitEnumerator | None = None
        self._restored: Json = None
        self._started = False
        self._lock = runtime.lock()
        self._stepping: int | None = None
        self._resting: Signal = runtime.signal()
        self._closed = False

    @property
    def discovering(self) -> DiscoveringEnumerator | None:
        """The enumerator, if it is a `DiscoveringEnumerator`; else None. On the coordinator thread only."""
        return self._enumerator if isinstance(self._enumerator, DiscoveringEnumerator) else None

    def warn_of_unused_positions(self) -> None:
        """Log the start positions that a connector's own `SplitEnumerator` did not use, once all splits are read."""
        if self._context.start_positions is not None:
            self._context.start_positions.warn_of_unused()

    # ---- called by the host

    def reset_to_checkpoint(self, state: Json) -> None:
        """Set the snapshot from which `start` restores the enumerator; None starts a new one (COO-2).

        Raises:
            ContractError: The coordinator was started before (COO-1).
        """
        if self._started:
            raise _misused("reset_to_checkpoint was called after start")
        self._restored = state

    def start(
        self, restored_splits: Sequence[Split] = (), positions: Mapping[str, Position] = MappingProxyType({})
    ) -> None:
        """Create, restore and start the enumerator, in the first step of the coordinator.

        `restored_splits` are the splits that readers held at the checkpoint. They are passed to `add_splits_back` after
        the enumerator's `start` and before any reader registers (FLIP-537). `positions` are start positions by split
        id, for a run without a checkpoint.
        """
        if self._started:
            raise _misused("start was called twice")
        self._started = True
        splits, starts = list(restored_splits), StartPositions(self._source.name, positions)
        self._inbox.post(lambda: self._begin(splits, starts))

    def register_reader(self, subtask: int, host: str | None, gateway: Gateway) -> None:
        """Register a reader and the host name of its machine; `gateway` sends messages to the reader (ENU-4)."""

        def register(enumerator: SplitEnumerator) -> None:
            self._context.register(subtask, host, gateway)
            enumerator.add_reader(subtask)

        self._post(register)

    def handle_split_request(self, subtask: int, host: str | None) -> None:
        """Pass a reader's request for a split to the enumerator (CTX-3).

        The request is dropped if the reader has failed, or got "no more splits".
        """

        def request(enumerator: SplitEnumerator) -> None:
            if self._context.accepts_request(subtask):
                enumerator.handle_split_request(subtask, host)

        self._post(request)

    def handle_source_event(self, subtask: int, event: SourceEvent) -> None:
        """Pass an event of a reader to the enumerator (ENU-8)."""
        self._post(lambda enumerator: enumerator.handle_source_event(subtask, event))

    def handle_splits_finished(self, subtask: int, splits: Sequence[Split]) -> None:
        """Tell the enumerator which splits a reader delivered to their end; a later reset does not return them."""
        finished = list(splits)

        def finish(enumerator: SplitEnumerator) -> None:
            held = [split for split in finished if self._context.holder(split.id) == subtask]
            for split in held:
                self._context.release(split.id)
            if held:
                enumerator.handle_splits_finished(subtask, held)

        self._post(finish)

    def reader_failed(self, subtask: int) -> None:
        """Unregister a failed reader; `subtask_reset` returns its splits (COO-4)."""
        self._post(lambda _: self._context.unregister(subtask))

    def subtask_reset(self, subtask: int, restored_checkpoint: int, held_splits: Sequence[Split] = ()) -> None:
        """Return the splits of a failed reader to the enumerator, before its replacement registers (COO-4).

        The splits are `held_splits`, which the reader held, at the positions to resume from, and then those that it was
        assigned after the checkpoint `restored_checkpoint`.
        """
        held_splits = list(held_splits)

        def reset(enumerator: SplitEnumerator) -> None:
            self._context.unregister(subtask)
            self._context.clear_no_more_splits(subtask)
            ids = {split.id for split in held_splits}
            taken = self._tracker.take(subtask, restored_checkpoint)
            # A split that was reported finished has no holder: it is delivered and does not come back.
            unreported = [lost for lost in taken if lost.id not in ids and self._context.holder(lost.id) == subtask]
            returned = [*held_splits, *unreported]
            for split in returned:
                self._context.release(split.id)
            enumerator.add_splits_back(returned, subtask)

        self._post(reset)

    def snapshot(self, checkpoint_id: int, done: SnapshotDone) -> None:
        """Take the enumerator's snapshot for a checkpoint, and pass it to `done(state, error)` (COO-6).

        `done` is called on the coordinator thread, in order with the other actions. An error of the snapshot is passed
        to `done`, and does not fail the run (COO-3).
        """

        def snapshot(enumerator: SplitEnumerator) -> None:
            self._tracker.cut(checkpoint_id)
            try:
                state = enumerator.snapshot_state(checkpoint_id)
            except Exception as error:  # noqa: BLE001 - fails this checkpoint, not the run (COO-3)
                done(None, error)
            else:
                done(state, None)

        self._post(snapshot)

    def notify_checkpoint_complete(
        self, checkpoint_id: int, positions: Mapping[str, Position], done: Callable[[], None] = lambda: None
    ) -> None:
        """Record that a checkpoint is durable: trim the assignment tracker, and notify the enumerator (COO-6).

        `positions` are the durably delivered positions by split id. `done` is called last, on the coordinator thread.
        """

        def complete(enumerator: SplitEnumerator) -> None:
            self._tracker.complete(checkpoint_id)
            enumerator.notify_checkpoint_complete(checkpoint_id)
            if isinstance(enumerator, DiscoveringEnumerator):
                enumerator.committed(positions)
            done()

        self._post(complete)

    def step(self) -> Next | WaitFor:
        """Start asynchronous calls that are due, then run one queued action. Sets `error` instead of raising."""
        with self._lock:
            if self._closed or self.error is not None:
                return Next.DONE
            self._stepping = self._runtime.thread_id()
        try:
            action = self._inbox.take()
            wait = self._context.async_calls.fire_due()
            if action is not None:
                action()
                return Next.AGAIN
        except BaseException as error:  # noqa: BLE001 - fails the run, as the same object (COO-3)
            self._fail(error)
            return Next.DONE
        finally:
            with self._lock:
                self._stepping = None
            self._resting.set()
        return Next.WAIT if wait is None else WaitFor(wait)

    def is_idle(self) -> bool:
        """Whether no action is queued, and all asynchronous calls without a delay have returned."""
        # In this order: a result is queued before its call counts as returned.
        return not self._context.async_calls.awaited() and self._inbox.is_empty()

    def close(self, timeout: float) -> None:
        """Drop all queued actions and close the enumerator, once (ENU-9, CTX-11).

        Waits at most `timeout` seconds for a step that is running on another thread.

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
            self._context.async_calls.close(min(timeout, _CLOSE_ASYNC_CALLS))

    # ---- runs in steps

    def _begin(self, restored_splits: list[Split], starts: StartPositions) -> None:
        made = checked_enumerator(self._source, self._source.create_enumerator(self._context))
        if isinstance(made, DiscoveryEnumerator):
            made = DiscoveringEnumerator(
                made, self._context, self._source, self._options, self._runtime.random, positions=starts
            )
        else:
            self._context.start_positions = starts
        self._enumerator = made
        if self._restored is not None:
            made.restore_state(self._restored)
        made.start()
        if restored_splits:
            made.add_splits_back(restored_splits, None)

    def _post(self, action: Callable[[SplitEnumerator], None]) -> None:
        if not self._started:
            raise _misused("a method was called before start")

        def run() -> None:
            if self._enumerator is not None:
                action(self._enumerator)

        self._inbox.post(run)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, ForebayError):
            error.with_context(source=self._source.name)
        else:
            error.add_note(f"raised in the enumerator of the source {self._source.name}")
        self.error = error
        self._inbox.close()
        self.signal.set()


def _misused(what: str) -> ContractError:
    return ContractError(f"a host misused the coordinator: {what}", rule="COO-1", advice="report this as a bug")
