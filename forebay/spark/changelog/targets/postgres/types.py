# SPDX-License-Identifier: Apache-2.0
"""Maps Spark types to PostgreSQL types, and converts values to the form that COPY reads."""

from __future__ import annotations

from typing import Final

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


def fits(field: StructField, found: str) -> bool:
    """Return whether a PostgreSQL column of type `found`, as `format_type` prints it, holds every value of a field."""
    wanted = postgres_type(field)
    if wanted == found:
        return True
    base, _, modifier = found.partition("(")
    if isinstance(field.dataType, DecimalType):
        if base != "numeric" or not modifier:
            return found == "numeric"
        precision, scale = (int(part) for part in modifier.rstrip(")").split(","))
        return scale >= field.dataType.scale and precision - scale >= field.dataType.precision - field.dataType.scale
    return base in _WIDER.get(wanted, set()) and (base != "numeric" or not modifier)


def copied(column: Column, kind: DataType) -> Column:
    """Return a column in the form that COPY reads: types that Arrow's CSV writer cannot write become text."""
    if isinstance(kind, BinaryType):
        return F.concat(F.lit("\\x"), F.hex(column))
    if isinstance(kind, DecimalType):
        return column.cast("string")
    if isinstance(kind, VariantType):
        return F.to_json(column)
    if isinstance(kind, _NESTED):
        return F.to_json(column, EXACT_JSON)
    return column
