# SPDX-License-Identifier: Apache-2.0
"""The CSV format: returns the same rows as Spark's own CSV reader, and uses Arrow where possible."""

from __future__ import annotations

import decimal
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError, DataError
from forebay.formats.base import FileFormat, InputFile, JoinedContents, batch_of
from forebay.formats.csv.options import REFUSED, CsvOptions, within_limits
from forebay.formats.csv.read import CsvReading, names_of
from forebay.formats.csv.splitting import Tokens
from forebay.formats.records import Block, decoded, join_lines
from forebay.formats.values.columns import (
    Converted,
    Converter,
    Plain,
    by_value,
    cast_or_parse,
    consists_of,
    token_bytes,
)
from forebay.formats.values.dates import parse_timestamp
from forebay.formats.values.numbers import parse_bool, parse_decimal, parse_double, parse_float, parse_int
from forebay.formats.values.time_columns import DatePattern, date_converter, timestamp_converter


@dataclass(frozen=True)
class CsvFormat(FileFormat):
    """Reads CSV files with the given `CsvOptions`."""

    options: CsvOptions = field(default_factory=CsvOptions)

    name: ClassVar[str] = "csv"
    options_class: ClassVar[type] = CsvOptions
    refused: ClassVar[Mapping[str, str]] = REFUSED

    def infer_schema(self, files: Sequence[InputFile]) -> pa.Schema:
        """Infer the schema: names from the first file with a record, types from all files; empty if there is no record.

        Without `inferSchema` all columns are strings, and only the header is read.
        """
        for file in files:
            first = self._first_record(file)
            if first is not None:
                return self._typed(first[0], [(each, first[1]) for each in files])
        return pa.schema([])

    def merged_schema(self, files: Sequence[InputFile]) -> pa.Schema:
        """Return the columns of the longest header. Columns match by position, so new ones must come last.

        The rows of files with a shorter header have too few fields, which only the mode `PERMISSIVE` accepts.

        Raises:
            ConfigurationError: A header is not the beginning of the longest one, `mode` is not PERMISSIVE, or
                `enforceSchema` is false.
        """
        options = self.options
        if options.mode != "PERMISSIVE" or not options.enforce_schema:
            raise ConfigurationError(
                "to infer one schema from CSV files that may differ in the number of columns, forebay needs "
                "mode=PERMISSIVE and enforceSchema=true",
                option="enforceSchema" if options.mode == "PERMISSIVE" else "mode",
                advice="leave out either mode and enforceSchema, or schemaEvolution",
            )
        headers = [(file, *first) for file in files if (first := self._first_record(file)) is not None]
        longest, names, _ = max(headers, key=lambda header: len(header[1]), default=(None, [], ""))
        for file, header, _ in headers:
            if longest and [name.lower() for name in header] != [name.lower() for name in names[: len(header)]]:
                raise ConfigurationError(
                    f"{file.path} has the columns {', '.join(header)}, and {longest.path} has {', '.join(names)}: "
                    "columns of CSV files match by position, so new ones must come last",
                    option="header",
                    advice="exclude one kind of files with pathGlobFilter, or give a schema and leave schemaEvolution "
                    "out",
                )
        return self._typed(names, [(file, text) for file, _, text in headers])

    def _first_record(self, file: InputFile) -> tuple[list[str], str] | None:
        """Return the names of the columns, from the header if there is one, and the text of the first record."""
        with within_limits(file.path):
            first = CsvReading(self.options, file, [], []).first_record()
        if first is None or self.options.header:
            return first and (names_of(first[0], self.options.null_value), first[1])
        return [f"_c{index}" for index in range(len(first[0]))], first[1]

    def _typed(self, names: list[str], files: Sequence[tuple[InputFile, str]]) -> pa.Schema:
        """Return a schema whose types fit all records. `files` are pairs of a file and the text of its first record."""
        if not self.options.infer_schema:
            return pa.schema([pa.field(name, pa.string()) for name in names])
        columns = [ColumnTypes(self.options) for _ in names]
        for file, text in files:
            with within_limits(file.path):
                _widen(columns, self.options, file, names, text)
        return pa.schema([pa.field(name, column.arrow) for name, column in zip(names, columns, strict=True)])

    def sliceable(self, file: InputFile) -> bool:
        """Return whether the file is uncompressed UTF-8 in which no record spans several lines."""
        return not self.options.multi_line and self.options.blocks().sliceable(file)

    def borders(self, file: InputFile, target_bytes: int) -> list[int]:
        """See `FileFormat.borders`. A bzip2, xz or seekable zstd file is cut by its compressed bytes."""
        return [] if self.options.multi_line else self.options.blocks().borders(file, target_bytes)

    def join(self, contents: Sequence[bytes]) -> JoinedContents | None:
        """See `FileFormat.join`. Returns None with `lineSep` or `comment`, because then a line need not be a row."""
        if self.options.line_sep is not None or self.options.comment:
            return None
        return join_lines(contents, header=self.options.header, not_one_row=[b"\n"])

    def read(
        self,
        file: InputFile,
        schema: pa.Schema,
        *,
        columns: Sequence[str] | None = None,
        position: int = 0,
        end: int | None = None,
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """See `FileFormat.read`."""
        with within_limits(file.path):
            rows = RowMaker(self.options, schema, columns, file.path, position=position)
            for tokens, block in CsvReading(self.options, file, rows.names, rows.column_indexes).blocks(position, end):
                batch = rows.oversized(block) if tokens is None else rows.batch(tokens, block)
                if batch.num_rows:
                    yield batch, block.end


# -- Converts CSV tokens to record batches, and handles malformed records as the option `mode` says.


_SHOWN_CHARS = 200


class RowMaker:
    """Converts the tokens of one read to record batches.

    `columns` are the names of the selected columns; None selects all.

    Raises:
        ConfigurationError: The format does not support the schema or the selected columns.
    """

    def __init__(
        self, options: CsvOptions, schema: pa.Schema, columns: Sequence[str] | None, path: str, *, position: int = 0
    ) -> None:
        self._mode = options.mode
        self._path = path
        self._position = position
        self._rows = 0
        corrupt = options.column_name_of_corrupt_record
        names = dict.fromkeys(schema.names)
        if len(names) < len(schema.names):
            twice = next(name for name, times in Counter(schema.names).items() if times > 1)
            raise ConfigurationError(
                f"the schema has the column {twice!r} twice",
                advice="give the columns different names in the schema; the names in the file do not matter",
            )
        selected = list(names if columns is None else columns)
        missing = [name for name in selected if name not in names]
        if missing:
            raise ConfigurationError(
                f"{missing[0]!r} in the option `columns` is not a column of the schema",
                option="columns",
                advice=f"select only columns of the schema: {', '.join(map(repr, names))}",
            )
        self.schema = pa.schema([schema.field(name) for name in selected])
        self.names = [name for name in names if name != corrupt]
        """The names of the data columns: all columns of the schema but the one for corrupt records."""
        places = {name: place for place, name in enumerate(self.names)}
        self.column_indexes = [places[name] for name in selected if name != corrupt]
        """The indexes in `names` of the selected columns."""
        self._corrupt_at = selected.index(corrupt) if corrupt in selected else None
        if corrupt in names and schema.field(corrupt).type not in (pa.string(), pa.large_string()):
            raise ConfigurationError(
                f"the column {corrupt!r} for corrupt records must be a string, not {schema.field(corrupt).type}",
                option="columnNameOfCorruptRecord",
                advice="declare the column as string in the schema, or set columnNameOfCorruptRecord to another name",
            )
        self._converters = [converter(schema.field(name), options) for name in selected if name != corrupt]

    def batch(self, tokens: Tokens, block: Block) -> pa.RecordBatch:
        """Return the record batch for the tokens of a block.

        Raises:
            DataError: A record is malformed and the mode is FAILFAST.
        """
        arrays: list[pa.Array] = []
        bad: set[int] = set(tokens.malformed)
        malformed: list[tuple[int, str]] = []
        for convert, column in zip(self._converters, tokens.columns, strict=True):
            values, wrong = convert(column)
            arrays.append(values)
            bad.update(wrong)
            if wrong and self._mode == "FAILFAST":
                malformed.append((min(wrong), self.names[self.column_indexes[len(arrays) - 1]]))
        if bad and self._mode == "FAILFAST":
            raise self._malformed(tokens, block, min(bad), malformed)
        self._rows += tokens.rows
        if self._corrupt_at is not None:
            arrays.insert(self._corrupt_at, self._corrupt(tokens, bad))
        batch = batch_of(arrays, self.schema, tokens.rows)
        if bad and self._mode == "DROPMALFORMED":
            keep = [row not in bad for row in range(tokens.rows)]
            batch = batch.filter(pa.array(keep, pa.bool_()))
        return batch

    def oversized(self, block: Block) -> pa.RecordBatch:
        """Return the record batch for a record longer than `maxRecordBytes`; `block` holds only the record's start.

        Raises:
            DataError: The mode is FAILFAST.
        """
        text = decoded(block.data)
        if self._mode == "FAILFAST":
            raise self._failure(text, block, 0, " is longer than maxRecordBytes")
        self._rows += 1
        rows = 0 if self._mode == "DROPMALFORMED" else 1
        arrays = [
            pa.array([text] * rows, field.type) if at == self._corrupt_at else pa.nulls(rows, field.type)
            for at, field in enumerate(self.schema)
        ]
        return batch_of(arrays, self.schema, rows)

    def _corrupt(self, tokens: Tokens, bad: set[int]) -> pa.Array:
        texts: list[str | None] = [None] * tokens.rows
        if bad:
            raw = tokens.raw()
            for row in bad:
                texts[row] = raw[row]
        return pa.array(texts, self.schema.field(self._corrupt_at or 0).type)

    def _malformed(self, tokens: Tokens, block: Block, row: int, malformed: Sequence[tuple[int, str]]) -> DataError:
        """Return the DataError for the malformed record at index `row` of the block.

        It names the columns whose values are malformed. `malformed` has, for each such column, the first row with a
        malformed value and the column's name.
        """
        columns = [name for first, name in malformed if first == row]
        if columns:
            kinds = ", ".join(f"{name!r} ({self.schema.field(name).type})" for name in columns)
            why = f" does not fit the schema in the column{'' if len(columns) == 1 else 's'} {kinds}"
        else:
            why = f" does not fit the schema: it does not have {len(self.names)} values"
        return self._failure(tokens.raw()[row], block, row, why)

    def _failure(self, text: str, block: Block, row: int, why: str) -> DataError:
        shown = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"
        # The records before the start of a slice or of a resumed read are not counted.
        after = f" after byte {self._position}" if self._position else ""
        return DataError(
            f"a record of {self._path}{why}: {shown}",
            source=self._path,
            position=f"record {self._rows + row + 1}{after}, between bytes {block.offset(0)} and {block.end}",
            option="mode",
            advice="correct the file or the schema, or set mode to PERMISSIVE or DROPMALFORMED",
        )


# -- Converts columns of CSV tokens to the same values as Spark, and reports malformed tokens.
#
# Arrow converts a whole column if a check shows that it reads the tokens of the column as Spark does.


_MAX_PRECISION = 38
"""The number of digits that every decimal of 128 bits can hold."""


def converter(field: pa.Field, options: CsvOptions) -> Converter:
    """Return the function that converts the tokens of one column.

    Raises:
        ConfigurationError: The CSV format does not support the column's type.
    """
    data_type = field.type
    inner = _inner(data_type, options)
    if inner is None:
        raise ConfigurationError(
            f"the {options.format_name} format cannot read the column {field.name!r} as {data_type}",
            advice="give the column a string, number, boolean, date, timestamp or binary type in the schema",
        )
    convert, native = inner
    if native == data_type:
        return convert

    def convert_and_cast(tokens: pa.Array) -> Converted:
        values, bad = convert(tokens)
        return values.cast(data_type), bad

    return convert_and_cast


def _inner(data_type: pa.DataType, options: CsvOptions) -> tuple[Converter, pa.DataType] | None:
    """Return the conversion function and its result type, which may differ from `data_type` in unit or offset width.

    None if the CSV format does not support the type.
    """
    types = pa.types
    if types.is_string(data_type) or types.is_large_string(data_type) or types.is_string_view(data_type):
        return _strings, pa.string()
    if types.is_binary(data_type) or types.is_large_binary(data_type) or types.is_binary_view(data_type):
        return _strings, pa.string()
    if types.is_signed_integer(data_type):
        return partial(_integers, data_type), data_type
    if types.is_float32(data_type) or types.is_float64(data_type):
        return _floats(data_type, options), data_type
    if types.is_boolean(data_type):
        return _booleans, data_type
    if isinstance(data_type, pa.Decimal128Type) and data_type.scale >= 0:
        return partial(_decimals, data_type), data_type
    if types.is_date32(data_type):
        return date_converter(options, prefer_date=options.prefer_date), data_type
    if isinstance(data_type, pa.TimestampType):
        native = pa.timestamp("us", tz=data_type.tz)
        return timestamp_converter(native, options), native
    return None


def _strings(tokens: pa.Array) -> Converted:
    return tokens, ()


def _integers(data_type: pa.DataType, tokens: pa.Array) -> Converted:
    bits = data_type.bit_width
    digits = len(str(2 ** (bits - 1))) - 1
    plains: list[Plain] = [(f"^-?[0-9]{{1,{digits}}}$", lambda plain: plain.cast(data_type))]
    decimal = consists_of(tokens, b"-0123456789")  # Arrow takes hexadecimal, too
    return cast_or_parse(tokens, data_type, partial(parse_int, bits=bits), plains, castable=decimal)


def _floats(data_type: pa.DataType, options: CsvOptions) -> Converter:
    parse = parse_double if pa.types.is_float64(data_type) else parse_float
    names = {options.positive_inf: math.inf, options.negative_inf: -math.inf, options.nan_value: math.nan}
    # Arrow would read a name that looks like an ordinary number.
    never_in_bulk = any(math.isfinite(value) for value in map(parse_double, names) if value is not None)

    def parse_named(text: str) -> float | None:
        return names[text] if text in names else parse(text)

    def convert(tokens: pa.Array) -> Converted:
        if never_in_bulk:
            return by_value(tokens, data_type, parse_named)
        try:
            values = tokens.cast(data_type)
            # Arrow accepts more spellings of infinity and NaN than Spark.
            if pc.all(pc.is_finite(values)).as_py() is not False:
                return values, ()
        except pa.ArrowInvalid:
            pass
        return by_value(
            tokens,
            data_type,
            parse_named,
            [(r"^-?[0-9]{1,15}(?:\.[0-9]{0,20})?$", lambda plain: plain.cast(data_type))],
        )

    return convert


def _booleans(tokens: pa.Array) -> Converted:
    data = token_bytes(tokens)
    plains: list[Plain] = [("^(?:true|false)$", lambda plain: plain.cast(pa.bool_()))]
    words = b"0" not in data and b"1" not in data  # Arrow takes digits, too
    return cast_or_parse(tokens, pa.bool_(), parse_bool, plains, castable=words)


def _decimals(data_type: pa.Decimal128Type, tokens: pa.Array) -> Converted:
    precision, scale = data_type.precision, data_type.scale
    whole = precision - scale
    longest = pc.max(pc.binary_length(tokens)).as_py() or 0
    # Arrow does not notice that a number overflows 128 bits, neither when it parses nor when it moves the point.
    castable = longest + scale <= _MAX_PRECISION and consists_of(tokens, b"+-.0123456789")
    plains: list[Plain] = []
    if whole:
        plains.append((rf"^-?[0-9]{{1,{whole}}}(?:\.[0-9]{{0,{scale}}})?$", lambda plain: plain.cast(data_type)))
    # One digit is left free for the carry of rounding.
    wide = pa.decimal128(_MAX_PRECISION, min(_MAX_PRECISION - whole, scale + 12))
    if whole > 1 and wide.scale > scale:

        def rounded(plain: pa.Array) -> pa.Array:
            return pc.round(plain.cast(wide), ndigits=scale, round_mode="half_towards_infinity").cast(data_type)

        plains.append((rf"^-?[0-9]{{1,{whole - 1}}}\.[0-9]{{1,{wide.scale}}}$", rounded))
    parse = partial(parse_decimal, precision=precision, scale=scale)
    return cast_or_parse(tokens, data_type, parse, plains, castable=castable)


# -- The column types that Spark's `CSVInferSchema` infers from CSV tokens, as Arrow types.


_ALL = 0.99  # above this sampling ratio, Spark uses all records
_LENIENT_DATES = ("yyyy-MM-dd", "yyyy-M-d", "yyyy-M-dd", "yyyy-MM-d", "yyyy-MM", "yyyy-M", "yyyy")
_NULL, _STRING, _BOOLEAN = pa.null(), pa.string(), pa.bool_()
_INT, _LONG, _DOUBLE = pa.int32(), pa.int64(), pa.float64()
_DECIMAL = pa.decimal128(_MAX_PRECISION, 0)
_DATE, _TIMESTAMP = pa.date32(), pa.timestamp("us", tz="UTC")
_DIGITS = {_INT: 10, _LONG: 20}


class ColumnTypes:
    """The inferred type of one column. Each added token may widen it."""

    def __init__(self, options: CsvOptions) -> None:
        self._options = options
        self._type: pa.DataType = _NULL
        self._date_pattern = options.date_format or "yyyy-MM-dd"
        pattern = options.pattern("timestamp_format")
        named_numbers = dict.fromkeys((options.nan_value, options.positive_inf, options.negative_inf), 0.0)
        # In the order in which Spark tries them; each returns None for a token that is not of the type.
        self._parsers: list[tuple[pa.DataType, Callable[[str], object]]] = [
            (_INT, partial(parse_int, bits=32)),
            (_LONG, partial(parse_int, bits=64)),
            (_DECIMAL, _decimal_type),
            (_DOUBLE, lambda token: named_numbers.get(token, parse_double(token))),
            (_DATE, DatePattern.of(self._date_pattern).date if options.prefer_date else lambda _: None),
            (_TIMESTAMP, partial(pattern.timestamp if pattern else parse_timestamp, session_zone=options.zone)),
            (_BOOLEAN, parse_bool),
        ]

    @property
    def resolved(self) -> bool:
        """Whether the type is string, which fits every token, so that no further token can widen it."""
        return self._type == _STRING

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type that fits the tokens added so far; string if there were none."""
        return _STRING if self._type == _NULL else self._type

    def widen(self, tokens: pa.Array) -> None:
        """Widen the type so that it fits some more tokens. Nulls, empty tokens and the null value are ignored."""
        tokens = tokens.drop_null()
        tokens = tokens.filter(pc.and_(pc.not_equal(tokens, ""), pc.not_equal(tokens, self._options.null_value)))
        if self.resolved or not len(tokens):
            return
        known = self._type_of_all(tokens)
        if known is not None:
            self._type = self._wider(self._type, known)
            return
        for token in tokens.unique().to_pylist():
            if not self.resolved:
                self._type = self._wider(self._type, self._type_of(token))

    def _type_of_all(self, tokens: pa.Array) -> pa.DataType | None:
        """Return the common type of the tokens if a check of the whole column finds it; None to check each token."""
        if self._type in (_NULL, _INT, _LONG) and consists_of(tokens, b"-0123456789"):
            for whole in (_INT, _LONG):
                if _castable(tokens, whole):
                    return whole
        if self._type in (_NULL, _INT, _LONG, _DOUBLE) and _all_match(tokens, r"^-?[0-9]{0,15}\.[0-9]{1,15}$"):
            return _DOUBLE
        formats = self._options.date_format, self._options.timestamp_format
        if formats != (None, None) or not self._options.prefer_date:
            return None
        if self._type in (_NULL, _DATE) and _castable(tokens, _DATE):
            return _DATE
        if self._type in (_NULL, _TIMESTAMP) and _all_match(tokens, "^.{19}") and _castable(tokens, pa.timestamp("us")):
            return _TIMESTAMP
        return None

    def _type_of(self, token: str) -> pa.DataType:
        """Return the type that Spark infers for one token. The search starts at the column's current type."""
        sought = _DECIMAL if pa.types.is_decimal(self._type) else self._type
        skipped = sought != _NULL
        for data_type, parse in self._parsers:
            skipped = skipped and data_type != sought
            value = None if skipped else parse(token)
            if value is not None:
                return value if isinstance(value, pa.DataType) else data_type
        return _STRING

    def _wider(self, one: pa.DataType, other: pa.DataType) -> pa.DataType:
        kinds = {one, other}
        if len(kinds) == 1 or _NULL in kinds:
            return other if one == _NULL else one
        if kinds == {_DATE, _TIMESTAMP}:
            lenient = self._options.timestamp_format is None and self._date_pattern in _LENIENT_DATES
            return _TIMESTAMP if lenient else _STRING
        if kinds == {_INT, _LONG}:
            return _LONG
        if not all(kind in (_INT, _LONG, _DOUBLE) or pa.types.is_decimal(kind) for kind in kinds):
            return _STRING
        return _DOUBLE if _DOUBLE in kinds else pa.decimal128(max(map(_precision, kinds)), 0)


def _precision(kind: pa.DataType) -> int:
    return kind.precision if isinstance(kind, pa.Decimal128Type) else _DIGITS[kind]


def _decimal_type(token: str) -> pa.DataType | None:
    """Return the decimal type for an integer of at most 38 digits; None for any other token."""
    try:
        number = decimal.Decimal(token) if token.isascii() and "_" not in token and token.strip() == token else None
    except decimal.InvalidOperation:
        return None
    if number is None or not number.is_finite() or number.as_tuple().exponent != 0:
        return None
    precision = max(1, len(number.as_tuple().digits))
    return pa.decimal128(precision, 0) if precision <= _MAX_PRECISION else None


def _castable(tokens: pa.Array, arrow_type: pa.DataType) -> bool:
    try:
        tokens.cast(arrow_type)
    except pa.ArrowInvalid:
        return False
    return True


def _all_match(tokens: pa.Array, expression: str) -> bool:
    return pc.all(pc.match_substring_regex(tokens, expression)).as_py() is True


def _widen(columns: list[ColumnTypes], options: CsvOptions, file: InputFile, names: list[str], header: str) -> None:
    """Widen each column's type until it fits all tokens of a file. Skips string columns, which fit every token."""
    unresolved = [index for index, column in enumerate(columns) if not column.resolved]
    by_text = options.header and not options.multi_line
    reading = CsvReading(options, file, names, unresolved, inferring=True, without=header if by_text else None)
    chance = random.Random(1)  # the same sample every time
    for tokens, _ in reading.blocks(0, None):
        if tokens is None:
            continue
        sample: pa.Array | None = None
        if options.sampling_ratio <= _ALL:
            sample = pa.array([chance.random() < options.sampling_ratio for _ in range(tokens.rows)], pa.bool_())
        for index, column in zip(unresolved, tokens.columns, strict=True):
            columns[index].widen(column if sample is None else column.filter(sample))
