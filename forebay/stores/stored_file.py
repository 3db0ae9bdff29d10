# SPDX-License-Identifier: Apache-2.0
"""The store of a path, and a listed file in it that can be opened and detects changes since it was listed."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import dataclass
from typing import BinaryIO

from forebay.errors import DataError
from forebay.stores.file_status import FileStatus
from forebay.stores.paths import is_url, refuse_password
from forebay.stores.storage_options import NO_OPTIONS, StorageOptions
from forebay.stores.store import Store


def store_for(
    path: str,
    options: StorageOptions = NO_OPTIONS,
    *,
    ignore_missing: bool = False,
    ignore_vanished: bool = False,
) -> Store:
    """Return the store of a path or URL. Any thread may call it.

    Args:
        path: A plain path or a URL.
        options: Arguments for fsspec; the local file system takes none.
        ignore_missing: Skip local entries that vanish while they are listed, and broken links, instead of failing.
        ignore_vanished: Skip only local entries that vanish.

    Raises:
        ConfigurationError: The URL has a password, or no installed package opens it with these options.
    """
    if not is_url(path):
        from forebay.stores.local import LocalStore

        return LocalStore(ignore_missing=ignore_missing, ignore_vanished=ignore_vanished)
    refuse_password(path)
    from forebay.stores.remote import RemoteStore

    return RemoteStore(path, options)


@dataclass(frozen=True)
class StoredFile:
    """A listed file in any store, as an `InputFile` of formats. Picklable; any thread; no credentials in its `repr`.

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
        """Open for reading, seekable; the caller closes it. A local file is checked when it is open.

        Raises:
            DataError: The file no longer exists, or has changed since it was listed.
            ConfigurationError: No permission.
            RetriableError: The store did not answer.
        """
        store = store_for(self.path, self.storage)
        if is_url(self.path):
            self.verify_unchanged()
        try:
            stream = store.open(self.path)
        except FileNotFoundError:
            raise self._gone() from None
        if not is_url(self.path):
            try:
                self.verify_unchanged(stream)
            except BaseException:  # closed also when interrupted, and raised again
                stream.close()
                raise
        return stream

    def verify_unchanged(self, stream: BinaryIO | None = None) -> None:
        """Check that the file is the one that was listed; a source does so again after it has read the last byte.

        Given the open `stream`, a local file that was replaced or deleted meanwhile passes, because the old content was
        read. A file that was overwritten in place does not pass.

        Raises:
            DataError: The file no longer exists or has changed.
            RetriableError: The store did not answer.
        """
        if stream is not None and not is_url(self.path):
            found = os.fstat(stream.fileno())
            now: FileStatus | None = FileStatus(self.path, found.st_size, found.st_mtime_ns)
        else:
            now = self.now()
        if now is None:
            raise self._gone()
        if not self.status.same_file(now):
            raise DataError(
                changed(self.status, now, "listed"),
                advice="write new files instead of changing old ones, and start the read again; a stream repeats what "
                "it planned: restore the old file, or have its last micro-batch planned again (docs/operations.md)",
            )

    def now(self) -> FileStatus | None:
        """The file that is at the path now, the same or another one; None if there is none. Raises RetriableError."""
        found = store_for(self.path, self.storage).stat(self.path)
        return found if isinstance(found, FileStatus) else None

    def _gone(self) -> DataError:
        return DataError(
            f"the file {self.path!r} was listed but no longer exists",
            advice="start the read again, or set ignoreMissingFiles=true to skip missing files; a stream repeats what "
            "it planned, so restore the file or set that option",
        )


def changed(then: FileStatus | None, now: FileStatus, doing: str) -> str:
    """Return the message that a file changed after it was listed or read. `then` is its old status; None if unknown."""
    if then is None:
        return f"the file {now.path!r} has changed since it was {doing} (now {_shown(now)})"
    return f"the file {then.path!r} has changed since it was {doing} (then {_shown(then)}; now {_shown(now)})"


def _shown(status: FileStatus) -> str:
    moment = dt.datetime.fromtimestamp(status.modified_at / 1e9, dt.UTC).isoformat() if status.modified_at else "?"
    etag = "" if status.etag is None else f", etag {status.etag}"
    return f"{status.size} bytes, modified {moment}{etag}"
