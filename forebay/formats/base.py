# SPDX-License-Identifier: Apache-2.0
"""What a file format is: bytes of one file in, Arrow record batches with positions out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import pyarrow as pa

    from forebay.formats.input_file import InputFile


class FileFormat(ABC):
    """Reads files of one format. Frozen and picklable, built from its options; one object reads many files.

    A position is an int that says where the next record starts: for text-like formats a byte offset in the
    decompressed bytes, for Parquet a row index. A record belongs to the slice `[position, end)` in which it starts.
    So any cuts of a sliceable file give every record once and in order, and what was read up to a yielded position
    plus what is read from there is the whole file.
    """

    name: ClassVar[str]

    @abstractmethod
    def infer_schema(self, files: Sequence[InputFile]) -> pa.Schema:
        """The schema of the files, as Spark's own reader would infer it. May read them.

        Called once at planning time, when the user gave no schema.

        Args:
            files: The files concerned, in a stable order; never empty.

        Raises:
            DataError: A file is damaged.
            ConfigurationError: No schema can be inferred, or the options do not fit the files.
        """

    @abstractmethod
    def sliceable(self, file: InputFile) -> bool:
        """Whether a planner may cut the file at arbitrary positions; not if it is compressed. Reads no data."""

    @abstractmethod
    def borders(self, file: InputFile, target_bytes: int) -> list[int]:
        """Inner positions at which to cut the file into slices of about `target_bytes`, ascending; [] for one slice.

        Called at planning time. Cheap: reads no data (Parquet reads the footer).
        """

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
            columns: The columns wanted, in the order wanted; None for all of `schema`. Every batch has exactly
                these, with the types of `schema`.
            position: Where to start: 0, an inner border, any number if the file is sliceable, or one yielded before.
            end: Where to stop, exclusive; None for the end of the file.

        Raises:
            DataError: The file or a record is damaged and the mode does not say to go on.
            ConfigurationError: A type of `schema` cannot be read from this format.
        """
