# SPDX-License-Identifier: Apache-2.0
"""Finds values of change events that are not the values of their columns, such as Debezium's placeholders (TOAST)."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from hashlib import md5
from typing import Any, Final, cast
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.table.changelog.converters.change_events import children, valid

PLACEHOLDER: Final = "__debezium_unavailable_value"
"""What Debezium writes for a large value of PostgreSQL that an update did not change (TOAST)."""

_RAW: Final = PLACEHOLDER.encode()
_UUID: Final = str(UUID(bytes=md5(_RAW, usedforsecurity=False).digest(), version=3))
"""What Java's `UUID.nameUUIDFromBytes` makes of the placeholder: the element of a `uuid[]`."""
_POINTS: Final = [
    bytes.fromhex("0101000020E6100000000000FC83D797C1000000FC83D797C1"),
    bytes.fromhex("0101000020E61000000C21E7FDFF7F66401842CEFBFF7F5640"),
]
"""The placeholders of PostGIS: the field `wkb` of a geometry and of a geography."""
_BYTES: Final = [_RAW, *_POINTS]
_WORDS: Final = [PLACEHOLDER, _UUID, *(form for raw in _BYTES for form in (b64encode(raw).decode(), raw.hex()))]
_JSON: Final = [
    json.dumps(value, separators=(",", ":"))
    for value in (
        {PLACEHOLDER: PLACEHOLDER},
        list(_RAW),
        *([word] for word in _WORDS),
        *({"wkb": b64encode(raw).decode(), "srid": 4326} for raw in _POINTS),
    )
]
_TEXTS: Final = [*_WORDS, *_JSON]
"""Every form of the placeholder in a column of texts: as a text, as Base64 or hexadecimal bytes, as JSON."""
_TEXT: Final = "|".join(
    r"\s*".join(map(re.escape, re.findall(r'"[^"]*"|[0-9]+|[^"0-9]', text) if text in _JSON else [text]))
    for text in _TEXTS
)
"""Matches these forms. A column of texts has JSON as the producer wrote it, with its spaces."""
_BYTE_SET: Final = pa.array(_BYTES, pa.binary())

_DECIMAL: Final = b"org.apache.kafka.connect.data.Decimal"
_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
PRECISE: Final = "decimal.handling.mode=precise writes the bytes of a decimal in Base64; set it to string"

Mask = npt.NDArray[np.bool_]


def placeholders(column: pa.Array) -> Mask:
    """Return for each value of a column whether it is Debezium's placeholder, or has it in it."""
    kind = column.type
    found = np.zeros(len(column), np.bool_)
    if pa.types.is_string(kind):
        return np.array(pc.match_substring_regex(column, f"^(?:{_TEXT})$").fill_null(False), np.bool_)
    if pa.types.is_binary(kind):
        return np.array(pc.is_in(column, _BYTE_SET), np.bool_)
    if isinstance(kind, pa.StructType):
        for inner in children(column):
            found |= placeholders(inner)
    elif isinstance(kind, pa.MapType):
        pairs = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        return placeholders(column.cast(pa.list_(pairs)))
    elif isinstance(kind, pa.ListType):
        inside = placeholders(cast("pa.ListArray", column).flatten())
        found[pc.list_parent_indices(column).to_numpy(zero_copy_only=False)[inside]] = True
        numbers = pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_string
        if any(test(kind.value_type) for test in numbers):
            # An array of numbers has the bytes of the placeholder.
            lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
            for row in np.flatnonzero(lengths == len(_RAW)).tolist():
                found[row] |= _is_raw(column[row].as_py())
    return found


def _is_raw(values: list[Any]) -> bool:
    try:
        return list(map(float, values)) == list(_RAW)
    except (TypeError, ValueError):
        return False


def filled(before: pa.Array, after: pa.Array, rows: pa.Schema) -> tuple[pa.Array, dict[str, Mask]]:
    """Replace the placeholders in `after` by the values of `before`.

    A value that is too large to be sent is not NULL, so a NULL in `before` means that `before` does not have it.

    Returns:
        The new rows, and for each column with placeholders whether a row lacks the value, in `after` or in `before`.
    """
    columns, lost = children(after), {}
    own = np.arange(len(after))
    for place, (old, new) in enumerate(zip(children(before), columns, strict=True)):
        gone, unknown = placeholders(new), placeholders(old)
        if gone.any() or unknown.any():
            lost[rows.names[place]] = unknown | (gone & ~valid(old))
            columns[place] = pa.concat_arrays([new, old]).take(pa.array(np.where(gone, own + len(after), own)))
    if lost:
        after = pa.StructArray.from_arrays(columns, fields=list(rows), mask=after.is_null())
    return after, lost


def precise_decimals(texts: pa.Array, names: Sequence[str]) -> dict[str, Mask]:
    """Return for each of the columns `names` the events whose schema of Kafka Connect says that it is a `Decimal`."""
    found = {name: np.zeros(len(texts), np.bool_) for name in names}
    if not names:
        return found
    known: dict[bytes, set[str]] = {}
    for row in pc.indices_nonzero(pc.match_substring(texts, _DECIMAL.decode()).fill_null(False)).to_pylist():
        text: bytes = texts[row].as_py()
        head = text.partition(b'"payload":')[0]
        head = head if _DECIMAL in head else text
        if head not in known:
            known[head] = _decimal_columns(text)
        for name in known[head] & found.keys():
            found[name][row] = True
    return found


def _decimal_columns(text: bytes) -> set[str]:
    try:
        parts = [part for part in json.loads(text)["schema"]["fields"] if part["field"] in ("before", "after")]
        fields = [field for part in parts for field in part["fields"]]
        return {field["field"] for field in fields if field.get("name") == _DECIMAL.decode()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return set()  # not the schema of an envelope


def cause(text: bytes, rows: Mapping[str, pa.Array], row: int) -> str:
    """Return the likely cause why an event does not fit the schema, as the end of a reason; empty if it is unknown.

    Args:
        text: The event.
        rows: The fields of the event that hold rows of the table, as they were read; "" is the event itself.
        row: The number of the event.
    """
    try:
        event = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    event = event.get("payload", event) if isinstance(event, dict) else None
    for part, structs in rows.items():
        values = event.get(part) if part and isinstance(event, dict) else event
        if part and isinstance(values, str):
            return f"; {part} is a text, as Debezium writes documents of MongoDB, which are not supported"
        if part and isinstance(values, list):
            return f"; {part} is an array, as Canal writes it, whose format is not supported"
        if isinstance(values, dict):
            for field, column in zip(cast("pa.StructType", structs.type), children(structs), strict=True):
                if pa.types.is_nested(field.type) or not column[row].is_valid:
                    value = values.get(field.name)
                    if reason := _cause(value, field.type):
                        return f"; {part}{'.' if part else ''}{field.name} {reason}"
    return ""


def _cause(value: Any, kind: pa.DataType) -> str:  # noqa: ANN401 - any value of JSON
    whole = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    if whole in _TEXTS:
        return f"is the placeholder {PLACEHOLDER} (TOAST) in a form that is no {kind}"
    for leaf, wanted in _leaves(value, kind):
        if pa.types.is_temporal(wanted) and isinstance(leaf, (int, float)):
            return (
                "is a number, whose unit the event does not say: declare it BIGINT and convert it in the query, or let "
                "the producer write texts (Debezium: time.precision.mode=isostring, or a converter)"
            )
        if pa.types.is_decimal(wanted) and isinstance(leaf, str) and leaf and _BASE64.fullmatch(leaf):
            return f"may be Base64: {PRECISE}"
    return ""


def _leaves(value: Any, kind: pa.DataType) -> Iterator[tuple[Any, pa.DataType]]:  # noqa: ANN401 - any value of JSON
    if isinstance(kind, pa.StructType) and isinstance(value, dict):
        for field in kind:
            yield from _leaves(value.get(field.name), field.type)
    elif isinstance(kind, pa.MapType) and isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item, kind.item_type)
    elif isinstance(kind, pa.ListType) and isinstance(value, list):
        for item in value:
            yield from _leaves(item, kind.value_type)
    else:
        yield value, kind
