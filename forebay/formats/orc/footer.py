# SPDX-License-Identifier: Apache-2.0
"""The metadata of ORC files: Protocol Buffers in compressed chunks, the tail, the types, the footers of stripes.

Arrow tells neither the rows of a stripe, nor its writer's time zone and statistics, nor Spark's own types.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

import pyarrow as pa

from forebay.formats.compression.byte_streams import encoded_varint, read_fully
from forebay.formats.compression.codecs import lz4_size, snappy_size
from forebay.formats.units import Malformed, read_elsewhere

if TYPE_CHECKING:
    from forebay.formats.base import InputFile


# -- Parses and encodes Protocol Buffers messages, as far as the metadata of ORC files needs it.


Value: TypeAlias = "int | bytes"
Fields: TypeAlias = "dict[int, list[Value]]"
"""The values of a message by field number. Numbers are ints; texts and nested messages are bytes."""

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_MOST_BITS = 63


def parse_message(data: bytes) -> Fields:
    """Return the fields of a message; raise Malformed if the bytes are not a message."""
    fields: Fields = {}
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        value: Value
        match key & 7:
            case 0:
                value, at = _varint(data, at)
            case 2:
                size, at = _varint(data, at)
                value, at = data[at : at + size], at + size
            case 1 | 5 as kind:
                size = 8 if kind == _FIXED_64 else 4
                value, at = data[at : at + size], at + size
            case kind:
                raise Malformed(f"a field has the unknown Protocol Buffers wire type {kind}")
        if at > len(data):
            raise Malformed("a field is longer than its Protocol Buffers message")
        fields.setdefault(key >> 3, []).append(value)
    return fields


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


def number_of(fields: Fields, field: int, default: int = 0) -> int:
    """Return the last number of a field; raise Malformed if the value is not a number."""
    number = fields.get(field, [default])[-1]
    if not isinstance(number, int):
        raise Malformed(f"Protocol Buffers field {field} is not a number")
    return number


def numbers_of(fields: Fields, field: int) -> list[int]:
    """Return the numbers of a repeated field, whether it is packed or not."""
    numbers: list[int] = []
    for value in fields.get(field, []):
        if isinstance(value, int):
            numbers.append(value)
            continue
        at = 0
        while at < len(value):
            item, at = _varint(value, at)
            numbers.append(item)
    return numbers


def messages_of(fields: Fields, field: int) -> list[bytes]:
    """Return the bytes of a repeated field of messages or texts; raise Malformed for numbers."""
    messages = [value for value in fields.get(field, []) if isinstance(value, bytes)]
    if len(messages) != len(fields.get(field, [])):
        raise Malformed(f"Protocol Buffers field {field} is not a message")
    return messages


def text_of(fields: Fields, field: int) -> str | None:
    """Return the last text of a field; None if it is missing. Raise Malformed for bytes that are not UTF-8."""
    texts = messages_of(fields, field)
    if not texts:
        return None
    try:
        return texts[-1].decode()
    except UnicodeDecodeError as error:
        raise Malformed(f"Protocol Buffers field {field} is not text") from error


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


def parse_types(parts: Sequence[bytes]) -> Node:
    """Return the root of the types of a footer; raise Malformed unless they form a tree in the order of their ids."""
    raw = [parse_message(part) for part in parts]
    if not raw:
        raise Malformed("the footer has no types")
    taken = [0]
    root = _node(raw, taken, 0)
    if taken[0] != len(raw):
        raise Malformed(f"{len(raw) - taken[0]} types in the footer belong to no column")
    return root


def _node(raw: Sequence[Fields], taken: list[int], depth: int) -> Node:
    number = taken[0]
    if number >= len(raw) or depth > _MOST_DEPTH:
        raise Malformed("the types in the footer do not form a tree")
    taken[0] += 1
    fields = raw[number]
    try:
        kind = TypeKind(number_of(fields, 1))
    except ValueError as error:
        raise Malformed(f"a type in the footer has the unknown kind {number_of(fields, 1)}") from error
    inside = numbers_of(fields, 2)
    names = tuple(_decoded(name) for name in messages_of(fields, 3))
    nested = kind in (TypeKind.STRUCT, TypeKind.UNION)
    if (not nested and len(inside) != _CHILDREN.get(kind, 0)) or (
        kind is TypeKind.STRUCT and len(names) != len(inside)
    ):
        raise Malformed(f"type {number} of kind {kind.name} cannot have {len(inside)} children and {len(names)} names")
    children = []
    for child in inside:
        if child != taken[0]:
            raise Malformed("the types in the footer are not in the order of their ids")
        children.append(_node(raw, taken, depth + 1))
    precision, scale = number_of(fields, 5, 38) or 38, number_of(fields, 6)
    if kind is TypeKind.DECIMAL and not (precision <= 38 and scale <= precision):
        raise Malformed(f"a decimal type has {precision} digits and scale {scale}, which is not valid")
    pairs = [parse_message(pair) for pair in messages_of(fields, 7)]
    attributes = {text_of(pair, 1) or "": text_of(pair, 2) or "" for pair in pairs}
    return Node(number, kind, names, tuple(children), number_of(fields, 4), precision, scale, attributes)


def _decoded(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise Malformed("the name of a column is not UTF-8") from error


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
    if footer.get(10):
        raise read_elsewhere(f"{file.path} has encrypted columns", file.path, "orc")
    root = parse_types(messages_of(footer, 4))
    if root.kind is not TypeKind.STRUCT:
        raise read_elsewhere(f"the rows of {file.path} are no rows with columns, but {root}", file.path, "orc")
    if root.names and all(name.startswith("_col") for name in root.names):
        what = f"the columns of {file.path} have no names but _col0, _col1 …, as Hive wrote them"
        raise read_elsewhere(f"{what}: Spark matches them by position", file.path, "orc")
    stripes = _stripes(footer, end)
    rows = number_of(footer, 6)
    starts = tuple(accumulate((stripe.rows for stripe in stripes), initial=0))
    if starts[-1] != rows:
        raise Malformed(f"the footer states {rows} rows for the file, but {starts[-1]} rows for its stripes")
    proleptic = number_of(footer, 11) == _PROLEPTIC
    statistics = end + number_of(script, 7), number_of(script, 5)
    columns = tuple(messages_of(footer, 7))
    return Tail(codec, block, number_of(script, 6), root, stripes, starts, proleptic, statistics, columns)


def _messages(raw: BinaryIO, file: InputFile) -> tuple[Fields, Fields, int]:
    """Return the postscript, the footer, and the offset before which all stripes must end."""
    raw.seek(max(0, file.size - _FIRST_READ))
    data = read_fully(raw.read, min(file.size, _FIRST_READ))
    length = data[-1] if data else 0
    if not 0 < length < len(data):
        raise Malformed("the postscript is missing")
    script = parse_message(data[-1 - length : -1])
    raw.seek(0)  # old files have the magic bytes at their start alone
    if MAGIC not in (messages_of(script, 8000) or [read_fully(raw.read, len(MAGIC))]):
        raise Malformed("the postscript does not have the magic bytes of ORC")
    codec, block = _codec(script, file.path)
    size = number_of(script, 1)
    whole = size + number_of(script, 5) + number_of(script, 7) + length + 1
    if whole > file.size:
        raise Malformed(f"the postscript states {whole} bytes of metadata, but the file has {file.size} bytes")
    total = size + length + 1
    if total > len(data):
        raw.seek(file.size - total)
        data = read_fully(raw.read, total)
        if len(data) < total:
            raise Malformed("the footer is cut off")
    stop = len(data) - 1 - length
    return script, parse_message(decompress(data[stop - size : stop], codec, block)), file.size - whole


def _codec(script: Fields, path: str) -> tuple[Codec, int]:
    number = number_of(script, 2)
    codec = next((known for known in Codec if known == number), None)
    version = numbers_of(script, 4)
    if codec not in READABLE or version[:1] not in ([], [0]):
        what = f"codec {number if codec is None else codec.name}" if codec not in READABLE else f"version {version}"
        raise read_elsewhere(f"{path} is an ORC file of {what}, which forebay cannot read", path, "orc")
    block = number_of(script, 3, _DEFAULT_BLOCK) or _DEFAULT_BLOCK
    if block > _MOST_BLOCK:
        raise Malformed(f"the postscript states compressed blocks of {block} bytes, more than {_MOST_BLOCK}")
    return codec, block


def _stripes(footer: Fields, end: int) -> tuple[Stripe, ...]:
    """Return the stripes that have rows. Raise Malformed unless the stripes follow one another before `end`."""
    stripes: list[Stripe] = []
    for number, part in enumerate(messages_of(footer, 3)):
        fields = parse_message(part)
        stripe = Stripe(number, *(number_of(fields, field) for field in range(1, 6)))
        before = stripes[-1].offset + stripes[-1].size if stripes else len(MAGIC)
        if stripe.offset < before or stripe.offset + stripe.size > end or stripe.rows > _MOST_ROWS:
            raise Malformed(f"stripe {number} is not in the file, or overlaps another one")
        if stripe.rows == 0:
            continue
        stripes.append(stripe)
    return tuple(stripes)


# -- Reads the footer of a stripe: the column, the kind and the length of each stream, and the encoding of each column.


_MOST_ANNOUNCED = 64 << 20
"""The most bytes of a stripe to keep in memory: the stripe size at which ORC's Java writer aims."""


class StreamKind(IntEnum):
    """The kinds of streams that hold data, as numbered in orc_proto.proto."""

    PRESENT = 0
    DATA = 1
    LENGTH = 2
    DICTIONARY_DATA = 3
    SECONDARY = 5


class Encoding(IntEnum):
    """The encodings of columns, as numbered in orc_proto.proto."""

    DIRECT = 0
    DICTIONARY = 1
    DIRECT_V2 = 2
    DICTIONARY_V2 = 3


PARTS = frozenset(StreamKind)
"""The kinds of streams that hold data. Streams of other kinds are indexes."""
_ENCODINGS = frozenset(Encoding)
DICTIONARIES = (Encoding.DICTIONARY, Encoding.DICTIONARY_V2)


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream of a stripe: its kind, the id of its column, and its length in bytes."""

    part: int
    column: int
    length: int


@dataclass(frozen=True, slots=True)
class OpenStripe:
    """A stripe of an open file, with its footer.

    Args:
        raw: The open file.
        tail: The tail of the file.
        place: Where the stripe is in the file.
        streams: The streams, in the order of the file.
        encodings: The encoding and the size of the dictionary of each column, by the column's id.
        zone: The name of the writer's time zone; empty in old files.
    """

    raw: BinaryIO
    tail: Tail
    place: Stripe
    streams: tuple[Stream, ...]
    encodings: tuple[tuple[int, int], ...]
    zone: str

    def announce(self, columns: Collection[int]) -> None:
        """Announce the streams of `columns` to the file, if it has a method `expect`, so that it prefetches them.

        Files of stores with slow requests have this method. Arrow reads all streams in turn, a little of each. So they
        are announced only if they all fit into `_MOST_ANNOUNCED` bytes.
        """
        announce = getattr(self.raw, "expect", None)
        if announce is None:
            return
        ends = list(accumulate((stream.length for stream in self.streams), initial=self.place.offset))
        ranges = [
            (start, end)
            for stream, (start, end) in zip(self.streams, pairwise(ends), strict=True)
            if stream.column in columns and stream.part in PARTS
        ]
        fits = sum(end - start for start, end in ranges) <= _MOST_ANNOUNCED
        announce([ranges] if fits else [], whole=_MOST_ANNOUNCED)


def open_stripe(raw: BinaryIO, tail: Tail, stripe: Stripe) -> OpenStripe:
    """Read the footer of a stripe; raise Malformed if it is damaged."""
    raw.seek(stripe.offset + stripe.index + stripe.data)
    fields = parse_message(decompress(read_fully(raw.read, stripe.footer), tail.codec, tail.block))
    parsed = [parse_message(part) for part in messages_of(fields, 1)]
    streams = tuple(Stream(*(number_of(message, field) for field in (1, 2, 3))) for message in parsed)
    if sum(stream.length for stream in streams) > stripe.index + stripe.data:
        raise Malformed(f"the streams of stripe {stripe.number} are longer than the stripe")
    parsed = [parse_message(part) for part in messages_of(fields, 2)]
    encodings = tuple((number_of(message, 1), number_of(message, 2)) for message in parsed)
    columns = sum(1 for _ in tail.root.walk())
    if len(encodings) != columns or any(kind not in _ENCODINGS for kind, _ in encodings):
        raise Malformed(
            f"stripe {stripe.number} has {len(encodings)} encodings for {columns} columns, or an unknown one"
        )
    return OpenStripe(raw, tail, stripe, streams, encodings, text_of(fields, 3) or "")
