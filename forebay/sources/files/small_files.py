# SPDX-License-Identifier: Apache-2.0
"""Requests the next small files of a task in advance, so that it does not wait a round trip for each file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from forebay.sources.files.split import FileSplit
from forebay.stores.file_status import FileStatus
from forebay.stores.paths import is_s3
from forebay.stores.stored_file import FileOpenedAhead, StoredFile

AHEAD: Final = 8
"""Maximum number of files requested ahead of the current file. Each takes at most 1 MB (`S3Store.open_ahead`).

At 20 ms per request and 3 ms of work per file, seven requests run at the same time.
"""


class SmallFiles:
    """The next small files of one split reader, requested in advance. For one thread at a time.

    Args:
        stored: A function that returns a listed file with the settings of its store.
    """

    def __init__(self, stored: Callable[[FileStatus], StoredFile]) -> None:
        self._stored = stored
        self._opened: dict[str, FileOpenedAhead] = {}

    def request(self, waiting: Iterable[FileSplit]) -> None:
        """Request the small S3 files among the first `AHEAD` splits of `waiting`. Does not block."""
        for split in islice(waiting, AHEAD):
            if split.id in self._opened or not is_s3(split.path):
                continue
            if (opened := self._stored(split.status).open_ahead()) is not None:
                self._opened[split.id] = opened

    def take(self, split: FileSplit) -> StoredFile:
        """Return the file of the split that is read next: as requested in advance, or else not opened yet."""
        return self._opened.pop(split.id, None) or self._stored(split.status)

    def close(self) -> None:
        """Cancel the requests of files that were not read."""
        for opened in self._opened.values():
            opened.close()
        self._opened.clear()
