# SPDX-License-Identifier: Apache-2.0
"""Objects of S3, on a server of moto: the answers that mean a missing object, and keys that are no paths."""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.errors import ConfigurationError, DataError, RetriableError
from forebay.framework.microbatch.bounded import plan_bounded
from forebay.framework.runtime.host_options import HostOptions
from forebay.options import Secret
from forebay.sources.files import FileSource
from forebay.sources.files.reading.split_reader import FileSplitReader

boto3 = pytest.importorskip("boto3")

SCHEMA = pa.schema([("value", pa.string())])


class Bucket:
    """A bucket on a server of this process, whose answers for objects can be made to fail."""

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        inner = DomainDispatcherApplication(create_backend_app)
        self.fault = ""
        self.signers: set[str] = set()

        def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Any:
            self.signers.update(re.findall(r"Credential=([^/]+)/", environ.get("HTTP_AUTHORIZATION", "")))
            if not self.fault or environ["REQUEST_METHOD"] == "PUT":
                return inner(environ, start)
            code = self.fault.split()[1]
            body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
            start(self.fault, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
            return [b""] if environ["REQUEST_METHOD"] == "HEAD" else [body]

        self._server = make_server("127.0.0.1", 0, answer, threaded=True)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.client = boto3.client(
            "s3", endpoint_url=self.endpoint, region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="y"
        )
        self.name = f"b{uuid.uuid4().hex[:8]}"
        self.client.create_bucket(Bucket=self.name)

    def put(self, objects: Mapping[str, str]) -> None:
        for key, text in objects.items():
            self.client.put_object(Bucket=self.name, Key=key, Body=text.encode())

    @property
    def storage(self) -> dict[str, Secret]:
        return {
            "key": Secret("x"),
            "secret": Secret("y"),
            "endpoint_url": Secret(self.endpoint),
            "config_kwargs": Secret('{"retries": {"max_attempts": 1}}'),
        }

    def source(self, path: str, **options: Any) -> FileSource:
        return FileSource(
            path=f"s3://{self.name}{path}", file_format="text", storage=self.storage, **options
        ).with_schema(SCHEMA)

    def close(self) -> None:
        self.client.close()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture(scope="module")
def served() -> Iterator[Bucket]:
    bucket = Bucket()
    yield bucket
    bucket.close()


@pytest.fixture
def bucket(served: Bucket) -> Iterator[Bucket]:
    yield served
    served.fault = ""
    for found in served.client.list_objects_v2(Bucket=served.name).get("Contents", ()):
        served.client.delete_object(Bucket=served.name, Key=found["Key"])


def rows(source: FileSource) -> list[str]:
    return sorted(forebay.run(source).to_table()["value"].to_pylist())


@pytest.mark.parametrize("ignore", [False, True])
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("403 AccessDenied", ConfigurationError),
        ("400 ExpiredToken", ConfigurationError),
        ("500 InternalError", RetriableError),
        ("503 SlowDown", RetriableError),
        ("404 NoSuchKey", DataError),
    ],
)
def test_only_not_found_means_gone(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, fault: str, error: type[Exception], ignore: bool
) -> None:

    bucket.put({"a.txt": "1\n"})
    source = bucket.source("/a.txt", ignore_missing_files=ignore)
    (task,) = plan_bounded(source, HostOptions(num_partitions=1))
    reader = FileSplitReader(source)
    reader.add_splits(task)
    bucket.fault = fault
    if ignore and error is DataError:
        (part,) = reader.fetch()
        assert part.finished
        return
    with pytest.raises(error):
        reader.fetch()


KEYS = ["q//a", "q/b", "f/../g/a", "./a", "f/./a", "//a", "r//", "g/a", "a"]


def test_every_key_is_read_as_it_is_written(bucket: Bucket) -> None:
    bucket.put({key: f"{key}\n" for key in KEYS})
    written = sorted(set(KEYS) - {"r//"})  # an object whose key ends in a slash stands for a directory
    assert rows(bucket.source("", recursive_file_lookup=True)) == written
    for key in written:
        assert rows(bucket.source(f"/{key}")) == [key]
    assert rows(bucket.source("/q", recursive_file_lookup=True)) == ["q//a", "q/b"]
    assert rows(bucket.source("//", recursive_file_lookup=True)) == written, "slashes at the end say nothing"


def test_a_path_with_one_slash_too_many_is_that_of_the_directory_without_it(bucket: Bucket) -> None:
    bucket.put({"d/k=1/a": "1\n", "d/k=2//a": "2\n"})
    assert rows(bucket.source("//d//k=1/a")) == ["1"]
    assert rows(bucket.source("/d/k=*//a")) == ["1"], "a glob has no empty names"
    assert rows(bucket.source("//d/")) == ["1", "2"]


def test_keys_before_a_given_one_are_not_listed(bucket: Bucket) -> None:
    bucket.put({f"logs/2024-0{month}/{name}": f"{month}{name}\n" for month in (5, 6, 7) for name in "ab"})
    options: dict[str, Any] = {"list_after": "logs/2024-06/a", "recursive_file_lookup": True}
    assert rows(bucket.source("/logs", **options)) == ["6b", "7a", "7b"]
    assert rows(bucket.source("/logs/*", **options)) == ["6b", "7a", "7b"]
    assert rows(bucket.source("/logs/*/*", **options)) == ["6b", "7a", "7b"]
    bucket.put({f"days/day={day}/a": f"{day}\n" for day in (1, 2, 3)})
    pruned = bucket.source("/days", list_after="days/day=1/z", partition_filter="day < 3")
    assert rows(pruned.with_schema(pa.schema([("value", pa.string()), ("day", pa.int32())]))) == ["2"]
    with pytest.raises(ConfigurationError, match="not on S3") as raised:
        FileSource(path="/tmp", file_format="text", list_after="x").list()
    assert raised.value.option == "listAfter"


@pytest.mark.parametrize("how", ["delete", "archive"])
def test_a_stream_reads_each_object_once_and_cleans_up(bucket: Bucket, stream: Callable[..., Any], how: str) -> None:
    bucket.put({"in/a b.txt": "1\n", "in/d/c.txt": "2\n"})
    archive = {"source_archive_dir": f"s3://{bucket.name}/old"} if how == "archive" else {}
    options = {"clean_source": how, "recursive_file_lookup": True, "storage": bucket.storage, **archive}
    query = stream(f"s3://{bucket.name}/in", **options)
    assert query.drain() == [["1", "2"]]
    bucket.put({"in/e+%.txt": "3\n"})
    query.restart()
    assert query.drain() == [["3"]]
    query.restart()
    assert query.drain() == []
    left = [found["Key"] for found in bucket.client.list_objects_v2(Bucket=bucket.name).get("Contents", ())]
    keys = ["in/a b.txt", "in/d/c.txt", "in/e+%.txt"]
    assert left == ([f"old/{bucket.name}/{key}" for key in keys] if how == "archive" else [])


def test_an_object_that_changed_after_a_stream_read_it_is_an_error(bucket: Bucket, stream: Callable[..., Any]) -> None:
    bucket.put({"in/a": "1\n"})
    query = stream(f"s3://{bucket.name}/in", storage=bucket.storage)
    assert query.drain() == [["1"]]
    bucket.put({"in/a": "2\n"})
    with pytest.raises(DataError, match="/in/a' has changed since it was read"):
        query.trigger()
    query.restart(on_changed_file="reread")
    assert query.drain() == [["2"]]
    bucket.put({"in/b": "3\n"})
    end = query.plan()
    bucket.put({"in/b": "4\n"})
    with pytest.raises(DataError, match="/in/b' has changed since it was listed"):
        query.read(end)


def test_the_settings_of_the_session_are_used_without_options(bucket: Bucket, spark: Any) -> None:
    bucket.put({"d/a.txt": "1\n2\n"})
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    settings = {"access.key": "of-session", "secret.key": "y", "endpoint": bucket.endpoint, "path.style.access": "true"}
    for name, value in settings.items():
        hadoop.set(f"fs.s3a.{name}", value)
    spark.conf.set("fs.s3a.access.key", "of-sql")
    try:
        forebay.register(spark)
        seen = bucket.signers = set()
        frame = spark.read.format("forebay_files").load(f"s3a://{bucket.name}/d")
        assert sorted(row.value for row in frame.collect()) == ["1", "2"]
        assert seen == {"of-sql"}
        made = forebay.read(spark, FileSource(path=f"s3://{bucket.name}/d", file_format="text"))
        assert made.count() == 2
        own = {f"storage.{name}": secret.reveal() for name, secret in bucket.storage.items()}
        seen.clear()
        assert spark.read.format("forebay_files").options(**own).load(f"s3://{bucket.name}/d").count() == 2
        assert seen == {"x"}
        spark.conf.set("fs.s3a.proxy.host", "proxy")
        forebay.register(spark)
        with pytest.raises(Exception, match="fs.s3a.proxy.host") as raised:
            spark.read.format("forebay_files").load(f"s3a://{bucket.name}/d")
        assert isinstance(forebay.unwrap(raised.value), ConfigurationError)
    finally:
        for name in settings:
            hadoop.unset(f"fs.s3a.{name}")
        for name in ("access.key", "proxy.host"):
            spark.conf.unset(f"fs.s3a.{name}")
        forebay.register(spark)


def test_the_example_of_a_backfill_copies_the_chosen_orders(
    bucket: Bucket, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "examples"))
    lines = [json.dumps({"id": number, "amount": float(number)}) for number in range(200)]
    bucket.put(
        {f"orders/year={year}/month={month}/part.json": "\n".join(lines) for year in (2023, 2024) for month in (1, 2)}
    )
    options = {"storage.key": "x", "storage.secret": "y", "storage.endpoint_url": bucket.endpoint}
    target = str(tmp_path / "copied")
    import_module("s3_backfill").backfill(spark, f"s3://{bucket.name}/orders", target, **options)
    copied = spark.read.parquet(target)
    assert {(row.year, row.month, row["count"]) for row in copied.groupBy("year", "month").count().collect()} == {
        (2024, 1, 99),
        (2024, 2, 99),
    }
