# SPDX-License-Identifier: Apache-2.0
"""Bounds the memory for a record batch of a stripe: reads the lengths of strings, lists and maps before their content.

ORC C++ takes memory for the sum of the lengths that a batch declares. If it gets none, the process crashes. Lengths are
stored as unsigned numbers, and read here as a column of BIGINT, so as signed ones. That is exact for no run of the
encoding, but a length is at most four times the magnitude of what is read (plus one), in every kind of run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from forebay.formats.orc.projection import Pick
from forebay.formats.orc.stripes import DICTIONARIES, Part, StripeFooter, capacity
from forebay.formats.orc.tail import Stripe, Tail
from forebay.formats.orc.types import TEXTS, Kind
from forebay.formats.orc.wire import Malformed

Scan: TypeAlias = Callable[[Sequence[Pick], int, int | None], Iterator[pa.RecordBatch]]
"""Reads columns of a stripe in batches of a number of rows; the last argument is a number of rows of its own."""

MOST_ROWS = 16_384
_TARGET = 64 << 20
"""Bytes that a batch may take by the upper bound of its lengths."""
_MOST_BYTES = 1 << 30
"""The most bytes of one row, or of a dictionary, by the upper bound."""
_ELEMENT_BYTES = 16
"""The bytes of one value inside a list or map."""
_STRINGS = TEXTS | {Kind.BINARY}
_AT_MOST = 4


def rows_per_batch(tail: Tail, stripe: Stripe, footer: StripeFooter, columns: Sequence[Pick], scan: Scan) -> int:
    """Return how many rows to read at a time, so that memory stays bounded.

    Raises:
        Malformed: A row or a dictionary would take more than a gigabyte.
    """
    rows = min(MOST_ROWS, max(1, stripe.rows), max(64, _TARGET // (_ELEMENT_BYTES * _leaves(columns))))
    for column in columns:
        for pick in column.walk():
            if pick.kind in _STRINGS and footer.encodings[pick.source.id][0] in DICTIONARIES:
                longest = _dictionary(pick, footer, scan)
                rows = max(1, min(rows, _TARGET // max(1, longest)))
    for depth in range(_depth(columns)):
        chosen = [found for column in columns if (found := _lengths(column, depth, footer)) is not None]
        if chosen:
            rows = _checked(tail, footer, chosen, rows, stripe, scan)
    return rows


def _leaves(columns: Sequence[Pick]) -> int:
    return max(1, sum(1 for column in columns for _ in column.walk()))


def _depth(columns: Sequence[Pick]) -> int:
    """Return how many lengths are inside one another."""
    return max((_depth(one.children) + (one.kind in _STRINGS | {Kind.LIST, Kind.MAP}) for one in columns), default=0)


def _dictionary(pick: Pick, footer: StripeFooter, scan: Scan) -> int:
    """Return an upper bound for the bytes of the longest entry of a dictionary."""
    size = footer.encodings[pick.source.id][1]
    entries = Pick(pick.source, Kind.LONG, (), ((Part.LENGTH, Part.DATA),))
    longest = total = 0
    if size:
        for batch in scan([entries], MOST_ROWS, size):
            bounds = _bounds(batch.column(0))
            total += _ELEMENT_BYTES * len(bounds) + _sum(bounds)
            longest = max(longest, pc.max(bounds).as_py() or 0)
            if total > _MOST_BYTES:
                raise Malformed("a dictionary of more than 256 MB")
    return longest


def _lengths(pick: Pick, depth: int, footer: StripeFooter) -> Pick | None:
    """Return the column with only the lengths at a depth, as BIGINT; None if it has none."""
    nested = pick.kind in (Kind.LIST, Kind.MAP)
    if nested or pick.kind in _STRINGS:
        dictionary = not nested and footer.encodings[pick.source.id][0] in DICTIONARIES
        if depth == 0:
            kept = ((Part.PRESENT, Part.PRESENT), (Part.LENGTH, Part.DATA))
            return None if dictionary else Pick(pick.source, Kind.LONG, (), kept)
    if pick.kind is Kind.STRUCT:
        inside = [found for child in pick.children if (found := _lengths(child, depth, footer)) is not None]
        return Pick(pick.source, Kind.STRUCT, tuple(inside)) if inside else None
    if not nested:
        return None
    below = [_lengths(child, depth - 1, footer) for child in pick.children]
    if not any(below):
        return None
    # A map needs both parts: a struct without fields has no data.
    parts = [
        found or Pick(child.source, Kind.STRUCT, (), ()) for found, child in zip(below, pick.children, strict=True)
    ]
    return Pick(pick.source, pick.kind, tuple(parts))


def _checked(tail: Tail, footer: StripeFooter, columns: Sequence[Pick], rows: int, stripe: Stripe, scan: Scan) -> int:
    """Read the lengths at one depth; return `rows`, or less if batches would take too much memory."""
    while True:
        needed = 0
        for batch in scan(columns, rows, None):
            needed = max(needed, sum(map(_weight(tail, footer), columns, batch.columns)))
            if needed > _TARGET and rows > 1:
                break
        if needed <= _TARGET:
            return rows
        if rows == 1:
            if needed > _MOST_BYTES:
                raise Malformed(f"a row of stripe {stripe.number} with more than 256 MB")
            return rows
        rows = max(1, rows * _TARGET // (2 * needed))


def _weight(tail: Tail, footer: StripeFooter) -> Callable[[Pick, pa.Array], int]:
    """Return a function for the bytes that columns of lengths stand for, at most."""

    def weigh(pick: Pick, array: pa.Array) -> int:
        if isinstance(array, pa.StructArray):
            return sum(weigh(child, array.field(place)) for place, child in enumerate(pick.children))
        if isinstance(array, pa.MapArray):
            return weigh(pick.children[0], array.keys) + weigh(pick.children[1], array.items)
        if isinstance(array, pa.ListArray):
            return weigh(pick.children[0], array.values)
        bounds = _bounds(array)
        if pick.source.kind not in _STRINGS:
            inside = sum(1 for _ in pick.source.walk())
            return _ELEMENT_BYTES * inside * _sum(bounds)
        most = capacity(tail, footer.bytes_of(pick.source.id, Part.DATA))
        if (pc.max(bounds).as_py() or 0) > _AT_MOST * most + _AT_MOST:
            raise Malformed(f"a value that is longer than its stream of at most {most} bytes")
        return _sum(bounds)

    return weigh


def _bounds(array: pa.Array) -> pa.Array:
    """Return upper bounds of the lengths, as numbers of floating point, which do not overflow."""
    return pc.multiply(pc.abs(array.cast(pa.float64(), safe=False)), float(_AT_MOST))


def _sum(bounds: pa.Array) -> int:
    return int(pc.sum(bounds).as_py() or 0) + len(bounds)
