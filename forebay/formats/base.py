# SPDX-License-Identifier: Apache-2.0
"""The contract of a file format: bytes of one file in, Arrow record batches with positions out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, BinaryIO, ClassVar, NamedTuple, Protocol, cast

import pyarrow as pa

from forebay.errors import DataError
from forebay.formats.filters.expressions import Expression

IGNORE_CORRUPT_FILES = "ignoreCorruptFiles"
"""The option named in the error for a damaged file."""


class InputFile(Protocol):
    """A file in any store, which formats open and read. Frozen and picklable; safe to use from any thread."""

    @property
    def path(self) -> str:
        """The full URL or path, as error messages show it."""

    @property
    def size(self) -> int:
        """The size in bytes at the time of listing (compressed size for a compressed file)."""

    def open(self) -> BinaryIO:
        """Open for reading, seekable, unbuffered or lightly buffered; the caller closes it.

        A stream of a store for which requests are slow may have `expect(groups)`. It takes the ranges that the format
        will read, such as the column chunks of each row group as pairs of start and end, and fetches them ahead.

        Raises:
            DataError: The file no longer exists, or has changed since it was listed.
        """


@dataclass(frozen=True)
class NoOptions:
    """The options of a format without options."""


class JoinedContents(NamedTuple):
    """The contents of several files as the content of one file.

    Attributes:
        content: The input of `FileFormat.read`.
        rows: The number of rows of each file, valid if the read returns their sum.
    """

    content: bytes
    rows: Sequence[int]


class FileFormat(ABC):
    """Reads files of one format. Frozen and picklable; one object reads many files.

    A position is the start of the next record: a byte offset in the decompressed bytes, or a row index for Parquet. A
    record belongs to the slice `[position, end)` in which it starts. So slices of a sliceable file give every record
    once and in order, wherever it is cut.

    The file source creates a format by calling the class with an instance of `options_class`. A package offers its
    class by an entry point of the group `forebay.formats`.
    """

    name: ClassVar[str]
    options_class: ClassVar[type] = NoOptions
    """A frozen dataclass. Its fields are the options of the format, declared as those of a source."""
    refused: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Options of Spark's reader that this format refuses → why."""
    counts_rows: ClassVar[bool] = False
    """Whether positions are row indexes; else they are bytes."""
    fixed_schema: ClassVar[bool] = False
    """Whether the schema is known without a file."""

    def __init__(self, options: Any) -> None:  # noqa: ANN401 - an instance of options_class
        self.options = options

    @property
    def case_sensitive(self) -> bool:
        """Whether a schema may have two names that differ only in case."""
        return False

    @abstractmethod
    def infer_schema(self, files: Sequence[InputFile]) -> pa.Schema:
        """Return the schema of the files, as Spark's own reader would infer it. May read the files.

        Called once at planning time, when the user gave no schema.

        Args:
            files: The files, in a stable order; empty only for a format of a fixed schema.

        Raises:
            DataError: A file is damaged.
            ConfigurationError: No schema can be inferred, or an option contradicts the files.
        """

    def merged_schema(self, files: Sequence[InputFile]) -> pa.Schema:
        """Return the schema with the columns of all files; by default `infer_schema`, for formats that read them all.

        Called at planning time with all files, and on a fetcher thread with one, if columns may be added.

        Raises:
            DataError: A file is damaged, or two files have different types for a column.
            ConfigurationError: As `infer_schema`, or an option contradicts files with different columns.
        """
        return self.infer_schema(files)

    @abstractmethod
    def sliceable(self, file: InputFile) -> bool:
        """Return whether a planner may cut the file at any position; False if it is compressed. Reads no data."""

    def borders(self, file: InputFile, target_bytes: int) -> list[int]:
        """Return the inner positions that cut a file into slices of about `target_bytes`, ascending; [] for one slice.

        Called at planning time. An implementation must be cheap: it reads a footer at most. By default, a sliceable
        file is cut into equal slices, and any other file is one slice.
        """
        return even_borders(file.size, target_bytes) if self.sliceable(file) else []

    def matching_ranges(
        self, file: InputFile, schema: pa.Schema, row_filter: Expression, position: int, end: int | None
    ) -> Sequence[tuple[int, int | None]]:
        """Return the parts of `[position, end)` that may have rows which match; by default, all of it.

        Called on a fetcher thread before `read`, only for formats whose positions are row indexes (`counts_rows`).
        Must be cheap: reads a footer at most.

        Args:
            file: The file to read.
            schema: The full schema of the data in the file.
            row_filter: A filter that is bound to `schema`.
            position: Where to start.
            end: Where to stop, exclusive; None for the end of the file.
        """
        return [(position, end)]

    def join(self, contents: Sequence[bytes]) -> JoinedContents | None:
        """Return the contents of small files as one, which one read parses; None (the default) if that is not safe.

        Called on a fetcher thread, for sliceable files. A read of the joined content must return the rows of the files
        in order, or raise a ForebayError, or return another number of rows. Then each file is read alone.

        Args:
            contents: The whole content of each file; at least two.
        """
        return None

    @abstractmethod
    def read(
        self,
        file: InputFile,
        schema: pa.Schema,
        *,
        columns: Sequence[str] | None = None,
        position: int = 0,
        end: int | None = None,
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Read the records that start in `[position, end)`, as pairs of a record batch and the position after it.

        Called on a fetcher thread. A generator: closing it closes the file. Memory is bounded for a file of any size.

        Args:
            file: The file to read.
            schema: The full schema of the data in the file.
            columns: The columns wanted, in the order wanted; None for all of `schema`. Every batch has exactly these
                columns, with the types of `schema`.
            position: Where to start: 0, an inner border, any number if the file is sliceable, or a yielded position.
            end: Where to stop, exclusive; None for the end of the file.

        Raises:
            DataError: The file is damaged, or a record is malformed and the mode does not allow that.
            ConfigurationError: This format cannot read a type of `schema`.
        """


def damaged_file(message: str, *, source: str | None = None) -> DataError:
    """Return a DataError with `message` for a file that is damaged as a whole.

    `ignoreCorruptFiles` skips such files.
    """
    return DataError(
        message,
        source=source,
        option=IGNORE_CORRUPT_FILES,
        advice="replace the file, or set ignoreCorruptFiles=true to skip it",
    )


def even_borders(size: int, target_bytes: int) -> list[int]:
    """Return the inner positions that cut `size` bytes into the fewest equal slices of at most `target_bytes`."""
    slices = -(-size // max(1, target_bytes))
    return [size * number // slices for number in range(1, slices)]


def batch_of(arrays: Sequence[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Return a record batch with the given number of rows, even if it has no columns."""
    if not arrays:
        empty = pa.Array.from_buffers(pa.struct([]), rows, [None])
        return pa.RecordBatch.from_struct_array(cast("pa.StructArray", empty))
    return pa.RecordBatch.from_arrays(list(arrays), schema=schema)
