# SPDX-License-Identifier: Apache-2.0
"""Takes the checkpoints of the in-process host, periodically and on demand."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forebay.errors import FatalError, RetriableError
from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.inprocess.checkpointing.checkpoint_store import Checkpoint, CheckpointStore
from forebay.framework.inprocess.delivery_log import DeliveryLog
from forebay.framework.inprocess.output_queue import OutputQueue
from forebay.framework.inprocess.reader_task import ReaderTask
from forebay.framework.runtime.runtime import Next, Runtime
from forebay.framework.split import Json, Position, Split
from forebay.options import redact

_log = logging.getLogger(__name__)


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


class Checkpointer:
    """Takes the checkpoints of a run, in the consumer's thread.

    `last` is the number of the checkpoint that the run continues from, or 0.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        tasks: Sequence[ReaderTask],
        deliveries: DeliveryLog,
        outputs: OutputQueue,
        runtime: Runtime,
        plan: CheckpointPlan,
        *,
        last: int,
    ) -> None:
        self._coordinator = coordinator
        self._tasks = tasks
        self._deliveries = deliveries
        self._outputs = outputs
        self._clock = runtime.clock
        self._store = plan.store
        self._interval = plan.interval
        self._tried = last
        self._next = self._clock.monotonic() + plan.interval
        self.completed = last

    def due_in(self) -> float:
        """Return the seconds until the next periodic checkpoint."""
        return max(0.0, self._next - self._clock.monotonic())

    def periodic(self, source: str) -> bool:
        """Take a checkpoint if one is due; return whether one was due.

        A failed snapshot, and a `RetriableError` of the store, are only logged, with the name of the source, `source`.
        The next checkpoint is due one interval later.

        Raises:
            ForebayError: The checkpoint could not be written, and trying again would not help.
        """
        if self.due_in() > 0:
            return False
        try:
            self.take()
        except (RetriableError, SnapshotError) as error:
            reason = redact(str(error))
            _log.warning("%s: a checkpoint failed; the next one is taken in %.1f s: %s", source, self._interval, reason)
        return True

    def take(self) -> Path | None:
        """Take a checkpoint of all acknowledged batches; return its path, or None without a store.

        Raises:
            SnapshotError: The snapshot of the enumerator or a reader failed; the run continues (COO-3).
            ForebayError: The checkpoint could not be written.
        """
        self._next = self._clock.monotonic() + self._interval
        # No number is used twice: the tracker keeps the assignments of a failed checkpoint under its number (TRK-3).
        self._tried += 1
        state, splits = self._snapshot(self._tried)
        path = self._store.write(Checkpoint(self._tried, state, splits)) if self._store is not None else None
        self.completed = self._tried
        self._notify(self._tried)
        return path

    def _snapshot(self, number: int) -> tuple[Json, list[Split]]:
        taken: list[tuple[Json, Exception | None]] = []
        self._coordinator.snapshot(number, lambda state, error: taken.append((state, error)))
        self._step_coordinator_until(taken)
        state, error = taken[0]
        if error is not None:
            raise _snapshot_failed("the enumerator", error) from error
        snapshots: dict[str, Split] = {}
        for task in self._tasks:
            try:
                snapshots |= task.snapshot(number)
            except Exception as failure:
                raise _snapshot_failed(f"reader {task.subtask}", failure) from failure
        return state, self._deliveries.checkpoint(snapshots, self._outputs.waiting())

    def _notify(self, number: int) -> None:
        done: list[bool] = []
        self._coordinator.notify_checkpoint_complete(number, self._deliveries.covered(), lambda: done.append(True))
        self._step_coordinator_until(done)
        for task in self._tasks:
            task.notify_checkpoint_complete(number)

    def _step_coordinator_until(self, happened: Sequence[object]) -> None:
        """Step the coordinator in this thread until one of its actions has added an item to `happened`."""
        while not happened:
            if self._coordinator.step() is Next.DONE:
                raise self._coordinator.error or FatalError(
                    "a checkpoint was requested after the run was closed", advice="take checkpoints before closing it"
                )


class SnapshotError(FatalError):
    """The snapshot of an enumerator or reader failed; the run continues (COO-3)."""


def _snapshot_failed(who: str, error: Exception) -> SnapshotError:
    return SnapshotError(
        f"the checkpoint failed: {who} raised {type(error).__name__} in snapshot_state(): {redact(str(error))}",
        rule="COO-3",
        advice="correct snapshot_state() in the connector; the run continues, and the next checkpoint calls it again",
    )
