# SPDX-License-Identifier: Apache-2.0
"""Checks the columns that stateful functions read, and builds the expressions by which the JVM hashes them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every user of PySpark writes it
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType, VariantType

from forebay.errors import ConfigurationError
from forebay.table.changelog.shape import CHANGE_TYPE, CHANGE_TYPES, COLUMNS, COMMIT_VERSION, POSITION, SEQUENCE
from forebay.table.changelog.state.segments import PREFIX

# -- Runs a function on the record batches of a DataFrame, also if column names have dots or backticks.


BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True)
class _Named:
    """Restores the column names of record batches before `function` gets them. Spark pickles it to the workers."""

    function: BatchFunction
    names: Sequence[str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self.function(batch.rename_columns(self.names) for batch in batches)


def map_in_arrow(df: DataFrame, function: BatchFunction, schema: StructType) -> DataFrame:
    """Run `df.mapInArrow(function, schema)`. Unlike Spark's method, it accepts column names with dots or backticks."""
    names = df.columns
    if not any(mark in name for name in names for mark in ".`"):
        return df.mapInArrow(function, schema)
    numbered = df.toDF(*(f"c{place}" for place in range(len(names))))
    return numbered.mapInArrow(_Named(function, names), schema)


EXACT_JSON: Final = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",  # Spark's pattern: XXX is the offset of the zone
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options with which `to_json` loses nothing: it keeps NULL fields, and the microseconds of times."""

ORDERED_WITHIN: Final = "forebay.ordered_within"
"""Metadata entry of a `_commit_version` that holds micro-batch ids: the key whose changes it orders; [] for a join.

The column does not order the changes of other keys: the delete of a row may come in a later micro-batch than the insert
of the row that replaces it.
"""


def payload_fields(df: DataFrame) -> list[StructField]:
    """Return the payload columns of a DataFrame: all except the changelog's own, such as `_change_type`.

    Raises:
        ConfigurationError: A name begins with `__forebay_`, or differs from `_change_type` or `_commit_version` only
            in upper and lower case.
    """
    # Spark does not distinguish upper and lower case in names.
    alike = [name for name in df.columns if name.lower() in (CHANGE_TYPE, COMMIT_VERSION)]
    own = [name for name in alike if name not in COLUMNS]
    own += [name for name in df.columns if name.lower().startswith(PREFIX)]
    if own:
        raise ConfigurationError(f"the column {own[0]!r} has a reserved name", advice="rename the column first")
    return [field for field in df.schema if field.name not in COLUMNS]


def key_names(df: DataFrame, key: str | Sequence[str], option: str = "key") -> tuple[str, ...]:
    """Return the names of key columns as the DataFrame spells them.

    Raises:
        ConfigurationError: A column does not exist, is given twice, or has a type without equality.
    """
    names = [key] if isinstance(key, str) else list(key)
    if not names:
        raise ConfigurationError("the key has no column", option=option, advice='give columns, such as key=["id"]')
    columns = tuple(_column(df, name, option).name for name in names)
    if len(set(columns)) < len(columns):
        raise ConfigurationError(
            f"the key {columns} names a column twice", option=option, advice="name each column once"
        )
    check_comparable([df.schema[name] for name in columns], option)
    return columns


def check_comparable(fields: Iterable[StructField], option: str) -> None:
    """Check that Spark can compare the values of all columns.

    Raises:
        ConfigurationError: A column is a map, a variant or a string with a collation, or contains one.
    """
    for field in fields:
        if reason := _incomparable(field.dataType):
            raise ConfigurationError(
                f"the column {field.name!r} has {reason}, which cannot be compared",
                option=option,
                advice="convert it first (a map by map_entries, a variant by to_json, a collated string by collate to "
                "UTF8_BINARY), or drop the column",
            )


def comparable_names(fields: Iterable[StructField]) -> tuple[str, ...]:
    """Return the names of the columns that Spark can compare, and so hash."""
    return tuple(field.name for field in fields if _incomparable(field.dataType) is None)


def _incomparable(kind: DataType) -> str | None:
    if isinstance(kind, MapType):
        return "a map"
    if isinstance(kind, VariantType):
        return "a variant"
    if isinstance(kind, StringType) and kind.collation != "UTF8_BINARY":
        return f"the collation {kind.collation}"
    if isinstance(kind, ArrayType):
        return _incomparable(kind.elementType)
    if isinstance(kind, StructType):
        return next((inner for field in kind if (inner := _incomparable(field.dataType))), None)
    return None


def _column(df: DataFrame, name: str, option: str) -> StructField:
    exact = [field for field in df.schema if field.name == name]
    alike = exact or [field for field in df.schema if field.name.lower() == name.lower()]
    if len(alike) != 1:
        problem = "does not exist" if not alike else "is ambiguous"
        raise ConfigurationError(
            f"the column {name!r} {problem}", option=option, advice=f"give one of {', '.join(df.columns)}"
        )
    return alike[0]


def sequence_columns(df: DataFrame, sequence_by: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns of `sequence_by` as the DataFrame spells them; () for None.

    Raises:
        ConfigurationError: A column does not exist or has no order.
    """
    names = [sequence_by] if isinstance(sequence_by, str) else list(sequence_by or ())
    fields = [_column(df, name, "sequence_by") for name in names]
    nested = [field.name for field in fields if isinstance(field.dataType, (ArrayType, MapType, StructType))]
    if nested:
        raise ConfigurationError(
            f"the column {nested[0]!r} is nested, and has no order",
            option="sequence_by",
            advice="select its fields as columns, and name these",
        )
    check_comparable(fields, "sequence_by")
    return tuple(field.name for field in fields)


def preference(df: DataFrame) -> tuple[tuple[str, ...], bool]:
    """Return the columns that choose one of several live rows of a key, and whether the micro-batch decides first.

    None of these rows is wrong, so the order need not be that of the source: `_sequence`, else `_commit_version`, else
    the micro-batch and `_pos`.
    """
    for name in (SEQUENCE, COMMIT_VERSION):
        if name in df.columns:
            return (name,), False
    return ((POSITION,) if POSITION in df.columns else ()), True


def quoted(name: str) -> Column:
    """Return the column with exactly this name, even if the name has dots or backticks."""
    return F.col(f"`{name.replace('`', '``')}`")


def all_set(names: Iterable[str]) -> Column:
    """Return a boolean expression: none of the columns is NULL. Unlike in `DataFrame.dropna`, NaN is a value."""
    return reduce(and_, (quoted(name).isNotNull() for name in names))


def hash_of(names: Sequence[str]) -> Column:
    """Return an expression for a 64-bit hash of the columns. The order of `names` does not matter.

    `xxhash64` skips NULL, so the name of each column that is not NULL is hashed too. A new column that is NULL does not
    change the hash, so rows match those that were stored before the column was added.
    """
    parts: list[Column] = []
    for name in sorted(names):
        column = quoted(name)
        parts += [F.when(column.isNotNull(), F.lit(zlib.crc32(name.encode()))), column]
    return F.xxhash64(*parts)


def kind_column(df: DataFrame) -> Column:
    """Return an expression for the `RowKind` of each row: -1 for an unknown word, INSERT without `_change_type`."""
    if CHANGE_TYPE not in df.columns:
        return F.lit(0).cast("byte")
    word = quoted(CHANGE_TYPE)
    cases = F.when(word == F.lit(CHANGE_TYPES[0]), F.lit(0))
    for kind, text in enumerate(CHANGE_TYPES[1:], 1):
        cases = cases.when(word == F.lit(text), F.lit(kind))
    return cases.otherwise(F.lit(-1)).cast("byte")
