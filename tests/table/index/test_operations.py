# SPDX-License-Identifier: Apache-2.0
"""What operators ask for: verify, why, gc, status."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from forebay.errors import ConfigurationError, FatalError
from forebay.table.changelog.state import segments
from forebay.table.index import merge
from forebay.table.index.gc import collect
from forebay.table.index.opened_segments import KeyFilter
from forebay.table.index.pipelines import IndexStore
from forebay.table.index.status import status
from forebay.table.index.verify import verify
from forebay.table.index.why import explain


def rows(*names):
    return [{"id": number, "name": name, "note": f"note {name}"} for number, name in enumerate(names)]


def everything(objects):
    """The names of all files below the location."""
    root = objects.index.store.local_path("O").parent
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_an_index_is_equal_to_its_states(objects):
    objects.commit("a", rows(*"abcdefgh"))
    objects.commit("b", [{"id": 100, "city": "x"}])
    objects.commit("a", [{"id": 3}], "delete")
    node = objects.node()
    for view in (None, node.view()):
        found = verify(objects.index, view)
        assert found.is_equal and found.objects == 8
        assert "equal to the states of all datasources, 8 objects" in str(found)


def changed(objects, *statements):
    """Change a segment of the index, and let its version name the bytes."""
    version = objects.index.newest_version("000001")
    path = objects.index.store.local_path(version.segments[-1].name)
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return path


def test_keys_that_differ_are_named(objects_at, monkeypatch):
    objects = objects_at(shards=1)
    objects.commit("a", rows(*"abcdefgh"))
    objects.commit("a", rows(*"ABCDEFGH"))
    changed(
        objects,
        "UPDATE o SET c1 = 'wrong' WHERE c0 = 2",
        "DELETE FROM o WHERE c0 = 4",
        "UPDATE o SET c0 = 77 WHERE c0 = 6",
    )
    monkeypatch.setattr("forebay.table.index.verify._damaged", lambda *arguments: [])
    found = verify(objects.index)
    assert not found.is_equal and found.differing == 4
    assert set(found.named) == {
        "(id=2) differs from the rows of its datasources",
        "(id=4) is missing in the index",
        "(id=77) is in the index, and in no datasource",
        "(id=6) is missing in the index",
    }


def test_keys_of_a_node_that_are_lost_are_found(objects):
    objects.commit("a", rows(*[str(number) for number in range(1000)]))
    objects.commit("a", rows("new"))
    view = objects.node().view()
    view.runs[0][0].keys = KeyFilter(b"\0")
    found = verify(objects.index, view)
    assert found.named == ("(id=0) is there twice",)


def test_a_wrong_number_of_objects_is_found(objects, monkeypatch):
    objects.commit("a", rows(*"abc"))
    monkeypatch.setattr(merge, "_existed", lambda changed, codes, places, size: np.zeros(size, np.bool_))
    objects.commit("a", rows("new"))
    assert objects.node().count() == 4
    assert verify(objects.index).problems == ("the version has 3 objects, and says 4",)


def test_damaged_and_missing_files_are_named(objects):
    objects.commit("a", rows(*"abc"))
    path = changed(objects, "UPDATE o SET c1 = 'wrong'")
    found = verify(objects.index)
    assert [path.name in problem for problem in found.problems] == [True]
    path.unlink()
    assert "does not exist" in verify(objects.index).problems[0]
    state = objects.index.log.head().changes
    name = next(info.name for run in state for info in run)
    objects.index.store.local_path(name).write_bytes(b"x")
    assert len(verify(objects.index).problems) == 2


def flipped(objects):
    """Change a byte of a value in the oldest segment of the state of `a`."""
    info = objects.index.log.head().states["a"].shards[0][0][0]
    path = objects.index.store.local_path(info.name)
    path.write_bytes(path.read_bytes().replace(b"first", b"worst"))
    return info.name


def test_a_state_that_is_damaged_after_it_was_verified_is_named(objects_at):
    objects = objects_at(shards=1)
    objects.commit("a", rows("first", "b"))
    assert verify(objects.index).is_equal
    name = flipped(objects)
    assert verify(objects.index).problems == (f"the file {name} of the state is damaged: its digest differs",)


@pytest.mark.parametrize("what", ["merge", "snapshot", "full"])
def test_a_damaged_state_is_never_written_again_under_a_new_digest(objects_at, what):
    objects = objects_at(shards=1)
    objects.commit("a", rows("first", "b"))
    name, before = flipped(objects), objects.index.log.head().states["a"]
    segments._verified.clear()  # as a process that begins
    with pytest.raises(FatalError, match=rf"the file {name} of the state is damaged: its digest differs"):
        if what == "full":
            objects.follow(full=True)
        elif what == "snapshot":
            objects.commit("a", rows("first", "c"), "snapshot")
        for number in range(20):
            objects.commit("a", [{"id": 100 + number, "name": "x"}])
    assert objects.index.log.head().states["a"].shards[0][0] == before.shards[0][0]
    assert objects.node().get(0)["name"] == "first"


def test_why_shows_rows_rule_segment_and_version(objects):
    objects.commit("a", [{"id": 7, "name": "x"}, {"id": 8, "name": "y"}])
    objects.commit("b", [{"id": 7, "city": "c"}])
    found = explain(objects.index, 7)
    version = objects.index.newest_version("000001")
    assert found.rows == {"a": {"id": 7, "name": "x", "note": None}, "b": {"id": 7, "city": "c"}}
    assert found.found == {"id": 7, "name": "x", "note": None, "city": "c"}
    assert found.segment in {segment.name for segment in version.segments}
    text = str(found)
    assert "datasource a: id=7, name='x', note=NULL" in text and "city: b.city" in text and "fact 2 of the log" in text
    objects.commit("b", [{"id": 7}], "delete")
    objects.commit("a", [{"id": 7}], "delete", follow=False)
    text = str(explain(objects.index, 7))
    assert "datasource b: no row" in text and "the log is at 4" in text
    objects.follow()
    assert "none has" in str(explain(objects.index, 7))
    with pytest.raises(ConfigurationError, match="is no key"):
        explain(objects.index, "7")


def test_gc_removes_old_facts_and_files_that_nothing_names(objects):
    for number in range(120):
        objects.commit("a", [{"id": number % 7, "name": str(number)}], follow=number % 3 == 0)
    objects.follow()
    store, log = objects.index.store, objects.index.log
    lost = ["O/states/a/000000000003-lost.arrow", "O/pipelines/000001/segments/000000000003-lost.db"]
    for name in lost:
        store.put_if_absent(name, b"x")
    recent = "O/states/a/000000000110-running.arrow"
    store.put_if_absent(recent, b"x")
    node = objects.node()
    before = everything(objects)
    planned = collect(objects.index, dry_run=True)
    assert everything(objects) == before
    assert collect(objects.index) == planned
    assert set(lost) <= set(planned.files) and recent not in planned.files
    assert log.numbers() == list(range(21, 121))
    assert verify(objects.index).is_equal and verify(objects.index, node.view()).is_equal
    assert before - everything(objects) == {*planned.facts, *planned.files}
    assert objects.rows(objects.node(), "id", "name") == [
        (key, str(max(number for number in range(120) if number % 7 == key))) for key in range(7)
    ]
    # A node that was away, writers and followers go on.
    objects.commit("a", [{"id": 0, "name": "after"}])
    node.refresh()
    assert node.get(0)["name"] == "after"
    assert collect(objects.index, keep=1, versions=1).facts
    assert len(log.numbers()) == 2 and verify(objects.index).is_equal


def test_gc_keeps_what_a_follower_has_not_seen(objects):
    objects.commit("a", rows(*"abc"))
    for number in range(5):
        objects.commit("a", [{"id": number, "name": "later"}], follow=False)
    collect(objects.index, keep=1)
    assert objects.index.log.numbers() == [1, 2, 3, 4, 5, 6]
    assert objects.follow().decision == "INCREMENTAL"
    assert verify(objects.index).is_equal


def test_a_follower_whose_facts_are_gone_builds_everything(objects):
    objects.commit("a", rows(*[str(number) for number in range(50)]))
    for number in range(5):
        objects.commit("a", [{"id": number, "name": "later"}], follow=False)
    objects.index.store.delete([objects.index.log.name(number) for number in range(4)])
    version = objects.follow()
    assert (version.decision, version.reason) == ("FULL", "facts of the log since the last version were collected")
    assert verify(objects.index).is_equal


def test_a_paused_follower_that_puts_a_collected_version_again_does_not_count(objects, monkeypatch):
    objects.commit("a", rows(*[str(number) for number in range(50)]))
    objects.commit("a", [{"id": 1, "name": "x"}], follow=False)
    put, once = type(objects.index).put_version, [1]

    def late(index, version):
        if once:
            once.pop()
            for number in range(4):
                objects.commit("a", [{"id": 2, "name": str(number)}])
            objects.index.store.delete([index.version_name("000001", number) for number in range(1, 5)])
        return put(index, version)

    monkeypatch.setattr(type(objects.index), "put_version", late)
    assert objects.follow().data == 6
    assert objects.index.versions("000001") == [0, 5]
    assert verify(objects.index).is_equal


def test_status_has_datasources_and_pipelines(objects):
    objects.commit("a", rows(*"abc"))
    objects.commit("a", [{"id": 1, "sequence": 1}], transaction="q/0", owner="q", batch=0, adopt=True, follow=False)
    found = status(objects.index)
    assert [(each.name, each.rows, each.owner, each.moved) for each in found.datasources] == [
        ("a", 3, "q", 2),
        ("b", 0, None, None),
    ]
    assert [(each.behind, each.serving, each.version.count) for each in found.pipelines] == [(1, True, 3)]


def test_before_anything_is_committed_operations_say_so(objects):
    for call in (status, verify, collect, lambda index: explain(index, 1)):
        with pytest.raises(ConfigurationError, match="nothing of 'O' is below"):
            call(objects.index)


def test_status_is_a_table(objects):
    objects.commit("a", rows(*"abc"))
    objects.node().edit(1, name="e")
    shown = str(status(objects.index))
    assert shown.startswith("O: fact 1 of the log, ") and "1 are pending since" in shown
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "│" in line]
    assert ["a", "3", "1", "Funnel.commit", "1"] in [each[:5] for each in cells]
    assert ["pipeline", "version", "objects", "behind", "segment runs", "bytes", "last step"] in cells
    assert ["000001 (serves)", "1", "3", "0", "1"] in [each[:5] for each in cells]


@pytest.mark.parametrize(
    "name", ["log/99.json", "log/٣.json", "pipelines/000001/9.json", "edits/7.json", "runs/9.json"]
)
def test_files_with_names_of_no_fact_hold_up_nothing(objects, name):
    """A copy that someone left there has a number too; whoever waits for a fact with it waits for ever."""
    objects.commit("a", rows(*"ab"))
    stray = Path(objects.location, "O", name)
    stray.parent.mkdir(exist_ok=True)
    stray.write_text("{}")
    objects.commit("a", [{"id": 1, "name": "new"}])
    node = objects.node()
    assert node.edit(1, note="x") == 1
    objects.flush()
    collect(objects.index, keep=1, versions=1)
    node.refresh()
    assert (node.get(1)["name"], node.get(1)["note"]) == ("new", "x") and verify(objects.index).is_equal
    assert stray.exists()


@pytest.mark.parametrize(
    ("location", "storage", "text"),
    [
        ("ftp://host/x", {}, "location cannot be a URL with the scheme 'ftp'"),
        ("s3://", {}, "names no bucket"),
        ("s3://user:word@bucket", {}, "the URL of location contains credentials"),
        ("{file}/x", {}, "is not a directory"),
        ("{file}", {"key": "x"}, "takes no storage options"),
    ],
)
def test_errors_of_the_store_name_the_arguments_of_an_index(tmp_path, location, storage, text):
    """The same stores keep the state of streams, whose users have other options."""
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigurationError, match=text) as refused:
        IndexStore(location.format(file=file), "O", storage).log.head()
    assert refused.value.option in ("location", "storage.key")
    words = set(str(refused.value).replace(".", " ").split())
    assert not {"stateLocation", "stateStorage", "stream", "checkpoint"} & words


def test_a_name_that_leaves_the_location_is_refused_for_an_index_too(objects):
    objects.commit("a", rows(*"ab"))
    with pytest.raises(ConfigurationError, match="would be outside of it") as refused:
        objects.index.store.get("O/../../x")
    assert (refused.value.option, "the whole location" in refused.value.advice) == ("location", True)
    assert "checkpoint" not in str(refused.value)
