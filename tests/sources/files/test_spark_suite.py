# SPDX-License-Identifier: Apache-2.0
"""The cases of Spark's FileStreamSourceSuite that need no Spark, by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.errors import ConfigurationError
from forebay.framework.runtime.host_options import HostOptions
from forebay.sources.files import FileSource, FileSplit
from forebay.sources.files.file_tracker import FileTracker
from forebay.stores.file_status import FileStatus

Put = Callable[..., Path]
Begin = Callable[..., Any]
NOON = 1_700_000_000
DAY = 86_400


def test_max_files_per_trigger(put: Put, stream: Begin) -> None:
    for number in range(5):
        put(f"{number}.txt", at=number)
    query = stream(max_files_per_trigger=2)
    assert query.drain() == [["0.txt", "1.txt"], ["2.txt", "3.txt"], ["4.txt"]]


@pytest.mark.parametrize("value", ["not-a-integer", "-1", "0", "10.1"])
def test_max_files_per_trigger_incorrect_values(value: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        HostOptions(max_files_per_trigger=value)  # type: ignore[arg-type]  # a text, as from Spark
    assert raised.value.option in ("maxFilesPerTrigger", "max_files_per_trigger")


def test_spark_30669_max_files_per_trigger_ignored_when_using_trigger_once(put: Put, stream: Begin) -> None:
    for number in range(5):
        put(f"{number}.txt", at=number)
    query = stream(max_files_per_trigger=2)
    assert len(query.trigger(limited=False) or []) == 5
    assert query.trigger(limited=False) is None


def test_file_stream_source_latest_first(put: Put, stream: Begin) -> None:
    put("old.txt", at=-100)
    put("new.txt", at=0)
    assert stream(latest_first=True, max_files_per_trigger=1).drain() == [["new.txt"], ["old.txt"]]
    assert stream(latest_first=False, max_files_per_trigger=1).drain() == [["old.txt"], ["new.txt"]]


def test_spark_19813_ignore_max_file_age_when_max_files_per_trigger_and_latest_first_is_used(
    put: Put, stream: Begin
) -> None:
    put("old.txt", at=-DAY)
    put("new.txt")
    query = stream(latest_first=True, max_files_per_trigger=1, max_file_age="5s")
    assert query.drain() == [["new.txt"], ["old.txt"]]
    put("older.txt", at=-2 * DAY)
    assert query.drain() == [["older.txt"]]


def tracker(max_age: float, *, names_only: bool = False) -> FileTracker:
    return FileTracker("forebay_files", max_age=int(max_age * 1e9), names_only=names_only, on_changed="error")


def file(path: str, second: float) -> FileStatus:
    return FileStatus(path, 1, int(second * 1e9))


def known(*files: FileStatus) -> dict[str, FileSplit]:
    return {each.path: FileSplit(each.path, 0, size=each.size, modified_at=each.modified_at) for each in files}


def test_seen_files_map() -> None:
    memory = tracker(10)
    taken = [file("/a", 5)]
    memory.learn(known(*taken), NOON)
    assert memory.id_of_new(file("/b", 5), known(*taken)) == "/b"
    taken.append(file("/b", 15))
    memory.learn(known(*taken), NOON)
    assert memory.horizon == 5e9
    assert memory.id_of_new(file("/c", 5), known(*taken)) == "/c"
    taken.append(file("/c", 16))
    memory.learn(known(*taken), NOON)
    assert memory.sweep()
    assert memory.id_of_new(file("/d", 5), known(*taken)) is None
    # A forgotten file is not new.
    memory.learn(known(*taken[1:]), NOON)
    assert memory.id_of_new(taken[0], known(*taken[1:])) is None
    assert memory.id_of_new(file("/d", 6), known(*taken[1:])) == "/d"


def test_seen_files_map_with_file_name_only() -> None:
    memory = tracker(10, names_only=True)
    taken = known(file("file:/a/b/c/d", 5), file("s3:///k/one?", 5))
    memory.learn(taken, NOON)
    for path in ("/d", "s3://x/d", "/one?"):
        assert memory.id_of_new(file(path, 6), taken) is None
    assert memory.id_of_new(file("/d/e", 6), taken) == "/d/e"


def test_seen_files_map_should_only_consider_a_file_old_if_it_is_earlier_than_last_purge_time() -> None:
    memory = tracker(10)
    taken = [file("/a", 20)]
    memory.learn(known(*taken), NOON)
    assert memory.id_of_new(file("/b", 9), known(*taken)) is None
    assert memory.id_of_new(file("/b", 10), known(*taken)) == "/b"
    # The horizon stays when the newest file disappears.
    memory.learn({}, NOON)
    assert memory.id_of_new(file("/b", 9), {}) is None


def test_spark_26629_multiple_file_sources_work_with_restarts_when_a_source_does_not_have_data(
    put: Put, stream: Begin, inbox: Path
) -> None:
    (inbox / "one").mkdir()
    (inbox / "two").mkdir()
    first, second = stream(str(inbox / "one")), stream(str(inbox / "two"))
    put("one/a.txt")
    assert first.drain() == [["one/a.txt"]]
    assert second.drain() == []
    for turn in range(3):
        first.restart()
        second.restart()
        put(f"one/{turn}.txt", at=turn)
        # Spark also asks a source without data to read, from its last offset to its last offset.
        assert second.offset is not None
        assert second.planner.tasks(second.offset, second.offset) == []
        assert first.drain() == [[f"one/{turn}.txt"]]
        assert second.drain() == []
    put("two/b.txt")
    assert second.drain() == [["two/b.txt"]]


def test_restore_from_file_stream_source_log_and_get_arbitrary_batch(put: Put, stream: Begin) -> None:
    query = stream(max_files_per_trigger=3)
    for number in range(30):
        put(f"{number:02}.txt", at=number)
    assert len(query.drain()) == 10
    query.restart()
    assert query.drain() == []
    put("30.txt", at=30)
    assert query.drain() == [["30.txt"]]
    # A new planner can plan any micro-batch again.
    for number in (7, 0, 10):
        query.restart()
        query.offset = query.ends[number - 1] if number else query.planner.initial()
        assert query.read(query.ends[number]) == query.batches[number]


def test_spark_28651_force_streaming_file_source_to_be_nullable(put: Put, stream: Begin) -> None:
    put("a.json", '{"k": null, "s": {"v": null}, "l": [null]}\n')
    strict = pa.schema(
        [
            pa.field("k", pa.int64(), nullable=False),
            pa.field("s", pa.struct([pa.field("v", pa.string(), nullable=False)]), nullable=False),
            pa.field("l", pa.list_(pa.field("element", pa.int64(), nullable=False)), nullable=False),
        ]
    )
    schema = FileSource(path="/nowhere", file_format="json").with_schema(strict).schema()
    assert all(field.nullable for field in schema)
    assert schema.field("s").type.field(0).nullable
    items = schema.field("l").type
    assert isinstance(items, pa.ListType)
    assert items.value_field.nullable
    assert stream(file_format="json", schema=strict).trigger() == [(None, {"v": None}, [None])]


def test_remove_completed_files_when_remove_option_is_enabled(put: Put, stream: Begin) -> None:
    first, second = put("a.txt"), put("b.txt", at=1)
    query = stream(clean_source="delete", max_files_per_trigger=1)
    query.trigger()
    assert not first.exists()
    assert second.exists()
    query.trigger(commit=False)  # as after a crash: cleaned by the next run
    assert second.exists()
    query.restart()
    query.trigger()
    assert not second.exists()


def test_move_completed_files_to_archive_directory_odd_characters(
    put: Put, stream: Begin, inbox: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "archive %7D {x} ü"
    names = ["plain.txt", "a b.txt", "c%20d.txt", "e{f}.txt", "g*h.txt", "ü#?.txt", "i\\j.txt", "k[l].txt"]
    for name in names:
        put(name)
    query = stream(clean_source="archive", source_archive_dir=str(archive))
    assert query.drain() == [sorted(names)]
    assert os.listdir(inbox) == []
    assert sorted(os.listdir(f"{archive}{inbox}")) == sorted(names)
    assert query.drain() == []


def test_do_not_recheck_that_files_exist_during_get_batch(put: Put, stream: Begin) -> None:
    path = put("a.txt", "1\n" * 10_000_000)  # big enough to be cut
    query = stream()
    end = query.plan()
    assert end is not None
    path.unlink()
    assert query.planner.tasks(query.offset or {}, end)
