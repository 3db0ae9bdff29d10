# SPDX-License-Identifier: Apache-2.0
"""Schemas as text have the meaning that they have in Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from forebay.errors import ConfigurationError
from forebay.formats.values.ddl import parse_schema, type_text

TEXTS = [
    "a int",
    "a: int",
    "A INT, a2 Integer",
    "`a b` int not null comment 'it''s, so', `c``d` string",
    "a array<struct<b:map<string,decimal(3)>,`c d` date>>, e struct<>",
    "struct<a:int,b:array<array<string>>>",
    ' STRUCT < a : INT , b STRING NOT NULL COMMENT "x" > ',
    "a decimal, b dec(4,1), c numeric(38,38), d real, e long, f timestamp_ntz, g byte, h tinyint, i smallint, j short",
    "k integer, l timestamp_ltz, m boolean, n double, o float, p date, q binary, r bigint, s timestamp, t string",
    "1a int, _ int, struct int, map string, array date",
    "a map<string, struct<b: int>>",
]
REFUSED = {
    "": "ends before it is complete",
    "a": "ends before it is complete",
    "a int,": "ends before it is complete",
    "a int b int": "an unexpected 'b'",
    "a int null": "an unexpected 'null'",
    "a array<int": "'>' is required",
    "a map<string>": "',' is required",
    "a foo": "'foo' is not known",
    "a varchar(3)": "'varchar' is not known",
    "a decimal(39,0)": "the precision must be from 1 to 38",
    "a decimal(3,4)": "the scale from 0 to the precision",
    "a decimal(x)": "is not a valid type",
    "a int, a string": "the field 'a' twice",
    "a struct<b int, b int>": "the field 'b' twice",
    "é int": "backquotes",
    "a-b int": "backquotes",
    "array<int>": "has an unexpected",
    "struct<>": "is a type, not a list of columns",
    "a `int`": "an unexpected '`int`'",
    "a " + "array<" * 200 + "int" + ">" * 200: "nested to more than",
    '{"type":"struct"}': "the key 'fields' is missing",
    '{"type":"struct","fields":"abc"}': '"fields" must be a list of objects',
    '{"type":"struct","fields":3}': '"fields" must be a list of objects',
    '{"type":"array","elementType":"long","containsNull":true}': "ARRAY<BIGINT> is a type, not a list of columns",
    '{"a": 1}': "where a type is required",
    '{"type":"struct","fields":[{"name":"a","type":{"type":"udt","sqlType":"long"}}]}': "where a type is required",
    "{a": "does not contain a valid schema",
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_schema_is_that_of_spark(spark_utc: Any, text: str) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    spark = StructType.fromDDL(text)
    found = parse_schema(text, "valueSchema")
    assert relaxed(pa.struct(list(found))) == relaxed(pa.struct(list(to_arrow_schema(spark, timezone="UTC"))))
    assert parse_schema(spark.json(), "valueSchema") == found


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_written_is_read_back(text: str) -> None:
    found = parse_schema(text, "valueSchema")
    assert parse_schema(type_text(pa.struct(list(found))), "valueSchema") == found


@pytest.mark.parametrize(("text", "says"), REFUSED.items(), ids=[text[:30] for text in REFUSED])
def test_what_is_no_schema_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_schema(text, "valueSchema")
    assert says in str(caught.value)
    assert caught.value.option == "valueSchema"


def relaxed(kind: pa.DataType) -> pa.DataType:
    """The type with nulls allowed everywhere."""
    if isinstance(kind, pa.StructType):
        return pa.struct([pa.field(field.name, relaxed(field.type)) for field in kind])
    if isinstance(kind, pa.MapType):
        return pa.map_(relaxed(kind.key_type), relaxed(kind.item_type))
    return pa.list_(relaxed(kind.value_type)) if isinstance(kind, pa.ListType) else kind
