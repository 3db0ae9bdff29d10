# SPDX-License-Identifier: Apache-2.0
"""Parses and encodes Protocol Buffers messages, as far as the metadata of ORC files needs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from forebay.formats.compression.byte_streams import encoded_varint

Value: TypeAlias = "int | bytes"
Fields: TypeAlias = "dict[int, list[Value]]"
"""The values of a message by field number. Numbers are ints; texts and nested messages are bytes."""

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_MOST_BITS = 63


class Malformed(ValueError):
    """Bytes that are not valid ORC."""


def parse(data: bytes) -> Fields:
    """Return the fields of a message; raise Malformed if the bytes are not a message."""
    fields: Fields = {}
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        value: Value
        match key & 7:
            case 0:
                value, at = _varint(data, at)
            case 2:
                size, at = _varint(data, at)
                value, at = data[at : at + size], at + size
            case 1 | 5 as kind:
                size = 8 if kind == _FIXED_64 else 4
                value, at = data[at : at + size], at + size
            case kind:
                raise Malformed(f"a field has the unknown Protocol Buffers wire type {kind}")
        if at > len(data):
            raise Malformed("a field is longer than its Protocol Buffers message")
        fields.setdefault(key >> 3, []).append(value)
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > _MOST_BITS:
            break
    raise Malformed("a Protocol Buffers number does not end")


def number(fields: Fields, field: int, default: int = 0) -> int:
    """Return the last number of a field; raise Malformed if the value is not a number."""
    found = fields.get(field, [default])[-1]
    if not isinstance(found, int):
        raise Malformed(f"Protocol Buffers field {field} is not a number")
    return found


def numbers(fields: Fields, field: int) -> list[int]:
    """Return the numbers of a repeated field, whether it is packed or not."""
    found: list[int] = []
    for value in fields.get(field, []):
        if isinstance(value, int):
            found.append(value)
            continue
        at = 0
        while at < len(value):
            item, at = _varint(value, at)
            found.append(item)
    return found


def messages(fields: Fields, field: int) -> list[bytes]:
    """Return the bytes of a repeated field of messages or texts; raise Malformed for numbers."""
    found = [value for value in fields.get(field, []) if isinstance(value, bytes)]
    if len(found) != len(fields.get(field, [])):
        raise Malformed(f"Protocol Buffers field {field} is not a message")
    return found


def text(fields: Fields, field: int) -> str | None:
    """Return the last text of a field; None if it is missing. Raise Malformed for bytes that are not UTF-8."""
    found = messages(fields, field)
    if not found:
        return None
    try:
        return found[-1].decode()
    except UnicodeDecodeError as error:
        raise Malformed(f"Protocol Buffers field {field} is not text") from error


def encode(fields: Mapping[int, int | bytes | Iterable[int | bytes]]) -> bytes:
    """Encode a message from its values by field number. A field with several values is repeated."""
    out = bytearray()
    for field, given in fields.items():
        for value in (given,) if isinstance(given, (int, bytes)) else given:
            if isinstance(value, int):
                out += encoded_varint(field << 3 | _VARINT) + encoded_varint(value)
            else:
                out += encoded_varint(field << 3 | _BYTES) + encoded_varint(len(value)) + value
    return bytes(out)
