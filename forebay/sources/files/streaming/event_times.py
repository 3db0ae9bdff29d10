# SPDX-License-Identifier: Apache-2.0
"""Finds the first event time of each file of a stream, and sorts the files by event time (`fileEventTime`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Self

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.values.zones import Zone, session_zone
from forebay.sources.files.event_time import OPTION, FileEventTime, parse_event_time
from forebay.sources.files.listing.partition_values import partition_value
from forebay.sources.files.scan import FileScan
from forebay.sources.files.split import FileSplit
from forebay.sources.files.streaming.footer_times import FooterTimes

_ZONED = pa.timestamp("us", "UTC")
_LOCAL = pa.timestamp("us")

_Lookup = Callable[[FileSplit], int | None]


class EventTimes:
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
        self._found: dict[str, tuple[FileSplit, int | None]] = {}
        self._texts: dict[str, int | None] = {}
        self._partition_type: pa.DataType = _ZONED
        self._footers = FooterTimes(source, origin.argument) if origin.kind == "footer" else None
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
        self._found = {one.id: kept for one in splits if (kept := self._found.get(one.id)) and kept[0] is one}
        self._learn([one for one in splits if one.id not in self._found])
        return sorted(splits, key=self._order)

    def first_times(self, splits: Sequence[FileSplit]) -> Mapping[str, int]:
        """Return the first event times of files by split id, in µs since 1970; omit files without an event time.

        Event times are cached for the files of the last discovery, and found now for other files.

        Raises:
            ConfigurationError: The option `fileEventTime` does not fit a file.
            RetriableError: The store did not answer.
        """
        self._learn([one for one in splits if one.id not in self._found])
        times = ((one.id, self._found[one.id][1]) for one in splits)
        return {split_id: micros for split_id, micros in times if micros is not None}

    def _order(self, split: FileSplit) -> tuple[bool, int, str]:
        micros = self._found[split.id][1]
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
        self._found[split.id] = split, micros

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
        wanted = self.origin.argument.lower()
        raw = next((text for name, text in split.partitions if name.lower() == wanted), None)
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
        field = next((one for one in schema if one.name.lower() == self.origin.argument.lower()), None)
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
