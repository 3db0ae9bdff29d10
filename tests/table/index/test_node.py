# SPDX-License-Identifier: Apache-2.0
"""Hydration, flips and the cache of a node."""

from __future__ import annotations

import errno
import pickle
import subprocess
import sys
import threading
from functools import reduce
from operator import or_
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ConfigurationError, FatalError, RetriableError
from forebay.index import SearchNode
from forebay.state.local_state_store import LocalStateStore
from forebay.table.index import segment_cache
from forebay.table.index.opened_segments import KeyFilter
from forebay.table.index.pipelines import IndexStore


def rows(*names, start=0):
    return [{"id": start + number, "name": name, "note": f"note {name}"} for number, name in enumerate(names)]


def test_a_node_needs_neither_spark_nor_pyarrow(objects, tmp_path):
    objects.commit("a", rows("x", "y"))
    program = f"""
import sys
from forebay.index import SearchNode
node = SearchNode({objects.location!r}, "O", cache={str(tmp_path / "other")!r})
last = node.search("note").order_by("-name").fetch().rows[0]
print(node.get(1)["name"], node.where("name > 'x'").count(), last["id"])
loaded = {{name.partition(".")[0] for name in sys.modules}}
print(sorted(loaded & {{"pyarrow", "pyspark", "numpy", "py4j", "pandas"}}))
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.split("\n") == ["y 1 1", "[]", ""]


def test_before_anything_is_committed_there_is_no_index(objects, tmp_path):
    with pytest.raises(ConfigurationError, match="nothing of 'O' is below"):
        objects.node()
    objects.begin()
    with pytest.raises(ConfigurationError, match="there is no index of 'O' below"):
        objects.node()


def test_progress_has_files_and_bytes(objects):
    objects.commit("a", rows(*"abcdefgh"))
    objects.commit("b", [{"id": 1, "city": "c"}])
    segments = objects.index.newest_version("000001").segments
    seen = []
    node = objects.node(progress=lambda *numbers: seen.append(numbers))
    total = sum(each.size for each in segments)
    assert seen[0] == (0, len(segments), 0, total)
    assert seen[-1] == (len(segments), len(segments), total, total)
    assert len(seen) == len(segments) + 1
    del seen[:]
    node.refresh()
    assert seen == []


def test_a_refresh_copies_only_new_segments(objects, monkeypatch):
    objects.commit("a", rows(*[str(number) for number in range(2000)]))
    node = objects.node()
    objects.commit("a", rows("new"))
    read, get = [], LocalStateStore.get
    monkeypatch.setattr(LocalStateStore, "get", lambda store, name: read.append(name) or get(store, name))
    node.refresh()
    assert len([name for name in read if name.endswith(".db")]) == 1
    assert (node.get(0)["name"], node.get(1)["name"], node.count()) == ("new", "1", 2000)


@given(st.lists(st.sets(st.binary(max_size=12), max_size=60), min_size=1, max_size=5))
def test_the_filter_of_several_runs_has_all_their_keys(runs):
    filters = [KeyFilter.of(keys, len(keys)) for keys in runs]
    for keys, of_run in zip(runs, filters, strict=True):
        assert of_run.among(sorted(keys)) == sorted(keys) == reduce(or_, filters).among(sorted(keys))
    others = [number.to_bytes(13) for number in range(1000)]
    assert len(filters[0].among(others)) < 300


def test_rows_that_newer_runs_overrule_are_left_out_of_pages_and_counts(objects):
    objects.commit("a", rows(*["old"] * 100))
    objects.commit("a", rows(*["new"] * 60, start=20))
    objects.commit("a", [{"id": number} for number in range(30, 50)], "delete")
    node = objects.node()
    assert (node.where(name="old").count(), node.where(name="new").count(), node.count()) == (40, 40, 80)
    assert [row["id"] for row in node.where(name="old").limit(30).fetch().rows] == [*range(20), *range(80, 90)]
    page = node.where(name="old").limit(30).fetch().next_page()
    assert [row["id"] for row in page.rows] == [*range(90, 100)] and not page.has_next


def test_a_page_goes_on_in_the_version_that_it_began_with(objects):
    objects.commit("a", rows(*"abcdefgh"))
    node = objects.node()
    page = node.order_by("-name").limit(3).fetch()
    first = page.version
    objects.commit("a", rows(*"zzzzzzzz"), "snapshot")
    objects.commit("a", [{"id": 4}], "delete")
    node.refresh()
    names = []
    while page.rows:
        assert page.version == first
        names += [row["name"] for row in page.rows]
        page = page.next_page()
    assert names == list("hgfedcba")
    assert node.where(name="a").count() == 0
    assert node.version.data == 3 > first.data


def test_versions_are_never_mixed_and_never_go_back_while_they_change(objects):
    """P10: each answer belongs to one version, and versions of a client grow."""
    size, versions = 40, 12
    objects.commit("a", rows(*["v0"] * size))
    node, stop, problems = objects.node(), threading.Event(), []

    def read():
        last = 0
        while not stop.is_set():
            page = node.where("name >= 'v'").limit(1000).fetch()
            names = {row["name"] for row in page.rows}
            if len(names) != 1 or len(page.rows) != size or page.version.data < last:
                problems.append((page.version, len(page.rows), names))
            if names != {f"v{page.version.data - 1}"}:
                problems.append((page.version, names))
            last = page.version.data
            if node.get(3) is None:
                problems.append("key 3 is missing")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for number in range(1, versions):
            objects.commit("a", rows(*[f"v{number}"] * size))
            node.refresh()
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert problems == []
    assert node.version.data == versions


def test_a_cache_belongs_to_one_node(objects, objects_at, tmp_path):
    objects.commit("a", rows("x"))
    cache = tmp_path / "mine"
    node = objects.node(cache=cache)
    with pytest.raises(ConfigurationError, match=r"in use by process[\s\S]*give each node a cache of its own"):
        objects.node(cache=cache)
    node.close()
    with pytest.raises(ConfigurationError, match="is closed"):
        node.get(1)
    other = objects_at()
    other.commit("a", rows("y"))
    with pytest.raises(ConfigurationError, match=r"is of a node of 'O' below .*, and not of 'O' below "):
        other.node(cache=cache)
    assert objects.node(cache=cache).get(0)["name"] == "x"


def test_a_cache_is_of_its_location_from_any_directory(objects, tmp_path, monkeypatch):
    objects.commit("a", rows("x"))
    objects.node(cache=tmp_path / "mine").close()
    place = Path(objects.location)
    monkeypatch.chdir(place.parent)
    with SearchNode(place.name, "O", cache=tmp_path / "mine") as node:
        assert node.count() == 1


def test_a_node_keeps_its_cache_when_the_process_changes_its_directory(objects, tmp_path, monkeypatch):
    objects.commit("a", rows("x"))
    for name in ("here", "there"):
        (tmp_path / name / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    node = objects.node(cache="mine")
    monkeypatch.chdir(tmp_path / "there")
    objects.commit("a", rows("y"))
    node.refresh()
    assert node.get(0)["name"] == "y" and list((tmp_path / "there" / "mine").iterdir()) == []


def test_a_node_removes_no_files_of_others_from_its_cache(objects, tmp_path):
    (tmp_path / "mine").mkdir()
    others = {"customers.db", ".new-thing", f"{'a' * 31}.db"}
    for name in others:
        (tmp_path / "mine" / name).write_text("of somebody else")
    objects.commit("a", rows("x"))
    node = objects.node(cache=tmp_path / "mine")
    objects.commit("a", rows("y"))
    node.refresh()
    assert others < {file.name for file in (tmp_path / "mine").iterdir()}


def test_what_workers_get_is_at_the_same_place_from_any_directory(objects, tmp_path, monkeypatch):
    objects.commit("a", rows("x"))
    place = Path(objects.location)
    monkeypatch.chdir(place.parent)
    sent = pickle.dumps(IndexStore(place.name, "O"))
    monkeypatch.chdir(tmp_path)
    assert pickle.loads(sent).head().number == 1


def test_a_node_that_starts_again_copies_nothing_that_it_has(objects, tmp_path):
    objects.commit("a", rows(*"abc"))
    objects.node(cache=tmp_path / "mine").close()
    seen = []
    assert objects.node(cache=tmp_path / "mine", progress=lambda *numbers: seen.append(numbers)).count() == 3
    assert seen == []


@pytest.mark.parametrize("damage", ["byte", "cut", "gone", "garbage"])
def test_a_damaged_copy_is_fetched_again(objects, tmp_path, damage):
    objects.commit("a", rows(*"abc"))
    objects.node(cache=tmp_path / "mine").close()
    for file in (tmp_path / "mine").glob("*.db"):
        data = file.read_bytes()
        if damage == "gone":
            file.unlink()
        else:
            middle = len(data) // 2
            flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
            file.write_bytes({"byte": flipped, "cut": data[:100], "garbage": b"x" * len(data)}[damage])
    node = objects.node(cache=tmp_path / "mine")
    assert (node.get(2)["name"], node.search("c").count()) == ("c", 1)


def replaced(store, name, data):
    path = store.local_path(name)
    path.unlink()
    path.write_bytes(data)


def test_a_damaged_segment_is_named_and_the_version_before_answers(objects):
    objects.commit("a", rows(*[str(number) for number in range(1000)]))
    node = objects.node()
    objects.commit("a", rows("new"))
    segment = objects.index.newest_version("000001").runs[-1][0]
    data = bytearray(objects.index.store.get(segment.name))
    data[len(data) // 2] ^= 1
    replaced(objects.index.store, segment.name, bytes(data))
    with pytest.raises(FatalError, match=rf"the segment {segment.name} is damaged"):
        node.refresh()
    assert (node.get(0)["name"], node.version.data) == ("0", 1)
    objects.follow(full=True)
    node.refresh()
    assert (node.get(0)["name"], node.version.data) == ("new", 2)


def test_a_segment_that_was_collected_leads_to_the_newest_version(objects, monkeypatch):
    objects.commit("a", rows(*"abc"))
    fetch, once = segment_cache.SegmentCache.fetch, [1]

    def late(cache, segments, progress=None):
        if once:
            once.pop()
            objects.commit("a", rows(*"xyz"), "snapshot")
            objects.index.store.delete([each.name for each in segments])
        fetch(cache, segments, progress)

    monkeypatch.setattr(segment_cache.SegmentCache, "fetch", late)
    node = objects.node()
    assert (node.get(0)["name"], node.version.data) == ("x", 2)


def test_a_node_that_was_away_while_its_version_was_collected_lists_again(objects):
    objects.commit("a", rows(*"abc"))
    node = objects.node()
    for number in range(5):
        objects.commit("a", rows(f"v{number}"))
    objects.index.store.delete([objects.index.log.name(number) for number in range(6)])
    objects.index.store.delete([objects.index.version_name("000001", number) for number in range(1, 6)])
    assert (node.refresh().data, node.get(0)["name"]) == (6, "v4")


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_a_full_disk_keeps_the_version_before_and_names_the_bytes(objects, monkeypatch):
    objects.commit("a", rows("old"))
    node = objects.node()
    objects.commit("a", rows("new"))
    needed = objects.index.newest_version("000001").segments[-1].size
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda path: Usage(0, 0, 100))
        with pytest.raises(RetriableError, match=rf"is full: {needed:,} bytes are needed, 100 are free"):
            node.refresh()
    with monkeypatch.context() as patch:

        def full(path, target):
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(Path, "replace", full)
        with pytest.raises(RetriableError, match="is full"):
            node.refresh()
    assert node.get(0)["name"] == "old"
    assert [file for file in Path(node._directory).iterdir() if file.name.startswith(".new")] == []
    node.refresh()
    assert node.get(0)["name"] == "new"


def test_old_segments_leave_the_cache(objects, tmp_path):
    for name in "abcdef":
        objects.commit("a", rows(name))
    node = objects.node(cache=tmp_path / "mine")
    for name in "ghij":
        objects.commit("a", rows(name))
        node.refresh()
    segments = objects.index.newest_version("000001").segments
    assert len(list((tmp_path / "mine").glob("*.db"))) == len(segments)


def test_a_store_that_does_not_answer_leaves_the_version_before(objects, monkeypatch):
    objects.commit("a", rows("old"))
    node = objects.node()

    def away(store, name):
        raise ConfigurationError("no rights")

    monkeypatch.setattr(LocalStateStore, "get", away)
    with pytest.raises(ConfigurationError, match="no rights"):
        node.refresh()
    assert node.get(0)["name"] == "old"


def test_a_key_of_another_type_is_refused(objects):
    objects.commit("a", rows("x"))
    node = objects.node()
    for key in ("0", 0.0, None, (0, 1), True, 1 << 64):
        with pytest.raises(ConfigurationError, match=r"is no key: the key is \(id bigint\)[\s\S]*7 for a bigint"):
            node.get(key)
    assert node.get({"id": 0})["name"] == "x"
