# SPDX-License-Identifier: Apache-2.0
"""The runtime of the in-process host: coordinator, readers, checkpoints and failures, one step at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from pathlib import Path

import pyarrow as pa

from forebay.clock import Clock
from forebay.errors import ContractError, FatalError
from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.coordination.life_cycle import SplitState
from forebay.framework.host_options import HostOptions
from forebay.framework.inprocess.checkpointing import Checkpointer, CheckpointPlan
from forebay.framework.inprocess.delivery_log import DeliveryLog, SplitProgress
from forebay.framework.inprocess.event_time import EventTime
from forebay.framework.inprocess.failures import MAX_RESTARTS, Failures, may_restart, surfaced
from forebay.framework.inprocess.output_queue import CaughtUp, Collected, Ended, Event, OutputQueue, Released
from forebay.framework.inprocess.reader_task import ReaderTask
from forebay.framework.runtime.connector_errors import without_secrets
from forebay.framework.runtime.retry import RetryPolicy
from forebay.framework.runtime.runtime import Next, Runtime, Signal, WaitFor
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.options import hide_options, redact
from forebay.watermarks.idleness import Evidence
from forebay.watermarks.strategy import WatermarkStrategy

_log = logging.getLogger(__name__)


class Engine:
    """Runs a source for one consumer, in the consumer's thread; only fetchers and asynchronous work have their own.

    The consumer, or a simulator in its place, calls `ask`, then `step` until `take` gives a record batch, waiting for
    `signal` where a step says so. A step never waits for anything but a failed reader's `close` and the writing of a
    checkpoint.

    Args:
        source: What to read.
        schema: Its schema: every record batch must have it.
        runtime: Threads, locks, time and chance.
        options: The host's.
        parallelism: How many readers there are.
        checkpoints: How they are taken; None for a mere look, which has no side effects: the source does not hear what
            was read, and no reader is replaced.
        strategy: How event time is treated; None for not at all.
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
        self._failures = Failures()
        hide_options(source)
        self._event_time = None if strategy is None else EventTime(strategy, runtime.clock, self._evidence)
        self._outputs = OutputQueue(source.name, schema, self.deliveries, self._event_time)
        plan = checkpoints or CheckpointPlan(store=None, interval=0.0)
        self._store = plan.store
        restored = None if self._store is None else self._store.open()
        self._coordinator = Coordinator(source, runtime, parallelism=parallelism, options=options, signal=self.signal)
        self._coordinator.reset_to_checkpoint(None if restored is None else restored.enumerator)
        self._coordinator.start(() if restored is None else restored.splits, plan.positions)
        self._tasks = [self._task(subtask, parallelism) for subtask in range(parallelism)]
        self._checkpointer: Checkpointer | None = None
        if checkpoints is not None:
            last = 0 if restored is None else restored.number
            self._checkpointer = Checkpointer(
                self._coordinator, self._tasks, self.deliveries, self._outputs, runtime, checkpoints, last=last
            )
        self._turn = 0
        self._asked = False
        self._ready: pa.RecordBatch | None = None
        self._done = False
        self._closed = False

    # ---- the consumer's side

    @property
    def clock(self) -> Clock:
        """The time of the run."""
        return self._runtime.clock

    def ask(self) -> None:
        """The consumer asks for the next batch: the last one is covered now."""
        self._asked = True
        self.deliveries.cover()
        if self._event_time is not None:
            self._event_time.consumer_busy(busy=False)

    def stop_asking(self) -> None:
        """The consumer does something else, with or without a batch."""
        self._asked = False
        if self._event_time is not None:
            self._event_time.consumer_busy(busy=True)

    def take(self) -> pa.RecordBatch | None:
        """Return the record batch that a step brought, if it did."""
        batch, self._ready = self._ready, None
        if batch is not None:
            self.stop_asking()
        return batch

    def step(self) -> Next | WaitFor:
        """Do a little; say when to go on. Does nothing unless asked. DONE: every reader has ended.

        Raises:
            BaseException: What ended the run; every later step raises it again.
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
            told = without_secrets(error)
            self.failed = told if isinstance(told, Exception) else _interrupted(self._source.name, told)
            if told is error:
                raise
            raise told from told.__cause__

    def checkpoint(self) -> Path | None:
        """Take a checkpoint of what is covered; return where it is (see `Checkpointer.take`)."""
        return None if self._checkpointer is None else self._checkpointer.take()

    @property
    def watermark(self) -> int | None:
        """Microseconds since 1970; None before the first, or without a strategy."""
        return None if self._event_time is None else self._event_time.watermark

    def progress(self) -> list[SplitProgress]:
        """Return how far each known split is, by id."""
        told = self.deliveries.progress(self._event_time.paused() if self._event_time is not None else ())
        discovering = self._coordinator.discovering
        for split_id, (split, state) in (discovering.splits() if discovering is not None else {}).items():
            if split_id not in told and state is SplitState.NEW:
                told[split_id] = SplitProgress(split_id, split.position, split.end, 0, 0, "waiting")
        return [told[split_id] for split_id in sorted(told)]

    def caught_up(self) -> bool:
        """Whether the readers have caught up with every split at least once, after a discovery of this run.

        So a run that waits for it ends, also where new records keep arriving in one split or another. A raw enumerator
        says by what it assigns which splits there are: it must have handled what the readers asked and told.
        """
        if len(self._outputs) or self._ready is not None:
            return False
        behind = self.deliveries.never_caught_up()
        discovering = self._coordinator.discovering
        if discovering is None:
            started = all(task.restart_at is None for task in self._tasks)
            return started and not behind and self._coordinator.is_idle()
        return discovering.caught_up(behind)

    def close(self, *, orderly: bool = True) -> list[BaseException]:
        """End everything within the close time-out, once; return what went wrong, first things first.

        Args:
            orderly: Take a last checkpoint of what is covered, unless the run has failed or is done; wait for threads.
        """
        if self._closed:
            return []
        self._closed = True
        errors: list[BaseException] = []
        if orderly and self.failed is None and not self._done:
            try:
                self.checkpoint()
            except Exception as error:  # noqa: BLE001 - everything else is closed all the same
                errors.append(error)
        self._done = True
        now = self._runtime.clock.monotonic
        deadline = now() + (self._options.close_timeout.total_seconds() if orderly else 0.0)
        for task in self._tasks:
            errors += task.close(deadline - now(), failed=self.failed is not None)
        try:
            self._coordinator.close(max(0.0, deadline - now()))
        except Exception as error:  # noqa: BLE001 - reported with the others
            errors.append(error)
        if self._store is not None:
            self._store.close()
        return errors

    # ---- steps

    def _step(self) -> Next | WaitFor:
        event = self._outputs.take()
        if event is not None:
            self._use(event)
            return Next.AGAIN
        # One action of the coordinator and one of the rest: neither starves the other.
        wait = self._coordinator.step()
        if self._coordinator.error is not None:
            raise self._coordinator.error
        worked = self._start_a_reader() or self._periodic_work() or self._poll_a_reader()
        if worked or wait is Next.AGAIN:
            return Next.AGAIN
        if all(task.ended for task in self._tasks):
            self._finish()
            return Next.DONE
        return self._wait(wait)

    def _use(self, event: Event) -> None:
        match event:
            case Collected(subtask, split_id, batch, position):
                self.deliveries.deliver(split_id, batch, position)
                self._failures.progressed(subtask, split_id)
                self._ready = batch
            case CaughtUp(_, split_id):
                self.deliveries.caught_up(split_id)
            case Released(subtask, split_id):
                self._finish_split(subtask, split_id)
            case Ended(subtask):
                self._check_all_released(subtask)

    def _start_a_reader(self) -> bool:
        now = self._runtime.clock.monotonic()
        for task in self._tasks:
            if task.restart_at is not None and task.restart_at <= now:
                self._outputs.open(task.subtask)
                self._guarded(task, task.start)
                return True
        return False

    def _poll_a_reader(self) -> bool:
        """Poll the readers in turn until one brings something."""
        for offset in range(len(self._tasks)):
            task = self._tasks[(self._turn + offset) % len(self._tasks)]
            if task.may_poll():
                self._guarded(task, lambda task=task: task.poll(self._outputs.output(task.subtask)))  # type: ignore[misc]
                if task.ended:
                    self._outputs.put(Ended(task.subtask))
                if len(self._outputs) or task.may_poll() or task.restart_at is not None:
                    self._turn = (task.subtask + 1) % len(self._tasks)
                    return True
        return False

    def _periodic_work(self) -> bool:
        if self._event_time is not None and self._event_time.due_in() == 0:
            self._event_time.forget(self._alive)
            return self._event_time.tick(self._tasks)
        return self._checkpointer is not None and self._checkpointer.periodic(self._source.name)

    def _wait(self, coordinator: Next | WaitFor) -> Next | WaitFor:
        now = self._runtime.clock.monotonic()
        waits = [max(0.0, task.restart_at - now) for task in self._tasks if task.restart_at is not None]
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
            self._failures.progressed(subtask, split_id)
            self._coordinator.handle_splits_finished(subtask, [self.deliveries.finish(split_id)])

    def _check_all_released(self, subtask: int) -> None:
        held = self.deliveries.held_by(subtask)
        if held:
            raise ContractError(
                f"reader {subtask} gave END_OF_INPUT with {len(held)} splits not released",
                source=self._source.name,
                split=held[0],
                rule="RDR-6",
                advice="release every split at its end, and give END_OF_INPUT when all have been read",
            )
        if self._event_time is not None:
            self._event_time.end(subtask)

    def _finish(self) -> None:
        self.checkpoint()
        self._coordinator.warn_of_unused_positions()
        if self._event_time is not None:
            self._event_time.end_of_input()
        self._done = True

    # ---- failures

    def _guarded(self, task: ReaderTask, call: Callable[[], object]) -> None:
        """Call into a reader; a failure that may pass costs the reader, any other the run."""
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - judged there
            self._reader_failed(task, error)

    def _reader_failed(self, task: ReaderTask, error: BaseException) -> None:
        """Replace a reader: its splits go back to the enumerator at their delivered positions, and reading goes on."""
        self._outputs.drop(task.subtask)
        held = self.deliveries.held_by(task.subtask)
        times = self._failures.count(task.subtask, held, error)
        checkpointer = self._checkpointer
        if checkpointer is None or not may_restart(error, times, self._options.retries):
            raise self._named(task.subtask, held, error, times)
        pause = RetryPolicy.of(self._options).pause(times, self._runtime.random, error)
        shown = redact(str(error))
        _log.warning("%s: reader %d failed, another comes in %.1f s: %s", self._source.name, task.subtask, pause, shown)
        for late in task.close(self._options.close_timeout.total_seconds(), failed=True):
            _log.warning("%s: closing the failed reader %d: %s", self._source.name, task.subtask, redact(str(late)))
        if self._event_time is not None:
            self._event_time.fail(task.subtask, held)
        self._coordinator.reader_failed(task.subtask)
        back = self.deliveries.take_back(task.subtask)
        self._coordinator.subtask_reset(task.subtask, checkpointer.completed, back)
        task.restart_at = self._runtime.clock.monotonic() + pause

    def _named(self, subtask: int, held: list[str], error: BaseException, times: int) -> BaseException:
        named = getattr(error, "split", None)
        split = named if named is not None else held[0] if len(held) == 1 else None
        position = self.deliveries.position(split) if split is not None else None
        told = surfaced(error, source=self._source.name, subtask=subtask, split=split, position=position)
        if times > MAX_RESTARTS:
            told.add_note(f"reader {subtask} had been replaced {MAX_RESTARTS} times in a row")
        return told

    # ---- parts

    def _alive(self) -> Collection[str]:
        discovering = self._coordinator.discovering
        return discovering.splits() if discovering is not None else self.deliveries.unfinished()

    def _task(self, subtask: int, parallelism: int) -> ReaderTask:
        return ReaderTask(
            subtask,
            self._source,
            self._coordinator,
            self._runtime,
            self._options,
            parallelism,
            signal=self.signal,
            received=self._received,
        )

    def _received(self, subtask: int, splits: tuple[Split, ...]) -> None:
        self.deliveries.give(subtask, splits)

    def _evidence(self, split_id: str) -> Evidence:
        # "Caught up" comes from a fetch and through the queue, behind all that was fetched before. What was fetched
        # since waits there no longer than the readers are busy, for the clock stops while the consumer is.
        quiet = self.deliveries.is_caught_up(split_id)
        return Evidence(caught_up=quiet, empty_fetch=quiet, queued=0)


def _interrupted(source: str, error: BaseException) -> FatalError:
    return FatalError(
        f"the run was interrupted by {type(error).__name__}",
        source=source,
        advice="start it again; with a checkpoint directory it goes on from its last checkpoint",
    )
