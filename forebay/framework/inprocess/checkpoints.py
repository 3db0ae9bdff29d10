# SPDX-License-Identifier: Apache-2.0
"""Checkpoint files of the in-process host: one JSON file each, written atomically; the last three are kept."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.errors import ConfigurationError, ContractError, DataError
from forebay.framework.source import Source
from forebay.framework.split import Json, Split
from forebay.options import (
    changeable_options,
    changed_on_restart,
    class_options,
    fixed_options,
    warn_of_changes,
)
from forebay.state.local_state_store import DirectoryLock, lock_directory, put_if_absent, remove_unfinished
from forebay.version import __version__

_log = logging.getLogger(__name__)

_VERSION = 1
_KEPT = 3
_NAME = re.compile(r"checkpoint-(\d+)\.json")
_ALONE = "close the other run, or give each run its own directory"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state from which a run continues: checkpoint number, enumerator snapshot, splits of the reader."""

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
