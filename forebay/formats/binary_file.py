# SPDX-License-Identifier: Apache-2.0
"""The binary file format: one row per file, with its path, time of change, length and content."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from forebay.errors import ConfigurationError, DataError
from forebay.formats.base import FileFormat, InputFile, batch_of
from forebay.formats.compression.codecs import read_fully
from forebay.options import option
from forebay.stores.paths import is_url
from forebay.stores.stored_file import StoredFile

BINARY_FILE_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("modificationTime", pa.timestamp("us", "UTC")),
        ("length", pa.int64()),
        ("content", pa.binary()),
    ]
)
_MOST_BYTES = 2**31 - 1
"""Bytes of the longest value of a binary column, in Spark and in Arrow."""


@dataclass(frozen=True, kw_only=True)
class BinaryFileOptions:
    """The options of binary files."""

    max_record_bytes: int = option(
        default=_MOST_BYTES, doc="bytes; a longer file is an error if its column content is read"
    )

    def __post_init__(self) -> None:
        if not 0 < self.max_record_bytes <= _MOST_BYTES:
            raise ConfigurationError(
                f"the option maxRecordBytes is {self.max_record_bytes}, which is out of range",
                option="maxRecordBytes",
                advice=f"give a number from 1 to {_MOST_BYTES}",
            )


@dataclass(frozen=True)
class BinaryFileFormat(FileFormat):
    """Reads each file as one row. Reads the content of a file only if the column `content` is selected."""

    options: BinaryFileOptions = BinaryFileOptions()

    name: ClassVar[str] = "binaryFile"
    options_class: ClassVar[type] = BinaryFileOptions
    fixed_schema: ClassVar[bool] = True
    refused: ClassVar[Mapping[str, str]] = {}

    def infer_schema(self, files: Sequence[InputFile]) -> pa.Schema:
        """Return the columns `path`, `modificationTime`, `length` and `content`."""
        return BINARY_FILE_SCHEMA

    def sliceable(self, file: InputFile) -> bool:
        """Return False: a file is one row."""
        return False

    def read(
        self,
        file: InputFile,
        schema: pa.Schema,
        *,
        columns: Sequence[str] | None = None,
        position: int = 0,
        end: int | None = None,
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """See `FileFormat.read`. `schema` may have any subset of the columns of `infer_schema`."""
        for field in schema:
            at = BINARY_FILE_SCHEMA.get_field_index(field.name)
            if at < 0 or BINARY_FILE_SCHEMA.field(at).type != field.type:
                raise ConfigurationError(
                    f"binary files have no column {field.name!r} of type {field.type}",
                    option="schema",
                    advice="leave the schema out, or use only the columns path STRING, modificationTime TIMESTAMP, "
                    "length BIGINT and content BINARY",
                )
        if position or end == 0:
            return
        projected = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        arrays = [self._column(file, name) for name in projected.names]
        yield batch_of(arrays, projected, 1), max(1, file.size)

    def _column(self, file: InputFile, name: str) -> pa.Array:
        data_type = BINARY_FILE_SCHEMA.field(name).type
        match name:
            case "path":
                return pa.array([file.path if is_url(file.path) else f"file:{file.path}"], data_type)
            case "modificationTime":
                status = file.status if isinstance(file, StoredFile) else None
                known = status is not None and status.has_time
                return pa.array([status.modified_ms * 1000 if status and known else None], pa.int64()).cast(data_type)
            case "length":
                return pa.array([file.size], data_type)
        content = self._content(file)
        offsets = pa.array([0, len(content)], pa.int32()).buffers()[1]
        return pa.Array.from_buffers(data_type, 1, [None, offsets, pa.py_buffer(content)])

    def _content(self, file: InputFile) -> bytes:
        if file.size > self.options.max_record_bytes:
            raise DataError(
                f"the file {file.path} is longer than {self.options.max_record_bytes} bytes",
                position="byte 0",
                option="maxRecordBytes",
                advice="leave the column content out of the option `columns`, or raise maxRecordBytes (at most 2 GB)",
            )
        with file.open() as raw:
            content = bytes(read_fully(raw.read, file.size))
        if len(content) < file.size:
            raise DataError(
                f"{file.path} ends after {len(content)} bytes, but was listed with {file.size} bytes",
                advice="run the query again, because the file may have changed while it was read",
            )
        return content
