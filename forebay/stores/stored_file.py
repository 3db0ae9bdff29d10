# SPDX-License-Identifier: Apache-2.0
"""A listed file that can be opened, and that notices when it is no longer the file that was listed."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import dataclass
from typing import BinaryIO

from forebay.errors import DataError
from forebay.stores.file_status import FileStatus
from forebay.stores.open_store import store_for
from forebay.stores.paths import is_url
from forebay.stores.storage_options import NO_OPTIONS, StorageOptions


@dataclass(frozen=True)
class StoredFile:
    """An `InputFile` over a listed file, local or in any store. Frozen, picklable, safe to use from any thread.

    Made by a file source for each split it reads. Its text shows no credentials.

    Attributes:
        status: The file as it was listed.
        storage: Arguments for the store of a URL.
    """

    status: FileStatus
    storage: StorageOptions = NO_OPTIONS

    @property
    def path(self) -> str:
        """The full URL or plain path."""
        return self.status.path

    @property
    def size(self) -> int:
        """Bytes when it was listed."""
        return self.status.size

    def open(self) -> BinaryIO:
        """Open for reading, seekable; the caller closes it.

        A local file is checked through the open file itself, so nothing can come between the check and the reading.

        Raises:
            DataError: The file is gone, or is no longer the file that was listed.
            ConfigurationError: No permission.
            RetriableError: The store did not answer.
        """
        store = store_for(self.path, self.storage)
        if is_url(self.path):
            self._check(self._now())
        try:
            stream = store.open(self.path)
        except FileNotFoundError:
            raise self._gone() from None
        if not is_url(self.path):
            try:
                self._check(_of_stream(self.path, stream))
            except BaseException:  # cleaned up after, also when interrupted, and raised again
                stream.close()
                raise
        return stream

    def verify_unchanged(self, stream: BinaryIO | None = None) -> None:
        """Check again after reading that what was read is the file that was listed.

        Called by a file source when it has read the last byte it needs, before it reports the split as finished.

        Args:
            stream: What `open` gave, still open. For a local file this is exact: a file replaced or deleted
                meanwhile was read whole from the old content and passes; one written over in place does not.

        Raises:
            DataError: The file is gone or has changed.
            RetriableError: The store did not answer.
        """
        if stream is not None and not is_url(self.path):
            self._check(_of_stream(self.path, stream))
        else:
            self._check(self._now())

    def now(self) -> FileStatus | None:
        """What is there under the file's path at this moment, the same file or another; None if there is no file.

        Called by a file source to find out why a read went wrong: see `FileStatus.same_file`.

        Raises:
            RetriableError: The store did not answer.
        """
        found = store_for(self.path, self.storage).stat(self.path)
        return found if isinstance(found, FileStatus) else None

    def _now(self) -> FileStatus:
        found = self.now()
        if found is None:
            raise self._gone()
        return found

    def _check(self, now: FileStatus) -> None:
        if not self.status.same_file(now):
            raise DataError(
                changed(self.status, now, "listed"),
                advice="write new files instead of changing old ones, and start the read again; a stream repeats what "
                "it planned: put the old file back, or have its last micro-batch planned anew (docs/operations.md)",
            )

    def _gone(self) -> DataError:
        return DataError(
            f"the file {self.path!r} is gone since it was listed",
            advice="start the read again, or set ignoreMissingFiles=true to go on without such files; a stream repeats "
            "what it planned: only the latter helps, or the file put back",
        )


def changed(then: FileStatus | None, now: FileStatus, doing: str) -> str:
    """Return the sentence that says how a file has changed since it was listed or read; None = nobody knows how."""
    if then is None:
        return f"the file {now.path!r} has changed since it was {doing} (now {_shown(now)})"
    return f"the file {then.path!r} has changed since it was {doing} (then {_shown(then)}; now {_shown(now)})"


def _of_stream(path: str, stream: BinaryIO) -> FileStatus:
    found = os.fstat(stream.fileno())
    return FileStatus(path, found.st_size, found.st_mtime_ns)


def _shown(status: FileStatus) -> str:
    moment = dt.datetime.fromtimestamp(status.modified_at / 1e9, dt.UTC).isoformat() if status.modified_at else "?"
    mark = "" if status.etag is None else f", etag {status.etag}"
    return f"{status.size} bytes, modified {moment}{mark}"
