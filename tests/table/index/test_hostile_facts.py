# SPDX-License-Identifier: Apache-2.0
"""Locations and caches to which somebody else writes: what is there is damage by name, never a hang or a bare error."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from forebay.errors import ConfigurationError, FatalError, ForebayError, RetriableError
from forebay.index import Datasource, IndexDaemon, ObjectType, Property, SearchNode
from forebay.inspection.index_report import index_page
from forebay.state.state_store import RetryingStateStore
from forebay.table.changelog.state.facts import fact_bytes
from forebay.table.index.flush import flush
from forebay.table.index.monitor import alerts
from forebay.table.index.runs import runs
from forebay.table.index.verify import verify
from forebay.table.index.why import explain

TYPES = ObjectType(
    "O",
    {"id": "bigint"},
    [
        Datasource(
            "a",
            {
                "n": Property("bigint", filter=True),
                "text": Property("string", text=True),
                "amounts": Property("array<decimal(38,0)>"),
            },
        )
    ],
)

DEEP = b'{"v":' + b"[" * 200_000


def path_of(objects, name):
    return Path(objects.location) / name


def write(objects, name, content):
    path = path_of(objects, name)
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else fact_bytes({"v": 1, **content}))


def change(objects, name, changes):
    """Change fields of a fact, and give it the right digest."""
    content = json.loads(path_of(objects, name).read_bytes())
    del content["sum"]
    changes(content) if callable(changes) else content.update(changes)
    write(objects, name, content)


def edit_fact(*changes, **other):
    """The first edit, which changes the object 1."""
    made = {"offset": 1, "id": "x", "time": 1, "definition": "000001", "data": 1, "changes": changes}
    return made | other


def edited(key=(1,), **values):
    return {"key": list(key), "values": values, "creates": False}


# -- Numbers


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("n", "decimal(38,0)", "1E+999999999"),
        ("text", "decimal(38,0)", "1E+999999999"),
        ("text", "decimal(38,10)", "1E-999999999"),
        ("amounts", "array<decimal(38,0)>", ["1E+999999999"]),
        ("amounts", "array<decimal(38,0)>", ["NaN"]),
        ("text", "bigint", 1 << 70),
    ],
)
def test_a_number_that_its_type_does_not_have_is_a_dead_letter_before_its_digits_are_written(
    objects_at, tmp_path, name, kind, value
):
    objects = objects_at(TYPES)
    objects.commit("a", [{"id": 1, "n": 5, "text": "x", "amounts": [7]}])
    write(objects, "O/edits/000000000001.json", edit_fact(edited(**{name: [kind, value]})))
    program = f"""
from forebay.index import SearchNode
with SearchNode({objects.location!r}, "O", cache={str(tmp_path / "other")!r}) as node:
    print(node.version.offset, node.get(1))
"""
    command = [sys.executable, "-P", "-c", program]  # in a process: nothing else could end it
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, timeout=60)
    assert done.stdout == "1 {'id': 1, 'n': 5, 'text': 'x', 'amounts': [Decimal('7')]}\n"
    flush(objects.index, lambda definition, keys: [objects.key_hash(key) for key in keys])
    assert objects.index.head().edits.dead_letters == 1


# -- Runs and alerts

RUN = {
    "job": "index",
    "name": "000001",
    "begin": 1.0,
    "seconds": 1.0,
    "since": -1,
    "to": 1,
    "decision": "",
    "reason": "",
    "shares": [],
    "counts": {},
    "error": "",
    "text": "",
}
ALERT = {"object_type": "O", "rule": "failed", "subject": "s", "breach": True, "text": "", "about": 1, "time": 1.0}


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("runs", {}),
        ("runs", RUN | {"seconds": "x"}),
        ("runs", RUN | {"begin": "x"}),
        ("runs", RUN | {"begin": 1e20}),
        ("runs", RUN | {"begin": float("nan")}),
        ("runs", RUN | {"seconds": -1}),
        ("runs", RUN | {"counts": {"a": "x"}}),
        ("runs", RUN | {"shares": [[1]]}),
        ("runs", RUN | {"job": 5}),
        ("runs", RUN | {"error": "E", "text": 5}),
        ("runs", RUN | {"number": 7}),
        ("runs", RUN | {"more": 7}),
        ("runs", DEEP),
        ("runs", b"[1]"),
        ("alerts", {}),
        ("alerts", ALERT | {"time": 1e20}),
        ("alerts", ALERT | {"rule": ["x"]}),
        ("alerts", ALERT | {"rule": "other"}),
        ("alerts", ALERT | {"breach": 1}),
        ("alerts", ALERT | {"subject": None}),
        ("alerts", DEEP),
    ],
)
def test_a_run_or_an_alert_that_is_damaged_is_left_out(objects, kind, content, caplog):
    objects.commit("a", [{"id": 1}])
    known = runs(objects.index)
    write(objects, f"O/{kind}/000000000900.json", content)
    assert (runs(objects.index), alerts(objects.index)) == (known, [])
    assert f"O/{kind}/000000000900.json is left out" in caplog.text
    assert "1 objects" in index_page([objects.index])
    assert IndexDaemon(objects.location).step()


# -- Facts


def newest(objects):
    return objects.index.version_name("000001", objects.index.versions("000001")[-1])


def of_segment(**changes):
    return lambda content: content["runs"][-1][0].update(changes)


FACTS = {
    "log": "O/log/000000000002.json",
    "version": None,
    "definition": "O/pipelines/000001/000000000000.json",
    "edit": "O/edits/000000000001.json",
}


@pytest.mark.parametrize(
    ("fact", "changes"),
    [
        ("log", {"number": "x"}),
        ("log", {"number": 1}),
        ("log", {"shards": 0}),
        ("log", {"shards": "x"}),
        ("log", {"shards": None}),
        ("log", {"shards": True}),
        ("log", {"shards": 4}),
        ("log", {"changes": [[]]}),
        ("log", {"states": []}),
        ("log", {"states": {"a": 5}}),
        ("log", {"serving": "\ud800"}),
        ("log", {"kind": "other"}),
        ("log", {"time": "yesterday"}),
        ("log", {"edits": 5}),
        ("log", {"building": {"pipeline": "x", "since": 0, "definition": {}, "swap": True, "drop_edits": []}}),
        ("version", {"number": 1}),
        ("version", {"count": "x"}),
        ("version", {"count": -5}),
        ("version", {"edits": "x"}),
        ("version", {"runs": [5]}),
        ("version", {"shares": [[1, 2, 3]]}),
        ("version", of_segment(rows=10**12)),
        ("version", of_segment(rows=-(10**12))),
        ("version", of_segment(deleted=10**13)),
        ("version", of_segment(size=10**30)),
        ("version", of_segment(part=99)),
        ("version", of_segment(shard="x")),
        ("version", of_segment(name="../x")),
        ("definition", {"facts": {}}),
        ("definition", {"facts": 5}),
        ("definition", {"facts": {"name": "O", "key": 5, "datasources": []}}),
        ("definition", {"facts": {"name": "O", "key": [["id", "bigint"]], "datasources": [5]}}),
        ("definition", {"facts": {"name": "O", "key": [["id", "bigint"]], "datasources": [{"name": "a"}]}}),
        ("edit", {"offset": "x"}),
        ("edit", {"offset": 2}),
        ("edit", {"time": 10**30}),
        ("edit", {"data": "x"}),
        ("edit", {"changes": [5]}),
        ("edit", {"changes": [edited(name=[5, "x"])]}),
        ("edit", {"changes": [edited(["x"])]}),
        ("edit", {"changes": [edited([None])]}),
        ("edit", {"changes": [edited([])]}),
        ("edit", {"changes": [edited([10**30])]}),
        ("log", DEEP),
        ("version", DEEP),
        ("definition", DEEP),
        ("edit", DEEP),
        ("log", b"[1]"),
    ],
)
def test_a_fact_of_other_values_is_damaged_by_name(objects, fact, changes):
    objects.commit("a", [{"id": 1, "name": "x"}])
    objects.commit("a", [{"id": 1, "name": "y"}])
    write(objects, FACTS["edit"], edit_fact(edited()))
    name = FACTS[fact] or newest(objects)
    write(objects, name, changes) if isinstance(changes, bytes) else change(objects, name, changes)
    with pytest.raises(FatalError, match=rf"{name} of the (index|state) is damaged[\s\S]*restore the location"):
        objects.node()
    for read in (verify, lambda index: explain(index, 1), lambda index: index_page([index])):
        with suppress(ForebayError):
            read(objects.index)


def test_a_fact_that_lacks_a_field_with_a_default_is_one_of_an_older_version(objects):
    objects.commit("a", [{"id": 1}])
    for fact, field in (("O/log/000000000001.json", "before"), (newest(objects), "shares")):
        change(objects, fact, lambda content, field=field: content.pop(field))
    assert objects.node().get(1) is not None and verify(objects.index).is_equal


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/dev/zero"), os.mkfifo], ids=["link", "pipe"])
@pytest.mark.parametrize("of_log", [True, False])
def test_a_fact_that_is_no_regular_file_is_refused(objects, make, of_log):
    objects.commit("a", [{"id": 1}])
    node = objects.node()
    name = objects.index.log.name(2) if of_log else objects.index.version_name("000001", node.version.number + 1)
    make(path_of(objects, name))
    with pytest.raises(ConfigurationError, match=f"{name}' is a link or something else than a file"):
        node.refresh()
    assert node.count() == 1


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/dev/zero"), os.mkfifo], ids=["link", "pipe"])
def test_a_segment_of_a_state_or_an_index_that_is_no_regular_file_is_refused(objects, make):
    objects.commit("a", [{"id": 1}])
    state = next(info for run in objects.index.head().states["a"].shards for infos in run for info in infos)
    for segment in (objects.index.newest_version("000001").segments[0], state):
        path = path_of(objects, segment.name)
        path.unlink()
        make(path)
        with pytest.raises(ConfigurationError, match="is a link or something else than a file"):
            verify(objects.index)
        path.unlink()
    with pytest.raises(ForebayError):
        objects.commit("a", [{"id": 1, "name": "y"}])


# -- Segments


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        (["DROP TABLE o"], "lacks 'CREATE INDEX o0"),
        (["DROP TABLE d"], "lacks 'CREATE TABLE d"),
        (["DROP TABLE f"], 'lacks "CREATE VIRTUAL TABLE f'),
        (["DROP TABLE o", "CREATE TABLE o (id, k)"], r"has 'CREATE TABLE o \(id, k\)"),
        (
            [
                "ALTER TABLE o RENAME TO p",
                (
                    "CREATE VIEW o AS WITH RECURSIVE r(id, k, c0, c1, c2, c3) AS (SELECT 1, x'00', 1, 1, 1, 1 "
                    "UNION ALL SELECT id + 1, x'00', 1, 1, 1, 1 FROM r) SELECT * FROM r"
                ),
            ],
            'has \'CREATE INDEX o0 ON "p"',
        ),
        (["CREATE TRIGGER t AFTER INSERT ON d BEGIN SELECT 1; END"], "has 'CREATE TRIGGER"),
        (["UPDATE o SET k = 'text' WHERE id = 1"], "a key is text"),
    ],
)
def test_a_segment_with_other_tables_is_refused_by_name(objects, statements, message):
    objects.commit("a", [{"id": number, "note": "x"} for number in range(30)])
    node = objects.node()
    objects.commit("a", [{"id": number, "note": "y"} for number in range(5)])
    version = objects.index.newest_version("000001")
    segment = version.runs[-1][0]
    path = path_of(objects, segment.name)
    with sqlite3.connect(path, isolation_level=None) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    data = path.read_bytes()
    changes = of_segment(size=len(data), digest=hashlib.sha256(data).hexdigest())
    change(objects, newest(objects), changes)
    with pytest.raises(FatalError, match=rf"the segment {segment.name} is damaged[\s\S]*follow\(full=True\)") as caught:
        node.refresh()
    caught.match(message)
    assert node.get(1)["note"] == "x"


def test_a_value_of_another_type_in_a_segment_is_named(objects_at):
    objects = objects_at(ObjectType("O", {"id": "bigint"}, [Datasource("a", {"d": Property("date")})]))
    objects.commit("a", [{"id": 1}])
    segment = objects.index.newest_version("000001").runs[-1][0]
    path = path_of(objects, segment.name)
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.execute("UPDATE o SET c1 = 'x'")
    connection.close()
    data = path.read_bytes()
    change(objects, newest(objects), of_segment(size=len(data), digest=hashlib.sha256(data).hexdigest()))
    node = objects.node()
    for ask in (lambda: node.get(1), node.objects.fetch):
        with pytest.raises(RetriableError, match=r"of version 1 of the pipeline 000001 cannot be read[\s\S]*full=True"):
            ask()


@pytest.mark.parametrize("kind", ["decimal(18,2)", "decimal(38,2)"])
def test_a_damaged_decimal_of_a_state_is_a_typed_error(objects_at, kind):
    definition = ObjectType(
        "O", {"id": "bigint"}, [Datasource("a", {"n": Property(kind)}), Datasource("b", {"c": Property("string")})]
    )
    objects = objects_at(definition, shards=1, types={"a": {"n": kind}})
    objects.commit("a", [{"id": key, "n": Decimal("1234567.25")} for key in range(9)])
    (file,) = Path(objects.location).glob("O/states/a/*.arrow")
    data = bytearray(file.read_bytes())
    data[data.index((123456725).to_bytes(16, "little")) + 15] = 0x7F  # beyond the digits of the type
    file.write_bytes(data)
    with pytest.raises(FatalError, match=r"a row of the states has a value[\s\S]*forebay index verify"):
        objects.commit("b", [{"id": 3, "c": "x"}])
    assert f"{file.name} of the state is damaged" in str(verify(objects.index))


def test_why_names_a_segment_that_is_damaged(objects):
    objects.commit("a", [{"id": 1, "x": 1}])
    segment = objects.index.newest_version("000001").runs[-1][0]
    path = path_of(objects, segment.name)
    path.write_bytes(path.read_bytes()[:100] + bytes(path.stat().st_size - 100))
    with pytest.raises(FatalError, match=rf"the segment {segment.name} cannot be read[\s\S]*forebay index verify"):
        explain(objects.index, 1)


# -- Caches


@pytest.mark.parametrize("content", [b"[]", b"3", b'"x"', b'{"location":5}', b"[" * 100_000, b"\xff"])
def test_a_cache_whose_owner_cannot_be_read_is_claimed(objects, tmp_path, content):
    objects.commit("a", [{"id": 1}])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "node.json").write_bytes(content)
    with SearchNode(objects.location, "O", cache=tmp_path / "mine") as node:
        assert node.count() == 1
    assert json.loads((tmp_path / "mine" / "node.json").read_bytes())["object_type"] == "O"


@pytest.mark.parametrize("name", ["node.json", ".lock"])
def test_a_link_in_a_cache_is_not_followed(objects, tmp_path, name):
    objects.commit("a", [{"id": 1}])
    (tmp_path / "mine").mkdir()
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "mine" / name).symlink_to(tmp_path / "victim")
    with pytest.raises(ConfigurationError, match=rf"{name}' is a link[\s\S]*option: cache"):
        SearchNode(objects.location, "O", cache=tmp_path / "mine")
    assert (tmp_path / "victim").read_text() == "precious"
    (tmp_path / "mine" / name).unlink()
    with SearchNode(objects.location, "O", cache=tmp_path / "mine") as node:
        assert node.count() == 1


def test_a_copy_that_is_a_link_is_replaced(objects, tmp_path):
    objects.commit("a", [{"id": 1}])
    SearchNode(objects.location, "O", cache=tmp_path / "mine").close()
    (copy,) = (tmp_path / "mine").glob("*.db")
    copy.rename(tmp_path / "elsewhere")
    copy.symlink_to(tmp_path / "elsewhere")
    with SearchNode(objects.location, "O", cache=tmp_path / "mine") as node:
        assert node.get(1) is not None
    assert not copy.is_symlink()


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """The directory for copies of jobs, of a location that is not local."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
    monkeypatch.setattr(RetryingStateStore, "local_path", lambda store, name: None)
    return tmp_path / "local" / f"forebay-index-{os.geteuid()}"


def test_copies_of_jobs_are_of_the_user_alone_and_go_when_they_are_old(objects, shared):
    objects.commit("a", [{"id": 1}])
    assert verify(objects.index).is_equal
    assert shared.stat().st_mode & 0o077 == 0
    (copy,) = shared.glob("*/*.db")
    other = shared / "other"
    other.mkdir()
    for old in (other / "x.db", other / ".new-x", copy.with_name("old.db")):
        old.write_bytes(b"x")
        os.utime(old, (time.time() - 100_000,) * 2)
    os.utime(copy, (time.time() - 10_000,) * 2)
    assert verify(objects.index).is_equal
    assert ([*shared.glob("*/*.db")], [*other.iterdir()]) == ([copy], []), "another job is about to write there"
    assert time.time() - copy.stat().st_mtime < 5_000


@pytest.mark.parametrize("make", ["link", "open", "file"])
def test_copies_of_jobs_are_not_written_where_others_can(objects, shared, tmp_path, make):
    objects.commit("a", [{"id": 1}])
    shared.parent.mkdir(exist_ok=True)
    for file in shared.glob("*/*"):
        file.unlink()
    (tmp_path / "victim").mkdir()
    {
        "link": lambda: shared.symlink_to(tmp_path / "victim"),
        "open": lambda: (shared.mkdir(), shared.chmod(0o777)),
        "file": shared.touch,
    }[make]()
    with pytest.raises(ConfigurationError, match=rf"{shared.name}'[\s\S]*SPARK_LOCAL_DIRS"):
        verify(objects.index)
    assert list((tmp_path / "victim").iterdir()) == []


def test_a_directory_for_copies_that_cannot_be_made_is_named(objects, shared):
    objects.commit("a", [{"id": 1}])
    shutil.rmtree(shared.parent, ignore_errors=True)
    shared.parent.write_bytes(b"")
    with pytest.raises(ForebayError, match=shared.parent.name):
        verify(objects.index)


def test_a_fact_that_could_not_be_read_again_is_not_written(objects, monkeypatch):
    objects.commit("a", [{"id": 1, "name": "x"}])
    head, node = objects.index.log.head(), objects.node()
    for wrong in (replace(head, shards=1.5), replace(head, transaction="\ud800"), replace(head, micro_batch=1)):
        with pytest.raises(FatalError, match=r"O/log/0{11}2.json could not be read again, so it was not written"):
            objects.index.log.put(replace(wrong, number=2), head, lambda newest: True)
    with pytest.raises(FatalError, match="could not be read again"):
        objects.index.put_version(replace(objects.index.newest_version("000001"), number=9, data="x"))
    monkeypatch.setattr("time.time_ns", lambda: 1 << 67)
    with pytest.raises(ConfigurationError, match="the clock of this computer"):
        node.edit(1, name="y")
    monkeypatch.undo()
    assert node.edit(1, name="z") == 1 and objects.index.log.head() == head
