# SPDX-License-Identifier: Apache-2.0
"""Bounds the memory for a record batch of a stripe: reads the lengths of strings, lists and maps before their content.

ORC C++ trusts these lengths. It allocates memory for their sum, and a negative or huge length crashes the process.
Lengths are unsigned numbers. No type of Arrow's reader returns these unchanged, so they are read as two other types:

* as BIGINT, which decodes a length n to a signed number s, where n is at most 4 × |s| + 1;
* as the nanoseconds of timestamps: the result is negative if ORC C++ would take the length as negative, unless the
  length is huge.
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
"""Reads columns of a stripe: `(columns, rows per batch, rows)`. `rows`, unless None, replaces those of the stripe."""

MOST_ROWS = 16_384
_TARGET = 64 << 20
"""Target bytes of a record batch, by the upper bound that its lengths give."""
_MOST_BYTES = 1 << 30
"""The most bytes of one row, or of a dictionary, by the upper bound that their lengths give."""
_TOO_LONG = "may take more than 1 GB of memory, by an estimate that may be several times too high"
_ELEMENT_BYTES = 16
"""The assumed bytes of one value inside a list or map."""
_BASE_NS = 1_420_070_400_000_000_000
"""2015-01-01 in nanoseconds, which ORC adds to timestamps."""
_STRINGS = TEXTS | {Kind.BINARY}
_AT_MOST = 4


def rows_per_batch(tail: Tail, stripe: Stripe, footer: StripeFooter, columns: Sequence[Pick], scan: Scan) -> int:
    """Return how many rows to read at a time, so that memory stays bounded.

    Raises:
        Malformed: A row or a dictionary may take more than 1 GB, or a length is invalid.
    """
    rows = min(MOST_ROWS, max(1, stripe.rows), max(64, _TARGET // (_ELEMENT_BYTES * _leaves(columns))))
    for column in columns:
        for pick in column.walk():
            if pick.kind in _STRINGS and footer.encodings[pick.source.id][0] in DICTIONARIES:
                longest = _dictionary(pick, footer, scan)
                rows = max(1, min(rows, _TARGET // max(1, longest)))
    for depth in range(_depth(columns)):
        signed, nanos = (
            [found for column in columns if (found := _lengths(column, depth, footer, leaf)) is not None]
            for leaf in (_as_signed, _as_nanos)
        )
        if signed:
            rows = _bounded_rows(tail, footer, signed, rows, stripe, scan)
            _check_signs(nanos, rows, scan)
    return rows


def _leaves(columns: Sequence[Pick]) -> int:
    return max(1, sum(1 for column in columns for _ in column.walk()))


def _depth(columns: Sequence[Pick]) -> int:
    """Return how many values with a length (strings, binaries, lists) are nested in one another, at most."""
    return max((_depth(one.children) + (one.kind in _STRINGS | {Kind.LIST}) for one in columns), default=0)


def _dictionary(pick: Pick, footer: StripeFooter, scan: Scan) -> int:
    """Return an upper bound for the bytes of the longest entry of a dictionary."""
    size = footer.encodings[pick.source.id][1]
    entries = Pick(pick.source, Kind.LONG, (), ((Part.LENGTH, Part.DATA),))
    longest = total = 0
    if size:
        for batch in scan([entries], MOST_ROWS, size):
            total += _ELEMENT_BYTES * batch.num_rows + _sum(batch.column(0))
            longest = max(longest, _longest(batch.column(0)))
            if total > _MOST_BYTES:
                raise Malformed(f"a dictionary {_TOO_LONG}")
    return longest


def _lengths(pick: Pick, depth: int, footer: StripeFooter, leaf: Callable[[Pick], Pick]) -> Pick | None:
    """Return a column with only the lengths at a nesting depth; None if there are none. `leaf` picks the lengths."""
    if pick.kind is Kind.LIST or pick.kind in _STRINGS:
        dictionary = pick.kind is not Kind.LIST and footer.encodings[pick.source.id][0] in DICTIONARIES
        if depth == 0:
            return None if dictionary else leaf(pick)
        depth -= 1
    inside = [found for child in pick.children if (found := _lengths(child, depth, footer, leaf)) is not None]
    return Pick(pick.source, pick.kind, tuple(inside), pick.parts) if inside else None


def _as_signed(pick: Pick) -> Pick:
    return Pick(pick.source, Kind.LONG, (), ((Part.PRESENT, Part.PRESENT), (Part.LENGTH, Part.DATA)))


def _as_nanos(pick: Pick) -> Pick:
    parts = ((Part.PRESENT, Part.PRESENT), (Part.LENGTH, Part.SECONDARY))
    return Pick(pick.source, Kind.TIMESTAMP_INSTANT, (), parts, zeros=True)


def _bounded_rows(
    tail: Tail, footer: StripeFooter, columns: Sequence[Pick], rows: int, stripe: Stripe, scan: Scan
) -> int:
    """Read the lengths at one depth; return `rows`, or fewer if record batches would take too much memory."""
    while True:
        needed = 0
        for batch in scan(columns, rows, None):
            needed = max(needed, sum(_weight(tail, footer, *leaf) for leaf in _leaves_of(columns, batch.columns)))
            if needed > _TARGET and rows > 1:
                break
        if needed <= _TARGET:
            return rows
        if rows == 1:
            if needed > _MOST_BYTES:
                raise Malformed(f"a row of stripe {stripe.number} {_TOO_LONG}")
            return rows
        rows = max(1, rows * _TARGET // (2 * needed))


def _check_signs(columns: Sequence[Pick], rows: int, scan: Scan) -> None:
    for batch in scan(columns, rows, None):
        for _, array in _leaves_of(columns, batch.columns):
            least = pc.min(array.cast(pa.int64())).as_py()
            if least is not None and least < _BASE_NS:
                raise Malformed("the length of a value is negative")


def _leaves_of(picks: Sequence[Pick], arrays: Sequence[pa.Array]) -> Iterator[tuple[Pick, pa.Array]]:
    """Yield each column of lengths with its values, also inside structs and lists."""
    for pick, array in zip(picks, arrays, strict=True):
        if isinstance(array, pa.StructArray):
            yield from _leaves_of(pick.children, [array.field(place) for place in range(len(pick.children))])
        elif isinstance(array, pa.ListArray):
            yield from _leaves_of(pick.children, [array.values])
        else:
            yield pick, array


def _weight(tail: Tail, footer: StripeFooter, pick: Pick, array: pa.Array) -> int:
    """Return an upper bound for the bytes of the values whose lengths `array` holds."""
    longest = _longest(array)
    of_strings = pick.source.kind in _STRINGS
    if of_strings:
        most = capacity(tail, footer.bytes_of(pick.source.id, Part.DATA))
        if longest > _AT_MOST * most + _AT_MOST:
            raise Malformed(f"a value is longer than its stream, which has at most {most} bytes")
    each = 1 if of_strings else _ELEMENT_BYTES * sum(1 for _ in pick.source.walk())
    whole = each * (longest + 1) * len(array)
    return whole if whole <= _TARGET // 16 else each * _sum(array)


def _longest(array: pa.Array) -> int:
    """Return an upper bound of the longest length."""
    ends = pc.min_max(array).as_py()
    return 0 if ends["min"] is None else _AT_MOST * max(-ends["min"], ends["max"])


def _sum(array: pa.Array) -> int:
    """Return an upper bound of the sum of lengths, computed in floating point, which does not overflow."""
    magnitudes = pc.abs(array.cast(pa.float64(), safe=False))
    return _AT_MOST * int(pc.sum(magnitudes).as_py() or 0) + len(array)
