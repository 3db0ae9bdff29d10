# SPDX-License-Identifier: Apache-2.0
"""Reads Parquet files as Spark's vectorised reader does."""

from __future__ import annotations

import decimal
import inspect
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Final, NamedTuple, cast

import pyarrow as pa
import pyarrow.parquet as pq

from forebay.errors import DataError
from forebay.formats.base import damaged_file
from forebay.formats.compression.codecs import read_fully
from forebay.formats.filters import Statistics, Value
from forebay.formats.parquet.convert import (
    Converter,
    Leaf,
    StoredColumn,
    columns_of,
    inferred_schema,
)
from forebay.formats.units import (
    ArrowFile,
    BatchRows,
    OpenUnits,
    UnitColumn,
    UnitFormat,
    arrow_errors,
    read_elsewhere,
    unreadable_column,
    wrap_damage,
)
from forebay.formats.values.columns import folded
from forebay.formats.values.rebase import RebaseMode, rebase_of
from forebay.options import option

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from forebay.formats.base import InputFile
    from forebay.formats.filters import Statistics

_FOOTER_BUFFER = 64 << 10
_READ_AHEAD_BYTES = 32 << 20
_MOST_BUFFER, _LEAST_BUFFER = 4 << 20, 64 << 10
_MAGIC = b"PAR1"
_ENCRYPTED_FOOTER = b"PARE"
_DAMAGED = ("deserialize", "base64", "flatbuffer")
"""Words in Arrow's errors for a damaged footer, or for the damaged schema of another Arrow in it."""
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4}
# Since pyarrow 21, types such as UUID or JSON are extension types by default.
_EXTENSIONS: dict[str, Any] = {"arrow_extensions_enabled": False}
if "arrow_extensions_enabled" not in inspect.signature(pq.ParquetFile.__init__).parameters:
    _EXTENSIONS.clear()


@contextmanager
def opened(
    file: InputFile, *, case_sensitive: bool = False, dates: RebaseMode = "CORRECTED", int96: RebaseMode = "CORRECTED"
) -> Iterator[OpenParquet]:
    """Open a file for a `with` block, and read its footer. Errors of the store are raised unchanged.

    Args:
        file: The file.
        case_sensitive: Whether names that differ only in case are different names.
        dates: The calendar of old dates, if the file does not name it.
        int96: The calendar of old INT96 timestamps, if the file does not name it.

    Raises:
        DataError: The file is damaged or not a Parquet file; also raised inside the `with` block.
        ConfigurationError: Arrow cannot read the file.
    """
    with file.open() as raw, wrap_damage(file.path, "Parquet"), arrow_errors(checked := _Checked(raw)):
        try:
            source = pa.PythonFile(checked, mode="r")
            metadata = _footer(source, checked, file)
            rebase = rebase_of(metadata.metadata or {}, dates, int96)
            yield OpenParquet(file, source, checked, metadata, Converter(file.path, case_sensitive, rebase))
        except pa.ArrowNotImplementedError as error:
            what = f"{file.path} uses a feature of Parquet that Arrow cannot read: {error}"
            raise read_elsewhere(what, file.path, "parquet") from error


def _footer(source: pa.PythonFile, checked: _Checked, file: InputFile) -> pq.FileMetaData:
    """Return the footer of a file. Arrow converts its schema too, and fails if it cannot express one of its columns."""
    try:
        return pq.read_metadata(source)
    except (pa.ArrowException, OSError) as error:
        whole = checked.tail[4:] == _MAGIC and checked.footer_bytes + 12 <= file.size
        if checked.tail[4:] == _ENCRYPTED_FOOTER:
            what = f"{file.path} is a Parquet file with an encrypted footer"
        elif whole and checked.failure is None and not any(word in str(error) for word in _DAMAGED):
            what = f"{file.path} has a column that Arrow cannot express, or a damaged schema"
        else:
            raise
        raise read_elsewhere(f"{what}: {error}", file.path, "parquet") from error


class OpenParquet(OpenUnits[StoredColumn]):
    """A Parquet file whose footer has been read. The units are row groups.

    Attributes:
        signed: Whether a signature follows the footer, which only files with encrypted columns have.
        columns: The columns of the file.
    """

    def __init__(
        self,
        file: InputFile,
        source: pa.PythonFile,
        checked: _Checked,
        metadata: pq.FileMetaData,
        converter: Converter,
    ) -> None:
        self.path = file.path
        self._size = file.size
        self._source = source
        self._checked = checked
        self._metadata = metadata
        self._converter = converter
        self.signed = metadata.serialized_size < checked.footer_bytes
        self._parquet = self._reader(_FOOTER_BUFFER)
        self.columns = columns_of(self._parquet)
        self._leaves: list[Leaf] = []
        self._sound: set[str] = set()
        # Arrow cannot join dictionaries of several row groups inside nested columns.
        self._one_group_at_a_time = any(_has_inner_dictionary(kind) for kind in self._parquet.schema_arrow.types)

    @cached_property
    def starts(self) -> Sequence[int]:
        """The first row of each row group, followed by the number of rows of the file.

        As in Spark and Arrow, the footer's own total is ignored.
        """
        rows = [self._metadata.row_group(group).num_rows for group in range(self._metadata.num_row_groups)]
        if min(rows, default=0) < 0:
            raise self._wrong(f"row group {rows.index(min(rows))} has {min(rows)} rows")
        return list(accumulate(rows, initial=0))

    def _reader(self, buffer_bytes: int) -> pq.ParquetFile:
        """Return Arrow's reader, which reads `buffer_bytes` of a column at a time; with 0, whole column chunks."""
        return pq.ParquetFile(
            self._source,
            metadata=self._metadata,
            buffer_size=buffer_bytes,
            pre_buffer=False,
            coerce_int96_timestamp_unit="us",
            **_EXTENSIONS,
        )

    def schema(self) -> pa.Schema:
        """Return the schema that Spark infers from the file."""
        return inferred_schema(self._parquet, self.path)

    def sizes(self) -> Sequence[int]:
        """Return the approximate size in bytes of each row group, from its share of the file's uncompressed bytes.

        The exact sizes are in the metadata of columns, which may be encrypted.
        """
        groups = range(self._metadata.num_row_groups)
        weights = [max(0, self._metadata.row_group(group).total_byte_size) for group in groups]
        total = sum(weights)
        if not total:
            return [self._size // len(groups) for _ in groups]
        ends = [self._size * weight // total for weight in accumulate(weights, initial=0)]
        return [end - start for start, end in pairwise(ends)]

    def column(self, field: pa.Field) -> UnitColumn[StoredColumn]:
        """Return where a column of the schema is in the file, and its conversion."""
        return self._converter.column(field, self.columns)

    def statistics(self, unit: int, column: UnitColumn[StoredColumn]) -> Statistics | None:
        """Return what the footer says of the values of a column in a row group; None for a nested column."""
        stored = cast("StoredColumn", column.stored)
        leaf = stored.leaves[0]
        if self.signed or len(stored.leaves) != 1 or leaf.repeated or leaf.path != stored.name:
            return None
        rebased = self._converter.rebase.dates_mode != "CORRECTED"
        return column_statistics(self.groups(leaf)[unit], leaf, column.field.type, rebased=rebased)

    def groups(self, leaf: Leaf) -> list[pq.RowGroupMetaData]:
        """Return the metadata of all row groups, to look at a column.

        Raises:
            OSError: The metadata of the column are damaged.
        """
        if leaf.path not in self._sound:
            self._check_metadata(range(self._metadata.num_row_groups), [leaf])
            self._sound.add(leaf.path)
        return [self._metadata.row_group(group) for group in range(self._metadata.num_row_groups)]

    def _check_metadata(self, groups: Sequence[int], leaves: Sequence[Leaf]) -> None:
        """Check the metadata of columns in some row groups. Reads nothing.

        To ask Arrow for those of a column ends the process if they are encrypted or damaged. When it plans to read
        ahead it raises an error instead, so it plans to read a file without bytes.

        Raises:
            OSError: The metadata are encrypted or damaged.
        """
        if not groups:
            return
        nothing = _NoBytes(self._size)
        source = pa.PythonFile(nothing, mode="r")
        parquet = pq.ParquetFile(source, metadata=self._metadata, pre_buffer=True, **_EXTENSIONS)
        try:
            next(parquet.iter_batches(1, groups, [leaf.path for leaf in leaves], use_threads=False), None)
        except OSError:
            if not nothing.asked:
                raise

    def prepare(self, columns: Sequence[UnitColumn[StoredColumn]], position: int, end: int) -> None:
        """Check the row groups of the rows `[position, end)`, and announce their column chunks to the store.

        Only reading whole column chunks bounds the memory that a wrong size in a page header takes, so short chunks
        are read as a whole.
        """
        self._leaves = [leaf for column in columns for leaf in cast("StoredColumn", column.stored).leaves]
        if not self._leaves:
            return
        # An empty row group belongs to the slice that begins there, or else to the last slice.
        first = min(bisect_left(self.starts, position), bisect_right(self.starts, position) - 1)
        last = len(self.starts) - 1 if end == self.starts[-1] else bisect_left(self.starts, end)
        numbers = range(first, last)
        self._check(numbers)
        groups = [self._metadata.row_group(number) for number in numbers]
        chunks = [[_chunk(group.column(leaf.index)) for leaf in self._leaves] for group in groups]
        announce = getattr(self._checked.raw, "expect", None)  # streams of stores for which requests are slow have it
        if announce is not None:
            announce(chunks)
        buffer = max(_LEAST_BUFFER, min(_MOST_BUFFER, _READ_AHEAD_BYTES // len(self._leaves)))
        longest = max((stop - start for group in chunks for start, stop in group), default=0)
        self._parquet = self._reader(0 if longest <= buffer else buffer)

    def _check(self, groups: range) -> None:
        """Check that row groups can be read: no column is encrypted, and each has the right number of values.

        Spark and Arrow do not check the number: both drop values beyond the row count of the row group, and Spark
        fills in missing ones.

        Raises:
            ConfigurationError: A column is encrypted.
            DataError: A column has fewer values than its row group has rows or, if it is not repeated, more.
            OSError: The metadata of a column are damaged.
        """
        for leaf in self._leaves if self.signed else ():
            try:
                self._check_metadata(groups[:1], [leaf])
            except OSError as error:
                what = f"column {leaf.path!r} of {self.path} is encrypted or damaged: {error}"
                raise read_elsewhere(what, self.path, "parquet") from error
        self._check_metadata(groups, self._leaves)
        for number in groups:
            group = self._metadata.row_group(number)
            for leaf in self._leaves:
                values = group.column(leaf.index).num_values
                if values < group.num_rows or (values > group.num_rows and not leaf.repeated):
                    what = f"row group {number} has {group.num_rows} rows and {values} values of column {leaf.path!r}"
                    raise self._wrong(what)

    def batches(
        self, columns: Sequence[UnitColumn[StoredColumn]], unit: int, rows: BatchRows
    ) -> Generator[pa.RecordBatch]:
        """Yield the rows of a row group, and of those behind it, as they are stored."""
        size, sure = self._bytes_per_row(unit)
        rows.begin(size, sure=sure)
        groups = [unit] if self._one_group_at_a_time else list(range(unit, len(self.starts) - 1))
        names = [cast("StoredColumn", column.stored).name for column in columns]
        paths = [leaf.path for leaf in self._leaves]
        try:
            for batch in self._parquet.iter_batches(rows.most, groups, paths, use_threads=False):
                yield batch.select(names)
        except pa.ArrowInvalid:
            for leaf in self._leaves:
                # Only their values tell how long decimals of BYTE_ARRAY are; Arrow reads at most 16 bytes.
                if leaf.kind == "DECIMAL" and leaf.physical == "BYTE_ARRAY":
                    self._check_readable(leaf, groups)
            raise

    def _check_readable(self, leaf: Leaf, groups: list[int]) -> None:
        try:
            for _ in self._parquet.iter_batches(row_groups=groups, columns=[leaf.path], use_threads=False):
                pass
        except pa.ArrowInvalid as error:
            raise unreadable_column(leaf.path, self.path, f"cannot be read: {error}", "parquet") from error

    def _bytes_per_row(self, number: int) -> tuple[float, bool]:
        """Return the bytes of a row of a row group, and whether the footer tells them."""
        group = self._metadata.row_group(number)
        total, sure = 1, True
        for leaf in self._leaves:
            column = group.column(leaf.index)
            width = _WIDTHS.get(column.physical_type, 8)
            if column.physical_type == "BYTE_ARRAY" and column.has_dictionary_page:
                # A dictionary hides the length of its strings.
                statistics = column.statistics
                if statistics is not None and statistics.has_min_max:
                    width = max(width, len(statistics.min_raw), len(statistics.max_raw))
                else:
                    sure = False
            total += max(column.total_uncompressed_size, column.num_values * width)
        return total / max(group.num_rows, 1), sure

    def _wrong(self, what: str) -> DataError:
        return damaged_file(f"the footer of {self.path} is wrong: {what}")


def _chunk(column: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return the start and end of a column chunk in the file, in bytes."""
    start = min(filter(None, (column.dictionary_page_offset, column.data_page_offset)), default=0)
    return start, start + column.total_compressed_size


def _has_inner_dictionary(data_type: pa.DataType) -> bool:
    inside = [data_type.field(index).type for index in range(data_type.num_fields)]
    return any(isinstance(kind, pa.DictionaryType) or _has_inner_dictionary(kind) for kind in inside)


class _Checked(ArrowFile):
    """A file whose reads return the full length."""

    def __init__(self, raw: BinaryIO) -> None:
        self.raw = raw
        self.tail = b""
        """The last bytes of the first read, which reads the end of the file: the footer's length and a magic number."""

    @property
    def footer_bytes(self) -> int:
        """The length of the footer in bytes, including its signature."""
        return int.from_bytes(self.tail[:4], "little")

    def read(self, size: int = -1, /) -> bytes:
        try:
            data = read_fully(self.raw.read, size)
        except Exception as error:
            self.failure = error
            raise
        if not self.tail:
            self.tail = data[-8:]
        return data

    def seek(self, offset: int, whence: int = 0, /) -> int:
        try:
            return self.raw.seek(offset, whence)
        except Exception as error:
            self.failure = error
            raise

    def tell(self) -> int:
        return self.raw.tell()


class _NoBytes(ArrowFile):
    """A file of a size without any bytes. `asked` tells whether they were asked for."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.asked = False

    def read(self, size: int = -1, /) -> bytes:
        self.asked = True
        return b""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return offset + (self._size if whence else 0)

    def tell(self) -> int:
        return self._size


MICROS_PER_UNIT: Final = {"ms": 1_000, "us": 1}
"""Microseconds per unit, for each unit in which timestamps can be read."""


def column_statistics(group: pq.RowGroupMetaData, leaf: Leaf, target: pa.DataType, *, rebased: bool) -> Statistics:
    """Return what the footer says of the values of a primitive column in a row group.

    Args:
        group: The row group.
        leaf: The column, which is not repeated.
        target: The type of the column in the schema.
        rebased: Whether reading changes the file's old dates, so that statistics of dates and times do not apply.
    """
    statistics = statistics_of(group, leaf)
    nulls = statistics.null_count if statistics is not None and statistics.has_null_count else None
    value_of = _reader(leaf, target, rebased=rebased)
    least = greatest = None
    if value_of is not None and statistics is not None and statistics.has_min_max:
        try:
            least, greatest = value_of(statistics.min_raw), value_of(statistics.max_raw)
        except (UnicodeDecodeError, OverflowError):
            least = greatest = None
    return Statistics(group.num_rows, nulls, least, greatest, nan=pa.types.is_floating(target))


def statistics_of(group: pq.RowGroupMetaData, leaf: Leaf) -> pq.Statistics | None:
    """Return the statistics of a column in a row group; None if there are none.

    Returns None too if the row group gives the column another type, because Arrow would end the process.
    """
    column = group.column(leaf.index)
    return column.statistics if column.physical_type == leaf.physical else None


def _reader(leaf: Leaf, target: pa.DataType, *, rebased: bool) -> Callable[[Any], Value | None] | None:
    """Return the function that converts a minimum or maximum to a `Value`; None if it cannot be compared."""
    if pa.types.is_signed_integer(target) and leaf.signed_bits:
        return int
    if pa.types.is_floating(target) and leaf.physical in ("FLOAT", "DOUBLE"):
        return lambda raw: None if math.isnan(raw) else float(raw)
    if pa.types.is_boolean(target) and leaf.physical == "BOOLEAN":
        return bool
    if pa.types.is_string(target) and leaf.kind == "STRING":
        return lambda raw: raw if isinstance(raw, str) else raw.decode("utf-8")
    if pa.types.is_decimal(target) and leaf.kind == "DECIMAL" and leaf.physical in ("INT32", "INT64"):
        scale = int(leaf.details["scale"])
        return lambda raw: decimal.Decimal(int(raw)).scaleb(-scale)
    if rebased:
        return None
    if pa.types.is_date32(target) and leaf.kind == "DATE":
        return int
    if isinstance(target, pa.TimestampType) and leaf.physical == "INT64" and leaf.kind == "TIMESTAMP":
        factor = MICROS_PER_UNIT.get(leaf.unit)
        if factor is None or leaf.details["isAdjustedToUTC"] != (target.tz is not None):
            return None
        return lambda raw: int(raw) * factor
    return None


_WRITING = "it is for writing; each Parquet file names its own codecs"


@dataclass(frozen=True, kw_only=True)
class ParquetOptions:
    """The options for reading Parquet files."""

    merge_schema: bool = option(default=False, doc="infer the schema from all files, not only from the first")
    datetime_rebase_mode: RebaseMode = option(
        default="CORRECTED", doc="the calendar of old dates in files that Spark did not write"
    )
    int96_rebase_mode: RebaseMode = option(
        default="CORRECTED", doc="the calendar of old INT96 timestamps in files that Spark did not write"
    )
    case_sensitive: bool = option(
        default=False, doc="compare names of columns exactly: the session's `spark.sql.caseSensitive`"
    )


@dataclass(frozen=True)
class ParquetFormat(UnitFormat):
    """Reads Parquet files. The units are row groups."""

    name: ClassVar[str] = "parquet"
    units: ClassVar[str] = "row groups"
    options_class: ClassVar[type] = ParquetOptions
    refused: ClassVar[Mapping[str, str]] = {"compression": _WRITING, "parquet.compression": _WRITING}

    options: ParquetOptions = ParquetOptions()

    def opened(self, file: InputFile) -> AbstractContextManager[OpenParquet]:
        """Open a file for a `with` block, and read its footer."""
        options = self.options
        return opened(
            file,
            case_sensitive=options.case_sensitive,
            dates=options.datetime_rebase_mode,
            int96=options.int96_rebase_mode,
        )


class FirstTime(NamedTuple):
    """The first event time of a file, as far as its footer tells it.

    Attributes:
        known: Whether the footer tells it. Spark's INT96 timestamps have no statistics.
        micros: Microseconds since 1970; None if no row of the file has an event time.
    """

    known: bool
    micros: int | None = None


def first_time(parquet: OpenParquet, column: str, *, case_sensitive: bool) -> FirstTime:
    """Return the least value of a timestamp or int64 column of an open file, as its footer tells it. Thread-safe.

    Args:
        parquet: The open file.
        column: The name of a column, or the dotted path of a field inside structs.
        case_sensitive: Whether names that differ only in case are different names.

    Raises:
        DataError: The footer is damaged.
    """
    key = folded(column, case_sensitive)
    leaves = (leaf for node in parquet.columns for leaf in node.leaves())
    matching = [leaf for leaf in leaves if folded(leaf.path, case_sensitive) == key]
    if not matching:
        return FirstTime(known=True)
    unit = _unit(matching[0])
    if unit is None or len(matching) > 1 or parquet.signed:  # Arrow ends the process for an encrypted column
        return FirstTime(known=False)
    return _least(parquet, matching[0], unit)


def _unit(leaf: Leaf) -> str | None:
    """Return the unit of a timestamp or int64 column: `ms` or `us`; None for other columns, and for nanoseconds."""
    if leaf.physical != "INT64" or leaf.repeated:
        return None
    if leaf.kind == "TIMESTAMP":
        return leaf.unit if leaf.unit in MICROS_PER_UNIT else None
    return "us" if leaf.signed_bits == 64 else None


def _least(parquet: OpenParquet, leaf: Leaf, unit: str) -> FirstTime:
    """Return the least value of the column in all row groups; unknown if a row group with values has no statistics."""
    least: int | None = None
    for group in parquet.groups(leaf):
        if not group.num_rows:
            continue
        statistics = statistics_of(group, leaf)
        if statistics is None or not statistics.has_min_max:
            if statistics is not None and statistics.has_null_count and statistics.null_count == group.num_rows:
                continue
            return FirstTime(known=False)
        value = statistics.min_raw * MICROS_PER_UNIT[unit]
        least = value if least is None else min(least, value)
    return FirstTime(known=True, micros=least)
