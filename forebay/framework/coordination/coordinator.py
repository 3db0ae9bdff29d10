# SPDX-License-Identifier: Apache-2.0
"""The coordinator: runs one enumerator by steps, everything in order, and survives its errors (COO-1 … COO-6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from forebay.errors import ContractError, ForebayError
from forebay.framework.coordination.assignment_tracker import AssignmentTracker
from forebay.framework.coordination.context import CoordinatorContext
from forebay.framework.coordination.discovering import DiscoveringEnumerator
from forebay.framework.coordination.inbox import Inbox
from forebay.framework.coordination.messages import Gateway
from forebay.framework.coordination.start_positions import StartPositions
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumerator
from forebay.framework.events import SourceEvent
from forebay.framework.host_options import HostOptions
from forebay.framework.runtime.runtime import Next, Runtime, Signal, WaitFor
from forebay.framework.source import Source
from forebay.framework.split import Json, Position, Split

SnapshotDone = Callable[[Json, Exception | None], None]

_MOST_WAIT_FOR_ASYNC_CALLS = 5.0
"""Seconds that closing waits for work in flight; its result is dropped anyway, and its thread is a daemon."""


class Coordinator:
    """Everything an enumerator sees, one step at a time (ENU-1). A `Worker`: a host may step it itself or start it.

    The methods may be called from any thread, except where they say otherwise: they only queue. An error of the
    enumerator ends the coordinator: it is kept, as that very object, in `error`, and the signal is set (COO-3).

    Args:
        source: Makes the enumerator, in the first step.
        runtime: Threads, locks, time and chance.
        parallelism: How many readers there are.
        options: The host's: how often to discover, and to retry.
        signal: Set whenever there is something to do; one of its own unless the host gives one.
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
        """The framework's enumerator, if the source uses it; on the coordinator thread only."""
        return self._enumerator if isinstance(self._enumerator, DiscoveringEnumerator) else None

    def warn_of_unused_positions(self) -> None:
        """Log which given positions no split of a raw enumerator took. Called when all splits have been read."""
        if self._context.start_positions is not None:
            self._context.start_positions.warn_of_unused()

    # ---- called by the host

    def reset_to_checkpoint(self, state: Json) -> None:
        """Restore the enumerator from its snapshot when it starts; None makes a fresh one (COO-2).

        Raises:
            ContractError: The coordinator has started (COO-1).
        """
        if self._started:
            raise _misused("reset_to_checkpoint came after start")
        self._restored = state

    def start(
        self, restored_splits: Sequence[Split] = (), positions: Mapping[str, Position] = MappingProxyType({})
    ) -> None:
        """Make the enumerator, restore and start it: the first thing that steps do.

        Args:
            restored_splits: What readers held at the checkpoint: goes through `add_splits_back`, after `start`, before
                any reader registers (FLIP-537).
            positions: Where splits begin, by id; only without a restored checkpoint.
        """
        if self._started:
            raise _misused("start came twice")
        self._started = True
        splits, starts = list(restored_splits), StartPositions(self._source.name, positions)
        self._inbox.post(lambda: self._begin(splits, starts))

    def register_reader(self, subtask: int, host: str | None, gateway: Gateway) -> None:
        """A reader is there; `gateway` takes its messages from now on (ENU-4)."""
        self._post(lambda enumerator: self._register(enumerator, subtask, host, gateway))

    def handle_split_request(self, subtask: int, host: str | None) -> None:
        """A reader asks for a split; dropped if it was told that none follow, or has failed (CTX-3)."""
        self._post(lambda enumerator: self._request(enumerator, subtask, host))

    def handle_source_event(self, subtask: int, event: SourceEvent) -> None:
        """A reader sent an event of the source's own (ENU-8)."""
        self._post(lambda enumerator: enumerator.handle_source_event(subtask, event))

    def handle_splits_finished(self, subtask: int, splits: Sequence[Split]) -> None:
        """A reader delivered these splits to their end, for good: no reset brings them back."""
        done = list(splits)
        self._post(lambda enumerator: self._finish(enumerator, subtask, done))

    def reader_failed(self, subtask: int) -> None:
        """A reader failed: it is unregistered, nothing else (COO-4)."""
        self._post(lambda _: self._context.unregister(subtask))

    def subtask_reset(self, subtask: int, restored_checkpoint: int, held: Sequence[Split] = ()) -> None:
        """A failed reader will be replaced: its splits go back to the enumerator (COO-4).

        Args:
            subtask: The reader.
            restored_checkpoint: What the tracker knows from after this checkpoint is returned.
            held: Splits that its replacement must not begin with by itself, at the position to go on from; they are
                returned first, and take precedence over what the tracker knows.
        """
        mine = list(held)
        self._post(lambda enumerator: self._reset(enumerator, subtask, restored_checkpoint, mine))

    def snapshot(self, checkpoint_id: int, done: SnapshotDone) -> None:
        """Begin a checkpoint: `done(state, error)` is called on the coordinator thread, in order with all else (COO-6).

        A failing enumerator fails this checkpoint only (COO-3).
        """
        self._post(lambda enumerator: self._snapshot(enumerator, checkpoint_id, done))

    def notify_checkpoint_complete(
        self, checkpoint_id: int, positions: Mapping[str, Position], done: Callable[[], None] = lambda: None
    ) -> None:
        """A checkpoint is durable: the tracker is trimmed first, then the enumerator is told (COO-6).

        Args:
            checkpoint_id: Its number.
            positions: Where each split stands in it.
            done: Called afterwards, on the coordinator thread.
        """
        self._post(lambda enumerator: self._complete(enumerator, checkpoint_id, positions, done))

    def step(self) -> Next | WaitFor:
        """Start asynchronous work that is due, then run one queued action. Never raises; see `error`."""
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
        except BaseException as error:  # noqa: BLE001 - any throwable fails the run, as that very object (COO-3)
            self._fail(error)
            return Next.DONE
        finally:
            with self._lock:
                self._stepping = None
            self._resting.set()
        return Next.WAIT if wait is None else WaitFor(wait)

    def is_idle(self) -> bool:
        """Return whether the enumerator has handled all that it was told, and each result that it asked for at once."""
        # In this order: a result is queued before its call counts as done.
        return not self._context.async_calls.awaited() and self._inbox.is_empty()

    def close(self, timeout: float) -> None:
        """Drop everything queued and close the enumerator, once, on every path (ENU-9, CTX-11).

        If a step hangs on another thread, the enumerator is closed after `timeout` seconds all the same.

        Args:
            timeout: Seconds.

        Raises:
            BaseException: What the enumerator's `close` raised.
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
            self._context.async_calls.close(min(timeout, _MOST_WAIT_FOR_ASYNC_CALLS))

    # ---- runs in steps

    def _begin(self, restored_splits: list[Split], starts: StartPositions) -> None:
        made = self._source.create_enumerator(self._context)
        if isinstance(made, DiscoveryEnumerator):
            made = DiscoveringEnumerator(
                made, self._context, self._source, self._options, self._runtime.random, positions=starts
            )
        elif isinstance(made, SplitEnumerator):
            self._context.start_positions = starts
        else:
            raise ContractError(
                f"create_enumerator() gave a {type(made).__name__}",
                source=self._source.name,
                rule="SRC-1",
                advice="return a SplitEnumerator or a DiscoveryEnumerator",
            )
        self._enumerator = made
        if self._restored is not None:
            made.restore_state(self._restored)
        made.start()
        if restored_splits:
            made.add_splits_back(restored_splits, None)

    def _register(self, enumerator: SplitEnumerator, subtask: int, host: str | None, gateway: Gateway) -> None:
        self._context.register(subtask, host, gateway)
        enumerator.add_reader(subtask)

    def _request(self, enumerator: SplitEnumerator, subtask: int, host: str | None) -> None:
        if subtask in self._context.registered_readers() and not self._context.was_told(subtask):
            enumerator.handle_split_request(subtask, host)

    def _finish(self, enumerator: SplitEnumerator, subtask: int, splits: list[Split]) -> None:
        mine = [split for split in splits if self._context.holder(split.id) == subtask]
        for split in mine:
            self._context.release(split.id)
        if mine:
            enumerator.handle_splits_finished(subtask, mine)

    def _reset(self, enumerator: SplitEnumerator, subtask: int, restored_checkpoint: int, held: list[Split]) -> None:
        self._context.unregister(subtask)
        self._context.clear_no_more_splits(subtask)
        taken = self._tracker.take(subtask, restored_checkpoint)
        known = {split.id for split in held}
        # What was reported finished is held by nobody any more: it is delivered and stays so.
        lost = [split for split in taken if split.id not in known and self._context.holder(split.id) == subtask]
        for split in (*held, *lost):
            self._context.release(split.id)
        enumerator.add_splits_back([*held, *lost], subtask)

    def _snapshot(self, enumerator: SplitEnumerator, checkpoint_id: int, done: SnapshotDone) -> None:
        self._tracker.cut(checkpoint_id)
        try:
            state = enumerator.snapshot_state(checkpoint_id)
        except Exception as error:  # noqa: BLE001 - fails this checkpoint, not the run (COO-3)
            done(None, error)
        else:
            done(state, None)

    def _complete(
        self,
        enumerator: SplitEnumerator,
        checkpoint_id: int,
        positions: Mapping[str, Position],
        done: Callable[[], None],
    ) -> None:
        self._tracker.complete(checkpoint_id)
        enumerator.notify_checkpoint_complete(checkpoint_id)
        if isinstance(enumerator, DiscoveringEnumerator):
            enumerator.committed(positions)
        done()

    def _post(self, action: Callable[[SplitEnumerator], None]) -> None:
        if not self._started:
            raise _misused("it was used before start")

        def run() -> None:
            if self._enumerator is not None:
                action(self._enumerator)

        self._inbox.post(run)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, ForebayError):
            error.located(source=self._source.name)
        else:
            error.add_note(f"raised in the enumerator of the source {self._source.name}")
        self.error = error
        self._inbox.close()
        self.signal.set()


def _misused(what: str) -> ContractError:
    return ContractError(f"the coordinator was misused: {what}", rule="COO-1", advice="report a defect of the host")
