# SPDX-License-Identifier: Apache-2.0
"""Foundry's schema JSON."""

from __future__ import annotations

import json

import pytest

from forebay.errors import ConfigurationError
from forebay.table.keys import KeySpec, custom_metadata_json, key_of_json, primary_key_json

PRIMARY = (
    '{"columns":["uniqueCol1","uniqueCol2"],"resolution":{"type":"duplicate","duplicate":{"resolutionStrategy":'
    '{"type":"customStrategy","customStrategy":{}},"deletionColumn":"isDeletedCol"}}}'
)
PARTITION = '{"includeInPartitioning":true}'
KEY = KeySpec(("uniqueCol1", "uniqueCol2"), ("uniqueCol1", "uniqueCol2"), "isDeletedCol")


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def schema(primary: object, **metadata: dict) -> dict:
    names = ("uniqueCol1", "uniqueCol2", "isDeletedCol")
    fields = [{"name": name, "customMetadata": metadata.get(name, {})} for name in names]
    return {"fieldSchemaList": fields, "primaryKey": primary}


def test_both_forms_are_byte_for_byte_those_of_the_reference():
    """A7, K21, K22: the partition key at its fields, the primary key beside them."""
    assert compact(custom_metadata_json(KEY, "uniqueCol1")) == PARTITION
    assert compact(custom_metadata_json(KEY, "isDeletedCol")) == "{}"
    assert compact(primary_key_json(KEY)) == PRIMARY
    assert compact(primary_key_json(KeySpec(("uniqueCol1",)))) == "null"


def test_both_forms_are_read():
    """A7, K22: the same key comes back."""
    keyed = json.loads(PARTITION)
    assert key_of_json(schema(json.loads(PRIMARY), uniqueCol1=keyed, uniqueCol2=keyed)) == KEY
    assert key_of_json(schema(None, uniqueCol1=keyed)) == KeySpec(("uniqueCol1",))


def test_the_order_of_a_key_is_that_of_its_primary_key():
    """K22: fields have the order of the table; without a primary key, theirs is the only one."""
    keyed = json.loads(PARTITION)
    turned = KeySpec(("uniqueCol2", "uniqueCol1"), ("uniqueCol2", "uniqueCol1"))
    assert key_of_json(schema(primary_key_json(turned), uniqueCol1=keyed, uniqueCol2=keyed)) == turned
    assert key_of_json(schema(None, uniqueCol1=keyed, uniqueCol2=keyed)).partition == ("uniqueCol1", "uniqueCol2")


def test_a_key_without_a_flag_goes_both_ways():
    """K22: the flag is optional."""
    key = KeySpec(("uniqueCol1",), ("uniqueCol1",))
    found = schema(primary_key_json(key), uniqueCol1=custom_metadata_json(key, "uniqueCol1"))
    assert "deletionColumn" not in compact(found)
    assert key_of_json(found) == key


def test_null_removes_the_primary_key_by_hand():
    """K23: and a primary key may be written without its partition key (K9)."""
    assert key_of_json(schema(None)) == KeySpec()
    assert not key_of_json(schema(json.loads(PRIMARY))).primary_is_partition


def test_the_misspelt_entry_is_rejected_with_the_right_word():
    """K21: the reference prints `includeInParitioning` once."""
    with pytest.raises(ConfigurationError, match="'uniqueCol1' has 'includeInParitioning'") as caught:
        key_of_json(schema(None, uniqueCol1={"includeInParitioning": True}))
    assert "includeInPartitioning" in str(caught.value.advice)


def test_a_primary_key_on_a_missing_column_is_rejected():
    """K22: the column is named."""
    with pytest.raises(ConfigurationError, match="no column 'other'"):
        key_of_json(schema({**json.loads(PRIMARY), "columns": ["other"]}))


@pytest.mark.parametrize(
    "found", [{}, {"fieldSchemaList": [{}]}, {"fieldSchemaList": [], "primaryKey": {"columns": ["a"]}}, []]
)
def test_something_else_is_no_schema(found):
    """K22: what is missing is told."""
    with pytest.raises(ConfigurationError, match="not the schema JSON of Foundry"):
        key_of_json(found)


def test_an_unknown_resolution_is_named():
    """K22: it would say which row is the current one."""
    with pytest.raises(ConfigurationError, match="'unique'"):
        key_of_json(schema({"columns": ["uniqueCol1"], "resolution": {"type": "unique"}}))


def test_ordering_columns_have_no_place_in_the_json():
    """K20, K22: they are not dropped in silence."""
    with pytest.raises(ConfigurationError, match="no place for ordering columns: seq"):
        primary_key_json(KeySpec(("a",), ("a",), None, ("seq",)))
