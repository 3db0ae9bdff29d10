# SPDX-License-Identifier: Apache-2.0
"""Files in a stream: budgets of bytes, changed files, late ones, empty ones, clean-up, and what comes of failures."""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from forebay.errors import ConfigurationError, DataError, RetriableError
from forebay.sources.files import FileSource
from forebay.storage import local

Put = Callable[..., Path]
Begin = Callable[..., Any]
NOON = 1_700_000_000
DAY = 86_400


def numbers(first: int, count: int) -> str:
    return "".join(f"{number:09}\n" for number in range(first, first + count))


def groups(count: int, rows: int) -> bytes:
    """A Parquet file of `count` row groups, each of `rows` rows that do not compress."""
    sink = pa.BufferOutputStream()
    values = [os.urandom(8).hex() for _ in range(count * rows)]
    pq.write_table(pa.table({"value": values}), sink, row_group_size=rows, compression="none", use_dictionary=False)
    return sink.getvalue().to_pybytes()


# ---- limits


def test_a_big_file_spans_several_micro_batches_and_the_next_one_follows(put: Put, stream: Begin) -> None:
    put("a.txt", numbers(0, 100))
    put("b.txt", numbers(100, 20), at=1)
    query = stream(max_bytes_per_trigger=300)
    found = query.drain()
    assert [len(rows) for rows in found] == [30, 30, 30, 30]
    assert [value for values in found for value in values] == [f"{number:09}" for number in range(120)]


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_a_run_that_stops_inside_a_file_goes_on_there(put: Put, stream: Begin, stop: int) -> None:
    put("a.csv", "v\n" + numbers(0, 100))
    put("b.csv", "v\n" + numbers(100, 3), at=1)
    query = stream(file_format="csv", format_options={"header": "true"}, max_bytes_per_trigger=333)
    for _ in range(stop):
        query.trigger()
    query.restart()
    rest = query.drain()
    everything = sorted(row[0] for rows in query.batches for row in rows)
    assert everything == [f"{number:09}" for number in range(103)]
    assert rest
    query.restart()
    assert query.drain() == []


def test_a_parquet_file_is_cut_between_row_groups_also_by_a_planner_that_knows_no_footer(
    put: Put, stream: Begin
) -> None:
    put("a.parquet", groups(5, 100))
    put("b.parquet", groups(1, 10), at=1)
    query = stream(file_format="parquet", max_bytes_per_trigger=5000)
    found = []
    while (rows := query.trigger()) is not None:
        found.append(len(rows))
        query.restart()
    assert found == [200, 200, 110]
    assert len({row for rows in query.batches for row in rows}) == 510


def test_one_row_group_larger_than_the_budget_is_taken_whole(put: Put, stream: Begin) -> None:
    put("a.parquet", groups(3, 100))
    put("b.parquet", groups(1, 10), at=1)
    assert [len(rows) for rows in stream(file_format="parquet", max_bytes_per_trigger=1000).drain()] == [
        100,
        100,
        100,
        10,
    ]


def test_a_compressed_file_is_taken_whole_and_alone(put: Put, stream: Begin) -> None:
    put("a.txt", numbers(0, 10))
    put("b.txt.gz", gzip.compress(numbers(10, 1000).encode()), at=1)
    put("c.txt", numbers(1010, 10), at=2)
    assert [len(rows) for rows in stream(max_bytes_per_trigger=100).drain()] == [10, 1000, 10]


def test_limits_of_files_and_of_bytes_hold_together(put: Put, stream: Begin) -> None:
    for number in range(4):
        put(f"{number}.txt", numbers(number * 10, 10), at=number)
    put("4.txt", numbers(40, 40), at=4)
    query = stream(max_bytes_per_trigger=250, max_files_per_trigger=3)
    assert [len(rows) for rows in query.drain()] == [25, 25, 25, 5]
    query = stream(max_bytes_per_trigger=10_000, max_files_per_trigger=3)
    assert [len(rows) for rows in query.drain()] == [30, 50]


@pytest.mark.parametrize("option", ["max_rows_per_trigger", "min_rows_per_trigger"])
def test_limits_of_rows_are_refused_by_name(put: Put, stream: Begin, option: str) -> None:
    put("a.txt")
    query = stream(**{option: 10})
    query.offset = query.planner.latest(query.planner.initial(), limited=False)
    query.planner.commit(query.offset)
    put("b.txt")
    with pytest.raises(ConfigurationError) as raised:
        query.trigger()
    assert raised.value.option == ("maxRowsPerTrigger" if "max" in option else "minRowsPerTrigger")


def test_a_micro_batch_of_a_part_of_a_file_is_cut_into_tasks_that_make_up_the_part(put: Put, stream: Begin) -> None:
    put("a.txt", numbers(0, 3_000_000))
    query = stream(max_bytes_per_trigger=20_000_000)
    query.offset = query.plan()
    end = query.plan()
    assert len(query.planner.tasks(query.offset, end)) == 2
    rows = query.read(end)
    assert len(rows) == 1_000_000
    assert {rows[0][0], rows[-1][0]} == {f"{2_000_000:09}", f"{2_999_999:09}"}


# ---- age


def test_files_are_passed_over_by_the_newest_one_taken_and_not_by_the_clock(put: Put, stream: Begin) -> None:
    put("a.txt", at=-100 * DAY)
    put("b.txt", at=-90 * DAY)
    query = stream()
    assert query.drain() == [["a.txt", "b.txt"]]
    put("late.txt", at=-96 * DAY)
    put("later.txt", at=-97.5 * DAY)
    assert query.drain() == [["late.txt"]]
    query.restart(max_file_age="1000d")  # what was passed over does not come back, nor does a.txt
    assert query.drain() == []
    put("new.txt")
    assert query.drain() == [["new.txt"]]


def test_files_dated_before_1970_are_read_and_come_first(put: Put, stream: Begin) -> None:
    put("a.txt")
    put("b.txt", at=-NOON - 5)
    query = stream(max_files_per_trigger=1)
    assert query.drain() == [["b.txt"], ["a.txt"]]
    query.restart()
    assert query.drain() == []


def test_what_is_too_old_is_forgotten_and_stays_away_over_restarts(put: Put, stream: Begin) -> None:
    query = stream(max_file_age="10s")
    for number in range(50):
        put(f"{number:02}.txt", at=number)
        assert query.drain() == [[f"{number:02}.txt"]]
    remembered = query.planner._done
    assert len(remembered) <= 13
    for _ in range(2):
        query.restart()
        assert query.drain() == []
    put("50.txt", at=50)
    assert query.drain() == [["50.txt"]]


def test_a_backlog_with_a_cap_does_not_grow_too_old_while_it_waits(put: Put, stream: Begin) -> None:
    for number in range(30):
        put(f"{number:02}.txt", at=number * DAY - 30 * DAY)
    query = stream(max_files_per_trigger=1)
    assert len(query.drain()) == 30


def test_one_file_of_the_year_2100_hides_no_other_and_is_told(
    put: Put, stream: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    put("2100.txt", at=77 * 365 * DAY)
    put("old.txt", at=-100 * DAY)
    query = stream(max_files_per_trigger=1)
    with caplog.at_level(logging.WARNING):
        assert query.drain() == [["old.txt"], ["2100.txt"]]
        put("late.txt", at=-105 * DAY)
        assert query.drain() == [["late.txt"]]
        query.restart()
        put("later.txt", at=-106 * DAY)
        assert query.drain() == [["later.txt"]]
    assert any("2100.txt lies in the future" in record.getMessage() for record in caplog.records)


# ---- changed files


@pytest.mark.parametrize("over_a_restart", [False, True])
def test_a_file_that_grew_after_it_was_read_is_an_error_that_names_it(
    put: Put, stream: Begin, over_a_restart: bool
) -> None:
    put("a.txt", "1\n")
    query = stream()
    assert query.drain() == [["1"]]
    put("a.txt", "1\n2\n", at=5)
    if over_a_restart:
        query.restart()
    with pytest.raises(DataError, match=r"has changed since it was read \(then 2 bytes.*; now 4 bytes") as raised:
        query.drain()
    assert raised.value.option == "onChangedFile"
    assert str(raised.value.split).endswith("/in/a.txt")
    query.restart(on_changed_file="ignore")
    assert query.drain() == []
    query.restart(on_changed_file="reread")
    assert query.drain() == [["1", "2"]]
    query.restart(on_changed_file="error")
    assert query.drain() == []
    put("a.txt", "3\n", at=6)
    query.restart(on_changed_file="reread")
    assert query.drain() == [["3"]]
    assert query.drain() == []


def test_a_version_that_was_read_does_not_come_again_when_the_first_one_is_forgotten(put: Put, stream: Begin) -> None:
    put("a.txt", "1\n")
    query = stream(on_changed_file="reread", max_file_age="10s")
    query.drain()
    put("a.txt", "2\n", at=8)
    assert query.drain() == [["2"]]
    for number in range(11, 18):
        put(f"{number}.txt", at=number)
        assert query.drain() == [[f"{number}.txt"]]
    assert len(query.planner._done) == 8  # the first version is forgotten
    query.restart()
    assert query.drain() == []


def test_a_file_that_changes_when_half_of_it_was_read_is_read_anew_or_an_error(put: Put, stream: Begin) -> None:
    put("a.txt", numbers(0, 30))
    put("b.txt", numbers(90, 5), at=1)
    query = stream(max_bytes_per_trigger=100, on_changed_file="ignore")
    assert len(query.trigger()) == 10
    put("a.txt", numbers(50, 12), at=2)
    with pytest.raises(DataError, match="has changed since it was read") as raised:
        query.plan()
    assert str(raised.value.advice).endswith("restart with onChangedFile=reread")
    query.restart(on_changed_file="reread")
    rest = [value for values in query.drain() for value in values]
    assert sorted(rest) == numbers(50, 12).split() + numbers(90, 5).split()
    query.restart(on_changed_file="error")
    assert query.drain() == []


def test_files_of_one_name_are_one_file_if_the_user_says_so(put: Put, stream: Begin) -> None:
    put("x/a.txt", "1\n")
    put("y/a.txt", "2\n", at=1)
    query = stream(file_name_only=True, recursive_file_lookup=True)
    assert query.drain() == [["1"]]
    put("z/a.txt", "3\n", at=2)
    put("z/b.txt", "4\n", at=2)
    query.restart()
    assert query.drain() == [["4"]]


@pytest.mark.parametrize("change", ["replaced", "deleted"])
def test_a_file_that_changes_between_plan_and_read_is_an_error_that_names_it(
    put: Put, stream: Begin, change: str
) -> None:
    path = put("a.txt", "1\n")
    query = stream()
    end = query.plan()
    if change == "deleted":
        path.unlink()
    else:
        put("a.txt", "22\n", at=3)
    with pytest.raises(DataError) as raised:
        query.read(end)
    assert str(raised.value.split).endswith("/in/a.txt")


def test_a_file_that_is_gone_when_it_is_read_is_left_out_if_the_user_says_so(put: Put, stream: Begin) -> None:
    path = put("a.txt")
    put("b.txt", at=1)
    query = stream(ignore_missing_files=True)
    end = query.plan()
    path.unlink()
    assert query.read(end) == [("b.txt",)]


# ---- what is there, and what is not


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


def test_a_path_that_is_not_there_is_an_error_at_first_and_waited_for_later(
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


def test_a_glob_that_matches_nothing_yet_is_waited_for(put: Put, stream: Begin, inbox: Path) -> None:
    query = stream(f"{inbox}/day-*/*.txt")
    assert query.drain() == []
    put("day-1/a.txt")
    assert query.drain() == [["day-1/a.txt"]]


def test_what_is_renamed_while_it_is_listed_is_found_by_the_next_look(
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


def test_files_of_another_format_are_refused_where_the_first_ones_told_it(put: Put, stream: Begin) -> None:
    put("a.json", '{"k": 1}\n')
    schema = pa.schema([("k", pa.int64())])
    query = stream(file_format=None, schema=schema)
    assert query.drain() == [[1]]
    put("b.csv", "2\n")
    with pytest.raises(ConfigurationError, match=r"b\.csv' is not") as raised:
        query.drain()
    assert raised.value.option == "fileFormat"


def test_a_replay_that_comes_first_lists_nothing(put: Put, stream: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    put("a.json", '{"k": 1}\n')
    query = stream(file_format=None, schema=pa.schema([("k", pa.int64())]))
    end = query.plan()
    query.restart()

    def refuse(*_: Any) -> Any:
        raise AssertionError("listed")

    monkeypatch.setattr("forebay.sources.files.source.list_files", refuse)
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


# ---- clean-up


@pytest.mark.parametrize(
    ("path", "archive"),
    [
        ("/data/in", "/data/in"),
        ("/data/in", "/data/in/archive"),
        ("/data/in/deeper", "/data/in"),
        ("/data/*", "/data/archive"),
        ("/data/{in,out}/x", "/data/out/x/y"),
        ("/{data/a,other/b}", "/other/b/c"),
        ("/*/in", "/archive"),
    ],
)
def test_an_archive_where_the_stream_reads_is_refused(path: str, archive: str) -> None:
    with pytest.raises(ConfigurationError, match="lies where") as raised:
        FileSource(path=path, file_format="text", clean_source="archive", source_archive_dir=archive)
    assert raised.value.option == "sourceArchiveDir"


def test_an_archive_must_be_named_and_in_the_same_store() -> None:
    with pytest.raises(ConfigurationError, match="not said where"):
        FileSource(path="/data", file_format="text", clean_source="archive")
    with pytest.raises(ConfigurationError, match="different stores"):
        FileSource(path="s3://data/x", file_format="text", clean_source="archive", source_archive_dir="/archive")
    FileSource(path="/data/in*", file_format="text", clean_source="archive", source_archive_dir="/data/archive")


def test_a_file_that_changed_after_it_was_read_is_not_cleaned(put: Put, stream: Begin) -> None:
    path = put("a.txt")
    query = stream(clean_source="delete", on_changed_file="ignore")
    query.trigger(commit=False)
    put("a.txt", "newer\n", at=9)
    query.planner.commit(query.offset)
    assert path.read_text() == "newer\n"


def test_a_clean_up_that_fails_is_a_warning(
    put: Put, stream: Begin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put("a.txt")
    query = stream(clean_source="delete")

    def fail(_self: object, path: str) -> None:
        raise RetriableError(f"no answer for {path}")

    monkeypatch.setattr(local.LocalStore, "delete", fail)
    with caplog.at_level(logging.WARNING):
        query.trigger()
    assert "cleanSource=delete failed for 1 files" in caplog.text


def test_an_archive_on_another_disk_is_copied_to(
    put: Put, stream: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put("a.txt")
    plain = Path.replace

    def crossing(self: Path, target: str) -> Path:
        if self == path:
            raise OSError(18, "Invalid cross-device link")
        return plain(self, target)

    monkeypatch.setattr(Path, "replace", crossing)
    query = stream(clean_source="archive", source_archive_dir=str(tmp_path / "archive"))
    query.trigger()
    assert not path.exists()
    assert [one.name for one in Path(f"{tmp_path}/archive{path.parent}").iterdir()] == ["a.txt"]


def test_files_in_a_store_are_deleted_and_archived(stream: Begin) -> None:
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    store.pipe_file("/inbox/a.txt", b"1\n")
    query = stream("memory://inbox", clean_source="archive", source_archive_dir="memory://archive")
    assert query.drain() == [["1"]]
    assert store.find("/inbox") == []
    assert store.find("/archive") == ["/archive/inbox/a.txt"]
    store.pipe_file("/inbox/b.txt", b"2\n")
    query.restart(clean_source="delete")
    assert query.drain() == [["2"]]
    assert store.find("/inbox") == []
    store.rm("/archive", recursive=True)


# ---- the rest


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
