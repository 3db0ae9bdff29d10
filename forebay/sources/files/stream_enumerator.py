# SPDX-License-Identifier: Apache-2.0
"""Lists files for a stream, again and again: what is new, in order, and how far a budget of bytes reaches into it."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from forebay.clock import Clock
from forebay.errors import ConfigurationError, DataError
from forebay.framework.discovery import Discovered
from forebay.framework.split import Json, Position, Split
from forebay.sources.files import catalog
from forebay.sources.files.cleaning import Cleaner
from forebay.sources.files.enumerator import FileEnumerator
from forebay.sources.files.file_tracker import SeenFiles, split_of
from forebay.sources.files.format_hint import format_of_paths
from forebay.sources.files.listing.file_index import FileIndex
from forebay.sources.files.row_groups import RowGroups
from forebay.sources.files.scan import FileScan
from forebay.sources.files.split import FileSplit, place_of
from forebay.stores.file_status import FileStatus

_log = logging.getLogger(__name__)

_FOOTERS = 16
"""Files whose row groups are remembered: those at which a micro-batch stopped."""


class FileStreamEnumerator(FileEnumerator):
    """Every discovery lists all files that were not begun, oldest first, or newest first if the user says so.

    A file is read from its position to its own end, wherever that is; a budget of bytes cuts it at the borders of its
    format, so that a big one spans several micro-batches. The last of them has no end of its own: it is what is left.

    Args:
        source: What to list.
        clock: The time of day.
    """

    in_order = True
    refresh_floor = 0.05

    def __init__(self, source: FileScan, clock: Clock) -> None:
        super().__init__(source)
        self._clock = clock
        age = int(source.max_file_age.total_seconds() * 1e9)
        # Newest first, capped: old files wait for long, and must not grow too old meanwhile.
        self._seen = SeenFiles(
            source.name,
            max_age=None if source.latest_first else age,
            names_only=source.file_name_only,
            on_changed=source.on_changed_file,
        )
        self.digests = self._seen.digests
        self._cleaner = Cleaner(source)
        self._row_groups: dict[str, RowGroups] = {}
        self._waiting: dict[str, FileSplit] = {}
        self._given_up: frozenset[str] = frozenset()
        self._cleans = source.clean_source != "off"
        self._looked = False
        self._cleaned = False

    def restore_state(self, state: Json) -> None:
        """Go on from the horizon of the last run."""
        self._seen.restore(state)

    def discover(self, known: Mapping[str, Split], first: bool) -> Discovered:
        """List all files, and return those that were not begun, in the order they are to be read in.

        Raises:
            RetriableError: A store did not answer, or what was there is not there now.
            ConfigurationError: An option does not fit what there is.
            DataError: A file has changed since it was read, and that is an error.
        """
        index = self._source.list(repeated=True, begun=not first)
        self._cleaner.check(index)
        self._warn_left_out(index)
        self._warn_emptied(index)
        self._seen.learn(known, self._clock.now())
        self._clean_left_behind(index)
        splits = self._new(index, known)
        self._check_format(splits)
        horizon = self._seen.horizon if self._seen.sweep() else None
        return Discovered(
            [*self._going_on(index, known), *splits],
            None if horizon is None else partial(_too_old, horizon=horizon),
            self._seen.snapshot(),
        )

    def size(self, split: Split) -> int | None:
        """Return the bytes from the position on, to the end; of a file of rows all, unless its footer was read."""
        if not isinstance(split, FileSplit):
            return None
        if split.weight is not None:
            return split.weight
        start, end = _bounds(split)
        if not self._counts_rows(split):
            return max(0, (split.size if end is None else end) - start)
        groups = self._row_groups.get(split.id)
        return split.size if groups is None or not (start or end) else groups.bytes_between(start, end)

    def advance(self, split: Split, *, rows: int | None = None, byte_budget: int | None = None) -> Position | None:
        """Return how far a budget of bytes reaches; None where a file cannot be cut, or the rest is not cut any more.

        For rows always None: the number of rows of a file is not known before it is read.
        """
        if byte_budget is None or not isinstance(split, FileSplit):
            return None
        start, end = _bounds(split)
        if not self._counts_rows(split):
            to = start + byte_budget
            whole = to >= (split.size if end is None else end)
            return None if whole or not self._format.sliceable(self._source.stored(split.status)) else to
        groups = self._groups(split)
        return None if groups is None else groups.reach(start, byte_budget)

    def slices(self, split: Split, count: int) -> Sequence[Split]:
        """Cut a file, or the part of it that a micro-batch reads. What is gone or damaged is left to the reader."""
        if not isinstance(split, FileSplit):
            return [split]
        self._source.learn_format(split.path)
        try:
            if not split.position and split.end is None:
                return super().slices(split, count)
            return self._part_slices(split, count)
        except DataError:
            return [split]

    def vanished(self, splits: Sequence[Split]) -> bool:
        """Drop the rest of files that changed when they were read in part, where the new version is read whole."""
        return self._given_up.issuperset(split.id for split in splits)

    def finished(self, splits: Sequence[Split]) -> None:
        """Delete or archive what was read to its end, if the user wants it, and wanted it when the file was begun."""
        if self._cleans:  # after a restart these may be very many
            self._cleaner.clean([split for split in splits if isinstance(split, FileSplit) and split.clean])

    def _new(self, index: FileIndex, known: Mapping[str, Split]) -> list[FileSplit]:
        """Return the files that were not begun, in order. Those that waited already are not made anew."""
        names = index.partition_schema.names
        before, self._waiting = self._waiting, {}
        for file, texts in zip(index.files, index.partition_texts, strict=True):
            split_id = self._seen.id_of_new(file, known)
            if split_id is None:
                continue
            split = before.get(split_id)
            if split is None or not _still(split, file) or len(split.partitions) != len(names):
                split = split_of(file, split_id, tuple(zip(names, texts, strict=True)), clean=self._cleans)
            self._waiting[split_id] = split
        splits = sorted(self._waiting.values(), key=_age, reverse=self._source.latest_first)
        return self._seen.once_each(splits)

    def _clean_left_behind(self, index: FileIndex) -> None:
        """Clean, when a run begins, what an earlier one read and failed to clean, and only digests are left of."""
        if self._cleans and not self._cleaned and self.digests:
            left = [file for file in index.files if self._seen.left_behind(file)]
            self._cleaner.clean([split_of(file, file.path, (), clean=True) for file in left])
        self._cleaned = True

    def _going_on(self, index: FileIndex, known: Mapping[str, Split]) -> list[FileSplit]:
        """Return the files that were read in part, but for those that changed and are read anew.

        Raises:
            DataError: One has changed, and is not to be read anew; or is gone, and that is an error.
        """
        begun = self._seen.begun(known)
        if not begun:
            return []
        listed = {file.path: file for file in index.files}
        altered = []
        # Before a micro-batch is planned that nobody could read, and that would be replayed for ever.
        for split in begun:
            now = listed.get(split.path) or self._source.stored(split.status).now()  # or read under an earlier `path`
            if now is None and not self._source.ignore_missing_files:
                raise self._gone(split)
            if now is not None and not split.status.same_file(now):
                if self._source.on_changed_file != "reread":
                    raise self._seen.altered(split.status, now, "reread")
                altered.append(split)
        self._given_up = frozenset(split.id for split in altered)
        return [split for split in begun if split.id not in self._given_up]

    def _gone(self, split: FileSplit) -> DataError:
        return DataError(
            f"the file {split.path!r} is gone, and was read only in part",
            source=self._source.name,
            split=split.path,
            position=split.position,
            option="ignoreMissingFiles",
            advice="put it back, or restart with ignoreMissingFiles=true to go on without the rest of it",
        )

    def _warn_emptied(self, index: FileIndex) -> None:
        """Say once that a path leads nowhere, where a run begins so: its files may be read, or it may be misspelt."""
        if index.emptied and not self._looked:
            _log.warning(
                "%s: there is nothing below %s now; files that come there will be read",
                self._source.name,
                ", ".join(index.emptied),
            )
        self._looked = True

    def _check_format(self, new: Sequence[FileSplit]) -> None:
        """Refuse files of another format than that which the first ones told."""
        if not new:
            return
        self._format  # noqa: B018 - files of no one format, and wrong options, are errors of planning
        if (
            self._source.file_format is not None
            or format_of_paths(self._source.all_paths(), self._source.name) is not None
        ):
            return
        told = self._source.format_name()
        other = next((file for file in new if catalog.format_of_path(file.path) != told), None)
        if other is not None:
            raise ConfigurationError(
                f"the files are {told}, as the first ones told, and {other.path!r} is not, by its suffix",
                source=self._source.name,
                split=other.path,
                option="fileFormat",
                advice=f"leave it out with pathGlobFilter, or give fileFormat={told} if it is one nevertheless",
            )

    def _counts_rows(self, split: FileSplit) -> bool:
        self._source.learn_format(split.path)
        return self._source.format_name() in catalog.COUNT_ROWS

    def _groups(self, split: FileSplit) -> RowGroups | None:
        """Return where a file can be cut; None for one that is gone or damaged, which the reader will say."""
        if split.id not in self._row_groups:
            try:
                groups = RowGroups.of(self._source.stored(split.status))
            except DataError:
                return None
            while len(self._row_groups) >= _FOOTERS:
                del self._row_groups[next(iter(self._row_groups))]
            self._row_groups[split.id] = groups
        return self._row_groups[split.id]

    def _part_slices(self, split: FileSplit, count: int) -> Sequence[Split]:
        stored = self._source.stored(split.status)
        start, end = _bounds(split)
        if split.position not in (None, start):
            return [split]  # it begins between the rows of a block, which no cut of the file may separate
        size = self.size(split) or 0
        target = max(1, min(-(-size // max(1, count)), self._source.max_partition_bytes))
        if target >= size or not self._format.sliceable(stored):
            return [split]
        if self._counts_rows(split):
            borders: Sequence[int] = self._format.borders(stored, target)
        else:
            borders = range(start + target, split.size if end is None else end, target)
        cuts = [start, *(cut for cut in borders if start < cut and (end is None or cut < end)), end]
        weight = size // (len(cuts) - 1)
        # `block` stays that of the whole file: its parts are cut anew in each micro-batch.
        return [replace(split, position=one, end=two, weight=weight) for one, two in itertools.pairwise(cuts)]


def _age(split: FileSplit) -> tuple[int, str]:
    return split.modified_at, split.id


def _still(split: FileSplit, file: FileStatus) -> bool:
    return (split.size, split.modified_at, split.etag) == (file.size, file.modified_at, file.etag)


def _too_old(split: Split, *, horizon: int) -> bool:
    return isinstance(split, FileSplit) and split.modified_at < horizon


def _bounds(split: FileSplit) -> tuple[int, int | None]:
    return place_of(split.position)[0], split.end if isinstance(split.end, int) else None
