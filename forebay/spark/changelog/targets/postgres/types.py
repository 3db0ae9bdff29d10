# SPDX-License-Identifier: Apache-2.0
"""Maps Spark types to PostgreSQL types, and converts values to the form that COPY reads."""

from __future__ import annotations

from typing import Final, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as every user of PySpark writes it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from forebay.errors import ConfigurationError
from forebay.spark.changelog.columns import EXACT_JSON

_TYPES: Final[dict[type[DataType], str]] = {
    BooleanType: "boolean",
    ByteType: "smallint",
    ShortType: "smallint",
    IntegerType: "integer",
    LongType: "bigint",
    FloatType: "real",
    DoubleType: "double precision",
    StringType: "text",
    BinaryType: "bytea",
    DateType: "date",
    TimestampType: "timestamp with time zone",
    TimestampNTZType: "timestamp without time zone",
    ArrayType: "jsonb",
    MapType: "jsonb",
    StructType: "jsonb",
    VariantType: "jsonb",
}
_WIDER: Final = {
    "smallint": {"integer", "bigint", "numeric"},
    "integer": {"bigint", "numeric"},
    "bigint": {"numeric"},
    "real": {"double precision"},
    "text": {"character varying"},
    "jsonb": {"json"},
}
_NESTED: Final = (ArrayType, MapType, StructType, VariantType)
_READ_FROM_TEXT: Final = {"uuid", "json", "jsonb", "inet", "cidr", "macaddr", "macaddr8", "interval", "citext"}
"""Types whose values PostgreSQL reads from a string. Enums and arrays are others."""
_ELEMENTS: Final = (
    *(BooleanType, ByteType, ShortType, IntegerType, LongType),
    FloatType,
    DoubleType,
    DecimalType,
    StringType,
)
"""Types of elements that can be stored in an array of PostgreSQL; arrays of others become jsonb."""


class TableColumn(NamedTuple):
    """The type of a column of the target.

    Args:
        kind: The type as `format_type` prints it.
        is_enum: Whether it is an enum.
        element: The type of the elements of an array; None for other types.
        collation: Its quoted name, if it is not the default of the database.
    """

    kind: str
    is_enum: bool = False
    element: TableColumn | None = None
    collation: str | None = None

    @property
    def definition(self) -> str:
        """The type as a definition of a column has it."""
        return f"{self.kind} COLLATE {self.collation}" if self.collation else self.kind


def postgres_type(field: StructField) -> str:
    """Return the PostgreSQL type that holds every value of a Spark field.

    Raises:
        ConfigurationError: PostgreSQL has no such type.
    """
    kind = field.dataType
    if isinstance(kind, DecimalType):
        return f"numeric({kind.precision},{kind.scale})"
    for spark, name in _TYPES.items():
        if isinstance(kind, spark):
            return name
    raise ConfigurationError(
        f"the column {field.name!r} is {kind.simpleString()}, which PostgreSQL has no type for",
        advice="cast it to a string or a number first, or name it in except_column_list",
    )


def fits(field: StructField, column: TableColumn) -> bool:
    """Return whether a column of PostgreSQL takes a field: it holds every value, or reads the strings that it accepts.

    PostgreSQL checks strings for enums, arrays and types such as `uuid` when they are copied.
    """
    wanted, kind = postgres_type(field), field.dataType
    if wanted == column.kind:
        return True
    if isinstance(kind, StringType) and (column.is_enum or column.element or column.kind in _READ_FROM_TEXT):
        return True
    if isinstance(kind, ArrayType) and column.element:
        element = StructField(field.name, kind.elementType)
        return isinstance(kind.elementType, _ELEMENTS) and fits(element, column.element)
    base, _, modifier = column.kind.partition("(")
    if isinstance(kind, DecimalType):
        if base != "numeric" or not modifier:
            return column.kind == "numeric"
        precision, scale = (int(part) for part in modifier.rstrip(")").split(","))
        return scale >= kind.scale and precision - scale >= kind.precision - kind.scale
    return base in _WIDER.get(wanted, set()) and (base != "numeric" or not modifier)


def copied(column: Column, kind: DataType, *, to_array: bool = False) -> Column:
    """Return a column in the form that COPY reads: types that Arrow's CSV writer cannot write become text.

    `to_array`: the column of the table is an array of PostgreSQL, not jsonb.
    """
    if isinstance(kind, BinaryType):
        return F.concat(F.lit("\\x"), F.hex(column))
    if isinstance(kind, DecimalType):
        return column.cast("string")
    if isinstance(kind, VariantType):
        return F.to_json(column)
    if isinstance(kind, ArrayType) and to_array:
        return F.concat(F.lit("{"), F.array_join(F.transform(column, _element), ","), F.lit("}"))
    if isinstance(kind, _NESTED):
        return F.to_json(column, EXACT_JSON)
    return column


def _element(value: Column) -> Column:
    text = F.regexp_replace(value.cast("string"), r'(["\\])', r"\\$1")
    return F.when(value.isNull(), F.lit("NULL")).otherwise(F.concat(F.lit('"'), text, F.lit('"')))
