# SPDX-License-Identifier: Apache-2.0
"""The engine of the in-process host: steps coordinator, readers and checkpoints in the consumer's thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pyarrow as pa

from forebay.clock import Clock
from forebay.errors import ContractError, FatalError
from forebay.framework.coordination.context import SplitState
from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.coordination.discovering import Backlog
from forebay.framework.inprocess.checkpoints import Checkpointer, CheckpointPlan
from forebay.framework.inprocess.event_time import EventTime
from forebay.framework.inprocess.output_queue import CaughtUp, Collected, Ended, Event, OutputQueue, Released
from forebay.framework.inprocess.reader_task import DeliveryLog, ReaderFailures, ReaderTask, SplitProgress
from forebay.framework.runtime.connector_errors import without_secrets
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Next, Runtime, Signal, WaitFor
from forebay.framework.source import Source
from forebay.options import hide_options, redact
from forebay.watermarks.strategy import WatermarkStrategy


class PollTimeoutError(Exception):
    """No record batch came within the `timeout` of `Engine.next_batch`."""


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
        parallelism: The number of readers.
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
        # "Caught up" comes through the output queue, behind all batches fetched before, so it proves silence.
        self._event_time = (
            None if strategy is None else EventTime(strategy, runtime.clock, self.deliveries.is_caught_up)
        )
        self._outputs = OutputQueue(source.name, schema, self.deliveries, self._event_time)
        plan = checkpoints or CheckpointPlan(store=None, interval=0.0)
        self._store = plan.store
        restored = None if self._store is None else self._store.open()
        self._coordinator = Coordinator(source, runtime, parallelism=parallelism, options=options, signal=self.signal)
        self._coordinator.reset_to_checkpoint(None if restored is None else restored.enumerator)
        self._coordinator.start(() if restored is None else restored.splits, plan.positions)
        self._readers = self._reader_pool(parallelism, restarts=checkpoints is not None)
        self._checkpointer: Checkpointer | None = None
        if checkpoints is not None:
            last = 0 if restored is None else restored.number
            self._checkpointer = Checkpointer(
                self._coordinator, self._readers.tasks, self.deliveries, self._outputs, runtime, checkpoints, last=last
            )
        self._asked = False
        self._ready: pa.RecordBatch | None = None
        self._done = False
        self._closed = False

    def _reader_pool(self, parallelism: int, *, restarts: bool) -> ReaderPool:
        tasks = [
            ReaderTask(
                subtask,
                self._source,
                self._coordinator,
                self._runtime,
                self._options,
                parallelism,
                signal=self.signal,
                received=self.deliveries.give,
            )
            for subtask in range(parallelism)
        ]
        return ReaderPool(
            tasks,
            ReaderFailures(self._source.name, self._options, self.deliveries, restarts=restarts),
            runtime=self._runtime,
            coordinator=self._coordinator,
            deliveries=self.deliveries,
            outputs=self._outputs,
            event_time=self._event_time,
            completed=lambda: 0 if self._checkpointer is None else self._checkpointer.completed,
        )

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
        """Do one unit of work if a batch is requested; return when to step again, or DONE if all readers have ended.

        Raises:
            BaseException: The error that ended the run. Each later step raises it again.
        """
        if self.failed is not None:
            raise self.failed
        if self._done:
            return Next.DONE
        if not self._asked or self._ready is not None:
            return Next.WAIT
        try:
            return self._step()
        except BaseException as error:
            shown = without_secrets(error)
            self.failed = shown if isinstance(shown, Exception) else self._interrupted(shown)
            if shown is error:
                raise
            raise shown from shown.__cause__

    def next_batch(self, *, until_caught_up: bool, timeout: float | None = None) -> pa.RecordBatch | None:
        """Step until there is a record batch, and return it; return None once all readers have ended.

        With `until_caught_up`, None is also returned once the readers have caught up (see `caught_up`).

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

    def checkpoint(self) -> Path | None:
        """Take a checkpoint; return its path, or None if it is not written (see `Checkpointer.take`)."""
        return None if self._checkpointer is None else self._checkpointer.take()

    @property
    def watermark(self) -> int | None:
        """The watermark over all readers, in microseconds since 1970; None before the first, or without a strategy."""
        return None if self._event_time is None else self._event_time.watermark

    def progress(self) -> list[SplitProgress]:
        """Return the progress of each known split, sorted by split id."""
        progress = self.deliveries.progress(self._event_time.paused() if self._event_time is not None else ())
        discovering = self._coordinator.discovering
        for split_id, (split, state) in (discovering.splits() if discovering is not None else {}).items():
            if split_id not in progress and state is SplitState.NEW:
                progress[split_id] = SplitProgress(split_id, split.position, split.end, 0, 0, "waiting")
        return [progress[split_id] for split_id in sorted(progress)]

    def backlog(self) -> Backlog | None:
        """Return the work done and left; None for a connector's own `SplitEnumerator`. Takes about 1 µs per split."""
        discovering = self._coordinator.discovering
        return None if discovering is None else discovering.backlog()

    def caught_up(self) -> bool:
        """Whether the readers have caught up with every split at least once, after a discovery of this run.

        It becomes true even if new records keep arriving. A connector's own `SplitEnumerator` must also have handled
        all requests and events of the readers, because only its assignments tell which splits exist.
        """
        if len(self._outputs) or self._ready is not None:
            return False
        behind = self.deliveries.never_caught_up()
        discovering = self._coordinator.discovering
        if discovering is None:
            return self._readers.started and not behind and self._coordinator.is_idle()
        # A finished split may begin a discovery once the coordinator handles it.
        return (self._coordinator.is_idle() or not discovering.in_stages) and discovering.caught_up(behind)

    def close(self, *, orderly: bool = True) -> list[BaseException]:
        """Close readers, coordinator and checkpoint store within `closeTimeout`; return their errors in order.

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
        for task in self._readers.tasks:
            errors += task.close(deadline - now(), failed=self.failed is not None)
        try:
            self._coordinator.close(max(0.0, deadline - now()))
        except Exception as error:  # noqa: BLE001 - returned with the others
            errors.append(error)
        if self._store is not None:
            self._store.close()
        return errors

    # ---- steps

    def _step(self) -> Next | WaitFor:
        event = self._outputs.take()
        if event is not None:
            self._process(event)
            return Next.AGAIN
        # Each step runs one action of the coordinator and one other action, so that neither starves the other.
        wait = self._coordinator.step()
        if self._coordinator.error is not None:
            raise self._coordinator.error
        worked = self._readers.start_one() or self._periodic_work() or self._readers.poll_one()
        if worked or wait is Next.AGAIN:
            return Next.AGAIN
        if self._readers.ended:
            self._finish()
            return Next.DONE
        return self._wait(wait)

    def _process(self, event: Event) -> None:
        match event:
            case Collected(subtask, split_id, batch, position):
                self.deliveries.deliver(split_id, batch, position)
                self._readers.failures.progressed(subtask, split_id)
                self._ready = batch
            case CaughtUp(_, split_id):
                self.deliveries.caught_up(split_id)
            case Released(subtask, split_id):
                self._finish_split(subtask, split_id)
            case Ended(subtask):
                self._check_all_released(subtask)

    def _periodic_work(self) -> bool:
        if self._event_time is not None and self._event_time.due_in() == 0:
            self._event_time.forget(self._alive)
            return self._event_time.tick(self._readers.tasks)
        return self._checkpointer is not None and self._checkpointer.periodic(self._source.name)

    def _wait(self, coordinator: Next | WaitFor) -> Next | WaitFor:
        waits = self._readers.due_in()
        if isinstance(coordinator, WaitFor):
            waits.append(coordinator.seconds)
        if self._checkpointer is not None:
            waits.append(self._checkpointer.due_in())
        if self._event_time is not None:
            waits.append(self._event_time.due_in())
        return WaitFor(min(waits)) if waits else Next.WAIT

    def _finish_split(self, subtask: int, split_id: str) -> None:
        if self._event_time is not None:
            self._event_time.release(subtask, split_id)
        if self.deliveries.owner(split_id) == subtask:
            self._readers.failures.progressed(subtask, split_id)
            self._coordinator.handle_splits_finished(subtask, [self.deliveries.finish(split_id)])

    def _check_all_released(self, subtask: int) -> None:
        held = self.deliveries.held_by(subtask)
        if held:
            raise ContractError(
                f"reader {subtask} returned END_OF_INPUT before it released {len(held)} splits",
                source=self._source.name,
                split=held[0],
                rule="RDR-6",
                advice="release every split at its end, and return END_OF_INPUT after the last one",
            )
        if self._event_time is not None:
            self._event_time.end(subtask)

    def _finish(self) -> None:
        self.checkpoint()
        self._coordinator.warn_of_unused_positions()
        if self._event_time is not None:
            self._event_time.end_of_input()
        self._done = True

    def _interrupted(self, error: BaseException) -> FatalError:
        return FatalError(
            f"the run was interrupted by {type(error).__name__}",
            source=self._source.name,
            advice="call forebay.run() again; with a checkpoint directory it continues from the last checkpoint",
        )

    def _alive(self) -> Collection[str]:
        discovering = self._coordinator.discovering
        return discovering.splits() if discovering is not None else self.deliveries.unfinished()


# -- Starts the readers of a run, polls them in turn, and replaces failed ones.


_log = logging.getLogger(__name__)


class ReaderPool:
    """Starts, polls and replaces the readers of a run. The consumer's thread calls all methods.

    `completed` returns the number of the last completed checkpoint, or 0.
    """

    def __init__(
        self,
        tasks: Sequence[ReaderTask],
        failures: ReaderFailures,
        *,
        runtime: Runtime,
        coordinator: Coordinator,
        deliveries: DeliveryLog,
        outputs: OutputQueue,
        event_time: EventTime | None,
        completed: Callable[[], int],
    ) -> None:
        self.tasks = tasks
        self.failures = failures
        self._runtime = runtime
        self._coordinator = coordinator
        self._deliveries = deliveries
        self._outputs = outputs
        self._event_time = event_time
        self._completed = completed
        self._turn = 0

    @property
    def started(self) -> bool:
        """Whether no reader is waiting to start."""
        return all(task.restart_at is None for task in self.tasks)

    @property
    def ended(self) -> bool:
        """Whether all readers have ended."""
        return all(task.ended for task in self.tasks)

    def due_in(self) -> list[float]:
        """Return, for each reader that waits to start or restart, the seconds until it does."""
        now = self._runtime.clock.monotonic()
        return [max(0.0, task.restart_at - now) for task in self.tasks if task.restart_at is not None]

    def start_one(self) -> bool:
        """Start one reader whose start or restart is due; return whether there was one."""
        now = self._runtime.clock.monotonic()
        for task in self.tasks:
            if task.restart_at is not None and task.restart_at <= now:
                self._outputs.open(task.subtask)
                self._guarded(task, task.start)
                return True
        return False

    def poll_one(self) -> bool:
        """Poll the readers in turn until one makes progress; return whether one did."""
        for offset in range(len(self.tasks)):
            task = self.tasks[(self._turn + offset) % len(self.tasks)]
            if task.may_poll():
                self._guarded(task, lambda task=task: task.poll(self._outputs.output(task.subtask)))  # type: ignore[misc]
                if task.ended:
                    self._outputs.put(Ended(task.subtask))
                if len(self._outputs) or task.may_poll() or task.restart_at is not None:
                    self._turn = (task.subtask + 1) % len(self.tasks)
                    return True
        return False

    def _guarded(self, task: ReaderTask, call: Callable[[], object]) -> None:
        """Call a method of a reader; if the call raises a transient error, replace the reader.

        Raises:
            BaseException: The error is not transient, or the reader has failed too often.
        """
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised again unless the reader is replaced
            self._replace(task, error)

    def _replace(self, task: ReaderTask, error: BaseException) -> None:
        """Close a failed reader, return its splits to the enumerator, and schedule the start of a new reader.

        The splits are returned at their delivered positions.
        """
        subtask, source = task.subtask, self.failures.source
        self._outputs.drop(subtask)
        pause = self.failures.restart_pause(subtask, error, self._runtime.random)
        shown = redact(str(error))
        _log.warning("%s: reader %d failed and is replaced in %.1f s: %s", source, subtask, pause, shown)
        for late in task.close(self.failures.options.close_timeout.total_seconds(), failed=True):
            _log.warning("%s: close() of the failed reader %d failed too: %s", source, subtask, redact(str(late)))
        if self._event_time is not None:
            self._event_time.fail(subtask, self._deliveries.held_by(subtask))
        self._coordinator.reader_failed(subtask)
        self._coordinator.subtask_reset(subtask, self._completed(), self._deliveries.take_back(subtask))
        task.restart_at = self._runtime.clock.monotonic() + pause
