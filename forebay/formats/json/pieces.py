# SPDX-License-Identifier: Apache-2.0
"""Reads lines that all have the form of one, as most programs write them.

`splitting` finds their values, twice as fast as Arrow's JSON reader parses lines of some length. Strings are taken as
they are; of numbers the spelling is checked, because Arrow takes more of them than JSON has.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from forebay.formats.csv.columns import token_bytes
from forebay.formats.json.arrow import Doubt, Finish, finish_of
from forebay.formats.json.options import JsonOptions
from forebay.formats.json.splitting import LineSplitter, Values
from forebay.formats.json.template import Piece, Template, Tree
from forebay.formats.json.tokens import MAX_NUMBER_DIGITS


class PieceReader:
    """Reads blocks of lines of one form. One object per read.

    Args:
        fields: The columns to read.
        options: How to read.
        template: The form of the lines.

    Raises:
        Doubt: The form does not fit the columns.
    """

    def __init__(self, fields: list[pa.Field], options: JsonOptions, template: Template) -> None:
        self._schema = pa.schema(fields)
        self._options = options
        self.splitter = LineSplitter(template)
        self._strings = [piece.index for piece in template.values if piece.quoted]
        self._unjudged = {piece.index for piece in template.values if not piece.quoted}
        self._columns = [self._column(item, template.tree) for item in fields]
        self._rows = 0
        self._odd: list[pa.Array] = []

    def read(self, values: Values) -> tuple[pa.RecordBatch, list[int]]:
        """The rows of a block that `splitter` has split, and which of them may be something else.

        Raises:
            Doubt: None of it can be used.
        """
        read = values.by_piece
        self._rows, self._odd = len(values.rows.starts), []
        for index in self._strings:
            if _has_control(read[index]):
                raise Doubt(None)
        for index in self._unjudged:
            # No column of numbers will look at these.
            self._note(_no_primitive(read[index]))
        arrays = [column(read) for column in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema), self._doubtful()

    def _doubtful(self) -> list[int]:
        if not self._odd:
            return []
        odd = self._odd[0]
        for more in self._odd[1:]:
            odd = pc.or_(odd, more)
        return cast("list[int]", pc.indices_nonzero(odd).to_pylist())

    def _note(self, odd: pa.Array) -> None:
        if cast("pa.BooleanArray", odd).true_count:
            self._odd.append(odd)

    def _note_rows(self, rows: Any) -> None:  # noqa: ANN401 - any sequence of numbers
        if len(rows):
            marked = set(rows)
            self._odd.append(pa.array([row in marked for row in range(self._rows)]))

    def _column(self, item: pa.Field, tree: Tree) -> Callable[[dict[int, pa.Array]], pa.Array]:
        """What makes a column of the pieces."""
        found = tree.get(item.name)
        if found is None:
            return lambda _: pa.nulls(self._rows, item.type)
        if isinstance(item.type, pa.StructType):
            if not isinstance(found, dict) or not item.type.num_fields:
                raise Doubt(None)
            parts = [self._column(part, found) for part in item.type]
            fields = list(item.type)
            return lambda read: pa.StructArray.from_arrays([part(read) for part in parts], fields=fields)
        if isinstance(found, dict):
            raise Doubt(None)
        return self._quoted(item.type, found) if found.quoted else self._unquoted(item.type, found)

    def _quoted(self, data_type: pa.DataType, piece: Piece) -> Callable[[dict[int, pa.Array]], pa.Array]:
        types = pa.types
        if types.is_string(data_type):
            return lambda read: read[piece.index]
        if not (types.is_date32(data_type) or types.is_timestamp(data_type) or types.is_binary(data_type)):
            raise Doubt(None)
        finish: Finish = finish_of(data_type, self._options)

        def convert(read: dict[int, pa.Array]) -> pa.Array:
            array, rows = finish(read[piece.index])
            self._note_rows(rows)
            return array

        return convert

    def _unquoted(self, data_type: pa.DataType, piece: Piece) -> Callable[[dict[int, pa.Array]], pa.Array]:
        types = pa.types
        if types.is_string(data_type):
            return lambda read: _without_nulls(read[piece.index])
        if types.is_boolean(data_type):
            self._unjudged.discard(piece.index)
            return lambda read: self._booleans(read[piece.index])
        if types.is_signed_integer(data_type):
            odd = _oddly_spelled_integer
        elif types.is_float32(data_type) or types.is_float64(data_type):
            odd = _oddly_spelled_float
        else:
            raise Doubt(None)
        finish: Finish = finish_of(data_type, self._options)
        self._unjudged.discard(piece.index)

        def convert(read: dict[int, pa.Array]) -> pa.Array:
            texts = read[piece.index]
            for spelling in odd(texts):
                self._note(spelling)
            array, rows = finish(_numbers(texts, data_type))
            self._note_rows(rows)
            return array

        return convert

    def _booleans(self, texts: pa.Array) -> pa.Array:
        true, false, null = (pc.equal(texts, word) for word in ("true", "false", "null"))
        self._note(pc.invert(pc.or_(pc.or_(true, false), null)))
        if null.true_count:
            return pc.if_else(null, pa.scalar(None, pa.bool_()), true)
        return true


def _without_nulls(texts: pa.Array) -> pa.Array:
    null = pc.equal(texts, "null")
    if not null.true_count:
        return texts
    return pc.if_else(null, pa.scalar(None, pa.string()), texts)


def _numbers(texts: pa.Array, data_type: pa.DataType) -> pa.Array:
    try:
        return texts.cast(data_type)
    except pa.ArrowInvalid:
        pass
    try:
        return _without_nulls(texts).cast(data_type)
    except pa.ArrowInvalid:
        raise Doubt(None) from None


def _oddly_spelled_integer(texts: pa.Array) -> Iterator[pa.Array]:
    """What Arrow takes for whole numbers beside those of JSON: zeros in front, and with them hexadecimal numbers."""
    signs = b"-" in token_bytes(cast("pa.StringArray", texts))
    for start in ("0", "-0") if signs else ("0",):
        found = pc.starts_with(texts, start)
        if found.true_count:
            yield pc.and_(found, pc.greater(pc.binary_length(texts), len(start)))


def _oddly_spelled_float(texts: pa.Array) -> Iterator[pa.Array]:
    """What Arrow takes for numbers beside those of JSON: 01.5, +1, .5, 5., 1.e5; and what is too long for Jackson."""
    size = pc.binary_length(texts)
    most = pc.max(size).as_py()
    if most is not None and most > MAX_NUMBER_DIGITS:
        yield pc.greater(size, MAX_NUMBER_DIGITS)
    # Most columns have no signs and no exponents, and one byte is found as fast as memory can be read.
    written = token_bytes(cast("pa.StringArray", texts))
    zero = pc.starts_with(texts, "0")
    if zero.true_count:
        yield pc.and_(pc.and_not(zero, pc.starts_with(texts, "0.")), pc.greater(size, 1))
    if b"-" in written:
        yield pc.and_not(pc.starts_with(texts, "-0"), pc.starts_with(texts, "-0."))
        yield pc.starts_with(texts, "-.")
    if b"+" in written:
        yield pc.starts_with(texts, "+")
    yield pc.starts_with(texts, ".")
    yield pc.ends_with(texts, ".")
    for middle in (".e", ".E"):
        if middle[1:].encode() in written:
            yield pc.match_substring(texts, middle)


def _no_primitive(texts: pa.Array) -> pa.Array:
    """Which texts are neither numbers, as JSON spells them, nor true, false or null."""
    number = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
    good = pc.match_substring_regex(texts, f"^(?:{number}|true|false|null)$")
    return pc.invert(pc.and_(good, pc.less_equal(pc.binary_length(texts), MAX_NUMBER_DIGITS)))


def _has_control(array: pa.Array) -> bool:
    """Whether strings have a control character, which JSON does not allow."""
    _, offsets, data = array.buffers()
    if data is None or offsets is None:
        return False
    (end,) = struct.unpack_from("=i", offsets, 4 * (array.offset + len(array)))
    least = pc.min(pa.Array.from_buffers(pa.uint8(), end, [None, data])).as_py()
    return least is not None and least < 0x20
