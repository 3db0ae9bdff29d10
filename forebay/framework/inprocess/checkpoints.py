# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the in-process host: when they are taken, and their files."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forebay.errors import ConfigurationError, ContractError, DataError, FatalError, RetriableError
from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.inprocess.output_queue import OutputQueue
from forebay.framework.inprocess.reader_task import DeliveryLog, ReaderTask
from forebay.framework.runtime.runtime import Next, Runtime
from forebay.framework.source import Source
from forebay.framework.split import Json, Position, Split
from forebay.options import (
    changeable_options,
    changed_on_restart,
    class_options,
    fixed_options,
    redact,
    warn_of_changes,
)
from forebay.state.local_files import DirectoryLock, lock_directory, put_if_absent, remove_unfinished
from forebay.version import __version__

# -- Checkpoint files of the in-process host: one JSON file each, written atomically; the last three are kept.


_log = logging.getLogger(__name__)

_VERSION = 1
_KEPT = 3
_NAME = re.compile(r"checkpoint-(\d+)\.json")
_ALONE = "close the other run, or give each run its own directory"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state from which a run continues: checkpoint number, enumerator snapshot, splits of the readers."""

    number: int
    enumerator: Json
    splits: Sequence[Split]


class CheckpointStore:
    """The checkpoint files of one source in one directory, which `open` creates. Each write waits for an fsync."""

    def __init__(self, directory: Path, source: Source) -> None:
        self._directory = directory
        self._source = source
        self._lock: DirectoryLock | None = None
        self._newest = 0

    def open(self) -> Checkpoint | None:
        """Lock the directory, remove unfinished files of killed runs, and read the newest checkpoint.

        Raises:
            ConfigurationError: Another run uses the directory; or see `latest`.
            DataError: See `latest`.
        """
        try:
            self._lock = lock_directory(self._directory)
        except ConfigurationError as error:
            raise error.with_context(source=self._source.name, option="checkpoint", advice=_ALONE) from None
        if self._lock is not None:
            remove_unfinished(self._directory, "checkpoint-")
        else:
            _log.warning(
                "%s: the file system of the checkpoint directory %s has no locks: another run that uses it is detected "
                "only when it writes a checkpoint, and rows may be repeated until then; %s",
                self._source.name,
                self._directory,
                _ALONE,
            )
        try:
            return self.latest()
        except BaseException:  # also unlock when interrupted
            self.close()
            raise

    def close(self) -> None:
        """Unlock the directory; idempotent."""
        if self._lock is not None:
            self._lock.release()

    def latest(self) -> Checkpoint | None:
        """Read the newest checkpoint; None if there is none.

        Raises:
            ConfigurationError: The checkpoint is of another source or of a newer forebay, an option that must not
                change has changed, or the directory cannot be read.
            DataError: The checkpoint file is damaged. No older file is used instead, because that would repeat rows.
        """
        numbers = self._numbers()
        self._newest = max(numbers, default=0)
        return self._read(self._newest) if numbers else None

    def write(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint file durably, return its path, and remove all but the last three files.

        A file with a higher number than this run's previous one comes from another run; this is checked after each
        write. The newest files are never removed, so at most one of two runs can write its last checkpoint.

        Raises:
            ConfigurationError: Another run writes to this directory, or the directory is not writable.
            ContractError: The enumerator's snapshot, or a split, is not JSON-serialisable (ENU-5).
            RetriableError: Writing failed.
        """
        path = self._path(checkpoint.number)
        data = self._encoded(checkpoint)
        if not put_if_absent(str(path), data, without_links=True):
            raise self._shared(path)
        newest = max((number for number in self._numbers() if number != checkpoint.number), default=0)
        if newest > self._newest:
            path.unlink(missing_ok=True)
            raise self._shared(self._path(newest))
        self._newest = max(self._newest, checkpoint.number)
        for number in sorted(self._numbers())[:-_KEPT]:
            self._path(number).unlink(missing_ok=True)
        return path

    def _shared(self, path: Path) -> ConfigurationError:
        return self._refused(f"{path} was not written by this run: another run writes its checkpoints here", _ALONE)

    def _refused(self, message: str, advice: str, rule: str | None = None) -> ConfigurationError:
        return ConfigurationError(message, source=self._source.name, option="checkpoint", rule=rule, advice=advice)

    def _encoded(self, checkpoint: Checkpoint) -> bytes:
        data = {
            "v": _VERSION,
            "forebay": __version__,
            "source": self._source.name,
            "number": checkpoint.number,
            "options": fixed_options(self._source),
            "changeable": changeable_options(self._source),
            "enumerator": checkpoint.enumerator,
            "splits": [split.to_json() for split in checkpoint.splits],
        }
        try:
            text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
            return text.encode()
        except (TypeError, ValueError) as error:
            raise ContractError(
                f"the state of the enumerator or a split cannot be written as JSON: {error}",
                source=self._source.name,
                rule="ENU-5",
                advice="use only None, bool, int, float, str, list and dict in snapshot_state(), Discovered.state "
                "and splits",
            ) from error

    def _read(self, number: int) -> Checkpoint:
        path = self._path(number)
        try:
            data = json.loads(path.read_bytes())
        except OSError as error:
            raise self._unreadable(error) from error
        except ValueError as error:
            raise self._damaged(path, str(error)) from error
        if not isinstance(data, dict) or not isinstance(data.get("v"), int):
            raise self._damaged(path, "its content is not a checkpoint")
        if data["v"] > _VERSION:
            raise self._refused(
                f"{path} was written by a newer forebay ({data.get('forebay')})",
                f"run that release, or give another checkpoint directory; this is forebay {__version__}",
                "SER-4",
            )
        return self._rebuilt(path, number, data)

    def _rebuilt(self, path: Path, number: int, data: dict[str, Any]) -> Checkpoint:
        if data.get("source") != self._source.name:
            raise self._refused(
                f"{path} is a checkpoint of the source {data.get('source')!r}, not of {self._source.name!r}",
                "give each source its own checkpoint directory",
            )
        unknown = data.keys() - {"v", "forebay", "source", "number", "options", "changeable", "enumerator", "splits"}
        if unknown or data.get("number") != number:
            raise self._damaged(
                path, f"unknown keys {sorted(unknown)}" if unknown else "its number differs from its file name"
            )
        try:
            old = {str(name): str(value) for name, value in data["options"].items()}
            # Older checkpoints do not have this key.
            changeable = data.get("changeable")
            if changeable is not None:
                changeable = {str(name): str(value) for name, value in changeable.items()}
            enumerator = data["enumerator"]
            splits = [self._source.split_class.from_json(fields) for fields in data["splits"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._damaged(path, f"{type(error).__name__}: {error}") from error
        source = self._source
        changed_on_restart(class_options(type(source)), old, fixed_options(source), source=source.name)
        if changeable is not None:
            warn_of_changes(source, changeable, source=source.name)
        return Checkpoint(number, enumerator, splits)

    def _numbers(self) -> list[int]:
        try:
            names = [entry.name for entry in self._directory.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unreadable(error) from error
        return [int(match.group(1)) for match in map(_NAME.fullmatch, names) if match]

    def _path(self, number: int) -> Path:
        return self._directory / f"checkpoint-{number:010d}.json"

    def _unreadable(self, error: OSError) -> ConfigurationError:
        return self._refused(
            f"the checkpoint directory {self._directory} cannot be read: {error}",
            "give a directory that this process may read and write",
        )

    def _damaged(self, path: Path, why: str) -> DataError:
        return DataError(
            f"the checkpoint {path} is damaged: {why}",
            source=self._source.name,
            option="checkpoint",
            advice="restore the file; or delete it to continue from the previous checkpoint, which repeats rows; or "
            "start from the beginning with another checkpoint directory",
        )


# -- Takes the checkpoints of the in-process host, periodically and on demand.


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
