# SPDX-License-Identifier: Apache-2.0
"""A read that infers its schema lists the files once; what was listed is used for that read alone."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from s3_servers import KEY, SECRET, S3Server

import forebay
from forebay.framework.arrow.casting import resolve_schema
from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.options import Secret
from forebay.sources.files import FileSource
from forebay.testkit import FaultProxy

KEYS = [f"orders/day={day}/{part}.csv" for day in range(3) for part in range(4)]


@pytest.fixture
def bucket(s3_server: S3Server) -> Iterator[FaultProxy]:
    """A server with a bucket of 12 CSV files, behind a proxy that keeps the requests."""
    s3_server.make_bucket("shop")
    for number, key in enumerate(KEYS):
        s3_server.client.put_object(Bucket="shop", Key=key, Body=f"n\n{number}\n".encode())
    with FaultProxy(s3_server.url) as proxy:
        yield proxy


def listings(bucket: FaultProxy) -> int:
    """Return how many pages of the listing of all keys were requested."""
    return sum("list-type=2" in request.target for request in bucket.requests)


def storage(bucket: FaultProxy) -> dict[str, str]:
    return {"endpoint_url": bucket.url, "key": KEY, "secret": SECRET}


@pytest.mark.soak
def test_a_cold_load_lists_once_for_schema_and_all_actions(bucket: FaultProxy, spark: Any) -> None:
    options = {f"storage.{name}": value for name, value in storage(bucket).items()}
    reader = spark.read.format("forebay_files").options(header=True, inferSchema=True, **options)
    given = reader.schema("n int, day int").load("s3://shop/orders")
    assert given.count() == len(KEYS)
    once = listings(bucket)
    assert once
    bucket.forget()
    reader = spark.read.format("forebay_files").options(header=True, inferSchema=True, **options)
    frame = reader.load("s3://shop/orders")
    assert frame.columns == ["n", "day"]
    assert (frame.count(), sorted(row["n"] for row in frame.collect())) == (len(KEYS), list(range(len(KEYS))))
    assert listings(bucket) == once


def test_a_run_in_process_lists_once(bucket: FaultProxy) -> None:
    secrets = {name: Secret(value) for name, value in storage(bucket).items()}
    source = FileSource(path="s3://shop/orders", storage=secrets, format_options={"header": True, "inferSchema": True})
    assert forebay.run(source.with_schema(source.schema())).to_table().num_rows == len(KEYS)
    twice = listings(bucket)
    bucket.forget()
    assert forebay.run(source).to_table().num_rows == len(KEYS)
    assert 2 * listings(bucket) == twice


@pytest.fixture
def source(tmp_path: Path) -> FileSource:
    (tmp_path / "a.csv").write_text("1\n")
    return FileSource(path=str(tmp_path), format_options={"inferSchema": True})


def splits(source: FileSource, *, streaming: bool = False) -> Callable[[], int]:
    """Return a function that discovers with a new enumerator, and returns the number of splits."""
    context = Coordinator(source.name, ThreadRuntime(), streaming=streaming, reads_once=not streaming)
    enumerator = source.create_enumerator(context)
    return lambda: len(enumerator.discover({}, True).splits)


def numbers(source: FileSource) -> list[int]:
    return sorted(forebay.run(source).to_table().column(0).to_pylist())


def test_each_run_finds_the_files_of_its_own_time(source: FileSource, tmp_path: Path) -> None:
    assert numbers(source) == [1]
    (tmp_path / "b.csv").write_text("2\n")
    assert numbers(source) == [1, 2]


def test_a_schema_that_the_user_inferred_earlier_leaves_out_no_file(source: FileSource, tmp_path: Path) -> None:
    typed = source.with_schema(source.schema())
    (tmp_path / "b.csv").write_text("2\n")
    assert numbers(typed) == [1, 2]


def test_the_listing_serves_one_enumerator_and_travels_to_no_task(source: FileSource, tmp_path: Path) -> None:
    resolved = resolve_schema(source, source.schema())
    for number in range(100):
        (tmp_path / f"{number}.csv").write_text("2\n")
    planner = pickle.loads(pickle.dumps(resolved))
    discover = splits(planner)
    assert [discover(), discover(), splits(planner)()] == [1, 101, 101]
    assert b"a.csv" in pickle.dumps(resolved)
    assert b"a.csv" not in pickle.dumps(planner)


def test_a_source_that_told_its_schema_lists_when_it_is_read(source: FileSource, tmp_path: Path) -> None:
    assert source.schema().names == ["_c0"]
    (tmp_path / "b.csv").write_text("2\n")
    assert splits(source)() == 2


def test_a_stream_lists_when_it_starts(source: FileSource, tmp_path: Path) -> None:
    resolved = resolve_schema(source, source.schema())
    (tmp_path / "b.csv").write_text("2\n")
    assert splits(resolved, streaming=True)() == 2
