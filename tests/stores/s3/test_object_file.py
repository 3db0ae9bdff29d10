# SPDX-License-Identifier: Apache-2.0
"""Reads of an object, with a scripted client: ranges, read-ahead, answers that break off."""

from __future__ import annotations

import io
import random
import threading
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.exceptions import ClientError, IncompleteReadError, ReadTimeoutError
from pyarrow import orc

from forebay.errors import ConfigurationError, DataError, RetriableError
from forebay.formats.orc.format import OrcFormat
from forebay.formats.parquet.format import ParquetFormat
from forebay.stores.file_status import FileStatus
from forebay.stores.s3 import object_file
from forebay.stores.s3 import object_file as object_file_module
from forebay.stores.s3 import object_file as object_reader
from forebay.stores.s3.client import S3Request
from forebay.stores.s3.object_file import Cancelled, ObjectFile, ObjectReader
from forebay.stores.s3.settings import S3Settings

MB = 1 << 20


class Body(io.BytesIO):
    """The body of an answer; it ends early after `cut` bytes, with an error or without."""

    def __init__(self, data: bytes, cut: int | None, error: Exception | None) -> None:
        super().__init__(data if cut is None else data[:cut])
        self.cut, self.error = cut, error

    def readinto(self, buffer: Any) -> int:
        got = super().readinto(buffer)
        if not got and self.cut is not None and self.error is not None:
            raise self.error
        return got


class Client:
    """One object. `cuts` are bytes after which the next answers break off; None for a whole one."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.etag = "v1"
        self.cuts: list[int | None] = []
        self.error: Exception | None = IncompleteReadError(actual_bytes=1, expected_bytes=2)
        self.ranges: list[tuple[int, int]] = []
        self.obeys = True
        self.settings = S3Settings()
        self.lock = threading.Lock()

    def get_range(self, bucket: str, key: str, start: int, end: int, etag: str | None) -> Any:
        assert (bucket, key) == ("b", "k")
        with self.lock:
            self.ranges.append((start, end))
            cut = self.cuts.pop(0) if self.cuts else None
        if self.obeys and etag not in (None, self.etag):
            raise ClientError({"Error": {"Code": "PreconditionFailed"}}, "get_object")
        body = Body(self.data[start:end], cut, self.error)
        answer = {"Body": body, "ETag": f'"{self.etag}"', "ContentLength": end - start}
        return answer | {"ContentRange": f"bytes {start}-{end - 1}/{len(self.data)}"}

    def now(self) -> FileStatus:
        return FileStatus("s3://b/k", len(self.data), 0, self.etag)

    def reader(self, etag: str | None = "v1") -> ObjectReader:
        file = FileStatus("s3://b/k", len(self.data), 0, etag)
        return ObjectReader(
            self, "b", "k", file, S3Request("read 's3://b/k'", "b", self.settings, "127.0.0.1"), self.now
        )  # type: ignore[arg-type]

    def open(self, read_to: int | None = None) -> ObjectFile:
        return ObjectFile(self.reader(), read_to)

    def planned(self) -> list[tuple[int, int]]:
        """The requests in the order of their places: those of other threads come at any time."""
        return sorted(self.ranges)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(object_reader, "_PAUSE", 0.0001)


def content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def test_a_sequential_read_asks_for_growing_chunks_and_each_byte_once():
    client = Client(content(40 * MB))
    with client.open() as stream:
        assert b"".join(iter(lambda: stream.read(100_000), b"")) == client.data
    sizes = [(end - start) // MB for start, end in client.planned()]
    assert sizes == [1, 2, 4, 8, 8, 8, 8, 1]
    assert sum(end - start for start, end in client.ranges) == len(client.data)


def test_a_short_read_fetches_little_and_a_small_object_takes_one_request():
    client = Client(content(40 * MB))
    with client.open() as stream:
        assert stream.read(10) == client.data[:10]
    assert client.ranges == [(0, MB)]
    for size in (1, MB, 8 * MB):
        client = Client(content(size))
        with client.open() as stream:
            assert b"".join(iter(lambda stream=stream: stream.read(1000_000), b"")) == client.data
        assert client.ranges == [(0, size)]


def test_a_slice_reads_nothing_ahead_behind_its_end():
    client = Client(content(40 * MB))
    with client.open(read_to=20 * MB) as stream:
        stream.seek(10 * MB)
        assert stream.read(10 * MB) == client.data[10 * MB : 20 * MB]
        assert stream.read(5) == client.data[20 * MB : 20 * MB + 5], "the rest of the last record"
    assert client.planned()[-1] == (20 * MB, 20 * MB + (64 << 10))
    assert sum(end - start for start, end in client.ranges) == 10 * MB + (64 << 10)


def test_a_footer_makes_reads_exact():
    client = Client(content(40 * MB))
    with client.open() as stream:
        stream.seek(-8, io.SEEK_END)
        assert stream.read(8) == client.data[-8:]
        stream.seek(-50_000, io.SEEK_END)
        assert stream.read(49_992) == client.data[-50_000:-8]
        stream.seek(5 * MB)
        assert stream.read(MB) == client.data[5 * MB : 6 * MB]
    assert client.ranges == [(40 * MB - (64 << 10), 40 * MB), (5 * MB, 6 * MB)]


def test_after_a_footer_reads_that_follow_one_another_are_joined():
    client = Client(content(40 * MB))
    with client.open() as stream:
        stream.seek(-8, io.SEEK_END)
        stream.read(8)
        for start in (5 * MB, 20 * MB):
            stream.seek(start)
            assert b"".join(stream.read(MB // 8) for _ in range(15)) == client.data[start : start + 15 * MB // 8]
    eighths = [(start * 8 // MB, (end - start) * 8 // MB) for start, end in client.ranges[1:]]
    assert eighths == [(40, 1), (41, 2), (43, 4), (47, 8), (160, 1), (161, 2), (163, 4), (167, 8)]


def test_columns_that_are_read_in_turn_are_joined_too():
    client = Client(content(40 * MB))
    with client.open() as stream:
        stream.seek(-8, io.SEEK_END)
        stream.read(8)
        for step in range(15):
            for start in (5 * MB, 20 * MB):
                stream.seek(start + step * MB // 8)
                assert stream.read(MB // 8) == client.data[start + step * MB // 8 :][: MB // 8]
    assert len(client.ranges) == 9


def test_announced_groups_are_fetched_together_and_ahead(monkeypatch):
    client = Client(content(40 * MB))
    monkeypatch.setattr(object_file_module, "GROUP", MB + 2000)
    with client.open() as stream:
        stream.expect([[(0, 1000), (2000, 3000)], [(3 * MB, 4 * MB), (5 * MB, 5 * MB + 10)], [(9 * MB, 10 * MB)]])
        stream.seek(2000)
        assert stream.read(1000) == client.data[2000:3000]
        stream.seek(0)
        assert stream.read(900) == client.data[:900]
        stream.seek(5 * MB)
        assert stream.read(10) == client.data[5 * MB : 5 * MB + 10]
        stream.seek(3 * MB + 7)
        assert stream.read(MB) == client.data[3 * MB + 7 : 4 * MB + 7], "also what was not announced"
    pieces = {(0, 3000), (3 * MB, 4 * MB), (5 * MB, 5 * MB + 10), (9 * MB, 10 * MB)}
    assert set(client.ranges) - {(4 * MB, 4 * MB + 7)} == pieces
    assert len(client.ranges) == 5


def test_of_a_large_group_the_next_bytes_of_each_range_are_fetched_ahead():
    client = Client(content(60 * MB))
    columns = [(0, 20 * MB), (20 * MB, 50 * MB)]
    with client.open() as stream:
        stream.expect([columns])
        for step in range(20):
            for start, _ in columns:
                stream.seek(start + step * MB)
                assert stream.read(MB) == client.data[start + step * MB : start + (step + 1) * MB]
    read = [(start + step * MB, start + (step + 1) * MB) for start, _ in columns for step in range(20)]
    assert client.planned() == [*read, (40 * MB, 41 * MB)]


def test_ranges_outside_the_object_are_not_requested():
    client = Client(content(3 * MB))
    with client.open() as stream:
        stream.expect([[(-5, 10), (10, 5), (0, 4 * MB)], []])
        assert stream.read(10) == client.data[:10]
    assert client.ranges == [(0, 10)]


@pytest.mark.parametrize("columns", [["a"], ["c", "a"], None])
@pytest.mark.parametrize("rows_per_group", [500, 20_000, 100_000])
def test_parquet_costs_few_requests(monkeypatch, columns, rows_per_group):
    monkeypatch.setattr(object_file_module, "GROUP", 1 << 20)
    monkeypatch.setattr(object_file_module, "GAP", 1 << 10)
    chance = random.Random(1)
    table = pa.table({name: [chance.random() for _ in range(100_000)] for name in "abc"})
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=rows_per_group, use_dictionary=False, compression="none")
    client = Client(sink.getvalue())

    class File:
        path, size = "s3://b/k", len(client.data)

        def open(self) -> Any:
            return client.open()

    batches = [batch for batch, _ in ParquetFormat().read(File(), table.schema, columns=columns)]
    assert pa.Table.from_batches(batches) == (table if columns is None else table.select(columns))
    fetched = sum(end - start for start, end in client.ranges)
    assert fetched <= 1.1 * len(client.data) * len(columns or "abc") / 3 + (300 << 10)


@pytest.mark.parametrize("columns", [["b"], ["c", "a"], None])
@pytest.mark.parametrize("rows_per_stripe", [20_000, 100_000])
def test_orc_costs_few_requests(monkeypatch, columns, rows_per_stripe):
    monkeypatch.setattr(object_file_module, "GAP", 1 << 10)
    chance = random.Random(1)
    words = [chance.randbytes(6).hex() for _ in range(100_000)]
    table = pa.table({"a": words, "b": [chance.random() for _ in words], "c": words[::-1]})
    sink = io.BytesIO()
    with orc.ORCWriter(sink, compression="uncompressed", stripe_size=rows_per_stripe * 32) as writer:
        for start in range(0, len(table), rows_per_stripe):
            writer.write(table.slice(start, rows_per_stripe))
    stripes = orc.ORCFile(pa.BufferReader(sink.getvalue())).nstripes
    client = Client(sink.getvalue())

    class File:
        path, size = "s3://b/k", len(client.data)

        def open(self) -> Any:
            return client.open()

    batches = [batch for batch, _ in OrcFormat().read(File(), table.schema, columns=columns)]
    assert pa.Table.from_batches(batches) == (table if columns is None else table.select(columns))
    ranges = 2 if columns == ["c", "a"] else 1  # the stream of "b" is between those of the others
    assert len(client.ranges) <= 1 + stripes * (1 + ranges), "the tail, and of each stripe the footer and the ranges"
    wanted = {"a": 12, "b": 8, "c": 12}
    share = sum(wanted[name] for name in columns or "abc") / sum(wanted.values())
    assert sum(end - start for start, end in client.ranges) <= 1.1 * len(client.data) * share + (100 << 10)


def test_a_group_is_fetched_as_a_whole_up_to_the_size_that_the_caller_names():
    client = Client(content(20 * MB))
    with client.open() as stream:
        stream.expect([[(0, 9 * MB), (12 * MB, 15 * MB)]], whole=12 * MB)
        for start in (0, 12 * MB):
            for step in range(3):
                stream.seek(start + step * MB)
                assert stream.read(100) == client.data[start + step * MB :][:100]
    assert client.planned() == [(0, 8 * MB), (8 * MB, 9 * MB), (12 * MB, 15 * MB)]


def test_without_announced_groups_reads_that_follow_one_another_are_joined_again():
    client = Client(content(8 * MB))
    with client.open() as stream:
        stream.expect([[(0, 1000)]])
        stream.read(1000)
        stream.expect([])
        for step in range(32):
            stream.seek(MB + step * MB // 8)
            assert stream.read(MB // 8) == client.data[MB + step * MB // 8 :][: MB // 8]
    assert len(client.ranges) <= 8


def test_any_seeks_and_reads_give_the_bytes_of_the_object(monkeypatch):
    monkeypatch.setattr(object_file, "CHUNK", 4000)
    monkeypatch.setattr(object_file, "FIRST", 500)
    monkeypatch.setattr(object_file, "SMALL", 100)
    monkeypatch.setattr(object_file, "_TAIL", 300)
    monkeypatch.setattr(object_file_module, "GROUP", 5000)
    monkeypatch.setattr(object_file_module, "PIECE", 900)
    for seed in range(300):
        chance = random.Random(seed)
        client = Client(content(chance.choice([1, 99, 5000, 60_000])))
        client.cuts = [None] * chance.randrange(9) + [chance.choice([0, 7, 400]) for _ in range(4)]
        client.error = chance.choice([None, ConnectionResetError("reset"), client.error])
        model = io.BytesIO(client.data)
        with client.open(chance.choice([None, len(client.data) // 2])) as stream:
            if chance.random() < 0.3:
                edges = [chance.randrange(len(client.data) + 1) for _ in range(6)]
                stream.expect([[(edges[0], edges[1]), (edges[2], edges[3])], [(edges[4], edges[5])]])
            for _ in range(60):
                if chance.random() < 0.3:
                    place = chance.randrange(len(client.data) + 50)
                    assert stream.seek(place) == model.seek(place)
                size = chance.choice([1, 7, 300, 9000, -1])
                assert stream.read(size) == model.read(size), seed
                assert stream.tell() == model.tell() or not model.read(1)
                model.seek(stream.tell())


BREAKS = [
    IncompleteReadError(actual_bytes=1, expected_bytes=2),
    ReadTimeoutError(endpoint_url="x"),
    ConnectionResetError("reset"),
    None,
]


@pytest.mark.parametrize("error", BREAKS)
def test_an_answer_that_breaks_off_is_continued_at_its_byte(error):
    client = Client(content(300_000))
    client.error, client.cuts = error, [1000, 0, 70_000]
    with client.open() as stream:
        assert stream.read() == client.data
    assert client.ranges == [(0, 300_000), (1000, 300_000), (1000, 300_000), (71_000, 300_000)]


def test_answers_that_keep_breaking_off_are_a_retriable_error():
    client = Client(content(300_000))
    client.cuts = [10] * 50
    with client.open() as stream, pytest.raises(RetriableError, match=r"end early, at byte 50 of 's3://b/k'"):
        stream.read()
    assert len(client.ranges) == 5


def test_a_store_that_ignores_the_condition_is_noticed_by_the_etag():
    client = Client(content(300_000))
    client.obeys = False
    with client.open() as stream:
        client.etag = "v2"
        with pytest.raises(DataError, match="etag v1; now .*etag v2"):
            stream.read()


def test_a_store_that_serves_two_versions_in_turn_is_retried():
    client = Client(content(300_000))
    file = client.open()
    client.etag = "v2"
    client.now = lambda: FileStatus("s3://b/k", 300_000, 0, "v1")  # type: ignore[method-assign]
    file = client.open()
    with file as stream, pytest.raises(RetriableError, match="not the current one"):
        stream.read()


def test_without_an_etag_the_first_answer_decides():
    client = Client(content(300_000))
    reader = client.reader(etag=None)
    assert reader.read(0, 10) == client.data[:10]
    client.etag = "v2"
    with pytest.raises(DataError, match="has changed"):
        reader.read(10, 20)


def test_a_store_that_ignores_ranges_is_refused():
    client = Client(content(3 * MB))
    real = client.get_range

    def whole(*arguments: Any) -> Any:
        answer = real(*arguments)
        return {name: value for name, value in answer.items() if name != "ContentRange"}

    client.get_range = whole  # type: ignore[assignment]
    with client.open() as stream:
        stream.seek(5)
        with pytest.raises(ConfigurationError, match="ignores the range"):
            stream.read(10)


def test_closing_ends_requests_of_other_threads():
    client = Client(content(40 * MB))
    reader = client.reader()
    reader.close()
    with pytest.raises(Cancelled):
        reader.read(0, 10)
