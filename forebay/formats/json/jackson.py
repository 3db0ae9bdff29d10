# SPDX-License-Identifier: Apache-2.0
"""A port of Spark 4.2.0's JSON parsing with the Java library Jackson: tokens, values, and the state after an error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.json.arrow import any_type
from forebay.formats.json.jackson_tokens import (
    END_ARRAY,
    END_OBJECT,
    FALSE,
    FIELD_NAME,
    FLOAT,
    INT,
    MAX_NAME_BYTES,
    MAX_NUMBER_DIGITS,
    NULL,
    START_ARRAY,
    START_OBJECT,
    STRING,
    TRUE,
    BadValue,
    MalformedRecord,
    TokenStream,
    as_utf8,
    decoded_base64,
    utf8_of,
)
from forebay.formats.json.options import JsonOptions
from forebay.formats.records import utf8_problem, valid_utf8
from forebay.formats.values.dates import MICROS, parse_timestamp
from forebay.formats.values.ddl import type_text
from forebay.formats.values.numbers import parse_decimal, parse_float, parse_int
from forebay.formats.values.time_columns import date_parser, timestamp_parser

# -- Converts one JSON token to a scalar type (JacksonParser.makeConverter of Spark 4.2.0).


Scalar: TypeAlias = Callable[[int, str], object]
"""Converts the kind and text of a token to a value for `build.column`; raises BadValue if they do not fit the type."""

_ISO_TIMESTAMP = re.compile(
    r"[12]\d{3}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])[ T](?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?"
    r"(?:Z|[+-](?:0\d|1[0-7]):[0-5]\d)",
    re.ASCII,
)
"""Matches timestamps that `datetime.fromisoformat` reads as Spark does, ten times faster than `parse_timestamp`."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SPECIAL = {
    "NaN": float("nan"),
    **dict.fromkeys(("+INF", "+Infinity", "Infinity"), float("inf")),
    **dict.fromkeys(("-INF", "-Infinity"), float("-inf")),
}


def scalar(data_type: pa.DataType, options: JsonOptions) -> Scalar | None:
    """Return the function that converts a token to a scalar type; None for a type that is not scalar."""
    types = pa.types
    if types.is_boolean(data_type):
        return _boolean
    if types.is_signed_integer(data_type):
        return partial(_integer, bits=data_type.bit_width)
    if types.is_float32(data_type):
        return partial(_floating, strings=options.allow_non_numeric_numbers, parse=parse_float)
    if types.is_float64(data_type):
        return partial(_floating, strings=options.allow_non_numeric_numbers, parse=float)
    if isinstance(data_type, pa.Decimal128Type):
        return partial(_decimal, precision=data_type.precision, scale=data_type.scale)
    if types.is_binary(data_type):
        return _binary
    if types.is_date32(data_type):
        return _texts(_date_parser(options))
    if isinstance(data_type, pa.TimestampType) and data_type.unit == "us":
        if data_type.tz is None:
            return _texts(timestamp_parser(options, instants=False))
        texts = _texts(_timestamp_parser(options))
        return partial(_timestamp, parse=texts) if options.numeric_timestamps else texts
    return None


def check_type(data_type: pa.DataType, column: str, options: JsonOptions) -> None:
    """Raise a ConfigurationError if JSON cannot be read as a type. `column` is the column's name, for the error."""
    if isinstance(data_type, pa.StructType):
        for field in data_type:
            check_type(field.type, f"{column}.{field.name}", options)
    elif isinstance(data_type, pa.ListType):
        check_type(data_type.value_type, f"{column}.element", options)
    elif isinstance(data_type, pa.MapType) and pa.types.is_string(data_type.key_type):
        check_type(data_type.item_type, f"{column}.value", options)
    elif not (pa.types.is_string(data_type) or pa.types.is_null(data_type) or scalar(data_type, options)):
        raise ConfigurationError(
            f"column {column!r} has the type {data_type}, which the JSON format does not support",
            advice="give the column the type string in the schema, and convert it in the query",
        )


def infers_as_timestamp(text: str, options: JsonOptions) -> bool:
    """Return whether schema inference takes a string as a timestamp. One without a zone is in the session's zone."""
    zone = options.zone
    pattern = options.pattern("timestamp_format")
    micros = parse_timestamp(text, zone) if pattern is None else pattern.timestamp(text, zone)
    return micros is not None


def _boolean(kind: int, text: str) -> bool:  # noqa: ARG001 - every scalar has this signature
    if kind in (TRUE, FALSE):
        return kind == TRUE
    raise BadValue


def _integer(kind: int, text: str, *, bits: int) -> int:
    if kind != INT or len(text) > 20:
        raise BadValue
    value = int(text)
    # Jackson also accepts unsigned bytes.
    if not -(1 << bits - 1) <= value < (1 << (8 if bits == 8 else bits - 1)):
        raise BadValue
    return value - 256 if bits == 8 and value > 127 else value


def _floating(kind: int, text: str, *, strings: bool, parse: Callable[[str], float | None]) -> float | None:
    if kind == INT:
        # Whole numbers have no negative zero.
        return parse(text) if text != "-0" else 0.0
    if kind == FLOAT:
        return _SPECIAL[text] if text in _SPECIAL else parse(text)
    if kind == STRING and strings and text in _SPECIAL:
        return _SPECIAL[text]
    raise BadValue


def _decimal(kind: int, text: str, *, precision: int, scale: int) -> object:
    if kind in (INT, FLOAT, STRING):
        value = parse_decimal(text if kind == STRING else text.replace(",", "?"), precision, scale)
        if value is not None:
            return value
    raise BadValue


def _binary(kind: int, text: str) -> bytes:
    if kind != STRING:
        raise BadValue
    return decoded_base64(text)


def _texts(parse: Callable[[str], int | None]) -> Callable[[int, str], int]:
    def convert(kind: int, text: str) -> int:
        value = parse(utf8_of(text).decode()) if kind == STRING and text else None
        if value is None:
            raise BadValue
        return value

    return convert


def _timestamp(kind: int, text: str, *, parse: Callable[[int, str], int]) -> int:
    if kind != INT:
        return parse(kind, text)
    # Java's multiplication wraps around if it overflows.
    return (_integer(INT, text, bits=64) * MICROS + (1 << 63)) % (1 << 64) - (1 << 63)


def _timestamp_parser(options: JsonOptions) -> Callable[[str], int | None]:
    read = timestamp_parser(options, instants=True)
    if options.timestamp_format is not None:
        return read

    def parse(text: str) -> int | None:
        if _ISO_TIMESTAMP.fullmatch(text):
            return (datetime.fromisoformat(text) - _EPOCH) // _MICROSECOND
        return read(text)

    return parse


def _date_parser(options: JsonOptions) -> Callable[[str], int | None]:
    read = date_parser(options)
    if not options.lenient("date_format"):
        return read

    def parse(text: str) -> int | None:
        value = read(text)
        return parse_int(text, 32) if value is None else value  # Spark 1.5 wrote dates as numbers of days

    return parse


# -- Reads one record, even a malformed one, as Spark's JacksonParser (4.2.0) does: the same steps on the same tokens.
#
# It is slow: `RecordReader` passes on only the records that it cannot read as Spark does.


_Converter: TypeAlias = Callable[[TokenStream], Any]
"""Converts the value at the current token for `build.column`; may raise BadValue, MalformedRecord or _Partial."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The rows of one record, and whether it is malformed. A malformed record without rows gives one row of nulls."""

    rows: list[list[Any]]
    bad: bool = False


class _Partial(Exception):
    """Raised if only a part of a struct, list or map could be read. `value` is that part."""

    def __init__(self, value: list[Any]) -> None:
        super().__init__()
        self.value = value


class JacksonParser:
    """Reads records of one schema.

    With `embedded`, each record is the text of one cell of a column, as for Spark's from_json. Then its encoding is not
    detected but is UTF-8, and an array is malformed.
    """

    def __init__(self, fields: list[pa.Field], options: JsonOptions, *, embedded: bool = False) -> None:
        self._options = options
        self._embedded = embedded
        root = pa.struct(fields)
        self._object = _object(root, options)
        self._objects = _array(_converter(root, options), nulls=False)

    def read(self, record: bytes) -> Outcome:
        """Read one record. The rows of the result are lists of values in the forms that `build.column` expects."""
        kind: int | None = None
        try:
            tokens = TokenStream(record if self._embedded else as_utf8(record, self._options.encoding), self._options)
            kind = tokens.next()
            if kind is None:
                return Outcome([])
            if kind == START_OBJECT:
                return Outcome([self._object(tokens)])
            if kind == START_ARRAY and not self._embedded:
                return Outcome(self._objects(tokens))
        except _Partial as partial:
            return Outcome(partial.value if kind == START_ARRAY else [partial.value], bad=True)
        except (MalformedRecord, BadValue):
            pass
        return Outcome([], bad=True)


def _converter(data_type: pa.DataType, options: JsonOptions) -> _Converter:
    """Return the function that converts the value at the current token to `data_type`. JSON null fits every type."""
    convert_value = _value_converter(data_type, options)

    def convert(tokens: TokenStream) -> Any:  # noqa: ANN401 - a value of any type
        while tokens.kind == FIELD_NAME:
            tokens.next()
        return None if tokens.kind is None or tokens.kind == NULL else convert_value(tokens)

    return convert


def _value_converter(data_type: pa.DataType, options: JsonOptions) -> _Converter:
    if isinstance(data_type, pa.StructType):
        return _of_kind(START_OBJECT, _object(data_type, options))
    if isinstance(data_type, pa.ListType):
        return _of_kind(START_ARRAY, _array(_converter(data_type.value_type, options)))
    if isinstance(data_type, pa.MapType):
        return _of_kind(START_OBJECT, _map(_converter(data_type.item_type, options)))
    if pa.types.is_string(data_type):
        return _text
    parse = scalar(data_type, options)
    return _skip if parse is None else _scalar(parse, base64=pa.types.is_binary(data_type))


def _of_kind(kind: int, convert: _Converter) -> _Converter:
    """Return a converter that calls `convert` for tokens of one kind, and refuses other tokens.

    As in Spark, it reads the text of a string before it refuses the string, because the text may be malformed.
    """

    def checked(tokens: TokenStream) -> Any:  # noqa: ANN401 - a value of any type
        if tokens.kind == STRING:
            tokens.text()
        if tokens.kind != kind:
            raise BadValue
        return convert(tokens)

    return checked


def _scalar(parse: Scalar, *, base64: bool) -> _Converter:
    def convert(tokens: TokenStream) -> object:
        kind = tokens.kind
        if kind == STRING:
            return tokens.base64() if base64 and tokens.unread else parse(STRING, tokens.text())
        if kind in (INT, FLOAT):
            return parse(kind, tokens.text())
        if kind in (TRUE, FALSE):
            return parse(kind, "")
        raise BadValue

    return convert


def _text(tokens: TokenStream) -> bytes:
    if tokens.kind == STRING:
        return utf8_of(tokens.text())
    start = tokens.start
    tokens.skip_children()
    return bytes(valid_utf8(tokens.since(start)))  # Jackson does not decode strings that it skips


def _skip(_: TokenStream) -> None:
    """Convert any value to null, for a column of the type null."""


def _object(data_type: pa.StructType, options: JsonOptions) -> _Converter:
    """Return the function that converts an object to the list of its fields' values."""
    places = {field.name: place for place, field in enumerate(data_type)}
    converters = [_converter(field.type, options) for field in data_type]

    def convert(tokens: TokenStream) -> list[Any]:
        row: list[Any] = [None] * len(converters)
        bad = False
        while tokens.next() not in (None, END_OBJECT):
            name = tokens.current_name()
            place = None if name is None else places.get(name)
            if place is None:
                tokens.skip_children()
                continue
            try:
                row[place] = converters[place](tokens)
            except _Partial as partial:
                row[place], bad = partial.value, True
            except (MalformedRecord, BadValue):
                bad = True
                tokens.skip_children()
        if bad:
            raise _Partial(row)
        return row

    return convert


def _array(element: _Converter, *, nulls: bool = True) -> _Converter:
    """Return the function that converts an array to the list of its elements."""

    def convert(tokens: TokenStream) -> list[Any]:
        values: list[Any] = []
        bad = False
        while tokens.next() not in (None, END_ARRAY):
            try:
                value = element(tokens)
            except _Partial as partial:
                value, bad = partial.value, True
            if value is None and not nulls:
                raise BadValue
            values.append(value)
        if bad:
            raise _Partial(values)
        return values

    return convert


def _map(item: _Converter) -> _Converter:
    """Return the function that converts an object to a list of pairs of name and value."""

    def convert(tokens: TokenStream) -> list[tuple[bytes, Any]]:
        pairs: list[tuple[bytes, Any]] = []
        bad = lost = False
        while tokens.next() not in (None, END_OBJECT):
            key = utf8_of(tokens.current_name() or "")
            try:
                pairs.append((key, item(tokens)))
            except _Partial as partial:
                pairs.append((key, partial.value))
                bad = True
            except (MalformedRecord, BadValue):
                lost = True
                tokens.skip_children()
        if lost:
            raise BadValue
        if bad:
            raise _Partial(pairs)
        return pairs

    return convert


# -- Reads single records: with Python's json module if its result equals Spark's, else with the parser above.
#
# With the module, records with maps are read three times as fast; Arrow has no such type.


_MAX_NAME = MAX_NAME_BYTES // 4  # a character has up to four bytes
# The lookbehind keeps a search linear: without it, each character of a run would start a match.
_LONG_NUMBER = re.compile(f"(?<![0-9.eE+-])[0-9.eE+-]{{{MAX_NUMBER_DIGITS}}}")
_LONG_TEXT = re.compile(f'(?<![^"])[^"]{{{_MAX_NAME}}}')
_BLANKS = " \t\r\n"
_NATIVE: dict[pa.DataType, type] = {pa.bool_(): bool, pa.float64(): float}

_PythonConverter: TypeAlias = Callable[[object], Any]
"""Converts a value of the json module, except None, to a value for `build.column`, or raises BadValue."""


class _Float(str):
    """The original text of a number with a decimal point or an exponent."""

    __slots__ = ()


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict from an object's pairs, for the json module. Raise ValueError if a name occurs twice.

    Spark keeps both values of such a name, so the Jackson port must read the record.
    """
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError
    return members


def refuse_constant(text: str) -> None:
    """Raise ValueError for NaN and Infinity, which the json module would accept."""
    raise ValueError(text)


class RecordReader:
    """Reads single records, which may be malformed, by one schema. See `JacksonParser` for `embedded`."""

    def __init__(self, fields: list[pa.Field], options: JsonOptions, *, embedded: bool = False) -> None:
        self._convert = _python_struct(pa.struct(fields), options)
        self._jackson = JacksonParser(fields, options, embedded=embedded)
        # Numbers stay text where their digits matter.
        exact = any_type(pa.struct(fields), lambda each: pa.types.is_decimal(each) or pa.types.is_float32(each))
        self._decode = json.JSONDecoder(
            parse_float=_Float if exact else None, parse_constant=refuse_constant, object_pairs_hook=unique_names
        ).raw_decode

    def read(self, record: bytes) -> Outcome:
        """Read one record. The rows of the result are lists of values in the forms that `build.column` expects."""
        try:
            text = record.decode().lstrip(_BLANKS)
            if text.startswith("{") and not needs_jackson(text):
                return Outcome([self._convert(self._decode(text)[0])])
        except (BadValue, ValueError, RecursionError):
            pass
        return self._jackson.read(record)


def needs_jackson(text: str) -> bool:
    """Return whether a name or number may exceed a limit of Jackson, or a string may have half of a surrogate pair."""
    if "\\ud" in text or "\\uD" in text:
        return True
    if len(text) <= MAX_NUMBER_DIGITS:
        return False
    return _LONG_NUMBER.search(text) is not None or (len(text) > _MAX_NAME and _LONG_TEXT.search(text) is not None)


def _python_converter(data_type: pa.DataType, options: JsonOptions) -> _PythonConverter:
    if isinstance(data_type, pa.StructType):
        return _python_struct(data_type, options)
    if isinstance(data_type, pa.ListType):
        return _python_list(_python_converter(data_type.value_type, options))
    if isinstance(data_type, pa.MapType):
        return _python_map(_python_converter(data_type.item_type, options))
    if pa.types.is_string(data_type):
        return _python_string
    if pa.types.is_integer(data_type) and data_type.bit_width > 8:
        return _python_integer(data_type.bit_width)
    parse = scalar(data_type, options)
    return _refuse if parse is None else _python_scalar(parse, _NATIVE.get(data_type))


def _python_struct(data_type: pa.StructType, options: JsonOptions) -> _PythonConverter:
    converters = [(field.name, _python_converter(field.type, options)) for field in data_type]

    def convert(value: object) -> list[Any]:
        if type(value) is not dict:
            raise BadValue
        get = value.get
        return [None if (member := get(name)) is None else inner(member) for name, inner in converters]

    return convert


def _python_list(element: _PythonConverter) -> _PythonConverter:
    def convert(value: object) -> list[Any]:
        if type(value) is not list:
            raise BadValue
        return [None if item is None else element(item) for item in value]

    return convert


def _python_map(item: _PythonConverter) -> _PythonConverter:
    def convert(value: object) -> list[tuple[bytes, Any]]:
        if type(value) is not dict:
            raise BadValue
        return [(utf8_of(name), None if entry is None else item(entry)) for name, entry in value.items()]

    return convert


def _python_string(value: object) -> bytes:
    if type(value) is not str:
        raise BadValue
    return utf8_of(value)


def _python_integer(bits: int) -> _PythonConverter:
    least, most = -(1 << bits - 1), (1 << bits - 1) - 1

    def convert(value: object) -> int:
        if type(value) is not int or not least <= value <= most:
            raise BadValue
        return value

    return convert


def _python_scalar(parse: Scalar, native: type | None) -> _PythonConverter:
    """Return the converter to a scalar type. A value of the Python type `native` is what `parse` would return."""

    def convert(value: object) -> object:
        if type(value) is native:
            return value
        if type(value) is str:
            return parse(STRING, value)
        if type(value) is int:
            return parse(INT, str(value))
        if type(value) is bool:
            return parse(TRUE if value else FALSE, "")
        if type(value) is float or type(value) is _Float:
            return parse(FLOAT, str(value))
        raise BadValue

    return convert


def _refuse(_: object) -> None:
    raise BadValue


# -- Finds the reason why a JSON text is malformed or does not fit its schema, for error messages.


_MALFORMED = "malformed JSON"
_NO_OBJECT = "it is not a JSON object"
_MAX_NAMED = 3


class Reasons:
    """Finds the reasons why JSON texts do not fit a schema. Caches the parsers that it creates. Not thread-safe."""

    def __init__(self, fields: Sequence[pa.Field], options: JsonOptions) -> None:
        self._fields = fields
        self._options = options
        self._parsers: dict[tuple[tuple[str, ...], str, str], JacksonParser] = {}

    def of_record(self, record: bytes) -> str:
        """Return why a record of a file is malformed. Its encoding is detected as by Jackson."""
        if self._options.encoding is not None and (problem := utf8_problem(record)):
            return problem
        recoded = as_utf8(record, self._options.encoding)
        text = bytes(valid_utf8(recoded))  # invalid bytes after the record are not the reason
        reason = self.of(text)
        if reason == _MALFORMED and (problem := utf8_problem(recoded)):
            return problem
        if reason == _NO_OBJECT and text.lstrip().startswith(b"["):  # Spark reads an array as several records
            return "an element of this array is not an object, or does not fit the schema"
        return reason

    def of(self, text: bytes) -> str:
        """Return why a JSON text is malformed or does not fit the schema. The reason does not quote the text."""
        problem = utf8_problem(text)
        if problem is not None:
            return problem
        tokens = TokenStream(text, self._options)
        try:
            kind = tokens.next()
            tokens.skip_children()
        except MalformedRecord as error:
            # The text is UTF-8: the tokenizer reports characters beyond ASCII between values in this way.
            what = str(error).replace("this is not UTF-8", "a character that JSON does not allow there")
            return f"malformed JSON near byte {tokens.start}: {what}"
        if kind != START_OBJECT:
            return _NO_OBJECT
        mismatches = [mismatch for field in self._fields for mismatch in self._mismatches((), field, text)]
        if not mismatches:
            return _MALFORMED
        more = f", and {len(mismatches) - _MAX_NAMED} more" if len(mismatches) > _MAX_NAMED else ""
        return "; ".join(mismatches[:_MAX_NAMED]) + more

    def _mismatches(self, path: tuple[str, ...], field: pa.Field, text: bytes) -> Iterator[str]:
        """Yield a reason for each nested field that does not fit its type.

        Args:
            path: The names of the structs around the field.
            field: The field.
            text: The whole JSON text.
        """
        here = (*path, field.name)
        if not self._is_bad(path, field, text):
            return
        inner: list[str] = []
        # A struct without fields fits every object.
        if isinstance(field.type, pa.StructType) and not self._is_bad(path, field.with_type(pa.struct([])), text):
            inner = [mismatch for each in field.type for mismatch in self._mismatches(here, each, text)]
        yield from inner or [f"the field {'.'.join(here)} does not fit {type_text(field.type)}"]

    def _is_bad(self, parents: tuple[str, ...], field: pa.Field, text: bytes) -> bool:
        key = (parents, field.name, str(field.type))
        parser = self._parsers.get(key)
        if parser is None:
            root = field
            for name in reversed(parents):
                root = pa.field(name, pa.struct([root]))
            parser = self._parsers[key] = JacksonParser([root], self._options, embedded=True)
        return parser.read(text).bad
