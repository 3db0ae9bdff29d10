# SPDX-License-Identifier: Apache-2.0
"""Presents one stripe of an ORC file, with selected columns, as a file of its own.

Arrow's reader cannot begin at a stripe, leave out nested fields, or bound its memory by what a stripe holds. So Arrow's
reader gets a file that consists of the bytes of one stripe and of new footers. The footers name only the streams of the
wanted columns. They may also declare another type for a stream: the lengths of strings are read as a column of integers
before memory is allocated for the strings.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

from forebay.formats.compression.byte_streams import read_fully
from forebay.formats.orc import metadata
from forebay.formats.orc.metadata import (
    DICTIONARIES,
    MAGIC,
    PARTS,
    Encoding,
    Kind,
    Malformed,
    Node,
    Part,
    Stream,
    Stripe,
    StripeFooter,
    Tail,
    stored,
)

_NO_COLUMN = (1 << 31) - 1
"""The column id of streams that are left out. No file has as many columns."""
_FIRST_READ = 16 << 10
"""How many bytes at the end of a file Arrow's reader reads to find the footer."""
_ZEROS = {True: bytes([0xC1, 0xFF, 0, 0]) * 1024, False: bytes([127, 0, 0]) * 1024}
"""Runs of zeros in ORC's run-length encoding of version 2 (True) and of version 1 (False)."""
_ZEROS_LENGTH = 1 << 40
"""The length of a stream of zeros in bytes, more than is ever read."""
_MODERN = (Encoding.DIRECT_V2, Encoding.DICTIONARY_V2)


@dataclass(frozen=True, slots=True)
class Pick:
    """A column of the new file.

    Args:
        source: The column's type in the original file.
        kind: The kind of type that the new file declares.
        children: The columns inside this column.
        parts: Pairs of a stream's kind in the original file and its kind in the new file. Streams of other kinds are
            left out. None keeps all streams and their kinds.
        zeros: Whether to add an endless DATA stream of zeros.
    """

    source: Node
    kind: Kind
    children: tuple[Pick, ...] = ()
    parts: tuple[tuple[Part, Part], ...] | None = None
    zeros: bool = False

    def walk(self) -> Iterator[Pick]:
        """Yield this column and the columns inside it, in the order of their new ids."""
        yield self
        for child in self.children:
            yield from child.walk()


class StripeFile(io.RawIOBase):
    """A file of one stripe and the selected columns. If reading `raw` raises an error, `failure` keeps the error.

    Args:
        raw: The ORC file, which stays open.
        tail: The tail of the ORC file.
        stripe: The stripe.
        footer: The footer of the stripe.
        columns: The columns of the new file. Their names are `0`, `1` ….
        rows: The number of rows of the new file; by default that of the stripe.
    """

    def __init__(
        self,
        raw: BinaryIO,
        tail: Tail,
        stripe: Stripe,
        footer: StripeFooter,
        columns: Sequence[Pick],
        rows: int | None = None,
    ) -> None:
        self._raw = raw
        self._shift = stripe.offset - len(MAGIC)
        self._size = stripe.index + stripe.data
        self._start = len(MAGIC) + self._size
        self.failure: Exception | None = None
        self._at = 0
        root = Pick(replace(tail.root, names=tuple(map(str, range(len(columns))))), Kind.STRUCT, tuple(columns))
        filled = [(number, pick) for number, pick in enumerate(root.walk()) if pick.zeros]
        versions = {footer.encodings[pick.source.id][0] in _MODERN for _, pick in filled}
        if len(versions) > 1:
            raise Malformed(f"stripe {stripe.number} mixes encodings of ORC's versions 1 and 2")
        modern = versions != {False}
        self._zeros = stored(_ZEROS[modern], tail.codec, tail.block)
        length = _ZEROS_LENGTH // len(self._zeros) * len(self._zeros)
        added = [Stream(Part.DATA, number, length) for number, _ in filled]
        self._stop = self._start + length * len(added)
        rows = stripe.rows if rows is None else rows
        self._end = _tail(tail, replace(stripe, rows=rows), footer, root, added)
        self.size = self._stop + len(self._end)

    def read(self, size: int = -1, /) -> bytes:
        """Return at most `size` bytes from the current position on; all remaining bytes if `size` is negative."""
        if self.closed:
            raise OSError("the file is closed")
        stop = self.size if size < 0 else min(self.size, self._at + size)
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
            skipped, wanted = (self._at - self._start) % len(self._zeros), min(stop, self._stop) - self._at
            parts.append((self._zeros * ((skipped + wanted) // len(self._zeros) + 1))[skipped : skipped + wanted])
            self._at += wanted
        if self._stop <= self._at < stop:
            parts.append(self._end[self._at - self._stop : stop - self._stop])
            self._at += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move to a position, and return it."""
        self._at = offset + (0, self._at, self.size)[whence]
        return self._at

    def tell(self) -> int:
        """Return the current position."""
        return self._at

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True


def _tail(tail: Tail, stripe: Stripe, footer: StripeFooter, root: Pick, added: Sequence[Stream]) -> bytes:
    """Return the footers of the new file. `added` are the streams that follow those of the stripe."""
    picks = list(root.walk())
    numbers: dict[int, list[tuple[int, Pick]]] = {}
    for number, pick in enumerate(picks):
        numbers.setdefault(pick.source.id, []).append((number, pick))
    streams = [metadata.encode(_stream(one)) for one in _renumbered(footer, numbers)]
    used = sum(one.length for one in footer.streams)
    streams.append(metadata.encode(_stream(Stream(Part.PRESENT, _NO_COLUMN, stripe.index + stripe.data - used))))
    streams.extend(metadata.encode(_stream(one)) for one in added)
    encodings = [metadata.encode(_encoding(pick, footer)) for pick in picks]
    stripe_footer = stored(metadata.encode({1: streams, 2: encodings, 3: b"GMT"}), tail.codec, tail.block)
    data = stripe.index + stripe.data + sum(one.length for one in added)
    information = metadata.encode({1: len(MAGIC), 2: 0, 3: data, 4: len(stripe_footer), 5: stripe.rows})
    content = len(MAGIC) + data + len(stripe_footer)
    message: dict[int, int | list[bytes]] = {
        1: len(MAGIC),
        2: content,
        3: [information],
        4: [_type(pick, number) for number, pick in enumerate(picks)],
        6: stripe.rows,
        8: 0,
        9: tail.writer,
    }
    new_footer = stored(metadata.encode(message), tail.codec, tail.block)
    script = metadata.encode(
        {
            1: len(new_footer),
            2: int(tail.codec),
            3: tail.block,
            4: b"\x00\x0c",
            5: 0,
            6: tail.writer_version,
            8000: MAGIC,
        }
    )
    # Without these bytes, Arrow's first read would reach into the stripe, which may cost a request.
    padding = bytes(max(0, _FIRST_READ - len(new_footer) - len(script) - 1))
    return stripe_footer + padding + new_footer + script + bytes([len(script)])


def _renumbered(footer: StripeFooter, numbers: dict[int, list[tuple[int, Pick]]]) -> Iterator[Stream]:
    """Yield the streams with new column ids. Streams that are left out become fillers of the same length."""
    skipped = 0
    for stream in footer.streams:
        new = _meaning(stream, numbers)
        if new is None:
            skipped += stream.length
            continue
        if skipped:
            yield Stream(Part.PRESENT, _NO_COLUMN, skipped)
            skipped = 0
        yield new
    if skipped:
        yield Stream(Part.PRESENT, _NO_COLUMN, skipped)


def _meaning(stream: Stream, numbers: dict[int, list[tuple[int, Pick]]]) -> Stream | None:
    for number, pick in numbers.get(stream.column, ()):
        if number == 0 or stream.part not in PARTS:
            continue
        if pick.parts is None:
            return Stream(stream.part, number, stream.length)
        for old, new in pick.parts:
            if old == stream.part:
                return Stream(new, number, stream.length)
    return None


def _stream(stream: Stream) -> dict[int, int]:
    return {1: int(stream.part), 2: stream.column, 3: stream.length}


def _encoding(pick: Pick, footer: StripeFooter) -> dict[int, int]:
    kind, size = footer.encodings[pick.source.id]
    if pick.kind is Kind.STRUCT:
        return {1: int(Encoding.DIRECT)}
    if pick.parts is not None and kind in DICTIONARIES:
        kind -= 1
    return {1: kind, 2: size} if kind in DICTIONARIES else {1: kind}


def _type(pick: Pick, number: int) -> bytes:
    at = number + 1
    inside = []
    for child in pick.children:
        inside.append(at)
        at += sum(1 for _ in child.walk())
    fields: dict[int, int | list[int] | list[bytes]] = {1: int(pick.kind), 2: inside}
    if pick.kind is Kind.STRUCT:
        fields[3] = [str(place).encode() for place in range(len(inside))]
    if pick.kind is Kind.DECIMAL:
        fields |= {5: pick.source.precision, 6: pick.source.scale}
    return metadata.encode(fields)
