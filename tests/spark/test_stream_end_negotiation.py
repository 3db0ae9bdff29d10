# SPDX-License-Identifier: Apache-2.0
"""Splits with unknown ends in real Spark queries: retries, several actions, LIMIT, AvailableNow."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from forebay.errors import ConfigurationError, unwrap
from forebay.framework.arrow.row_packer import Batch
from forebay.framework.simple import SimpleSource
from forebay.spark.register import read_stream


class Tail(SimpleSource):
    """Files of lines with unknown ends, read in pages; pages change as the files grow."""

    bounded = False
    directory: str
    pause: float = 0.0
    fail_at: int = -1

    def schema(self):
        return pa.schema({"split": pa.string(), "n": pa.int64()})

    def splits(self):
        return sorted(path.stem for path in Path(self.directory).glob("*.log"))

    def read(self, split):
        at = split.position or 0
        while True:
            there = (Path(self.directory) / f"{split.id}.log").stat().st_size
            end = min(at + 100, there if split.end is None else min(there, split.end))
            if end <= at:
                return
            if at <= self.fail_at < end:
                self.fail_once(split)
            if self.pause:
                time.sleep(self.pause)
            yield Batch([{"split": split.id, "n": n} for n in range(at, end)], end)
            at = end

    def fail_once(self, split):
        """Let the first attempt fail, after it has claimed what came before, whatever process it is in."""
        try:
            (Path(self.directory) / f"{split.id}.failed").touch(exist_ok=False)
        except FileExistsError:
            return
        time.sleep(1.0)  # longer than a chunk is held back
        raise ValueError("the first attempt fails")


@pytest.fixture
def logs(tmp_path):
    directory = tmp_path / "logs"
    directory.mkdir()
    return directory


def grow(logs, name, count):
    """Append so many one-byte rows."""
    with (logs / f"{name}.log").open("ab") as file:
        file.write(b"x" * count)


def stream(spark, logs, tmp_path, *, pause=0.0, fail_at=-1, **options):
    source = Tail(directory=str(logs), pause=pause, fail_at=fail_at)
    return read_stream(spark, source, state_location=str(tmp_path / "state"), poll_interval="200ms", **options)


def start(frame, tmp_path, each, *, once=True):
    writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(each)
    query = (writer.trigger(availableNow=True) if once else writer).start()
    if once:
        assert query.awaitTermination(500)
    return query


def keeping(kept):
    """Return a sink that keeps (split, n) of each micro-batch."""

    def each(frame, number):
        kept.append((number, sorted((row.split, row.n) for row in frame.collect())))

    return each


def rows_of(kept):
    return sorted(row for _, rows in kept for row in rows)


def wanted(**sizes):
    return [(name, n) for name, size in sorted(sizes.items()) for n in range(size)]


@pytest.mark.soak
def test_a_failed_attempt_is_gone_on_from_exactly(spark, logs, tmp_path):
    grow(logs, "a", 350)
    grow(logs, "b", 50)
    kept = []
    start(stream(spark, logs, tmp_path, fail_at=250), tmp_path, keeping(kept))
    assert (logs / "a.failed").exists()
    assert len(kept) == 1
    assert rows_of(kept) == wanted(a=350, b=50)


def test_runs_go_on_where_the_last_one_was_caught_up(spark, logs, tmp_path):
    kept = []
    for size in (130, 0, 70):
        if size:
            grow(logs, "a", size)
        start(stream(spark, logs, tmp_path), tmp_path, keeping(kept))
    assert [len(rows) for _, rows in kept] == [130, 70]
    assert rows_of(kept) == wanted(a=200)


@pytest.mark.soak
def test_two_actions_and_a_self_union_see_the_same_rows_while_a_writer_writes(spark, logs, tmp_path):
    grow(logs, "a", 300)
    counts, kept = [], []

    def each(frame, number):
        counts.append((frame.union(frame).count(), frame.count()))
        kept.append((number, sorted((row.split, row.n) for row in frame.collect())))

    with writing(logs, "a") as writer:
        start(stream(spark, logs, tmp_path, max_batch_duration="1s", pause=0.01), tmp_path, each)
        assert writer.is_alive(), "the run ends also while a writer keeps writing"
    assert all(twice == 2 * once == 2 * len(rows) for (twice, once), (_, rows) in zip(counts, kept, strict=True))
    found = rows_of(kept)
    assert found == wanted(a=len(found)) and len(found) >= 300


class writing:  # noqa: N801 - a context manager
    """Lets a split grow, one row each 20 ms, until the block is left."""

    def __init__(self, logs, name):
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, args=(logs, name), daemon=True)

    def run(self, logs, name):
        while not self.over.wait(0.02):
            grow(logs, name, 1)

    def __enter__(self):
        self.thread.start()
        return self.thread

    def __exit__(self, *error):
        self.over.set()
        self.thread.join(10)


@pytest.mark.soak
def test_a_limit_leaves_the_rest_to_the_next_micro_batches(spark, logs, tmp_path):
    grow(logs, "a", 500)
    batches = []
    frame = stream(spark, logs, tmp_path, max_bytes_per_trigger="2k", num_partitions=1)

    def each(rows, number):
        batches.append([row.n for row in rows.limit(1).collect()])

    start(frame, tmp_path, each)
    firsts = [n for batch in batches for n in batch]
    assert firsts[0] == 0 and len(firsts) > 2
    assert firsts == sorted(set(firsts)), "each micro-batch begins behind what the one before claimed"


@pytest.mark.soak
def test_what_nobody_reads_is_not_lost(spark, logs, tmp_path):
    grow(logs, "a", 120)
    start(stream(spark, logs, tmp_path), tmp_path, lambda _frame, _number: None)
    kept = []
    start(stream(spark, logs, tmp_path), tmp_path, keeping(kept))
    assert rows_of(kept) == wanted(a=120)


@pytest.mark.soak
def test_rows_per_trigger_are_shared_and_kept_to(spark, logs, tmp_path):
    grow(logs, "a", 450)
    grow(logs, "b", 100)
    kept = []
    start(stream(spark, logs, tmp_path, max_rows_per_trigger=200), tmp_path, keeping(kept))
    assert all(0 < len(rows) <= 200 for _, rows in kept)
    assert rows_of(kept) == wanted(a=450, b=100)


@pytest.mark.soak
def test_an_idle_query_runs_no_empty_micro_batches_and_sees_what_comes(spark, logs, tmp_path):
    grow(logs, "a", 10)
    kept, came = [], threading.Event()

    def each(frame, number):
        keeping(kept)(frame, number)
        came.set()

    query = start(stream(spark, logs, tmp_path), tmp_path, each, once=False)
    try:
        assert came.wait(500)
        time.sleep(2.0)  # ten looks
        assert [number for number, _ in kept] == [0]
        came.clear()
        grow(logs, "a", 5)
        assert came.wait(500)
        came.clear()
        grow(logs, "new", 5)
        assert came.wait(500)
    finally:
        query.stop()
    assert [number for number, _ in kept] == [0, 1, 2]
    assert rows_of(kept) == wanted(a=15, new=5)
    offset = json.loads((tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1])
    assert offset["splits"] == [["a", False, None]]


def test_it_is_refused_without_a_place_for_claims(spark, logs, tmp_path):
    grow(logs, "a", 10)
    frame = read_stream(spark, Tail(directory=str(logs)))
    with pytest.raises(StreamingQueryException) as caught:
        start(frame, tmp_path, keeping([]))
    error = unwrap(caught.value)
    assert isinstance(error, ConfigurationError)
    assert (error.option, error.split) == ("stateLocation", "a")
    assert "from latest()" in str(error.advice)


@pytest.mark.soak
def test_claims_that_are_kept_elsewhere_are_missed(spark, logs, tmp_path):
    grow(logs, "a", 10)
    start(stream(spark, logs, tmp_path), tmp_path, keeping([]))
    grow(logs, "a", 10)
    moved = read_stream(spark, Tail(directory=str(logs)), state_location=str(tmp_path / "other"))
    with pytest.raises(StreamingQueryException) as caught:
        start(moved, tmp_path, keeping([]))
    error = unwrap(caught.value)
    assert isinstance(error, ConfigurationError) and error.option == "stateLocation"
    assert "rows would be read twice" in str(error.advice)
