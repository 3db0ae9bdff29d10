# SPDX-License-Identifier: Apache-2.0
"""The event time of files: where it comes from, the order of a stream, and what a micro-batch takes with alignment."""

from __future__ import annotations

import datetime as dt
import io
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.errors import ConfigurationError, DataError, RetriableError
from forebay.formats.parquet import format as parquet_format
from forebay.sources.files import FileSource
from forebay.sources.files import parquet_footers as footer_times

Put = Callable[..., Path]
Begin = Callable[..., Any]
NOON = 1_700_000_000
DAY = 86_400
HOUR = 3_600
UTC = pa.timestamp("us", "UTC")
ROWS = pa.schema([("name", pa.string()), ("ts", UTC)])


def moment(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(NOON, dt.UTC) + dt.timedelta(seconds=seconds)


def parquet(name: str, *seconds: float | None, groups: int = 100, kind: pa.DataType = UTC, **how: Any) -> bytes:
    """Return a file with a row at each time, in seconds after NOON."""
    times = pa.array([None if at is None else moment(at) for at in seconds], pa.timestamp("us", "UTC")).cast(kind)
    sink = io.BytesIO()
    table = pa.table({"name": [name] * len(seconds), "ts": times})
    pq.write_table(table, sink, row_group_size=groups, **how)
    return sink.getvalue()


def drained(query: Any) -> list[list[str]]:
    """Return the distinct names of each micro-batch."""
    return [sorted(set(names)) for names in query.drain()]


@pytest.fixture
def footers(put: Put, stream: Begin) -> Begin:
    """Return a function that writes files and begins a query on them."""

    def begin(files: dict[str, bytes], **options: Any) -> Any:
        for number, (name, data) in enumerate(files.items()):
            put(name, data, at=-number)
        given = {"file_format": "parquet", "schema": ROWS, "file_event_time": "footer:ts", **options}
        return stream(**given)

    return begin


def test_files_come_by_the_statistics_of_their_footers(footers: Begin) -> None:
    files = {
        "a": parquet("a", 500, 400, 90, 600, groups=1),
        "b": parquet("b", 50, 5000),
        "c": parquet("c", 100),
        "d": parquet("d", 101.000001),
    }
    query = footers(files, max_files_per_trigger=1)
    assert query.drain() == [["b"] * 2, ["a"] * 4, ["c"], ["d"]]
    query = footers(files, alignment_max_drift="51s")
    assert drained(query) == [["a", "b", "c"], ["d"]]


@pytest.mark.parametrize("unit", ["ms", "us"])
@pytest.mark.parametrize("zone", ["UTC", None])
def test_the_unit_of_the_file_does_not_matter(footers: Begin, unit: str, zone: str | None) -> None:
    kind = pa.timestamp(unit, zone)
    schema = ROWS.set(1, pa.field("ts", pa.timestamp("us", zone)))
    files = {"a": parquet("a", 7200), "b": parquet("b", -7200, kind=kind), "c": parquet("c", 0, kind=kind)}
    assert footers(files, schema=schema, max_files_per_trigger=1).drain() == [["b"], ["c"], ["a"]]


def test_microseconds_in_an_int64_are_event_times(footers: Begin) -> None:
    schema = ROWS.set(1, pa.field("ts", pa.int64()))
    files = {name: parquet(name, at, kind=pa.int64()) for name, at in (("a", 20), ("b", -20), ("c", 0))}
    assert footers(files, schema=schema, max_files_per_trigger=1).drain() == [["b"], ["c"], ["a"]]


@pytest.mark.parametrize("how", [{}, {"write_statistics": False}])
def test_a_field_of_a_struct_is_an_event_time(footers: Begin, how: dict[str, bool]) -> None:
    schema = pa.schema([("name", pa.string()), ("value", pa.struct([("ts", UTC)]))])
    files = {}
    for name, at in (("a", 20), ("b", -20), ("c", 0)):
        table = pa.table({"name": [name] * 2, "value": pa.array([{"ts": moment(at)}, None], schema.field(1).type)})
        sink = io.BytesIO()
        pq.write_table(table, sink, **how)
        files[name] = sink.getvalue()
    query = footers(files, schema=schema, file_event_time="footer:value.ts", max_files_per_trigger=1)
    assert drained(query) == [["b"], ["c"], ["a"]]


@pytest.mark.parametrize("how", [{"write_statistics": False}, {"use_deprecated_int96_timestamps": True}])
def test_without_statistics_the_column_is_read_and_that_is_said_once(
    footers: Begin, caplog: pytest.LogCaptureFixture, how: dict[str, bool]
) -> None:
    """Spark writes INT96 timestamps unless told otherwise, and no statistics of them."""
    files = {name: parquet(name, at + 60, at, **how) for name, at in (("a", 20), ("b", -20), ("c", 0))}
    with caplog.at_level(logging.WARNING):
        query = footers({**files, "d": parquet("d", 10)}, max_files_per_trigger=1)
        assert drained(query) == [["b"], ["c"], ["d"], ["a"]]
    assert sum("no statistics of the column 'ts'" in record.getMessage() for record in caplog.records) >= 1


def test_a_file_without_event_times_comes_first_and_bounds_nothing(footers: Begin) -> None:
    other = io.BytesIO()
    pq.write_table(pa.table({"name": ["no column"]}), other)
    files = {
        "a": parquet("a", 0),
        "nulls": parquet("nulls", None, None),
        "some": parquet("some", None, 5, groups=1),
        "none": other.getvalue(),
        "b": parquet("b", 60),
    }
    query = footers(files, alignment_max_drift="10s")
    assert drained(query) == [["a", "no column", "nulls", "some"], ["b"]]


def test_a_damaged_file_is_reported_by_its_reader(footers: Begin) -> None:
    files = {"a": parquet("a", 0), "torn": parquet("torn", 1)[:-9]}
    with pytest.raises(DataError, match="torn"):
        footers(files, alignment_max_drift="10s").drain()
    assert footers(files, alignment_max_drift="10s", ignore_corrupt_files=True).drain() == [["a"]]


def test_absurd_times_are_only_an_order(footers: Begin) -> None:
    files = {
        "9999": parquet("9999", 253_402_300_799 - NOON),
        "a": parquet("a", 0),
        "1900": parquet("1900", -70 * 365 * DAY),
        "b": parquet("b", 5),
    }
    query = footers(files, alignment_max_drift="10s")
    assert drained(query) == [["1900"], ["a", "b"], ["9999"]]


def test_a_footer_is_read_once(footers: Begin, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = parquet_format.first_time

    def counted(file: Any, *arguments: Any, **more: Any) -> Any:
        asked.append(Path(file.path).name)
        return real(file, *arguments, **more)

    monkeypatch.setattr(footer_times, "first_time", counted)
    query = footers({f"{at:02}": parquet(f"{at:02}", at * 60) for at in range(30)}, alignment_max_drift="10s")
    for _ in range(5):
        query.trigger()
    assert sorted(asked) == [f"{at:02}" for at in range(30)]
    put("new", parquet("new", 0))
    query.trigger()
    assert asked[30:] == ["new"]
    query.restart()  # those that are left
    query.trigger()
    assert sorted(asked[31:]) == [f"{at:02}" for at in range(5, 30)]


def test_what_was_found_before_a_store_failed_is_not_asked_for_again(
    footers: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = parquet_format.first_time

    def failing_once(file: Any, *arguments: Any, **more: Any) -> Any:
        asked.append(Path(file.path).name)
        if asked.count("29") == 1 and asked[-1] == "29":
            raise RetriableError("the store is away", retry_after=0.0)
        return real(file, *arguments, **more)

    monkeypatch.setattr(footer_times, "_THREADS", 1)
    monkeypatch.setattr(footer_times, "first_time", failing_once)
    query = footers(
        {f"{at:02}": parquet(f"{at:02}", at * 60) for at in range(30)},
        alignment_max_drift="10s",
        retry_first_pause="1ms",
    )
    assert drained_once(query) == ["00"]
    assert sorted(asked) == sorted([*(f"{at:02}" for at in range(30)), "29"])


def test_a_changed_file_is_looked_at_again(footers: Begin, put: Put) -> None:
    query = footers({"a": parquet("a", 0), "b": parquet("b", 100), "c": parquet("c", 200)}, alignment_max_drift="10s")
    assert drained_once(query) == ["a"]
    put("c", parquet("c", 50), at=30)
    assert drained(query) == [["c"], ["b"]]


def drained_once(query: Any) -> list[str]:
    return sorted({row[0] for row in query.trigger()})


def test_footers_are_read_at_the_same_time_and_the_first_error_ends_it() -> None:
    together = threading.Barrier(16, timeout=30)
    done: list[int] = []

    def work(item: int) -> None:
        if item < 16:
            together.wait()
        done.append(item)

    footer_times.in_parallel(work, range(100))
    assert sorted(done) == list(range(100))

    def fail(item: int) -> None:
        done.append(item)
        raise RetriableError(f"{item} is not there")

    done.clear()
    with pytest.raises(RetriableError, match="is not there"):
        footer_times.in_parallel(fail, range(1000))
    assert len(done) <= 16
    footer_times.in_parallel(fail, [])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"file_event_time": "footer:when"}, "column 'when' does not exist"),
        ({"file_event_time": "footer:name"}, "'name' is string"),
        ({"event_time_column": "name"}, "names the column 'ts', not 'name'"),
        ({"file_event_time": None}, "fileEventTime is not set"),
    ],
)
def test_what_the_files_or_options_contradict_is_refused_by_name(footers: Begin, options: Any, text: str) -> None:
    query = footers({"a": parquet("a", 0)}, alignment_max_drift="10s", **options)
    with pytest.raises(ConfigurationError, match=text) as raised:
        query.trigger()
    assert raised.value.option == "fileEventTime"
    assert raised.value.advice


def test_other_formats_have_no_footers(put: Put, stream: Begin) -> None:
    put("a.txt")
    with pytest.raises(ConfigurationError, match="only Parquet files have footers, but these files are text"):
        stream(file_event_time="footer:value").trigger()


def test_without_alignment_there_is_only_the_order(put: Put, stream: Begin) -> None:
    for number, name in enumerate(["2024-01-03", "2024-01-01", "2024-01-02"]):
        put(f"{name}.txt", f"{name}\n", at=number)
    assert stream(file_event_time="path:yyyy-MM-dd", max_files_per_trigger=1).drain() == [
        ["2024-01-01"],
        ["2024-01-02"],
        ["2024-01-03"],
    ]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("yyyy/MM/dd/HH", ["2023/12/31/23/x", "2024/01/01/00/x", "2024/01/01/12/x", "2024/10/01/00/x"]),
        ("'year='yyyy/'month='M/'day='d", ["year=2024/month=1/day=31/x", "year=2024/month=2/day=1/x"]),
        ("yyyyMMdd", ["p-0123456789-20240105", "p-0123456780-20240106"]),
        ("yyyyMMdd'T'HHmmss", ["a/20240105T000000Z-1", "a/20240105T000001Z-1"]),
        ("'until='yyyy-MM-dd", ["from=2024-01-05/until=2024-01-07/x", "from=2024-01-01/until=2024-01-08/x"]),
        ("yyyy-MM-dd", ["2024-02-29/x-99999999-2024-13-01", "2024-03-01/x"]),
    ],
)
def test_a_pattern_finds_its_time_in_the_path(
    put: Put, stream: Begin, tmp_path: Path, pattern: str, names: list[str]
) -> None:
    for number, name in enumerate(names):
        put(f"{name}.txt", f"{name}\n", at=-number)
    query = stream(file_event_time=f"path:{pattern}", recursive_file_lookup=True, max_files_per_trigger=1)
    assert query.drain() == [[name] for name in names]


def test_the_times_of_paths_and_directories_are_in_the_session_zone(put: Put, stream: Begin) -> None:
    put("day=2023-01-05/a.txt")
    for origin in ("path:'day='yyyy-MM-dd", "partition:day"):
        query = stream(file_event_time=origin, time_zone="America/New_York", alignment_max_drift="1s")
        query.trigger()
        new_york = int(dt.datetime(2023, 1, 5, 5, tzinfo=dt.UTC).timestamp())
        assert query.planner._alignment.limit == (new_york + 1) * 1_000_000


@pytest.mark.parametrize(
    ("name", "what"), [("stray", "matches no time"), ("2024-01-05-2024-01-06", "matches different times")]
)
def test_a_path_that_the_pattern_does_not_fit_is_named(put: Put, stream: Begin, name: str, what: str) -> None:
    put("2024-01-05.txt", "good\n")
    put(f"{name}.txt")
    query = stream(file_event_time="path:yyyy-MM-dd")
    with pytest.raises(ConfigurationError, match=what) as raised:
        query.trigger()
    assert str(raised.value.split).endswith(f"{name}.txt")
    assert "path:yyyy-MM-dd" in str(raised.value)
    query.restart(path_glob_filter="????-??-??.txt")  # the next step that the error names
    assert query.drain() == [["good"]]


@pytest.mark.parametrize(
    "values",
    [
        ["2023-12-31", "2024-01-01"],
        ["2024-01-01 00%3A00%3A00", "2024-01-01 00%3A00%3A01"],
        ["2024-01-01T23", "2024-01-02"],  # texts
    ],
)
def test_partition_columns_give_event_times(put: Put, stream: Begin, values: list[str]) -> None:
    for number, value in enumerate(values):
        put(f"at={value}/x.txt", f"{value}\n", at=-number)
    query = stream(file_event_time="partition:AT", alignment_max_drift="500ms")
    assert query.drain() == [[value] for value in values]


def test_files_of_the_default_partition_come_with_the_first_ones(put: Put, stream: Begin) -> None:
    for value in ("2024-01-02", "__HIVE_DEFAULT_PARTITION__", "2024-01-01"):
        put(f"day={value}/x.txt", f"{value}\n")
    query = stream(file_event_time="partition:day", alignment_max_drift="1h")
    assert query.drain() == [["2024-01-01", "__HIVE_DEFAULT_PARTITION__"], ["2024-01-02"]]


@pytest.mark.parametrize(
    ("directory", "what"),
    [
        ("day=20240105", "the partition column has the type int32, not date or timestamp"),
        ("day=monday", "the directory value 'monday' is neither a date nor a timestamp"),
        ("other=1", "no partition column has this name"),
        ("plain", "no partition column has this name"),
    ],
)
def test_a_partition_column_that_is_no_time_is_refused(put: Put, stream: Begin, directory: str, what: str) -> None:
    put(f"{directory}/x.txt")
    query = stream(file_event_time="partition:day", recursive_file_lookup=directory == "plain")
    with pytest.raises(ConfigurationError, match=what) as raised:
        query.trigger()
    assert raised.value.option == "fileEventTime"


def test_the_time_of_change_is_an_event_time(put: Put, stream: Begin) -> None:
    for at in (0, 10, 20.5, 21):
        put(f"{at}.txt", f"{at}\n", at=at)
    query = stream(file_event_time="modified", alignment_max_drift="10s")
    assert query.drain() == [["0", "10"], ["20.5", "21"]]


def test_no_file_becomes_too_old_while_it_waits_for_its_turn(put: Put, stream: Begin) -> None:
    """Event times and times of change run against each other; `maxFileAge` would pass over all files but the first."""
    for day in range(10):
        put(f"2024-01-{day + 1:02}.txt", f"{day}\n", at=-day * 5 * DAY)
    query = stream(file_event_time="path:yyyy-MM-dd", max_files_per_trigger=1)
    for day in range(5):
        assert query.trigger() == [(f"{day}",)]
    query.restart()
    assert query.trigger() == [("5",)]
    query.restart(file_event_time=None)  # by time of change from now on, and none is lost
    assert query.drain() == [["9"], ["8"], ["7"], ["6"]]


def test_by_time_of_change_the_age_still_counts(put: Put, stream: Begin) -> None:
    put("new.txt")
    query = stream(file_event_time="modified")
    assert query.drain() == [["new.txt"]]
    put("old.txt", at=-10 * DAY)
    assert query.drain() == []


def test_late_files_come_next_with_a_warning(put: Put, stream: Begin, caplog: pytest.LogCaptureFixture) -> None:
    for day in ("05", "06", "07"):
        put(f"2023-01-{day}.txt", f"{day}\n")
    query = stream(file_event_time="path:yyyy-MM-dd", alignment_max_drift="1h")
    assert [query.trigger(), query.trigger()] == [[("05",)], [("06",)]]
    put("2023-01-04.txt", "04\n")
    with caplog.at_level(logging.WARNING):
        assert query.drain() == [["04"], ["07"]]
    assert any("2023-01-04.txt' begins 172800.000 s earlier" in record.getMessage() for record in caplog.records)


def test_a_file_that_was_begun_is_looked_up_after_a_restart(put: Put, stream: Begin) -> None:
    put("2024-01-05.txt", "".join(f"{at:09}\n" for at in range(100)))
    put("2024-01-06.txt", "later\n")
    query = stream(file_event_time="path:yyyy-MM-dd", alignment_max_drift="1h", max_bytes_per_trigger=500)
    assert len(query.trigger()) == 50
    query.restart()
    assert [len(query.trigger()), query.trigger()] == [50, [("later",)]]


@pytest.mark.parametrize(
    "value",
    [
        *("footer", "footer:", "partition", "path", "path:", "modified:x", "mtime", "", ":", "name:x"),
        *("path:MM-dd", "path:yyyy-QQ", "path:yyyy-'MM", "path:day=yyyy-MM-dd", "path:yyyy/yyyy"),
    ],
)
def test_a_bad_value_is_refused_by_name(value: str) -> None:
    with pytest.raises(ConfigurationError, match="fileEventTime") as raised:
        FileSource(path="x.txt", file_event_time=value)
    assert raised.value.option == "fileEventTime"
    assert raised.value.advice


def test_newest_and_oldest_first_contradict_each_other() -> None:
    with pytest.raises(ConfigurationError, match="latestFirst") as raised:
        FileSource(path="x.txt", file_event_time="modified", latest_first=True)
    assert raised.value.option == "fileEventTime"


def test_the_column_of_the_footers_is_the_event_time_of_the_source() -> None:
    assert FileSource(path="x.parquet", file_event_time=" Footer : at ").event_time == "at"
    assert FileSource(path="x.parquet", file_event_time="partition:day").event_time is None
    assert FileSource(path="x.parquet").event_time is None


def test_very_many_files_are_ordered_by_their_paths(
    put: Put, stream: Begin, monkeypatch: pytest.MonkeyPatch, inbox: Path
) -> None:
    """A discovery looks at each path once, and a micro-batch asks for the first files only."""
    for hour in range(2_000):
        at = dt.datetime(2024, 1, 1) + dt.timedelta(hours=hour)
        os.makedirs(inbox / f"{at:%Y-%m-%d}", exist_ok=True)
        (inbox / f"{at:%Y-%m-%d}" / f"{at:%H}.txt").write_text(f"{hour}\n")
    query = stream(file_event_time="path:yyyy-MM-dd/HH", alignment_max_drift="2h", recursive_file_lookup=True)
    times = query.planner._split_provider.enumerator._times
    asked: list[int] = []
    real = times.first_times
    monkeypatch.setattr(times, "first_times", lambda splits: asked.append(len(splits)) or real(splits))
    assert sorted(int(row[0]) for row in query.trigger()) == [0, 1, 2]
    assert sum(asked) <= 64
