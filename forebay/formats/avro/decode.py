# SPDX-License-Identifier: Apache-2.0
"""Decodes Avro blocks to Arrow arrays of the stored types: polars does it for most schemas, fastavro for the others.

Both get a schema that describes the same bytes with fewer types: an enum is an int, a map is an array of entries, and a
branch of a union is a record with one field. Fields are named f0, f1 and so on. A boolean is read as an int: its byte 1
gives -1 (zigzag). The reason is that polars and fastavro take every byte except 0 for true, but Avro for Java only 1.
"""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.avro.container import ContainerBlock
from forebay.formats.avro.schema import TYPES, Node
from forebay.formats.compression.byte_streams import encoded_varint
from forebay.formats.units import Malformed

_ROWS_AT_A_TIME = 10_000
_ROWS_WITHOUT_BYTES = 1 << 24
_GUARD = b"\xd8forebay"
_SYNC = b"a-sync-marker-16"


class Decoder:
    """Decodes the blocks of one file. Not thread-safe."""

    def __init__(self, root: Node) -> None:
        self._root = root
        self.type = stored_type(root)
        self._names = 0
        self._wire = self._described(root)
        self._fast = root.least_bytes > 0 and _fast(root)
        self._parsed: Any = None  # the type of fastavro's parsed schemas is not public

    def decode(self, blocks: Sequence[ContainerBlock]) -> pa.StructArray:
        """Return the records of all `blocks` as one array of structs; raise Malformed if a block is damaged."""
        for block in blocks:
            if block.records > (
                len(block.data) // self._root.least_bytes if self._root.least_bytes else _ROWS_WITHOUT_BYTES
            ):
                raise Malformed(f"a block states {block.records} records, too many for its {len(block.data)} bytes")
        decoded = self._by_polars(blocks) if self._fast else None
        if decoded is not None:
            return decoded
        return cast("pa.StructArray", pa.concat_arrays([self._by_fastavro(block) for block in blocks]))

    def _by_polars(self, blocks: Sequence[ContainerBlock]) -> pa.StructArray | None:
        """Decode with polars; return None if polars is missing, fails, or does not use exactly the bytes of each block.

        Each block becomes one row: an array of its records, and a guard that shows whether all its bytes were used.
        """
        row = [{"name": "rows", "type": {"type": "array", "items": self._wire}}]
        row.append({"name": "guard", "type": {"type": "fixed", "name": "guard", "size": len(_GUARD)}})
        pl = _polars()
        if pl is None:
            return None
        schema = json.dumps({"type": "record", "name": "block", "fields": row}).encode()
        parts = []
        for block in blocks:
            parts += [varint(block.records), block.data, b"\0" if block.records else b"", _GUARD]
        size = sum(map(len, parts))
        header = [b"Obj\x01", varint(1), varint(11), b"avro.schema", varint(len(schema)), schema, b"\0", _SYNC]
        data = b"".join([*header, varint(len(blocks)), varint(size), *parts, _SYNC])
        try:
            table = pl.read_avro(io.BytesIO(data)).to_arrow(compat_level=pl.CompatLevel.oldest())
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
            return None
        if table.column("guard").combine_chunks().to_pylist() != [_GUARD] * len(blocks):
            return None
        lists = cast("pa.ListArray", table.column("rows").combine_chunks())
        if lists.value_lengths().to_pylist() != [block.records for block in blocks]:
            return None
        return cast("pa.StructArray", lists.flatten().cast(self.type))

    def _by_fastavro(self, block: ContainerBlock) -> pa.Array:
        """Decode a block with fastavro; raise Malformed unless its records are valid and use exactly its bytes."""
        try:
            fastavro = importlib.import_module("fastavro")
        except ImportError:
            raise ConfigurationError(
                "Avro files need fastavro, which is not installed", advice="pip install 'forebay[avro]'"
            ) from None
        if self._parsed is None:
            self._parsed = fastavro.parse_schema(self._wire)
        stream = io.BytesIO(block.data)
        arrays = []
        missing = block.records
        try:
            while missing:
                count = min(missing, _ROWS_AT_A_TIME)
                missing -= count
                rows = [
                    fastavro.schemaless_reader(stream, self._parsed, None, handle_unicode_errors="replace")
                    for _ in range(count)
                ]
                arrays.append(pa.array(rows, self.type))
        except (
            EOFError,
            ArithmeticError,
            LookupError,
            ValueError,
            TypeError,
            StopIteration,
            pa.ArrowException,
        ) as error:
            raise Malformed(f"the block at byte {block.marker_at + 16} is damaged: {error!r}") from error
        if stream.tell() != len(block.data):
            raise Malformed(f"the block at byte {block.marker_at + 16} has bytes after its {block.records} records")
        return pa.concat_arrays(arrays) if arrays else pa.array([], self.type)

    def _described(self, node: Node) -> object:
        match node.kind:
            case "record":
                return self._record([(f"f{at}", self._described(child)) for at, child in enumerate(node.children)])
            case "array":
                return {"type": "array", "items": self._described(node.children[0])}
            case "map":
                entry = self._record([("key", "string"), ("value", self._described(node.children[0]))])
                return {"type": "array", "items": entry}
            case "union":
                return self._union(node)
            case "enum" | "boolean":
                return "int"
            case "fixed":
                return {"type": "fixed", "name": self._name(), "size": node.size}
        return node.kind

    def _union(self, node: Node) -> object:
        several = len(node.branches) > 1
        values: list[object] = []
        member = 0
        for child in node.children:
            inside = self._described(child)
            if several and child.kind != "null":
                inside = self._record([(f"m{member}", inside)])
                member += 1
            values.append(inside)
        return values

    def _record(self, fields: list[tuple[str, object]]) -> object:
        return {
            "type": "record",
            "name": self._name(),
            "fields": [{"name": name, "type": inside} for name, inside in fields],
        }

    def _name(self) -> str:
        self._names += 1
        return f"n{self._names}"


def stored_type(node: Node) -> pa.DataType:
    """Return the Arrow type to which `Decoder` decodes an Avro type."""
    match node.kind:
        case "record":
            return pa.struct([pa.field(f"f{at}", stored_type(child)) for at, child in enumerate(node.children)])
        case "array":
            return pa.list_(stored_type(node.children[0]))
        case "map":
            entry = [pa.field("key", pa.string()), pa.field("value", stored_type(node.children[0]))]
            return pa.list_(pa.struct(entry))
        case "union" if not node.branches:
            return pa.null()
        case "union" if len(node.branches) == 1:
            return stored_type(node.branches[0])
        case "union":
            return pa.struct([pa.field(f"m{at}", stored_type(branch)) for at, branch in enumerate(node.branches)])
        case "enum" | "boolean":
            return pa.int32()
    return TYPES[node.kind]


def varint(value: int) -> bytes:
    """Encode a number of at least 0 as an Avro integer (zigzag varint)."""
    return encoded_varint(value << 1)


def _fast(node: Node) -> bool:
    """Return whether polars can decode an Avro type."""
    if node.kind == "union":
        return len(node.children) == 2 and len(node.branches) == 1 and _fast(node.branches[0])
    if node.kind == "record":
        return bool(node.children) and all(_fast(child) for child in node.children)
    return node.kind != "null" and node.least_bytes > 0 and all(_fast(child) for child in node.children)


@cache
def _polars() -> Any:  # noqa: ANN401 - a module, which is not always installed
    """Return polars, imported when the first block is decoded; None if it is not installed."""
    try:
        return importlib.import_module("polars")
    except ImportError:
        return None
