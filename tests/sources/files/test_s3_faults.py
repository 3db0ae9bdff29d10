# SPDX-License-Identifier: Apache-2.0
"""Reads from S3 through a proxy that makes requests fail: the same rows, few more requests, in bounded time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from s3_servers import KEY, SECRET, S3Server

import forebay
from forebay.errors import DataError, RetriableError
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.tasks.assign_tasks import plan_bounded
from forebay.framework.tasks.read_task import ReadTask, run_task
from forebay.options import Secret
from forebay.sources.files import FileSource
from forebay.testkit import Fault, FaultProxy

pytest.importorskip("boto3")

BUCKET = "faults"
OBJECTS = 40
LINES = pa.schema([("value", pa.string())])
NUMBERS = pa.schema([("n", pa.int64()), ("text", pa.string())])
# A few percent of the requests: each 25th.
NTH = range(7, 100_000, 25)
# A time-out on a busy machine would be one more request: it is short only where the server is silent.
READ_TIMEOUT = 10.0
SILENCE_TIMEOUT = 2.0
KINDS = [
    "delay",
    "internal_error",
    "slow_down",
    "reset",
    "cut_before_head",
    "cut_after_head",
    "truncate",
    "reset_in_body",
    "silence",
]


@pytest.fixture(scope="module")
def server(s3_server: S3Server) -> str:
    """The URL of a server with a bucket of small and of long objects."""
    url, client = s3_server.url, s3_server.client
    s3_server.make_bucket(BUCKET)
    for number in range(OBJECTS):
        body = "".join(f"{number:03} {line}\n" for line in range(20))
        client.put_object(Bucket=BUCKET, Key=f"text/{number:03}.txt", Body=body.encode())
    long = "".join(f"{line:0999}\n" for line in range(6000))  # one request of 6 MB
    client.put_object(Bucket=BUCKET, Key="long/a.txt", Body=long.encode())
    for number in range(12):
        sink = pa.BufferOutputStream()
        rows = pa.table([range(4000), [f"{number} {row} {'x' * 300}" for row in range(4000)]], schema=NUMBERS)
        pq.write_table(rows, sink, row_group_size=500, compression="none")
        client.put_object(Bucket=BUCKET, Key=f"parquet/{number}.parquet", Body=sink.getvalue().to_pybytes())
    return url


@pytest.fixture(scope="module")
def opened(server: str) -> Iterator[FaultProxy]:
    with FaultProxy(server) as proxy:
        yield proxy


@pytest.fixture
def proxy(opened: FaultProxy) -> Iterator[FaultProxy]:
    """The proxy without rules and requests: an address of its own would cost each test its own client."""
    opened.forget()
    yield opened
    opened.inject()


@pytest.fixture(scope="module")
def faultless() -> dict[str, tuple[Any, int]]:
    """The rows and the number of requests of each way to read, once it was read without faults."""
    return {}


Faultless = dict[str, tuple[Any, int]]


def storage(proxy: FaultProxy, kind: str = "") -> dict[str, Secret]:
    timeout = SILENCE_TIMEOUT if kind == "silence" else READ_TIMEOUT
    settings = {"endpoint_url": proxy.url, "key": KEY, "secret": SECRET, "read_timeout": str(timeout)}
    return {name: Secret(value) for name, value in settings.items()}


def source(proxy: FaultProxy, path: str = "text", kind: str = "", **options: Any) -> FileSource:
    found = FileSource(path=f"s3://{BUCKET}/{path}", storage=storage(proxy, kind), **{"file_format": "text", **options})
    return found.with_schema(NUMBERS if options.get("file_format") == "parquet" else LINES)


def rows(source: FileSource) -> Sequence[tuple[Any, ...]]:
    table = forebay.run(source, parallelism=4).to_table()
    return sorted(tuple(row.values()) for row in table.to_pylist())


def same_with_faults(proxy: FaultProxy, faultless: Faultless, how: str, read: Callable[[], Any], *faults: Fault) -> str:
    """Read with faults, and the first time that way also without them; return what was counted."""
    if how not in faultless:
        expected = read()
        assert expected
        faultless[how] = expected, len(proxy.requests)
        proxy.forget()
    expected, fewest = faultless[how]
    proxy.inject(*faults)
    began = time.monotonic()
    found = read()
    seconds = time.monotonic() - began
    assert found == expected
    faulty = sum(request.fault is not None for request in proxy.requests)
    counted = f"{faulty} faults, {len(proxy.requests)} requests instead of {fewest}, {seconds:.1f} s"
    assert faulty, "a read without a fault proves nothing"
    assert len(proxy.requests) <= 1.1 * fewest, counted
    # One attempt and the pause before the next one, if no two faults overlap.
    assert seconds <= 10 + faulty * (SILENCE_TIMEOUT + 2), counted
    return counted


@pytest.mark.soak(but=["slow_down", "cut_after_head", "truncate", "silence"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_bounded_read_has_the_same_rows(
    proxy: FaultProxy, faultless: Faultless, record_property: Any, kind: str
) -> None:
    counted = same_with_faults(proxy, faultless, "all", lambda: rows(source(proxy, kind=kind)), Fault(kind, nth=NTH))
    record_property("report", f"S3, text, {kind}: {counted}")


@pytest.mark.parametrize("kind", ["slow_down", "cut_before_head", "truncate", "reset_in_body"])
def test_a_task_that_requests_small_objects_ahead_has_the_same_rows(
    proxy: FaultProxy, faultless: Faultless, record_property: Any, kind: str
) -> None:
    files = source(proxy)

    def read() -> Any:
        (task,) = plan_bounded(files, HostOptions(num_partitions=1))
        delivered = run_task(ReadTask(files, task, HostOptions()))
        return sorted(line for part in delivered for line in part.batch["value"].to_pylist())

    counted = same_with_faults(proxy, faultless, "task", read, Fault(kind, nth=NTH))
    record_property("report", f"S3, task, {kind}: {counted}")


@pytest.mark.parametrize("kind", ["slow_down", "truncate", "reset_in_body"])
def test_columns_of_parquet_have_the_same_rows(
    proxy: FaultProxy, faultless: Faultless, record_property: Any, kind: str
) -> None:
    def read() -> Any:
        return rows(source(proxy, "parquet", file_format="parquet").with_columns(["n"]))

    counted = same_with_faults(proxy, faultless, "Parquet", read, Fault(kind, nth=NTH))
    record_property("report", f"S3, Parquet, {kind}: {counted}")


@pytest.mark.parametrize("kind", ["slow_down", "cut_before_head", "truncate", "silence"])
def test_a_stream_has_the_same_rows(
    proxy: FaultProxy, faultless: Faultless, stream: Callable[..., Any], record_property: Any, kind: str
) -> None:
    def read() -> Any:
        query = stream(f"s3://{BUCKET}/text", storage=storage(proxy, kind), max_files_per_trigger=20)
        return sorted(line for batch in query.drain() for line in batch)

    counted = same_with_faults(proxy, faultless, "stream", read, Fault(kind, nth=NTH))
    record_property("report", f"S3, stream, {kind}: {counted}")


@pytest.mark.parametrize("kind", ["slow_down", "cut_after_head", "truncate", "silence"])
def test_a_listing_may_fail(proxy: FaultProxy, kind: str) -> None:
    read = source(proxy, kind=kind)
    proxy.inject(Fault(kind, path="*list-type=*", nth=(1,)))
    assert sorted(file.name for file in read.list().files) == [f"{number:03}.txt" for number in range(OBJECTS)]
    assert kind in {request.fault for request in proxy.requests}


@pytest.mark.parametrize("kind", ["truncate", "reset_in_body"])
def test_what_came_before_a_break_is_not_fetched_again(proxy: FaultProxy, kind: str) -> None:
    """Three answers break off in their middle. After RST a part of the half may be lost too."""
    proxy.inject(Fault(kind, path="*/long/*", method="GET", nth=(1, 2, 3)))
    assert len(rows(source(proxy, "long"))) == 6000
    ranges = [request.range.removeprefix("bytes=").split("-") for request in proxy.requests if request.range]
    starts = [int(start) for start, _ in ranges]
    assert len(starts) == 4
    assert starts == sorted(starts) and starts[-1] > 0
    if kind == "truncate":
        size = 6000 * 1000
        assert starts == [0, size // 2, size // 4 * 3, size // 8 * 7]


def test_an_object_that_is_another_one_now_is_named(proxy: FaultProxy) -> None:
    """The proxy answers from the first request for its content on as if it had been overwritten."""
    proxy.inject(Fault("changed", path="*/text/007.txt"))
    with pytest.raises(DataError, match=r"s3://faults/text/007\.txt"):
        rows(source(proxy))


def test_an_object_that_a_replica_does_not_have_yet_is_read_again(proxy: FaultProxy) -> None:
    proxy.inject(Fault("changed", path="*/text/007.txt", method="GET", nth=(1,)))
    assert len(rows(source(proxy))) == 20 * OBJECTS


@pytest.mark.parametrize("seconds", [3, *(pytest.param(longer, marks=pytest.mark.soak) for longer in (20, 60))])
def test_a_server_that_is_away_for_some_time_is_waited_for(s3_server: S3Server, server: str, seconds: float) -> None:
    files = FileSource(
        path=f"s3://{BUCKET}/text",
        storage={name: Secret(value) for name, value in s3_server.options().items()},
        file_format="text",
    ).with_schema(LINES)
    (task,) = plan_bounded(files, HostOptions(num_partitions=1))
    delivered = run_task(ReadTask(files, task, HostOptions(max_rows_per_batch=20)))
    lines = list(next(delivered).batch["value"].to_pylist())
    s3_server.kill()
    back = threading.Timer(seconds, s3_server.start)
    back.start()
    try:
        lines += [line for part in delivered for line in part.batch["value"].to_pylist()]
    finally:
        back.join()
    assert sorted(lines) == [f"{number:03} {line}" for number in range(OBJECTS) for line in sorted(map(str, range(20)))]


def test_a_server_that_stays_away_is_a_final_error_that_names_it(s3_server: S3Server, server: str) -> None:
    files = FileSource(
        path=f"s3://{BUCKET}/text",
        storage={name: Secret(value) for name, value in s3_server.options(connect_timeout="1").items()},
        file_format="text",
    ).with_schema(LINES)
    s3_server.kill()
    try:
        with pytest.raises(RetriableError, match=r"\(\d+ tries in \d+\.\d s\)") as caught:
            forebay.run(files, options=HostOptions(retry_timeout="1s")).to_table()
    finally:
        s3_server.start()
    assert s3_server.url.removeprefix("http://") in str(caught.value)
    assert SECRET not in str(caught.value) and KEY not in str(caught.value)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_any_mixture_of_faults(server: str, record_property: Any, seed: int) -> None:
    faults = [Fault(kind, probability=0.005) for kind in KINDS]
    with FaultProxy(server, seed=seed) as proxy:

        def read() -> Any:
            text, parquet = source(proxy, kind="silence"), source(proxy, "parquet", "silence", file_format="parquet")
            return [rows(text) for _ in range(4)], rows(parquet)

        record_property("report", f"S3, seed {seed}: {same_with_faults(proxy, {}, 'both', read, *faults)}")
