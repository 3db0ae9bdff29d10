# SPDX-License-Identifier: Apache-2.0
"""A stream without stateLocation recognises files by digests, once offsets have no room for whole splits."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import ConfigurationError, DataError
from forebay.framework.microbatch import offset_codec as codec
from forebay.framework.split import Split
from forebay.sources.files.file_tracker import digests_of, is_version
from forebay.sources.files.split import FileSplit
from forebay.stores.file_status import FileStatus

Put = Callable[..., Path]
Begin = Callable[..., Any]


@pytest.fixture
def condensed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces splits by digests as early as possible."""
    monkeypatch.setattr(codec, "_MOST_WHOLE", -1)


def planned(query: Any) -> list[str]:
    """Plan and commit micro-batches until there is nothing new; return the paths, in order."""
    found: list[str] = []
    while (end := query.plan()) is not None:
        found += [one.split.path for one in query.planner._codec.read(end).splits]
        query.offset = end
        query.planner.commit(end)
    return found


def size(query: Any) -> int:
    return len(json.dumps(query.offset))


@pytest.mark.soak(but=["{}"])
@pytest.mark.parametrize("options", [{}, {"latest_first": True}, {"file_name_only": True}], ids=str)
def test_a_stream_with_nothing_set_is_not_refused_and_takes_each_file_once(
    put: Put, stream: Begin, options: dict[str, Any]
) -> None:
    chance = random.Random(7)
    names = sorted(str(put(f"{chance.randbytes(20).hex()}.txt", at=number)) for number in range(3000))
    query = stream(**options)
    assert sorted(planned(query)) == names
    assert planned(query) == []
    query.restart()
    assert planned(query) == []
    late = str(put("late.txt", at=5))
    assert planned(query) == [late]
    digests = query.planner._committed.done.digests
    assert len(digests) > 2000 and size(query) < 100_000
    assert digests.characters * 200_000 // len(digests) < codec.MOST_DIGESTS


@pytest.mark.usefixtures("condensed")
class TestCondensed:
    """Digests behave as whole splits do."""

    def begin(self, put: Put, stream: Begin, **options: Any) -> Any:
        for number in range(5):
            put(f"{number}.txt", at=number)
        query = stream(max_files_per_trigger=2, **options)
        assert list(chain(*query.drain())) == [f"{number}.txt" for number in range(5)]
        assert len(query.planner._committed.done.digests) == 2  # the last micro-batches are whole
        query.restart()
        assert query.drain() == []
        return query

    def test_a_file_that_changed_is_an_error_by_name(self, put: Put, stream: Begin) -> None:
        query = self.begin(put, stream)
        path = put("0.txt", "new\n", at=9)
        with pytest.raises(DataError, match="has changed since it was read .now 4 bytes") as raised:
            query.drain()
        assert raised.value.split == str(path)
        query.restart(on_changed_file="ignore")
        assert query.drain() == []
        query.restart(on_changed_file="reread")
        assert query.drain() == [["new"]]
        for number in range(20, 24):
            put(f"{number}.txt", at=number)
            assert query.drain() == [[f"{number}.txt"]]
        query.restart(on_changed_file="error")
        assert query.drain() == []  # the version is known by its own digest

    def test_a_name_in_another_directory_is_the_same_file(self, put: Put, stream: Begin) -> None:
        query = self.begin(put, stream, file_name_only=True, recursive_file_lookup=True)
        put("below/0.txt", at=9)
        assert query.drain() == []
        query.restart(file_name_only=False)
        assert query.drain() == [["below/0.txt"]]

    def test_names_cannot_be_asked_for_once_only_paths_are_known(self, put: Put, stream: Begin) -> None:
        query = self.begin(put, stream)
        query.restart(file_name_only=True)
        with pytest.raises(ConfigurationError, match="hashes of their whole paths") as raised:
            query.drain()
        assert raised.value.option == "fileNameOnly"

    def test_what_is_too_old_is_forgotten_and_stays_away(self, put: Put, stream: Begin) -> None:
        query = stream(max_file_age="10s")
        for number in range(50):
            put(f"{number:02}.txt", at=number)
            assert query.drain() == [[f"{number:02}.txt"]]
        assert 10 <= query.planner._committed.done.count <= 16
        query.restart()
        assert query.drain() == []

    def test_state_location_takes_over(self, put: Put, stream: Begin, tmp_path: Path) -> None:
        query = self.begin(put, stream, max_file_age="100s")
        query.restart(state_location=str(tmp_path / "state"))
        for number in range(20, 24):
            put(f"{number}.txt", at=number)
            assert query.drain() == [[f"{number}.txt"]]
            assert "digests" not in query.offset
            assert query.offset["v"] == 2  # an older release would read these files again
            query.restart()
            assert query.drain() == []
        assert query.planner._committed.done.count == 9
        query.clock.advance(300)
        put("200.txt", at=200)
        assert query.drain() == [["200.txt"]]
        put("201.txt", at=201)
        assert query.drain() == [["201.txt"]]
        query.restart()
        assert query.drain() == []
        assert not query.planner._committed.done.digests

    def test_going_back_in_one_process_reads_again_what_came_after(self, put: Put, stream: Begin) -> None:
        query = self.begin(put, stream)
        put("5.txt", at=5)
        query.drain()
        early = query.offset
        for number in range(6, 10):
            put(f"{number}.txt", at=number)
            query.drain()
        query.offset = early
        assert list(chain(*query.drain())) == [f"{number}.txt" for number in range(6, 10)]

    def test_what_could_not_be_cleaned_is_cleaned_at_the_next_start(self, put: Put, stream: Begin) -> None:
        query = stream(max_files_per_trigger=1, clean_source="delete")
        paths = [put(f"{number}.txt", at=number) for number in range(5)]
        while query.trigger(commit=False) is not None:
            pass
        assert paths[0].exists()
        changed = put("1.txt", "new\n", at=20)
        query.restart(on_changed_file="ignore")
        query.drain()
        assert [path for path in paths if path.exists()] == [changed]

    def test_a_damaged_memory_is_refused(self, put: Put, stream: Begin) -> None:
        query = self.begin(put, stream)
        query.offset = {**query.offset, "digests": [[1, 2, "3"]]}
        query.restart()
        with pytest.raises(ConfigurationError, match="is damaged"):
            query.drain()


def test_more_files_than_an_offset_can_remember_are_refused_by_name(
    condensed: None, put: Put, stream: Begin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(codec, "MOST_DIGESTS", 150)
    query = stream(max_files_per_trigger=1)
    with pytest.raises(ConfigurationError, match="does not fit into an offset") as raised:
        for number in range(30):
            put(f"{number}.txt", at=number)
            query.drain()
    assert raised.value.option == "stateLocation"
    assert "half of the maximum" in caplog.text


BEGUN = FileStatus("s3://b/a", 10, 5, None)
TAGGED = FileStatus("s3://b/a", 10, 5, "etag")


@pytest.mark.parametrize(
    ("then", "now", "same"),
    [
        (BEGUN, BEGUN, True),
        (BEGUN, FileStatus("s3://b/a", 10, 6, None), False),
        (BEGUN, FileStatus("s3://b/a", 11, 5, None), False),
        (BEGUN, TAGGED, True),
        (BEGUN, FileStatus("s3://b/a", 10, 6, "etag"), False),
        (TAGGED, FileStatus("s3://b/a", 10, 6, "etag"), True),
        (TAGGED, FileStatus("s3://b/a", 10, 5, "another"), False),
        (TAGGED, FileStatus("s3://b/a", 10, 5, "generation=1"), True),
        (TAGGED, BEGUN, True),
    ],
)
@pytest.mark.parametrize("clean", [False, True])
def test_a_digest_distinguishes_versions_as_a_listing_does(
    then: FileStatus, now: FileStatus, same: bool, clean: bool
) -> None:
    (digest,) = digests_of(FileSplit.of(then, (), clean=clean), named=False)
    assert is_version(digest.mark, now) is same
    assert then.same_file(now) is same


def test_other_splits_have_no_digest(stream: Begin) -> None:
    assert stream().planner._split_provider.enumerator.digests.add([Split("x")]) == []
