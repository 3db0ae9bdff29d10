# SPDX-License-Identifier: Apache-2.0
"""DataFrames whose values are at the edges: what is right is kept, and what is not is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as users write it

from forebay.errors import ConfigurationError, DataError
from forebay.index import Datasource, Funnel, ObjectType, Property


def one(name, key, **properties):
    return ObjectType(name, {"id": key}, [Datasource("a", {each: Property(text) for each, text in properties.items()})])


@pytest.mark.parametrize("key", ["bigint", pytest.param("decimal(20,2)", marks=pytest.mark.soak)])
def test_a_key_with_more_places_than_the_key_type_is_refused_not_rounded(spark, location, key):
    funnel = Funnel(location, one("Round", key, v="string"), shards=2)
    frame = spark.createDataFrame([(Decimal("1.00000001"), "x")], "id decimal(20,8), v string")
    with pytest.raises(DataError, match=r"has the value 1\.00000001"):
        funnel.commit("a", frame, kind="append")
    assert funnel.status().head.number == 0
    whole = spark.createDataFrame([(Decimal("1.00000000"), "x")], "id decimal(20,8), v string")
    assert funnel.commit("a", whole, kind="append").counts["inserted"] == 1


def test_times_that_python_cannot_show_are_refused_with_the_key(spark, location, node_of):
    funnel = Funnel(location, one("Times", "bigint", d="date", t="timestamp", s="struct<t:timestamp>"), shards=1)
    good = spark.sql(
        "SELECT 1L id, DATE'9999-12-31' d, TIMESTAMP'9999-12-31 23:59:59Z' t, "
        "struct(TIMESTAMP'2024-01-01 00:00:00Z' AS t) s"
    )
    funnel.commit("a", good, kind="snapshot")
    node = node_of(location, "Times")
    far = "TIMESTAMP'+11000-01-01 00:00:00Z'"
    for name, value in (("d", "DATE'+11000-01-01'"), ("t", far), ("s", f"struct({far} AS t)")):
        bad = good.withColumns({"id": F.lit(2), name: F.expr(value)})
        with pytest.raises(
            DataError, match=rf"the column '{name}' of the datasource 'a' in the row \(id=2\) is before"
        ):
            funnel.commit("a", bad, kind="append")
        node.refresh()
        assert node.get(2) is None
        funnel.commit("a", good, kind="snapshot")
    node.refresh()
    assert node.get(1)["t"] == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    for name, bad in (("d", "DATE'+11000-01-01'"), ("t", far)):
        null = good.withColumns({"id": F.expr("cast(null as bigint)"), name: F.expr(bad)})
        with pytest.raises(DataError, match=rf"the key 'id' .* is NULL in the row \(id=None.*{name}=\(a value that"):
            funnel.commit("a", null, kind="append")
    keyed = Funnel(location, one("TimeKey", "timestamp", v="int"), shards=1)
    with pytest.raises(DataError, match="the key column 'id' has times before the year 1"):
        keyed.commit("a", spark.sql(f"SELECT {far} id, 1 v"), kind="append")


def test_why_shows_a_row_with_a_time_that_python_cannot_show(spark, location):
    source = Datasource("a", {"v": Property("int")}, conflict="most_recent", timestamp="ts")
    funnel = Funnel(location, ObjectType("Late", {"id": "bigint"}, [source]))
    funnel.commit("a", spark.sql("SELECT 1L id, 2 v, TIMESTAMP'+11000-01-01 00:00:00Z' ts"), kind="snapshot")
    assert "datasource a: id=1, ts='(a value that Python cannot show)', v=2" in str(funnel.why(1))


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Berlin"])
def test_a_key_may_be_a_time_that_the_zone_of_the_session_skips(spark, location, node_of, zone):
    times = [datetime(2024, 3, day, 2, 30, microsecond=7) for day in (10, 31)] + [datetime(1, 1, 1)]
    funnel = Funnel(location, one("Local", "timestamp_ntz", v="int"), shards=7)
    frame = spark.createDataFrame([(time, place) for place, time in enumerate(times)], "id timestamp_ntz, v int")
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        funnel.commit("a", frame, kind="snapshot")
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        assert not any(funnel.commit("a", frame, kind="snapshot").counts.values())
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    node = node_of(location, "Local")
    assert [node.get(time)["v"] for time in times] == [0, 1, 2]
    assert funnel.verify(node).is_equal


@pytest.mark.parametrize("column", ["v", "a", "s", "m"])
@pytest.mark.parametrize("small", [50_000, pytest.param(0, marks=pytest.mark.soak)])
def test_a_text_that_is_not_utf_8_is_refused_before_it_is_committed(spark, location, column, small):
    kinds = {"v": "string", "a": "array<string>", "s": "struct<x:string>", "m": "map<int,string>"}
    funnel = Funnel(location, one("Bytes", "bigint", **kinds), shards=1, small=small)
    good = spark.sql("SELECT id, 'x' v, array('x') a, struct('x' AS x) s, map(1, 'x') m FROM range(9)").coalesce(1)
    text = "string(unhex('FF'))"
    value = {"v": text, "a": f"array('y', {text})", "s": f"struct({text} AS x)", "m": f"map(1, {text})"}[column]
    bad = good.withColumn(column, F.expr(f"IF(id = 7, {value}, {column})"))
    where = rf"the column '{column}' of the datasource 'a' in the row \(id=7\)"
    with pytest.raises(DataError, match=f"{where} has a text that is not UTF-8; nothing was committed"):
        funnel.commit("a", bad, kind="snapshot")
    assert funnel.commit("a", good, kind="snapshot").counts["inserted"] == 9
    # Nothing of a row that deletes is kept but its key.
    assert funnel.target("a").apply(bad.where("id = 7"), 0, "q", keys="id", apply_as_deletes="true")
    assert funnel.index.head().counts["deleted"] == 1


def test_the_row_of_a_nested_value_that_does_not_fit_is_named(spark, location):
    funnel = Funnel(location, one("Nested", "bigint", v="array<int>"), shards=1)
    frame = spark.sql("SELECT id, array(IF(id = 7, 3000000000L, 5L)) v FROM range(9)").coalesce(1)
    with pytest.raises(DataError, match=r"the value \[3000000000\] of the column 'v' of .* in the row \(id=7\)"):
        funnel.commit("a", frame, kind="snapshot")


def test_a_far_time_without_a_zone_is_no_key(spark, location):
    funnel = Funnel(location, one("FarKey", "timestamp_ntz", v="int"), shards=3)
    with pytest.raises(DataError, match="the key column 'id' has times before the year 1"):
        funnel.commit("a", spark.sql("SELECT TIMESTAMP_NTZ'+100000-01-01 00:00:00' id, 1 v"), kind="update")


def test_a_key_that_is_not_utf_8_is_refused_as_bytes(spark, location):
    funnel = Funnel(location, one("ByteKey", "string", v="int"), shards=2)
    with pytest.raises(DataError, match=r"the column 'id' of the datasource 'a' in the row \(id=b'\\xff'\)"):
        funnel.commit("a", spark.sql("SELECT string(unhex('FF')) id, 1 v"), kind="update")
    with pytest.raises(DataError, match=r"id=b'\\xff'"):
        funnel.target("a").apply(spark.sql("SELECT string(unhex('FF')) id, 1 v"), 0, "q", keys="id")
    assert funnel.status().head.number == 0


@pytest.mark.parametrize(
    ("value", "kind", "error", "text"),
    [
        ("'0x1F'", "int", DataError, "it is hexadecimal"),
        ("'six'", "int", DataError, "Failed to parse string: 'six'"),
        ("'9007199254740993'", "double", ConfigurationError, "cast the column to double in the DataFrame"),
        ("'2024-01-01 00:00:00Z'", "timestamp", ConfigurationError, "cast the column to timestamp in the DataFrame"),
        ("CAST(0 AS decimal(38,18))", "string", ConfigurationError, "cast the column to string in the DataFrame"),
    ],
)
def test_a_value_whose_text_spark_reads_or_writes_otherwise_is_refused(spark, location, value, kind, error, text):
    funnel = Funnel(location, one("Casts", "bigint", v=kind), shards=1)
    with pytest.raises(error, match=text):
        funnel.commit("a", spark.sql(f"SELECT 1L id, {value} v"), kind="update")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("TIMESTAMP'2024-03-31 20:00:00'", "date"),
        ("TIMESTAMP'2024-03-31 20:00:00'", "timestamp_ntz"),
        ("TIMESTAMP_NTZ'2024-03-31 20:00:00'", "timestamp"),
        ("DATE'2024-03-31'", "timestamp"),
    ],
)
def test_a_time_that_depends_on_a_zone_is_refused(spark, location, value, kind):
    """Spark would take the zone of the session, in which another process need not be."""
    funnel = Funnel(location, one("Zones", "bigint", v=kind), shards=1)
    frame = spark.sql(f"SELECT 1L id, {value} v")
    with pytest.raises(ConfigurationError, match=f"the property 'v' is {kind}[\\s\\S]*cast the column to {kind}"):
        funnel.commit("a", frame, kind="update")
    with pytest.raises(ConfigurationError, match=f"cast the column to {kind}"):
        funnel.target("a").apply(frame, 0, "q", keys="id")
    assert funnel.target("a").apply(frame.withColumn("v", F.col("v").cast(kind)), 0, "q", keys="id")


@pytest.mark.parametrize(
    ("batch", "query"), [("3", "q"), (1.5, "q"), (True, "q"), (1 << 63, "q"), (0, ""), (0, "\ud800")]
)
def test_a_micro_batch_or_a_query_that_cannot_be_is_refused(spark, location, batch, query):
    funnel = Funnel(location, one("Batches", "bigint", v="int"), shards=1)
    with pytest.raises(ConfigurationError, match=r"the (micro-batch|query) is "):
        funnel.target("a").apply(spark.sql("SELECT 1L id, 2 v"), batch, query, keys="id")
    assert funnel.target("a").apply(spark.sql("SELECT 1L id, 2 v"), 0, "q", keys="id")


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"swap": 0}, "swap"),
        ({"swap": None}, "swap"),
        ({"drop_edits": [1]}, "drop_edits"),
        ({"drop_edits": 5}, "drop_edits"),
    ],
)
def test_a_replacement_with_wrong_arguments_is_refused_before_it_begins(spark, location, options, option):
    funnel = Funnel(location, one("Wrong", "bigint", v="int"), shards=1)
    frame = spark.sql("SELECT 1L id, 2 v")
    funnel.commit("a", frame, kind="update")
    new = Funnel(location, one("Wrong", "bigint", v="bigint"), shards=1)
    with pytest.raises(ConfigurationError, match=f"{option} is ") as caught:
        new.replace(spark, **options)
    assert caught.value.option == option and funnel.commit("a", frame, kind="update").applied
    for shards in (True, (1 << 20) + 1):
        with pytest.raises(ConfigurationError, match=f"shards is {shards}"):
            Funnel(location, one("Wrong", "bigint", v="int"), shards=shards)


def test_columns_that_differ_in_case_alone_are_ambiguous_unless_the_session_tells_them_apart(spark, location, node_of):
    funnel = Funnel(location, one("Case", "bigint", v="int"), shards=1)
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        frame = spark.sql("SELECT 1L id, 2 v, 3 V")
        assert funnel.commit("a", frame, kind="update").counts["inserted"] == 1
    finally:
        spark.conf.set("spark.sql.caseSensitive", "false")
    assert node_of(location, "Case").get(1)["v"] == 2
    with pytest.raises(ConfigurationError, match="the column 'v' of the datasource 'a' is ambiguous"):
        funnel.commit("a", frame, kind="update")


def test_fields_of_structs_may_have_any_name(spark, location, node_of):
    kind = "struct<`größe`:int,`a.b`:array<struct<`first-name`:string>>,`x``y`:map<string,struct<`名前`:int>>>"
    funnel = Funnel(location, one("Fields", "bigint", s=kind), shards=1)
    value = {"größe": 1, "a.b": [{"first-name": "x"}], "x`y": {"k": {"名前": 2}}}
    funnel.commit("a", spark.createDataFrame([(1, value)], f"id long, s {kind}"), kind="snapshot")
    assert node_of(location, "Fields").get(1)["s"] == value


@pytest.mark.soak
def test_a_text_of_a_megabyte_nested_nulls_and_odd_names_return_whole(spark, location, node_of):
    nested = "array<struct<a:int,m:map<string,array<double>>>>"
    properties = {
        "rowid": Property("string", text=True),
        'o"x': Property(nested),
        "select": Property("map<string,string>"),
        "é": Property("double", filter=True),
    }
    kind = ObjectType("Odd", {"id": "string"}, [Datasource("a", properties)])
    text = ("語 word " * 150_000) + " needle 針の山"
    nulls = [None, (None, {"z": [None, float("nan"), float("inf")], "a": None}), (1, None)]
    frame = spark.createDataFrame(
        [
            ("ключ-🗝", text, nulls, {"b": None, "a": "x"}, -0.0),
            ("a\0b", None, [], {}, float("nan")),
            ("", "", None, None, None),
        ],
        f'id string, rowid string, `o"x` {nested}, select map<string,string>, `é` double',
    )
    funnel = Funnel(location, kind, shards=3)
    funnel.commit("a", frame, kind="snapshot")
    other = F.create_map(F.lit("a"), F.lit("x"), F.lit("b"), F.lit(None).cast("string"))
    again = frame.withColumn("select", F.when(F.col("id") == "ключ-🗝", other).otherwise(F.col("select")))
    assert funnel.commit("a", again, kind="snapshot").counts["updated"] == 0
    node = node_of(location, "Odd")
    row = node.get("ключ-🗝")
    assert (row["rowid"], row["select"], str(row["é"])) == (text, {"a": "x", "b": None}, "0.0")
    assert str(row['o"x']) == "[None, {'a': None, 'm': {'a': None, 'z': [None, nan, inf]}}, {'a': 1, 'm': None}]"
    assert [each["id"] for each in node.search("needle 針の山").fetch().rows] == ["ключ-🗝"]
    assert (node.get("a\0b")['o"x'], node.get("")["select"]) == ([], None)
    assert (node.where("`é` > 1e300").count(), node.where("`é` = 0").count()) == (1, 1)
    assert funnel.verify(node).is_equal


@pytest.mark.soak
@pytest.mark.parametrize("small", [pytest.param(50_000, marks=pytest.mark.soak), 0], ids=["driver", "tasks"])
def test_duplicates_and_nulls_in_other_partitions_are_seen(spark, location, small):
    kind = ObjectType("Parts", {"x": "string", "y": "decimal(10,2)"}, [Datasource("a", {"v": Property("int")})])
    funnel = Funnel(location, kind, shards=3, small=small)
    columns = ("CAST(id % 190 AS string) x", "CAST(id % 190 AS decimal(5,1)) y", "CAST(id AS int) v")
    frame = spark.range(200).selectExpr(*columns).repartition(7)
    unique = frame.where("v < 190")
    with pytest.raises(DataError, match=r"occurs 2 times.*\(10 keys\)"):
        funnel.commit("a", frame, kind="snapshot", transaction="t")
    null = unique.withColumn("y", F.when(F.col("v") != 77, F.col("y")))
    with pytest.raises(DataError, match="the key 'y' of the datasource 'a' is NULL in the row"):
        funnel.commit("a", null, kind="snapshot", transaction="t")
    assert funnel.commit("a", unique, kind="snapshot", transaction="t").counts["inserted"] == 190


def test_a_changed_type_and_a_vanished_column_are_refused_and_a_snapshot_takes_the_type(spark, location, node_of):
    funnel = Funnel(location, one("Change", "bigint", v="string", s="struct<a:int,b:string>"), shards=2)
    first = spark.sql("SELECT 1L id, 5 v, named_struct('a', 1, 'b', 'x') s")
    swapped = first.withColumns({"v": F.lit("x"), "s": F.expr("named_struct('b', 'x', 'a', 1)")})
    funnel.commit("a", first, kind="snapshot")
    for frame, kind, message in (
        (first.withColumn("v", F.lit("x")), "update", "the column 'v' of the datasource 'a' is STRING, and was INT in"),
        (first.drop("s"), "snapshot", "the column 's' of the datasource 'a' does not exist"),
        (swapped.withColumn("v", F.lit(5)), "update", "the column 's' of the datasource 'a' is STRUCT"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            funnel.commit("a", frame, kind=kind)
    funnel.commit("a", swapped, kind="snapshot")
    node = node_of(location, "Change")
    assert node.get(1) == {"id": 1, "v": "x", "s": {"a": 1, "b": "x"}}
    assert funnel.verify(node).is_equal
