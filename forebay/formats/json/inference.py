# SPDX-License-Identifier: Apache-2.0
"""Infers a schema from JSON as JsonInferSchema of Spark 4.2.0 does."""

from __future__ import annotations

import decimal
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from forebay.errors import ConfigurationError, DataError
from forebay.formats.json import jackson_tokens
from forebay.formats.json.arrow import NotSafe, is_utf8, parsed, parsed_lines, regular_lines
from forebay.formats.json.blocks import document_bytes, split_lines
from forebay.formats.json.jackson import infers_as_timestamp, needs_jackson, refuse_constant
from forebay.formats.json.jackson_tokens import MalformedRecord, as_utf8
from forebay.formats.json.options import JsonOptions
from forebay.formats.records import Block
from forebay.formats.values.columns import check_names

if TYPE_CHECKING:
    from forebay.formats.base import InputFile


# -- The types of values in schema inference ("kinds"), and how Spark merges them.
#
# Merging follows JsonInferSchema.compatibleType of Spark 4.2.0.


_MAX_DIGITS = 38


class Simple(Enum):
    """The kinds of scalar values."""

    NULL = "null"
    BOOLEAN = "boolean"
    LONG = "long"
    DOUBLE = "double"
    STRING = "string"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class Digits:
    """The kind of decimal numbers that fit into this precision and scale."""

    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class ArrayOf:
    """The kind of arrays."""

    element: Kind


@dataclass(frozen=True, slots=True)
class Struct:
    """The kind of objects. Its fields are sorted by name in Java's order; a name may occur more than once."""

    fields: tuple[tuple[str, Kind], ...]

    @staticmethod
    def of(fields: list[tuple[str, Kind]]) -> Struct:
        """Return the kind of objects with the given fields, which may be in any order."""
        return Struct(tuple(sorted(fields, key=lambda field: java_order(field[0]))))


Kind: TypeAlias = Simple | Digits | ArrayOf | Struct

NULL, LONG, DOUBLE, STRING = Simple.NULL, Simple.LONG, Simple.DOUBLE, Simple.STRING
_LONG_DIGITS = Digits(20, 0)


def java_order(name: str) -> bytes:
    """Return a sort key that orders names as Java does, which compares UTF-16 code units."""
    return name.encode("utf-16-be", "surrogatepass")


def merged(left: Kind, right: Kind) -> Kind:
    """Return the narrowest kind that covers all values of both kinds."""
    if left == right:
        return left
    if NULL in (left, right):
        return right if left == NULL else left
    if isinstance(left, Struct) and isinstance(right, Struct):
        return _merged_structs(left, right)
    if isinstance(left, ArrayOf) and isinstance(right, ArrayOf):
        return ArrayOf(merged(left.element, right.element))
    if isinstance(left, Digits) or isinstance(right, Digits):
        return _merged_digits(left, right)
    if {left, right} == {LONG, DOUBLE}:
        return DOUBLE
    return STRING


def _merged_digits(left: Kind, right: Kind) -> Kind:
    if DOUBLE in (left, right):
        return DOUBLE
    one = _LONG_DIGITS if left == LONG else left
    other = _LONG_DIGITS if right == LONG else right
    if not (isinstance(one, Digits) and isinstance(other, Digits)):
        return STRING
    scale = max(one.scale, other.scale)
    whole = max(one.precision - one.scale, other.precision - other.scale)
    return DOUBLE if whole + scale > _MAX_DIGITS else Digits(whole + scale, scale)


def _merged_structs(left: Struct, right: Struct) -> Struct:
    ones, others = list(left.fields), list(right.fields)
    fields: list[tuple[str, Kind]] = []
    one = other = 0
    while one < len(ones) and other < len(others):
        name, kind = ones[one]
        other_name, other_kind = others[other]
        if name == other_name:
            fields.append((name, merged(kind, other_kind)))
            one, other = one + 1, other + 1
        elif java_order(name) < java_order(other_name):
            fields.append(ones[one])
            one += 1
        else:
            fields.append(others[other])
            other += 1
    return Struct((*fields, *ones[one:], *others[other:]))


def levels(kind: Kind) -> int:
    """Return the number of levels of a kind. Does not recurse, because a record may have a thousand."""
    most, waiting = 0, [(kind, 1)]
    while waiting:
        nested, level = waiting.pop()
        most = max(most, level)
        if isinstance(nested, ArrayOf):
            waiting.append((nested.element, level + 1))
        elif isinstance(nested, Struct):
            waiting += [(inside, level + 1) for _, inside in nested.fields]
    return most


class Merging:
    """Merges many kinds into one.

    It merges kinds of similar size in pairs, so that a wide kind is not copied each time.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[int, Kind]] = []  # count and kind; counts descend

    @property
    def parts(self) -> list[Kind]:
        """The kinds that are not merged with one another yet."""
        return [kind for _, kind in self._parts]

    def add(self, kind: Kind) -> None:
        """Add one kind to merge."""
        if self._parts and self._parts[-1][1] == kind:
            return
        count = 1
        while self._parts and self._parts[-1][0] <= count:
            before, left = self._parts.pop()
            count, kind = before + count, merged(left, kind)
        self._parts.append((count, kind))

    def result(self) -> Kind:
        """Return the narrowest kind that covers all added kinds; NULL if there are none."""
        kind: Kind = NULL
        for _, left in reversed(self._parts):
            kind = merged(left, kind)
        return kind


_ARROW = {
    Simple.BOOLEAN: pa.bool_(),
    Simple.LONG: pa.int64(),
    Simple.DOUBLE: pa.float64(),
    Simple.STRING: pa.string(),
    Simple.TIMESTAMP: pa.timestamp("us", "UTC"),
}


def arrow_type(kind: Kind, options: JsonOptions) -> pa.DataType | None:
    """Return the Arrow type for a kind; None if Spark omits the column.

    Spark omits objects without named fields and, with `dropFieldIfAllNull`, columns that have only nulls.
    """
    if isinstance(kind, Struct):
        fields = [(name, arrow_type(inside, options)) for name, inside in kind.fields if name]
        known = [pa.field(name, inside) for name, inside in fields if inside is not None]
        return pa.struct(known) if known else None
    if isinstance(kind, ArrayOf):
        inside = arrow_type(kind.element, options)
        return None if inside is None else pa.list_(pa.field("element", inside))
    if isinstance(kind, Digits):
        return pa.decimal128(kind.precision, kind.scale)
    if kind == NULL:
        return None if options.drop_field_if_all_null else pa.string()
    return _ARROW[kind]


# -- Infers the schema of JSON files (JsonInferSchema of Spark 4.2.0).


_ALL = 0.99  # above this `samplingRatio`, Spark reads all records
_SHOWN_BYTES = 200


def infer_schema(
    files: Sequence[InputFile], options: JsonOptions, blocks: Callable[[InputFile], Iterator[Block]]
) -> pa.Schema:
    """Return the schema that Spark infers from all records of the files, or from a sample of them.

    Args:
        files: The files, in the order in which to read them.
        options: The options of the JSON format.
        blocks: A function that returns the blocks of lines of a file.

    Raises:
        DataError: A record is malformed and the mode is FAILFAST.
        ConfigurationError: The names of two columns differ only in case, or a column is nested too deeply.
    """
    inference = _Inference(options)
    place = files[0].path if len(files) == 1 else "the files"
    try:
        for file in files:
            if options.multi_line:
                data, complete = document_bytes(file, options)
                inference.record(data if complete else b"{", file.path)
                continue
            for block in blocks(file):
                inference.block(block, file.path)
        root = arrow_type(inference.root, options)
        schema = pa.schema(list(root) if isinstance(root, pa.StructType) else [])
        check_names(schema, place, case_sensitive=False)
    except RecursionError:
        column = inference.deepest
        raise ConfigurationError(
            f"the column {column!r} of {place} is nested too deeply to infer its type",
            option="schema",
            advice=f"give a schema that leaves the column out, or declares {column!r} as string: its values are then "
            "the JSON text",
        ) from None
    return schema


class _Inference:
    """Reads records and merges their kinds into one."""

    def __init__(self, options: JsonOptions) -> None:
        self._options = options
        self._merging = Merging()
        self._names: set[str] = set()
        self._kinds = KindReader(options)
        self._last: Kind = NULL
        self._random = random.Random(1)
        self._sampled = options.sampling_ratio <= _ALL

    @property
    def root(self) -> Kind:
        """The kind that covers all records so far."""
        return self._merging.result()

    @property
    def deepest(self) -> str:
        """The column that is nested most deeply, also after a merge that failed."""
        records = [kind for kind in (self._last, *self._merging.parts) if isinstance(kind, Struct)]
        fields = [field for record in records for field in record.fields]
        return max(fields, key=lambda field: levels(field[1]), default=("", NULL))[0]

    def block(self, block: Block, path: str) -> None:
        """Add the records of a block of lines. `path` is the path of its file, for errors."""
        data = block.data
        if block.cut:
            self._malformed(bytes(data), path)
            return
        if self._sampled or self._options.line_sep is not None or self._options.encoding is not None:
            lines = split_lines(data, self._options)
        else:
            kind, lines = kind_by_arrow(data, self._options)
            self._merge(kind)
        for line in lines:
            if not self._sampled or self._random.random() < self._options.sampling_ratio:
                self.record(line, path)

    def record(self, record: bytes, path: str) -> None:
        """Add one record, which may be any JSON text, also a malformed one. `path` is that of its file, for errors."""
        try:
            # Java's readers refuse bytes that are invalid in the encoding of the option.
            if self._options.encoding is None or is_utf8(record):
                self._merge(self._kinds.read(record))
                return
        except MalformedRecord:
            pass
        self._malformed(record, path)

    def _malformed(self, record: bytes, path: str) -> None:
        if self._options.mode == "FAILFAST":
            raise DataError(
                f"a record of {path} is malformed: {record[:_SHOWN_BYTES].decode('utf-8', 'replace')!r}",
                advice="correct the record, or set mode to PERMISSIVE or DROPMALFORMED",
            )
        if self._options.mode == "PERMISSIVE":
            self._merge(self._corrupt)

    def _merge(self, kind: Kind) -> None:
        """Merge in the kind of one record. If it is an array, merge in the kind of its elements.

        Raises:
            MalformedRecord: The record is neither an object nor an array of objects, and the mode is FAILFAST.
        """
        while isinstance(kind, ArrayOf):
            kind = kind.element
        self._last = kind
        if kind == NULL:
            return
        if not isinstance(kind, Struct):
            if self._options.mode == "FAILFAST":
                raise MalformedRecord("the record is neither a JSON object nor an array of objects")
            if self._options.mode == "DROPMALFORMED" or self._options.column_name_of_corrupt_record in self._names:
                return
            kind = self._corrupt
        self._names.update(name for name, _ in kind.fields)
        self._merging.add(kind)

    @property
    def _corrupt(self) -> Struct:
        """Return the kind of a malformed record: an object whose only field is the column for malformed records."""
        return Struct(((self._options.column_name_of_corrupt_record, STRING),))


# -- Infers the common type ("kind") of a block's records with Arrow, as far as Arrow infers the same type as Spark.


_NAME = re.compile(rb'"([^"\\]*)"[ \t]*:')
_SAMPLES, _MIN_STEP = 256, 256
_SATURATED = 8
_CELLS_PER_BYTE = 5  # cells that Arrow fills in the time that it takes to read one byte record by record
_TWO_TO_63 = float(1 << 63)
_PRIMITIVES = {"bool": Simple.BOOLEAN, "int64": LONG, "double": DOUBLE}
_PARSE = arrow_json.ParseOptions(newlines_in_values=False, unexpected_field_behavior="infer")


def kind_by_arrow(data: bytes | bytearray, options: JsonOptions) -> tuple[Kind, list[bytes]]:
    """Return the kind that covers the records of a block, and the lines of which Arrow may infer another than Spark."""
    able = not (options.infer_timestamp or options.prefers_decimal or _has_too_many_names(data))
    count = regular_lines(data) if able else None
    try:
        if count is not None:
            return _kind_of_table(parsed(data, _PARSE, count), options), []
    except (NotSafe, RecursionError):
        pass
    lines = split_lines(data, options)
    if not able:
        return NULL, lines
    table, places = parsed_lines(lines, _PARSE)
    # The order of the records matters if they have a column of malformed records.
    if table is None or options.column_name_of_corrupt_record in table.column_names:
        return NULL, lines
    try:
        kind = _kind_of_table(table, options)
    except (NotSafe, RecursionError):
        return NULL, lines
    return kind, [lines[index] for index in sorted({*range(len(lines))} - {*places})]


def _kind_of_table(table: pa.Table, options: JsonOptions) -> Kind:
    columns = zip(table.column_names, table.columns, strict=True)
    return Struct.of([(name, _kind(column.combine_chunks(), options)) for name, column in columns])


def _has_too_many_names(data: bytes | bytearray) -> bool:
    """Return whether the records have so many different names that it is faster to read them one by one.

    For each object, Arrow fills a cell for every name of all objects. There are few names if half of a sample of the
    records has nearly all names of the sample.
    """
    step = max(_MIN_STEP, len(data) // _SAMPLES)
    matches = [_NAME.search(data, at, at + step) for at in range(0, len(data), step)]
    names = [name[1] for name in matches if name is not None]
    few, many = len(set(names[::2])), len(set(names))
    if _SATURATED * (many - few) <= many:
        return False
    return data.count(b"{") * len(set(_NAME.findall(data))) > _CELLS_PER_BYTE * len(data)


def _kind(array: pa.Array | pa.ChunkedArray, options: JsonOptions) -> Kind:
    if isinstance(array, pa.StructArray):
        fields = list(cast("pa.StructType", array.type))
        return Struct.of([(field.name, _kind(array.field(index), options)) for index, field in enumerate(fields)])
    if isinstance(array, pa.ListArray):
        return ArrayOf(_kind(array.values, options))
    types, data_type = pa.types, array.type
    if types.is_null(data_type):
        return NULL
    if types.is_timestamp(data_type):
        return STRING
    if types.is_string(data_type):
        return STRING if pc.any(pc.greater(pc.binary_length(array), 0)).as_py() else NULL
    if options.primitives_as_string:
        return STRING
    if types.is_float64(data_type):
        # Spark reads whole numbers beyond 64 bits as decimals, Arrow as doubles.
        most = pc.max(pc.abs(array)).as_py()
        if most is not None and not most < _TWO_TO_63:
            raise NotSafe
    return _PRIMITIVES[str(data_type)]


# -- Infers the kind of one record (JsonInferSchema.inferField of Spark 4.2.0).


_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,9})?", re.ASCII)
_BLANKS = " \t\r\n"


class _Open:
    """An object or array whose end has not been read yet, with the kinds of its values so far."""

    def __init__(self, *, is_object: bool) -> None:
        self.name = ""
        self._fields: list[tuple[str, Kind]] | None = [] if is_object else None
        self._elements = Merging()

    def add(self, kind: Kind) -> None:
        """Add the kind of the value of the current field `name`, or of the next element."""
        if self._fields is None:
            self._elements.add(kind)
        else:
            self._fields.append((self.name, kind))

    def kind(self) -> Kind:
        """Return the kind of the object or array, after its end has been read."""
        return ArrayOf(self._elements.result()) if self._fields is None else Struct.of(self._fields)


class KindReader:
    """Infers the kind of each record, one record at a time."""

    def __init__(self, options: JsonOptions) -> None:
        self._options = options
        # Objects and numbers become kinds as they are decoded.
        self._decode = json.JSONDecoder(
            object_pairs_hook=lambda pairs: Struct.of([(name, self._kind(value)) for name, value in pairs]),
            parse_float=self._fraction,
            parse_int=self._whole,
            parse_constant=refuse_constant,
        ).raw_decode

    def read(self, record: bytes) -> Kind:
        """Return the kind of one record.

        Raises:
            MalformedRecord: The record is not JSON.
        """
        try:
            text = record.decode().lstrip(_BLANKS)
            if text[:1] in ("{", "[") and not needs_jackson(text):
                return self._kind(self._decode(text)[0])
        except (ValueError, RecursionError):
            pass
        tokens = jackson_tokens.TokenStream(as_utf8(record, self._options.encoding), self._options)
        tokens.next()
        return self._field(tokens)

    def _kind(self, value: Any) -> Kind:  # noqa: ANN401 - any value of the json module
        if value is None:
            return NULL
        if isinstance(value, str):
            return self._string(value)
        if isinstance(value, bool):
            return self._boolean()
        if not isinstance(value, list):
            return cast("Kind", value)
        kinds = Merging()
        for item in value:
            kinds.add(self._kind(item))
        return ArrayOf(kinds.result())

    def _field(self, tokens: jackson_tokens.TokenStream) -> Kind:
        """Return the kind of the value that begins at the current token.

        The method does not recurse, because Jackson accepts up to a thousand levels of nesting.
        """
        open_parts: list[_Open] = []
        while True:
            while tokens.kind == jackson_tokens.FIELD_NAME:
                tokens.next()
            if tokens.kind in (jackson_tokens.START_OBJECT, jackson_tokens.START_ARRAY):
                open_parts.append(_Open(is_object=tokens.kind == jackson_tokens.START_OBJECT))
            elif open_parts:
                open_parts[-1].add(self._scalar(tokens))
            else:
                return self._scalar(tokens)
            while tokens.next() in (None, jackson_tokens.END_OBJECT, jackson_tokens.END_ARRAY):
                kind = open_parts.pop().kind()
                if not open_parts:
                    return kind
                open_parts[-1].add(kind)
            open_parts[-1].name = tokens.current_name() or ""

    def _scalar(self, tokens: jackson_tokens.TokenStream) -> Kind:
        kind = tokens.kind
        if kind is None or kind == jackson_tokens.NULL:
            return NULL
        if kind == jackson_tokens.STRING:
            return self._string(tokens.text())
        if kind == jackson_tokens.INT:
            return self._whole(tokens.text())
        if kind == jackson_tokens.FLOAT:
            return self._fraction(tokens.text())
        if kind in (jackson_tokens.TRUE, jackson_tokens.FALSE):
            return self._boolean()
        raise MalformedRecord("a value is missing")

    def _boolean(self) -> Kind:
        return STRING if self._options.primitives_as_string else Simple.BOOLEAN

    def _whole(self, text: str) -> Kind:
        if self._options.primitives_as_string:
            return STRING
        value = int(text)
        if -(1 << 63) <= value < 1 << 63:
            return LONG
        digits = len(str(abs(value)))
        return Digits(digits, 0) if digits <= _MAX_DIGITS else DOUBLE

    def _fraction(self, text: str) -> Kind:
        if self._options.primitives_as_string:
            return STRING
        if not self._options.prefers_decimal:
            return DOUBLE
        try:
            precision, scale = _size(text)
        except decimal.InvalidOperation:
            return DOUBLE
        precision = max(precision, scale)
        return Digits(precision, scale) if scale >= 0 and precision <= _MAX_DIGITS else DOUBLE

    def _string(self, text: str) -> Kind:
        if not text:
            # Some writers write null as an empty string.
            return NULL
        if self._options.prefers_decimal and _NUMBER.fullmatch(text.replace(",", "")):
            precision, scale = _size(text.replace(",", ""))
            if 0 <= scale <= precision <= _MAX_DIGITS:
                return Digits(precision, scale)
        if self._options.infer_timestamp and infers_as_timestamp(text, self._options):
            return Simple.TIMESTAMP
        return STRING


def _size(text: str) -> tuple[int, int]:
    """Return the precision and scale that Java's BigDecimal gives to a number's text."""
    _, digits, exponent = decimal.Decimal(text).as_tuple()
    if not isinstance(exponent, int):
        raise decimal.InvalidOperation
    return len(digits), -exponent
