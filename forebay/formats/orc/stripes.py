# SPDX-License-Identifier: Apache-2.0
"""Reads columns of one stripe by Arrow, which gets the stripe as a file of its own.

`pyarrow.orc.ORCFile.read_stripe` leaves nested fields out too, but takes the memory of a whole stripe, ends the process
for a map with a null key, and reads times as nanoseconds, which end in the year 2262. So Arrow's dataset reader, which
yields small batches, gets a file that consists of the bytes of one stripe and of new footers. These name only the
streams of the wanted columns, and declare maps as lists, and seconds and nanoseconds as two columns.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, groupby, islice, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa
import pyarrow.dataset as ds

from forebay.formats.compression.codecs import read_fully
from forebay.formats.orc.footer import (
    MAGIC,
    Message,
    Node,
    Stripe,
    Tail,
    TypeKind,
    decompress,
    encode,
    stored,
)
from forebay.formats.units import ArrowFile, Malformed, arrow_errors

if TYPE_CHECKING:
    pass

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
    footer = Message(decompress(read_fully(raw.read, stripe.footer), tail.codec, tail.block))
    streams = tuple(Stream(*(message.number(field) for field in (1, 2, 3))) for message in footer.messages(1))
    if sum(stream.length for stream in streams) > stripe.index + stripe.data:
        raise Malformed(f"the streams of stripe {stripe.number} are longer than the stripe")
    encodings = tuple((message.number(1), message.number(2)) for message in footer.messages(2))
    columns = sum(1 for _ in tail.root.walk())
    if len(encodings) != columns or any(kind not in _ENCODINGS for kind, _ in encodings):
        raise Malformed(
            f"stripe {stripe.number} has {len(encodings)} encodings for {columns} columns, or an unknown one"
        )
    return OpenStripe(raw, tail, stripe, streams, encodings, footer.text(3) or "")


_LEFT_OUT = (StreamKind.PRESENT, (1 << 31) - 1)
"""The kind and the column id of streams that are left out. No file has as many columns."""
_FIRST_READ = 16 << 10
"""How many bytes at the end of a file Arrow's reader reads to find the footer."""
_ZEROS = {True: bytes([0xC1, 0xFF, 0, 0]) * 1024, False: bytes([127, 0, 0]) * 1024}
"""Runs of zeros in ORC's run-length encoding of version 2 (True) and of version 1 (False)."""
_ZEROS_LENGTH = 1 << 40
"""The length of a stream of zeros in bytes, more than is ever read."""
_MODERN = (Encoding.DIRECT_V2, Encoding.DICTIONARY_V2)
ALL_PARTS = tuple((part, part) for part in StreamKind)
"""The `parts` of a column that keeps all its streams."""


@dataclass(frozen=True, slots=True)
class Pick:
    """A column of the new file.

    Args:
        source: The column's type in the original file.
        kind: The kind of type that the new file declares.
        children: The columns inside this column.
        parts: Pairs of a stream's kind in the original file and its kind in the new file. Streams of other kinds are
            left out.
        zeros: Whether to add an endless DATA stream of zeros.
    """

    source: Node
    kind: TypeKind
    children: tuple[Pick, ...] = ()
    parts: tuple[tuple[StreamKind, StreamKind], ...] = ALL_PARTS
    zeros: bool = False

    def walk(self) -> Iterator[Pick]:
        """Yield this column and the columns inside it, in the order of their new ids."""
        yield self
        for child in self.children:
            yield from child.walk()


class StripeFile(ArrowFile):
    """A file of one stripe and the selected columns. If reading the original raises an error, `failure` keeps it.

    Args:
        stripe: The stripe. Its file stays open.
        columns: The columns of the new file. Their names are `0`, `1` ….
    """

    def __init__(self, stripe: OpenStripe, columns: Sequence[Pick]) -> None:
        place, tail = stripe.place, stripe.tail
        self._raw = stripe.raw
        self._shift = place.offset - len(MAGIC)
        self._start = len(MAGIC) + place.index + place.data
        self._at = 0
        root = Pick(tail.root, TypeKind.STRUCT, tuple(columns), ())
        filled = [(number, pick) for number, pick in enumerate(root.walk()) if pick.zeros]
        versions = {stripe.encodings[pick.source.id][0] in _MODERN for _, pick in filled}
        if len(versions) > 1:
            raise Malformed(f"stripe {place.number} mixes encodings of ORC's versions 1 and 2")
        self._zeros = stored(_ZEROS[versions != {False}], tail.codec, tail.block)
        length = _ZEROS_LENGTH // len(self._zeros) * len(self._zeros)
        self._stop = self._start + length * len(filled)
        zeros = [_stream(StreamKind.DATA, number, length) for number, _ in filled]
        self._end = _tail(stripe, root, zeros, self._stop)
        self._size = self._stop + len(self._end)

    def read(self, size: int = -1, /) -> bytes:
        """Return at most `size` bytes from the current position on; all remaining bytes if `size` is negative."""
        if self.closed:
            raise OSError("the file is closed")
        stop = self._size if size < 0 else min(self._size, self._at + size)
        parts = []
        if self._at < len(MAGIC):
            parts.append(MAGIC[self._at : stop])
            self._at += len(parts[-1])
        if self._at < min(stop, self._start):
            try:
                self._raw.seek(self._at + self._shift)
                parts.append(read_fully(self._raw.read, min(stop, self._start) - self._at))
            except Exception as error:
                self.failure = error
                raise
            self._at += len(parts[-1])
        if self._start <= self._at < min(stop, self._stop):
            skipped, count = (self._at - self._start) % len(self._zeros), min(stop, self._stop) - self._at
            parts.append((self._zeros * ((skipped + count) // len(self._zeros) + 1))[skipped : skipped + count])
            self._at += count
        if self._stop <= self._at < stop:
            parts.append(self._end[self._at - self._stop : stop - self._stop])
            self._at += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move to a position, and return it."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at


def _tail(stripe: OpenStripe, root: Pick, zeros: Sequence[bytes], end: int) -> bytes:
    """Return the footers of the new file. `zeros` are the streams behind those of the stripe; they end at `end`."""
    tail = stripe.tail
    picks = list(root.walk())
    streams = [*_streams(stripe, picks), *zeros]
    encodings = [encode(_encoding(pick, stripe)) for pick in picks]
    stripe_footer = stored(encode({1: streams, 2: encodings, 3: b"GMT"}), tail.codec, tail.block)
    information = encode({1: len(MAGIC), 2: 0, 3: end - len(MAGIC), 4: len(stripe_footer), 5: stripe.place.rows})
    message: dict[int, int | list[bytes]] = {
        1: len(MAGIC),
        2: end + len(stripe_footer),
        3: [information],
        4: [_type(pick, number) for number, pick in enumerate(picks)],
        6: stripe.place.rows,
        8: 0,
    }
    footer = stored(encode(message), tail.codec, tail.block)
    script = encode(
        {1: len(footer), 2: int(tail.codec), 3: tail.block, 4: b"\x00\x0c", 5: 0, 6: tail.writer_version, 8000: MAGIC}
    )
    # Without these bytes, Arrow's first read would reach into the stripe, which may cost a request.
    padding = bytes(max(0, _FIRST_READ - len(footer) - len(script) - 1))
    return stripe_footer + padding + footer + script + bytes([len(script)])


def _streams(stripe: OpenStripe, picks: Sequence[Pick]) -> Iterator[bytes]:
    """Yield the streams with their new kinds and column ids. What is left out becomes fillers of the same length."""
    renamed: dict[tuple[int, int], tuple[StreamKind, int]] = {
        (pick.source.id, old): (new, number) for number, pick in enumerate(picks) for old, new in pick.parts
    }
    unused = stripe.place.index + stripe.place.data - sum(stream.length for stream in stripe.streams)
    pairs = [(renamed.get((stream.column, stream.part), _LEFT_OUT), stream.length) for stream in stripe.streams]
    for (part, column), run in groupby((*pairs, (_LEFT_OUT, unused)), key=itemgetter(0)):
        yield _stream(part, column, sum(length for _, length in run))


def _stream(part: StreamKind, column: int, length: int) -> bytes:
    return encode({1: int(part), 2: column, 3: length})


def _encoding(pick: Pick, stripe: OpenStripe) -> dict[int, int]:
    kind, size = stripe.encodings[pick.source.id]
    if pick.kind is TypeKind.STRUCT:
        return {1: int(Encoding.DIRECT)}
    if pick.parts != ALL_PARTS and kind in DICTIONARIES:
        kind -= 1
    return {1: kind, 2: size} if kind in DICTIONARIES else {1: kind}


def _type(pick: Pick, number: int) -> bytes:
    at = number + 1
    inside = []
    for child in pick.children:
        inside.append(at)
        at += sum(1 for _ in child.walk())
    fields: dict[int, int | list[int] | list[bytes]] = {1: int(pick.kind), 2: inside}
    if pick.kind is TypeKind.STRUCT:
        fields[3] = [str(place).encode() for place in range(len(inside))]
    if pick.kind is TypeKind.DECIMAL:
        fields |= {5: pick.source.precision, 6: pick.source.scale}
    return encode(fields)


_FORMAT = ds.OrcFileFormat()
_AHEAD = 2
"""How many batches to take after closing the file: the one that Arrow was reading, and one that finds it closed."""


def scan(stripe: OpenStripe, columns: Sequence[Pick], batch_rows: int) -> Generator[pa.RecordBatch]:
    """Yield columns of a stripe in batches of at most `batch_rows` rows.

    Raises:
        Malformed: The stripe is damaged. Errors of the store pass unchanged.
    """
    file = StripeFile(stripe, columns)
    with arrow_errors(file):
        fragment = _FORMAT.make_fragment(pa.PythonFile(file, mode="r"))
        scanner = fragment.scanner(batch_size=batch_rows, batch_readahead=0, fragment_readahead=0, use_threads=False)
        batches = scanner.to_batches()
        try:
            while (batch := next(batches, None)) is not None:  # `yield from` would close them
                batch.validate()
                yield batch
        finally:
            _end(file, batches)


def _end(file: StripeFile, batches: Iterator[pa.RecordBatch]) -> None:
    """Close `file`, and wait until Arrow's thread stops reading ahead. Then the ORC file may be closed or reused."""
    file.close()
    with suppress(pa.ArrowException, OSError):
        for _ in islice(batches, _AHEAD):
            pass
