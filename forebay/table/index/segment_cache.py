# SPDX-License-Identifier: Apache-2.0
"""Copies of segments in a local directory. A copy has the size and the digest that its version names."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from forebay.errors import ConfigurationError, FatalError, RetriableError
from forebay.state.local_state_store import open_regular, private_directory
from forebay.state.state_store import StateStore
from forebay.stores.local import store_error, wrap_errors
from forebay.table.index.segments import IndexSegment, damaged_segment

_SUFFIX: Final = ".db"
_NEW: Final = ".new-"
_OWN: Final = re.compile(r"[0-9a-f]{32}\.db|\.new-[0-9a-f]{32}")
"""The names of copies, and of unfinished ones. Files of other names in the directory are somebody else's."""
_UNUSED: Final = 24 * 3600.0  # seconds after which a shared copy that no process has opened is removed
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)

Progress = Callable[[int, int, int, int], None]
"""Gets files that are there, files of the version, bytes that are there, and bytes of the version."""


class SegmentCache:
    """A directory with copies of segments. One process at a time writes to it.

    Args:
        store: The store of the segments.
        directory: The directory; it is created.
    """

    def __init__(self, store: StateStore, directory: Path) -> None:
        self._store = store
        self._directory = directory
        self._checked: set[str] = set()

    def path(self, segment: IndexSegment) -> Path:
        """Return the path of the copy of a segment. The name of the segment, which is text of the store, is no part."""
        return self._directory / f"{hashlib.sha256(segment.name.encode()).hexdigest()[:32]}{_SUFFIX}"

    def fetch(self, segments: Sequence[IndexSegment], progress: Progress | None = None) -> None:
        """Copy what is missing or damaged.

        Raises:
            RetriableError: The disk is full; the message has the bytes that are needed and that are free.
            ConfigurationError: There is no permission to write there.
            FatalError: The store has other bytes than the version names, or none.
        """
        with wrap_errors(str(self._directory), "write"):
            missing = [segment for segment in segments if not self._has(segment)]
            needed, total = sum(each.size for each in missing), sum(each.size for each in segments)
            self._directory.mkdir(parents=True, exist_ok=True)
            if needed > shutil.disk_usage(self._directory).free:
                raise self._full(needed)
        done, size = len(segments) - len(missing), total - needed
        for segment in missing:
            if progress is not None:
                progress(done, len(segments), size, total)
            self._copy(segment)
            done, size = done + 1, size + segment.size
        if progress is not None and missing:
            progress(done, len(segments), size, total)

    def keep(self, segments: Iterable[IndexSegment]) -> None:
        """Remove all copies but those of these segments. Files that are open stay readable."""
        file_names = {self.path(segment).name for segment in segments}
        with wrap_errors(str(self._directory), "write"):
            for file in self._directory.iterdir():
                if file.name not in file_names and _OWN.fullmatch(file.name):
                    file.unlink(missing_ok=True)
                    self._checked.discard(file.name)

    def check_again(self) -> None:
        """Let the next `fetch` check the digest of each copy again, because reading one failed."""
        self._checked.clear()

    def _has(self, segment: IndexSegment) -> bool:
        """Return whether there is a copy with the right digest. A process checks it once, when it first needs it."""
        path = self.path(segment)
        if path.name in self._checked and path.exists():
            return True
        try:
            with open(open_regular(path), "rb") as file:
                if os.fstat(file.fileno()).st_size != segment.size:
                    return False
                same = hashlib.file_digest(file, "sha256").hexdigest() == segment.digest
        except (FileNotFoundError, ConfigurationError):  # the copy takes the place of a link
            return False
        if same:
            self._checked.add(path.name)
            path.touch()  # see `process_cache`
        return same

    def _copy(self, segment: IndexSegment) -> None:
        data = self._store.get(segment.name)
        if data is None:
            raise MissingSegmentError(f"the segment {segment.name} does not exist")
        if len(data) != segment.size or hashlib.sha256(data).hexdigest() != segment.digest:
            raise damaged_segment(segment.name, "it has not the bytes that its version names")
        path = self.path(segment)
        temporary = self._directory / f"{_NEW}{uuid.uuid4().hex}"
        try:
            with temporary.open("xb") as file:
                file.write(data)  # a copy that a crash leaves without bytes is found by its digest
            temporary.replace(path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            if error.errno in _FULL:
                raise self._full(segment.size) from error
            raise store_error(error, str(path), "write") from error
        self._checked.add(path.name)

    def _full(self, needed: int) -> RetriableError:
        free = shutil.disk_usage(self._directory).free
        return RetriableError(
            f"the disk of the cache {str(self._directory)!r} is full: {needed:,} bytes are needed, {free:,} are free",
            option="cache",
            advice="free some space, or choose a cache on a larger disk; until then, the version before answers",
        )


class MissingSegmentError(FatalError):
    """A segment is gone: a newer version has replaced it, and it was collected."""


def process_cache(store: StateStore) -> Path:
    """Return the directory for copies that jobs of a user on this machine share, and remove copies of yesterday.

    Raises:
        ConfigurationError: See `private_directory`.
        RetriableError: It cannot be written now.
    """
    shared = private_directory("forebay-index")
    directory = shared / hashlib.sha256(store.location.encode()).hexdigest()[:16]
    with wrap_errors(str(directory), "write"):
        directory.mkdir(exist_ok=True)
        for copy in (*shared.glob(f"*/*{_SUFFIX}"), *shared.glob(f"*/{_NEW}*")):
            with suppress(FileNotFoundError):  # another process removes it too
                if time.time() - copy.lstat().st_mtime > _UNUSED:
                    copy.unlink()
    return directory
