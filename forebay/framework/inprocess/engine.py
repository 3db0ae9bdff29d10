# SPDX-License-Identifier: Apache-2.0
"""The engine of the in-process host: steps enumerator, reader and checkpoints in the consumer's thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from forebay.clock import Clock
from forebay.errors import ContractError, FatalError, RetriableError
from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.coordination.discovering import (
    Backlog,
    DiscoveringEnumerator,
    SplitState,
    StartPositions,
    begin_enumerator,
)
from forebay.framework.inprocess.checkpoints import Checkpoint, CheckpointStore
from forebay.framework.inprocess.deliveries import DeliveryLog, SplitProgress
from forebay.framework.inprocess.reader import CaughtUp, Emitted, Ended, Event, EventTime, Released, RunReader
from forebay.framework.runtime.connector_errors import without_secrets
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Next, Runtime, Signal, WaitFor
from forebay.framework.source import Source
from forebay.framework.split import Position
from forebay.options import hide_options, redact
from forebay.watermarks.strategy import WatermarkStrategy

_log = logging.getLogger(__name__)

T = TypeVar("T")


class PollTimeoutError(Exception):
    """No record batch came within the `timeout` of `Engine.next_batch`."""


class SnapshotError(FatalError):
    """The snapshot of an enumerator or reader failed; the run continues (COO-3)."""


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """How a run takes checkpoints, and where it starts.

    Args:
        store: Where checkpoints are written. None = checkpoints are taken but not written, so that the source still
            gets notices of delivered positions.
        interval: Seconds between two checkpoints.
        positions: Start positions by split id, for a run without a checkpoint.
    """

    store: CheckpointStore | None
    interval: float
    positions: Mapping[str, Position] = field(default_factory=dict)


class Engine:
    """Runs a source for one consumer, in the consumer's thread.

    Only fetchers, generator workers and asynchronous calls use other threads. The consumer calls `ask`, then `step`
    until `take` returns a record batch, and waits for `signal` if a step says so. A step blocks only while a failed
    reader closes or a checkpoint is written.

    Args:
        source: The source, with its schema resolved.
        schema: The schema that every record batch must have.
        runtime: Threads, locks, time and random numbers.
        options: The host's options.
        parallelism: How many times `Source.fetchers` the reader has fetchers.
        checkpoints: How checkpoints are taken. None for a peek, which has no side effects: the source gets no notice of
            delivered positions, and failed readers are not replaced.
        strategy: How event time is processed; None to ignore it.
    """

    def __init__(
        self,
        source: Source,
        schema: pa.Schema,
        runtime: Runtime,
        options: HostOptions,
        *,
        parallelism: int,
        checkpoints: CheckpointPlan | None,
        strategy: WatermarkStrategy | None = None,
    ) -> None:
        self.signal: Signal = runtime.signal()
        self.deliveries = DeliveryLog()
        self.failed: Exception | None = None
        self._source = source
        self._runtime = runtime
        self._options = options
        hide_options(source)
        # "Caught up" is an event of the reader, behind all batches fetched before, so it proves silence.
        self._event_time = (
            None if strategy is None else EventTime(strategy, runtime.clock, self.deliveries.is_caught_up)
        )
        self._checkpoints = checkpoints
        plan = checkpoints or CheckpointPlan(store=None, interval=0.0)
        self._store = plan.store
        restored = None if self._store is None else self._store.open()
        self._number = 0 if restored is None else restored.number
        self._next_checkpoint = runtime.clock.monotonic() + plan.interval
        self._discovering: DiscoveringEnumerator | None = None
        self._coordinator = Coordinator(source.name, runtime, signal=self.signal)
        self._starts = StartPositions(source.name, plan.positions)
        self._coordinator.run_in_coordinator_thread(lambda: self._begin(restored))
        self._reader = RunReader(
            source,
            schema,
            self._coordinator,
            runtime,
            options,
            fetcher_factor=parallelism,
            deliveries=self.deliveries,
            event_time=self._event_time,
            restarts=checkpoints is not None,
        )
        self._asked = False
        self._ready: pa.RecordBatch | None = None
        self._done = False
        self._closed = False

    # ---- the consumer's side

    @property
    def clock(self) -> Clock:
        """The clock of the run."""
        return self._runtime.clock

    def ask(self) -> None:
        """Request the next batch. This acknowledges the previous one: checkpoints include it from now on."""
        self._asked = True
        self.deliveries.cover()
        if self._event_time is not None:
            self._event_time.consumer_busy(busy=False)

    def stop_asking(self) -> None:
        """Withdraw the request for a batch: the consumer is busy, and later steps do nothing."""
        self._asked = False
        if self._event_time is not None:
            self._event_time.consumer_busy(busy=True)

    def take(self) -> pa.RecordBatch | None:
        """Return the record batch that the last step produced, and withdraw the request; None if there is none."""
        batch, self._ready = self._ready, None
        if batch is not None:
            self.stop_asking()
        return batch

    def step(self) -> Next | WaitFor:
        """Do one unit of work if a batch is requested; return when to step again, or DONE if the reader has ended.

        Raises:
            BaseException: The error that ended the run. Each later step raises it again.
        """
        if self.failed is not None:
            raise self.failed
        if self._done:
            return Next.DONE
        if not self._asked or self._ready is not None:
            return Next.WAIT
        return self._failing(self._step)

    def next_batch(self, *, until_caught_up: bool, timeout: float | None = None) -> pa.RecordBatch | None:
        """Step until there is a record batch, and return it; return None once the reader has ended.

        With `until_caught_up`, None is also returned once the reader has caught up (see `caught_up`).

        Raises:
            PollTimeoutError: No record batch came within `timeout` seconds; the run continues.
            BaseException: The error that ended the run, see `step`.
        """
        self.ask()
        give_up_at = None if timeout is None else self.clock.monotonic() + timeout
        while True:
            self.signal.clear()
            outcome = self.step()
            batch = self.take()
            if batch is not None:
                return batch
            if outcome is Next.DONE or (until_caught_up and self.caught_up()):
                return None
            waits = [outcome.seconds] if isinstance(outcome, WaitFor) else []
            if give_up_at is not None:
                waits.append(give_up_at - self.clock.monotonic())
                if waits[-1] <= 0:
                    self.stop_asking()
                    raise PollTimeoutError
            if outcome is not Next.AGAIN:
                self.signal.wait(min(waits, default=None))

    @property
    def watermark(self) -> int | None:
        """The watermark of the run, in microseconds since 1970; None before the first, or without a strategy."""
        return None if self._event_time is None else self._event_time.watermark

    def progress(self) -> list[SplitProgress]:
        """Return the progress of each known split, sorted by split id."""
        progress = self.deliveries.progress(self._event_time.paused() if self._event_time is not None else ())
        for split_id, (split, state) in (self._discovering.splits() if self._discovering is not None else {}).items():
            if split_id not in progress and state is SplitState.NEW:
                progress[split_id] = SplitProgress(split_id, split.position, split.end, 0, 0, "waiting")
        return [progress[split_id] for split_id in sorted(progress)]

    def backlog(self) -> Backlog | None:
        """Return the work done and left; None for a connector's own `SplitEnumerator`. Takes about 1 µs per split."""
        return None if self._discovering is None else self._discovering.backlog()

    def caught_up(self) -> bool:
        """Whether the reader has caught up with every split at least once, after a discovery of this run.

        It becomes true even if new records keep arriving. A connector's own `SplitEnumerator` must also have handled
        all requests and events of the reader, because only its assignments tell which splits exist.
        """
        if self._reader.has_events() or self._ready is not None:
            return False
        behind = self.deliveries.never_caught_up()
        idle = self._coordinator.is_idle()
        if self._discovering is None:
            return self._reader.start_at is None and not behind and idle
        # A finished split may begin a discovery once the coordinator handles it.
        return (idle or not self._discovering.in_stages) and self._discovering.caught_up(behind)

    def close(self, *, orderly: bool = True) -> list[BaseException]:
        """Close reader, enumerator and checkpoint store within `closeTimeout`; return their errors in order.

        A second call does nothing.

        Args:
            orderly: First take a checkpoint, unless the run has failed or is done; then wait for threads to end.
        """
        if self._closed:
            return []
        self._closed = True
        errors: list[BaseException] = []
        if orderly and self.failed is None and not self._done:
            try:
                self.checkpoint()
            except Exception as error:  # noqa: BLE001 - returned after everything else is closed
                errors.append(error)
        self._done = True
        now = self._runtime.clock.monotonic
        deadline = now() + (self._options.close_timeout.total_seconds() if orderly else 0.0)
        errors += self._reader.close(deadline - now(), failed=self.failed is not None)
        try:
            self._coordinator.close(max(0.0, deadline - now()))
        except Exception as error:  # noqa: BLE001 - returned with the others
            errors.append(error)
        if self._store is not None:
            self._store.close()
        return errors

    # ---- checkpoints

    def checkpoint(self) -> Path | None:
        """Take a checkpoint of all acknowledged batches; return its path, or None if it is not written.

        Raises:
            SnapshotError: The snapshot of the enumerator or the reader failed; the run continues (COO-3).
            ForebayError: The checkpoint could not be written; the run continues.
            BaseException: The enumerator could not be made, or failed in an action that was queued or when it was
                notified, and the run has failed; or the reader failed when it was notified, and the run continues.
        """
        if self._checkpoints is None:
            return None
        self._next_checkpoint = self.clock.monotonic() + self._checkpoints.interval
        self._failing(self._coordinator.run_queued)
        self._number += 1
        number = self._number
        state = self._snapshot("the enumerator", lambda: self._coordinator.snapshot(number))
        splits = self._snapshot("the reader", lambda: self._reader.snapshot(number))
        path = None if self._store is None else self._store.write(Checkpoint(number, state, splits))
        self._failing(lambda: self._notify(number))
        self._reader.notify_checkpoint_complete(number)
        return path

    def _snapshot(self, who: str, take: Callable[[], T]) -> T:
        try:
            return take()
        except Exception as error:
            raise SnapshotError(
                f"the checkpoint failed: {who} raised {type(error).__name__} in snapshot_state(): {redact(str(error))}",
                rule="COO-3",
                advice="correct snapshot_state() in the connector; the run continues, and the next checkpoint calls it "
                "again",
            ) from error

    def _notify(self, number: int) -> None:
        self._coordinator.checkpoint_complete(number)
        if self._discovering is not None:
            self._discovering.committed(self.deliveries.covered())

    def _checkpoint_if_due(self) -> bool:
        """Take a checkpoint if one is due; return whether one was due.

        A failed snapshot, and a `RetriableError` of the store, are only logged. The next checkpoint is due one interval
        later.
        """
        if self._checkpoints is None or self.clock.monotonic() < self._next_checkpoint:
            return False
        try:
            self.checkpoint()
        except (RetriableError, SnapshotError) as error:
            if self.failed is not None:
                raise
            _log.warning(
                "%s: a checkpoint failed; the next one is taken in %.1f s: %s",
                self._source.name,
                self._checkpoints.interval,
                redact(str(error)),
            )
        return True

    # ---- steps

    def _begin(self, restored: Checkpoint | None) -> None:
        self._discovering = begin_enumerator(
            self._source,
            self._coordinator,
            self._options,
            self._runtime.random,
            state=None if restored is None else restored.enumerator,
            splits=() if restored is None else restored.splits,
            starts=self._starts,
        )

    def _step(self) -> Next | WaitFor:
        event = self._reader.take()
        if event is not None:
            self._process(event)
            return Next.AGAIN
        # Each step runs one action of the enumerator and one other action, so that neither starves the other.
        ran = self._coordinator.run_next()
        if self._reader.start_if_due() or self._periodic_work() or self._reader.poll() or ran:
            return Next.AGAIN
        if self._reader.ended:
            self._finish()
            return Next.DONE
        return self._wait()

    def _process(self, event: Event) -> None:
        match event:
            case Emitted(split_id, batch, position):
                self.deliveries.deliver(split_id, batch, position)
                self._reader.failures.progressed(split_id)
                if self._event_time is not None:
                    self._event_time.collect(split_id, batch, position)
                self._ready = batch
            case CaughtUp(split_id):
                self.deliveries.caught_up(split_id)
            case Released(split_id):
                self._finish_split(split_id)
            case Ended():
                self._check_all_released()

    def _periodic_work(self) -> bool:
        if self._event_time is not None and self._event_time.tick(self._reader, self._alive):
            return True
        return self._checkpoint_if_due()

    def _wait(self) -> Next | WaitFor:
        waits = [self._coordinator.due_in(), self._reader.due_in()]
        if self._checkpoints is not None:
            waits.append(max(0.0, self._next_checkpoint - self.clock.monotonic()))
        if self._event_time is not None:
            waits.append(self._event_time.due_in())
        seconds = min((wait for wait in waits if wait is not None), default=None)
        return Next.WAIT if seconds is None else WaitFor(seconds)

    def _finish_split(self, split_id: str) -> None:
        if self._event_time is not None:
            self._event_time.release(split_id)
        if self.deliveries.holds(split_id):
            self._reader.failures.progressed(split_id)
            finished = [self.deliveries.finish(split_id)]
            # Queued behind what the reader sent before.
            self._coordinator.run_in_coordinator_thread(lambda: self._coordinator.splits_finished(finished))

    def _check_all_released(self) -> None:
        held = self.deliveries.held()
        if held:
            raise ContractError(
                f"the reader returned END_OF_INPUT before it released {len(held)} splits",
                source=self._source.name,
                split=held[0],
                rule="RDR-6",
                advice="release every split at its end, and return END_OF_INPUT after the last one",
            )

    def _finish(self) -> None:
        self.checkpoint()
        if self._discovering is None:
            self._starts.warn_of_unused()
        if self._event_time is not None:
            self._event_time.end_of_input()
        self._done = True

    def _alive(self) -> Collection[str]:
        return self._discovering.splits() if self._discovering is not None else self.deliveries.unfinished()

    # ---- errors

    def _failing(self, work: Callable[[], T]) -> T:
        """Do work of which an error ends the run; the error is raised without secrets."""
        try:
            return work()
        except BaseException as error:
            shown = without_secrets(error)
            self.failed = shown if isinstance(shown, Exception) else self._interrupted(shown)
            if shown is error:
                raise
            raise shown from shown.__cause__

    def _interrupted(self, error: BaseException) -> FatalError:
        return FatalError(
            f"the run was interrupted by {type(error).__name__}",
            source=self._source.name,
            advice="call forebay.run() again; with a checkpoint directory it continues from the last checkpoint",
        )
