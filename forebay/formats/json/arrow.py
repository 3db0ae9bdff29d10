# SPDX-License-Identifier: Apache-2.0
"""Parses many records with Arrow, and finds the rows that Spark may read differently.

pyarrow's JSON reader differs from Spark without an error in these points:

- It reads a stream of documents, not lines, and crashes on some that are not objects. So each line must begin with `{`
  and end with `}`. Then no document spans lines, so if there are as many rows as lines, each line is one document.
- It does not check UTF-8: `is_utf8` does.
- It accepts `Inf` and `NaN`, which Spark's options may forbid: `UNSAFE_NUMBER` finds them.
- It loses nulls of arrays that begin with null if it infers the type of their elements: `validate` finds that.
- It reads -0 as the double -0.0, 1e39 as the float infinity, and 12345 as a DECIMAL(5, 2). Its columns are checked.

In all other cases that Spark reads differently, such as a repeated name, a value of another type, or an integer out of
range, pyarrow's reader raises an error.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from forebay.formats.json.jackson_tokens import MAX_DEPTH, MAX_NAME_BYTES, MAX_NUMBER_DIGITS, BadValue, decoded_base64
from forebay.formats.json.options import JsonOptions
from forebay.formats.values.columns import Converted, by_value
from forebay.formats.values.time_columns import date_converter, timestamp_converter

UNSAFE_NUMBER = re.compile(rb"[:\[,][ \t\r\n]*[-+]?(?:NaN|Inf)")
"""Matches a number that Spark's options may forbid, or that only Arrow accepts."""

_LONG_LINE = 1000  # bytes; shorter lines are within all limits of Jackson
_MOST_PARSED = 8  # to parse a line so many times takes about as long as to read it alone
_LINES_OF_CALL = 100  # a call of Arrow takes as long as it takes to parse so many lines,
_FEW_LINES = 16  # or to read so many alone

# The lookbehind keeps a search linear: without it, each byte of a run would start a match.
_LONG_NUMBER = re.compile(rb"(?<![0-9.eE+-])[0-9.eE+-]{%d}" % MAX_NUMBER_DIGITS)
_LONG_TEXT = re.compile(rb'(?<![^"])[^"]{%d}' % MAX_NAME_BYTES)
_ROW = re.compile(r" in row (\d+)$")

Finish: TypeAlias = Callable[[pa.Array], Converted]
"""Converts an array as Arrow parsed it to the column's type; also returns the rows that Spark may read differently."""


class NotSafe(Exception):
    """A fast reader cannot read these records as Spark does.

    `row` is the index of the first such record; None if unknown.
    """

    def __init__(self, row: int | None = None) -> None:
        super().__init__()
        self.row = row


def parsed(lines: bytes | bytearray, options: arrow_json.ParseOptions, count: int) -> pa.Table:
    """Parse `count` lines with Arrow, each of which begins with `{` and ends with `}`.

    Raises:
        NotSafe: Arrow cannot parse them as Spark does.
    """
    read = arrow_json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
    try:
        table = arrow_json.read_json(pa.BufferReader(lines), read_options=read, parse_options=options)
        table.validate()
    except pa.ArrowInvalid as error:
        match = _ROW.search(str(error).split("\n", 1)[0])
        raise NotSafe(None if match is None else int(match[1])) from None
    except pa.ArrowNotImplementedError:
        raise NotSafe from None
    if table.num_rows != count:
        raise NotSafe
    return table


def parsed_lines(lines: list[bytes], options: arrow_json.ParseOptions) -> tuple[pa.Table | None, list[int]]:
    """Parse the lines that Arrow can parse as Spark does; return their table, and the index of the line of each row.

    The table is None if there are none, or so many others that to find them takes longer than to read all one by one.
    Each call of Arrow finds one of the others, or changes the number of lines to try.
    """
    block = b"\n".join(lines)
    check_each = has_unsafe_number(block) or not is_utf8(block)
    good = [index for index, line in enumerate(lines) if _is_safe(line, check_each)]
    budget = _MOST_PARSED * (len(good) + _LINES_OF_CALL)
    begin, size, bad = 0, len(good), set[int]()
    # Where more than one line of 16 is bad, a call for each takes longer than to read all lines alone.
    while good and budget > 0 and _FEW_LINES * len(bad) <= begin + _FEW_LINES**2:
        tried = good[begin : begin + size]
        budget -= len(tried) + _LINES_OF_CALL
        try:
            table = _parsed_at(tried, lines, options)
        except NotSafe as error:
            if error.row is None and len(tried) > _FEW_LINES:
                size = len(tried) // 8
                continue
            unreadable = tried if error.row is None else tried[error.row : error.row + 1]
            bad.update(unreadable)
            size = len(tried) if error.row is None else error.row + 1
        else:
            if len(tried) == len(good):
                return table, good
            size = len(tried)
        begin, size = begin + size, 2 * size
        if begin >= len(good):
            good = [index for index in good if index not in bad]
            begin, size = 0, len(good)
            bad.clear()
    good = [index for index in good[:begin] if index not in bad]
    try:
        return _parsed_at(good, lines, options), good
    except NotSafe:
        return None, []


def _parsed_at(indexes: list[int], lines: list[bytes], options: arrow_json.ParseOptions) -> pa.Table:
    return parsed(b"\n".join([lines[index] for index in indexes]), options, len(indexes))


def _is_safe(line: bytes, check_each: bool) -> bool:
    """Return whether Arrow parses a line as Spark does, if it does so without an error.

    `check_each` says whether the lines may have bytes that are not UTF-8, or numbers that only Arrow accepts.
    """
    if line[:1] != b"{" or line[-1:] != b"}":
        line = line.strip(BLANKS)
        if not (line.startswith(b"{") and line.endswith(b"}")):
            return False
    return not beyond_limits(line) and not (check_each and (UNSAFE_NUMBER.search(line) or not is_utf8(line)))


def regular_lines(data: bytes | bytearray) -> int | None:
    """Return the number of lines in a block; None if the text of any line may make Arrow differ from Spark."""
    if not data.startswith(b"{") or not data.endswith((b"}", b"}\n")) or b"\r" in data:
        return None
    count = data.count(b"\n")
    ended = data.endswith(b"\n")
    if data.count(b"}\n{") != count - ended or has_unsafe_number(data) or not is_utf8(data) or _has_long_line(data):
        return None
    return count + (not ended)


def _has_long_line(data: bytes | bytearray) -> bool:
    """Return whether any line is so long that it may exceed a limit of Jackson."""
    at, end = 0, len(data)
    while end - at > _LONG_LINE:
        at = data.rfind(b"\n", at, at + _LONG_LINE) + 1
        if not at:
            return any(beyond_limits(line) for line in bytes(data).split(b"\n"))
    return False


def beyond_limits(line: bytes) -> bool:
    """Return whether a number, name or string in a line, or the depth of its nesting, may exceed a limit of Jackson."""
    if len(line) <= _LONG_LINE:
        return False
    if line.count(b"{") + line.count(b"[") >= MAX_DEPTH or _LONG_NUMBER.search(line):
        return True
    return len(line) > MAX_NAME_BYTES and _LONG_TEXT.search(line) is not None


def has_unsafe_number(data: bytes | bytearray) -> bool:
    """Return whether `UNSAFE_NUMBER` matches: a spelling of a number that Arrow accepts and Spark may not."""
    # A search for one byte is ten times as fast as for three, and most data have neither.
    possible = (b"N" in data and b"NaN" in data) or (b"I" in data and b"Inf" in data)
    return possible and UNSAFE_NUMBER.search(data) is not None


def is_utf8(data: bytes | bytearray) -> bool:
    """Return whether the data is valid UTF-8. Arrow checks it at about the speed of memory."""
    offsets = (0).to_bytes(4, "little") + len(data).to_bytes(4, "little")
    try:
        text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        text.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def any_type(data_type: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    """Return whether `test` is true for a type or for any type nested in it."""
    inside = (data_type.field(index).type for index in range(data_type.num_fields))
    return test(data_type) or any(any_type(each, test) for each in inside)


def _read_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type to request from Arrow for a column: string if Arrow parses `data_type` differently from Spark."""
    types = pa.types
    if isinstance(data_type, pa.StructType):
        return pa.struct([pa.field(field.name, _read_type(field.type)) for field in data_type])
    if isinstance(data_type, pa.ListType):
        return pa.list_(pa.field("item", _read_type(data_type.value_type)))
    if isinstance(data_type, pa.Decimal128Type) and pa.types.is_decimal256(_wide(data_type)):
        # Arrow misses some overflows.
        return pa.decimal256(data_type.precision, data_type.scale)
    if types.is_date(data_type) or types.is_timestamp(data_type) or types.is_binary(data_type):
        return pa.string()
    return data_type


def finish_of(data_type: pa.DataType, options: JsonOptions) -> Finish:
    """Return the function that converts an array of the type `_read_type(data_type)` to `data_type`."""
    types = pa.types
    if isinstance(data_type, pa.StructType):
        return _struct(data_type, options)
    if isinstance(data_type, pa.ListType):
        return partial(_list, finish_of(data_type.value_type, options), data_type)
    if types.is_date32(data_type):
        return _texts(date_converter(options))
    if isinstance(data_type, pa.TimestampType):
        return _texts(timestamp_converter(data_type, options))
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
        unsafe: set[int] = set()
        changed = array.type != data_type
        for index, step in enumerate(finishes):
            before = structs.field(index)
            after, rows = step(before)
            changed = changed or after is not before
            inside.append(after)
            unsafe.update(rows)
        if changed:
            mask = pc.is_null(array) if array.null_count else None
            array = pa.StructArray.from_arrays(inside, fields=list(data_type), mask=mask)
        return array, sorted(unsafe)

    return finish


def _list(step: Finish, data_type: pa.ListType, array: pa.Array) -> Converted:
    lists = cast("pa.ListArray", array)
    before = lists.values
    values, places = step(before)
    rows: list[int] = []
    if places:
        parents = cast("pa.Array", pc.call_function("list_parent_indices", [lists]))
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
            raise NotSafe from None

    return finish


def _floating(array: pa.Array) -> Converted:
    width = array.type.bit_width
    bits = array.view(pa.int64() if width == 64 else pa.int32())
    negative_zero = pc.equal(bits, pa.scalar(-(1 << width - 1), bits.type))
    return array, _rows(pc.or_(negative_zero, pc.invert(pc.is_finite(array))))


def _decimal(data_type: pa.Decimal128Type, array: pa.Array) -> Converted:
    wide = _wide(data_type)
    most = pa.scalar(decimal.Decimal(10) ** (data_type.precision - data_type.scale), wide)
    too_large = pc.greater_equal(pc.abs(array.cast(wide)), most)
    rows = _rows(too_large)
    if rows:
        array = pc.if_else(too_large, pa.scalar(None, array.type), array)
    return array.cast(data_type), rows


def _rows(mask: pa.Array) -> list[int]:
    """Return the indexes of the rows for which a mask is true."""
    return pc.indices_nonzero(mask).to_pylist() if cast("pa.BooleanArray", mask).true_count else []


def _wide(data_type: pa.Decimal128Type) -> pa.DataType:
    """Return a decimal type with the same scale and more digits, so that numbers parsed with this scale fit."""
    if data_type.precision + data_type.scale < 38:
        return pa.decimal128(38, data_type.scale)
    return pa.decimal256(76, data_type.scale)


def _base64(array: pa.Array) -> Converted:
    return by_value(cast("pa.StringArray", array), pa.binary(), _decoded)


def _decoded(text: str) -> bytes | None:
    try:
        return decoded_base64(text)
    except BadValue:
        return None


# -- The interface of the fast readers ("tiers") of JSON lines, and the tier that parses lines with Arrow.


BLANKS = b" \t\r\n"

_MAX_SKIPPED = 32


class Leftover(NamedTuple):
    """A line that a tier could not read, and its place among the rows that the tier has read.

    Attributes:
        row: The number of rows before the line.
        replaces: Whether the line replaces the next row.
        text: The line.
    """

    row: int
    replaces: bool
    text: bytes


Rows: TypeAlias = tuple[pa.RecordBatch | None, list[Leftover]]
"""The rows that a tier has read, and the lines that it leaves to the next tier, in order. None stands for no rows."""


def all_left(lines: list[bytes]) -> Rows:
    """Return the result of a tier that leaves all lines to the next one."""
    return None, [Leftover(0, False, line) for line in lines]


class Backoff:
    """Counts the blocks for which a fast reader is skipped after it has failed.

    After consecutive failures, these are 1, 3, 7 … blocks, up to a limit.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._skipped = 0
        self.left = 0
        """The number of blocks for which the fast reader is still to be skipped."""

    def skip(self) -> bool:
        """Count one block; return whether to skip the fast reader for it."""
        skipped = self.left > 0
        self.left -= skipped
        return skipped

    def report(self, *, failed: bool) -> None:
        """Record whether the fast reader failed for the last block that was not skipped."""
        self.left = self._skipped = min(self._limit, 2 * self._skipped + 1) if failed else 0


class ArrowTier:
    """Reads JSON lines of one schema with Arrow. Create one for each read."""

    def __init__(self, fields: list[pa.Field], options: JsonOptions) -> None:
        self._schema = pa.schema(fields)
        self.able = bool(fields) and not any(any_type(field.type, pa.types.is_map) for field in fields)
        """Whether Arrow can parse columns of these types."""
        self._finishes = [finish_of(field.type, options) for field in fields]
        self._parse = arrow_json.ParseOptions(
            explicit_schema=pa.schema([field.with_type(_read_type(field.type)) for field in fields]),
            newlines_in_values=False,
            unexpected_field_behavior="ignore",
        )
        self.backoff = Backoff(_MAX_SKIPPED)

    def read_block(self, data: bytes | bytearray) -> Rows | None:
        """Parse a block with one call of Arrow; return None if any line must be read by another reader."""
        count = regular_lines(data)
        if count is None:
            return None
        try:
            batch, unsafe = self._converted(parsed(data, self._parse, count))
        except NotSafe:
            return None
        return None if unsafe else (batch, [])

    def read_lines(self, lines: list[bytes]) -> Rows:
        """Parse lines with Arrow. Those that it may read differently from Spark are left to the next reader."""
        table, places = parsed_lines(lines, self._parse)
        self.backoff.report(failed=2 * len(places) < len(lines))
        try:
            batch, unsafe = (None, []) if table is None else self._converted(table)
        except NotSafe:
            batch, unsafe = None, []
        if batch is None:
            return all_left(lines)
        others = sorted({*range(len(lines))} - {*places})
        leftovers = [Leftover(index - number, False, lines[index]) for number, index in enumerate(others)]
        leftovers += [Leftover(row, True, lines[places[row]]) for row in unsafe]
        return batch, sorted(leftovers, key=lambda line: line[:2])

    def _converted(self, table: pa.Table) -> tuple[pa.RecordBatch, list[int]]:
        """Convert parsed columns to their types; also return the rows that may be wrong.

        Raises:
            NotSafe: Another reader must read all lines.
        """
        arrays: list[pa.Array] = []
        unsafe: set[int] = set()
        for chunks, finish in zip(table.columns, self._finishes, strict=True):
            array, rows = finish(chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks())
            arrays.append(array)
            unsafe.update(rows)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema), sorted(unsafe)
