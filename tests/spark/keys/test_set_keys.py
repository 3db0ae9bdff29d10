# SPDX-License-Identifier: Apache-2.0
"""Setting, removing, uniting and showing keys."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import functions as F  # noqa: N812

from forebay.errors import ConfigurationError
from forebay.keys import (
    KeySpec,
    describe_keys,
    from_foundry_schema,
    key_by,
    key_profile,
    keys_of,
    strip_keys,
    to_foundry_schema,
    union_keyed,
)


@pytest.fixture
def readings(session):
    return session.createDataFrame([("d1", 1), ("d2", 9), ("d1", 2)], "device string, value long")


def test_a_key_changes_no_row(readings):
    """K1, K6: three readings of d1 stay three rows, in their order."""
    keyed = key_by(readings, "device")
    assert keyed.collect() == readings.collect()
    assert keys_of(keyed) == KeySpec(("device",))
    assert keyed.schema["device"].metadata["includeInPartitioning"] is True


def test_an_unknown_column_is_named(readings):
    """K1: with the columns that there are."""
    with pytest.raises(ConfigurationError, match="no column 'devise'") as caught:
        key_by(readings, "devise")
    assert "device, value" in str(caught.value.advice)


def test_a_column_that_exists_twice_cannot_be_a_key(readings):
    """K1: nor can a frame be keyed in which another name is ambiguous."""
    twice = readings.join(readings.withColumnRenamed("value", "v"), readings["value"] == F.col("v"))
    with pytest.raises(ConfigurationError, match="'device' exists twice"):
        key_by(twice, "device")
    with pytest.raises(ConfigurationError, match="'device' exists twice"):
        key_by(twice, "value")


def test_a_new_key_replaces_the_earlier_one(table):
    """K18: also its primary key and its flag; other metadata stay."""
    commented = key_by(table.withMetadata("v", {"comment": "kept"}), "v")
    assert keys_of(commented) == KeySpec(("v",))
    assert commented.schema["v"].metadata["comment"] == "kept"
    assert commented.schema["f"].metadata == {}


def test_names_with_dots_and_quotes_are_keys(session):
    """K1: a name is a name."""
    frame = session.createDataFrame([(1, 2)], "`a.b` long, `c``d` long")
    assert keys_of(key_by(frame, "a.b", "c`d")) == KeySpec(("a.b", "c`d"))


@pytest.mark.parametrize("given", [{"deleted": "f"}, {"ordering": ["s"]}])
def test_flag_and_ordering_need_cdc(table, given):
    """K18: without CDC mode only columns are allowed."""
    with pytest.raises(ConfigurationError, match="need a primary key"):
        key_by(table, "a", **given)


def test_a_flag_is_boolean(table):
    """K7: a type error at plan time."""
    with pytest.raises(ConfigurationError, match="'s' is bigint, not boolean") as caught:
        key_by(table, "a", cdc=True, deleted="s")
    assert caught.value.option == "deleted"


def test_ordering_columns_are_for_batches(table, session, warnings):
    """K20: a stream ignores them and says so, unless the source vouches for them."""
    assert keys_of(key_by(table, "a", cdc=True, ordering=["s"])).ordering == ("s",)
    assert warnings() == []
    stream = session.readStream.format("rate").load().withColumn("_sequence", F.lit(1))
    key_by(stream, "value", cdc=True, ordering=["_sequence"])
    assert warnings() == []
    key_by(stream, "value", cdc=True, ordering=["timestamp"])
    assert warnings() == ["streams ignore the ordering columns timestamp: the row that arrives last is the latest"]


def test_a_finer_key_says_across_what_order_is_lost(students, warnings):
    """K24: (id) → (id, level)."""
    key_by(students(), "id", "level")
    assert warnings() == [
        "the key (id, level) is finer than before: rows with different values of level have no order any more"
    ]


def test_a_key_that_cannot_restore_order_says_so(students, warnings):
    """K28: keyed by id, rows equal in level arrive over two lanes. A sequence would order them."""
    key_by(students(positions=True), "level")
    assert [text.partition(":")[0] for text in warnings()] == ["key_by(level) cannot restore order"]
    key_by(students(sequence=True), "name")
    assert len(warnings()) == 1


def test_a_stripped_frame_has_no_key_and_says_nothing(table, warnings):
    """K18: it was asked for."""
    assert keys_of(strip_keys(table)) == KeySpec()
    assert strip_keys(table).collect() == table.collect()
    assert warnings() == []


def test_a_primary_key_written_by_hand_beside_another_partition_key_is_told(session, warnings):
    """K9: order is not kept within it."""
    by_hand = from_foundry_schema(
        session.createDataFrame([(1, 2)], "a long, b long"),
        {
            "fieldSchemaList": [{"name": "a", "customMetadata": {"includeInPartitioning": True}}, {"name": "b"}],
            "primaryKey": {"columns": ["b"], "resolution": {"type": "duplicate", "duplicate": {}}},
        },
    )
    assert keys_of(by_hand) == KeySpec(("a",), ("b",))
    assert warnings() == ["the primary key (b) is not the partition key: order is not kept"]


def test_a_union_of_equal_keys_keeps_the_key(table):
    """§2.2: by name."""
    both = union_keyed(table, table.select("s", "v", "f", "b", "a"))
    assert keys_of(both) == keys_of(table)
    assert both.count() == 2


def test_a_union_of_other_keys_is_refused(table):
    """§2.2: Spark would keep the key of the left side."""
    with pytest.raises(ConfigurationError, match=r"left side has the key .*'a', 'b'.* right side .*\('a',\)"):
        union_keyed(table, key_by(table, "a"))


def test_the_schema_of_foundry_goes_both_ways(table):
    """K21, K22, A7, P11: to, from and to again."""
    schema = to_foundry_schema(table)
    assert json.loads(json.dumps(schema)) == schema
    assert keys_of(from_foundry_schema(strip_keys(table), schema)) == keys_of(table)
    assert to_foundry_schema(from_foundry_schema(strip_keys(table), schema)) == schema
    assert schema["fieldSchemaList"][0] == {
        "name": "a",
        "nullable": True,
        "type": "LONG",
        "customMetadata": {"includeInPartitioning": True},
    }


def test_a_schema_without_keys_removes_them(table):
    """K23: `primaryKey: null`, and no field with the entry."""
    schema = to_foundry_schema(strip_keys(table))
    assert schema["primaryKey"] is None
    assert keys_of(from_foundry_schema(table, schema)) == KeySpec()


def test_nested_types_have_their_parts(session):
    """K21: arrays, maps, structs and decimals; a type that Foundry has not is named."""
    frame = session.createDataFrame([], "a array<int>, m map<string, date>, s struct<x: decimal(9,2)>, n timestamp_ntz")
    fields = to_foundry_schema(frame.drop("n"))["fieldSchemaList"]
    assert [(one["type"], sorted(one)) for one in fields] == [
        ("ARRAY", ["arraySubtype", "customMetadata", "name", "nullable", "type"]),
        ("MAP", ["customMetadata", "mapKeyType", "mapValueType", "name", "nullable", "type"]),
        ("STRUCT", ["customMetadata", "name", "nullable", "subSchemas", "type"]),
    ]
    (part,) = fields[2]["subSchemas"]
    assert (part["type"], part["precision"], part["scale"]) == ("DECIMAL", 9, 2)
    with pytest.raises(ConfigurationError, match="'n' is timestamp_ntz"):
        to_foundry_schema(frame)


def test_people_see_the_key(table):
    """K29: a line for each key column, what was lost, and the guarantee."""
    assert describe_keys(table).splitlines() == [
        "a bigint: partition key 1 of 2, primary key 1 of 2",
        "b bigint: partition key 2 of 2, primary key 2 of 2",
        "f boolean: deletion flag",
        "order: NONE: LogicalRDD promises no order",
    ]
    assert describe_keys(table.drop("a", "b")).splitlines()[:2] == [
        "no key",
        "warning: the column 'a' left the key, and the key is gone: dropped",
    ]


def test_a_profile_shows_the_skew(session):
    """K26: the top keys, and the share of the biggest."""
    rows = [("big", n) for n in range(8)] + [("small", 1), (None, 1)]
    profile = key_profile(key_by(session.createDataFrame(rows, "k string, n long"), "k"), top=2)
    assert (profile.rows, profile.keys) == (10, 3)
    assert profile.top == ((("big",), 8), ((None,), 1))
    assert profile.biggest_share == 0.8


def test_a_profile_needs_a_key_and_an_end(students, readings):
    """K26: a stream cannot be counted."""
    with pytest.raises(ConfigurationError, match="no partition key"):
        key_profile(readings)
    with pytest.raises(ConfigurationError, match="of a stream cannot be counted"):
        key_profile(students(stream=True))


def test_a_profile_of_no_rows_has_no_share(session):
    """K26: an empty table."""
    profile = key_profile(key_by(session.createDataFrame([], "k string"), "k"))
    assert (profile.rows, profile.keys, profile.top, profile.biggest_share) == (0, 0, (), 0.0)
