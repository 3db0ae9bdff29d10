# SPDX-License-Identifier: Apache-2.0
"""The schema of a file source: columns inferred or given by the user, partition columns, `_metadata`."""

from __future__ import annotations

import dataclasses
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import BinaryIO, overload

import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError, DataError
from forebay.formats.base import FileFormat
from forebay.formats.values.columns import same_names
from forebay.formats.values.dates import session_zone
from forebay.framework.arrow.casting import refuse_deep
from forebay.sources.files.catalog import unknown_format
from forebay.sources.files.partitions import merge_schema, partition_value
from forebay.sources.files.scan import FileScan, is_readable, with_file
from forebay.sources.files.small_files import AHEAD, SmallFiles
from forebay.sources.files.split import FileSplit
from forebay.stores.file_status import FileStatus, spark_file_name, spark_file_path
from forebay.stores.stored_file import StoredFile

# -- Detects new columns in later files of a stream (`schemaEvolution=addNewColumns`).
#
# Spark fixes the schema of a query when the query starts. So a file with a new column ends the query before the
# micro-batch is committed. A restart infers the schema again, from old and new files.


def check_evolution(source: FileScan) -> None:
    """Refuse `schemaEvolution=addNewColumns` for a stream whose schema the user or the file format has fixed.

    Raises:
        ConfigurationError: `addNewColumns` is set, but the schema is not inferred from the files.
    """
    if not source.adds_columns or (source.schema_inferred and not source.format().fixed_schema):
        return
    fixed = f"the columns of {source.format_name()} files are fixed" if source.schema_inferred else "a schema is given"
    raise ConfigurationError(
        f"schemaEvolution=addNewColumns needs an inferred schema, but {fixed}",
        source=source.name,
        option="schemaEvolution",
        advice="remove schemaEvolution, or give no schema so that forebay infers it; to add columns to a given schema, "
        "restart the query with another schema",
    )


def check_new_columns(source: FileScan, file_format: FileFormat, stored: StoredFile, schema: pa.Schema) -> None:
    """Refuse a file with columns that `schema` lacks. Called on a fetcher thread before the file is read.

    Raises:
        DataError: There are such columns. The error names the file and the columns.
    """
    try:
        merged = file_format.merged_schema([stored])
    except DataError:
        return  # the read will find the same damage, and may keep the rows before it
    added = list(_added(schema, merged))
    if added:
        columns = ", ".join(map(repr, added))
        raise DataError(
            f"the file {stored.path!r} has new columns, which are not in the schema of this query: {columns}",
            source=source.name,
            split=stored.path,
            option="schemaEvolution",
            advice="restart the query from load(): load() infers the schema again, and the query reads this file "
            "with the new columns",
        )


def _added(known: Iterable[pa.Field], fields: Iterable[pa.Field], above: str = "") -> Iterator[str]:
    """Yield the dotted paths of fields that `fields` has and `known` lacks, also inside structs, arrays and maps."""
    before = {field.name.lower(): field.type for field in known}
    for field in fields:
        path = above + field.name
        kind = before.get(field.name.lower())
        if kind is None:
            yield path
        else:
            yield from _added(_inside_struct(kind), _inside_struct(field.type), f"{path}.")


def _inside_struct(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(at) for at in range(kind.num_fields)]


# -- Adds the columns whose values are not in the files: partition columns and `_metadata`.


METADATA = "_metadata"
_ROW_INDEX = "row_index"
_INSIDE = b"files.inside"  # without the prefix of what `stamp` adds, which hosts pass on to Spark
"""Field metadata key: for a partition column that is also in the files, the column's field in the files."""
_OF_FILE = b"files.own"
"""Field metadata key: marks an inferred column `_metadata` that the files themselves have."""
_FIELDS = (
    pa.field("file_path", pa.string()),
    pa.field("file_name", pa.string()),
    pa.field("file_size", pa.int64()),
    pa.field("file_block_start", pa.int64()),
    pa.field("file_block_length", pa.int64()),
    pa.field("file_modification_time", pa.timestamp("us", "UTC")),
)


def metadata_type(format_name: str) -> pa.StructType:
    """Return the type of Spark's hidden column `_metadata` for a file format. For Parquet it also has `row_index`."""
    return pa.struct([*_FIELDS, *([pa.field(_ROW_INDEX, pa.int64())] if format_name == "parquet" else [])])


def adds_metadata(schema: pa.Schema) -> bool:
    """Return whether `_metadata` in a schema is Spark's hidden column. Of another type, it is a column of the files."""
    at = schema.get_field_index(METADATA)
    field = None if at < 0 else schema.field(at)
    return field is not None and isinstance(field.type, pa.StructType) and _OF_FILE not in (field.metadata or {})


def with_own_metadata(schema: pa.Schema) -> pa.Schema:
    """Return a schema inferred from files whose column `_metadata`, if they have one, is read from them."""
    at = schema.get_field_index(METADATA)
    return schema if at < 0 else schema.set(at, schema.field(at).with_metadata({_OF_FILE: b"1"}))


def is_metadata_type(data_type: pa.DataType, format_name: str) -> bool:
    """Return whether every field of the user's type for `_metadata` is also in Spark's type of that column."""
    if not isinstance(data_type, pa.StructType) or not data_type.num_fields:
        return False
    known = {field.name: field.type for field in metadata_type(format_name)}
    return all(known.get(field.name) == field.type for field in data_type)


def metadata_value(status: FileStatus, start: int, length: int, data_type: pa.DataType) -> pa.Scalar:
    """Return the value of `_metadata` for a slice of a file; the field `row_index` is null.

    Args:
        status: The file.
        start: The first byte of the slice.
        length: The number of bytes of the slice.
        data_type: The type of the column `_metadata`.
    """
    values = {
        "file_path": spark_file_path(status.path),
        "file_name": spark_file_name(status.path),
        "file_size": status.size,
        "file_block_start": start,
        "file_block_length": length,
        "file_modification_time": status.modified_ms * 1000,
    }
    return pa.scalar(values, data_type)


def nullable(schema: pa.Schema) -> pa.Schema:
    """Return the schema with all fields nullable, also nested ones."""
    return pa.schema([_nullable(field) for field in schema], schema.metadata)


def _nullable(field: pa.Field) -> pa.Field:
    return field.with_type(_nullable_type(field.type)).with_nullable(True)


def _nullable_type(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.StructType):
        return pa.struct([_nullable(kind.field(number)) for number in range(kind.num_fields)])
    if isinstance(kind, pa.MapType):
        return pa.map_(kind.key_field.with_type(_nullable_type(kind.key_type)), _nullable(kind.item_field))
    if isinstance(kind, pa.ListType):
        return pa.list_(_nullable(kind.value_field))
    return kind


def with_partitions(data: pa.Schema, partition: pa.Schema) -> pa.Schema:
    """Return the schema of a table from the files' columns and the partition columns.

    A partition column that is also in the files takes its value from the directory. The metadata of the column keeps
    the files' field, because CSV matches columns by position.
    """
    inside = {field.name.lower(): field for field in data}
    outside = {field.name.lower() for field in partition}
    fields = []
    for field in merge_schema(data, partition):
        name = field.name.lower()
        in_both = name in inside and name in outside
        # As text: Spark reads metadata of columns as UTF-8.
        metadata = {_INSIDE: b64encode(pa.schema([inside[name]]).serialize())} if in_both else None
        fields.append(field.with_metadata(metadata))
    return pa.schema(fields)


def data_schema(full: pa.Schema, partitions: Iterable[str]) -> pa.Schema:
    """Return the schema of the columns that are in the files. `partitions` are the names of the partition columns."""
    outside = {*([METADATA] if adds_metadata(full) else []), *(name.lower() for name in partitions)}
    fields = []
    for field in full:
        inside = (field.metadata or {}).get(_INSIDE)
        if field.name.lower() not in outside:
            fields.append(field)
        elif inside is not None:
            fields.append(pa.ipc.read_schema(pa.py_buffer(b64decode(inside))).field(0))
    return pa.schema(fields)


def partition_scalars(partitions: Mapping[str, str], schema: pa.Schema, zone: str) -> dict[str, pa.Scalar]:
    """Convert the raw partition values of a file; return them by column name, for the columns of `schema`.

    Raises:
        ConfigurationError: A value does not have the type of its column.
    """
    texts = {name.lower(): text for name, text in partitions.items()}
    return {
        field.name: partition_value(texts[field.name.lower()], field.type, session_zone(zone), field.name)
        for field in schema
        if field.name.lower() in texts
    }


def assemble(
    batch: pa.RecordBatch, constants: Mapping[str, pa.Scalar], schema: pa.Schema, after: int
) -> pa.RecordBatch:
    """Add partition columns and `_metadata` to a record batch that a file format has decoded.

    Args:
        batch: The columns that are in the file.
        constants: The values of the added columns, by column name.
        schema: The columns of the result, in order.
        after: The position in the file after the batch. For Parquet, a position is a row index.
    """
    if not constants and batch.schema.equals(schema):
        return batch
    rows = batch.num_rows
    columns = [pa.repeat(constants[name], rows) if name in constants else batch.column(name) for name in schema.names]
    for index, field in enumerate(schema):
        if field.name == METADATA and METADATA in constants and isinstance(field.type, pa.StructType):
            columns[index] = _numbered(columns[index], field.type, after - rows)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _numbered(array: pa.Array, data_type: pa.StructType, first: int) -> pa.Array:
    """Set the field `row_index` of a `_metadata` column, counting from `first`, if its type has this field."""
    at = data_type.get_field_index(_ROW_INDEX)
    if at < 0:
        return array
    parts = [pc.struct_field(array, [number]) for number in range(data_type.num_fields)]
    parts[at] = pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), len(array)), start=first - 1)
    return pa.StructArray.from_arrays(parts, fields=list(data_type))


# -- Infers the schema of a file source from its files and directories, and checks a schema that the user gives.


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
        readable = [file for file in stored if is_readable(source, file_format, file)]
        if not 0 < len(readable) < len(stored):
            raise with_file(error, source) from error.__cause__
        return infer(readable)
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
            self._small_files.request(FileSplit.of(file, ()) for file in self._files[number : number + AHEAD])
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
        variant = _variant_in(inside)
        if variant is not None:
            return f"{field.name}.{variant}"
    return None
