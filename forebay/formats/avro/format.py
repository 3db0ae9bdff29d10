# SPDX-License-Identifier: Apache-2.0
"""Reads Avro files as spark-avro does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, cast

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.avro.container import ContainerBlock, ContainerHeader, read_blocks, read_header
from forebay.formats.avro.convert import Converter
from forebay.formats.avro.decode import Decoder
from forebay.formats.avro.resolution import Resolver
from forebay.formats.avro.schema import OPTION, Node, parse_schema, spark_type
from forebay.formats.base import FileFormat, batch_of, unfit_value
from forebay.formats.units import Malformed, wrap_damage
from forebay.formats.values.columns import check_names, folded
from forebay.formats.values.ddl import merged
from forebay.formats.values.rebase import RebaseMode, rebase_of
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
