# SPDX-License-Identifier: Apache-2.0
"""Converts columns of structs field by field, for ORC and Parquet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

Convert: TypeAlias = Callable[[pa.Array], pa.Array]
"""A function that converts an array to another array of the same length. None in its place keeps the array."""


def struct_of(children: Sequence[tuple[int | str | None, Convert | None]], target: pa.StructType) -> Convert:
    """Return the conversion of structs to the type `target`.

    `children` has, for each field of `target`, its index or name in the file, None if the file lacks it, and its
    conversion.
    """
    fields = list(target)

    def convert(array: pa.Array) -> pa.Array:
        inside = []
        for field, (place, step) in zip(fields, children, strict=True):
            if place is None:
                inside.append(pa.nulls(len(array), field.type))
            else:
                values = cast("pa.StructArray", array).field(place)
                inside.append(values if step is None else step(values))
        mask = pc.is_null(array) if array.null_count else None
        return pa.StructArray.from_arrays(inside, fields=fields, mask=mask)

    return convert
