# SPDX-License-Identifier: Apache-2.0
"""Open Parquet files: their row groups, what is read of them, and damage told from errors of the store."""

from __future__ import annotations

import inspect
import io
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from forebay.errors import DataError, ForebayError
from forebay.formats.base import damaged_file
from forebay.formats.compression.byte_streams import read_fully
from forebay.formats.parquet.convert import Converter, StoredColumn
from forebay.formats.parquet.schema import Leaf, columns_of, inferred_schema, unreadable_column
from forebay.formats.parquet.statistics import column_statistics
from forebay.formats.units import BatchRows, OpenUnits, UnitColumn, read_elsewhere
from forebay.formats.values.rebase import RebaseMode, rebase_of

if TYPE_CHECKING:
    from forebay.formats.base import InputFile
    from forebay.formats.filters import Statistics

_FOOTER_BUFFER = 64 << 10
_READ_AHEAD_BYTES = 32 << 20
_MOST_BUFFER, _LEAST_BUFFER = 4 << 20, 64 << 10
_MAGIC = b"PAR1"
_ENCRYPTED_FOOTER = b"PARE"
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
    with file.open() as raw:
        checked = _Checked(raw)
        try:
            source = pa.PythonFile(checked, mode="r")
            metadata = _footer(source, checked, file)
            rebase = rebase_of(metadata.metadata or {}, dates, int96)
            yield OpenParquet(file, source, checked, metadata, Converter(file.path, case_sensitive, rebase))
        except (ForebayError, MemoryError):
            raise
        except pa.ArrowNotImplementedError as error:
            raise read_elsewhere(
                f"{file.path} uses a feature of Parquet that Arrow cannot read: {error}", file.path, "parquet"
            ) from error
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # UnicodeDecodeError: from a column's name
            if checked.failure is not None:
                raise checked.failure from None
            raise damaged_file(f"{file.path} is not a complete Parquet file: {error}") from error


def _footer(source: pa.PythonFile, checked: _Checked, file: InputFile) -> pq.FileMetaData:
    """Return the footer of a file. Arrow converts its schema too, and fails if it cannot express one of its columns."""
    try:
        return pq.read_metadata(source)
    except (pa.ArrowException, OSError) as error:
        whole = checked.tail[4:] == _MAGIC and checked.footer_bytes + 12 <= file.size
        if checked.tail[4:] == _ENCRYPTED_FOOTER:
            what = f"{file.path} is a Parquet file with an encrypted footer"
        elif whole and checked.failure is None and "deserialize" not in str(error):
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
        return inferred_schema(self._parquet, self.path, self._converter.case_sensitive)

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
            raise unreadable_column(leaf.path, self.path, str(error)) from error

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


class _Checked(io.RawIOBase):
    """A file as Arrow's reader sees it. Each read returns the full length, and `failure` keeps errors of the store."""

    def __init__(self, raw: BinaryIO) -> None:
        self.raw = raw
        self.failure: Exception | None = None
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

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


class _NoBytes(io.RawIOBase):
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

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
