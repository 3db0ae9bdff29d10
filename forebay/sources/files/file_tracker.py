# SPDX-License-Identifier: Apache-2.0
"""Tracks the files that a stream has read: by path, age and version."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime

from forebay.errors import ConfigurationError, DataError
from forebay.framework.digests import Digest, SplitDigests, hash_of
from forebay.framework.split import Json, Split
from forebay.sources.files.split import FileSplit, path_of, version_id
from forebay.stores.file_status import GENERATION, FileStatus, changed
from forebay.stores.paths import last_name

# -- Digests (short hashes) of files that a stream has read, because offsets have no room for all splits.
#
# The key of a digest is the file's path. The mark of a digest identifies the version of the file: two bits for the
# kind of version, one for `cleanSource`, and a hash of 29 bits.


_TIME, _ETAG, _GENERATION = 0, 1, 2
_KIND = 3
_CLEAN = 4
_SHIFT = 3
_HASH = (1 << 29) - 1
"""Keeps 29 bits: a rewritten file has the same hash as the old one with a probability of 2 in 10^9."""


def digests_of(split: FileSplit, *, named: bool) -> list[Digest]:
    """Return the digests of a file.

    With `named`, a second digest recognises files of the same name in any directory.
    """
    mark = _digest_mark(split.status) | (_CLEAN if split.clean else 0)
    digests = [Digest(split.id, mark, split.modified_at)]
    return [*digests, Digest(name_key(last_name(split.path)), 0, split.modified_at)] if named else digests


def name_key(name: str) -> str:
    """Return the digest key for the name of a file. The key differs from every path."""
    return f"\0name:{name}"


def is_version(mark: int, file: FileStatus) -> bool:
    """Return whether a file is still the version for which the digest with this mark was made."""
    now, kind = _digest_mark(file), mark & _KIND
    if kind != now & _KIND:
        if kind != _TIME:
            return True  # the store no longer reports this kind of version
        now = _digest_mark(file, by_time=True)
    return mark & ~_CLEAN == now


def may_be_cleaned(mark: int) -> bool:
    """Return whether `cleanSource` was on when the stream began to read the file with this mark."""
    return bool(mark & _CLEAN)


def _digest_mark(file: FileStatus, *, by_time: bool = False) -> int:
    if file.etag is None or by_time:
        kind, text = _TIME, f"{file.size} {file.modified_at}"
    else:
        kind, text = _GENERATION if file.etag.startswith(GENERATION) else _ETAG, f"{file.size} {file.etag}"
    return (hash_of(text) & _HASH) << _SHIFT | kind


# -- Tracks the files that a stream has read: by path, age and version.


_log = logging.getLogger(__name__)

_DAY = 86_400 * 10**9
_BITS = 64
_MASK = (1 << _BITS) - 1
_SWEEPS = 32
"""Maximum `sweep` requests while the horizon moves by `max_age`: each makes the framework scan all known splits."""
_SPANS = 8
"""Number of digest groups per `max_age`. A group is dropped as a whole."""
_NEW_CHECKPOINT = "start with a new checkpoint location, and set modifiedAfter so that earlier files are not read again"


class FileTracker:
    """Decides which listed files are new, were already read, or are too old. Called on one thread.

    The framework keeps the splits that the stream began to read or has read (`known`). The tracker keeps a short mark
    of each known split, so each listed file costs one lookup in a dictionary. Files whose splits do not fit into
    offsets are in `digests`.

    Args:
        source: The format name, for errors.
        max_age: The option `maxFileAge` in nanoseconds; None = files of any age are read.
        names_only: The option `fileNameOnly`.
        on_changed: The option `onChangedFile`.
    """

    def __init__(self, source: str, *, max_age: int | None, names_only: bool, on_changed: str) -> None:
        self._source = source
        self._max_age = max_age
        self._names_only = names_only
        self._on_changed = on_changed
        self._marks: dict[str, int] = {}
        self._names: set[str] = set()
        self._has_versions = self._has_digests = False
        self._newest: int | None = None
        self._oldest: int | None = None
        self._warned = False
        self._begun: set[str] = set()
        self._now = 0
        # Marks of files that the digests recognised in this listing and in the previous one; cached as hashing is slow.
        self._recognised: dict[str, int] = {}
        self._recognised_before: dict[str, int] = {}
        self._generation = 0
        self.digests = SplitDigests(self._digest, None if max_age is None else max(1, max_age // _SPANS))
        """Digests of files that were read and are no longer in `known`."""
        self.horizon: int | None = None
        """Nanoseconds since 1970. Files changed earlier are skipped forever; None to skip none."""

    def never_skip(self) -> None:
        """Stop moving the horizon: from now on, only files older than the present horizon are skipped."""
        self._max_age = None

    def snapshot(self) -> Json:
        """Return the state that a restart needs in addition to the known splits."""
        state: dict[str, Json] = {} if self._newest is None else {"newest": self._newest, "horizon": self.horizon}
        if self._names_only:
            state["named"] = True
        return state or None

    def restore(self, state: Json) -> None:
        """Restore the state that `snapshot` returned. Called after the digests are restored.

        Raises:
            ConfigurationError: `names_only` was off before the restart, so the digests have no names.
        """
        stored = state if isinstance(state, Mapping) else {}
        newest, horizon = stored.get("newest"), stored.get("horizon")
        self._newest = _later(self._newest, newest if isinstance(newest, int) else None)
        self.horizon = _later(self.horizon, horizon if isinstance(horizon, int) else None)
        if self._names_only and self.digests and stored.get("named") is not True:
            raise ConfigurationError(
                "the stream has read files with fileNameOnly=false, and its checkpoint keeps only hashes of their "
                "whole paths",
                source=self._source,
                option="fileNameOnly",
                advice=f"set fileNameOnly=false, as before, or {_NEW_CHECKPOINT}",
            )

    def learn(self, known: Mapping[str, Split], now: float) -> None:
        """Take over the known splits: add new ones, drop forgotten ones, and move the horizon.

        The horizon is the time of change before which files are skipped and forgotten.

        Args:
            known: By id, the splits that the stream began to read or has read, and that are not forgotten.
            now: Seconds since 1970.

        Raises:
            ConfigurationError: The clock is so far behind that every new file would be skipped.
        """
        self._recognised_before, self._recognised = self._recognised, {}
        if self._generation != self.digests.generation:
            self._generation, self._recognised_before = self.digests.generation, {}
        for split_id in [each for each in self._marks if each not in known]:
            del self._marks[split_id]
            self._oldest = None
        self._now = int(now * 1e9)
        for split_id in known:
            if split_id not in self._marks:
                split = known[split_id]
                if isinstance(split, FileSplit):
                    self._marks[split_id] = _mark(split.status)
                    self._has_versions |= split.mark is not None
                    if split.position is not None:
                        self._begun.add(split_id)
                    self._oldest = None if self._oldest is None else min(self._oldest, split.modified_at)
                    self._count(split)
        if self._oldest is None:
            self._oldest = min((mark >> _BITS for mark in self._marks.values()), default=None)
        self._names = {last_name(path_of(split_id)) for split_id in self._marks} if self._names_only else set()
        self._move_horizon()
        self._has_digests = bool(self.digests)  # cached, because it is slow to compute for each file

    def begun(self, known: Mapping[str, Split]) -> list[FileSplit]:
        """Return the splits of files that the stream has read only in part."""
        begun = [known.get(split_id) for split_id in self._begun]
        there = [split for split in begun if isinstance(split, FileSplit) and split.position is not None]
        self._begun = {split.id for split in there}
        return there

    def id_of_new(self, file: FileStatus, known: Mapping[str, Split]) -> str | None:
        """Return the id of the split that reads a listed file; None if it was already read or must be skipped.

        Raises:
            DataError: The file has changed since it was read, and `onChangedFile` makes that an error.
        """
        if not file.size or (self.horizon is not None and file.modified_at < self.horizon):
            return None
        mark = self._marks.get(file.path)
        if mark is None:
            if self._is_namesake(file):
                return None
            if self._has_digests:
                return self._id_by_digest(file)
            return None if self._is_read_version(file) else file.path
        if mark == _mark(file):
            return None
        split = known[file.path]
        if not isinstance(split, FileSplit) or split.status.same_file(file):
            self._marks[split.id] = _mark(file)  # the same version: the store has begun or ceased to report ETags
            return None
        return self._id_of_changed(file, split.status)

    def is_uncleaned(self, file: FileStatus) -> bool:
        """Return whether the digests say that this version of a listed file was read and may be cleaned."""
        mark = self.digests.mark(file.path)
        return mark is not None and may_be_cleaned(mark) and is_version(mark, file)

    def sweep(self) -> bool:
        """Return whether the oldest known file is so far before the horizon that old files should be forgotten now."""
        if self._oldest is None or self.horizon is None:
            return False
        return self._oldest < self.horizon - (self._max_age or 0) // _SWEEPS

    def once_each(self, splits: list[FileSplit]) -> list[FileSplit]:
        """With `fileNameOnly`, return only the first split for each file name; else return all splits."""
        if not self._names_only:
            return splits
        first: dict[str, FileSplit] = {}
        for split in splits:
            first.setdefault(last_name(split.path), split)
        return list(first.values())

    def changed_error(self, then: FileStatus | None, now: FileStatus, choice: str) -> DataError:
        """Return the error for a file that has changed since the stream read it or a part of it.

        Args:
            then: The file as it was read; None if only its digest is known.
            now: The file as it is listed.
            choice: The end of the advice: the value of `onChangedFile` to recommend, possibly with its effect.
        """
        return DataError(
            changed(then, now, "read"),
            source=self._source,
            split=now.path,
            option="onChangedFile",
            advice=f"write new files instead of changing old ones; restart with onChangedFile={choice}",
        )

    def _move_horizon(self) -> None:
        """Move the horizon, the time of change before which files are skipped, and forget the digests of older files.

        If the clock is set back, the horizon stays, because the files before it are forgotten and would be read twice.
        """
        if self._max_age is None or self._newest is None:
            return
        horizon = self._newest - self._max_age
        self.horizon = horizon = horizon if self.horizon is None else max(horizon, self.horizon)
        if horizon > self._now:
            raise ConfigurationError(
                f"new files would be skipped: the clock of this machine shows {_shown(self._now)}, but the stream "
                f"skips files from before {_shown(horizon)}, because it has read files while the clock was ahead",
                source=self._source,
                option="maxFileAge",
                advice="if the clock is wrong now, correct it and restart the query; if the clock was wrong before, "
                + _NEW_CHECKPOINT,
            )
        self.digests.expire(horizon)

    def _digest(self, split: Split) -> list[Digest]:
        if not isinstance(split, FileSplit):
            return []
        if split.id not in self._marks:
            self._count(split)  # the stream began and finished this file since the last listing
        return digests_of(split, named=self._names_only)

    def _is_namesake(self, file: FileStatus) -> bool:
        """Return whether `fileNameOnly` is set and another file with the same name was read."""
        if not self._names_only:
            return False
        name = last_name(file.path)
        if name in self._names:
            return True
        return self.digests.mark(name_key(name)) is not None and self.digests.mark(file.path) is None

    def _is_read_version(self, file: FileStatus) -> bool:
        """Return whether this version of a file was already read again after a change (`onChangedFile=reread`)."""
        if not self._has_versions and not self._has_digests:
            return False
        split_id = version_id(file)
        return split_id in self._marks or self.digests.mark(split_id) is not None

    def _id_by_digest(self, file: FileStatus) -> str | None:
        """Return the result of `id_of_new` for a file that is not in `known`. Uses the file's digest."""
        now = _mark(file)
        if self._recognised_before.get(file.path) != now:
            mark = self.digests.mark(file.path)
            if mark is None and not self._is_read_version(file):
                return file.path
            if mark is not None and not is_version(mark, file):
                split_id = self._id_of_changed(file, None)
                if split_id is not None:
                    return split_id
        self._recognised[file.path] = now
        return None

    def _id_of_changed(self, file: FileStatus, then: FileStatus | None) -> str | None:
        """Return the id of the split that reads a changed file; None if it must not be read.

        `then` is the file as it was read; None if only its digest is known.
        """
        if self._on_changed == "ignore" or self._is_read_version(file):
            return None
        if self._on_changed == "reread":
            return version_id(file)
        raise self.changed_error(
            then, file, "reread to read changed files again from the start, or with ignore to skip changed files"
        )

    def _count(self, split: FileSplit) -> None:
        """Update the time of the newest file that was read, from which `maxFileAge` is counted."""
        if split.modified_at <= self._now + _DAY:
            # At most now: else a file time in the future would move the horizon so far that later files are skipped.
            self._newest = _later(self._newest, min(split.modified_at, self._now))
        elif not self._warned:
            self._warned = True
            _log.warning(
                "%s: the modification time of %s is in the future; maxFileAge does not count from this file, because "
                "all other files would be too old",
                self._source,
                split.path,
            )


def _shown(nanoseconds: int) -> str:
    return f"{datetime.fromtimestamp(nanoseconds // 10**9, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _later(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _mark(file: FileStatus) -> int:
    """Return an int for a version of a file, valid only in this process. Its upper bits are the modification time."""
    return file.modified_at << _BITS | hash((file.size, file.etag)) & _MASK
