# SPDX-License-Identifier: Apache-2.0
"""Reads the tail of an ORC file (postscript and footer), and checks it before Arrow's reader sees the file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, BinaryIO

from forebay.errors import ConfigurationError
from forebay.formats.base import damaged_file
from forebay.formats.compression.byte_streams import read_fully
from forebay.formats.orc import wire
from forebay.formats.orc.chunks import RATIOS, Codec, decompress
from forebay.formats.orc.types import Kind, Node, parse_types
from forebay.formats.orc.wire import Malformed

if TYPE_CHECKING:
    from forebay.formats.base import InputFile

MAGIC = b"ORC"
_FIRST_READ = 16 << 10
_MOST_TAIL = 256 << 20
"""Upper bound for the bytes of statistics, footer and postscript together."""
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
        writer: The number of the program that wrote the file.
        statistics: The offset and the length in bytes of the statistics of the stripes.
    """

    codec: Codec
    block: int
    writer_version: int
    root: Node
    stripes: tuple[Stripe, ...]
    starts: tuple[int, ...]
    proleptic: bool
    writer: int
    statistics: tuple[int, int]


def read_tail(raw: BinaryIO, file: InputFile) -> Tail:
    """Read the tail of an open file. Errors of the store pass unchanged.

    Raises:
        DataError: The file is damaged, or is not an ORC file.
        ConfigurationError: The file is encrypted, or compressed in a way that cannot be read.
    """
    with wrap_damage(file.path):
        return _read(raw, file)


@contextmanager
def wrap_damage(path: str) -> Iterator[None]:
    """If the `with` block raises Malformed, raise the DataError for a damaged file instead."""
    try:
        yield
    except Malformed as error:
        raise damaged_file(f"{path} is not a complete ORC file: {error}") from error


def _read(raw: BinaryIO, file: InputFile) -> Tail:
    script, footer, end = _messages(raw, file)
    codec, block = _codec(script, file.path)
    if footer.get(10):
        raise ConfigurationError(
            f"{file.path} has encrypted columns", advice="read it with Spark's own ORC source, which takes the keys"
        )
    root = parse_types(wire.messages(footer, 4))
    if root.kind is not Kind.STRUCT:
        raise ConfigurationError(
            f"the rows of {file.path} have the type {root}, but only rows with columns (a struct) can be read",
            advice="exclude the file with pathGlobFilter",
        )
    stripes = _stripes(footer, end)
    rows = wire.number(footer, 6)
    starts = tuple(accumulate((stripe.rows for stripe in stripes), initial=0))
    if starts[-1] != rows:
        raise Malformed(f"the footer states {rows} rows for the file, but {starts[-1]} rows for its stripes")
    proleptic = wire.number(footer, 11) == _PROLEPTIC
    statistics = end + wire.number(script, 7), wire.number(script, 5)
    version, writer = wire.number(script, 6), wire.number(footer, 9)
    return Tail(codec, block, version, root, stripes, starts, proleptic, writer, statistics)


def _messages(raw: BinaryIO, file: InputFile) -> tuple[wire.Fields, wire.Fields, int]:
    """Return the postscript, the footer, and the offset before which all stripes must end."""
    raw.seek(max(0, file.size - _FIRST_READ))
    data = read_fully(raw.read, min(file.size, _FIRST_READ))
    length = data[-1] if data else 0
    if not 0 < length < len(data):
        raise Malformed("the postscript is missing")
    script = wire.parse(data[-1 - length : -1])
    if MAGIC not in (wire.messages(script, 8000) or [read_start(raw)]):
        raise Malformed("the postscript does not have the magic bytes of ORC")
    codec, block = _codec(script, file.path)
    size = wire.number(script, 1)
    whole = size + wire.number(script, 5) + wire.number(script, 7) + length + 1
    if whole > file.size or whole > _MOST_TAIL:
        raise Malformed(
            f"the postscript states {whole} bytes for metadata, footer and postscript together, "
            f"but the file has {file.size} bytes, and at most {_MOST_TAIL} are allowed"
        )
    wanted = size + length + 1
    if wanted > len(data):
        raw.seek(file.size - wanted)
        data = read_fully(raw.read, wanted)
        if len(data) < wanted:
            raise Malformed("the footer is cut off")
    stop = len(data) - 1 - length
    return script, wire.parse(decompress(data[stop - size : stop], codec, block)), file.size - whole


def read_start(raw: BinaryIO) -> bytes:
    """Return the magic bytes at the start of a file. Old files have them there, but not in the postscript."""
    raw.seek(0)
    return read_fully(raw.read, len(MAGIC))


def _codec(script: wire.Fields, path: str) -> tuple[Codec, int]:
    number = wire.number(script, 2)
    codec = next((one for one in Codec if one == number), None)
    version = wire.numbers(script, 4)
    if codec not in RATIOS or version[:1] not in ([], [0]):
        what = f"codec {number if codec is None else codec.name}" if codec not in RATIOS else f"version {version}"
        raise ConfigurationError(
            f"{path} is an ORC file of {what}, which forebay cannot read",
            advice="read it with Spark's own ORC source, or write the file again with another codec or version",
        )
    block = wire.number(script, 3, _DEFAULT_BLOCK) or _DEFAULT_BLOCK
    if block > _MOST_BLOCK:
        raise Malformed(f"the postscript states compressed blocks of {block} bytes, more than {_MOST_BLOCK}")
    return codec, block


def _stripes(footer: wire.Fields, end: int) -> tuple[Stripe, ...]:
    """Return the stripes that have rows. Raise Malformed unless the stripes follow one another before `end`."""
    found: list[Stripe] = []
    for number, part in enumerate(wire.messages(footer, 3)):
        fields = wire.parse(part)
        stripe = Stripe(number, *(wire.number(fields, field) for field in range(1, 6)))
        before = found[-1].offset + found[-1].size if found else len(MAGIC)
        if stripe.offset < before or stripe.offset + stripe.size > end or stripe.rows > _MOST_ROWS:
            raise Malformed(f"stripe {number} is not in the file, or overlaps another one")
        if stripe.rows == 0:
            continue
        found.append(stripe)
    return tuple(found)
