# SPDX-License-Identifier: Apache-2.0
"""The metadata of ORC files: Protocol Buffers in compressed chunks, the tail, the types, the statistics of stripes.

Arrow tells neither the rows of a stripe, nor its writer's time zone and statistics, nor Spark's own types.
"""

from __future__ import annotations

import decimal
import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import accumulate
from typing import TYPE_CHECKING, BinaryIO, Final

import pyarrow as pa

from forebay.formats.compression.codecs import encoded_varint, lz4_size, read_fully, snappy_size
from forebay.formats.filters import Statistics, Value
from forebay.formats.units import Malformed, read_elsewhere
from forebay.formats.values.rebase import FIRST_COMMON_DAY

if TYPE_CHECKING:
    from forebay.formats.base import InputFile

# -- Parses and encodes Protocol Buffers messages, as far as the metadata of ORC files needs it.


_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_MOST_BITS = 63


class Message:
    """A parsed message: the values of each field by its number. Fields of texts and nested messages hold bytes.

    All methods raise Malformed if a field has values of another type, or nested bytes are not a message.
    """

    def __init__(self, data: bytes) -> None:
        self._fields: dict[int, list[int | bytes]] = {}
        at = 0
        while at < len(data):
            key, at = _varint(data, at)
            kind = key & 7
            size = 0
            value: int | bytes
            if kind in (_VARINT, _BYTES):
                value, at = _varint(data, at)
                size = value
            elif kind not in (_FIXED_64, _FIXED_32):
                raise Malformed(f"a field has the unknown Protocol Buffers wire type {kind}")
            if kind != _VARINT:
                size = {_FIXED_64: 8, _FIXED_32: 4}.get(kind, size)
                value, at = data[at : at + size], at + size
            if at > len(data):
                raise Malformed("a field is longer than its Protocol Buffers message")
            self._fields.setdefault(key >> 3, []).append(value)

    def __contains__(self, field: int) -> bool:
        return field in self._fields

    def number(self, field: int, default: int = 0) -> int:
        """Return the last number of a field."""
        number = self._fields.get(field, [default])[-1]
        if not isinstance(number, int):
            raise Malformed(f"Protocol Buffers field {field} is not a number")
        return number

    def signed(self, field: int) -> int | None:
        """Return the last number of a field of signed numbers; None if it is missing."""
        zigzag = self.number(field)
        return (zigzag >> 1) ^ -(zigzag & 1) if field in self else None

    def numbers(self, field: int) -> list[int]:
        """Return the numbers of a repeated field, whether it is packed or not."""
        numbers: list[int] = []
        for value in self._fields.get(field, []):
            if isinstance(value, int):
                numbers.append(value)
                continue
            at = 0
            while at < len(value):
                item, at = _varint(value, at)
                numbers.append(item)
        return numbers

    def blobs(self, field: int) -> list[bytes]:
        """Return the bytes of a repeated field."""
        values = self._fields.get(field, [])
        blobs = [value for value in values if isinstance(value, bytes)]
        if len(blobs) != len(values):
            raise Malformed(f"Protocol Buffers field {field} is not a message")
        return blobs

    def messages(self, field: int) -> list[Message]:
        """Return the messages of a repeated field."""
        return [Message(data) for data in self.blobs(field)]

    def message(self, field: int) -> Message:
        """Return the last message of a field; an empty one if it is missing."""
        return Message(b"".join(self.blobs(field)[-1:]))

    def texts(self, field: int) -> list[str]:
        """Return the texts of a repeated field."""
        try:
            return [data.decode() for data in self.blobs(field)]
        except UnicodeDecodeError as error:
            raise Malformed(f"Protocol Buffers field {field} is not UTF-8") from error

    def text(self, field: int) -> str | None:
        """Return the last text of a field; None if it is missing."""
        texts = self.texts(field)
        return texts[-1] if texts else None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > _MOST_BITS:
            break
    raise Malformed("a Protocol Buffers number does not end")


def encode(fields: Mapping[int, int | bytes | Iterable[int | bytes]]) -> bytes:
    """Encode a message from its values by field number. A field with several values is repeated."""
    out = bytearray()
    for place, values in fields.items():
        for value in (values,) if isinstance(values, (int, bytes)) else values:
            if isinstance(value, int):
                out += encoded_varint(place << 3 | _VARINT) + encoded_varint(value)
            else:
                out += encoded_varint(place << 3 | _BYTES) + encoded_varint(len(value)) + value
    return bytes(out)


# -- Decompresses the metadata of ORC files, which is stored in chunks with a header of three bytes each.


_HEADER = 3
_ORIGINAL = 1


class Codec(IntEnum):
    """The codecs, as numbered in orc_proto.proto."""

    NONE = 0
    ZLIB = 1
    SNAPPY = 2
    LZO = 3
    LZ4 = 4
    ZSTD = 5
    BROTLI = 6


READABLE = (Codec.NONE, Codec.ZLIB, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
"""The codecs that can be read."""


def decompress(data: bytes, codec: Codec, block: int) -> bytes:
    """Return decompressed metadata; raise Malformed if a chunk is damaged.

    Args:
        data: All chunks of the metadata.
        codec: The codec of the file, one of `READABLE`.
        block: The most bytes of a decompressed chunk.
    """
    if codec is Codec.NONE:
        return data
    out = bytearray()
    at = 0
    while at < len(data):
        header = int.from_bytes(data[at : at + _HEADER], "little")
        at += _HEADER
        chunk = data[at : at + (header >> 1)]
        at += header >> 1
        if at > len(data):
            raise Malformed("a compressed chunk is cut off")
        out += chunk if header & _ORIGINAL else _chunk(chunk, codec, block)
    return bytes(out)


def _chunk(data: bytes, codec: Codec, block: int) -> bytes:
    try:
        match codec:
            case Codec.ZLIB:
                inflater = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
                return inflater.decompress(data, block)
            case Codec.SNAPPY | Codec.LZ4:
                size = snappy_size(data) if codec is Codec.SNAPPY else lz4_size(data)
                if size > block:
                    raise Malformed(f"it states {size} bytes of data, but at most {block} are allowed")
                return pa.Codec("snappy" if codec is Codec.SNAPPY else "lz4_raw").decompress(data, size, asbytes=True)
            case _:
                with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
                    return bytes(stream.read(block))
    except (pa.ArrowException, OSError, ValueError, zlib.error) as error:
        raise Malformed(f"a compressed chunk cannot be decompressed: {error}") from error


def stored(data: bytes, codec: Codec, block: int) -> bytes:
    """Return plain metadata in the form of chunks that are not compressed."""
    if codec is Codec.NONE:
        return data
    size = min(block, (1 << 23) - 1)
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join((len(part) << 1 | _ORIGINAL).to_bytes(_HEADER, "little") + part for part in parts)


# -- Parses the tree of types in the footer of an ORC file.


_MOST_DEPTH = 250


class TypeKind(IntEnum):
    """The kinds of types, as numbered in orc_proto.proto."""

    BOOLEAN = 0
    BYTE = 1
    SHORT = 2
    INT = 3
    LONG = 4
    FLOAT = 5
    DOUBLE = 6
    STRING = 7
    BINARY = 8
    TIMESTAMP = 9
    LIST = 10
    MAP = 11
    STRUCT = 12
    UNION = 13
    DECIMAL = 14
    DATE = 15
    VARCHAR = 16
    CHAR = 17
    TIMESTAMP_INSTANT = 18


TEXTS = frozenset({TypeKind.STRING, TypeKind.VARCHAR, TypeKind.CHAR})
_CHILDREN = {TypeKind.LIST: 1, TypeKind.MAP: 2}
_NAMES = {
    TypeKind.BYTE: "tinyint",
    TypeKind.SHORT: "smallint",
    TypeKind.LONG: "bigint",
    TypeKind.LIST: "array",
    TypeKind.UNION: "uniontype",
}


@dataclass(frozen=True, slots=True)
class Node:
    """A type of a file.

    Args:
        id: The number of the type. Streams name their column by this number.
        kind: The kind of the type.
        names: The names of a struct's fields.
        children: The types inside this type.
        length: The maximum length of CHAR and VARCHAR.
        precision: The precision of DECIMAL.
        scale: The scale of DECIMAL.
        attributes: Attributes that the writer added, such as Spark's own type.
    """

    id: int
    kind: TypeKind
    names: tuple[str, ...] = ()
    children: tuple[Node, ...] = ()
    length: int = 0
    precision: int = 38
    scale: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the type as ORC and Hive write it."""
        name = _NAMES.get(self.kind, self.kind.name.lower())
        match self.kind:
            case TypeKind.STRUCT:
                inside = (f"{name}:{child}" for name, child in zip(self.names, self.children, strict=True))
                return f"{name}<{','.join(inside)}>"
            case TypeKind.LIST | TypeKind.MAP | TypeKind.UNION:
                return f"{name}<{','.join(map(str, self.children))}>"
            case TypeKind.CHAR | TypeKind.VARCHAR:
                return f"{name}({self.length})"
            case TypeKind.DECIMAL:
                return f"{name}({self.precision},{self.scale})"
            case TypeKind.TIMESTAMP_INSTANT:
                return "timestamp with local time zone"
        return name

    def walk(self) -> Iterator[Node]:
        """Yield this type and the types inside it, in the order of their ids."""
        yield self
        for child in self.children:
            yield from child.walk()


def parse_types(types: Sequence[Message]) -> Node:
    """Return the root of the types of a footer; raise Malformed unless they form a tree in the order of their ids."""
    taken = [0]
    root = _node(types, taken, 0)
    if taken[0] != len(types):
        raise Malformed(f"{len(types) - taken[0]} types in the footer belong to no column")
    return root


def _node(types: Sequence[Message], taken: list[int], depth: int) -> Node:
    number = taken[0]
    if number >= len(types) or depth > _MOST_DEPTH:
        raise Malformed("the types in the footer do not form a tree")
    taken[0] += 1
    message = types[number]
    try:
        kind = TypeKind(message.number(1))
    except ValueError as error:
        raise Malformed(f"a type in the footer has the unknown kind {message.number(1)}") from error
    inside = message.numbers(2)
    names = message.texts(3)
    nested = kind in (TypeKind.STRUCT, TypeKind.UNION)
    if (not nested and len(inside) != _CHILDREN.get(kind, 0)) or (
        kind is TypeKind.STRUCT and len(names) != len(inside)
    ):
        raise Malformed(f"type {number} of kind {kind.name} cannot have {len(inside)} children and {len(names)} names")
    children = []
    for child in inside:
        if child != taken[0]:
            raise Malformed("the types in the footer are not in the order of their ids")
        children.append(_node(types, taken, depth + 1))
    precision, scale = message.number(5, 38) or 38, message.number(6)
    if kind is TypeKind.DECIMAL and not (precision <= 38 and scale <= precision):
        raise Malformed(f"a decimal type has {precision} digits and scale {scale}, which is not valid")
    attributes = {pair.text(1) or "": pair.text(2) or "" for pair in message.messages(7)}
    return Node(number, kind, tuple(names), tuple(children), message.number(4), precision, scale, attributes)


# -- Reads the tail of an ORC file (postscript and footer), and checks it before Arrow's reader sees the file.


MAGIC = b"ORC"
_FIRST_READ = 16 << 10
_MOST_ROWS = 1 << 48
_MOST_BLOCK = 1 << 23
_DEFAULT_BLOCK = 256 << 10
_PROLEPTIC = 2


@dataclass(frozen=True, slots=True)
class Stripe:
    """A stripe: its offset in the file, the bytes of its three parts, and its number of rows."""

    number: int
    offset: int
    index: int
    data: int
    footer: int
    rows: int

    @property
    def size(self) -> int:
        """The size of the whole stripe in bytes."""
        return self.index + self.data + self.footer


@dataclass(frozen=True, slots=True)
class Tail:
    """The metadata at the end of a file.

    Args:
        codec: The codec of all streams and footers.
        block: The maximum bytes of a decompressed chunk.
        writer_version: The version of the writer, in the form that Arrow's reader takes.
        root: The root of the tree of types.
        stripes: The stripes that have rows, in the order of the file.
        starts: The first row of each stripe, followed by the number of rows in the file.
        proleptic: Whether old dates are in the proleptic Gregorian calendar.
        statistics: The offset and the length in bytes of the statistics of the stripes.
        columns: The statistics of the whole file, one message for each type, or none.
    """

    codec: Codec
    block: int
    writer_version: int
    root: Node
    stripes: tuple[Stripe, ...]
    starts: tuple[int, ...]
    proleptic: bool
    statistics: tuple[int, int]
    columns: tuple[bytes, ...]


def read_tail(raw: BinaryIO, file: InputFile) -> Tail:
    """Read the tail of an open file. Errors of the store pass unchanged.

    Raises:
        Malformed: The file is damaged, or is not an ORC file.
        ConfigurationError: The file has encrypted columns, columns without names, or a codec that cannot be read.
    """
    script, footer, end = _messages(raw, file)
    codec, block = _codec(script, file.path)
    if 10 in footer:
        raise read_elsewhere(f"{file.path} has encrypted columns", file.path, "orc")
    root = parse_types(footer.messages(4))
    if root.kind is not TypeKind.STRUCT:
        raise read_elsewhere(f"the rows of {file.path} are no rows with columns, but {root}", file.path, "orc")
    if root.names and all(name.startswith("_col") for name in root.names):
        what = f"the names of all columns of {file.path} begin with _col, as those that Hive wrote without names"
        raise read_elsewhere(f"{what}: Spark matches them by position", file.path, "orc")
    stripes = _stripes(footer, end)
    rows = footer.number(6)
    starts = tuple(accumulate((stripe.rows for stripe in stripes), initial=0))
    if starts[-1] != rows:
        raise Malformed(f"the footer states {rows} rows for the file, but {starts[-1]} rows for its stripes")
    proleptic = footer.number(11) == _PROLEPTIC
    statistics = end + script.number(7), script.number(5)
    columns = tuple(footer.blobs(7))
    return Tail(codec, block, script.number(6), root, stripes, starts, proleptic, statistics, columns)


def _messages(raw: BinaryIO, file: InputFile) -> tuple[Message, Message, int]:
    """Return the postscript, the footer, and the offset before which all stripes must end."""
    raw.seek(max(0, file.size - _FIRST_READ))
    data = read_fully(raw.read, min(file.size, _FIRST_READ))
    length = data[-1] if data else 0
    if not 0 < length < len(data):
        raise Malformed("the postscript is missing")
    script = Message(data[-1 - length : -1])
    raw.seek(0)  # old files have the magic bytes at their start alone
    if MAGIC not in (script.blobs(8000) or [read_fully(raw.read, len(MAGIC))]):
        raise Malformed("the postscript does not have the magic bytes of ORC")
    codec, block = _codec(script, file.path)
    size = script.number(1)
    whole = size + script.number(5) + script.number(7) + length + 1
    if whole > file.size:
        raise Malformed(f"the postscript states {whole} bytes of metadata, but the file has {file.size} bytes")
    total = size + length + 1
    if total > len(data):
        raw.seek(file.size - total)
        data = read_fully(raw.read, total)
        if len(data) < total:
            raise Malformed("the footer is cut off")
    stop = len(data) - 1 - length
    return script, Message(decompress(data[stop - size : stop], codec, block)), file.size - whole


def _codec(script: Message, path: str) -> tuple[Codec, int]:
    number = script.number(2)
    codec = next((known for known in Codec if known == number), None)
    version = script.numbers(4)
    if codec not in READABLE or version[:1] not in ([], [0]):
        what = f"codec {number if codec is None else codec.name}" if codec not in READABLE else f"version {version}"
        raise read_elsewhere(f"{path} is an ORC file of {what}, which forebay cannot read", path, "orc")
    block = script.number(3, _DEFAULT_BLOCK) or _DEFAULT_BLOCK
    if block > _MOST_BLOCK:
        raise Malformed(f"the postscript states compressed blocks of {block} bytes, more than {_MOST_BLOCK}")
    return codec, block


def _stripes(footer: Message, end: int) -> tuple[Stripe, ...]:
    """Return the stripes that have rows. Raise Malformed unless the stripes follow one another before `end`."""
    stripes: list[Stripe] = []
    for number, message in enumerate(footer.messages(3)):
        stripe = Stripe(number, *(message.number(field) for field in range(1, 6)))
        before = stripes[-1].offset + stripes[-1].size if stripes else len(MAGIC)
        if stripe.offset < before or stripe.offset + stripe.size > end or stripe.rows > _MOST_ROWS:
            raise Malformed(f"stripe {number} is not in the file, or overlaps another one")
        if stripe.rows:
            stripes.append(stripe)
    return tuple(stripes)


# -- Reads the statistics of columns.


_HIVE_8732: Final = 1
"""The first writer version whose statistics of strings are right."""
_VALUE_BYTES: Final = 8
"""About the bytes of a value, beside those of a text."""
_TEXT_COPIES: Final = 4
"""How many copies of a text there may be while Arrow reads and converts it."""
_DAY_US: Final = 86_400_000_000
_ZONES_US: Final = 2 * _DAY_US
"""More than the difference between any two time zones, in microseconds."""

TYPES = {
    TypeKind.BOOLEAN: pa.bool_(),
    TypeKind.BYTE: pa.int8(),
    TypeKind.SHORT: pa.int16(),
    TypeKind.INT: pa.int32(),
    TypeKind.LONG: pa.int64(),
    TypeKind.FLOAT: pa.float32(),
    TypeKind.DOUBLE: pa.float64(),
    TypeKind.BINARY: pa.binary(),
    TypeKind.DATE: pa.date32(),
    TypeKind.TIMESTAMP: pa.timestamp("us", "UTC"),
    TypeKind.TIMESTAMP_INSTANT: pa.timestamp("us", "UTC"),
    **dict.fromkeys(TEXTS, pa.string()),
}
"""The types of Arrow that hold the values of primitive types; DECIMAL is missing."""

_Range = tuple[Value | None, Value | None]


def read_statistics(raw: BinaryIO, tail: Tail) -> list[list[bytes]]:
    """Return the statistics of each stripe, one message for each type of the file; raise Malformed if damaged."""
    if tail.writer_version < _HIVE_8732:
        return []
    offset, size = tail.statistics
    raw.seek(offset)
    metadata = Message(decompress(read_fully(raw.read, size), tail.codec, tail.block))
    return [stripe.blobs(1) for stripe in metadata.messages(1)]


def column_statistics(
    columns: list[bytes], node: Node, target: pa.DataType, rows: int, tail: Tail
) -> Statistics | None:
    """Return the statistics of a column in a stripe; None if they are missing, damaged, or contradict themselves.

    Args:
        columns: The statistics of the columns in the stripe.
        node: The type of the column in the file.
        target: The type of the column in the schema. Nothing is known if values are converted to it.
        rows: The rows of the stripe.
        tail: The tail of the file.
    """
    decimal_type = pa.decimal128(node.precision, node.scale) if node.kind is TypeKind.DECIMAL else None
    if node.id >= len(columns) or target != TYPES.get(node.kind, decimal_type):
        return None
    try:
        message = Message(columns[node.id])
        nulls = rows - message.number(1, rows + 1)
        if nulls < 0 or (nulls and not message.number(10, 1)):
            return None
    except Malformed:
        return None
    try:
        least, greatest = _range(message, node.kind, tail)
    except (ValueError, ArithmeticError, struct.error):  # missing or damaged
        least = greatest = None
    return Statistics(rows, nulls, least, greatest, nan=pa.types.is_floating(target))


def _range(message: Message, kind: TypeKind, tail: Tail) -> _Range:
    """Return the least and the greatest value, in the form of bound literals (`Value`); None for an unknown one."""
    match kind:
        case TypeKind.BYTE | TypeKind.SHORT | TypeKind.INT | TypeKind.LONG:
            numbers = message.message(2)
            return numbers.signed(1), numbers.signed(2)
        case TypeKind.FLOAT | TypeKind.DOUBLE:
            numbers = message.message(3)
            least, greatest = (struct.unpack("<d", numbers.blobs(field)[-1])[0] for field in (1, 2) if field in numbers)
            # If the first value is NaN, some writers store NaN as both minimum and maximum.
            return (None, None) if math.isnan(least) or math.isnan(greatest) else (least, greatest)
        case TypeKind.STRING | TypeKind.VARCHAR:
            texts = message.message(4)  # in place of long ones, writers store bounds
            return texts.text(1) or texts.text(4), texts.text(2) or texts.text(5)
        case TypeKind.BOOLEAN:
            (true, *_) = message.message(5).numbers(1)
            return true == message.number(1), true > 0
        case TypeKind.DECIMAL:
            texts = message.message(6)
            return decimal.Decimal(texts.text(1) or ""), decimal.Decimal(texts.text(2) or "")
        case TypeKind.DATE:
            days = message.message(7)
            return _common(days.signed(1), days.signed(2), 1, tail)
        case TypeKind.TIMESTAMP | TypeKind.TIMESTAMP_INSTANT:
            millis = message.message(9)  # of wall-clock times: the range holds in any time zone
            least, greatest = millis.signed(3), millis.signed(4)
            if least is not None and greatest is not None:
                return _common(least * 1000 - _ZONES_US, (greatest + 1) * 1000 + _ZONES_US, _DAY_US, tail)
    return None, None


def _common(least: int | None, greatest: int | None, day: int, tail: Tail) -> _Range:
    """Return a range of dates or times; an unknown one if reading converts some of them to the new calendar.

    `day` is the length of a day in the unit of the range.
    """
    if least is not None and not tail.proleptic and least < FIRST_COMMON_DAY * day:
        return None, None
    return least, greatest


def bytes_per_row(tail: Tail, nodes: Iterable[Node]) -> float | None:
    """Return the average memory for the values of some types in a row, while they are read; None if it is unknown."""
    total = 0
    try:
        for node in nodes:
            message = Message(tail.columns[node.id])
            total += _VALUE_BYTES * message.number(1)
            if node.kind in TEXTS:
                total += _TEXT_COPIES * (message.message(4).signed(3) or 0)
            elif node.kind is TypeKind.BINARY:
                total += _TEXT_COPIES * (message.message(8).signed(1) or 0)
    except (Malformed, IndexError):
        return None
    return total / max(1, tail.starts[-1])
