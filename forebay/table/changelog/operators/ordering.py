# SPDX-License-Identifier: Apache-2.0
"""Converts the columns that order changes to integers that compare in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay.table.changelog.state.segments import Ints

FIRST: Final = np.iinfo(np.int64).min
"""A rank below that of every change."""


def order_ranks(stored: Sequence[pa.Array], arriving: Sequence[pa.Array]) -> Ints:
    """Return a rank for each stored change, followed by each arriving change. NULL ranks first, NaN last.

    Args:
        stored: The ordering columns of entries.
        arriving: The same columns of events.
    """
    ranks = [_ranks(pa.concat_arrays([one, other])) for one, other in zip(stored, arriving, strict=True)]
    if len(ranks) == 1:
        return ranks[0]
    order = np.lexsort(tuple(reversed(ranks)))
    changed = np.zeros(len(order), np.bool_)
    for rank in ranks:
        changed[1:] |= rank[order][1:] != rank[order][:-1]
    combined = np.empty(len(order), np.int64)
    combined[order] = np.cumsum(changed)
    return combined


def _ranks(column: pa.Array) -> Ints:
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        whole = column.cast(pa.int32()).cast(pa.int64()) if pa.types.is_date32(kind) else column.cast(pa.int64())
        if whole.null_count:
            whole = pc.fill_null(whole, fill_value=int(FIRST) + 1)
        numbers: Ints = whole.to_numpy()
        return numbers
    # Arrow's default puts NULL at the end. Only then does it rank NaN after all numbers, as Spark does.
    ranked: Ints = pc.rank(column, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    ranked[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return ranked


def last_of(codes: Ints, size: int, which: Ints, *order: Ints) -> Ints:
    """Return for each code the index of the element that comes last by `order`; -1 if no element counts.

    Args:
        codes: The code (a key or a group) of each element.
        size: The number of codes.
        which: The indexes of the elements that count.
        order: Columns over all elements; the first one decides first.
    """
    found = np.full(size, -1)
    chosen = codes[which]
    if len(which) > 1 and len(np.unique(chosen)) < len(chosen):
        arranged = np.lexsort((*(column[which] for column in reversed(order)), chosen))
        which, chosen = which[arranged], chosen[arranged]
        last = np.append(chosen[1:] != chosen[:-1], True)
        which, chosen = which[last], chosen[last]
    found[chosen] = which
    return found
