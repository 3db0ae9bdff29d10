# SPDX-License-Identifier: Apache-2.0
"""Converts columns of texts in bulk or one by one, and checks which bytes a column contains."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

Converted = tuple["pa.Array", Sequence[int]]
"""The values (null for a null or malformed token), and the rows with a malformed token, ascending."""

Converter = Callable[["pa.Array"], Converted]

Plain = tuple[str, Callable[["pa.Array"], "pa.Array"]]
"""A regular expression for tokens that Arrow reads as Spark does, and the function that converts them in bulk."""


def token_view(tokens: pa.Array) -> memoryview:
    """Return a view of the bytes of all tokens (texts of values), concatenated, without a copy."""
    _, offsets, data = tokens.buffers()
    if data is None or offsets is None or not len(tokens):
        return memoryview(b"")
    (start,) = struct.unpack_from("=i", offsets, 4 * tokens.offset)
    (end,) = struct.unpack_from("=i", offsets, 4 * (tokens.offset + len(tokens)))
    return memoryview(data)[start:end]


def token_bytes(tokens: pa.Array) -> bytes:
    """Return a copy of the bytes of all tokens, concatenated."""
    return token_view(tokens).tobytes()


def consists_of(tokens: pa.Array, allowed: bytes) -> bool:
    """Return whether the tokens contain no bytes other than `allowed`."""
    return not token_bytes(tokens).translate(None, allowed)


def cast_or_parse(
    tokens: pa.Array,
    wanted: pa.DataType,
    parse: Callable[[str], object],
    plains: Sequence[Plain] = (),
    *,
    castable: bool = True,
) -> Converted:
    """Cast a whole column if Arrow can do it as Spark does (`castable`); else, or if the cast fails, use `by_value`."""
    if castable:
        try:
            return tokens.cast(wanted), ()
        except pa.ArrowInvalid:
            pass
    return by_value(tokens, wanted, parse, plains)


def by_value(
    tokens: pa.Array, value_type: pa.DataType, parse: Callable[[str], object], plains: Sequence[Plain] = ()
) -> Converted:
    """Convert tokens that match an expression of `plains` in bulk, and the others one by one with `parse`.

    `parse` returns None for a malformed token.
    """
    rest = tokens.is_valid()
    values: pa.Array = pa.nulls(len(tokens), value_type)
    for expression, convert in plains:
        plain = pc.and_(rest, pc.fill_null(pc.match_substring_regex(tokens, expression), False))
        if plain.true_count:
            values = pc.if_else(plain, convert(pc.if_else(plain, tokens, pa.scalar(None, tokens.type))), values)
            rest = pc.and_(rest, pc.invert(plain))
    rows = pc.indices_nonzero(rest).to_pylist()
    if not rows:
        return values, ()
    texts = pc.filter(tokens, rest).to_pylist()
    known = {text: parse(text) for text in set(texts)}
    found = [known[text] for text in texts]
    values = pc.replace_with_mask(values, rest, pa.array(found, value_type))
    return values, [row for row, value in zip(rows, found, strict=True) if value is None]
