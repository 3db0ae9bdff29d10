# SPDX-License-Identifier: Apache-2.0
"""`forebay index`."""

from __future__ import annotations

import json
import re

import pytest
from pyspark.sql import SparkSession

from forebay.cli import main
from forebay.errors import DataError
from forebay.index import Datasource, Funnel, ObjectType, Property, SearchNode
from forebay.table.index.pipelines import IndexStore
from forebay.table.index.runs import recorded, runs

THING = ObjectType(
    "Thing", {"id": "bigint", "code": "string"}, [Datasource("a", {"v": Property("int")}), Datasource("b")]
)


@pytest.fixture(scope="module")
def location(tmp_path_factory):
    """A location with two objects, and files of the next day."""
    directory = tmp_path_factory.mktemp("index")
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    schema = "id long, code string, v int"
    Funnel(str(directory / "objects"), THING, shards=1).commit(
        "a", spark.createDataFrame([(1, "x", 5), (2, "y", 6)], schema), kind="snapshot", transaction="mon"
    )
    spark.createDataFrame([(1, "x", 50)], schema).coalesce(1).write.csv(str(directory / "next"), header=True)
    yield directory
    spark.stop()


def test_status_commit_verify_why_and_gc(location, capsys):
    where = (str(location / "objects"), "Thing")

    def shown(*arguments, code=0):
        assert main(["index", arguments[0], *where, *arguments[1:]]) == code
        return " ".join(capsys.readouterr().out.split())

    text = shown("status")
    assert "Thing: fact 1 of the log, mon on a at" in text and "FULL" in text and "000001 (serves)" in text
    assert json.loads(shown("status", "--json"))["pipelines"][0]["objects"] == 2
    options = ["--kind", "append", "--format", "csv", "-r", "header=true", "-r", "schema=id bigint, code string, v int"]
    again = ["commit", "a", str(location / "next"), "--transaction", "tue", *options]
    assert "transaction tue: fact 2 of the log; 1 updated" in shown(*again)
    assert "it was committed before" in shown(*again)
    assert "equal to the states of all datasources, 2 objects" in shown("verify")
    assert json.loads(shown("verify", "--json"))["differing"] == 0
    for wrong in ("no-such-cache", "objects"):
        assert main(["index", "verify", *where, "--cache", str(location / wrong)]) == 1
        assert "is no cache of a node" in capsys.readouterr().err
    assert not (location / "no-such-cache").exists()
    SearchNode(where[0], "Thing", cache=location / "cache").close()
    assert "version 2" in shown("verify", "--cache", str(location / "cache"))
    why = shown("why", "id=1", "code=x")
    assert "datasource a: id=1, code='x', v=50" in why and "datasource b: no row" in why
    assert json.loads(shown("why", "--json", "id=1", "code=x"))["found"]["v"] == 50
    with SearchNode(where[0], "Thing", cache=location / "cache") as node:
        node.edit((2, "y"), v=7)
    assert "edits: 0 are in the index, 1 are pending since" in shown("status")
    assert "pending: edit 1, of" in shown("why", "id=2", "code=y")
    assert re.search(r"Thing: 1 edits are pending since .*; no flush is due", shown("flush", "--if-due"))
    assert shown("flush") == "Thing: fact 3 of the log has all edits up to 1; 0 dead letters"
    assert shown("flush") == "Thing: 0 edits are pending"
    assert json.loads(shown("status", "--json"))["edits"]["folded"] == 1
    assert "edits: v=7 at" in shown("why", "id=2", "code=y")
    assert "equal to the states of all datasources, 2 objects" in shown("verify")
    assert shown("show", "1").startswith("Thing: fact 1 of the log datasource a ─▶ commit a, run 1:")
    assert "index 000001, run 2" in shown("show", "1") and "FULL" in shown("show", "2")
    assert "commit a" in shown("runs") and "flush edits" not in shown("runs", "--job", "commit")
    assert json.loads(shown("runs", "--json", "--failed")) == []
    assert "edits of users ─▶ flush edits" in shown("show", str(runs_of(where, "flush")[-1].number))
    page = location / "page.html"
    assert shown("report", "--file", str(page)) == str(page)
    text = page.read_text(encoding="utf-8")
    assert "<h1>Thing</h1>" in text and "commit a" in text and "Alerts: 0 open" in text and "<script" not in text
    assert "log/000000000000.json" in shown("gc", "--keep", "1", "--dry-run")
    assert shown("gc", "--keep", "1") == "Thing: removed 3 facts and 0 files"


def runs_of(where, job):
    return [run for run in runs(IndexStore(*where)) if run.job == job]


def test_run_does_one_round_and_shows_alerts(location, capsys):
    where = str(location / "objects")
    with pytest.raises(DataError), recorded(IndexStore(where, "Thing"), "commit", "b") as run:
        run.did(since=1)
        raise DataError("<b>a key twice</b>", advice="remove one")
    assert main(["index", "run", where, "--once"]) == 0
    shown = capsys.readouterr()
    assert (
        shown.out == "did one round: no job failed\n"
        and "Thing: ALERT: failed of commit b: run" in shown.err
        and "next step: remove one" in shown.err
    )
    assert main(["index", "run", where, "Thing", "--once", "--delay", "5"]) == 0
    assert capsys.readouterr().err == ""
    failed = runs_of((where, "Thing"), "commit")[-1]
    assert main(["index", "show", where, "Thing", str(failed.number)]) == 0
    shown = capsys.readouterr().out
    assert "FAILED, DataError" in shown and "nothing: it was not committed" in shown
    assert main(["index", "report", where, "Thing", "-f", str(location / "alerts.html")]) == 0
    text = (location / "alerts.html").read_text(encoding="utf-8")
    assert "Alerts: 1 open" in text and "&lt;b&gt;a key twice" in text and "<b>" not in text
    for arguments, error in (
        (["show", where, "Thing", "999"], "'Thing' has no run 999"),
        (["show", where, "Nothing", "1"], "nothing of 'Nothing' is below"),
        (["verify", where, "Thing", "--cache", "x" * 400], "is no cache of a node"),
        (["report", where, "Thing", "-f", "/nowhere/x.html"], "the report cannot be written"),
        (["run", where, "--once", "--delay", "0"], "the limit is 0.0"),
    ):
        assert main(["index", *arguments]) == 1
        assert error in capsys.readouterr().err


def test_why_as_json_has_values_of_any_type(location, capsys):
    spark = SparkSession.builder.getOrCreate()
    properties = {"m": Property("map<date,decimal(3,1)>"), "d": Property("double"), "b": Property("binary")}
    kind = ObjectType("Maps", {"id": "bigint"}, [Datasource("a", properties)])
    rows = spark.sql("SELECT 1L id, map(DATE'2024-01-02', 1.5) m, double('NaN') d, X'ff00' b")
    Funnel(str(location / "objects"), kind, shards=1).commit("a", rows, kind="snapshot")
    assert main(["index", "why", str(location / "objects"), "Maps", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["found"]
    assert found == {"id": 1, "m": {"2024-01-02": "1.5"}, "d": "nan", "b": "ff00"}


def test_errors_are_paragraphs(location, capsys):
    where, csv = str(location / "objects"), str(location / "next")
    schema = "schema=id bigint, code string, v int"  # there is a header too
    strict = ["--kind", "append", "--format", "csv", "-r", "mode=FAILFAST", "-r", schema]
    for arguments, text in (
        (["status", where, "Nothing"], "nothing of 'Nothing' is below"),
        (["why", where, "Thing", "id=one", "code=x"], "'one' is no bigint"),
        (
            ["why", where, "Thing", f"id={1 << 64}", "code=x"],
            "is no bigint option: key next step: write a bigint for 'id'",
        ),
        (["why", where, "Thing", "id=1_0", "code=x"], "'1_0' is no bigint"),
        (["status", where, "Thing/"], "the name 'Thing/' of the object type cannot be used"),
        (["runs", where, "Nothing"], "nothing of 'Nothing' is below"),
        (["runs", where, "Thing", "--job", "sync"], "there is no job 'sync'"),
        (["plan", where, "Thing", "things"], "'things' names no object of a module"),
        (["why", where, "Thing", "id=1"], "is no key: the key is (id bigint, code string)"),
        (["why", where, "Thing", "1"], "write id=VALUE code=VALUE"),
        (["commit", where, "Thing", "a", "/nowhere", "--kind", "append"], "Spark cannot read '/nowhere' as parquet"),
        (["commit", where, "Thing", "a", csv, "--kind", "append"], f"Spark cannot read '{csv}' as parquet"),
        (["commit", where, "Thing", "a", csv, "--kind", "append", "--format", "delta"], "DATA_SOURCE_NOT_FOUND"),
        (["commit", where, "Thing", "a", csv, *strict], "MALFORMED_RECORD"),
    ):
        assert main(["index", *arguments]) == 1
        assert text in " ".join(capsys.readouterr().err.split())


def test_plan_and_replace(location, tmp_path, monkeypatch, capsys):
    where = (str(location / "objects"), "Thing")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "things.py").write_text(
        "from forebay.index import Datasource, ObjectType, Property\n"
        "def thing(key='bigint', **more):\n"
        "    a = Datasource('a', {'v': Property('int', **more)})\n"
        "    return ObjectType('Thing', {'id': key, 'code': 'string'}, [a, Datasource('b')])\n"
        "same, other, key = thing(), thing(filter=True), thing('string')\n"
        "wider = ObjectType('Thing', other.key, [Datasource('a', {'v': Property('int'), 'w': Property('int')})])\n"
    )

    def shown(*arguments, code=0):
        assert main(["index", arguments[0], *where, *arguments[1:]]) == code
        return " ".join(capsys.readouterr().out.split())

    assert shown("plan", "things:same") == "Thing INCREMENTAL the definition serves"
    assert "REPLACEMENT the property 'v' has another filter" in shown("plan", "things:other")
    assert "that is a new object type" in shown("plan", "things:key", code=1)
    waits = shown("replace", "things:wider", code=1)
    assert "is not built yet commit a snapshot of the datasource 'a' with the columns w" in waits
    text = shown("status")
    assert "(is being built)" in text and "can serve: commit a snapshot of the datasource 'a'" in text
    assert "is built behind the index that serves" in shown("replace", "things:other", "--no-swap")
    assert "2 objects" in shown("verify", "--replacement")
    assert " serves, at fact" in shown("replace", "things:other")
    with SearchNode(where[0], "Thing", cache=tmp_path / "cache") as node:
        assert node.where("v > 0").count() == 2
    for target, text in (("things:nothing", "cannot be imported"), ("things:thing", "not the definition of 'Thing'")):
        assert main(["index", "plan", *where, target]) == 1
        assert text in " ".join(capsys.readouterr().err.split())
