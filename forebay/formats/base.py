# SPDX-License-Identifier: Apache-2.0
"""The contract of a file format: bytes of one file in, Arrow record batches with positions out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, BinaryIO, ClassVar, NamedTuple, Protocol, cast

import pyarrow as pa

from forebay.errors import DataError
from forebay.formats.filters import Expression

IGNORE_CORRUPT_FILES = "ignoreCorruptFiles"
"""The option that skips damaged files. The error for a damaged file names it."""


class InputFile(Protocol):
    """A file in a local or remote store, as formats see it. Immutable, picklable and thread-safe."""

    @property
    def path(self) -> str:
        """The full URL or path, as error messages show it."""

    @property
    def size(self) -> int:
        """The size in bytes at the time of listing (compressed size for a compressed file)."""

    def open(self) -> BinaryIO:
        """Open the file as a seekable stream with no buffer or a small one. The caller closes the stream.

        The stream of a store with slow requests may also have a method `expect(groups, *, whole=None)`. A format passes
        it the ranges that it will read, as pairs of start and end: one list for each row group or stripe. The stream
        prefetches them, and may fetch a group of up to `whole` bytes as a whole.

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
        rows: The expected number of rows of each file. The numbers are right if a read of `content` returns their sum.
    """

    content: bytes
    rows: Sequence[int]


class FileFormat(ABC):
    """Reads files of one format. Frozen and picklable; one object reads many files.

    A position is the start of the next record: an offset in the decompressed bytes, or a row index (`counts_rows`). A
    record belongs to the slice `[position, end)` in which it starts. So the slices of a sliceable file give every
    record once and in order, wherever the file is cut.

    The file source creates a format by calling the class with an instance of `options_class`. A package offers its
    class by an entry point of the group `forebay.formats`.
    """

    name: ClassVar[str]
    options_class: ClassVar[type] = NoOptions
    """A frozen dataclass whose fields are the options of the format. They are declared like the options of a source."""
    refused: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Maps each option of Spark's reader that this format refuses to the reason."""
    counts_rows: ClassVar[bool] = False
    """Whether positions are row indexes instead of byte offsets."""
    fixed_schema: ClassVar[bool] = False
    """Whether the schema is known without reading a file."""

    def __init__(self, options: Any) -> None:  # noqa: ANN401 - an instance of options_class
        self.options = options

    @property
    def case_sensitive(self) -> bool:
        """Whether a schema may have two columns whose names differ only in case."""
        return False

    @abstractmethod
    def infer_schema(self, files: Sequence[InputFile]) -> pa.Schema:
        """Return the schema of the files, as Spark's own reader would infer it. May read the files.

        Called once at planning time, when the user gave no schema.

        Args:
            files: The files, in a stable order; empty only for a format with `fixed_schema`.

        Raises:
            DataError: A file is damaged.
            ConfigurationError: No schema can be inferred, or an option contradicts the files.
        """

    def merged_schema(self, files: Sequence[InputFile]) -> pa.Schema:
        """Return a schema with the columns of all files.

        The default returns `infer_schema(files)`, which suffices if that reads all files. Called at planning time with
        all files. If files may add columns to a stream, also called on a fetcher thread with one file.

        Raises:
            DataError: A file is damaged, or two files have different types for a column.
            ConfigurationError: As for `infer_schema`, or an option does not allow files with different columns.
        """
        return self.infer_schema(files)

    @abstractmethod
    def sliceable(self, file: InputFile) -> bool:
        """Return whether a planner may cut the file at any position; False if it is compressed. Reads no data."""

    def borders(self, file: InputFile, target_bytes: int) -> list[int]:
        """Return the ascending positions at which to cut a file into slices of about `target_bytes`; [] for one slice.

        Called at planning time. An implementation must be cheap: it reads a footer at most. By default, a sliceable
        file is cut into equal slices, and any other file is one slice.
        """
        return even_borders(file.size, target_bytes) if self.sliceable(file) else []

    def matching_ranges(
        self, file: InputFile, schema: pa.Schema, row_filter: Expression, position: int, end: int | None
    ) -> Sequence[tuple[int, int | None]]:
        """Return the ranges within `[position, end)` that may hold rows which match the filter; by default, all of it.

        Called on a fetcher thread before `read`, only for formats whose positions are row indexes (`counts_rows`).
        An implementation must be cheap: it reads a footer at most.

        Args:
            file: The file to read.
            schema: The full schema of the data in the file.
            row_filter: A filter that is bound to the columns of `schema`.
            position: Where to start.
            end: Where to stop, exclusive; None for the end of the file.
        """
        return [(position, end)]

    def join(self, contents: Sequence[bytes]) -> JoinedContents | None:
        """Join the contents of small files so that one `read` parses them; return None (the default) if that is unsafe.

        Called on a fetcher thread, for sliceable files. A read of the joined content must return the rows of the files
        in order. If it raises a ForebayError or returns another number of rows, the caller reads each file alone.

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
            columns: The names of the columns to return; None for all of `schema`. Every batch has exactly these
                columns, in this order, with the types of `schema`.
            position: Where to start: 0, a position from `borders` or from a read, or any number if sliceable.
            end: Where to stop, exclusive; None for the end of the file.

        Raises:
            DataError: The file is damaged, or a record is malformed and the option `mode` does not allow that.
            ConfigurationError: This format cannot read a type of `schema`.
        """


def damaged_file(message: str, *, source: str | None = None) -> DataError:
    """Return a DataError with `message` for a file that is damaged as a whole.

    With the option `ignoreCorruptFiles`, the file source skips such files.
    """
    return DataError(
        message,
        source=source,
        option=IGNORE_CORRUPT_FILES,
        advice="replace the file, or set ignoreCorruptFiles=true to skip it",
    )


def unfit_value(field: pa.Field, path: str, position: int | str, error: pa.ArrowInvalid) -> DataError:
    """Return the DataError for a value that Arrow cannot convert to the type of its column, as `error` says.

    `position` is that of the first record of the batch.
    """
    return DataError(
        f"a value of column {field.name!r} of {path} does not fit into {field.type}: {error}",
        option="schema",
        position=position,
        advice="give the column a wider type in the schema, or remove it",
    )


def even_borders(size: int, target_bytes: int) -> list[int]:
    """Return the offsets that cut `size` bytes into the fewest equal slices of at most `target_bytes`."""
    slices = -(-size // max(1, target_bytes))
    return [size * number // slices for number in range(1, slices)]


def part_borders(starts: Sequence[int], sizes: Iterable[int], target_bytes: int) -> list[int]:
    """Return the first rows of those parts of a file (row groups, stripes) that cut it into slices of `target_bytes`.

    Args:
        starts: The first row of each part, followed by the number of rows in the file.
        sizes: The size of each part in bytes.
        target_bytes: The wanted size of a slice.
    """
    cuts: list[int] = []
    filled = 0
    for row, size in zip(starts, sizes, strict=False):
        if row and filled and filled + size // 2 > target_bytes:
            cuts.append(row)
            filled = 0
        filled += size
    # Parts without rows begin where the next one does.
    return sorted({cut for cut in cuts if cut < starts[-1]})


def rows_between(batches: Iterable[pa.RecordBatch], skip: int, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield `rows` rows of `batches` from row `skip` on, without copying, and take no more batches than it needs."""
    for batch in batches:
        if skip >= batch.num_rows:
            skip -= batch.num_rows
            continue
        part = batch.slice(skip, rows) if skip or batch.num_rows > rows else batch
        skip = 0
        rows -= part.num_rows
        yield part
        if not rows:
            return


def batch_of(arrays: Sequence[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Return a record batch of `arrays`; without arrays, one that has no columns but still has `rows` rows."""
    if not arrays:
        empty = pa.Array.from_buffers(pa.struct([]), rows, [None])
        return pa.RecordBatch.from_struct_array(cast("pa.StructArray", empty))
    return pa.RecordBatch.from_arrays(list(arrays), schema=schema)
