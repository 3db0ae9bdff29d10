# SPDX-License-Identifier: Apache-2.0
"""Reads the footer of a stripe: the column, the kind and the length of each stream, and the encoding of each column."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import BinaryIO

from forebay.formats.compression.byte_streams import read_fully
from forebay.formats.orc import wire
from forebay.formats.orc.chunks import RATIOS, decompress
from forebay.formats.orc.tail import Stripe, Tail
from forebay.formats.orc.wire import Malformed

_MOST_FOOTER = 64 << 20
"""Upper bound for the bytes of a stripe's footer."""
_MOST_ANNOUNCED = 64 << 20
"""The most bytes of a stripe to keep in memory: the stripe size at which ORC's Java writer aims."""


class Part(IntEnum):
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


PARTS = frozenset(map(int, Part))
"""The kinds of streams that hold data. Streams of other kinds are indexes."""
_ENCODINGS = frozenset(map(int, Encoding))
DICTIONARIES = (Encoding.DICTIONARY, Encoding.DICTIONARY_V2)


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream of a stripe: its kind, the id of its column, and its length in bytes."""

    part: int
    column: int
    length: int


@dataclass(frozen=True, slots=True)
class StripeFooter:
    """The footer of a stripe: the streams, each column's encoding and dictionary size, and the writer's time zone."""

    streams: tuple[Stream, ...]
    encodings: tuple[tuple[int, int], ...]
    zone: str

    def bytes_of(self, column: int, part: Part) -> int:
        """Return the length in bytes of a column's stream; 0 if there is no such stream."""
        return sum(one.length for one in self.streams if one.column == column and one.part == part)


def read_stripe_footer(raw: BinaryIO, tail: Tail, stripe: Stripe) -> StripeFooter:
    """Read the footer of a stripe; raise Malformed if it is damaged."""
    raw.seek(stripe.offset + stripe.index + stripe.data)
    if stripe.footer > _MOST_FOOTER:
        raise Malformed(f"stripe {stripe.number} has a footer of {stripe.footer} bytes, more than {_MOST_FOOTER}")
    fields = wire.parse(decompress(read_fully(raw.read, stripe.footer), tail.codec, tail.block))
    parsed = [wire.parse(part) for part in wire.messages(fields, 1)]
    streams = tuple(Stream(*(wire.number(one, field) for field in (1, 2, 3))) for one in parsed)
    if sum(stream.length for stream in streams) > stripe.index + stripe.data:
        raise Malformed(f"the streams of stripe {stripe.number} are longer than the stripe")
    encodings = [wire.parse(part) for part in wire.messages(fields, 2)]
    columns = sum(1 for _ in tail.root.walk())
    found = tuple((wire.number(one, 1), wire.number(one, 2)) for one in encodings)
    if len(found) != columns or any(kind not in _ENCODINGS for kind, _ in found):
        raise Malformed(f"stripe {stripe.number} has {len(found)} encodings for {columns} columns, or an unknown one")
    return StripeFooter(streams, found, wire.text(fields, 3) or "")


def announce_streams(raw: BinaryIO, stripe: Stripe, footer: StripeFooter, columns: Collection[int]) -> None:
    """Announce the streams of `columns` to the file, if it has a method `expect`, so that it prefetches them.

    Files of stores with slow requests have this method. Arrow reads all streams in turn, a little of each. So they are
    announced only if they all fit into `_MOST_ANNOUNCED` bytes.
    """
    announce = getattr(raw, "expect", None)
    if announce is None:
        return
    ends = list(accumulate((stream.length for stream in footer.streams), initial=stripe.offset))
    ranges = [
        (start, end)
        for stream, (start, end) in zip(footer.streams, pairwise(ends), strict=True)
        if stream.column in columns and stream.part in PARTS
    ]
    fits = sum(end - start for start, end in ranges) <= _MOST_ANNOUNCED
    announce([ranges] if fits else [], whole=_MOST_ANNOUNCED)


def capacity(tail: Tail, compressed: int) -> int:
    """Return the maximum uncompressed size of a stream of `compressed` bytes."""
    return min(compressed * RATIOS[tail.codec], (compressed // 4 + 1) * tail.block)
