# SPDX-License-Identifier: Apache-2.0
"""Small durable facts of streams, in a directory: written once, by whoever is first, and never changed."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from forebay.storage.durable import put_if_absent
from forebay.storage.local import translated


class StateStore(Protocol):
    """Named facts below one location. Any thread, any number of processes and machines at once.

    Attributes:
        location: The directory or URL, as the user gave it.
    """

    location: str

    def get(self, name: str) -> bytes | None:
        """Return the fact of this name; None if there is none.

        Raises:
            ConfigurationError: No permission.
            RetriableError: The store did not answer.
        """

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a fact, unless there is one of this name; of several writers exactly one wins.

        Returns:
            Whether this call wrote it.

        Raises:
            ConfigurationError: No permission, or the store cannot do it.
            RetriableError: The store did not answer, or is full.
        """

    def names(self, prefix: str) -> list[str]:
        """Return the names that begin with a prefix which ends in `/`, sorted.

        Raises:
            ConfigurationError: No permission.
            RetriableError: The store did not answer.
        """

    def delete(self, names: Iterable[str]) -> None:
        """Delete facts; those that are gone already do not matter.

        Raises:
            ConfigurationError: No permission.
            RetriableError: The store did not answer.
        """


class LocalStateStore:
    """Facts are files, written by link; the directory may be shared by machines.

    Args:
        location: The directory; made when the first fact is written.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        self._root = Path(location)

    def get(self, name: str) -> bytes | None:
        """Read a file."""
        path = self._root / name
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise translated(error, str(path), "read") from error

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a file beside, and link it to its name."""
        return put_if_absent(str(self._root / name), data)

    def names(self, prefix: str) -> list[str]:
        """List a directory; files still being written are not facts."""
        directory = self._root / prefix
        try:
            with os.scandir(directory) as entries:
                found = [entry.name for entry in entries if entry.is_file() and not entry.name.startswith(".")]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise translated(error, str(directory), "list") from error
        return sorted(prefix + name for name in found)

    def delete(self, names: Iterable[str]) -> None:
        """Unlink files."""
        for name in names:
            path = self._root / name
            try:
                with suppress(FileNotFoundError):
                    path.unlink()
            except OSError as error:
                raise translated(error, str(path), "delete") from error
