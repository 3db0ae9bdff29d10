# SPDX-License-Identifier: Apache-2.0
"""Opens Parquet files, and distinguishes damage from errors of the store."""

from __future__ import annotations

import inspect
import io
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from forebay.errors import ConfigurationError, DataError, ForebayError
from forebay.formats.base import damaged_file
from forebay.formats.compression.byte_streams import read_fully
from forebay.formats.parquet.footer import Footer

if TYPE_CHECKING:
    from forebay.formats.base import InputFile
    from forebay.formats.parquet.footer import Leaf


# -- Returns the rows and sizes of the row groups of an open Parquet file, and checks their columns.


def row_starts(parquet: OpenParquet) -> list[int]:
    """Return the first row of each row group, followed by the number of rows of the file.

    As in Spark and Arrow, the footer's own total is ignored.

    Raises:
        DataError: A row group has a negative number of rows.
    """
    rows = [parquet.metadata.row_group(group).num_rows for group in range(parquet.metadata.num_row_groups)]
    if min(rows, default=0) < 0:
        raise wrong_footer(parquet, f"row group {rows.index(min(rows))} has {min(rows)} rows")
    return list(accumulate(rows, initial=0))


def group_bytes(parquet: OpenParquet, file_size: int) -> list[int]:
    """Return the approximate size in bytes of each row group, from its share of the file's uncompressed bytes.

    The exact sizes are in the metadata of columns, which may be encrypted.
    """
    groups = range(parquet.metadata.num_row_groups)
    weights = [max(0, parquet.metadata.row_group(group).total_byte_size) for group in groups]
    total = sum(weights)
    if not total:
        return [file_size // len(groups) for _ in groups]
    ends = [file_size * weight // total for weight in accumulate(weights, initial=0)]
    return [end - start for start, end in pairwise(ends)]


def check_groups(parquet: OpenParquet, groups: Iterable[int], leaves: Sequence[Leaf]) -> None:
    """Check that row groups can be read: no column is encrypted, and each has the right number of values.

    Spark and Arrow do not check the number: both drop values beyond the row count of the row group, and Spark fills in
    missing ones.

    Raises:
        ConfigurationError: A column is encrypted.
        DataError: A column has fewer values than its row group has rows or, if it is not repeated, more.
        OSError: The metadata of a column are damaged.
    """
    chosen = list(groups)
    _refuse_encrypted(parquet, leaves, chosen)
    for number in chosen:
        group = parquet.metadata.row_group(number)
        for leaf in leaves:
            values = group.column(leaf.index).num_values
            if values < group.num_rows or (values > group.num_rows and not leaf.repeated):
                what = f"row group {number} has {group.num_rows} rows and {values} values of column {leaf.path!r}"
                raise wrong_footer(parquet, what)


def longest_chunk(parquet: OpenParquet, groups: Iterable[int], leaves: Sequence[Leaf]) -> int:
    """Return the compressed size in bytes of the longest column chunk. Call `check_groups` before."""
    rows = [parquet.metadata.row_group(group) for group in groups]
    return max((group.column(leaf.index).total_compressed_size for group in rows for leaf in leaves), default=0)


def statistics_of(group: pq.RowGroupMetaData, leaf: Leaf) -> pq.Statistics | None:
    """Return the statistics of a column in a row group; None if there are none. Call `check_columns` before.

    Returns None too if the row group gives the column another type, because Arrow would end the process.
    """
    column = group.column(leaf.index)
    return column.statistics if column.physical_type == leaf.physical else None


def _refuse_encrypted(parquet: OpenParquet, leaves: Sequence[Leaf], groups: Sequence[int]) -> None:
    """Raise a ConfigurationError if columns are encrypted, and an OSError if their metadata are damaged."""
    if not parquet.signed:
        parquet.check_columns(groups, [leaf.path for leaf in leaves])
        return
    for leaf in leaves:
        try:
            parquet.check_columns(groups[:1], [leaf.path])
        except OSError as error:
            raise ConfigurationError(
                f"column {leaf.path!r} of {parquet.path} is encrypted or damaged: {error}",
                advice="remove the column from the schema, or read the file with Spark's own Parquet source, which "
                "accepts decryption keys",
            ) from error


def wrong_footer(parquet: OpenParquet, what: str) -> DataError:
    """Return the DataError for a footer that contradicts itself or the data; `what` is the contradiction."""
    return damaged_file(f"the footer of {parquet.path} is wrong: {what}")


_FOOTER_BUFFER = 64 << 10
_RELEASE_SECONDS = 1.0
_RELEASE_POLL_SECONDS = 50e-6
_MAGIC = b"PAR1"
_ENCRYPTED_FOOTER = b"PARE"
# Since pyarrow 21, types such as UUID or JSON are extension types by default.
_EXTENSIONS: dict[str, Any] = {"arrow_extensions_enabled": False}
if "arrow_extensions_enabled" not in inspect.signature(pq.ParquetFile.__init__).parameters:
    _EXTENSIONS.clear()


@dataclass(frozen=True, slots=True)
class OpenParquet:
    """A Parquet file whose footer has been read.

    Args:
        path: The path of the file, for errors.
        metadata: The footer. `metadata.row_group(i).column(j)` ends the process if the metadata of the column are
            encrypted or damaged: call `check_columns` before.
        signed: Whether a signature follows the footer, which only files with encrypted columns have.
        unreadable: The columns of the file that Arrow cannot express, with what it says of each. `metadata` has only
            the other columns.
    """

    path: str
    metadata: pq.FileMetaData
    signed: bool
    unreadable: Mapping[str, str]
    _source: pa.PythonFile
    _checked: _Checked

    def expect(self, groups: Sequence[int], columns: Sequence[int]) -> None:
        """Announce to the stream which column chunks will be read. Call `check_columns` before."""
        announce = getattr(self._checked.raw, "expect", None)  # streams of stores for which requests are slow have it
        if announce is not None:
            rows = [self.metadata.row_group(group) for group in groups]
            announce([[_chunk(row.column(column)) for column in columns] for row in rows])

    def check_columns(self, groups: Sequence[int], columns: Sequence[str]) -> None:
        """Check the metadata of columns, given by path, in some row groups. Reads nothing.

        Arrow builds its metadata of columns when it plans to read ahead, and raises an error if they are damaged.
        `_Checked` refuses the planned read.

        Raises:
            OSError: The metadata are encrypted or damaged.
        """
        if not groups or not columns:
            return
        file = pq.ParquetFile(self._source, metadata=self.metadata, pre_buffer=True, **_EXTENSIONS)
        refusals: weakref.WeakSet[_ReadRefused] = weakref.WeakSet()
        self._checked.refusals = refusals
        try:
            next(file.iter_batches(1, groups, columns, use_threads=False), None)
        except _ReadRefused as refused:
            # Arrow's reader keeps the exception, whose traceback keeps this frame, and so the reader.
            refused.__traceback__ = None
        finally:
            self._checked.refusals = None
        del file
        _await_release(refusals)

    def file(self, buffer_bytes: int = _FOOTER_BUFFER) -> pq.ParquetFile:
        """Return Arrow's reader of the file.

        The reader reads `buffer_bytes` of a column at a time; with 0, whole column chunks.
        """
        return pq.ParquetFile(
            self._source,
            metadata=self.metadata,
            buffer_size=buffer_bytes,
            pre_buffer=False,
            coerce_int96_timestamp_unit="us",
            **_EXTENSIONS,
        )


def _chunk(column: pq.ColumnChunkMetaData) -> tuple[int, int]:
    """Return the start and end of a column chunk in the file, in bytes."""
    start = min(filter(None, (column.dictionary_page_offset, column.data_page_offset)), default=0)
    return start, start + column.total_compressed_size


@contextmanager
def opened(file: InputFile) -> Iterator[OpenParquet]:
    """Open a file for a `with` block, and read its footer. Errors of the store are raised unchanged.

    Raises:
        DataError: The file is damaged or not a Parquet file; also raised inside the `with` block.
    """
    with file.open() as raw:
        checked = _Checked(raw)
        try:
            source = pa.PythonFile(checked, mode="r")
            yield _opened(source, checked, file)
        except (ForebayError, MemoryError):
            raise
        except pa.ArrowNotImplementedError as error:
            raise ConfigurationError(
                f"{file.path} uses a feature of Parquet that Arrow cannot read: {error}",
                advice="remove the column with this feature from the schema, or write the file again without it",
            ) from error
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # UnicodeDecodeError: from a column's name
            if checked.failure is not None:
                raise checked.failure from None
            raise damaged_file(f"{file.path} is not a complete Parquet file: {error}") from error


def _opened(source: pa.PythonFile, checked: _Checked, file: InputFile) -> OpenParquet:
    try:
        metadata = _footer(source, checked, file.path)
        pq.ParquetFile(source, metadata=metadata, **_EXTENSIONS)  # converts the schema
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        start = file.size - 8 - checked.footer_bytes
        if checked.failure is not None or start < 0 or checked.tail[4:] != _MAGIC:
            raise
        checked.seek(start)
        footer = _parsed(checked.read(checked.footer_bytes))
        unreadable = {} if footer is None else _unreadable(footer)
        if footer is None or not unreadable:
            raise
        readable = footer.file_with([index for index in range(len(footer.columns)) if index not in unreadable])
        reasons = {footer.columns[index].name: reason for index, reason in unreadable.items()}
        return OpenParquet(
            file.path, pq.read_metadata(pa.BufferReader(readable)), footer.signed, reasons, source, checked
        )
    signed = metadata.serialized_size < checked.footer_bytes
    return OpenParquet(file.path, metadata, signed, {}, source, checked)


def _parsed(data: bytes) -> Footer | None:
    try:
        return Footer(data)
    except ValueError:
        return None


def _unreadable(footer: Footer) -> dict[int, str]:
    """Return the columns that Arrow cannot express, with its reasons; none if the fault is not in columns alone."""
    if _problem(footer.file_with(())) is not None:
        return {}
    unreadable: dict[int, str] = {}

    def search(columns: Sequence[int]) -> None:
        problem = _problem(footer.file_with(columns))
        if problem is not None and len(columns) == 1:
            unreadable[columns[0]] = problem
        elif problem is not None:
            search(columns[: len(columns) // 2])
            search(columns[len(columns) // 2 :])

    search(range(len(footer.columns)))
    readable = [index for index in range(len(footer.columns)) if index not in unreadable]
    return unreadable if _problem(footer.file_with(readable)) is None else {}


def _problem(file: bytes) -> str | None:
    """Return what Arrow says of the schema of a file; None if it can express it."""
    try:
        pq.ParquetFile(pa.BufferReader(file), **_EXTENSIONS)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        return str(error)
    return None


def _footer(source: pa.PythonFile, checked: _Checked, path: str) -> pq.FileMetaData:
    try:
        return pq.read_metadata(source)
    except OSError as error:
        if checked.tail[4:] != _ENCRYPTED_FOOTER:
            raise
        raise ConfigurationError(
            f"{path} is a Parquet file with an encrypted footer: {error}",
            advice="read it with Spark's own Parquet source, which accepts decryption keys",
        ) from error


class _ReadRefused(Exception):
    """Raised for a read during `check_columns`, which needs no data."""


def _await_release(refusals: weakref.WeakSet[_ReadRefused]) -> None:
    """Wait until no thread of Arrow holds a refused read. Freeing one while Python exits would end the process."""
    deadline = time.monotonic() + _RELEASE_SECONDS
    while refusals and time.monotonic() < deadline:
        time.sleep(_RELEASE_POLL_SECONDS)


class _Checked(io.RawIOBase):
    """A file as Arrow's reader sees it. Each read returns the full length, and `failure` keeps errors of the store."""

    def __init__(self, raw: BinaryIO) -> None:
        self.raw = raw
        self.failure: Exception | None = None
        self.refusals: weakref.WeakSet[_ReadRefused] | None = None
        """The refused reads that are still referenced; None if reads are not refused."""
        self.tail = b""
        """The last bytes of the first read, which reads the end of the file: the footer's length and a magic number."""

    @property
    def footer_bytes(self) -> int:
        """The length of the footer in bytes, including its signature."""
        return int.from_bytes(self.tail[:4], "little")

    def read(self, size: int = -1, /) -> bytes:
        if self.refusals is not None:
            refused = _ReadRefused()
            self.refusals.add(refused)
            raise refused
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
