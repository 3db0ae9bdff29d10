# SPDX-License-Identifier: Apache-2.0
"""Lets Arrow parse many records at once, and finds out where it may have seen something else than Spark would.

What pyarrow's JSON reader does in silence, and what is done about it:

- It takes a stream of documents, not lines, and crashes on some that are no objects. So every line must begin with `{`
  and end with `}`: then no document can span lines, and as many rows as lines means one document in each.
- It does not look whether text is UTF-8. Somebody else does (`is_utf8`).
- It takes `Inf` and knows `NaN`, which Spark's options may forbid. Lines with them are left out (`ODD_NUMBER`).
- A whole number -0 becomes -0.0 as a double, and 1e39 infinity as a float: checked afterwards.
- 12345 fits into its DECIMAL(5, 2): checked afterwards.

All else that differs (a name twice, a value of another kind, an integer out of range …) it refuses.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable
from functools import partial
from typing import TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from forebay.formats.csv.columns import Converted, by_value
from forebay.formats.csv.times import date_converter, timestamp_converter
from forebay.formats.json.options import JsonOptions
from forebay.formats.json.scan import MAX_NAME_BYTES
from forebay.formats.json.text import BadValue, decoded_base64
from forebay.formats.json.tokens import MAX_DEPTH, MAX_NUMBER_DIGITS

ODD_NUMBER = re.compile(rb"[:\[,][ \t\r\n]*[-+]?(?:NaN|Inf)")
"""A number that Spark's options may forbid, or that Arrow alone takes."""

LONG = 1000
"""Lines of fewer bytes cannot be beyond any of Jackson's limits."""

# What stands before says where to begin: from each place inside of a run, looking would begin anew.
_LONG_NUMBER = re.compile(rb"(?<![0-9.eE+-])[0-9.eE+-]{%d}" % MAX_NUMBER_DIGITS)
_LONG_TEXT = re.compile(rb'(?<![^"])[^"]{%d}' % MAX_NAME_BYTES)
_ROW = re.compile(r" in row (\d+)$")

Finish: TypeAlias = Callable[[pa.Array], Converted]
"""From an array as read to the array wanted, and the places where Spark may see something else."""


class Doubt(Exception):
    """Arrow does not take these records; `row` is the first one it did not take, if it says so."""

    def __init__(self, row: int | None) -> None:
        super().__init__()
        self.row = row


class ArrowReader:
    """Reads lines of one schema. One object per read.

    Args:
        fields: The columns to read.
        options: How to read.
    """

    def __init__(self, fields: list[pa.Field], options: JsonOptions) -> None:
        self._schema = pa.schema(fields)
        self.able = not any(_unreadable(field.type) for field in fields)
        """Whether Arrow can read such columns at all."""
        self._finishes = [finish_of(field.type, options) for field in fields]
        self._parse = arrow_json.ParseOptions(
            explicit_schema=pa.schema([field.with_type(_read_type(field.type)) for field in fields]),
            newlines_in_values=False,
            unexpected_field_behavior="ignore",
        )

    def read(self, lines: bytes | bytearray, count: int) -> tuple[pa.RecordBatch, list[int]]:
        """The rows of `count` lines, each from `{` to `}`, and the numbers of those that must be read in another way.

        Raises:
            Doubt: None of it can be used.
        """
        table = parsed(lines, self._parse)
        if table.num_rows != count:
            raise Doubt(None)
        arrays: list[pa.Array] = []
        doubtful: set[int] = set()
        for index, finish in enumerate(self._finishes):
            array, rows = finish(_one_chunk(table.column(index)))
            arrays.append(array)
            doubtful.update(rows)
        if not arrays:
            return table.select([]).to_batches()[0], []
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema), sorted(doubtful)


def parsed(lines: bytes | bytearray, options: arrow_json.ParseOptions) -> pa.Table:
    """The table Arrow makes of lines.

    Raises:
        Doubt: It makes none.
    """
    read = arrow_json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
    try:
        return arrow_json.read_json(pa.BufferReader(lines), read_options=read, parse_options=options)
    except pa.ArrowInvalid as error:
        found = _ROW.search(str(error).split("\n", 1)[0])
        raise Doubt(None if found is None else int(found[1])) from None
    except pa.ArrowNotImplementedError:
        raise Doubt(None) from None


def regular_lines(data: bytes | bytearray) -> int | None:
    """How many lines a block has, if each is from `{` to `}` and nothing in them is odd to Arrow; None otherwise."""
    if not data.startswith(b"{") or not data.endswith((b"}", b"}\n")) or b"\r" in data:
        return None
    count = data.count(b"\n")
    ended = data.endswith(b"\n")
    if data.count(b"}\n{") != count - ended or has_odd_number(data) or not is_utf8(data) or has_long_line(data):
        return None
    return count + (not ended)


def has_long_line(data: bytes | bytearray) -> bool:
    """Whether a line is so long that something in it may be beyond Jackson's limits, and something seems to be."""
    at, end = 0, len(data)
    while end - at > LONG:
        at = data.rfind(b"\n", at, at + LONG) + 1
        if not at:
            return any(beyond_limits(line) for line in bytes(data).split(b"\n"))
    return False


def beyond_limits(line: bytes) -> bool:
    """Whether a number, name or string in a line, or its nesting, may be beyond Jackson's limits."""
    if len(line) <= LONG:
        return False
    if line.count(b"{") + line.count(b"[") >= MAX_DEPTH or _LONG_NUMBER.search(line):
        return True
    return len(line) > MAX_NAME_BYTES and _LONG_TEXT.search(line) is not None


def has_odd_number(data: bytes | bytearray) -> bool:
    """Whether a number is there that Spark's options may forbid, or that Arrow alone takes."""
    # Looking for one byte is ten times as fast as looking for three, and most data have neither.
    told = (b"N" in data and b"NaN" in data) or (b"I" in data and b"Inf" in data)
    return told and ODD_NUMBER.search(data) is not None


def is_utf8(data: bytes | bytearray) -> bool:
    """Whether bytes are valid UTF-8: Arrow looks at them about as fast as memory can be read."""
    offsets = (0).to_bytes(4, "little") + len(data).to_bytes(4, "little")
    try:
        text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        text.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _unreadable(data_type: pa.DataType) -> bool:
    inside = [data_type.field(index).type for index in range(data_type.num_fields)]
    return pa.types.is_map(data_type) or any(_unreadable(kind) for kind in inside)


def _read_type(data_type: pa.DataType) -> pa.DataType:
    """The type to ask Arrow for: what it would parse in another way than Spark is read as a string."""
    types = pa.types
    if isinstance(data_type, pa.StructType):
        return pa.struct([pa.field(field.name, _read_type(field.type)) for field in data_type])
    if isinstance(data_type, pa.ListType):
        return pa.list_(pa.field("item", _read_type(data_type.value_type)))
    if isinstance(data_type, pa.Decimal128Type) and pa.types.is_decimal256(_wide(data_type)):
        # Arrow does not notice every overflow.
        return pa.decimal256(data_type.precision, data_type.scale)
    if types.is_date(data_type) or types.is_timestamp(data_type) or types.is_binary(data_type):
        return pa.string()
    return data_type


def finish_of(data_type: pa.DataType, options: JsonOptions) -> Finish:
    """What turns an array that was read as `_read_type` says into one of the type wanted."""
    types = pa.types
    if isinstance(data_type, pa.StructType):
        return _struct(data_type, options)
    if isinstance(data_type, pa.ListType):
        return partial(_list, finish_of(data_type.value_type, options), data_type)
    if types.is_date32(data_type):
        return _texts(date_converter(options.times))
    if isinstance(data_type, pa.TimestampType):
        return _texts(timestamp_converter(data_type, options.times))
    if types.is_binary(data_type):
        return _base64
    if types.is_floating(data_type):
        return _floating
    if isinstance(data_type, pa.Decimal128Type):
        return partial(_decimal, data_type)
    return lambda array: (array, ())


def _struct(data_type: pa.StructType, options: JsonOptions) -> Finish:
    finishes = [finish_of(field.type, options) for field in data_type]

    def finish(array: pa.Array) -> Converted:
        structs = cast("pa.StructArray", array)
        inside: list[pa.Array] = []
        doubtful: set[int] = set()
        changed = array.type != data_type
        for index, step in enumerate(finishes):
            before = structs.field(index)
            after, rows = step(before)
            changed = changed or after is not before
            inside.append(after)
            doubtful.update(rows)
        if not changed:
            return array, sorted(doubtful)
        mask = pc.is_null(array) if array.null_count else None
        return pa.StructArray.from_arrays(inside, fields=list(data_type), mask=mask), sorted(doubtful)

    return finish


def _list(step: Finish, data_type: pa.ListType, array: pa.Array) -> Converted:
    lists = cast("pa.ListArray", array)
    before = lists.values
    values, places = step(before)
    rows: list[int] = []
    if places:
        parents = cast("pa.Array", pc.call_function("list_parent_indices", [lists]))
        # Numbers of rows as Python knows them: nobody else needs them.
        rows = sorted(set(parents.take(pa.array(places, pa.int64())).to_pylist()))
    if values is before and array.type == data_type:
        return array, rows
    buffers = lists.buffers()[:2]
    return pa.Array.from_buffers(data_type, len(lists), buffers, lists.null_count, lists.offset, [values]), rows


def _texts(convert: Callable[[pa.StringArray], Converted]) -> Finish:
    def finish(array: pa.Array) -> Converted:
        try:
            return convert(cast("pa.StringArray", array))
        except pa.ArrowInvalid:
            raise Doubt(None) from None

    return finish


def _floating(array: pa.Array) -> Converted:
    width = array.type.bit_width
    bits = array.view(pa.int64() if width == 64 else pa.int32())
    negative_zero = pc.equal(bits, pa.scalar(-(1 << width - 1), bits.type))
    odd = pc.or_(negative_zero, pc.invert(pc.is_finite(array)))
    if pc.any(odd).as_py() is not True:
        return array, ()
    return array, pc.indices_nonzero(pc.fill_null(odd, False)).to_pylist()


def _decimal(data_type: pa.Decimal128Type, array: pa.Array) -> Converted:
    wide = _wide(data_type)
    most = pa.scalar(decimal.Decimal(10) ** (data_type.precision - data_type.scale), wide)
    odd = pc.greater_equal(pc.abs(array.cast(wide)), most)
    rows: list[int] = []
    if pc.any(odd).as_py() is True:
        rows = pc.indices_nonzero(pc.fill_null(odd, False)).to_pylist()
        array = pc.if_else(odd, pa.scalar(None, array.type), array)
    return array.cast(data_type), rows


def _wide(data_type: pa.Decimal128Type) -> pa.DataType:
    """A type in which a number of as many digits as the type has cannot overflow when it is brought to its scale."""
    if data_type.precision + data_type.scale < 38:
        return pa.decimal128(38, data_type.scale)
    return pa.decimal256(76, data_type.scale)


def _base64(array: pa.Array) -> Converted:
    return by_value(cast("pa.StringArray", array), pa.binary(), _bytes_of)


def _bytes_of(text: str) -> bytes | None:
    try:
        return decoded_base64(text)
    except BadValue:
        return None
