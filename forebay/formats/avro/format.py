# SPDX-License-Identifier: Apache-2.0
"""Reads Avro files as spark-avro does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError, DataError
from forebay.formats.avro.blocks import ContainerBlock, ContainerHeader, Decoder, read_blocks, read_header
from forebay.formats.avro.schema import OPTION, TYPES, Node, Resolver, parse_schema, spark_type
from forebay.formats.base import FileFormat, batch_of, unfit_value
from forebay.formats.units import Malformed, wrap_damage
from forebay.formats.values.columns import (
    Convert,
    Place,
    chain,
    check_names,
    folded,
    list_of,
    map_of,
    mismatch,
    place_of,
    repeated,
    struct_of,
)
from forebay.formats.values.ddl import merged
from forebay.formats.values.rebase import Rebase, RebaseMode, rebase_of
from forebay.options import option

if TYPE_CHECKING:
    from forebay.formats.base import InputFile

_BATCH_BYTES = 8 << 20
_BATCH_BLOCKS = 4_096


@dataclass(frozen=True, kw_only=True)
class AvroOptions:
    """The options of Avro files.

    Raises:
        ConfigurationError: `avroSchema` is not the schema of a record.
    """

    avro_schema: str | None = option(
        default=None, doc="the reader's schema as JSON: the schema of each file is resolved to it"
    )
    datetime_rebase_mode: RebaseMode = option(
        default="EXCEPTION", doc="the calendar of dates before 1582-10-15 in files that do not name their calendar"
    )
    case_sensitive: bool = option(
        default=False, doc="compare names of columns exactly: the session's `spark.sql.caseSensitive`"
    )
    max_block_bytes: int = option(
        default=64 << 20, doc="bytes; a longer block, compressed or decompressed, counts as damaged"
    )

    def __post_init__(self) -> None:
        if self.reader_schema is not None:
            spark_type(self.reader_schema)

    @cached_property
    def reader_schema(self) -> Node | None:
        """The reader's schema; None if each file is read with its own.

        Raises:
            ConfigurationError: The option is not the schema of a record.
        """
        if self.avro_schema is None:
            return None
        try:
            root = parse_schema(self.avro_schema)
        except Malformed as error:
            raise ConfigurationError(
                f"the option {OPTION} cannot be used: {error}",
                option=OPTION,
                advice="give the schema of a record as JSON text",
            ) from None
        except ConfigurationError as error:
            raise error.with_context(option=OPTION) from None
        if root.kind != "record":
            raise ConfigurationError(
                f"the schema in {OPTION} has the type {root}, but Spark reads only records",
                option=OPTION,
                advice="give the schema of a record",
            )
        return root


_STABLE = "members of unions are named member0, member1 …: read the file with spark.read.format('avro')"


@dataclass(frozen=True)
class AvroFormat(FileFormat):
    """Reads Avro object container files.

    A position is any byte offset: reading starts at the first sync marker at or after it. A block belongs to the slice
    in which its preceding sync marker begins, as in Spark.
    """

    name: ClassVar[str] = "avro"
    options_class: ClassVar[type] = AvroOptions
    refused: ClassVar[Mapping[str, str]] = {
        "avroSchemaUrl": "give the text of the schema in avroSchema",
        "compression": "it is for writing; each Avro file names its own codec",
        "enableStableIdentifiersForUnionType": _STABLE,
        "ignoreExtension": "files with any suffix are read; set pathGlobFilter=*.avro to read only those named so",
        "mode": "it belongs to the function from_avro; set ignoreCorruptFiles to skip damaged files",
        "positionalFieldMatching": "fields are matched by name: read the file with spark.read.format('avro')",
        "recursiveFieldMaxDepth": "recursive schemas cannot be read",
        "stableIdentifierPrefixForUnionType": _STABLE,
    }

    options: AvroOptions = AvroOptions()

    @property
    def fixed_schema(self) -> bool:  # type: ignore[override]  # depends on the options of this object
        """Whether `avroSchema` is given, so that the schema is known without reading a file."""
        return self.options.avro_schema is not None

    @property
    def case_sensitive(self) -> bool:
        """Whether names of columns are compared exactly: the option `caseSensitive`."""
        return self.options.case_sensitive

    def infer_schema(self, files: Sequence[InputFile]) -> pa.Schema:
        """Infer the schema as Spark does: from `avroSchema`, else from the first file in the order of paths."""
        root, place = self.options.reader_schema, OPTION
        if root is None:
            file = min(files, key=lambda candidate: candidate.path)
            place = file.path
            with file.open() as raw, wrap_damage(place, "Avro"):
                root = _root(read_header(raw), place)
        schema = pa.schema(list(cast("pa.StructType", spark_type(root))))
        check_names(schema, place, case_sensitive=self.options.case_sensitive)
        return schema

    def merged_schema(self, files: Sequence[InputFile]) -> pa.Schema:
        """Merge the columns of all files in the order of paths. With `avroSchema`, return only its columns."""
        if self.fixed_schema:
            return self.infer_schema(files)
        first, *others = sorted(files, key=lambda candidate: candidate.path)
        schema = self.infer_schema([first])
        for file in others:
            schema = merged(schema, self.infer_schema([file]), file.path, self.options.case_sensitive)
        return schema

    def sliceable(self, file: InputFile) -> bool:
        """Return True: a slice begins at the next sync marker."""
        return True

    def read(
        self,
        file: InputFile,
        schema: pa.Schema,
        *,
        columns: Sequence[str] | None = None,
        position: int = 0,
        end: int | None = None,
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Read the blocks whose preceding sync marker begins in `[position, end)`. A batch holds several blocks."""
        names = schema.names if columns is None else list(columns)
        with file.open() as raw, wrap_damage(file.path, "Avro"):
            header = read_header(raw)
            reader = _Reader(file.path, header, schema, names, self.options)
            blocks = read_blocks(raw, file, header, position, end, self.options.max_block_bytes)
            for group in _grouped(blocks):
                yield from reader.batches(group)


class _Reader:
    def __init__(
        self, path: str, header: ContainerHeader, full: pa.Schema, names: Sequence[str], options: AvroOptions
    ) -> None:
        self._path = path
        written = _root(header, path)
        self._decoder = Decoder(written)
        metadata = {key.encode(): value for key, value in header.metadata.items()}
        rebase = rebase_of(metadata, options.datetime_rebase_mode, "CORRECTED")
        converter = Converter(path, options.case_sensitive, rebase)
        self._schema = pa.schema([full.field(name) for name in names])
        root = written
        if options.reader_schema is not None and options.reader_schema != written:
            keys = {folded(name, options.case_sensitive) for name in names}
            wanted = {name for name in options.reader_schema.names if folded(name, options.case_sensitive) in keys}
            root = Resolver(path, options.reader_schema).record(written, options.reader_schema, "", wanted)
        self._columns = [converter.field(field.name, field.type, root, field.name) for field in self._schema]

    def batches(self, group: Sequence[ContainerBlock]) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the blocks as one record batch. If a block is damaged, yield those before it, then raise Malformed."""
        try:
            rows = self._decoder.decode(group)
        except Malformed:
            if len(group) == 1:
                raise
            for block in group:
                yield from self.batches([block])
            return
        yield self._batch(rows, group[0].marker_at), group[-1].next_marker

    def _batch(self, records: pa.StructArray, position: int) -> pa.RecordBatch:
        arrays = []
        for column, target in zip(self._columns, self._schema, strict=True):
            try:
                arrays.append(column.of(records, target.type))
            except pa.ArrowInvalid as error:
                raise unfit_value(target, self._path, f"byte {position}", error) from None
        return batch_of(arrays, self._schema, len(records))


def _grouped(blocks: Iterator[ContainerBlock]) -> Iterator[list[ContainerBlock]]:
    """Yield groups of consecutive blocks of about `_BATCH_BYTES`. Yield the blocks before a damaged one, then raise."""
    group: list[ContainerBlock] = []
    size = 0
    try:
        for block in blocks:
            if group and (size + len(block.data) > _BATCH_BYTES or len(group) == _BATCH_BLOCKS):
                yield group
                group, size = [], 0
            group.append(block)
            size += len(block.data)
    except Malformed:
        if group:
            yield group
        raise
    if group:
        yield group


def _root(header: ContainerHeader, path: str) -> Node:
    try:
        root = parse_schema(header.metadata.get("avro.schema", b""))
    except ConfigurationError as error:
        raise error.with_context(source=path) from None
    if root.kind != "record":
        raise ConfigurationError(
            f"the schema of {path} has the type {root}, but only Avro files of records can be read",
            advice="exclude the file with pathGlobFilter",
        )
    return root


_DECIMAL_BYTES = 16
_MILLIS_PER_DAY = 86_400_000
_SAME = {
    ("int", pa.int32()),
    ("int", pa.int64()),
    ("int", pa.float64()),
    ("float", pa.float32()),
    ("float", pa.float64()),
    ("double", pa.float64()),
    ("string", pa.string()),
}


class ReadColumn(NamedTuple):
    """A column of the schema in one file: where its values are in the records, and their conversion."""

    place: Place
    convert: Convert | None

    def of(self, records: pa.StructArray, target: pa.DataType) -> pa.Array:
        """Return the values of the column in decoded records."""
        if self.place is None:
            return pa.nulls(len(records), target)
        stored = records.field(self.place) if isinstance(self.place, int) else repeated(self.place, len(records))
        return stored if self.convert is None else self.convert(stored)


@dataclass(frozen=True, slots=True)
class Converter:
    """Builds the conversions for the columns of one file.

    Attributes:
        path: The path of the file, for errors.
        case_sensitive: Whether names that differ only in case are different names.
        rebase: The conversion of old dates to the Gregorian calendar.
    """

    path: str
    case_sensitive: bool
    rebase: Rebase

    def field(self, name: str, target: pa.DataType, record: Node, column: str) -> ReadColumn:
        """Return where a field is in the values of a record, and its conversion to `target`.

        Raises:
            ConfigurationError: The field cannot be read as `target`, or two fields match the name.
        """
        at = place_of(name, record.names, column, self.path, case_sensitive=self.case_sensitive)
        if at is None:
            return ReadColumn(None, None)
        place = at if record.places is None else record.places[at]
        return ReadColumn(place, self.convert(record.children[at], target, column))

    def convert(self, node: Node, target: pa.DataType, column: str) -> Convert | None:
        """Return the conversion from the Avro type `node` to `target`; raise ConfigurationError if there is none."""
        match node.kind:
            case "record" if isinstance(target, pa.StructType):
                fields = [self.field(field.name, field.type, node, f"{column}.{field.name}") for field in target]
                return struct_of(fields, target)
            case "array" if isinstance(target, pa.ListType):
                return list_of(self.convert(node.children[0], target.value_type, f"{column}.element"), target)
            case "map" if isinstance(target, pa.MapType) and target.key_type == pa.string():
                return map_of(None, self.convert(node.children[0], target.item_type, f"{column}.value"), target)
            case "union":
                return self._union(node, target, column)
        return chain(_promotion(node), self._leaf(node, target, column))

    def _union(self, node: Node, target: pa.DataType, column: str) -> Convert | None:
        branches = node.branches
        if len(branches) == 1:
            required = None if len(node.children) > 1 else lambda array: self._without_null(array, column)
            return chain(required, self.convert(branches[0], target, column))
        widened = {frozenset({"int", "long"}): pa.int64(), frozenset({"float", "double"}): pa.float64()}
        if widened.get(frozenset(branch.kind for branch in branches)) == target:
            return lambda array: pc.coalesce(*(member.cast(target) for member in cast("Any", array).flatten()))
        if isinstance(target, pa.StructType) and target.num_fields == len(branches):
            pairs = zip(branches, target, strict=True)
            children = [self.convert(branch, field.type, f"{column}.{field.name}") for branch, field in pairs]
            return struct_of(list(enumerate(children)), target)
        if branches:
            raise mismatch(column, node, target, self.path)
        return lambda array: pa.nulls(len(array), target)

    def _without_null(self, array: pa.Array, column: str) -> pa.Array:
        if array.null_count:
            raise DataError(
                f"{self._place(column)} has null, which the type of {OPTION} does not allow",
                option=OPTION,
                advice=f"in {OPTION}, make the type a union with null",
            )
        return array

    def _leaf(self, node: Node, target: pa.DataType, column: str) -> Convert | None:
        types = pa.types
        if node.kind == "null" or types.is_null(target):
            return lambda array: pa.nulls(len(array), target)
        match node.kind:
            case "enum" if types.is_string(target):
                return self._enum(node, column)
            case "boolean" if types.is_boolean(target):
                return _booleans
            case "bytes" | "fixed" if types.is_binary(target):
                return None
            case "bytes" | "fixed" if isinstance(target, pa.Decimal128Type) and node.logical == "decimal":
                if target.scale == node.scale and target.precision >= node.precision:
                    return lambda array: decimals(array, target)
            case "int" if types.is_date32(target):
                return _rebased(self.rebase.dates(self._place(column)), pa.date32(), target)
            case "long":
                return self._long(node, target, column)
            case kind if (kind, target) in _SAME:
                return None if TYPES[kind] == target else lambda array: array.cast(target)
        raise mismatch(column, node, target, self.path)

    def _long(self, node: Node, target: pa.DataType, column: str) -> Convert | None:
        logical = node.logical or ""
        if target == pa.int64():
            return None
        if pa.types.is_date32(target) and not logical:
            return lambda array: pc.divide(array, _MILLIS_PER_DAY).cast(pa.int32()).view(target)
        local = isinstance(target, pa.TimestampType) and target.tz is None
        if not isinstance(target, pa.TimestampType) or target.unit != "us":
            raise mismatch(column, node, target, self.path)
        if logical and logical.startswith("local-") != local:
            raise mismatch(column, node, target, self.path)
        micros = None if logical.endswith("micros") else lambda array: pc.multiply_checked(array, 1000)
        rebase = None if local else self.rebase.timestamps(self._place(column))
        return chain(micros, _rebased(rebase, pa.timestamp("us"), target))

    def _enum(self, node: Node, column: str) -> Convert:
        symbols = pa.array(node.symbols, pa.string())

        def convert(array: pa.Array) -> pa.Array:
            try:
                texts = symbols.take(array)
            except pa.ArrowIndexError as error:
                what = f"{self._place(column)} has a number that is not the index of an enum symbol"
                raise Malformed(what) from error
            if texts.null_count > array.null_count:
                raise DataError(
                    f"{self._place(column)} has a symbol that the enum of {OPTION} lacks",
                    option=OPTION,
                    advice=f"add the symbol to the enum in {OPTION}, or give the enum a default",
                )
            return texts

        return convert

    def _place(self, column: str) -> str:
        return f"column {column!r} of {self.path}"


def _rebased(step: Convert | None, stored: pa.DataType, target: pa.DataType) -> Convert | None:
    """Return the conversion of days or microseconds to `target`, with the rebase of values of the type `stored`."""
    if step is None:
        return lambda array: array.view(target)
    return chain(lambda array: array.view(stored), step, lambda array: array.view(target))


def _booleans(array: pa.Array) -> pa.Array:
    """Convert integers to booleans: the decoder returns 0 for false and -1 for true. Raise Malformed for any other."""
    ends = pc.min_max(array).as_py()
    if ends["min"] is not None and (ends["min"] < -1 or ends["max"] > 0):
        raise Malformed("a boolean is neither 0 nor 1")
    return pc.less(array, 0)


def decimals(array: pa.Array, target: pa.Decimal128Type) -> pa.Array:
    """Return decimals from big-endian two's complement bytes; raise ArrowInvalid if one does not fit into `target`."""
    array = pa.concat_arrays([array])
    if (pc.max(pc.binary_length(array)).as_py() or 0) > _DECIMAL_BYTES:
        array = pa.array([None if value is None else _shortened(value) for value in array.to_pylist()], pa.binary())
    offsets = np.frombuffer(cast("Any", array.buffers()[1]), np.int32, len(array) + 1, array.offset * 4)
    data = np.frombuffer(cast("Any", array.buffers()[2] or b""), np.uint8)
    starts, ends = offsets[:-1], offsets[1:]
    valid = np.asarray(pc.is_valid(array))
    lengths = np.where(valid, ends - starts, 1)
    if len(lengths) and lengths.min() < 1:
        raise pa.ArrowInvalid("a decimal has no bytes")
    data = np.append(data, np.uint8(0))
    negative = np.where(data[np.where(valid, starts, len(data) - 1)] > 127, np.uint8(255), np.uint8(0))
    out = np.empty((len(array), _DECIMAL_BYTES), np.uint8)
    for place in range(_DECIMAL_BYTES):
        at = ends - 1 - place
        out[:, place] = np.where(valid & (at >= starts), data[np.maximum(at, 0)], negative)
    bits = pa.array(valid).buffers()[1]
    converted = pa.Array.from_buffers(target, len(array), [bits, pa.py_buffer(out.tobytes())])
    converted.validate(full=True)
    return converted


def _shortened(value: bytes) -> bytes:
    """Return a two's complement number in 16 bytes; raise ArrowInvalid if it needs more."""
    try:
        return int.from_bytes(value, "big", signed=True).to_bytes(_DECIMAL_BYTES, "big", signed=True)
    except OverflowError:
        raise pa.ArrowInvalid("a decimal has more than 38 digits") from None


def _promotion(node: Node) -> Convert | None:
    """Return the conversion of a type of the file to the type that it is resolved to; None if it stays the same."""
    if not node.promoted:
        return None
    target = TYPES[node.kind]

    def convert(array: pa.Array) -> pa.Array:
        try:
            return array.cast(target, safe=node.kind == "string")  # numbers are rounded as in Java
        except pa.ArrowInvalid:
            texts = [None if value is None else value.decode("utf-8", "replace") for value in array.to_pylist()]
            return pa.array(texts, target)

    return convert
