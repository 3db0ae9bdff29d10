# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the in-process host: one JSON file each, whole or not at all, the last few kept."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.errors import ConfigurationError, ContractError, DataError
from forebay.framework.inprocess.checkpoint_options import changeable_options, fixed_options, warn_of_changes
from forebay.framework.source import Source
from forebay.framework.split import Json, Split
from forebay.options import changed_on_restart, class_options
from forebay.state.atomic_files import put_if_absent, remove_unfinished
from forebay.state.directory_lock import DirectoryLock, lock_directory
from forebay.version import __version__

_log = logging.getLogger(__name__)

_VERSION = 1
_KEPT = 3
_NAME = re.compile(r"checkpoint-(\d+)\.json")
_ALONE = "close the other run, or give each run a directory of its own"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a run goes on from.

    Args:
        number: Rising within a directory.
        enumerator: The enumerator's snapshot.
        splits: What readers held, at their covered positions.
    """

    number: int
    enumerator: Json
    splits: Sequence[Split]


class CheckpointStore:
    """The checkpoints of one run in one directory. The consumer's thread calls it; writing blocks it for an fsync.

    Args:
        directory: Where they are; made when a run takes it.
        source: Whose they are: its name and the options that may not change are checked, others
            that changed are logged, its splits are rebuilt.
    """

    def __init__(self, directory: Path, source: Source) -> None:
        self._directory = directory
        self._source = source
        self._lock: DirectoryLock | None = None
        self._newest = 0

    def open(self) -> Checkpoint | None:
        """Take the directory, remove what killed runs left half-written, and read the newest checkpoint.

        Raises:
            ConfigurationError: Another run has the directory; or see `latest`.
            DataError: See `latest`.
        """
        try:
            self._lock = lock_directory(self._directory)
        except ConfigurationError as error:
            raise error.located(source=self._source.name, option="checkpoint", advice=_ALONE) from None
        if self._lock is not None:
            remove_unfinished(self._directory, "checkpoint-")
        else:
            _log.warning(
                "%s: the file system of %s has no locks: another run there is noticed only when it writes a "
                "checkpoint, and rows may come twice until then; %s",
                self._source.name,
                self._directory,
                _ALONE,
            )
        try:
            return self.latest()
        except BaseException:  # the directory is freed also when interrupted, and it is raised again
            self.close()
            raise

    def close(self) -> None:
        """Free the directory; repeatable."""
        if self._lock is not None:
            self._lock.release()

    def latest(self) -> Checkpoint | None:
        """Read the newest checkpoint; None if there is none.

        Raises:
            ConfigurationError: It is of another source or of a newer version, an option changed that may not, or the
                directory cannot be read.
            DataError: The file is damaged. An older one is never taken silently: its rows would come twice.
        """
        numbers = self._numbers()
        self._newest = max(numbers, default=0)
        return self._read(self._newest) if numbers else None

    def write(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, durable when this returns, and remove all but the last few.

        Any other file with a higher number than this run's last one is another run's. The run looks for one after it
        has written its own. The newest files are never removed, so of two runs at most one writes its last checkpoint.

        Raises:
            ConfigurationError: Another run writes to this directory, or it cannot be written to.
            ContractError: The enumerator's snapshot, or a split, is not JSON-ready (ENU-5).
            RetriableError: The disk did not take it.
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
        return ConfigurationError(
            f"{path} is not of this run: another run writes its checkpoints here",
            source=self._source.name,
            option="checkpoint",
            advice=_ALONE,
        )

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
                f"the state of the source cannot be written as JSON: {error}",
                source=self._source.name,
                rule="ENU-5",
                advice="keep snapshot_state(), Discovered.state and splits to None, bool, int, float, str, list, dict",
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
            raise self._damaged(path, "it is no checkpoint")
        if data["v"] > _VERSION:
            raise ConfigurationError(
                f"{path} was written by a newer forebay ({data.get('forebay')})",
                source=self._source.name,
                option="checkpoint",
                rule="SER-4",
                advice=f"run that release, or start from another directory; this is forebay {__version__}",
            )
        return self._rebuilt(path, number, data)

    def _rebuilt(self, path: Path, number: int, data: dict[str, Any]) -> Checkpoint:
        if data.get("source") != self._source.name:
            raise ConfigurationError(
                f"{path} is a checkpoint of the source {data.get('source')!r}, not of {self._source.name!r}",
                source=self._source.name,
                option="checkpoint",
                advice="give each source a checkpoint directory of its own",
            )
        unknown = data.keys() - {"v", "forebay", "source", "number", "options", "changeable", "enumerator", "splits"}
        if unknown or data.get("number") != number:
            raise self._damaged(
                path, f"unexpected {sorted(unknown)}" if unknown else "its number is not that of its name"
            )
        try:
            old = {str(name): str(value) for name, value in data["options"].items()}
            # Checkpoints of before this key say nothing of changes.
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
            warn_of_changes(source, changeable)
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
        return ConfigurationError(
            f"the checkpoint directory {self._directory} cannot be read: {error}",
            source=self._source.name,
            option="checkpoint",
            advice="give a directory that this process may read and write",
        )

    def _damaged(self, path: Path, why: str) -> DataError:
        return DataError(
            f"the checkpoint {path} is damaged: {why}",
            source=self._source.name,
            option="checkpoint",
            advice="restore the file; or delete it to go on from the one before, which repeats rows; or start anew",
        )
