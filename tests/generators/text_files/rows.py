# SPDX-License-Identifier: Apache-2.0
"""Rows as text, to compare readers."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from forebay.formats.records import with_valid_utf8


def rows(table: pa.Table) -> list[str]:
    """Rows as text. In a malformed record Spark leaves bytes that are no UTF-8; to Python they are U+FFFD."""
    columns = [
        [value for chunk in table.column(place).chunks for value in plain(chunk)] for place in range(table.num_columns)
    ]
    return [repr(row) for row in zip(*columns, strict=True)]


def plain(array: Any) -> list[Any]:
    kind = array.type
    valid = array.is_valid().to_pylist()
    if isinstance(kind, pa.StructType):
        inside = [plain(array.field(place)) for place in range(kind.num_fields)]
        return [tuple(part[row] for part in inside) if known else None for row, known in enumerate(valid)]
    if isinstance(kind, pa.MapType | pa.ListType):
        if isinstance(kind, pa.MapType):
            items: list[Any] = list(zip(plain(array.keys), plain(array.items), strict=True))
        else:
            items = plain(array.values)
        starts = array.offsets.to_pylist()
        return [items[starts[row] : starts[row + 1]] if known else None for row, known in enumerate(valid)]
    if pa.types.is_string(kind):
        return list(with_valid_utf8(array.view(pa.binary()))[0].to_pylist())
    if pa.types.is_date32(kind):
        return list(array.view(pa.int32()).to_pylist())
    return list((array.view(pa.int64()) if pa.types.is_timestamp(kind) else array).to_pylist())
