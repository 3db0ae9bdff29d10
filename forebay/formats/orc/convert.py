# SPDX-License-Identifier: Apache-2.0
"""Converts columns of ORC files to the types of the schema. The conversion of a column is built once per stripe.

The supported pairs of types are those of ORC's Java reader 2.3, which Spark 4.2.0 uses, except pairs that change a
value's meaning.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from forebay.errors import ConfigurationError, DataError
from forebay.formats.orc.metadata import TEXTS, Malformed, Node, StreamKind, TypeKind
from forebay.formats.orc.projection import Pick
from forebay.formats.records import with_valid_utf8
from forebay.formats.values.columns import Convert, ambiguous, check_names, folded, struct_of
from forebay.formats.values.dates import UTC, Zone, zone
from forebay.formats.values.ddl import NoArrowForm, named_type
from forebay.formats.values.numbers import exceeds_precision
from forebay.formats.values.rebase import FIRST_COMMON_DAY, FIRST_DAY, day_shift

# -- The schema that Spark infers from an ORC file.


_CATALYST_TYPE = "spark.sql.catalyst.type"
"""The attribute in which Spark records its own type for a column. As in Spark, that type takes precedence."""

TYPES = {
    TypeKind.BOOLEAN: pa.bool_(),
    TypeKind.BYTE: pa.int8(),
    TypeKind.SHORT: pa.int16(),
    TypeKind.INT: pa.int32(),
    TypeKind.LONG: pa.int64(),
    TypeKind.FLOAT: pa.float32(),
    TypeKind.DOUBLE: pa.float64(),
    TypeKind.BINARY: pa.binary(),
    TypeKind.DATE: pa.date32(),
    TypeKind.TIMESTAMP: pa.timestamp("us", "UTC"),
    TypeKind.TIMESTAMP_INSTANT: pa.timestamp("us", "UTC"),
    **dict.fromkeys(TEXTS, pa.string()),
}


def inferred_schema(root: Node, path: str, case_sensitive: bool) -> pa.Schema:
    """Return the schema that Spark infers from a file; every column is nullable.

    Raises:
        ConfigurationError: Spark or Arrow lacks the type of a column, or two columns have the same name.
    """
    pairs = zip(root.names, root.children, strict=True)
    schema = pa.schema([pa.field(name, _type(child, name, path)) for name, child in pairs])
    hint = ", or set caseSensitive if the names differ in case only"
    check_names(schema, path, case_sensitive=case_sensitive, hint=hint)
    return schema


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
        case TypeKind.UNION:
            raise _refused(str(node), column, path)
        case TypeKind.DECIMAL:
            return pa.decimal128(node.precision, node.scale)
    written = node.attributes.get(_CATALYST_TYPE)
    try:
        return TYPES[node.kind] if written is None else named_type(written)
    except NoArrowForm as error:
        raise _refused(str(error), column, path) from None


def _refused(stored_type: str, column: str, path: str) -> ConfigurationError:
    return ConfigurationError(
        f"column {column!r} of {path} has the type {stored_type}, which forebay cannot read",
        advice="read the file with a schema that leaves that column out",
    )


# -- Converts dates and timestamps of ORC files to the values that Spark reads.
#
# A timestamp is stored as seconds since 2015-01-01T00:00:00 in the time zone of the writer, and nanoseconds. As in
# ORC's Java reader, a TIMESTAMP keeps its wall-clock time in the zone of the reader. Spark treats the result as a time
# of the old calendar (Julian before 1582-10-15, fixed offsets before 1900), and converts it to the new one (Gregorian).


_BASE = 1_420_070_400
"""2015-01-01T00:00:00 in seconds since 1970."""
_SECOND_US = 1_000_000
_DAY = 86_400
_1900 = -2_208_988_800
_FAR = 2_114_380_800
"""2037-01-01 in seconds: the tables of time zones end in this year."""
_LAST = 253_402_214_399
_400_YEARS = 146_097 * _DAY
_MILLI_NS = 999_999
"""If a time before 1970 has more nanoseconds than this, the writer rounded its second towards zero."""
_UTC_NAMES = frozenset({"UTC", "Etc/UTC", "Z", "GMT", "Etc/GMT", "UCT", "Etc/UCT", "Zulu", "Universal"})
_RECENT = 1_768_521_600
"""An instant in January 2026, in seconds. At this time or half a year later, a zone has its standard time."""
_HALF_YEAR = 182 * _DAY


@dataclass(frozen=True, slots=True)
class Times:
    """Converts the dates and timestamps of one stripe.

    Args:
        path: The path of the file, for errors.
        proleptic: Whether the file's dates are in the new calendar.
        writer: The time zone of the writer; None if the file does not name it.
        reader: The time zone of the session.
    """

    path: str
    proleptic: bool
    writer: Zone | None
    reader: Zone

    def dates(self, array: pa.Array, column: str) -> pa.Array:
        """Convert dates to the new calendar; raise DataError for dates before the year 1."""
        oldest = pc.min(array).cast(pa.int32()).as_py() if len(array) else None
        if self.proleptic or oldest is None or oldest >= FIRST_COMMON_DAY:
            return array
        if oldest < FIRST_DAY:
            raise self._too_old(column)
        days = array.view(pa.int32())
        return pc.add(days, day_shift(days)).view(pa.date32())

    def timestamps(self, array: pa.Array, column: str, *, local: bool) -> pa.Array:
        """Convert timestamps to instants in microseconds; raise DataError for times before the year 1.

        Args:
            array: Structs of two fields: the stored seconds, and a timestamp that is 2015-01-01 plus the nanoseconds.
            column: The name of the column, for errors.
            local: Whether the times are wall-clock times (TIMESTAMP), not instants.
        """
        parts = cast("pa.StructArray", array)
        writer = (self.writer or self.reader) if local else UTC
        base = _BASE - writer.offset(_BASE)
        seconds = pc.add_checked(parts.field(0), base)
        nanos = pc.subtract(parts.field(1).cast(pa.int64()), _BASE * 1_000_000_000)
        # As in ORC for Java: the writer rounded the second towards zero, except if there were no milliseconds.
        if (pc.min(seconds).as_py() or 0) < 0:
            late = pc.and_(pc.less(seconds, 0), pc.greater(nanos, _MILLI_NS))
            seconds = pc.subtract(seconds, late.cast(pa.int64()))
        if local and not same_rules(writer, self.reader):
            seconds = _moved(seconds, writer, self.reader)
        micros = pc.add(pc.multiply_checked(seconds, _SECOND_US), pc.divide(nanos, 1000))
        if (pc.min(seconds).as_py() or 0) < _1900 + _DAY:
            micros = self._rebased(micros, column)
        if array.null_count:
            micros = pc.if_else(pc.is_valid(array), micros, pa.scalar(None, pa.int64()))
        return micros.cast(pa.timestamp("us", "UTC"))

    def _rebased(self, micros: pa.Array, column: str) -> pa.Array:
        """Convert times before 1900 from the old calendar: the wall-clock times stay the same."""
        values = micros.to_pylist()
        raw = raw_offset(self.reader)
        for place, value in enumerate(values):
            if value is None or value >= _1900 * _SECOND_US:
                continue
            wall, fraction = divmod(value + raw * _SECOND_US, _SECOND_US)
            days, second = divmod(wall, _DAY)
            if days < FIRST_DAY:
                raise self._too_old(column)
            if days < FIRST_COMMON_DAY:
                days += day_shift(pa.array([days], pa.int32()))[0].as_py()
            wall = days * _DAY + second
            values[place] = (wall - self.reader.offset(wall)) * _SECOND_US + fraction
        return pa.array(values, pa.int64())

    def _too_old(self, column: str) -> DataError:
        return DataError(
            f"column {column!r} of {self.path} holds times before the year 1 of the Julian calendar",
            option="schema",
            advice="remove the column from the schema, or read the file with Spark's own ORC reader",
        )


def writer_zone(name: str) -> Zone | None:
    """Return the time zone that a stripe footer names; None without a name (old files); raise ValueError if unknown."""
    if not name:
        return None
    return UTC if name in _UTC_NAMES else zone(name)


@lru_cache(maxsize=64)
def raw_offset(where: Zone) -> int:
    """Return a zone's present standard offset in seconds. java.util.TimeZone uses it for times before 1900."""
    return min(_offset_at(where, _RECENT), _offset_at(where, _RECENT + _HALF_YEAR))


def same_rules(left: Zone, right: Zone) -> bool:
    """Return whether two zones have the same name or the same fixed offset, or both are UTC."""
    if left.fixed is not None or right.fixed is not None:
        return left.fixed == right.fixed or {left.name, right.name} <= _UTC_NAMES
    return left.name == right.name


def _offset_at(where: Zone, instant: int) -> int:
    """Return the offset of a zone at an instant, in seconds."""
    if where.region is None:
        return where.fixed or 0
    if instant > _LAST:
        instant -= -(-(instant - _LAST) // _400_YEARS) * _400_YEARS
    offset = dt.datetime.fromtimestamp(max(instant, _1900), where.region).utcoffset()
    return 0 if offset is None else int(offset.total_seconds())


def _offsets(instants: pa.Array, where: Zone) -> pa.Array:
    """Return the offsets of a zone at instants, in seconds, by java.util.TimeZone's rules."""
    if where.region is None:
        return pc.add(pc.multiply(instants, 0), where.fixed or 0)
    near = pc.and_(pc.greater_equal(instants, _1900), pc.less(instants, _FAR))
    moments = pc.if_else(near, instants, 0).cast(pa.timestamp("s", where.region.key))
    offsets = pc.subtract(pc.local_timestamp(moments).cast(pa.int64()), moments.cast(pa.int64()))
    if pc.all(near).as_py() is not False:
        return offsets
    # Arrow does not know the rules of zones for times after its tables.
    known = {
        instant: raw_offset(where) if instant < _1900 else _offset_at(where, instant)
        for instant in pc.unique(pc.filter(instants, pc.invert(near))).to_pylist()
        if instant is not None
    }
    others = [known.get(instant) for instant in instants.to_pylist()]
    return pc.if_else(near, offsets, pa.array(others, pa.int64()))


def _moved(seconds: pa.Array, writer: Zone, reader: Zone) -> pa.Array:
    """Return the instants at which the reader's clock shows the time that the writer's clock showed.

    As ORC's SerializationUtils does.
    """
    written = _offsets(seconds, writer)
    guess = pc.subtract(pc.add(seconds, written), _offsets(seconds, reader))
    return pc.subtract(pc.add(seconds, written), _offsets(guess, reader))


_WHOLE = frozenset({TypeKind.BOOLEAN, TypeKind.BYTE, TypeKind.SHORT, TypeKind.INT, TypeKind.LONG})
_FLOATS = frozenset({TypeKind.FLOAT, TypeKind.DOUBLE})
_TIMES = frozenset({TypeKind.TIMESTAMP, TypeKind.TIMESTAMP_INSTANT})
_INSTANT = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class PickedColumn:
    """The data to read for one column of the schema, and their conversion. `pick` is None if all values are null."""

    pick: Pick | None
    convert: Convert | None


@dataclass(frozen=True, slots=True)
class Converter:
    """Builds the conversions for the columns of one stripe."""

    path: str
    case_sensitive: bool
    times: Times

    def column(self, place: int, field: pa.Field, root: Node) -> PickedColumn:
        """Return the data to read for the column at `place` of the schema, and their conversion.

        As in Spark, columns are matched by position if all columns of the file are named `_col…`, as Hive names them.

        Raises:
            ConfigurationError: The types do not match, or two columns of the file have this name.
        """
        if root.names and all(name.startswith("_col") for name in root.names):
            node = root.children[place] if place < len(root.children) else None
        else:
            node = self._named(field.name, root, unique=True)
        if node is None:
            return PickedColumn(None, None)
        return self._picked(node, field.type, field.name)

    def _named(self, name: str, struct: Node, *, unique: bool = False) -> Node | None:
        key = folded(name, self.case_sensitive)
        places = [place for place, other in enumerate(struct.names) if folded(other, self.case_sensitive) == key]
        if len(places) > 1 and unique:
            raise ambiguous(name, [struct.names[place] for place in places], self.path)
        return struct.children[places[0]] if places else None

    def _picked(self, node: Node, target: pa.DataType, column: str) -> PickedColumn:
        if pa.types.is_null(target):
            return PickedColumn(None, None)
        match node.kind:
            case TypeKind.STRUCT if isinstance(target, pa.StructType):
                return self._struct(node, target, column)
            case TypeKind.LIST if isinstance(target, pa.ListType):
                item = self._part(node.children[0], target.value_type, f"{column}.element")
                return PickedColumn(Pick(node, node.kind, (_pick(item),)), _list_of(item.convert, target))
            case TypeKind.MAP if isinstance(target, pa.MapType):
                key = self._part(node.children[0], target.key_type, f"{column}.key")
                value = self._part(node.children[1], target.item_type, f"{column}.value")
                # Read as a list of entries: a map with a null key, as in a damaged file, makes Arrow end the process.
                entries = Pick(node, TypeKind.STRUCT, (_pick(key), _pick(value)), ())
                return PickedColumn(Pick(node, TypeKind.LIST, (entries,)), _map_of(key.convert, value.convert, target))
            case kind if kind in _TIMES:
                return self._timestamp(node, target, column)
        return PickedColumn(_leaf(node), self._value(node, target, column))

    def _part(self, node: Node, target: pa.DataType, column: str) -> PickedColumn:
        """Return the data to read for a list element, map key or map value. If all are null, only count them."""
        item = self._picked(node, target, column)
        if item.pick is None:
            return PickedColumn(Pick(node, TypeKind.STRUCT, (), ()), lambda array: pa.nulls(len(array), target))
        return item

    def _struct(self, node: Node, target: pa.StructType, column: str) -> PickedColumn:
        children: list[tuple[int | None, Convert | None]] = []
        picks: list[Pick] = []
        for field in target:
            child = self._named(field.name, node)
            inside = PickedColumn(None, None)
            if child is not None:
                inside = self._picked(child, field.type, f"{column}.{field.name}")
            children.append((None if inside.pick is None else len(picks), inside.convert))
            if inside.pick is not None:
                picks.append(inside.pick)
        return PickedColumn(Pick(node, node.kind, tuple(picks)), struct_of(children, target))

    def _timestamp(self, node: Node, target: pa.DataType, column: str) -> PickedColumn:
        if target != _INSTANT:
            raise self._mismatch(node, target, column)
        seconds = Pick(node, TypeKind.LONG, (), ((StreamKind.DATA, StreamKind.DATA),))
        nanos = Pick(node, TypeKind.TIMESTAMP_INSTANT, (), ((StreamKind.SECONDARY, StreamKind.SECONDARY),), zeros=True)
        pick = Pick(node, TypeKind.STRUCT, (seconds, nanos), ((StreamKind.PRESENT, StreamKind.PRESENT),))
        local = node.kind is TypeKind.TIMESTAMP
        return PickedColumn(pick, lambda array: self.times.timestamps(array, column, local=local))

    def _value(self, node: Node, target: pa.DataType, column: str) -> Convert | None:
        """Return the conversion of a primitive column that is not a timestamp."""
        types = pa.types
        kind = node.kind
        if kind is TypeKind.DATE and types.is_date32(target):
            return lambda array: self.times.dates(array, column)
        if kind is TypeKind.DECIMAL:
            stored: pa.DataType = pa.decimal128(node.precision, node.scale)
            if isinstance(target, pa.Decimal128Type):
                return check_precision if stored == target else lambda array: rescaled(check_precision(array), target)
            if types.is_floating(target):
                return lambda array: check_precision(array).cast(pa.float64()).cast(target)
        elif kind in TEXTS and (types.is_string(target) or types.is_binary(target)):
            return _text(node) if types.is_string(target) else lambda array: array.view(target)
        elif kind in _WHOLE or kind in _FLOATS:
            conversion = _of_number(kind, target)
            if conversion is not None:
                return conversion if TYPES[kind] != target else None
        elif kind is TypeKind.BINARY and types.is_binary(target):
            return None
        raise self._mismatch(node, target, column)

    def _mismatch(self, node: Node, target: pa.DataType, column: str) -> ConfigurationError:
        return ConfigurationError(
            f"column {column!r} is {node} in {self.path} and cannot be read as {target}",
            advice="in the schema, give the column the type of the file and cast it in the query, or remove it",
        )


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


def _leaf(node: Node) -> Pick:
    return Pick(node, TypeKind.STRING if node.kind in TEXTS else node.kind)


def _pick(column: PickedColumn) -> Pick:
    return cast("Pick", column.pick)


def _text(node: Node) -> Convert:
    """Return the conversion of texts to UTF-8. It cuts CHAR and VARCHAR to their length, and removes CHAR's padding."""
    if node.kind is TypeKind.STRING:
        return _valid

    def cut(array: pa.Array) -> pa.Array:
        array = _valid(array)
        if (pc.max(pc.binary_length(array)).as_py() or 0) > node.length:
            array = pc.utf8_slice_codeunits(array, 0, node.length)
        return pc.ascii_rtrim(array, " ") if node.kind is TypeKind.CHAR else array

    return cut


def _valid(array: pa.Array) -> pa.Array:
    """Return the texts with U+FFFD in place of bytes that are not UTF-8."""
    raw = array.view(pa.binary())
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return with_valid_utf8(raw)[0].cast(pa.string())


def _list_of(inside: Convert | None, target: pa.ListType) -> Convert:
    def convert(array: pa.Array) -> pa.Array:
        lists = cast("pa.ListArray", array)
        values = lists.values if inside is None else inside(lists.values)
        return pa.Array.from_buffers(target, len(lists), lists.buffers()[:2], lists.null_count, lists.offset, [values])

    return convert


def _map_of(key: Convert | None, item: Convert | None, target: pa.MapType) -> Convert:
    fields = [target.key_field, target.item_field]

    def convert(array: pa.Array) -> pa.Array:
        lists = cast("pa.ListArray", array)
        values = cast("pa.StructArray", lists.values)
        keys, items = values.field(0), values.field(1)
        if keys.null_count:
            raise Malformed("a map has a null key")
        keys = keys if key is None else key(keys)
        if keys.null_count:
            raise pa.ArrowInvalid("a key of a map does not fit")
        entries = pa.StructArray.from_arrays([keys, items if item is None else item(items)], fields=fields)
        return pa.Array.from_buffers(target, len(lists), lists.buffers()[:2], lists.null_count, lists.offset, [entries])

    return convert


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


def check_precision(array: pa.Array) -> pa.Array:
    """Return the decimals unchanged.

    Raises:
        Malformed: A decimal has more digits than its type allows.
    """
    if exceeds_precision(array):
        raise Malformed(f"a decimal does not fit into {array.type}")
    return array


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
