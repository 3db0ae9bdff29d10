# SPDX-License-Identifier: Apache-2.0
"""Finds the store for a path, and opens a listed file; checks that the file has not changed since it was listed."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import BinaryIO

from forebay.stores.file_status import FileStatus, changed_error, gone_error
from forebay.stores.paths import is_s3, is_url, refuse_password
from forebay.stores.store import NO_OPTIONS, StorageOptions, Store


def store_for(
    path: str,
    options: StorageOptions = NO_OPTIONS,
    *,
    ignore_missing: bool = False,
    ignore_vanished: bool = False,
) -> Store:
    """Return the store of a path or URL. For any thread.

    Args:
        path: A plain path or a URL.
        options: The options of S3 (`S3Settings`), or arguments for fsspec. The local file system takes none.
        ignore_missing: Skip broken links, and local entries that vanish while they are listed, instead of raising.
        ignore_vanished: Skip only local entries that vanish.

    Raises:
        ConfigurationError: The URL has a password, or no installed package opens it with these options.
    """
    if not is_url(path):
        from forebay.stores.local import LocalStore

        return LocalStore(ignore_missing=ignore_missing, ignore_vanished=ignore_vanished)
    refuse_password(path)
    if is_s3(path):
        from forebay.stores.s3.store import S3Store

        return S3Store(options)
    from forebay.stores.remote import RemoteStore

    return RemoteStore(path, options)


@dataclass(frozen=True)
class StoredFile:
    """A listed file in any store, which file formats read as their `InputFile`.

    Picklable; for any thread; its `repr` shows no credentials.

    Attributes:
        status: The file as it was listed.
        storage: Arguments for the store of a URL.
        read_to: The byte at which the caller expects to stop; see `Store.open`.
    """

    status: FileStatus
    storage: StorageOptions = NO_OPTIONS
    read_to: int | None = None

    @property
    def path(self) -> str:
        """The full URL or plain path."""
        return self.status.path

    @property
    def size(self) -> int:
        """The size of the file in bytes when it was listed."""
        return self.status.size

    def open(self) -> BinaryIO:
        """Open the file for reading, as a seekable stream that the caller closes.

        A file that has changed since it was listed raises an error. A store that pins versions checks that at each read
        instead; the reads then raise these errors.

        Raises:
            DataError: The file no longer exists, or has changed since it was listed.
            ConfigurationError: The permission to read the file is missing.
            RetriableError: The store did not answer.
        """
        store = store_for(self.path, self.storage)
        if is_url(self.path) and not store.pins(self.status):
            self.verify_unchanged()
        try:
            stream = store.open(self.path, self.status, self.read_to)
        except FileNotFoundError:
            raise gone_error(self.path) from None
        if not is_url(self.path):
            try:
                self.verify_unchanged(stream)
            except BaseException:  # closed also when interrupted, and raised again
                stream.close()
                raise
        return stream

    def verify_unchanged(self, stream: BinaryIO | None = None) -> None:
        """Check that the file is the version that was listed.

        With the open `stream`, a local file passes even if it was replaced or deleted meanwhile, because the stream
        reads the old content. A file that was overwritten in place does not pass.

        Raises:
            DataError: The file no longer exists or has changed.
            RetriableError: The store did not answer.
        """
        if stream is not None and not is_url(self.path):
            stat_result = os.fstat(stream.fileno())
            now: FileStatus | None = FileStatus(self.path, stat_result.st_size, stat_result.st_mtime_ns)
        else:
            now = self.now()
        if now is None:
            raise gone_error(self.path)
        if not self.status.same_file(now):
            raise changed_error(self.status, now)

    def verify_read(self) -> None:
        """Check that the file was the listed version until its last byte was read. Called by a source after that.

        A store that pins versions has answered each request with the listed version. So nothing is left to check there,
        even if the file has been deleted or replaced since. A local file that was deleted while it was open passes,
        too.

        Raises:
            DataError: The file has changed or, in a store that does not pin versions, no longer exists.
            RetriableError: The store did not answer.
        """
        if store_for(self.path, self.storage).pins(self.status):
            return
        if is_url(self.path) or self.now() is not None:
            self.verify_unchanged()

    def now(self) -> FileStatus | None:
        """Return the current status of the file at the path; None if there is no file now.

        Raises:
            RetriableError: The store did not answer.
        """
        status = store_for(self.path, self.storage).stat(self.path)
        return status if isinstance(status, FileStatus) else None

    def open_ahead(self) -> FileOpenedAhead | None:
        """Request the content of a small S3 object ahead of the read; return None for other files. Does not block.

        The caller closes the result. An error of the request is raised when the content is read.
        """
        if not is_s3(self.path):
            return None
        from forebay.stores.s3.store import S3Store

        stream = S3Store(self.storage).open_ahead(self.status)
        return None if stream is None else FileOpenedAhead(self.status, self.storage, self.read_to, [stream])


@dataclass(frozen=True)
class FileOpenedAhead(StoredFile):
    """A file whose content has been requested. For one thread at a time; not picklable.

    The first `open` returns the stream that waits for the content; later ones open the file again.
    """

    streams: list[BinaryIO] = field(default_factory=list, repr=False, compare=False)

    def open(self) -> BinaryIO:
        """Return the stream with the requested content, or open the file again; see `StoredFile.open`."""
        return self.streams.pop() if self.streams else super().open()

    def close(self) -> None:
        """Cancel the request, unless `open` has returned its stream."""
        while self.streams:
            self.streams.pop().close()
