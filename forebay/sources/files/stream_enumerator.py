# SPDX-License-Identifier: Apache-2.0
"""The enumerator of a stream of files: finds new files, orders them, and cuts them at a byte limit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from forebay.clock import Clock
from forebay.errors import ConfigurationError, DataError
from forebay.formats.values.dates import Zone, session_zone
from forebay.framework.discovery import Discovered
from forebay.framework.split import Json, Position, Split
from forebay.sources.files import catalog
from forebay.sources.files.cleaning import Cleaner
from forebay.sources.files.enumerator import FileEnumerator, bounds
from forebay.sources.files.file_index import FileIndex
from forebay.sources.files.file_tracker import FileTracker
from forebay.sources.files.partitions import partition_value
from forebay.sources.files.scan import OPTION, FileEventTime, FileScan, parse_event_time
from forebay.sources.files.split import FileSplit
from forebay.stores.file_status import FileStatus

if TYPE_CHECKING:  # a stream of other files does not load Parquet
    from forebay.sources.files.parquet_footers import RowGroups

_log = logging.getLogger(__name__)

_FOOTERS = 16
"""Maximum number of cached footers. A footer is cached if a micro-batch stopped inside the file."""

_AGELESS = "ageless"
"""Key in the checkpointed state which records that `maxFileAge` no longer applies to the query."""


class FileStreamEnumerator(FileEnumerator):
    """Discovers the files of a stream. Each discovery returns all files that the stream has not finished reading.

    The oldest files come first, by time of change or by `fileEventTime`; with `latestFirst` the newest.

    A byte limit cuts a file where the file format allows, so a big file spans several micro-batches. The last of these
    micro-batches reads to the end of the file.
    """

    in_order = True
    refresh_floor = 0.05

    def __init__(self, source: FileScan, clock: Clock) -> None:
        super().__init__(source)
        self._clock = clock
        age = int(source.max_file_age.total_seconds() * 1e9)
        self._times = FirstEventTimes.of_source(source)
        # If the oldest files do not come first, they wait long, and `maxFileAge` must not skip them meanwhile.
        self._ageless = self._times is not None and not self._times.by_age
        self._tracker = FileTracker(
            source.name,
            max_age=None if source.latest_first or self._ageless else age,
            names_only=source.file_name_only,
            on_changed=source.on_changed_file,
        )
        self.digests = self._tracker.digests
        self._cleaner = Cleaner(source)
        self._row_groups: dict[str, RowGroups] = {}
        self._waiting: dict[str, FileSplit] = {}
        self._dropped: frozenset[str] = frozenset()
        self._cleans = source.clean_source != "off"
        self._first = True

    def restore_state(self, state: Json) -> None:
        """Restore the state of the previous run: the horizon before which files are skipped."""
        self._tracker.restore(state)
        if isinstance(state, Mapping) and state.get(_AGELESS):
            self._ageless = True
            self._tracker.never_skip()

    def discover(self, known: Mapping[str, Split], first: bool) -> Discovered:
        """List all files; return those read only in part, then the files not begun, in reading order.

        Raises:
            RetriableError: A store did not answer, or a path that an earlier listing found is missing.
            ConfigurationError: An option does not fit the files.
            DataError: A file has changed since it was read, and `onChangedFile` makes that an error.
        """
        tracker = self._tracker
        index = self._source.list(repeated=True, begun=not first)
        self._cleaner.check(index)
        self._warn_left_out(index)
        if self._first:
            self._warn_emptied(index)
        tracker.learn(known, self._clock.now())
        if self._first and self._cleans and self.digests:
            # Files that an earlier run read but failed to clean, and of which only digests are left.
            left = [FileSplit.of(file, (), clean=True) for file in index.files if tracker.is_uncleaned(file)]
            self._cleaner.clean(left)
        self._first = False
        splits = self._new(index, known)
        self._check_format(splits)
        horizon = tracker.horizon if tracker.sweep() else None
        return Discovered(
            [*self._begun(index, known), *splits],
            None if horizon is None else partial(_too_old, horizon=horizon),
            self._snapshot(),
        )

    def _snapshot(self) -> Json:
        state = self._tracker.snapshot()
        # Once files were read by event time, old files may remain unread, even if a restart changes the option.
        return {**(state if isinstance(state, Mapping) else {}), _AGELESS: True} if self._ageless else state

    def size(self, split: Split) -> int | None:
        """Return the bytes from the split's position to its end; all bytes for Parquet without a cached footer."""
        if not isinstance(split, FileSplit):
            return None
        return self._bytes(split) if split.weight is None else split.weight

    def advance(self, split: Split, *, rows: int | None = None, byte_budget: int | None = None) -> Position | None:
        """Return the position after at most `byte_budget` bytes; None for the end of the split.

        The result is None for a file that cannot be cut, and for every limit of `rows`: the number of rows of a file is
        not known before the file is read.
        """
        if byte_budget is None or not isinstance(split, FileSplit):
            return None
        start, end = bounds(split)
        if not self._counts_rows(split):
            to = start + byte_budget
            whole = to >= (split.size if end is None else end)
            return None if whole or not self._format.sliceable(self._source.stored(split.status)) else to
        groups = self._groups(split)
        return None if groups is None else groups.advance(start, byte_budget)

    def event_times(self, splits: Sequence[Split], column: str) -> Mapping[str, int]:
        """Return the first event times of files by split id, in µs since 1970.

        The option `fileEventTime` says where the event times come from.

        Raises:
            ConfigurationError: The option is not set, does not fit a file, or names another column.
            RetriableError: A store did not answer.
        """
        times = self._times
        if times is None or (times.origin.kind == "footer" and column != times.origin.argument):
            unset = "is not set" if times is None else f"names the column {times.origin.argument!r}, not {column!r}"
            raise ConfigurationError(
                f"alignmentMaxDrift needs the event times of files, but fileEventTime {unset}",
                source=self._source.name,
                option="fileEventTime",
                advice="set fileEventTime to footer:<column> (Parquet), partition:<column>, path:<pattern> or "
                "modified, or remove alignmentMaxDrift"
                if times is None
                else "name the same column in eventTimeColumn and fileEventTime, or remove eventTimeColumn",
            )
        return times.first_times([split for split in splits if isinstance(split, FileSplit)])

    def slices(self, split: Split, count: int) -> Sequence[Split]:
        """Cut a file, or the part of it that a micro-batch reads, into slices.

        Missing and damaged files are not cut; the split reader reports them.
        """
        if not isinstance(split, FileSplit):
            return [split]
        self._source.learn_format(split.path)
        try:
            return super().slices(split, count)
        except DataError:
            return [split]

    def vanished(self, splits: Sequence[Split]) -> bool:
        """Return True if all these splits are of files that changed after a part was read.

        The rest of the old version is dropped, because the new version is read from its start.
        """
        return self._dropped.issuperset(split.id for split in splits)

    def finished(self, splits: Sequence[Split]) -> None:
        """Delete or archive the files whose read began with `cleanSource` on, if the option is still on."""
        if self._cleans:  # checked first, because there may be very many splits after a restart
            self._cleaner.clean([split for split in splits if isinstance(split, FileSplit) and split.clean])

    def _new(self, index: FileIndex, known: Mapping[str, Split]) -> list[FileSplit]:
        """Return the splits of files that the stream has not begun to read, in reading order.

        Splits of the last discovery are reused.
        """
        names = index.partition_schema.names
        before, self._waiting = self._waiting, {}
        for file, texts in zip(index.files, index.partition_texts, strict=True):
            split_id = self._tracker.id_of_new(file, known)
            if split_id is None:
                continue
            split = before.get(split_id)
            if split is None or not _is_version(split, file) or len(split.partitions) != len(names):
                partitions = tuple(zip(names, texts, strict=True))
                split = FileSplit.of(file, partitions, split_id=split_id, clean=self._cleans)
            self._waiting[split_id] = split
        return self._tracker.once_each(self._ordered(list(self._waiting.values()), index))

    def _ordered(self, splits: list[FileSplit], index: FileIndex) -> list[FileSplit]:
        if self._times is not None:
            return self._times.ordered(splits, index.partition_schema)
        return sorted(splits, key=_age, reverse=self._source.latest_first)

    def _begun(self, index: FileIndex, known: Mapping[str, Split]) -> list[FileSplit]:
        """Return the splits of files that were read in part.

        With `onChangedFile=reread`, a changed file is left out, because its new version is read from the start. Errors
        are raised here, before an unreadable micro-batch is planned.

        Raises:
            DataError: A file has changed or no longer exists, and the options do not allow that.
        """
        begun = self._tracker.begun(known)
        listed = {file.path: file for file in index.files} if begun else {}
        dropped = set()
        for split in begun:
            now = listed.get(split.path) or self._source.stored(split.status).now()  # or found by an earlier `path`
            if now is None and not self._source.ignore_missing_files:
                raise DataError(
                    f"the file {split.path!r} was read only in part, and no longer exists",
                    source=self._source.name,
                    split=split.path,
                    position=split.position,
                    option="ignoreMissingFiles",
                    advice="restore the file, or restart with ignoreMissingFiles=true to continue without the rest "
                    "of the file",
                )
            if now is not None and not split.status.same_file(now):
                if self._source.on_changed_file != "reread":
                    raise self._tracker.changed_error(split.status, now, "reread")
                dropped.add(split.id)
        self._dropped = frozenset(dropped)
        return [split for split in begun if split.id not in dropped]

    def _warn_emptied(self, index: FileIndex) -> None:
        """Log a warning at the start of a run for paths without files, because they may be misspelt."""
        if index.emptied:
            _log.warning(
                "%s: there is no file below %s now; the stream will read files that are added there",
                self._source.name,
                ", ".join(index.emptied),
            )

    def _check_format(self, new: Sequence[FileSplit]) -> None:
        """Refuse files whose suffix differs from that of the first files, if the format was inferred from suffixes."""
        if not new:
            return
        _ = self._format  # raises at planning if the format is unknown or an option is wrong
        if self._source.chosen_format() is not None:
            return
        name = self._source.format_name()
        other = next((file for file in new if catalog.format_of_path(file.path) != name), None)
        if other is not None:
            raise ConfigurationError(
                f"the first files of the stream have suffixes of the format {name}, but {other.path!r} does not",
                source=self._source.name,
                split=other.path,
                option="fileFormat",
                advice=f"exclude the file with pathGlobFilter, or set fileFormat={name} if the file has this format "
                "despite its suffix",
            )

    def _bytes(self, split: FileSplit) -> int:
        start, end = bounds(split)
        if not self._counts_rows(split):
            return max(0, (split.size if end is None else end) - start)
        groups = self._row_groups.get(split.id)
        return split.size if groups is None or not (start or end) else groups.bytes_between(start, end)

    def _counts_rows(self, split: FileSplit) -> bool:
        self._source.learn_format(split.path)
        return self._format.counts_rows

    def _groups(self, split: FileSplit) -> RowGroups | None:
        """Return the row groups of a file. None if the file is missing or damaged: the split reader reports that."""
        if self._source.format_name() != "parquet":
            return None
        if split.id not in self._row_groups:
            from forebay.sources.files.parquet_footers import RowGroups

            try:
                groups = RowGroups.of(self._source.stored(split.status))
            except DataError:
                return None
            while len(self._row_groups) >= _FOOTERS:
                del self._row_groups[next(iter(self._row_groups))]
            self._row_groups[split.id] = groups
        return self._row_groups[split.id]


def _age(split: FileSplit) -> tuple[int, str]:
    return split.modified_at, split.id


def _is_version(split: FileSplit, file: FileStatus) -> bool:
    return (split.size, split.modified_at, split.etag) == (file.size, file.modified_at, file.etag)


def _too_old(split: Split, *, horizon: int) -> bool:
    return isinstance(split, FileSplit) and split.modified_at < horizon


# -- Finds the first event time of each file of a stream, and sorts the files by event time (`fileEventTime`).


_ZONED = pa.timestamp("us", "UTC")
_LOCAL = pa.timestamp("us")

_Lookup = Callable[[FileSplit], int | None]


class FirstEventTimes:
    """Finds the first event time of each file once, and caches it.

    Called by the enumerator, on one thread at a time; reading footers may block.

    Args:
        source: The file source.
        origin: The parsed option `fileEventTime`.
    """

    def __init__(self, source: FileScan, origin: FileEventTime) -> None:
        self._source = source
        self.origin = origin
        self._zone: Zone = session_zone(source.time_zone)
        self._learned: dict[str, tuple[FileSplit, int | None]] = {}
        self._texts: dict[str, int | None] = {}
        self._partition_type: pa.DataType = _ZONED
        self._footers = None
        if origin.kind == "footer":
            from forebay.sources.files.parquet_footers import FooterTimes

            self._footers = FooterTimes(source, origin.argument)
        self._pattern = origin.pattern() if origin.kind == "path" else None

    @classmethod
    def of_source(cls, source: FileScan) -> Self | None:
        """Create an instance for the source's option `fileEventTime`; None if the option is not set."""
        text = source.file_event_time
        return None if text is None else cls(source, parse_event_time(text, source.name))

    @property
    def by_age(self) -> bool:
        """Whether files are ordered by the time of their last change."""
        return self.origin.kind == "modified"

    def ordered(self, splits: Sequence[FileSplit], partition_schema: pa.Schema) -> list[FileSplit]:
        """Return the files sorted by event time, then by path. Files without an event time come first.

        Cached event times of all other files are dropped.

        Raises:
            ConfigurationError: The option `fileEventTime` does not fit the files.
            RetriableError: The store did not answer.
        """
        if splits and self.origin.kind == "partition":
            self._check_partition(partition_schema)
        # The enumerator keeps the split of a file until it changes.
        self._learned = {
            split.id: entry for split in splits if (entry := self._learned.get(split.id)) and entry[0] is split
        }
        self._learn([split for split in splits if split.id not in self._learned])
        return sorted(splits, key=self._order)

    def first_times(self, splits: Sequence[FileSplit]) -> Mapping[str, int]:
        """Return the first event times of files by split id, in µs since 1970; omit files without an event time.

        Event times are cached for the files of the last discovery, and found now for other files.

        Raises:
            ConfigurationError: The option `fileEventTime` does not fit a file.
            RetriableError: The store did not answer.
        """
        self._learn([split for split in splits if split.id not in self._learned])
        times = ((split.id, self._learned[split.id][1]) for split in splits)
        return {split_id: micros for split_id, micros in times if micros is not None}

    def _order(self, split: FileSplit) -> tuple[bool, int, str]:
        micros = self._learned[split.id][1]
        return micros is not None, micros or 0, split.id

    def _learn(self, splits: Sequence[FileSplit]) -> None:
        if not splits:
            return
        if self._footers is not None:
            self._footers.of(splits, self._note)
            return
        lookups: Mapping[str, _Lookup] = {"partition": self._partition, "path": self._path, "modified": self._modified}
        lookup = lookups[self.origin.kind]
        for split in splits:
            self._note(split, lookup(split))

    def _note(self, split: FileSplit, micros: int | None) -> None:
        self._learned[split.id] = split, micros

    def _modified(self, split: FileSplit) -> int:
        if not split.status.has_time:
            raise self._refused(
                f"the store does not report when {split.path!r} was changed",
                "set fileEventTime to footer:<column>, partition:<column> or path:<pattern>",
                split,
            )
        return split.modified_at // 1_000

    def _path(self, split: FileSplit) -> int:
        assert self._pattern is not None  # noqa: S101 - it is set for this kind
        times = self._pattern.timestamps_in(split.path, self._zone)
        if len(times) != 1:
            what = "matches different times in" if times else "matches no time in"
            raise self._refused(
                f"this pattern {what} the path {split.path!r}",
                "add more of the path to the pattern, with literal letters in quotes ('day='yyyy-MM-dd), or exclude "
                "the file with pathGlobFilter",
                split,
            )
        return times.pop()

    def _partition(self, split: FileSplit) -> int | None:
        column = self.origin.argument.lower()
        raw = next((text for name, text in split.partitions if name.lower() == column), None)
        if raw is None:
            return None
        if raw not in self._texts:
            try:
                value = partition_value(raw, self._partition_type, self._zone, self.origin.argument)
            except ConfigurationError:
                advice = "rename the directory, or set fileEventTime to path:<pattern> for another format"
                raise self._refused(
                    f"the directory value {raw!r} is neither a date nor a timestamp", advice, split
                ) from None
            self._texts[raw] = value.cast(pa.int64()).as_py()
        return self._texts[raw]

    def _check_partition(self, schema: pa.Schema) -> None:
        field = next((column for column in schema if column.name.lower() == self.origin.argument.lower()), None)
        if field is None:
            columns = ", ".join(schema.names) or "none"
            raise self._refused("no partition column has this name", f"name one of the partition columns: {columns}")
        kind = field.type
        if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_string(kind) or kind == pa.null()):
            raise self._refused(
                f"the partition column has the type {kind}, not date or timestamp",
                f"set fileEventTime to path:<pattern>, such as path:'{field.name}='yyyyMMdd",
            )
        local = pa.types.is_timestamp(kind) and kind.tz is None
        self._partition_type = _LOCAL if local else _ZONED

    def _refused(self, what: str, advice: str, split: FileSplit | None = None) -> ConfigurationError:
        return ConfigurationError(
            f"{OPTION}={self._source.file_event_time}: {what}",
            source=self._source.name,
            split=None if split is None else split.path,
            option=OPTION,
            advice=advice,
        )
