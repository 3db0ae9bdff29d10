# SPDX-License-Identifier: Apache-2.0
"""When and how the in-process host takes checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forebay.errors import FatalError, RetriableError
from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.inprocess.checkpoints import Checkpoint, CheckpointStore
from forebay.framework.inprocess.delivery_log import DeliveryLog
from forebay.framework.inprocess.output_queue import OutputQueue
from forebay.framework.inprocess.reader_task import ReaderTask
from forebay.framework.runtime.runtime import Next, Runtime
from forebay.framework.split import Json, Position, Split
from forebay.options import redact

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """What a run goes on from, and how it takes checkpoints.

    Without a store they are taken all the same, and kept nowhere: what the consumer has taken is delivered for good
    then, and the source hears of it in the same way.

    Args:
        store: Where they go; None for nowhere.
        interval: Seconds between two.
        positions: Where splits begin, by id; only without a store.
    """

    store: CheckpointStore | None
    interval: float
    positions: Mapping[str, Position] = field(default_factory=dict)


class Checkpointer:
    """Takes the checkpoints of a run, in the consumer's thread, each in one go.

    Args:
        coordinator: Snapshots the enumerator.
        tasks: The readers.
        deliveries: Knows the covered positions.
        outputs: Knows what waits.
        runtime: The time.
        plan: Where they go, and how often.
        last: The number of the checkpoint that the run goes on from, 0 for none.
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
        """Take a checkpoint if it is time; return whether it was. Passing trouble is a warning, and tried again.

        Raises:
            ForebayError: The store cannot take checkpoints at all.
        """
        if self.due_in() > 0:
            return False
        try:
            self.take()
        except (RetriableError, SnapshotError) as error:
            _log.warning("%s: a checkpoint failed, next try in %.1f s: %s", source, self._interval, redact(str(error)))
        return True

    def take(self) -> Path | None:
        """Take a checkpoint of what is covered; return where it is, None without a store.

        Raises:
            SnapshotError: The enumerator or a reader failed in it; the run goes on (COO-3).
            ForebayError: The store did not take it.
        """
        self._next = self._clock.monotonic() + self._interval
        # A number is never used twice: the tracker keeps under it what a failed checkpoint has cut (TRK-3).
        self._tried += 1
        state, splits = self._snapshot(self._tried)
        path = self._store.write(Checkpoint(self._tried, state, splits)) if self._store is not None else None
        self.completed = self._tried
        self._tell(self._tried)
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

    def _tell(self, number: int) -> None:
        told: list[bool] = []
        self._coordinator.notify_checkpoint_complete(number, self._deliveries.covered(), lambda: told.append(True))
        self._step_coordinator_until(told)
        for task in self._tasks:
            task.notify_checkpoint_complete(number)

    def _step_coordinator_until(self, happened: Sequence[object]) -> None:
        """Let the coordinator work off what was queued before, in this thread."""
        while not happened:
            if self._coordinator.step() is Next.DONE:
                raise self._coordinator.error or FatalError(
                    "the coordinator has closed", advice="take checkpoints before the run is closed"
                )


class SnapshotError(FatalError):
    """A checkpoint failed because a part of the source could not say where it is; the run itself goes on (COO-3)."""


def _snapshot_failed(who: str, error: Exception) -> SnapshotError:
    return SnapshotError(
        f"{who} failed in its snapshot with {type(error).__name__}: {redact(str(error))}",
        rule="COO-3",
        advice="see the cause; the run goes on, and the next checkpoint tries again",
    )
