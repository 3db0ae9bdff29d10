# SPDX-License-Identifier: Apache-2.0
"""Transactions of DataFrames, and answers of a node about them, on real Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Observation
from pyspark.sql import functions as F  # noqa: N812 - as users write it

from forebay.changelog import apply_changes, from_changes
from forebay.errors import ConfigurationError, DataError, RetriableError
from forebay.index import Datasource, Funnel, IndexDaemon, ObjectType, Property, SearchNode
from forebay.keys import key_by
from forebay.spark.changelog.columns import map_in_arrow
from forebay.spark.index import launchers
from forebay.spark.index.launchers import run_transaction
from forebay.table.index.follower import Follower
from forebay.table.index.runs import runs
from forebay.table.index.transactions import Transaction

ORDERS = "order_id int, status string, total decimal(12,2), note string, is_deleted boolean"
SHIPMENTS = "order_no long, ship_city string"


@pytest.mark.parametrize("small", [pytest.param(50_000, marks=pytest.mark.soak), 0], ids=["driver", "tasks"])
def test_two_datasources_one_log_one_node_three_queries(spark, funnel, location, node_of, small):
    funnel = Funnel(location, funnel.object_type, shards=2, small=small)
    note = "東京都の配送が遅延しています"
    orders = [
        (7, "open", Decimal("10.50"), note, None),
        (8, "closed", Decimal(3), "late", False),
    ]
    first = funnel.commit("orders", spark.createDataFrame(orders, ORDERS), kind="snapshot", transaction="mon")
    shipments = spark.createDataFrame([(7, "Oslo"), (9, "Bergen")], SHIPMENTS)
    second = funnel.commit("shipments", shipments, kind="snapshot", transaction="mon")
    assert (first.number, second.number) == (1, 2)

    node = node_of(location)
    assert node.get(7) == {
        "order_id": 7,
        "status": "open",
        "total": Decimal("10.50"),
        "note": note,
        "city": "Oslo",
    }
    assert [row["order_id"] for row in node.where(status="open").fetch().rows] == [7]
    assert [row["order_id"] for row in node.search("配送 遅延").fetch().rows] == [7]
    assert [row["order_id"] for row in node.order_by("-total").fetch().rows] == [7, 8, 9]
    assert node.get(9) == {"order_id": 9, "status": None, "total": None, "note": None, "city": "Bergen"}
    assert node.version.data == 2

    changes = spark.createDataFrame([(8, "closed", Decimal(3), "late", True), (10, "open", None, None, False)], ORDERS)
    funnel.commit("orders", changes, kind="update")
    assert node.count() == 3
    node.refresh()
    assert (node.get(8), node.count(), node.where("total > 10 AND city IN ('Oslo')").count()) == (None, 3, 1)


@pytest.mark.soak
def test_a_transaction_without_rows_changes_nothing(spark, funnel, node_of, location):
    first = spark.createDataFrame([(7, "Oslo")], SHIPMENTS)
    funnel.commit("shipments", first, kind="snapshot")
    empty = first.where("order_no < 0")
    for kind in ("update", "append", "delete"):
        done = funnel.commit("shipments", empty, kind=kind, transaction=kind)
        assert done.applied and not any(done.counts.values())
        assert not funnel.commit("shipments", empty, kind=kind, transaction=kind).applied
    target = funnel.target("orders")
    target.apply(spark.createDataFrame([], ORDERS), 0, "query", keys="order_id", sequence_by="order_id")
    orders = spark.createDataFrame([(7, "open", None, None, False)], ORDERS)
    target.apply(orders, 1, "query", keys="order_id", sequence_by="order_id")
    assert funnel.status().pipelines[0].behind == 0
    funnel.commit("shipments", empty, kind="update")
    assert funnel.status().pipelines[0].behind == 0  # nothing is to be taken
    assert node_of(location).get(7)["status"] == "open"


def test_a_commit_whose_index_fails_says_that_it_is_committed(spark, funnel, node_of, location, monkeypatch):
    first = spark.createDataFrame([(7, "Oslo")], SHIPMENTS)
    funnel.commit("shipments", first, kind="snapshot")

    def full_disk(*_, **__):
        raise RetriableError("the disk is full", advice="make room, and try again: nothing is lost")

    changes = spark.createDataFrame([(8, "Bergen")], SHIPMENTS)
    with monkeypatch.context() as broken:
        broken.setattr(Follower, "follow", full_disk)
        with pytest.raises(RetriableError, match=r"transaction of .* is committed[\s\S]*call funnel.follow\(\)"):
            funnel.commit("shipments", changes, kind="update")
        assert node_of(location).count() == 1
    funnel.follow()
    node = node_of(location)
    assert (node.count(), node.version.data) == (2, 2)


@pytest.mark.parametrize("small", [50_000, 0], ids=["driver", "tasks"])
def test_a_stream_goes_on_after_a_row_that_fits_no_property(spark, funnel, node_of, location, small):
    """The row of the micro-batch is committed: it holds up the index, and not the stream, which may correct it."""
    funnel = Funnel(location, funnel.object_type, shards=2, small=small)
    target, schema = funnel.target("orders"), ORDERS.replace("decimal(12,2)", "decimal(38,2)")
    first = spark.createDataFrame([(7, "open", Decimal(10) ** 20, None, None), (8, "open", None, None, None)], schema)
    kept = (
        "this transaction of .* is committed, and the version before answers until another transaction corrects the row"
    )
    with pytest.raises(DataError, match=f"total.*{kept}"):
        target.apply(first, 0, "query", keys="order_id")
    assert not target.apply(first, 0, "query", keys="order_id"), "the checkpoint of the query can take it"
    with pytest.raises(DataError, match=kept):
        funnel.commit("shipments", spark.createDataFrame([(7, "Oslo")], SHIPMENTS), kind="snapshot")
    with pytest.raises(DataError, match="total"):
        funnel.follow(spark)
    target.apply(spark.createDataFrame([(7, "late", Decimal(5), None, None)], schema), 1, "query", keys="order_id")
    node = node_of(location)
    assert node.get(7) == {"order_id": 7, "status": "late", "total": Decimal(5), "note": None, "city": "Oslo"}
    assert node.count() == 2


def test_a_step_that_spark_does_not_run_is_a_typed_error_after_the_commit(spark, funnel, location, monkeypatch):
    funnel = Funnel(location, funnel.object_type, small=0)

    def cancelled(frame, in_tasks, schema):
        if in_tasks.run is launchers._build:
            raise RuntimeError("SPARK_JOB_CANCELLED")
        return map_in_arrow(frame, in_tasks, schema)

    rows = spark.createDataFrame([(7, "Oslo"), (8, "Bergen")], SHIPMENTS)
    with monkeypatch.context() as broken:
        broken.setattr(launchers, "map_in_arrow", cancelled)
        with pytest.raises(RetriableError, match=r"SPARK_JOB_CANCELLED[\s\S]*is committed[\s\S]*funnel.follow\(\)"):
            funnel.commit("shipments", rows, kind="snapshot", transaction="t1")
    assert not funnel.commit("shipments", rows, kind="snapshot", transaction="t1").applied
    assert funnel.verify().is_equal


def test_changes_whose_kind_is_renamed_are_no_plain_rows(spark, funnel, tmp_path):
    schema = f"{SHIPMENTS}, _change_type string, gone boolean"
    stream = spark.readStream.schema(schema).json(str(tmp_path))
    changes = from_changes(stream, key="order_no", images="full", history="complete")
    source = Datasource("a", {"city": Property("string", column="ship_city")}, deleted="gone")
    flagged = ObjectType("Order", "order_no", [source])
    for target in (funnel.target("shipments"), Funnel(tmp_path / "objects", flagged).target("a")):
        with pytest.raises(ConfigurationError, match="have no column _change_type"):
            apply_changes(
                changes.withColumnRenamed("_change_type", "op"), target, keys="order_no",
                checkpoint_location=str(tmp_path / "checkpoint"),
            )  # fmt: skip


def test_wrong_arguments_are_refused_by_name(spark, funnel, location):
    funnel.commit("shipments", spark.createDataFrame([(7, "Oslo")], SHIPMENTS), kind="snapshot")
    for option, wrong in (
        ("location", lambda: Funnel(None, funnel.object_type)),
        ("location", lambda: IndexDaemon(5)),
        ("each_round", lambda: IndexDaemon(location, each_round=5)),
        ("location", lambda: Funnel(b"objects", funnel.object_type)),
        ("storage", lambda: Funnel(location, funnel.object_type, storage="key")),
        ("node", lambda: funnel.verify("x")),
        ("keep", lambda: funnel.gc(keep="3")),
        ("versions", lambda: funnel.gc(versions=0)),
        ("timeZone", lambda: SearchNode(location, funnel.object_type.name, cache="cache", time_zone=7)),
    ):
        with pytest.raises(ConfigurationError) as refused:
            wrong()
        assert refused.value.option == option


def test_the_flag_of_a_datasource_deletes_in_a_stream_too(spark, funnel, node_of, location):
    target = funnel.target("orders")
    rows = [(7, "open", None, None, None), (8, "open", None, None, False), (9, "gone", None, None, True)]
    target.apply(spark.createDataFrame(rows, ORDERS), 0, "query", keys="order_id")
    node = node_of(location)
    assert [row["order_id"] for row in node.objects.fetch().rows] == [7, 8]
    rows = [(7, "late", None, None, True), (8, "closed", None, None, None)]
    target.apply(spark.createDataFrame(rows, ORDERS), 1, "query", keys="order_id", apply_as_deletes="order_id = 8")
    node.refresh()
    assert [row["order_id"] for row in node.objects.fetch().rows] == [7], "what the call says counts"
    lacking = spark.createDataFrame([(7, "open")], "order_id int, status string")
    with pytest.raises(ConfigurationError, match="'is_deleted' of the datasource 'orders' does not exist"):
        target.apply(lacking, 2, "query", keys="order_id")
    history = spark.createDataFrame([(9, "open", None, None, None)], ORDERS).selectExpr("*", "1L AS _sequence")
    with pytest.raises(ConfigurationError, match="not a history") as refused:
        target.apply(history, 2, "query", keys="order_id", stored_as_scd_type=2)
    assert refused.value.option == "stored_as_scd_type"
    assert node.refresh().data == 2, "and nothing was committed"


KEYS: dict[str, list[Any]] = {
    "bigint": [0, -5, 2**63 - 1, -(2**63)],
    "string": ["", "ключ-🗝", "a\0b", "x,y"],
    "boolean": [True, False],
    "binary": [bytearray(b""), bytearray(b"\x00\xff")],
    "date": [date(1, 1, 1), date(1969, 12, 31), date(2024, 2, 29)],
    "timestamp": [datetime(1900, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 12, 0, 0, 1, tzinfo=UTC)],
    "timestamp_ntz": [datetime(1900, 1, 1), datetime(2024, 1, 1, 12, 0, 0, 1)],
    "decimal(20,6)": [Decimal("0.000001"), Decimal(0), Decimal("-12345678901234.5")],
    "decimal(38,0)": [Decimal(10) ** 37, Decimal(-1)],
}


@pytest.mark.soak
def test_a_node_finds_keys_of_every_type_in_the_shard_where_spark_put_them(spark, location, node_of):
    """The builder compares the shard of each key with the one that Python computes; here it meets all types."""
    names = {f"k{place}": kind for place, kind in enumerate(KEYS)}
    kind = ObjectType("Key", {**names, "n": "bigint"}, [Datasource("a", {"v": Property("int")})])
    rows = [(*(values[step % len(values)] for values in KEYS.values()), step, step) for step in range(12)]
    schema = ", ".join(f"{name} {text}" for name, text in [*names.items(), ("n", "bigint"), ("v", "int")])
    funnel = Funnel(location, kind, shards=5)
    funnel.commit("a", spark.createDataFrame(rows, schema), kind="snapshot")
    node = node_of(location, "Key")
    for row in rows:
        key = tuple(bytes(value) if isinstance(value, bytearray) else value for value in row[:-1])
        assert node.get(key)["v"] == row[-1]
    assert funnel.verify(node).is_equal
    for number, (single, values) in enumerate(KEYS.items()):
        one = ObjectType(f"One{number}", {"k": single}, [Datasource("a", {"v": Property("int")})])
        frame = spark.createDataFrame([(value, place) for place, value in enumerate(values)], f"k {single}, v int")
        Funnel(location, one, shards=3).commit("a", frame, kind="snapshot")
        node = node_of(location, one.name)
        for place, value in enumerate(values):
            assert node.get(bytes(value) if isinstance(value, bytearray) else value)["v"] == place


def test_keys_of_different_integer_types_scales_and_padding_meet(spark, location, node_of):
    kind = ObjectType(
        "Meet",
        {"id": "decimal(20,2)", "code": "string"},
        [Datasource(name, {name: Property("string")}) for name in ("a", "b", "c")],
    )
    funnel = Funnel(location, kind, shards=3)
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW padded AS SELECT 1 AS id, CAST('x' AS CHAR(5)) AS code, 'of c' AS c")
    funnel.commit("a", spark.createDataFrame([(1, "x", "of a")], "id int, code string, a string"), kind="append")
    frame = spark.createDataFrame([(Decimal("1.0"), "x", "of b")], "id decimal(5,1), code string, b string")
    funnel.commit("b", frame, kind="append")
    funnel.commit("c", spark.table("padded"), kind="append")
    assert node_of(location, "Meet").get((1, "x")) == {"id": 1, "code": "x", "a": "of a", "b": "of b", "c": "of c"}
    lossy = spark.createDataFrame([(Decimal("1.005"), "x", "z")], "id decimal(9,3), code string, b string")
    with pytest.raises(DataError, match=r"the key 'id' is decimal\(20,2\), and the datasource 'b' has the value 1.005"):
        funnel.commit("b", lossy, kind="append")
    with pytest.raises(ConfigurationError, match=r"the key 'id' is decimal\(20,2\), and the column 'id' of the data"):
        funnel.commit("b", spark.createDataFrame([("1", "x", "z")], "id string, code string, b string"), kind="append")


def test_wrong_frames_are_refused_before_anything_is_written(spark, funnel, location):
    good = spark.createDataFrame([(1, "open", Decimal(1), "n", False)], ORDERS)
    cases = [
        (good.drop("note"), "the column 'note' of the datasource 'orders' does not exist"),
        (good.drop("order_id"), "the column 'order_id' of the datasource 'orders' does not exist"),
        (good.drop("is_deleted"), "the column 'is_deleted' of the datasource 'orders' does not exist"),
        (good.withColumn("is_deleted", F.lit("true")), "the flag 'is_deleted' of the datasource 'orders' is string"),
        (good.withColumn("_change_type", F.lit("insert")), "is a changelog: it has _change_type"),
        (
            good.withColumn("note", F.parse_json(F.lit("{}"))),
            "the column 'note' of the datasource 'orders' has the type",
        ),
        (good.withColumn("order_id", F.lit(1.5).cast("double")), "the key 'order_id' cannot have the type double"),
    ]
    for frame, message in cases:
        with pytest.raises(ConfigurationError, match=message):
            funnel.commit("orders", frame, kind="snapshot")
    with pytest.raises(ConfigurationError, match="has no datasource 'nothing'"):
        funnel.commit("nothing", good, kind="snapshot")
    with pytest.raises(ConfigurationError, match="unknown kind 'upsert'"):
        funnel.commit("orders", good, kind="upsert")
    assert not Path(location).exists()


@pytest.mark.soak
@pytest.mark.parametrize("small", [pytest.param(50_000, marks=pytest.mark.soak), 0], ids=["driver", "tasks"])
def test_a_difference_is_one_of_values_not_of_hashes(spark, location, node_of, small):
    """Spark's xxhash64 is equal for these pairs; and maps in another order are equal."""
    kind = ObjectType(
        "Nested",
        {"id": "bigint"},
        [
            Datasource(
                "a",
                {"s": Property("struct<x:int,y:int>"), "l": Property("array<int>"), "m": Property("map<string,int>")},
            )
        ],
    )
    schema = "id int, s struct<x:int,y:int>, l array<int>, m map<string,int>"
    funnel = Funnel(location, kind, shards=2, small=small)
    first = [
        (1, (None, 1), [1, None, 2], {"a": 1, "b": 2}),
        (2, (None, 1), [], {"a": 1, "b": 2}),
        (3, None, None, None),
    ]
    funnel.commit("a", spark.createDataFrame(first, schema), kind="snapshot")
    second = [(1, (1, None), [1, 2], {"b": 2, "a": 1}), (2, (None, 1), [None], {"b": 2, "a": 1}), (3, None, None, None)]
    done = funnel.commit("a", spark.createDataFrame(second, schema), kind="snapshot")
    assert done.counts["updated"] == 2
    again = funnel.commit("a", spark.createDataFrame(second, schema).withColumn("load_ts", F.rand()), kind="snapshot")
    assert again.counts["updated"] == 0
    node = node_of(location, "Nested")
    assert node.get(1) == {"id": 1, "s": {"x": 1, "y": None}, "l": [1, 2], "m": {"a": 1, "b": 2}}
    assert funnel.verify(node).is_equal


@pytest.mark.parametrize("small", [pytest.param(50_000, marks=pytest.mark.soak), 0], ids=["driver", "tasks"])
@pytest.mark.soak
def test_duplicates_ids_and_flags_are_the_same_in_driver_and_tasks(spark, funnel, location, small):
    funnel = Funnel(location, funnel.object_type, shards=2, small=small)
    rows = spark.createDataFrame([(number, "open", None, None, None) for number in (1, 2, 3)], ORDERS)
    assert funnel.commit("orders", rows, kind="snapshot", transaction="t").counts["inserted"] == 3
    assert not funnel.commit("orders", rows.orderBy(F.desc("order_id")), kind="snapshot", transaction="t").applied
    with pytest.raises(ConfigurationError, match="'t' of the datasource 'orders' was committed with other rows"):
        funnel.commit("orders", rows.limit(2), kind="snapshot", transaction="t")
    for kind in ("update", "delete"):
        with pytest.raises(ConfigurationError, match="or as another kind: their digest was"):
            funnel.commit("orders", rows, kind=kind, transaction="t")
    with pytest.raises(DataError, match=r"\(order_id=2\) occurs 2 times \(1 keys\)"):
        funnel.commit("orders", rows.union(rows.where("order_id = 2")), kind="append", transaction="u")
    with pytest.raises(DataError, match="the key 'order_id' of the datasource 'orders' is NULL"):
        funnel.commit("orders", rows.union(rows.limit(1).withColumn("order_id", F.lit(None))), kind="append")
    with pytest.raises(ConfigurationError, match="it would delete all"):
        funnel.commit("orders", rows.limit(0), kind="snapshot", transaction="u")
    keys = rows.select("order_id").where("order_id > 1")
    assert funnel.commit("orders", keys, kind="delete", transaction="u").counts["deleted"] == 2
    assert funnel.status().datasources[0].rows == 1


def test_each_commit_and_its_index_are_runs_and_failures_are_too(spark, funnel):
    frame = spark.createDataFrame([(7, "open", Decimal(1), "note", None)], ORDERS)
    funnel.commit("orders", frame, kind="snapshot", transaction="mon")
    with pytest.raises(DataError, match=r"order_id=7\) occurs 2 times"):
        funnel.commit("orders", frame.union(frame), kind="update", transaction="tue")
    assert not funnel.commit("orders", frame, kind="snapshot", transaction="mon").applied
    found = runs(funnel.index)
    assert [(run.subject, run.since, run.to, run.error) for run in found] == [
        ("commit orders", 0, 1, ""),
        ("index 000001", -1, 1, ""),
        ("commit orders", 1, 1, "DataError"),
        ("commit orders", 1, 1, ""),  # it is well: so an alert is over
    ]
    assert found[0].counts["inserted"] == 1 and "occurs 2 times" in found[2].text
    assert "next step" in found[2].text
    added = Datasource("new", {"x": Property("int")})
    other = ObjectType("Order", "order_id", [*funnel.object_type.datasources, added])
    for name in ("orders", "new"):
        with pytest.raises(ConfigurationError, match="differs from the one that serves"):
            Funnel(funnel.index.location, other).commit(name, frame, kind="update")
    # Nothing would ever end an alert of what the definition that serves does not have.
    assert [(run.subject, run.error) for run in runs(funnel.index)[4:]] == [("commit orders", "ConfigurationError")]


def test_rows_that_spark_reads_more_than_once_are_refused(spark, funnel, location, monkeypatch):
    """A stage that is run again may give other rows, so that tasks see two versions of the input."""
    funnel = Funnel(location, funnel.object_type, small=0)
    monkeypatch.setattr(Observation, "get", property(lambda observation: {"rows": 7, "low": 0, "high": 0}))
    with pytest.raises(RetriableError, match=r"Spark read parts of the rows of the datasource 'orders' more than once"):
        funnel.commit("orders", spark.createDataFrame([(1, "open", None, None, None)], ORDERS), kind="append")
    assert funnel.status().head.number == 0


@pytest.mark.soak("tasks")
@pytest.mark.parametrize("small", [50_000, 0], ids=["driver", "tasks"])
def test_a_value_that_does_not_fit_its_property_is_refused_with_its_row(spark, location, node_of, small):
    kind = ObjectType("Typed", {"id": "bigint"}, [Datasource("a", {"year": Property("int", filter=True)}, deleted="x")])
    funnel = Funnel(location, kind, small=small)
    rows = "id int, year string, x boolean"
    message = (
        r"'x1' of the column 'year' of the datasource 'a' in the row \(id=9\) cannot be int[\s\S]*nothing was committed"
    )
    for change in ("snapshot", "update"):
        with pytest.raises(DataError, match=message):
            funnel.commit("a", spark.createDataFrame([(9, "x1", None), (8, "2000", None)], rows), kind=change)
    assert funnel.status().head.number == 0
    kept = [(8, "2000", None), (7, "a deleted row", True)]
    assert funnel.commit("a", spark.createDataFrame(kept, rows), kind="snapshot").counts["inserted"] == 1
    assert node_of(location, "Typed").get(8)["year"] == 2000


@pytest.mark.soak("update")
@pytest.mark.parametrize("kind", ["snapshot", "update"])
def test_a_commit_whose_datasource_moves_is_made_again(spark, funnel, node_of, monkeypatch, kind):
    """Another process commits while the difference is computed: it is computed again, and loses nothing."""
    funnel.commit("orders", spark.createDataFrame([(1, "new", None, None, None)], ORDERS), kind="snapshot")
    others = [
        lambda: funnel.commit("orders", spark.createDataFrame([(2, "other", None, None, None)], ORDERS), kind="update"),
        lambda: funnel.commit("orders", spark.createDataFrame([(3, "third", None, None, None)], ORDERS), kind="update"),
    ]
    name = "forebay.spark.index.funnel.run_transaction"

    def racing(*arguments):
        results = run_transaction(*arguments)
        if others:
            others.pop()()
        return results

    monkeypatch.setattr(name, racing)
    done = funnel.commit("orders", spark.createDataFrame([(1, "mine", None, None, None)], ORDERS), kind=kind)
    assert done.applied and done.number == 4
    node = node_of(funnel.index.location)
    found = [(row["order_id"], row["status"]) for row in node.objects.fetch().rows]
    assert found == [(1, "mine"), *([] if kind == "snapshot" else [(2, "other"), (3, "third")])]
    assert funnel.verify(node).is_equal

    def always(*arguments):
        results = run_transaction(*arguments)
        monkeypatch.setattr(name, run_transaction)
        funnel.commit("orders", spark.createDataFrame([(2, "again", None, None, None)], ORDERS), kind="update")
        monkeypatch.setattr(name, always)
        return results

    monkeypatch.setattr(name, always)
    with pytest.raises(RetriableError, match=r"another transaction has changed the datasource 'orders'"):
        funnel.commit("orders", spark.createDataFrame([(1, "late", None, None, None)], ORDERS), kind=kind)
    assert node.refresh() and node.get(1)["status"] == "mine"


def test_rows_that_are_no_dataframe_of_spark_say_what_to_give(spark, funnel):
    for rows in (spark.range(1).toPandas(), [{"order_id": 1}], None):
        with pytest.raises(ConfigurationError, match=r"no DataFrame of Spark[\s\S]*spark\.createDataFrame"):
            funnel.commit("orders", rows, kind="snapshot")


def test_arguments_of_another_type_say_what_to_give(spark, funnel, location):
    rows = spark.createDataFrame([(1, "new", None, None, None)], ORDERS)
    for transaction in (5, "", "x\ud800"):
        with pytest.raises(ConfigurationError, match=r"the transaction is[\s\S]*give a text"):
            funnel.commit("orders", rows, kind="append", transaction=transaction)
    with pytest.raises(ConfigurationError, match=r"drop_edits is 'notes'[\s\S]*give a list: \['notes'\]"):
        funnel.plan(drop_edits="notes")
    with pytest.raises(ConfigurationError, match="the object type is None"):
        Funnel(location, None)  # type: ignore[arg-type]
    wrong: dict[str, Any]
    for wrong in ({"shards": "4"}, {"shards": None}, {"small": "x"}, {"full_threshold": "0.8"}):
        with pytest.raises(ConfigurationError, match=f"{next(iter(wrong))} is "):
            Funnel(location, funnel.object_type, **wrong)


def test_a_stored_value_that_does_not_fit_is_named_and_the_version_before_serves(spark, location, node_of):
    kind = ObjectType("Typed", {"id": "bigint"}, [Datasource("a", {"year": Property("int", filter=True)})])
    funnel = Funnel(location, kind)
    funnel.commit("a", spark.createDataFrame([(8, "1999")], "id int, year string"), kind="snapshot")
    node = node_of(location, "Typed")
    change = spark.createDataFrame([(9, "x1"), (8, "2000")], "id int, year string")
    with pytest.raises(DataError, match=r"'x1' of the column 'year' .* \(id=9\) cannot be int[\s\S]*kind='update'"):
        funnel.apply(change, Transaction("a", "q/0", "update", owner="q", batch=0), F.lit(False))  # as a stream does
    assert (funnel.status().head.number, funnel.status().pipelines[0].behind) == (2, 1)
    assert node.refresh().data == 1 and node.get(8)["year"] == 1999
    funnel.commit("a", spark.createDataFrame([(9, "2001")], "id int, year string"), kind="update", adopt=True)
    node.refresh()
    assert (node.get(8)["year"], node.get(9)["year"]) == (2000, 2001)


def test_the_key_and_the_flag_come_from_the_key_of_the_frame(spark, location, node_of):
    kind = ObjectType("Keyed", "id", [Datasource("a", {"v": Property("string")})])
    rows = spark.createDataFrame([(1, "x", False), (2, "y", True)], "number int, v string, gone boolean")
    keyed = key_by(rows, "number", cdc=True, deleted="gone")
    Funnel(location, kind).commit("a", keyed, kind="snapshot")
    assert [row["id"] for row in node_of(location, "Keyed").objects.fetch().rows] == [1]
