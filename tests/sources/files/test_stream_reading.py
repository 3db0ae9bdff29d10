# SPDX-License-Identifier: Apache-2.0
"""Discovery of a stream: empty files and directories, failing listings, formats, sinks, partitions."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.errors import ConfigurationError, RetriableError
from forebay.sources.files import FileSource
from forebay.stores import local

Put = Callable[..., Path]
Begin = Callable[..., Any]
DAY = 86_400


def test_empty_files_are_not_planned_and_are_read_when_they_are_filled(put: Put, stream: Begin) -> None:
    put("a.txt", "")
    query = stream()
    assert query.drain() == []
    first = len(query.ends)
    assert query.drain() == []
    assert len(query.ends) == first
    put("a.txt", "now\n")
    assert query.drain() == [["now"]]


def test_a_directory_without_files_needs_a_schema(stream: Begin) -> None:
    with pytest.raises(ConfigurationError, match="there are no files to infer a schema from") as raised:
        stream(file_format="csv", schema=None)
    assert "give a schema" in str(raised.value.advice)
    assert stream(file_format="csv").drain() == []


def test_a_missing_path_is_an_error_at_first_and_waited_for_later(
    put: Put, stream: Begin, inbox: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        stream(f"{inbox}/nowhere").drain()
    put("a.txt")
    query = stream()
    assert query.drain() == [["a.txt"]]
    shutil.move(inbox, f"{inbox}-away")
    with caplog.at_level(logging.WARNING):
        assert query.drain() == []
    assert "does not exist" in caplog.text
    shutil.move(f"{inbox}-away", inbox)
    put("b.txt")
    query.clock.advance(60)
    assert query.drain() == [["b.txt"]]


def test_a_directory_that_is_swapped_during_a_listing_is_waited_for(
    put: Put, stream: Begin, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second lookup finds the new directory, so the result must not depend on one."""
    put("a.txt")
    query = stream()
    assert query.drain() == [["a.txt"]]
    put("b.txt")
    plain, away = local.LocalStore.stat, [str(inbox)]

    def swapped(self: local.LocalStore, path: str) -> Any:
        return away.pop() and None if path in away else plain(self, path)

    monkeypatch.setattr(local.LocalStore, "stat", swapped)
    assert [*query.drain(), *query.drain()] == [["b.txt"]]
    assert not away


@pytest.mark.parametrize("over_a_restart", [False, True])
def test_a_base_path_that_is_away_is_waited_for(put: Put, stream: Begin, tmp_path: Path, over_a_restart: bool) -> None:
    put("day=1/a.txt")
    base = tmp_path / "base"
    base.symlink_to(tmp_path / "in")
    query = stream(f"{base}/day=*", base_path=str(base))
    assert query.drain() == [["day=1/a.txt"]]
    base.unlink()
    if over_a_restart:
        query.restart()
    assert query.drain() == []
    base.symlink_to(tmp_path / "in")
    put("day=2/a.txt")
    query.clock.advance(60)
    assert query.drain() == [["day=2/a.txt"]]
    with pytest.raises(ConfigurationError, match="does not exist") as raised:
        stream(f"{base}/day=*", base_path=f"{base}/nowhere").drain()
    assert raised.value.option == "basePath"


def test_a_glob_that_matches_nothing_yet_is_waited_for(put: Put, stream: Begin, inbox: Path) -> None:
    query = stream(f"{inbox}/day-*/*.txt")
    assert query.drain() == []
    put("day-1/a.txt")
    assert query.drain() == [["day-1/a.txt"]]


def test_a_file_renamed_during_a_listing_is_found_by_the_next_one(
    put: Put, stream: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("a.txt")
    half = put("b.txt.half", "b\n")
    scan = os.scandir

    def renaming(path: str) -> Any:
        entries = list(scan(path))
        if half.exists():
            half.rename(half.with_suffix(""))
        return contextlib.nullcontext(entries)

    with monkeypatch.context() as patch:
        patch.setattr(local, "_scan", renaming)
        query = stream()
        assert query.trigger() == [("a.txt",)]
    assert query.drain() == [["b"]]


def test_a_broken_link_does_not_go_unnoticed(put: Put, stream: Begin, inbox: Path) -> None:
    put("a.txt")
    query = stream()
    query.drain()
    (inbox / "link.txt").symlink_to(inbox / "nowhere.txt")
    with pytest.raises(ConfigurationError, match="broken link"):
        query.drain()


def test_a_listing_that_fails_half_way_loses_nothing(put: Put, stream: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        put(f"k={name}/1.txt", name + "\n")
    query = stream()
    assert query.drain() == [["a", "b", "c"]]
    for name in ("a", "b", "c"):
        put(f"k={name}/2.txt", name + "2\n")
    whole = local.LocalStore.children

    def half(self: local.LocalStore, path: str, keep: Callable[[str], bool]) -> Any:
        if path.endswith("k=b"):
            raise RetriableError("the disk is busy")
        return whole(self, path, keep)

    with monkeypatch.context() as patch:
        patch.setattr(local.LocalStore, "children", half)
        assert query.drain() == []
    query.clock.advance(60)
    assert query.drain() == [["a2", "b2", "c2"]]


def test_files_of_another_format_than_the_first_ones_are_refused(put: Put, stream: Begin) -> None:
    put("a.json", '{"k": 1}\n')
    schema = pa.schema([("k", pa.int64())])
    query = stream(file_format=None, schema=schema)
    assert query.drain() == [[1]]
    put("b.csv", "2\n")
    with pytest.raises(ConfigurationError, match=r"b\.csv' does not") as raised:
        query.drain()
    assert raised.value.option == "fileFormat"


def test_a_replay_at_the_start_lists_nothing(put: Put, stream: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    put("a.json", '{"k": 1}\n')
    query = stream(file_format=None, schema=pa.schema([("k", pa.int64())]))
    end = query.plan()
    query.restart()

    def refuse(*_: Any) -> Any:
        raise AssertionError("listed")

    monkeypatch.setattr("forebay.sources.files.scan.list_files", refuse)
    assert query.read(end) == [(1,)]


def test_partition_columns_and_times_of_change_work_in_streams(put: Put, stream: Begin) -> None:
    put("day=1/a.json", '{"k": 1}\n', at=-DAY)
    put("day=2/a.json", '{"k": 2}\n', at=0)
    query = stream(file_format="json", schema=None, modified_after="2023-11-14T00:00:00")
    assert query.trigger() == [(2, 2)]
    put("day=3/a.json", '{"k": 3}\n', at=1)
    assert query.trigger() == [(3, 3)]


def test_only_what_a_sink_has_committed_is_read(put: Put, stream: Begin, inbox: Path) -> None:
    first = put("part-0.txt", "0\n")
    put("part-1.txt", "1\n")
    log = inbox / "_spark_metadata"
    log.mkdir()

    def commit(number: int, path: Path) -> None:
        entry = {"path": path.as_uri(), "size": 2, "isDir": False, "action": "add"}
        (log / str(number)).write_text("v1\n" + json.dumps(entry))

    commit(0, first)
    query = stream()
    assert query.drain() == [["0"]]
    commit(1, inbox / "part-1.txt")
    assert query.drain() == [["1"]]
    with pytest.raises(ConfigurationError, match="output of a Spark stream") as raised:
        stream(clean_source="delete").drain()
    assert raised.value.option == "cleanSource"


@pytest.mark.soak
def test_ten_thousand_files_with_state_in_a_directory(put: Put, stream: Begin, tmp_path: Path) -> None:
    for number in range(10_000):
        put(f"{number:05}.txt", "x\n")
    query = stream(state_location=str(tmp_path / "state"), max_files_per_trigger=6000)
    query.plan()
    query.restart()
    assert [query.planner.tasks({}, end) and len(end) > 0 for end in _plans(query)] == [True, True]
    query.restart()
    assert query.plan() is None


def _plans(query: Any) -> Any:
    while (end := query.plan()) is not None:
        yield end
        query.planner.commit(end)
        query.offset = end


def test_in_process_the_source_is_bounded_as_ever(put: Put, inbox: Path) -> None:
    put("a.txt", "1\n")
    assert forebay.run(FileSource(path=str(inbox), file_format="text")).to_table().num_rows == 1


@pytest.mark.parametrize(("option", "value"), [("latest_first", True)])
def test_options_that_would_lose_files_may_not_change(put: Put, stream: Begin, option: str, value: Any) -> None:
    put("a.txt")
    query = stream()
    query.drain()
    query.restart(**{option: value})
    with pytest.raises(ConfigurationError, match="latestFirst"):
        query.drain()


def test_a_partition_directory_that_comes_late_leaves_out_files_beside_it_with_a_warning_each_time(
    put: Put, stream: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> int:
        found = sum("they are outside the partition directories" in record.message for record in caplog.records)
        caplog.clear()
        return found

    put("a.txt")
    query = stream(path_glob_filter="*.txt")
    assert (query.drain(), warnings()) == ([["a.txt"]], 0)
    put("day=1/b.txt", "b\n")
    assert (query.drain(), warnings()) == ([["b"]], 1)
    put("c.txt")
    assert (query.drain(), warnings()) == ([], 1)
    assert (query.drain(), warnings()) == ([], 0)
