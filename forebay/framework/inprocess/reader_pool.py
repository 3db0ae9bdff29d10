# SPDX-License-Identifier: Apache-2.0
"""Starts the readers of a run, polls them in turn, and replaces failed ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.inprocess.delivery_log import DeliveryLog
from forebay.framework.inprocess.event_time import EventTime
from forebay.framework.inprocess.failures import ReaderFailures
from forebay.framework.inprocess.output_queue import Ended, OutputQueue
from forebay.framework.inprocess.reader_task import ReaderTask
from forebay.framework.runtime.runtime import Runtime
from forebay.options import redact

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
