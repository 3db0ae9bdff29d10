# SPDX-License-Identifier: Apache-2.0
"""Converts the schema and key of a DataFrame to the schema JSON of Foundry, and back (K21–K23)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import types as spark_types
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructField, StructType

from forebay.errors import ConfigurationError
from forebay.spark.keys.found_keys import keys_of
from forebay.spark.keys.set_keys import set_key, strip_keys
from forebay.table.keys.foundry import custom_metadata_json, key_of_json, primary_key_json
from forebay.table.keys.key_spec import KeySpec

_NAMES: Final[dict[type[DataType], str]] = {
    spark_types.BooleanType: "BOOLEAN",
    spark_types.ByteType: "BYTE",
    spark_types.ShortType: "SHORT",
    spark_types.IntegerType: "INTEGER",
    spark_types.LongType: "LONG",
    spark_types.FloatType: "FLOAT",
    spark_types.DoubleType: "DOUBLE",
    spark_types.StringType: "STRING",
    spark_types.BinaryType: "BINARY",
    spark_types.DateType: "DATE",
    spark_types.TimestampType: "TIMESTAMP",
}


def to_foundry_schema(df: DataFrame) -> dict[str, Any]:
    """Return the schema of a DataFrame as JSON of Foundry: `fieldSchemaList` and `primaryKey`.

    Raises:
        ConfigurationError: A column has a type that Foundry does not have, or the key has ordering columns.
    """
    key = keys_of(df)
    fields = [{**_field(one), "customMetadata": custom_metadata_json(key, one.name)} for one in df.schema]
    return {"fieldSchemaList": fields, "primaryKey": primary_key_json(key)}


def from_foundry_schema(df: DataFrame, schema: Mapping[str, Any]) -> DataFrame:
    """Return the DataFrame with the key of a Foundry schema JSON. If the JSON has no key, keys are removed (K23).

    Raises:
        ConfigurationError: The JSON is not a schema, misspells `includeInPartitioning`, or names a column that it or
            the DataFrame does not have.
    """
    key = key_of_json(schema)
    return strip_keys(df) if key == KeySpec() else set_key(df, key)


def _field(field: StructField) -> dict[str, Any]:
    return {"name": field.name, "nullable": field.nullable, **_type(field.dataType, field.name)}


def _type(found: DataType, column: str) -> dict[str, Any]:
    if isinstance(found, DecimalType):
        return {"type": "DECIMAL", "precision": found.precision, "scale": found.scale}
    if isinstance(found, ArrayType):
        return {"type": "ARRAY", "arraySubtype": _type(found.elementType, column)}
    if isinstance(found, MapType):
        keys, values = _type(found.keyType, column), _type(found.valueType, column)
        return {"type": "MAP", "mapKeyType": keys, "mapValueType": values}
    if isinstance(found, StructType):
        return {"type": "STRUCT", "subSchemas": [_field(one) for one in found]}
    name = _NAMES.get(type(found))
    if name is None:
        raise ConfigurationError(
            f"the column {column!r} is {found.simpleString()}, which Foundry does not have",
            option="df",
            advice="cast the column, or drop it",
        )
    return {"type": name}
