# SPDX-License-Identifier: Apache-2.0
"""What a stream needs of the footers of Parquet files: row groups to cut at, and first event times."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, Self, TypeVar

import pyarrow as pa

from forebay.errors import ConfigurationError, DataError
from forebay.formats.parquet.format import first_time, opened
from forebay.sources.files.scan import OPTION, FileScan
from forebay.sources.files.split import FileSplit
from forebay.stores.stored_file import StoredFile
from forebay.watermarks.event_time import ColumnTimestamps


@dataclass(frozen=True, slots=True)
class RowGroups:
    """The first rows and the sizes of the row groups of one file.

    Args:
        starts: The number of the first row of each row group, then the number of rows of the file.
        before: The bytes before each row group, then the bytes of all row groups.
    """

    starts: tuple[int, ...]
    before: tuple[int, ...]

    @classmethod
    def of(cls, file: StoredFile) -> Self:
        """Read the footer of a file, and return its row groups.

        Raises:
            DataError: The file no longer exists, has changed since it was listed, or is damaged.
            RetriableError: The store did not answer.
        """
        with opened(file) as parquet:
            starts, sizes = parquet.starts, parquet.sizes()
        filled = [(start, size) for (start, end), size in zip(pairwise(starts), sizes, strict=True) if end > start]
        before = accumulate((size for _, size in filled), initial=0)
        return cls((*(start for start, _ in filled), starts[-1]), tuple(before))

    def bytes_between(self, start: int, end: int | None) -> int:
        """Return the total bytes of the row groups whose first row is in `[start, end)`."""
        first = bisect_left(self.starts, start)
        last = len(self.starts) - 1 if end is None else bisect_left(self.starts, end)
        return max(0, self.before[min(last, len(self.before) - 1)] - self.before[min(first, len(self.before) - 1)])

    def advance(self, start: int, byte_budget: int) -> int | None:
        """Return the end (a row number) of the row groups from row `start` that fit into `byte_budget` bytes.

        None if they reach the end of the file.
        """
        first = bisect_right(self.starts, start) - 1
        last = bisect_right(self.before, self.before[first] + byte_budget) - 1
        return max(start, self.starts[last]) if last < len(self.starts) - 1 else None


_log = logging.getLogger(__name__)

_THREADS: Final = 16
"""Number of footers read at the same time. The threads mostly wait for the store."""

T = TypeVar("T")


class FooterTimes:
    """Finds the first event time, the minimum of a column, in each file. Called on one thread at a time; may block.

    Args:
        source: The file source, whose schema has the column.
        column: The name of a column, or the dotted path of a field inside structs. Its type is timestamp, or int64 for
            µs since 1970.
    """

    def __init__(self, source: FileScan, column: str) -> None:
        self._source = source
        self._column = column
        self._timestamps = ColumnTimestamps(column, OPTION)
        self._field: pa.Field | None = None
        self._warned = False

    def of(self, splits: Sequence[FileSplit], on_found: Callable[[FileSplit, int | None], None]) -> None:
        """Find the first event time of each file, and pass it to `on_found`, in any order and on several threads.

        A missing or damaged file gets no event time. The split reader later reports the error, or ignores it if the
        options say so.

        Raises:
            ConfigurationError: The files are not Parquet, or the column is missing or of another type.
            RetriableError: The store did not answer. Event times found before were already passed to `on_found`.
        """
        field = self._checked()
        in_parallel(lambda split: on_found(split, self._first(split, field)), splits)

    def _checked(self) -> pa.Field:
        """Return the column, after checking that it can hold event times. The check runs once, at the first file.

        Raises:
            ConfigurationError: The files are not Parquet, or the column is missing or of another type.
        """
        if self._field is not None:
            return self._field
        name = self._source.format_name()
        if name != "parquet":
            raise ConfigurationError(
                f"{OPTION}=footer:{self._column}: only Parquet files have footers, but these files are {name}",
                source=self._source.name,
                option=OPTION,
                advice="set fileEventTime to partition:<column>, path:<pattern> or modified",
            )
        schema = self._source.full_schema()
        field = schema.field(self._timestamps.check(schema))
        self._field = field
        return field

    def _first(self, split: FileSplit, field: pa.Field) -> int | None:
        stored = self._source.stored(split.status)
        try:
            with opened(stored) as parquet:
                case_sensitive = self._source.format().case_sensitive
                first = first_time(parquet, self._column, case_sensitive=case_sensitive)
            return first.micros if first.known else self._least(stored, field)
        except DataError:
            return None

    def _least(self, stored: StoredFile, field: pa.Field) -> int | None:
        """Read the whole column of a file without statistics, and return its minimum in µs since 1970."""
        if not self._warned:
            self._warned = True
            _log.warning(
                "%s: the footer of %s has no statistics of the column %r, so planning reads this column of such files, "
                "which takes longer. Spark's INT96 timestamps have no statistics: write the files with "
                "spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS",
                self._source.name,
                stored.path,
                self._column,
            )
        batches = self._source.format().read(stored, pa.schema([field]))
        times = (self._timestamps(batch, None) for batch, _ in batches)
        return min((time.earliest for time in times if time is not None), default=None)


def in_parallel(work: Callable[[T], None], items: Sequence[T]) -> None:
    """Run `work` for each item on several threads. The first error stops all threads, and is raised.

    The threads are daemons, so a store that never answers does not keep the process alive.
    """
    left, errors, lock = iter(items), list[BaseException](), threading.Lock()

    def run() -> None:
        while not errors:
            with lock:
                item = next(left, None)
            if item is None:
                return
            try:
                work(item)
            except BaseException as error:  # noqa: BLE001 - raised below
                errors.append(error)

    count = min(_THREADS, len(items))
    threads = [threading.Thread(target=run, name=f"forebay-footers-{at}", daemon=True) for at in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
