# SPDX-License-Identifier: Apache-2.0
"""Which of the files that a stream has listed are new to it: by path, by age, and by what they were when read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime

from forebay.errors import ConfigurationError, DataError
from forebay.framework.digests import Digest, SplitDigests
from forebay.framework.split import Json, Split
from forebay.sources.files.file_digests import digests_of, is_version, may_be_cleaned, name_key
from forebay.sources.files.split import FileSplit, is_version_id, path_of, version_id, version_mark
from forebay.stores.file_status import FileStatus, last_name
from forebay.stores.stored_file import changed

_log = logging.getLogger(__name__)

_DAY = 86_400 * 10**9
_BITS = 64
_MASK = (1 << _BITS) - 1
_SWEEPS = 32
"""How often the framework is asked to forget, while the horizon goes on by one age: it looks at all it remembers."""
_SPANS = 8
"""Parts of one age whose digests are forgotten together."""


class SeenFiles:
    """Tells new files from those that were read, and from those that are too old.

    What was read is in `known`, which the framework keeps; here is only a short mark of each, so that a listing can be
    compared with it at the cost of a look into a dictionary. What a stream without `stateLocation` has no room for is
    in `digests`: hashes of paths and versions. Called on one thread.

    Args:
        source: The format name, for errors.
        max_age: Nanoseconds by which a file may be older than the newest one that was taken; None = any.
        names_only: Files of one name are the same file, whatever their directories.
        on_changed: What to do with a file that is not as it was when it was read: error, ignore or reread.
    """

    def __init__(self, source: str, *, max_age: int | None, names_only: bool, on_changed: str) -> None:
        self._source = source
        self._max_age = max_age
        self._names_only = names_only
        self._on_changed = on_changed
        self._marks: dict[str, int] = {}
        self._names: set[str] = set()
        self._versions = 0
        self._newest: int | None = None
        self._oldest: int | None = None
        self._warned = False
        self._begun: set[str] = set()
        self._now = 0
        self._recognised: dict[str, int] = {}  # listed files that the digests know, and the listing before this one
        self._recognised_before: dict[str, int] = {}
        self._generation = 0
        self.digests = SplitDigests(self._digest, None if max_age is None else max(1, max_age // _SPANS))
        """Files that were read and are not in `known`."""
        self.horizon: int | None = None
        """Nanoseconds since 1970: what was changed before is passed over, for ever; None = nothing is."""

    def snapshot(self) -> Json:
        """Return what must not go back over a restart, and cannot be told from the files that are remembered."""
        state: dict[str, Json] = {} if self._newest is None else {"newest": self._newest, "horizon": self.horizon}
        if self._names_only:
            state["named"] = True
        return state or None

    def restore(self, state: Json) -> None:
        """Take back what `snapshot` gave, once the digests are there.

        Raises:
            ConfigurationError: Files count by their names from now on, and the digests are of paths.
        """
        if isinstance(state, Mapping):
            newest, horizon = state.get("newest"), state.get("horizon")
            self._newest = _later(self._newest, newest if isinstance(newest, int) else None)
            self.horizon = _later(self.horizon, horizon if isinstance(horizon, int) else None)
        named = isinstance(state, Mapping) and state.get("named") is True
        if self._names_only and self.digests and not named:
            raise self._names_unknown()

    def learn(self, known: Mapping[str, Split], now: float) -> None:
        """Take note of the files that were begun or read since the last call, and move the horizon on.

        Args:
            known: All files that were begun or read and not forgotten.
            now: Seconds since 1970.

        Raises:
            ConfigurationError: The clock is so far behind what it was that every new file would be passed over.
        """
        self._recognised_before, self._recognised = self._recognised, {}
        if self._generation != self.digests.generation:
            self._generation, self._recognised_before = self.digests.generation, {}
        for split_id in [each for each in self._marks if each not in known]:
            del self._marks[split_id]
            self._oldest = None
        moment = self._now = int(now * 1e9)
        for split_id in known:
            if split_id not in self._marks:
                split = known[split_id]
                if isinstance(split, FileSplit):
                    self._marks[split_id] = _mark(split.status)
                    if split.position is not None:
                        self._begun.add(split_id)
                    self._oldest = None if self._oldest is None else min(self._oldest, split.modified_at)
                    self._count(split, moment)
        if self._oldest is None:
            self._oldest = min((mark >> _BITS for mark in self._marks.values()), default=None)
        self._versions = sum(1 for split_id in self._marks if is_version_id(split_id))
        self._names = {last_name(path_of(split_id)) for split_id in self._marks} if self._names_only else set()
        self._move_on(moment)

    def begun(self, known: Mapping[str, Split]) -> list[FileSplit]:
        """Return the files that were read in part."""
        found = [known.get(split_id) for split_id in self._begun]
        there = [split for split in found if isinstance(split, FileSplit) and split.position is not None]
        self._begun = {split.id for split in there}
        return there

    def id_of_new(self, file: FileStatus, known: Mapping[str, Split]) -> str | None:
        """Return the id of the split that reads a listed file; None if it was read, or is not to be read.

        Raises:
            DataError: It has changed since it was read, and that is an error.
        """
        if not file.size or (self.horizon is not None and file.modified_at < self.horizon):
            return None
        mark = self._marks.get(file.path)
        if mark is None and self._is_namesake(file):
            return None
        if mark is None and self.digests:
            return self._by_digest(file)
        if mark is None:
            return None if self._is_read_version(file) else file.path
        if mark == _mark(file):
            return None
        return self._changed(file, known[file.path])

    def left_behind(self, file: FileStatus) -> bool:
        """Whether a listed file is known by its digest, as it is now, and may be cleaned."""
        mark = self.digests.mark(file.path)
        return mark is not None and may_be_cleaned(mark) and is_version(mark, file)

    def sweep(self) -> bool:
        """Whether enough of what is remembered lies before the horizon that it is worth forgetting."""
        if self._oldest is None or self.horizon is None:
            return False
        return self._oldest < self.horizon - (self._max_age or 0) // _SWEEPS

    def once_each(self, splits: list[FileSplit]) -> list[FileSplit]:
        """Leave out all but the first of the files that count as the same one."""
        if not self._names_only:
            return splits
        first: dict[str, FileSplit] = {}
        for split in splits:
            first.setdefault(last_name(split.path), split)
        return list(first.values())

    def _move_on(self, now: int) -> None:
        """Move the horizon on, and forget the digests that are wholly before it."""
        if self._max_age is not None and self._newest is not None:
            self.horizon = _later(self.horizon, self._newest - self._max_age)
            if self.horizon is not None:
                if self.horizon > now:
                    raise self._clock_went_back(self.horizon, now)
                self.digests.expire(self.horizon)

    def _digest(self, split: Split) -> list[Digest]:
        """Return what recognises a file that was read."""
        if not isinstance(split, FileSplit):
            return []
        if split.id not in self._marks:
            self._count(split, self._now)  # it was begun and read since the last listing
        return digests_of(split, named=self._names_only)

    def _is_namesake(self, file: FileStatus) -> bool:
        """Whether another file that counts as the same one was read."""
        if not self._names_only:
            return False
        name = last_name(file.path)
        if name in self._names:
            return True
        return self.digests.mark(name_key(name)) is not None and self.digests.mark(file.path) is None

    def _is_read_version(self, file: FileStatus) -> bool:
        """Whether this version of a file was read after an earlier one."""
        if not self._versions and not self.digests:
            return False
        split_id = version_id(file)
        return split_id in self._marks or self.digests.mark(split_id) is not None

    def _by_digest(self, file: FileStatus) -> str | None:
        """Do what `id_of_new` does for a file that is not in `known`."""
        now = _mark(file)
        if self._recognised_before.get(file.path) != now:
            mark = self.digests.mark(file.path)
            if mark is None and not self._is_read_version(file):
                return file.path
            if mark is not None and not is_version(mark, file):
                split_id = self._choice(file, None)
                if split_id is not None:
                    return split_id
        self._recognised[file.path] = now
        return None

    def _count(self, split: FileSplit, now: int) -> None:
        if split.modified_at <= now + _DAY:
            # Not beyond now: a clock that is fast by less than `maxFileAge` would hide what is written meanwhile.
            self._newest = _later(self._newest, min(split.modified_at, now))
        elif not self._warned:
            self._warned = True
            _log.warning(
                "%s: the time of change of %s lies in the future; it does not count when maxFileAge is reckoned from "
                "the newest file, or it would make all others too old",
                self._source,
                split.path,
            )

    def _changed(self, file: FileStatus, split: Split) -> str | None:
        if not isinstance(split, FileSplit) or split.status.same_file(file):
            self._marks[split.id] = _mark(file)  # the store has begun, or ceased, to give marks of its own
            return None
        return self._choice(file, split.status)

    def _choice(self, file: FileStatus, then: FileStatus | None) -> str | None:
        """Return the id of the split that reads a file which has changed; None if it is not to be read.

        Raises:
            DataError: That is an error.
        """
        if self._on_changed == "ignore" or self._is_read_version(file):
            return None
        if self._on_changed == "reread":
            return version_id(file)
        raise self.altered(then, file, "reread to read such files once more, whole, or with ignore to leave them")

    def _names_unknown(self) -> ConfigurationError:
        return ConfigurationError(
            "the stream has read files while fileNameOnly was off, and remembers hashes of their paths alone",
            source=self._source,
            option="fileNameOnly",
            advice="leave it off, as before, or start with a new checkpoint location, and with modifiedAfter so that "
            "what was read before does not come again",
        )

    def _clock_went_back(self, horizon: int, now: int) -> ConfigurationError:
        """Return the error for a stream that would pass over all that is written now.

        The horizon cannot go back with the clock: what lay before it has been forgotten, and would come twice.
        """
        return ConfigurationError(
            f"files that are written now would be passed over: by the clock of this machine it is {_shown(now)}, and "
            f"the stream, which has read files by a clock that was ahead, takes none from before {_shown(horizon)}",
            source=self._source,
            option="maxFileAge",
            advice="if the clock is wrong now, set it right and start again; if it was wrong then, start with a new "
            "checkpoint location, and with modifiedAfter so that what was read before does not come again",
        )

    def altered(self, then: FileStatus | None, now: FileStatus, choice: str) -> DataError:
        """Return the error for a file that has changed since it was read, or read in part.

        Args:
            then: The file as it was read; None if only its digest is left.
            now: The file as it is listed.
            choice: What the user can set `onChangedFile` to.
        """
        return DataError(
            changed(then, now, "read"),
            source=self._source,
            split=now.path,
            option="onChangedFile",
            advice=f"write new files instead of changing old ones; restart with onChangedFile={choice}",
        )


def split_of(
    file: FileStatus, split_id: str, partitions: tuple[tuple[str, str], ...], *, clean: bool = False
) -> FileSplit:
    """Return the split that reads a listed file from its start."""
    return FileSplit(
        split_id,
        0,
        size=file.size,
        modified_at=file.modified_at,
        etag=file.etag,
        partitions=partitions,
        mark=None if split_id == file.path else version_mark(file),
        clean=clean or None,
    )


def _shown(nanoseconds: int) -> str:
    return f"{datetime.fromtimestamp(nanoseconds // 10**9, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _later(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


def _mark(file: FileStatus) -> int:
    """Return a small value for a version of a file, good for as long as this process lives; the time comes first."""
    return file.modified_at << _BITS | hash((file.size, file.etag)) & _MASK
