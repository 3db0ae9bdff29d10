# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the in-process host: one JSON file each, whole or not at all, the last few kept."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay.errors import ConfigurationError, ContractError, DataError
from forebay.framework.local.checkpoint_options import changeable_options, fixed_options, warn_of_changes
from forebay.framework.source import Source
from forebay.framework.split import Json, Split
from forebay.options import changed_on_restart, class_options
from forebay.storage.durable import write_atomically
from forebay.version import __version__

_VERSION = 1
_KEPT = 3
_NAME = re.compile(r"checkpoint-(\d+)\.json")


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
        directory: Where they are; made when the first is written.
        source: Whose they are: its name and the options that may not change are checked, others
            that changed are logged, its splits are rebuilt.
    """

    def __init__(self, directory: Path, source: Source) -> None:
        self._directory = directory
        self._source = source

    def latest(self) -> Checkpoint | None:
        """Read the newest checkpoint; None if there is none.

        Raises:
            ConfigurationError: It is of another source or of a newer version, an option changed that may not, or the
                directory cannot be read.
            DataError: The file is damaged. An older one is never taken silently: its rows would come twice.
        """
        numbers = self._numbers()
        return self._read(max(numbers)) if numbers else None

    def write(self, checkpoint: Checkpoint) -> Path:
        """Write a checkpoint, durable when this returns, and remove all but the last few.

        Raises:
            ConfigurationError: Another run writes to this directory, or it cannot be written to.
            ContractError: The enumerator's snapshot, or a split, is not JSON-ready (ENU-5).
            RetriableError: The disk did not take it.
        """
        path = self._path(checkpoint.number)
        if path.exists():
            raise ConfigurationError(
                f"{path} exists already: another run writes its checkpoints here",
                source=self._source.name,
                option="checkpoint",
                advice="stop the other run, or give each run a directory of its own",
            )
        write_atomically(str(path), self._encoded(checkpoint))
        for number in sorted(self._numbers())[:-_KEPT]:
            self._path(number).unlink(missing_ok=True)
        return path

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
