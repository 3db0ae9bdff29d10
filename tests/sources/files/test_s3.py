# SPDX-License-Identifier: Apache-2.0
"""Objects of S3, on a real server: the answers that mean a missing object, and keys that are no paths."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from s3_servers import Bucket, S3Server, bucket_of, bucket_of_moto

import forebay
from forebay.errors import ConfigurationError, DataError, RetriableError
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.tasks.assign_tasks import plan_bounded
from forebay.options import Secret
from forebay.sources.files import FileSource
from forebay.sources.files.split_reader import FileSplitReader

SCHEMA = pa.schema([("value", pa.string())])


def storage(bucket: Bucket) -> dict[str, Secret]:
    once = {"config_kwargs": '{"retries": {"max_attempts": 1}}'}
    return {name: Secret(str(value)) for name, value in bucket.options(**once).items()}


def source_of(bucket: Bucket, path: str, **options: Any) -> FileSource:
    return FileSource(
        path=f"s3://{bucket.name}{path}", file_format="text", storage=storage(bucket), **options
    ).with_schema(SCHEMA)


@pytest.fixture(scope="module")
def served(s3_server: S3Server) -> Iterator[Bucket]:
    with bucket_of(s3_server) as bucket:
        yield bucket


@pytest.fixture
def bucket(served: Bucket) -> Iterator[Bucket]:
    yield from served.emptied()


@pytest.fixture
def moto_bucket() -> Iterator[Bucket]:
    with bucket_of_moto() as bucket:
        yield bucket


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
    source = source_of(bucket, "/a.txt", ignore_missing_files=ignore)
    (task,) = plan_bounded(source, HostOptions(num_partitions=1))
    reader = FileSplitReader(source)
    reader.add_splits(task)
    bucket.intercept = lambda _: (fault, fault.split()[1])
    if ignore and error is DataError:
        (part,) = reader.fetch()
        assert part.finished
        return
    with pytest.raises(error):
        reader.fetch()


KEYS = ["q//a", "q/b", "f/../g/a", "./a", "f/./a", "//a", "r//", "g/a", "a"]


def test_every_key_is_read_as_it_is_written(moto_bucket: Bucket) -> None:
    """On moto: a server on a file system does not have these keys."""
    moto_bucket.put({key: f"{key}\n" for key in KEYS})
    written = sorted(set(KEYS) - {"r//"})  # an object whose key ends in a slash stands for a directory
    assert rows(source_of(moto_bucket, "", recursive_file_lookup=True)) == written
    for key in written:
        assert rows(source_of(moto_bucket, f"/{key}")) == [key]
    assert rows(source_of(moto_bucket, "/q", recursive_file_lookup=True)) == ["q//a", "q/b"]
    assert rows(source_of(moto_bucket, "//", recursive_file_lookup=True)) == written, "slashes at the end say nothing"


def test_a_path_with_one_slash_too_many_is_that_of_the_directory_without_it(moto_bucket: Bucket) -> None:
    """On moto: a server on a file system has no empty names."""
    moto_bucket.put({"d/k=1/a": "1\n", "d/k=2//a": "2\n"})
    assert rows(source_of(moto_bucket, "//d//k=1/a")) == ["1"]
    assert rows(source_of(moto_bucket, "/d/k=*//a")) == ["1"], "a glob has no empty names"
    assert rows(source_of(moto_bucket, "//d/")) == ["1", "2"]


def test_keys_before_a_given_one_are_not_listed(bucket: Bucket) -> None:
    bucket.put({f"logs/2024-0{month}/{name}": f"{month}{name}\n" for month in (5, 6, 7) for name in "ab"})
    options: dict[str, Any] = {"list_after": "logs/2024-06/a", "recursive_file_lookup": True}
    assert rows(source_of(bucket, "/logs", **options)) == ["6b", "7a", "7b"]
    assert rows(source_of(bucket, "/logs/*", **options)) == ["6b", "7a", "7b"]
    assert rows(source_of(bucket, "/logs/*/*", **options)) == ["6b", "7a", "7b"]
    bucket.put({f"days/day={day}/a": f"{day}\n" for day in (1, 2, 3)})
    pruned = source_of(bucket, "/days", list_after="days/day=1/z", partition_filter="day < 3")
    assert rows(pruned.with_schema(pa.schema([("value", pa.string()), ("day", pa.int32())]))) == ["2"]
    with pytest.raises(ConfigurationError, match="not on S3") as raised:
        FileSource(path="/tmp", file_format="text", list_after="x").list()
    assert raised.value.option == "listAfter"


@pytest.mark.parametrize("how", ["delete", "archive"])
def test_a_stream_reads_each_object_once_and_cleans_up(bucket: Bucket, stream: Callable[..., Any], how: str) -> None:
    bucket.put({"in/a b.txt": "1\n", "in/d/c.txt": "2\n"})
    archive = {"source_archive_dir": f"s3://{bucket.name}/old"} if how == "archive" else {}
    options = {"clean_source": how, "recursive_file_lookup": True, "storage": storage(bucket), **archive}
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
    query = stream(f"s3://{bucket.name}/in", storage=storage(bucket))
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


def test_the_settings_of_the_session_are_used_without_options(moto_bucket: Bucket, spark: Any) -> None:
    """On moto: the real servers know one key."""
    moto_bucket.put({"d/a.txt": "1\n2\n"})
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    settings = {
        "access.key": "of-session",
        "secret.key": "y",
        "endpoint": moto_bucket.endpoint,
        "path.style.access": "true",
    }
    for name, value in settings.items():
        hadoop.set(f"fs.s3a.{name}", value)
    spark.conf.set("fs.s3a.access.key", "of-sql")
    try:
        forebay.register(spark)
        seen: set[str] = set()
        signed = re.compile(r"Credential=([^/]+)/")
        moto_bucket.intercept = lambda environ: seen.update(signed.findall(environ.get("HTTP_AUTHORIZATION", "")))
        frame = spark.read.format("forebay_files").load(f"s3a://{moto_bucket.name}/d")
        assert sorted(row.value for row in frame.collect()) == ["1", "2"]
        assert seen == {"of-sql"}
        made = forebay.read(spark, FileSource(path=f"s3://{moto_bucket.name}/d", file_format="text"))
        assert made.count() == 2
        own = {f"storage.{name}": secret.reveal() for name, secret in storage(moto_bucket).items()}
        seen.clear()
        assert spark.read.format("forebay_files").options(**own).load(f"s3://{moto_bucket.name}/d").count() == 2
        assert seen == {"x"}
        spark.conf.set("fs.s3a.proxy.host", "proxy")
        forebay.register(spark)
        with pytest.raises(Exception, match="fs.s3a.proxy.host") as raised:
            spark.read.format("forebay_files").load(f"s3a://{moto_bucket.name}/d")
        assert isinstance(forebay.unwrap(raised.value), ConfigurationError)
    finally:
        for name in settings:
            hadoop.unset(f"fs.s3a.{name}")
        for name in ("access.key", "proxy.host"):
            spark.conf.unset(f"fs.s3a.{name}")
        forebay.register(spark)


@pytest.mark.soak
def test_the_example_of_a_backfill_copies_the_chosen_orders(
    bucket: Bucket, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "examples"))
    lines = [json.dumps({"id": number, "amount": float(number)}) for number in range(200)]
    bucket.put(
        {f"orders/year={year}/month={month}/part.json": "\n".join(lines) for year in (2023, 2024) for month in (1, 2)}
    )
    options = {f"storage.{name}": str(value) for name, value in bucket.options().items()}
    target = str(tmp_path / "copied")
    import_module("s3_backfill").backfill(spark, f"s3://{bucket.name}/orders", target, **options)
    copied = spark.read.parquet(target)
    assert {(row.year, row.month, row["count"]) for row in copied.groupBy("year", "month").count().collect()} == {
        (2024, 1, 99),
        (2024, 2, 99),
    }
