# SPDX-License-Identifier: Apache-2.0
"""Tables as digests, one for each column, to compare the readers of two processes."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import pyarrow as pa


def plain(kind: pa.DataType) -> pa.DataType:
    """Return the type as which values compare: times as numbers, and texts as bytes, which Spark does not check."""
    if isinstance(kind, pa.StructType):
        return pa.struct([pa.field(field.name, plain(field.type)) for field in kind])
    if isinstance(kind, pa.MapType):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    if isinstance(kind, pa.ListType):
        return pa.list_(plain(kind.value_type))
    if pa.types.is_string(kind):
        return pa.binary()
    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) else kind


def _ordered(value: Any) -> Any:
    """Return a value without what is allowed to differ.

    Entries of maps are in order, and of a repeated key the last one stays: those of Spark's Avro reader are in a hash
    table. U+FFFD replaces bytes that are not UTF-8, as forebay does in ORC and Avro.
    """
    if isinstance(value, bytes):
        return re.sub("\ufffd+", "\ufffd", value.decode("utf-8", "replace"))
    if isinstance(value, dict):
        return {key: _ordered(inside) for key, inside in value.items()}
    if isinstance(value, list):
        found = [_ordered(one) for one in value]
        return sorted(dict(found).items(), key=repr) if found and isinstance(found[0], tuple) else found
    return tuple(_ordered(one) for one in value) if isinstance(value, tuple) else value


def texts(column: pa.ChunkedArray) -> list[str]:
    """Return values as text, so that NaN equals NaN and -0.0 does not equal 0.0."""
    return [repr(_ordered(value)) for value in column.cast(plain(column.type)).to_pylist()]


def digests(table: pa.Table) -> dict[str, str]:
    """Return the type and a digest of the values of each column, and the number of rows."""
    found = {"": str(table.num_rows)}
    for name in table.schema.names:
        values = hashlib.sha1("\n".join(texts(table[name])).encode(), usedforsecurity=False).hexdigest()
        found[name] = f"{plain(table.schema.field(name).type)} {values}"
    return found
