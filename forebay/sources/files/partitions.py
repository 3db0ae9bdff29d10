# SPDX-License-Identifier: Apache-2.0
"""Discovers the columns of Hive-style partition directories (`year=2024/month=1`) as Spark 4.2 does."""

from __future__ import annotations

import decimal
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.bound_filters import bind, mask
from forebay.formats.filters import (
    ANY,
    Compare,
    Constant,
    DateLiteral,
    Expression,
    IsNull,
    Leaf,
    Outcomes,
    may_be_true,
    parse_filter,
    range_outcomes,
)
from forebay.formats.values.dates import (
    Zone,
    parse_date,
    parse_time,
    parse_timestamp,
    parse_timestamp_ntz,
    session_zone,
)
from forebay.formats.values.numbers import parse_bool, parse_double, parse_int
from forebay.stores.paths import last_name, parent

# -- Infers types and converts values of Hive-style directory names (`year=2024`), as Spark 4.2 does.


NULL_NAME = "__HIVE_DEFAULT_PARTITION__"

_STRING = pa.string()
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_TIME = pa.time64("us")
_INTEGRAL_DIGITS = {pa.int32(): 10, pa.int64(): 20}

# Java's parser of decimals accepts the digits of every script in the basic multilingual plane of Unicode.
_DECIMAL = re.compile(r"[+-]?(?:(\d+)\.?(\d*)|\.(\d+))(?:[eE]([+-]?\d{1,10}))?")
_YEAR = r"(?:-?\d{4}|[+-]\d{5,7})"
_DATE_PATTERN = re.compile(rf"{_YEAR}-\d\d-\d\d", re.ASCII)
_TIMESTAMP_PATTERN = re.compile(rf"{_YEAR}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d)?", re.ASCII)
_TIME_PATTERN = re.compile(r"\d\d:\d\d:\d\d(?:\.\d{1,6})?", re.ASCII)
_ESCAPED = re.compile(r"%([0-9a-fA-F]{2})")


def unescape(text: str) -> str:
    """Replace the escapes of a Hive directory name: `%2F` is `/`. An escape is a character, not a byte of UTF-8."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)


def infer_type(raw: str, zone: Zone) -> pa.DataType:
    """Return the Arrow type that Spark infers from a partition value; the type null for the default partition.

    `raw` is the value as in the directory name, with escapes.
    """
    if parse_int(raw, 64) is not None:
        return pa.int64() if parse_int(raw, 32) is None else pa.int32()
    precision = _whole_decimal_precision(raw)
    if precision is not None and precision <= 38:
        return pa.decimal128(precision, 0)
    if parse_double(raw) is not None:
        return pa.float64()
    text = unescape(raw)
    if _TIMESTAMP_PATTERN.fullmatch(text) and parse_timestamp(text, zone) is not None:
        return _TIMESTAMP
    if _DATE_PATTERN.fullmatch(raw) and parse_date(raw) is not None:
        return pa.date32()
    if _TIME_PATTERN.fullmatch(text) and parse_time(text) is not None:
        return _TIME
    return pa.null() if raw == NULL_NAME else _STRING


def common_type(types: Iterable[pa.DataType]) -> pa.DataType:
    """Return the type that Spark chooses for a partition column whose values have these types; string if none fits."""
    return reduce(_wider, types, pa.null())


def partition_value(raw: str, type_: pa.DataType, zone: Zone, column: str = "") -> pa.Scalar:
    """Convert a raw directory value to the type of its column.

    Args:
        raw: The text after `=`, escaped.
        type_: The type of the column, inferred or given by the user.
        zone: The session time zone.
        column: The name of the column, for the error.

    Raises:
        ConfigurationError: The text is not a value of the type.
    """
    if raw == NULL_NAME or pa.types.is_null(type_):
        return pa.scalar(None, type_)
    for matches, convert in _CONVERTERS:
        if matches(type_):
            try:
                value = convert(raw, type_, zone)
                if value is not None:
                    return pa.scalar(value, type_)
            except (pa.ArrowException, OverflowError, ValueError):
                pass
            raise ConfigurationError(
                f"the directory value {raw!r} of partition column {column!r} does not fit the type {type_}",
                advice="correct the directory name, or declare the column as string in the schema",
            )
    raise ConfigurationError(
        f"partition column {column!r} cannot be of type {type_}",
        advice="declare it as a number, boolean, string, binary, date, time or timestamp type",
    )


def _whole_decimal_precision(raw: str) -> int | None:
    """Return the number of digits of a whole decimal number (`1e3` has 4); None for all other texts."""
    match = _DECIMAL.fullmatch(raw)
    if not match or not _in_basic_plane(raw):
        return None
    whole, fraction, only_fraction, exponent = match.groups()
    fraction = only_fraction or fraction or ""
    scale = len(fraction) - int(exponent or 0)
    if scale > 0:
        return None
    digits = "".join(str(int(char)) for char in (whole or "") + fraction).lstrip("0")
    return max(len(digits), 1) - scale


def _in_basic_plane(text: str) -> bool:
    return text.isascii() or max(text) <= "\uffff"


def _wider(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    pair = {left, right}
    if pair == {pa.int32(), pa.int64()}:
        return pa.int64()
    if pair == {pa.int32(), pa.float64()}:
        return pa.float64()
    if pair == {pa.date32(), _TIMESTAMP}:
        return _TIMESTAMP
    precisions = [_precision(item) for item in pair]
    if None not in precisions:
        return pa.decimal128(max(number for number in precisions if number is not None), 0)
    return _STRING


def _precision(type_: pa.DataType) -> int | None:
    return type_.precision if isinstance(type_, pa.Decimal128Type) else _INTEGRAL_DIGITS.get(type_)


def _to_decimal(raw: str, *_: object) -> object:
    if not _DECIMAL.fullmatch(raw) or not _in_basic_plane(raw):
        return None
    with decimal.localcontext(prec=100):
        return decimal.Decimal(raw)


def _to_timestamp(raw: str, type_: pa.DataType, zone: Zone) -> object:
    aware = isinstance(type_, pa.TimestampType) and type_.tz is not None
    text = unescape(raw)
    micros = parse_timestamp(text, zone, time_alone=False) if aware else parse_timestamp_ntz(text, allow_zone=True)
    return None if micros is None else pa.scalar(micros, pa.timestamp("us", tz="UTC" if aware else None)).cast(type_)


def _to_time(raw: str, type_: pa.DataType, _zone: Zone) -> object:
    micros = parse_time(unescape(raw))
    return None if micros is None else pa.scalar(micros, _TIME).cast(type_)


_Converter = Callable[[str, pa.DataType, Zone], object]

_CONVERTERS: tuple[tuple[Callable[[pa.DataType], bool], _Converter], ...] = (
    (lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind), lambda raw, *_: unescape(raw)),
    (pa.types.is_integer, lambda raw, *_: parse_int(raw, 65)),  # up to uint64
    (pa.types.is_decimal, _to_decimal),
    (pa.types.is_floating, lambda raw, *_: parse_double(raw)),
    (pa.types.is_boolean, lambda raw, *_: parse_bool(raw)),
    (pa.types.is_date32, lambda raw, *_: parse_date(raw)),
    (pa.types.is_timestamp, _to_timestamp),
    (pa.types.is_time, _to_time),
    (lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind), lambda raw, *_: raw.encode()),
)


# -- Discovers the columns of Hive-style partition directories (`year=2024/month=1`) as Spark 4.2 does.


_NO_TYPES: Mapping[str, pa.DataType] = {}


@dataclass(frozen=True)
class Partitioning:
    """The partition columns of a set of directories.

    Attributes:
        schema: The columns, outermost first, all nullable.
        texts: For each partitioned directory, the raw values of its path, in the order of the columns.
        values: The same values as Arrow scalars.
    """

    schema: pa.Schema
    texts: Mapping[str, tuple[str, ...]]
    values: Mapping[str, tuple[pa.Scalar, ...]]


def partitions(
    directories: Iterable[str],
    base_paths: Iterable[str],
    *,
    type_inference: bool = True,
    timezone: str = "UTC",
    types: Mapping[str, pa.DataType] = _NO_TYPES,
) -> Partitioning:
    """Find the partition columns of the directories that hold data files.

    Args:
        directories: Every directory that directly holds a data file, as plain paths or URLs.
        base_paths: The user's paths, or `basePath`: the search for `name=value` goes up from each directory to these.
        type_inference: Whether to infer types. If False, all columns without a type in `types` are strings.
        timezone: The session time zone.
        types: Types by column name, from the user's schema.

    Raises:
        ConfigurationError: The directories have different partition columns, or a value does not fit the user's type.
    """
    pairs_by_directory = _pairs_by_directory(directories, frozenset(base_paths))
    if not pairs_by_directory:
        return Partitioning(pa.schema([]), {}, {})
    declared = {name.lower(): pa.field(name, type_) for name, type_ in types.items()}
    texts = {directory: tuple(raw for _, raw in pairs) for directory, pairs in pairs_by_directory.items()}
    zone = session_zone(timezone)
    fields = []
    scalars: list[dict[str, pa.Scalar]] = []
    for name, raws in zip(_names(pairs_by_directory), map(set, zip(*texts.values(), strict=True)), strict=True):
        field = declared.get(name.lower()) or _inferred(name, raws, zone if type_inference else None)
        fields.append(field)
        scalars.append({raw: partition_value(raw, field.type, zone, field.name) for raw in raws})
    values = {
        directory: tuple(column[raw] for column, raw in zip(scalars, raws, strict=True))
        for directory, raws in texts.items()
    }
    return Partitioning(pa.schema(fields), texts, values)


def merge_schema(data: pa.Schema, partition: pa.Schema) -> pa.Schema:
    """Return the schema of a table: data columns, then partition columns. A column in both keeps its place.

    As in Spark, a column in both has the type and the values of the partition column.
    """
    own = {field.name.lower(): field for field in partition}
    merged = [own.pop(field.name.lower(), field) for field in data]
    return pa.schema([*merged, *own.values()], metadata=data.metadata)


def _pairs_by_directory(directories: Iterable[str], bases: frozenset[str]) -> dict[str, list[tuple[str, str]]]:
    """Return the pairs of column name and raw value for each partitioned directory.

    Raises:
        ConfigurationError: The directories belong to tables with different root directories.
    """
    pairs_by_directory: dict[str, list[tuple[str, str]]] = {}
    tops: set[str] = set()
    for directory in sorted(set(directories)):
        pairs, top = _pairs_of(directory, bases)
        if top is not None:
            tops.add(top.lower())
        if pairs:
            pairs_by_directory[directory] = pairs
    if pairs_by_directory and len(tops) > 1:
        raise _conflicting_tops(tops)
    return pairs_by_directory


def _pairs_of(directory: str, bases: frozenset[str]) -> tuple[list[tuple[str, str]], str | None]:
    """Return the pairs of column name and raw value of a directory, outermost first.

    Also return the directory where the search ended.
    """
    pairs: list[tuple[str, str]] = []
    current = directory
    while True:
        name = last_name(current)
        if name.lower() == "_temporary":
            return [], None
        if current in bases:
            break
        pair = _pair(name)
        if pair is not None:
            pairs.append(pair)
        above = parent(current)
        if (pair is None and pairs) or above == current:
            break
        current = above
    return (pairs[::-1], current) if pairs else ([], directory)


def _pair(name: str) -> tuple[str, str] | None:
    column, equals, raw = name.partition("=")
    if not equals:
        return None
    for part, what in ((column, "column name before"), (raw, "value after")):
        if not part:
            raise ConfigurationError(
                f"found an empty partition {what} '=' in the directory name {name!r}",
                option="path",
                advice=f"rename the directory (a missing value is written {NULL_NAME}), or set "
                "recursiveFileLookup=true to read without partition columns",
            )
    return unescape(column), raw


def _names(pairs_by_directory: Mapping[str, Sequence[tuple[str, str]]]) -> list[str]:
    """Return the names of the partition columns.

    Raises:
        ConfigurationError: The directories have different names, or a name appears twice in a path.
    """
    lists: dict[tuple[str, ...], tuple[list[str], list[str]]] = {}
    for directory, pairs in pairs_by_directory.items():
        names = [name for name, _ in pairs]
        key = tuple(name.lower() for name in names)
        lists.setdefault(key, (names, []))[1].append(directory)
    if len(lists) > 1:
        raise _conflicting_names(list(lists.values()))
    (key, (names, directories)), *_ = lists.items()
    for number, name in enumerate(key):
        if name in key[:number]:
            raise ConfigurationError(
                f"the partition column {name!r} appears twice in {directories[0]!r}",
                option="path",
                advice="rename one of the directories, or set recursiveFileLookup=true to read without partition "
                "columns",
            )
    return names


def _inferred(name: str, raws: Iterable[str], zone: Zone | None) -> pa.Field:
    if zone is None:
        return pa.field(name, common_type(pa.null() if raw == NULL_NAME else pa.string() for raw in raws))
    return pa.field(name, common_type(infer_type(raw, zone) for raw in sorted(raws)))


def _conflicting_tops(tops: Iterable[str]) -> ConfigurationError:
    listed = "".join(f"\n\t{_line(top)}" for top in sorted(tops))
    return ConfigurationError(
        f"Conflicting directory structures detected. Suspicious paths:{listed}",
        option="path",
        advice="if the paths are partition directories, set basePath to the root directory of the table; if there "
        "are several tables, read them one by one and union them; recursiveFileLookup=true reads all files without "
        "partition columns",
    )


def _conflicting_names(lists: Sequence[tuple[list[str], list[str]]]) -> ConfigurationError:
    columns = "".join(
        f"\n\tPartition column name list #{at}: {', '.join(names)}" for at, (names, _) in enumerate(lists)
    )
    shortest_first = sorted(lists, key=lambda item: len(item[0]))
    suspects = "".join(f"\n\t{_line(directory)}" for _, directories in shortest_first for directory in directories)
    return ConfigurationError(
        f"Conflicting partition column names detected:{columns}\n"
        f"Please check these directories for unexpected files or inconsistent partition column names:{suspects}",
        option="path",
        advice="keep data files in leaf directories only, with the same column name on the same level; "
        "recursiveFileLookup=true reads all files without partition columns",
    )


def _line(text: str) -> str:
    """Escape line breaks in a path, because `unwrap` parses the text of an error line by line."""
    return text.replace("\r", "\\r").replace("\n", "\\n")


# -- Applies `partitionFilter` first to directories during a listing, then to files by their partition values.


_log = logging.getLogger(__name__)

_OPTION: Final = "partitionFilter"
_NUMERIC_START = frozenset("+-.0123456789")


class PartitionPruning:
    """The partition filter of one listing. Used on one thread.

    Args:
        text: The option `partitionFilter`.

    Attributes:
        skipped: The number of directories that were not listed.
    """

    def __init__(self, text: str) -> None:
        self._expression = parse_filter(text, _OPTION)
        self.skipped = 0

    def keeps(self, root: str, directory: str) -> bool:
        """Return whether a directory below `root` may hold matching rows.

        Only the names of the directories decide, because the types of the partition columns are not known yet.
        """
        values: dict[str, str] = {}
        for name in directory[len(root) :].split("/"):
            column, equals, raw = name.partition("=")
            if equals:
                values[unescape(column).lower()] = raw
        kept = may_be_true(self._expression, lambda leaf: _outcomes(leaf, values.get(leaf.column.lower())))
        self.skipped += not kept
        return kept

    def matching(self, partitioning: Partitioning, zone: str) -> frozenset[str]:
        """Return the partitioned directories whose values match the filter, compared by the types of the columns.

        Raises:
            ConfigurationError: A column of the filter is no partition column, or a literal does not fit its type.
        """
        folders = list(partitioning.values)
        if not folders:
            return frozenset()
        bound: Expression = bind(self._expression, partitioning.schema, session_zone(zone), _OPTION)
        columns = [
            pa.array([partitioning.values[folder][number].as_py() for folder in folders], field.type)
            for number, field in enumerate(partitioning.schema)
        ]
        matches = mask(pa.RecordBatch.from_arrays(columns, schema=partitioning.schema), bound)
        return frozenset(folder for folder, matched in zip(folders, matches.to_pylist(), strict=True) if matched)

    def report(self, files: int) -> None:
        """Log how many files the filter excluded, and how many directories were not listed.

        Args:
            files: The number of listed files that do not match.
        """
        _log.info("%s excluded %d listed files, and %d directories were not listed", _OPTION, files, self.skipped)


def _outcomes(leaf: Leaf, raw: str | None) -> Outcomes:
    """Return the possible outcomes of a comparison for a raw partition value; None = the directory has no value yet.

    The column's type is inferred from all directories later. So a value that could be a number or a time decides only a
    comparison with a literal of the same kind.
    """
    if raw is None:
        return ANY
    null = raw == NULL_NAME
    if isinstance(leaf, IsNull):
        return frozenset({null})
    if null:
        return frozenset({None})
    if isinstance(leaf, Constant):
        return frozenset({leaf.outcome})
    return _compared(leaf, unescape(raw))


def _compared(leaf: Compare, text: str) -> Outcomes:
    literal = leaf.literal
    if isinstance(literal, str):
        return ANY if text[:1] in _NUMERIC_START else range_outcomes(leaf, text, text)
    if isinstance(literal, decimal.Decimal):
        try:
            value = decimal.Decimal(text)
        except decimal.InvalidOperation:
            return ANY
        return range_outcomes(leaf, value, value) if value.is_finite() else ANY
    if isinstance(literal, DateLiteral):
        days, literal_days = parse_date(text), parse_date(literal.text)
        if days is None or literal_days is None or len(text) != len("yyyy-MM-dd"):
            return ANY
        return range_outcomes(Compare(leaf.column, leaf.operator, literal_days), days, days)
    return ANY
