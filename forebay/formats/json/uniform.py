# SPDX-License-Identifier: Apache-2.0
"""The fastest reader of JSON lines, for lines with the same names in the same order."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.formats.json.arrow import Backoff, Leftover, NotSafe, Rows, finish_of, is_utf8
from forebay.formats.json.jackson import refuse_constant, unique_names
from forebay.formats.json.jackson_tokens import MAX_NAME_BYTES, MAX_NUMBER_DIGITS
from forebay.formats.json.options import JsonOptions
from forebay.formats.values.columns import token_bytes, token_view

# -- The form of a JSON line: the names and their order, which other lines may share.


_MAX_PIECES = 2000  # an object with the nesting depth that Jackson refuses has more
_PRIMITIVE = re.compile(r"(true|false|null|-?[0-9][0-9.eE+-]*)")

Tree: TypeAlias = dict[str, Any]
"""Maps each name of an object to the piece of its value, or to the tree of an inner object."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The text between two quotes of a line, if it is or contains a value.

    For a value other than a string, `before` and `after` are the constant texts around it.
    """

    index: int
    quoted: bool
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class Template:
    """The form of a line: which of the texts between its quotes are values, and which are constant."""

    tree: Tree
    values: list[Piece]
    constants: dict[int, str]
    """Maps the index of each piece without a value to its text."""

    @property
    def size(self) -> int:
        """The number of texts between the quotes of a line."""
        return len(self.values) + len(self.constants)

    def gaps(self) -> list[str]:
        """Return the constant texts before the first value, between consecutive values, and after the last value."""
        values = {piece.index: piece for piece in self.values}
        gaps = [""]
        for index in range(self.size):
            gaps[-1] += '"' if index else ""
            piece = values.get(index)
            if piece is None:
                gaps[-1] += self.constants[index]
            else:
                gaps[-1] += piece.before
                gaps.append(piece.after)
        return gaps


def template_of(line: bytes) -> Template | None:
    """Return the form of a line in UTF-8; None unless the line is an object of primitive values and such objects."""
    if b"\\" in line or b"[" in line:
        return None
    pieces = line.split(b'"')
    if not 3 <= len(pieces) <= _MAX_PIECES or max(map(len, pieces)) > MAX_NAME_BYTES:
        return None
    try:
        root = json.loads(line.decode(), parse_constant=refuse_constant, object_pairs_hook=unique_names)
        return _described(root, [piece.decode() for piece in pieces]) if isinstance(root, dict) else None
    except (ValueError, RecursionError):
        return None


def _described(root: dict[str, Any], pieces: list[str]) -> Template:
    """Return the form of a parsed line.

    `pieces` are the texts between its quotes; names and strings have odd indexes.
    """
    constants = dict(enumerate(pieces))
    values: list[Piece] = []
    strings = iter(range(1, len(pieces), 2))

    def tree_of(fields: dict[str, Any]) -> Tree:
        tree: Tree = {}
        for name, value in fields.items():
            index = next(strings)
            if isinstance(value, dict):
                tree[name] = tree_of(value)
                continue
            if isinstance(value, str):
                piece = Piece(next(strings), quoted=True)
            else:
                before, _, after = _PRIMITIVE.split(pieces[index + 1], maxsplit=1)
                piece = Piece(index + 1, False, before, after)
            del constants[piece.index]
            values.append(piece)
            tree[name] = piece
        return tree

    return Template(tree_of(root), values, constants)


# -- The tier for blocks in which nearly all lines have the same names in the same order ("form").


_MAX_BYTES = 16 << 20  # bounds the memory for the positions of quotes
_MAX_SKIPPED = 64
# The most leftovers of a block: a few, and one for every so many rows.
_FEW_LEFTOVERS = 16
_LINES_PER_LEFTOVER = 64


class UniformTier:
    """Reads blocks in which nearly all lines have one form. Tries the form of the last block first.

    Create one for each read.
    """

    def __init__(self, fields: list[pa.Field], options: JsonOptions) -> None:
        self._fields = fields
        self._options = options
        self._reader: UniformReader | None = None
        self._backoff = Backoff(_MAX_SKIPPED)

    def read_block(self, data: bytes | bytearray) -> Rows | None:
        """Return the rows and leftover lines of a block; None if too few of its lines have a common form."""
        if self._backoff.skip() or len(data) > _MAX_BYTES or b"\\" in data or not is_utf8(data):
            return None
        for reader in self._candidates(data):
            rows = _uniform_rows(reader, data)
            if rows is not None:
                self._reader = reader
                self._backoff.report(failed=False)
                return rows
        self._backoff.report(failed=True)
        return None

    def _candidates(self, data: bytes | bytearray) -> Iterator[UniformReader]:
        """Yield the reader of the last block, then readers for the form of the first and of a middle line."""
        if self._reader is not None:
            yield self._reader
        for start in (0, data.find(b"\n", len(data) // 2) + 1):
            end = data.find(b"\n", start)
            line = bytes(data[start : end if end >= 0 else len(data)]).strip()
            try:
                yield UniformReader(self._fields, self._options, line)
            except NotSafe:
                continue


def _uniform_rows(reader: UniformReader, data: bytes | bytearray) -> Rows | None:
    values = reader.splitter.split(data)
    if values is None:
        return None
    rows, others = values.rows, values.others
    most = _FEW_LEFTOVERS + len(rows.starts) // _LINES_PER_LEFTOVER
    if len(others.starts) > most:
        return None
    try:
        batch, unsafe = reader.read(values)
    except NotSafe:
        return None
    if len(others.starts) + len(unsafe) > most:
        return None
    leftovers = [
        Leftover(row, False, bytes(data[start:end]))
        for row, start, end in zip(values.before_others.tolist(), others.starts, others.ends, strict=True)
    ]
    leftovers += [Leftover(row, True, bytes(data[rows.starts[row] : rows.ends[row]])) for row in unsafe]
    return batch, sorted(leftovers, key=lambda line: line[:2])


# -- Makes columns from lines that share one form, as most programs write them.
#
# `UniformSplitter` finds the values of lines twice as fast as Arrow's JSON reader. Strings need no parsing. The
# spelling of numbers is checked, because Arrow accepts numbers that JSON does not allow.


_Column: TypeAlias = Callable[[dict[int, pa.Array]], pa.Array]
"""Makes the array of a column from `Values.by_piece`."""


class UniformReader:
    """Converts the values of lines of the form of `line`, which is UTF-8, to record batches. Create one for each read.

    Raises:
        NotSafe: The line has no such form, or a column of the schema cannot be made from values of this form.
    """

    def __init__(self, fields: list[pa.Field], options: JsonOptions, line: bytes) -> None:
        template = template_of(line)
        if template is None:
            raise NotSafe
        self._schema = pa.schema(fields)
        self._options = options
        self.splitter = UniformSplitter(template)
        self._strings = [piece.index for piece in template.values if piece.quoted]
        self._unchecked = {piece.index for piece in template.values if not piece.quoted}
        self._columns = [self._column(item, template.tree) for item in fields]
        self._rows = 0
        self._unsafe: set[int] = set()

    def read(self, values: Values) -> tuple[pa.RecordBatch, list[int]]:
        """Convert the values of a block, as `UniformSplitter` found them, to a record batch.

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
        subtree = tree.get(item.name)
        if subtree is None:
            return lambda _: pa.nulls(self._rows, item.type)
        if isinstance(item.type, pa.StructType):
            if not isinstance(subtree, dict) or not item.type.num_fields:
                raise NotSafe
            parts = [self._column(part, subtree) for part in item.type]
            fields = list(item.type)
            return lambda read: pa.StructArray.from_arrays([part(read) for part in parts], fields=fields)
        if isinstance(subtree, dict):
            raise NotSafe
        return self._quoted(item.type, subtree) if subtree.quoted else self._unquoted(item.type, subtree)

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
        matching = pc.starts_with(texts, start)
        if matching.true_count:
            yield pc.and_(matching, pc.greater(pc.binary_length(texts), len(start)))


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


# -- Splits the lines of a block that have the same names in the same order ("form") into values, all lines at once.
#
# Without backslashes each double quote begins or ends a string. So the positions of quotes and line ends determine the
# positions of all values. The text between two values is the same in every line of the form; other lines are leftovers.


_QUOTE, _FEED, _RETURN = b'"\n\r'

_Places: TypeAlias = npt.NDArray[np.int64]
_Offsets: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Lines:
    """The indexes of the start and of the end of each line, without its line ending."""

    starts: _Places
    ends: _Places

    def only(self, which: npt.NDArray[np.bool_]) -> Lines:
        """Return the lines for which a mask is true."""
        return Lines(self.starts[which], self.ends[which])


@dataclass(frozen=True, slots=True)
class Values:
    """The values of the lines of a block that have the form. Each such line is one row."""

    rows: Lines
    by_piece: dict[int, pa.Array]
    """Maps the index of each piece with a value to the texts of the value in all rows; strings are without quotes."""
    others: Lines
    """The lines that do not have the form."""
    before_others: _Places
    """The number of rows before each of `others`."""


class UniformSplitter:
    """Splits blocks into the values of the lines that have one form. Create one for each read.

    Raises:
        NotSafe: The form has no values.
    """

    def __init__(self, template: Template) -> None:
        if not template.values:
            raise NotSafe
        self._per_line = template.size - 1
        self._pieces = [piece.index for piece in template.values]
        self._gaps = [_Gap(text) for text in template.gaps()]
        # Where each value begins and ends: the index of a quote in the line, and the distance from it. The index after
        # the last quote stands for the end of the line.
        self._bounds: list[tuple[int, int]] = []
        for piece in template.values:
            self._bounds.append((piece.index - 1, 1 + len(piece.before.encode())))
            self._bounds.append((piece.index, -len(piece.after.encode())))

    def split(self, data: bytes | bytearray) -> Values | None:
        """Return the values of a block in UTF-8.

        Returns None if no line has the form, or if a line ends in a carriage return alone.
        """
        text = np.frombuffer(data, np.uint8)
        quotes = np.flatnonzero(text == _QUOTE)
        lines = _lines_of(text, np.flatnonzero(text == _FEED), returns=b"\r" in data)
        if lines is None:
            return None
        fits = np.ones(len(lines.starts), np.bool_)
        if not self._in_each(quotes, lines):
            counts = np.diff(np.searchsorted(quotes, lines.ends), prepend=0)
            fits = counts == self._per_line
            quotes = quotes[np.repeat(fits, counts)]
        while fits.any():  # at most three times
            rows = lines.only(fits)
            offsets = self._offsets(quotes, rows)
            good = _ascending(offsets)
            if good.all():
                spans = _spans(offsets, data)
                good = self._have_gaps(spans, len(offsets))
                if good.all():
                    others, before_others = lines.only(~fits), np.cumsum(fits, dtype=np.int64)[~fits]
                    values = {piece: self._every(2 * n + 1, spans) for n, piece in enumerate(self._pieces)}
                    return Values(rows, values, others, before_others)
            fits[fits] = good
            quotes = quotes[np.repeat(good, self._per_line)]
        return None

    def _in_each(self, quotes: _Places, lines: Lines) -> bool:
        """Return whether each line contains as many quotes as the form."""
        count = self._per_line
        if len(quotes) != count * len(lines.starts):
            return False
        return bool((quotes[::count] >= lines.starts).all() and (quotes[count - 1 :: count] < lines.ends).all())

    def _offsets(self, quotes: _Places, rows: Lines) -> _Offsets:
        """Return for each row: its start, the start and end of each of its values, and its end."""
        offsets = np.empty((len(rows.starts), len(self._bounds) + 2), np.int32)
        offsets[:, 0], offsets[:, -1] = rows.starts, rows.ends
        for place, (quote, shift) in enumerate(self._bounds, 1):
            offsets[:, place] = (rows.ends if quote == self._per_line else quotes[quote :: self._per_line]) + shift
        return offsets

    def _have_gaps(self, spans: pa.Array, rows: int) -> npt.NDArray[np.bool_]:
        """Return which rows have the form's text before, between and after their values.

        `spans` holds gaps and values alternately.
        """
        alike = np.ones(rows, np.bool_)
        for number, gap in enumerate(self._gaps):
            texts = self._every(2 * number, spans)
            if not gap.is_all_of(texts):
                alike &= pc.equal(texts, gap.text).to_numpy(zero_copy_only=False)
        return alike

    def _every(self, place: int, spans: pa.Array) -> pa.Array:
        """Return the span at index `place` of each row."""
        return spans.take(pa.array(np.arange(place, len(spans), len(self._bounds) + 2, dtype=np.int32)))


def _ascending(offsets: _Offsets) -> npt.NDArray[np.bool_]:
    """Return which rows have ascending offsets.

    Offsets do not ascend if the text between two quotes is shorter than the constant text that the form has there.
    """
    flat = offsets.reshape(-1)
    if (flat[1:] >= flat[:-1]).all():
        return np.ones(len(offsets), np.bool_)
    return np.asarray((offsets[:, 1:] >= offsets[:, :-1]).all(axis=1))


def _spans(offsets: _Offsets, data: bytes | bytearray) -> pa.Array:
    """Return the texts between consecutive offsets, which must ascend."""
    buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), offsets.size - 1, buffers)


class _Gap:
    """The constant text before, between or after values, which is the same in every line of the form."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._size = len(text.encode())
        self._copies: pa.Array = pa.nulls(0, pa.string())

    def is_all_of(self, texts: pa.Array) -> bool:
        """Return whether all texts equal this constant text. This is faster than finding the texts that differ."""
        rows = len(texts)
        if token_view(texts).nbytes != rows * self._size:
            return False  # this check also bounds the copies by the size of the block
        if rows > len(self._copies):
            self._copies = pa.repeat(self.text, rows + rows // 4)  # the next blocks may have more lines
        return texts.equals(self._copies.slice(0, rows))


def _lines_of(text: npt.NDArray[np.uint8], feeds: _Places, *, returns: bool) -> Lines | None:
    """Return the lines that are not empty; None if a line ends in a carriage return alone.

    `feeds` are the line feeds.
    """
    starts, ends = np.append(0, feeds + 1), np.append(feeds, len(text))
    if returns:
        ended = text[np.maximum(feeds - 1, 0)] == _RETURN
        if np.count_nonzero(ended) != np.count_nonzero(text == _RETURN):
            return None
        ends[: len(feeds)] -= ended
    return Lines(starts, ends).only(ends > starts)
