# SPDX-License-Identifier: Apache-2.0
"""Reads ORC files as Spark's vectorised reader does, and converts their columns to the types of the schema.

The supported pairs of types are those of ORC's Java reader 2.3, which Spark 4.2.0 uses, except pairs that change a
value's meaning.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, ClassVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError, DataError
from forebay.formats.filters import Statistics
from forebay.formats.orc.footer import (
    TEXTS,
    TYPES,
    Node,
    Tail,
    TypeKind,
    bytes_per_row,
    column_statistics,
    read_statistics,
    read_tail,
)
from forebay.formats.orc.stripes import Pick, StreamKind, open_stripe, scan
from forebay.formats.records import with_valid_utf8
from forebay.formats.units import (
    BatchRows,
    Malformed,
    OpenUnits,
    UnitColumn,
    UnitFormat,
    unreadable_column,
    within_precision,
    wrap_damage,
)
from forebay.formats.values.columns import Convert, chain, list_of, map_of, mismatch, place_of, struct_of
from forebay.formats.values.dates import UTC, Zone, session_zone, zone
from forebay.formats.values.ddl import NoArrowForm, named_type
from forebay.formats.values.rebase import FIRST_COMMON_DAY, FIRST_DAY, day_shift
from forebay.options import option

if TYPE_CHECKING:
    from forebay.formats.base import InputFile

_WRITING = "it is for writing; each ORC file names its own codec"


@dataclass(frozen=True, kw_only=True)
class OrcOptions:
    """The options of ORC files."""

    merge_schema: bool = option(default=False, doc="infer the schema from all files, not only from the first")
    case_sensitive: bool = option(
        default=False, doc="compare names of columns exactly: the session's `spark.sql.caseSensitive`"
    )
    time_zone: str = "UTC"

    @property
    def zone(self) -> Zone:
        """The time zone in which wall-clock times in files are read."""
        return session_zone(self.time_zone)


@dataclass(frozen=True)
class OrcFormat(UnitFormat):
    """Reads ORC files. The units are stripes."""

    name: ClassVar[str] = "orc"
    units: ClassVar[str] = "stripes"
    options_class: ClassVar[type] = OrcOptions
    refused: ClassVar[Mapping[str, str]] = {"compression": _WRITING, "orc.compress": _WRITING}

    options: OrcOptions = OrcOptions()

    @contextmanager
    def opened(self, file: InputFile) -> Iterator[OpenOrc]:
        """Open a file for a `with` block, and read its footer."""
        with file.open() as raw, wrap_damage(file.path, "ORC"):
            yield OpenOrc(file.path, raw, read_tail(raw, file), self.options)


class OpenOrc(OpenUnits[Pick]):
    """An open ORC file."""

    batch_bytes = 32 << 20  # a batch costs much for each column: with 8 MB, 200 columns take a sixth longer

    def __init__(self, path: str, raw: BinaryIO, tail: Tail, options: OrcOptions) -> None:
        self.path = path
        self._raw = raw
        self._tail = tail
        self._times = Times(path, tail.proleptic, options.zone)
        self._converter = Converter(path, options.case_sensitive, self._times)
        self._statistics: list[list[bytes]] | None = None

    @property
    def starts(self) -> Sequence[int]:
        """The first row of each stripe, followed by the number of rows of the file."""
        return self._tail.starts

    def schema(self) -> pa.Schema:
        """Return the schema that Spark infers from the file."""
        root = self._tail.root
        pairs = zip(root.names, root.children, strict=True)
        return pa.schema([pa.field(name, _type(child, name, self.path)) for name, child in pairs])

    def sizes(self) -> Sequence[int]:
        """Return the size of each stripe in bytes."""
        return [stripe.size for stripe in self._tail.stripes]

    def column(self, field: pa.Field) -> UnitColumn[Pick]:
        """Return where a column of the schema is in the file, and its conversion."""
        return self._converter.column(field, self._tail.root, field.name)

    def statistics(self, unit: int, column: UnitColumn[Pick]) -> Statistics | None:
        """Return what the file says of the values of a column in a stripe. The first call reads the statistics."""
        if self._statistics is None:
            try:
                self._statistics = read_statistics(self._raw, self._tail)
            except Malformed:  # reading the rows shows whether the file is damaged
                self._statistics = []
        stripe = self._tail.stripes[unit]
        if stripe.number >= len(self._statistics):
            return None
        node = cast("Pick", column.stored).source
        return column_statistics(self._statistics[stripe.number], node, column.field.type, stripe.rows, self._tail)

    def batches(self, columns: Sequence[UnitColumn[Pick]], unit: int, rows: BatchRows) -> Generator[pa.RecordBatch]:
        """Yield the rows of a stripe as they are stored."""
        stripe = open_stripe(self._raw, self._tail, self._tail.stripes[unit])
        self._times.writer = stripe.zone
        picks = [cast("Pick", column.stored) for column in columns]
        nodes = {inside.source.id: inside.source for pick in picks for inside in pick.walk()}
        stripe.announce(nodes)
        size = bytes_per_row(self._tail, nodes.values())
        rows.begin(size or 0, sure=size is not None)
        return scan(stripe, picks, rows.most)


# -- The schema that Spark infers from an ORC file.


_CATALYST_TYPE = "spark.sql.catalyst.type"
"""The attribute in which Spark records its own type for a column. As in Spark, that type takes precedence."""


def _type(node: Node, column: str, path: str) -> pa.DataType:
    match node.kind:
        case TypeKind.STRUCT:
            pairs = zip(node.names, node.children, strict=True)
            return pa.struct([pa.field(name, _type(child, f"{column}.{name}", path)) for name, child in pairs])
        case TypeKind.LIST:
            return pa.list_(pa.field("element", _type(node.children[0], f"{column}.element", path)))
        case TypeKind.MAP:
            key, value = node.children
            return pa.map_(_type(key, f"{column}.key", path), _type(value, f"{column}.value", path))
        case TypeKind.UNION | TypeKind.CHAR:
            raise _refused(str(node), column, path)
        case TypeKind.DECIMAL:
            return pa.decimal128(node.precision, node.scale)
    written = node.attributes.get(_CATALYST_TYPE)
    try:
        return TYPES[node.kind] if written is None else named_type(written)
    except NoArrowForm as error:
        raise _refused(str(error), column, path) from None


def _refused(stored_type: str, column: str, path: str) -> ConfigurationError:
    return unreadable_column(column, path, f"has the type {stored_type}, which forebay cannot read", "orc")


# -- Converts dates and timestamps of ORC files to the values that Spark reads.
#
# A timestamp is stored as seconds since 2015-01-01T00:00:00 in the time zone of the writer, and nanoseconds. As in
# ORC's Java reader, a TIMESTAMP keeps its wall-clock time in the zone of the reader.


_BASE = 1_420_070_400
"""2015-01-01T00:00:00 in seconds since 1970."""
_SECOND_US = 1_000_000
_DAY = 86_400
_1900 = -2_208_988_800
_MILLI_NS = 999_999
"""If a time before 1970 has more nanoseconds than this, the writer rounded its second towards zero."""
_UTC_NAMES = frozenset({"UTC", "GMT", "UCT", "GMT0", "Z", "Zulu", "Universal", "Greenwich"})
_UTC_NAMES |= {f"Etc/{name}" for name in (*_UTC_NAMES, "GMT+0", "GMT-0")}


@dataclass(slots=True)
class Times:
    """Converts the dates and timestamps of one file.

    Attributes:
        path: The path of the file, for errors.
        proleptic: Whether the file's dates are in the new calendar.
        reader: The time zone of the session.
        writer: The name of the time zone of the writer, which each stripe names; empty in old files.
    """

    path: str
    proleptic: bool
    reader: Zone
    writer: str = ""

    def dates(self, array: pa.Array, column: str) -> pa.Array:
        """Convert dates to the new calendar; raise DataError for dates before the year 1."""
        oldest = pc.min(array).cast(pa.int32()).as_py() if len(array) else None
        if self.proleptic or oldest is None or oldest >= FIRST_COMMON_DAY:
            return array
        if oldest < FIRST_DAY:
            raise self._too_old(column, "dates before the year 1 of the Julian calendar")
        days = array.view(pa.int32())
        return pc.add(days, day_shift(days)).view(pa.date32())

    def timestamps(self, array: pa.Array, column: str, *, local: bool) -> pa.Array:
        """Convert timestamps to instants in microseconds.

        Args:
            array: Structs of two fields: the stored seconds, and a timestamp that is 2015-01-01 plus the nanoseconds.
            column: The name of the column, for errors.
            local: Whether the times are wall-clock times (TIMESTAMP), not instants.

        Raises:
            DataError: A time is before 1900.
            ConfigurationError: The times are wall-clock times of another time zone.
        """
        parts = cast("pa.StructArray", array)
        base = _BASE - (self._common_zone(column).offset(_BASE) if local else 0)
        seconds = pc.add_checked(parts.field(0), base)
        nanos = pc.subtract(parts.field(1).cast(pa.int64()), _BASE * 1_000_000_000)
        # As in ORC for Java: the writer rounded the second towards zero, except if there were no milliseconds.
        least = pc.min(seconds).as_py() or 0
        if least < 0:
            late = pc.and_(pc.less(seconds, 0), pc.greater(nanos, _MILLI_NS))
            seconds = pc.subtract(seconds, late.cast(pa.int64()))
        if least < _1900 + _DAY:  # Spark takes these for times of the old calendar and of Java's old time zones
            raise self._too_old(column, "times before 1900")
        micros = pc.add(pc.multiply_checked(seconds, _SECOND_US), pc.divide(nanos, 1000))
        if array.null_count:
            micros = pc.if_else(pc.is_valid(array), micros, pa.scalar(None, pa.int64()))
        return micros.cast(pa.timestamp("us", "UTC"))

    def _common_zone(self, column: str) -> Zone:
        """Return the time zone of the session, which must be that of the writer."""
        try:
            writer = self.reader if not self.writer else UTC if self.writer in _UTC_NAMES else zone(self.writer)
        except ValueError as error:
            raise Malformed(f"a stripe names an unknown time zone of its writer: {error}") from None
        if same_rules(writer, self.reader):
            return writer
        reason = f"has clock times of the zone {writer.name}, and timeZone is {self.reader.name}"
        raise unreadable_column(column, self.path, reason, "orc").with_context(option="timeZone")

    def _too_old(self, column: str, what: str) -> DataError:
        return DataError(
            f"column {column!r} of {self.path} holds {what}",
            option="schema",
            advice="remove the column from the schema, or read the file with spark.read.format('orc')",
        )


def same_rules(left: Zone, right: Zone) -> bool:
    """Return whether two zones have the same name or the same fixed offset, or both are UTC."""
    if left.fixed is not None or right.fixed is not None:
        return left.fixed == right.fixed or {left.name, right.name} <= _UTC_NAMES
    return left.name == right.name


_WHOLE = frozenset({TypeKind.BOOLEAN, TypeKind.BYTE, TypeKind.SHORT, TypeKind.INT, TypeKind.LONG})
_FLOATS = frozenset({TypeKind.FLOAT, TypeKind.DOUBLE})
_TIMES = frozenset({TypeKind.TIMESTAMP, TypeKind.TIMESTAMP_INSTANT})


@dataclass(frozen=True, slots=True)
class Converter:
    """Builds the conversions for the columns of one file."""

    path: str
    case_sensitive: bool
    times: Times

    def column(self, field: pa.Field, struct: Node, column: str) -> UnitColumn[Pick]:
        """Return the data to read for a column, or for a field of `struct`, and their conversion.

        Raises:
            ConfigurationError: The types do not match, or two columns of the file have this name.
        """
        place = place_of(field.name, struct.names, column, self.path, case_sensitive=self.case_sensitive)
        if place is None or pa.types.is_null(field.type):
            return UnitColumn(field)
        return UnitColumn(field, *self._picked(struct.children[place], field.type, column))

    def _picked(self, node: Node, target: pa.DataType, column: str) -> tuple[Pick, Convert | None]:
        match node.kind:
            case TypeKind.STRUCT if isinstance(target, pa.StructType):
                fields = [self.column(field, node, f"{column}.{field.name}") for field in target]
                picks = [field.stored for field in fields if field.stored is not None]
                places = iter(range(len(picks)))
                children = [(None if field.stored is None else next(places), field.convert) for field in fields]
                return Pick(node, node.kind, tuple(picks)), struct_of(children, target)
            case TypeKind.LIST if isinstance(target, pa.ListType):
                pick, convert = self._part(node.children[0], target.value_type, f"{column}.element")
                return Pick(node, node.kind, (pick,)), list_of(convert, target)
            case TypeKind.MAP if isinstance(target, pa.MapType):
                key, convert_key = self._part(node.children[0], target.key_type, f"{column}.key")
                value, convert = self._part(node.children[1], target.item_type, f"{column}.value")
                entries = Pick(node, TypeKind.STRUCT, (key, value), ())
                return Pick(node, TypeKind.LIST, (entries,)), map_of(chain(_without_null, convert_key), convert, target)
            case kind if kind in _TIMES:
                return self._timestamp(node, target, column)
            case TypeKind.UNION | TypeKind.CHAR:
                raise _refused(str(node), column, self.path)
        stored = TypeKind.STRING if node.kind in TEXTS else node.kind
        return Pick(node, stored), self._value(node, target, column)

    def _part(self, node: Node, target: pa.DataType, column: str) -> tuple[Pick, Convert | None]:
        """Return the data to read for a list element, map key or map value. If all are null, only count them."""
        if pa.types.is_null(target):
            return Pick(node, TypeKind.STRUCT, (), ()), lambda array: pa.nulls(len(array), target)
        return self._picked(node, target, column)

    def _timestamp(self, node: Node, target: pa.DataType, column: str) -> tuple[Pick, Convert]:
        if target != TYPES[node.kind]:
            raise mismatch(column, node, target, self.path)
        seconds = Pick(node, TypeKind.LONG, (), ((StreamKind.DATA, StreamKind.DATA),))
        nanos = Pick(node, TypeKind.TIMESTAMP_INSTANT, (), ((StreamKind.SECONDARY, StreamKind.SECONDARY),), zeros=True)
        pick = Pick(node, TypeKind.STRUCT, (seconds, nanos), ((StreamKind.PRESENT, StreamKind.PRESENT),))
        return pick, partial(self.times.timestamps, column=column, local=node.kind is TypeKind.TIMESTAMP)

    def _value(self, node: Node, target: pa.DataType, column: str) -> Convert | None:
        """Return the conversion of a primitive column that is not a timestamp."""
        types = pa.types
        kind = node.kind
        if kind is TypeKind.DATE and types.is_date32(target):
            return lambda array: self.times.dates(array, column)
        if kind is TypeKind.DECIMAL:
            stored: pa.DataType = pa.decimal128(node.precision, node.scale)
            checked = partial(within_precision, column=column, path=self.path)
            if isinstance(target, pa.Decimal128Type):
                return chain(checked, None if stored == target else lambda array: rescaled(array, target))
            if types.is_floating(target):
                # Arrow's own cast of decimals to DOUBLE is not rounded correctly; that of texts is.
                return chain(checked, lambda array: array.cast(pa.string()).cast(pa.float64()).cast(target))
        elif kind in TEXTS and (types.is_string(target) or types.is_binary(target)):
            return _valid if types.is_string(target) else lambda array: array.view(target)
        elif kind in _WHOLE or kind in _FLOATS:
            conversion = _of_number(kind, target)
            if conversion is not None:
                return conversion if TYPES[kind] != target else None
        elif kind is TypeKind.BINARY and types.is_binary(target):
            return None
        raise mismatch(column, node, target, self.path)


def _of_number(kind: TypeKind, target: pa.DataType) -> Convert | None:
    """Return the conversion of integers, booleans or floating point to a type; None if there is none."""
    types = pa.types
    if types.is_floating(target):
        return lambda array: array.cast(pa.int8() if kind is TypeKind.BOOLEAN else array.type).cast(target, safe=False)
    if kind in _FLOATS:
        return (lambda array: truncated(array, target)) if types.is_signed_integer(target) else None
    if types.is_boolean(target):
        return lambda array: pc.not_equal(array, 0) if kind is not TypeKind.BOOLEAN else array
    if types.is_signed_integer(target):
        return lambda array: narrowed(array, target)
    if isinstance(target, pa.Decimal128Type):
        return lambda array: rescaled(array.cast(pa.int64()).cast(pa.decimal128(19, 0)), target)
    if types.is_string(target):
        return number_texts
    if kind is TypeKind.LONG and (types.is_duration(target) or target == pa.timestamp("us")):
        # As Spark stores intervals and timestamps without a time zone.
        return lambda array: array.view(target)
    return None


def _valid(array: pa.Array) -> pa.Array:
    """Return the texts with U+FFFD in place of bytes that are not UTF-8."""
    raw = array.view(pa.binary())
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return with_valid_utf8(raw)[0].cast(pa.string())


def _without_null(array: pa.Array) -> pa.Array:
    """Return the keys of maps unchanged; raise Malformed if one is null, which only damage does."""
    if array.null_count:
        raise Malformed("a map has a null key")
    return array


# -- Converts numbers to other types as ORC's Java reader does: a value that does not fit becomes null.


def narrowed(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert integers or booleans to integers of another width; a value that does not fit becomes null."""
    if pa.types.is_boolean(array.type) or array.type.bit_width <= target.bit_width:
        return array.cast(target)
    most = (1 << (target.bit_width - 1)) - 1
    fits = pc.and_(pc.greater_equal(array, -most - 1), pc.less_equal(array, most))
    return pc.if_else(fits, array, pa.scalar(None, array.type)).cast(target)


def truncated(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert floating-point numbers to integers without the fraction; a value that does not fit becomes null."""
    values = array.cast(pa.float64())
    # A double can represent -2^63, but not 2^63 - 1.
    fits = pc.and_(pc.greater_equal(values, -(2.0**63)), pc.less(values, 2.0**63))
    whole = pc.if_else(fits, pc.trunc(values), pa.scalar(None, pa.float64())).cast(pa.int64(), safe=False)
    return narrowed(whole, target)


def rescaled(array: pa.Array, target: pa.Decimal128Type) -> pa.Array:
    """Convert decimals to another precision and scale, rounded half up; a value that does not fit becomes null."""
    stored = cast("pa.Decimal128Type", array.type)
    digits = target.precision - target.scale
    # Rounding may add a digit.
    wide = pa.decimal256(max(stored.precision, digits + stored.scale) + 1, stored.scale)
    values = array.cast(wide)
    if target.scale < stored.scale:
        values = pc.round(values, target.scale, "half_towards_infinity")
    fits = pc.less(pc.abs(values), pa.scalar(Decimal(10) ** digits, wide))
    return pc.if_else(fits, values, pa.scalar(None, wide)).cast(pa.decimal256(76, target.scale)).cast(target)


def number_texts(array: pa.Array) -> pa.Array:
    """Convert integers or booleans to strings; booleans become TRUE and FALSE."""
    if pa.types.is_boolean(array.type):
        return pc.if_else(array, "TRUE", "FALSE")
    return array.cast(pa.string())
