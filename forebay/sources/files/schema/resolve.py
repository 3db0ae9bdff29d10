# SPDX-License-Identifier: Apache-2.0
"""Infers the schema of a file source from its files and directories, and checks a schema that the user gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import BinaryIO, overload

import pyarrow as pa

from forebay.errors import ConfigurationError, DataError
from forebay.formats.values.column_names import same_names
from forebay.framework.arrow.nesting import refuse_deep
from forebay.sources.files.format_hint import unknown_format
from forebay.sources.files.read_errors import is_readable, with_file
from forebay.sources.files.scan import FileScan
from forebay.sources.files.schema.columns import (
    METADATA,
    adds_metadata,
    is_metadata_type,
    metadata_type,
    with_own_metadata,
    with_partitions,
)
from forebay.sources.files.small_files import AHEAD, SmallFiles
from forebay.sources.files.split import FileSplit
from forebay.stores.file_status import FileStatus
from forebay.stores.stored_file import StoredFile

_MOST_LEVELS = 200
"""Readers of formats and converters of types recurse, some by three calls a level; Python allows 1,000."""
_DEEPEST = "file formats read"


def inferred_schema(source: FileScan) -> pa.Schema:
    """Infer the schema from files and directories, with `_metadata` if the options request it. Accesses the stores.

    Raises:
        ConfigurationError: No file has records to infer from, or the files already have a column `_metadata`.
        DataError: A file is damaged.
        RetriableError: The store did not answer.
    """
    index = source.list()
    source.keep_listing(index)
    if not index.files and source.chosen_format() is None:
        raise unknown_format(source.all_paths(), (), source.name)
    if not index.files and not source.format().fixed_schema:
        raise ConfigurationError(
            f"there are no files to infer a schema from below {', '.join(source.all_paths())}",
            source=source.name,
            option="path",
            advice="check path, pathGlobFilter, modifiedBefore and modifiedAfter, or give a schema",
        )
    schema = with_partitions(_inside(source, index.files), index.partition_schema)
    if not schema.names:
        raise ConfigurationError(
            f"no column can be inferred from the files below {', '.join(source.all_paths())}: they hold no record, or "
            "records without a field",
            source=source.name,
            option="path",
            advice="give a schema",
        )
    refuse_deep(schema, _MOST_LEVELS, _DEEPEST, source.name)
    if not source.include_metadata:
        return with_own_metadata(schema)
    if METADATA in schema.names:
        raise ConfigurationError(
            f"includeMetadata=true adds a column {METADATA}, but the files already have a column of this name",
            source=source.name,
            option="includeMetadata",
            advice="remove includeMetadata, or give a schema without that column",
        )
    return schema.append(pa.field(METADATA, metadata_type(source.format_name())))


def _inside(source: FileScan, files: Sequence[FileStatus]) -> pa.Schema:
    """Infer the schema of the columns in the files. Leave out unreadable files if the options allow it."""
    file_format = source.format()
    stored = _StoredFiles(source, files)
    infer = file_format.merged_schema if source.adds_columns else file_format.infer_schema
    try:
        return infer(stored)
    except DataError as error:
        kept = [one for one in stored if is_readable(source, file_format, one)]
        if not 0 < len(kept) < len(stored):
            raise with_file(error, source) from error.__cause__
        return infer(kept)
    finally:
        stored.close()


class _StoredFiles(Sequence[StoredFile]):
    """Listed files as `StoredFile`s, which formats can open; created on access, as a listing may have a million files.

    If a format opens two successive files, the next small S3 objects are requested in advance. Iteration without
    opening requests nothing, because a format may sort the files and open only one of them.
    """

    def __init__(self, source: FileScan, files: Sequence[FileStatus]) -> None:
        self._source = source
        self._files = files
        self._small_files = SmallFiles(source.stored)
        self._last: int | None = None

    def __len__(self) -> int:
        return len(self._files)

    @overload
    def __getitem__(self, index: int) -> StoredFile: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[StoredFile]: ...

    def __getitem__(self, index: int | slice) -> StoredFile | Sequence[StoredFile]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        number = range(len(self))[index]
        stored = self._source.stored(self._files[number])
        return _InferredFile(stored.status, stored.storage, stored.read_to, open_in=partial(self._open, number))

    def close(self) -> None:
        """Cancel the requests of files that were not opened."""
        self._small_files.close()

    def _open(self, number: int) -> BinaryIO:
        if self._last is not None and number == self._last + 1:
            self._small_files.request(FileSplit.of(one, ()) for one in self._files[number : number + AHEAD])
        elif number != self._last:
            self._small_files.close()
        self._last = number
        return self._small_files.take(FileSplit.of(self._files[number], ())).open()


@dataclasses.dataclass(frozen=True)
class _InferredFile(StoredFile):
    """A listed file that calls `open_in` when a format opens it. For one thread at a time; not picklable."""

    open_in: Callable[[], BinaryIO] = dataclasses.field(kw_only=True, repr=False, compare=False)

    def open(self) -> BinaryIO:
        """Open the file by `open_in`, which uses requests sent in advance."""
        return self.open_in()


def check_schema(source: FileScan, schema: pa.Schema) -> None:
    """Refuse a schema with duplicate column names, a VARIANT column, or a `_metadata` of another type than Spark's.

    Raises:
        ConfigurationError: A column is refused. The error names it.
    """
    refuse_deep(schema, _MOST_LEVELS, _DEEPEST, source.name)
    if adds_metadata(schema) and not is_metadata_type(schema.field(METADATA).type, source.format_name()):
        raise ConfigurationError(
            f"the schema gives the column {METADATA} the type {schema.field(METADATA).type}, which has other fields "
            f"than Spark's type {metadata_type(source.format_name())}",
            source=source.name,
            option="schema",
            advice="remove the column from the schema and set includeMetadata=true; or, if the files have a column of "
            "this name, give no schema",
        )
    variant = _variant_in(schema)
    if variant is not None:
        raise ConfigurationError(
            f"the column {variant!r} is VARIANT, which the file formats do not support",
            source=source.name,
            option="schema",
            advice="remove the column, or declare it as STRING and convert it with parse_json in the query",
        )
    same = same_names(schema, case_sensitive=False)
    if same is not None and source.format().case_sensitive:
        same = same_names(schema, case_sensitive=True)
    if same is not None:
        raise ConfigurationError(
            f"in the schema, {same}",
            source=source.name,
            option="schema",
            advice="rename or remove one of the two columns; for Parquet and ORC files, caseSensitive=true "
            "distinguishes names by case",
        )


def _variant_in(fields: Iterable[pa.Field]) -> str | None:
    """Return the path of the first column of the type VARIANT; None if there is none.

    In Arrow, such a column is a struct with a field whose metadata Spark sets to `variant=true`.
    """
    for field in fields:
        inside = [field.type.field(number) for number in range(field.type.num_fields)]
        if any((part.metadata or {}).get(b"variant") == b"true" for part in inside):
            return field.name
        found = _variant_in(inside)
        if found is not None:
            return f"{field.name}.{found}"
    return None
