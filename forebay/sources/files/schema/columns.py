# SPDX-License-Identifier: Apache-2.0
"""Adds the columns whose values are not in the files: partition columns and `_metadata`."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from forebay.formats.values.zones import session_zone
from forebay.sources.files.listing.partition_values import partition_value
from forebay.sources.files.listing.partitions import merge_schema
from forebay.stores.file_status import FileStatus, spark_file_name, spark_file_path

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
        both = name in inside and name in outside
        # As text: Spark reads metadata of columns as UTF-8.
        metadata = {_INSIDE: b64encode(pa.schema([inside[name]]).serialize())} if both else None
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
