# SPDX-License-Identifier: Apache-2.0
"""`forebay_files` in real Spark streams: files in, rows in a sink, over restarts, beside Spark's own file stream."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import forebay

NOON = 1_700_000_000


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    forebay.register(spark)


def put(directory: Path, name: str, text: str, at: float = 0.0) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(text)
    moment = int((NOON + at) * 1e9)
    os.utime(path, ns=(moment, moment))
    return path


def stream(spark: SparkSession, directory: Path, **options: Any) -> DataFrame:
    reader = spark.readStream.format("forebay_files").schema(options.pop("schema", "value string"))
    options = {"fileFormat": "text", **options}
    return reader.options(**options).load(str(directory))


class Query:
    """Runs a stream up to what there is, and keeps what each micro-batch brought."""

    def __init__(self, tmp_path: Path) -> None:
        self.checkpoint = str(tmp_path / "checkpoint")
        self.batches: list[list[tuple[Any, ...]]] = []

    def run(self, frame: DataFrame, *, once: bool = False) -> list[list[tuple[Any, ...]]]:
        taken: list[list[tuple[Any, ...]]] = []

        def keep(batch: DataFrame, _number: int) -> None:
            taken.append(sorted(tuple(row) for row in batch.collect()))

        writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", self.checkpoint)
        query = writer.trigger(once=True).start() if once else writer.trigger(availableNow=True).start()
        query.awaitTermination(500)
        assert query.exception() is None
        self.batches += taken
        return [rows for rows in taken if rows]


def test_files_come_once_in_order_and_over_restarts(spark: SparkSession, tmp_path: Path) -> None:
    inbox = tmp_path / "in"
    for number in range(5):
        put(inbox, f"{number}.txt", f"{number}\n", at=-number)
    query = Query(tmp_path)
    frame = stream(spark, inbox, maxFilesPerTrigger=2)
    assert query.run(frame) == [[("3",), ("4",)], [("1",), ("2",)], [("0",)]]
    put(inbox, "5.txt", "5\n")
    assert query.run(frame) == [[("5",)]]


@pytest.mark.soak
def test_spark_30669_once_ignores_the_limit(spark: SparkSession, tmp_path: Path) -> None:
    inbox = tmp_path / "in"
    for number in range(5):
        put(inbox, f"{number}.txt", f"{number}\n", at=number)
    query = Query(tmp_path)
    assert query.run(stream(spark, inbox, maxFilesPerTrigger=2), once=True) == [[(str(n),) for n in range(5)]]


@pytest.mark.parametrize("value", ["not-a-integer", "0"])
def test_max_files_per_trigger_incorrect_values(spark: SparkSession, tmp_path: Path, value: str) -> None:
    put(tmp_path / "in", "a.txt", "a\n")
    with pytest.raises(Exception, match="maxFilesPerTrigger") as raised:
        stream(spark, tmp_path / "in", maxFilesPerTrigger=value).writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        ).trigger(availableNow=True).start().awaitTermination(500)
    error = forebay.unwrap(raised.value)
    assert error is not None
    assert error.option == "maxFilesPerTrigger"


@pytest.mark.soak
def test_a_big_file_spans_micro_batches_and_every_row_comes_once(spark: SparkSession, tmp_path: Path) -> None:
    inbox = tmp_path / "in"
    put(inbox, "a.csv", "k\n" + "".join(f"{n:06}\n" for n in range(1000)))
    query = Query(tmp_path)
    options = {"fileFormat": "csv", "header": "true", "maxBytesPerTrigger": "2000b", "schema": "k string"}
    found = query.run(stream(spark, inbox, **options))
    assert [len(rows) for rows in found] == [286, 286, 285, 143]
    assert [row[0] for rows in found for row in rows] == [f"{n:06}" for n in range(1000)]


def test_the_schema_is_inferred_and_columns_of_directories_and_metadata_come_along(
    spark: SparkSession, tmp_path: Path
) -> None:
    inbox = tmp_path / "in"
    put(inbox / "day=1", "a.json", '{"k": 1}\n')
    put(inbox / "day=2", "b.json", '{"k": 2}\n')
    frame = spark.readStream.format("forebay_files").option("includeMetadata", "true").load(str(inbox))
    chosen = frame.select("k", "day", "_metadata.file_name", "_metadata.file_size")
    assert Query(tmp_path).run(chosen) == [[(1, 1, "a.json", 9), (2, 2, "b.json", 9)]]


def test_an_empty_directory_needs_a_schema(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(Exception, match="there are no files") as raised:
        spark.readStream.format("forebay_files").option("fileFormat", "csv").load(str(tmp_path / "in"))
    error = forebay.unwrap(raised.value)
    assert error is not None
    assert "give a schema" in str(error.advice)


@pytest.mark.soak
def test_remove_completed_files_when_remove_option_is_enabled(spark: SparkSession, tmp_path: Path) -> None:
    inbox = tmp_path / "in"
    put(inbox, "a.txt", "a\n")
    put(inbox, "b.txt", "b\n", at=1)
    query = Query(tmp_path)
    frame = stream(spark, inbox, cleanSource="delete", maxFilesPerTrigger=1)
    assert query.run(frame) == [[("a",)], [("b",)]]
    # Spark does not commit the last micro-batch of such a run: the next one cleans up after it.
    assert [path.name for path in inbox.iterdir()] in ([], ["b.txt"])
    put(inbox, "c.txt", "c\n", at=2)
    assert query.run(frame) == [[("c",)]]
    assert not (inbox / "b.txt").exists()


@pytest.mark.soak
def test_a_changed_file_fails_the_query_and_the_error_names_it(spark: SparkSession, tmp_path: Path) -> None:
    inbox = tmp_path / "in"
    put(inbox, "a.txt", "a\n")
    query = Query(tmp_path)
    query.run(stream(spark, inbox))
    put(inbox, "a.txt", "a\nb\n", at=5)
    with pytest.raises(Exception, match="has changed since it was read") as raised:
        query.run(stream(spark, inbox))
    error = forebay.unwrap(raised.value)
    assert error is not None
    assert error.option == "onChangedFile"
    assert query.run(stream(spark, inbox, onChangedFile="reread")) == [[("a",), ("b",)]]


@pytest.mark.soak
def test_spark_26629_two_sources_work_with_restarts_when_one_has_no_data(spark: SparkSession, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    two.mkdir()
    put(one, "a.txt", "a\n")
    query = Query(tmp_path)
    both = stream(spark, one).union(stream(spark, two))
    assert query.run(both) == [[("a",)]]
    put(one, "0.txt", "0\n", at=1)
    assert query.run(both) == [[("0",)]]
    put(two, "b.txt", "b\n")
    assert query.run(both) == [[("b",)]]


@pytest.mark.soak
def test_what_a_spark_stream_writes_is_read_as_far_as_it_was_committed(spark: SparkSession, tmp_path: Path) -> None:
    inbox, sink = tmp_path / "in", tmp_path / "sink"
    put(inbox, "a.txt", "a\n")
    writing = (
        spark.readStream.text(str(inbox))
        .writeStream.format("text")
        .option("checkpointLocation", str(tmp_path / "writer"))
        .trigger(availableNow=True)
    )
    writing.start(str(sink)).awaitTermination(500)
    put(sink, "stray.txt", "not committed\n")
    query = Query(tmp_path)
    assert query.run(stream(spark, sink)) == [[("a",)]]
    put(inbox, "b.txt", "b\n", at=1)
    writing.start(str(sink)).awaitTermination(500)
    assert query.run(stream(spark, sink)) == [[("b",)]]


@pytest.mark.soak
def test_the_rows_are_those_of_sparks_own_file_stream(spark: SparkSession, tmp_path: Path) -> None:
    inbox = tmp_path / "in"
    for number in range(4):
        put(inbox, f"{number}.json", "".join(f'{{"k": {number}, "v": "{n}"}}\n' for n in range(5)), at=number)
    schema = "k bigint, v string"
    ours, theirs = Query(tmp_path / "ours"), Query(tmp_path / "theirs")
    found = ours.run(stream(spark, inbox, fileFormat="json", schema=schema, maxFilesPerTrigger=3))
    assert found == theirs.run(spark.readStream.schema(schema).option("maxFilesPerTrigger", 3).json(str(inbox)))


@pytest.mark.soak
def test_a_column_that_the_users_schema_calls_not_null_is_believed_by_spark_so_a_null_in_it_is_an_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    put(tmp_path / "in", "a.json", '{"k": 1}\n{"k": null}\n')
    frame = stream(spark, tmp_path / "in", fileFormat="json", schema="k bigint not null")
    # Spark's own file streams make it nullable (SPARK-28651); a Python data source is not asked.
    assert not frame.schema["k"].nullable
    with pytest.raises(Exception, match="must not be null") as raised:
        Query(tmp_path).run(frame)
    error = forebay.unwrap(raised.value)
    assert error is not None
    assert str(error.split).endswith("/in/a.json")
