# SPDX-License-Identifier: Apache-2.0
"""Makes columns from lines that share one form, as most programs write them.

`splitting` finds the values of lines twice as fast as Arrow's JSON reader. Strings need no parsing. The spelling of
numbers is checked, because Arrow accepts numbers that JSON does not allow.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from forebay.formats.json.arrow import NotSafe, finish_of
from forebay.formats.json.jackson.tokens import MAX_NUMBER_DIGITS
from forebay.formats.json.options import JsonOptions
from forebay.formats.json.uniform.splitting import LineSplitter, Values
from forebay.formats.json.uniform.template import Piece, Template, Tree
from forebay.formats.values.text_columns import token_bytes

_Column: TypeAlias = Callable[[dict[int, pa.Array]], pa.Array]
"""Makes the array of a column from `Values.by_piece`."""


class UniformReader:
    """Converts the values of lines of one form to record batches. Create one for each read.

    Raises:
        NotSafe: A column of the schema cannot be made from values of this form.
    """

    def __init__(self, fields: list[pa.Field], options: JsonOptions, template: Template) -> None:
        self._schema = pa.schema(fields)
        self._options = options
        self.splitter = LineSplitter(template)
        self._strings = [piece.index for piece in template.values if piece.quoted]
        self._unchecked = {piece.index for piece in template.values if not piece.quoted}
        self._columns = [self._column(item, template.tree) for item in fields]
        self._rows = 0
        self._unsafe: set[int] = set()

    def read(self, values: Values) -> tuple[pa.RecordBatch, list[int]]:
        """Convert the values of a block, as `LineSplitter` found them, to a record batch.

        Returns the batch, and the indexes of its rows that may be wrong: another reader must read their lines again.

        Raises:
            NotSafe: Another reader must read the whole block.
        """
        read = values.by_piece
        self._rows, self._unsafe = len(values.rows.starts), set()
        if any(_has_control(read[index]) for index in self._strings):
            raise NotSafe
        for index in self._unchecked:  # columns of numbers and booleans check their own values
            self._note(_no_primitive(read[index]))
        arrays = [column(read) for column in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema), sorted(self._unsafe)

    def _note(self, unsafe: pa.Array) -> None:
        if cast("pa.BooleanArray", unsafe).true_count:
            self._unsafe.update(pc.indices_nonzero(unsafe).to_pylist())

    def _column(self, item: pa.Field, tree: Tree) -> _Column:
        found = tree.get(item.name)
        if found is None:
            return lambda _: pa.nulls(self._rows, item.type)
        if isinstance(item.type, pa.StructType):
            if not isinstance(found, dict) or not item.type.num_fields:
                raise NotSafe
            parts = [self._column(part, found) for part in item.type]
            fields = list(item.type)
            return lambda read: pa.StructArray.from_arrays([part(read) for part in parts], fields=fields)
        if isinstance(found, dict):
            raise NotSafe
        return self._quoted(item.type, found) if found.quoted else self._unquoted(item.type, found)

    def _quoted(self, data_type: pa.DataType, piece: Piece) -> _Column:
        types = pa.types
        if types.is_string(data_type):
            return lambda read: read[piece.index]
        if not (types.is_date32(data_type) or types.is_timestamp(data_type) or types.is_binary(data_type)):
            raise NotSafe
        finish = finish_of(data_type, self._options)

        def convert(read: dict[int, pa.Array]) -> pa.Array:
            array, rows = finish(read[piece.index])
            self._unsafe.update(rows)
            return array

        return convert

    def _unquoted(self, data_type: pa.DataType, piece: Piece) -> _Column:
        types = pa.types
        if types.is_string(data_type):
            return lambda read: _without_nulls(read[piece.index])
        if types.is_boolean(data_type):
            self._unchecked.discard(piece.index)
            return lambda read: self._booleans(read[piece.index])
        if types.is_signed_integer(data_type):
            misspelled = _misspelled_integers
        elif types.is_float32(data_type) or types.is_float64(data_type):
            misspelled = _misspelled_floats
        else:
            raise NotSafe
        finish = finish_of(data_type, self._options)
        self._unchecked.discard(piece.index)

        def convert(read: dict[int, pa.Array]) -> pa.Array:
            texts = read[piece.index]
            for mask in misspelled(texts):
                self._note(mask)
            array, rows = finish(_numbers(texts, data_type))
            self._unsafe.update(rows)
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
        raise NotSafe from None


def _misspelled_integers(texts: pa.Array) -> Iterator[pa.Array]:
    """Yield masks of the texts that Arrow accepts as integers and JSON does not: leading zeros, hexadecimal numbers."""
    signs = b"-" in token_bytes(cast("pa.StringArray", texts))
    for start in ("0", "-0") if signs else ("0",):
        found = pc.starts_with(texts, start)
        if found.true_count:
            yield pc.and_(found, pc.greater(pc.binary_length(texts), len(start)))


def _misspelled_floats(texts: pa.Array) -> Iterator[pa.Array]:
    """Yield masks of the texts that Arrow accepts as numbers and JSON or Jackson does not.

    These are 01.5, +1, .5, 5., 1.e5, and numbers with too many digits for Jackson.
    """
    size = pc.binary_length(texts)
    most = pc.max(size).as_py()
    if most is not None and most > MAX_NUMBER_DIGITS:
        yield pc.greater(size, MAX_NUMBER_DIGITS)
    # A search for one byte is fast, and most columns have neither signs nor exponents.
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
    """Return a mask of the texts that are neither JSON numbers nor true, false or null."""
    number = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
    good = pc.match_substring_regex(texts, f"^(?:{number}|true|false|null)$")
    return pc.invert(pc.and_(good, pc.less_equal(pc.binary_length(texts), MAX_NUMBER_DIGITS)))


def _has_control(array: pa.Array) -> bool:
    """Return whether any string contains a control character, which JSON forbids."""
    _, offsets, data = array.buffers()
    if data is None or offsets is None:
        return False
    (end,) = struct.unpack_from("=i", offsets, 4 * (array.offset + len(array)))
    least = pc.min(pa.Array.from_buffers(pa.uint8(), end, [None, data])).as_py()
    return least is not None and least < 0x20
