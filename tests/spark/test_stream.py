# SPDX-License-Identifier: Apache-2.0
"""Streaming on real Spark: triggers, replays, retries, refusals."""

from __future__ import annotations

import json
import pickle
import threading
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from forebay.errors import ConfigurationError, DataLossError, FatalError, ForebayError, unwrap
from forebay.framework.arrow.row_packer import Batch
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.simple import SimpleEnumerator, SimpleSource
from forebay.options import Secret, option
from forebay.spark.batch import Readable
from forebay.spark.register import read, read_stream, register
from forebay.spark.stream import StreamReader

ROWS = pa.schema({"split": pa.string(), "n": pa.int64()})


def note(home, what):
    """Leave a mark, and return how many there are of it."""
    (home / f"{what}-{uuid.uuid4().hex}.mark").touch()
    return marks(home, what)


def marks(home, what):
    return len(list(home.glob(f"{what}-*.mark")))


class Counting(SimpleEnumerator):
    """Knows that its positions count rows, and notes its end."""

    def __init__(self, source, home):
        super().__init__(source)
        self.home = home

    def advance(self, split, *, rows=None, byte_budget=None):
        return None if rows is None else min((split.position or 0) + rows, split.end)

    def close(self):
        note(self.home, "close")


class Journal(SimpleSource):
    """A directory of files that say how many rows their split has; and of marks of what was called."""

    bounded = False
    home: Path
    topic: str = option(default="t", may_change=False)
    token: Secret | None = None
    fail: str = ""

    def raise_at(self, place):
        if place == self.fail:
            raise DataLossError(f"gone: {place}", split="a", position=7, advice="start again")
        if place == self.fail.removeprefix("own "):
            raise LookupError(f"{place} says {self.token.reveal() if self.token else 'nothing'}")

    def schema(self):
        return ROWS

    def splits(self):
        self.raise_at("splits")
        return sorted(path.stem for path in self.home.glob("*.rows"))

    def latest(self, split):
        self.raise_at("latest")
        return int((self.home / f"{split.id}.rows").read_text())

    def read(self, split):
        attempt = note(self.home, f"read-{split.id}")
        for n in range(split.position or 0, split.end):
            if n == 2:
                self.raise_at("read")
                if attempt == 1 and self.fail == "once":
                    raise OSError("broken pipe")
            yield Batch([{"split": split.id, "n": n}], n + 1)

    def create_enumerator(self, context):
        return Counting(self, self.home)


class Countdown(SimpleSource):
    """The smallest source: bounded, without a known end."""

    start: int = 10

    def schema(self):
        return pa.schema({"n": pa.int64()})

    def read(self, split):
        for i in range(split.position or 0, self.start):
            yield {"n": self.start - i}


class Zoned(SimpleSource):
    """Returns the time zone of its task."""

    time_zone: str = "UTC"

    def schema(self):
        return pa.schema({"zone": pa.string()})

    def read(self, split):
        yield {"zone": self.time_zone}


@pytest.fixture
def home(tmp_path):
    path = tmp_path / "home"
    path.mkdir()
    grow(path, a=5, b=3)
    return path


@pytest.fixture
def checkpoint(tmp_path):
    return tmp_path / "checkpoint"


def grow(home, **sizes):
    for split, size in sizes.items():
        (home / f"{split}.rows").write_text(str(size))


def every(**sizes):
    return sorted((split, n) for split, size in sizes.items() for n in range(size))


def rows(frame):
    return sorted(tuple(row) for row in frame.collect())


def start(frame, checkpoint, trigger, each=None):
    """Start a query; return it and its micro-batches, by number, which fill up."""
    batches = {}

    def keep(found, number):
        batches[number] = rows(found)
        if each is not None:
            each(found)

    writer = frame.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(keep)
    return writer.trigger(**trigger).start(), batches


def run(frame, checkpoint, *, each=None, **trigger):
    """Run a query to its end; return its micro-batches, by number."""
    query, batches = start(frame, checkpoint, trigger or {"availableNow": True}, each)
    try:
        assert query.awaitTermination(500)
    finally:
        query.stop()
    return batches


def delivered(*runs):
    return sorted(row for batches in runs for batch in batches.values() for row in batch)


def failure(action) -> ForebayError:
    with pytest.raises(Exception, match=r"forebay\.errors\.") as caught:
        action()
    assert type(caught.value).__module__.startswith("pyspark.")
    error = unwrap(caught.value)
    assert error is not None
    return error


def forget_commits(checkpoint, first):
    """Take commits back from one on: as if Spark had died before it wrote them."""
    for path in (checkpoint / "commits").iterdir():
        number = path.name.removeprefix(".").removesuffix(".crc")
        if number.isdigit() and int(number) >= first:
            path.unlink()


def forget_offsets(checkpoint, first):
    for path in (checkpoint / "offsets").iterdir():
        number = path.name.removeprefix(".").removesuffix(".crc")
        if number.isdigit() and int(number) >= first:
            path.unlink()
    forget_commits(checkpoint, first)


def change_offset(checkpoint, number, change):
    """Overwrite the offset of a micro-batch."""
    path = checkpoint / "offsets" / str(number)
    version, metadata, offset = path.read_text().split("\n")
    path.write_text("\n".join([version, metadata, change(json.loads(offset))]))
    (checkpoint / "offsets" / f".{number}.crc").unlink(missing_ok=True)


# ---- triggers


@pytest.mark.soak
def test_s17_available_now_takes_as_many_micro_batches_as_the_limit_says_while_a_writer_writes(spark, home, checkpoint):
    """S17: what there is when it begins, in exactly so many micro-batches, each split its turn (S16)."""
    grow(home, a=11, b=2)
    frame = read_stream(spark, Journal(home=home), max_rows_per_trigger=4)
    batches = run(frame, checkpoint, each=lambda _: grow(home, a=100, b=100, c=100))
    assert [len(batch) for batch in batches.values()] == [4, 4, 4, 1]
    assert {split for split, _ in batches[0] + batches[1]} == {"a", "b"}
    assert delivered(batches) == every(a=11, b=2)
    grow(home, a=12, b=2, c=1)
    assert delivered(run(frame, checkpoint)) == [("a", 11), ("c", 0)]


@pytest.mark.soak
def test_once_takes_everything_in_one_micro_batch(spark, home, checkpoint):
    frame = read_stream(spark, Journal(home=home), max_rows_per_trigger=1)
    batches = run(frame, checkpoint, once=True)
    assert batches == {0: every(a=5, b=3)}
    grow(home, a=6)
    assert run(frame, checkpoint, once=True) == {1: [("a", 5)]}


def test_s11_a_running_query_sees_what_comes_and_its_source_is_closed_when_it_stops(spark, home, checkpoint):
    """S11: Spark sends SIGTERM; the author's close() still runs."""
    came = threading.Event()
    frame = read_stream(spark, Journal(home=home), discovery_interval="10ms", refresh_interval="10ms")
    query, batches = start(
        frame, checkpoint, {"processingTime": "50 milliseconds"}, lambda _: len(delivered(batches)) >= 10 and came.set()
    )
    try:
        grow(home, a=6, c=1)
        assert came.wait(500), query.exception()
    finally:
        query.stop()
    assert delivered(batches) == every(a=6, b=3, c=1)
    until = time.monotonic() + 300
    while not marks(home, "close") and time.monotonic() < until:
        time.sleep(0.05)  # another process, which says nothing
    assert marks(home, "close") == 1


@pytest.mark.parametrize("trigger", [{"continuous": "1 second"}, {"realTime": "5 minutes"}])
def test_other_triggers_are_refused_by_spark(spark, home, checkpoint, trigger):
    frame = read_stream(spark, Journal(home=home))
    with pytest.raises(Exception, match=r"(?i)continuous processing|real[_ -]?time"):
        frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).outputMode("update").trigger(
            **trigger
        ).start().awaitTermination(500)


@pytest.mark.soak
def test_a_bounded_source_gives_the_same_rows_as_in_a_bounded_read(spark, checkpoint):
    frame = read_stream(spark, Countdown(start=7))
    batches = run(frame, checkpoint)
    assert delivered(batches) == rows(read(spark, Countdown(start=7))) == [(n,) for n in range(1, 8)]
    assert run(frame, checkpoint) == {}


# ---- replays, retries, actions


def test_s2_a_micro_batch_that_was_logged_and_not_committed_is_read_again_the_same(spark, home, checkpoint):
    """S2: the first one, whose start Spark does not log; one in between; and the last, twice over."""
    frame = read_stream(spark, Journal(home=home), max_rows_per_trigger=3)
    batches = run(frame, checkpoint)
    assert [len(batch) for batch in batches.values()] == [3, 3, 2]
    grow(home, a=50, b=50)  # a replay must not see them
    for _ in range(2):
        forget_commits(checkpoint, 2)
        grow(home, a=5, b=3)
        assert run(frame, checkpoint) == {2: batches[2]}
    for first in (1, 0):
        forget_offsets(checkpoint, first + 1)
        forget_commits(checkpoint, first)
        again = run(frame, checkpoint)
        assert again[first] == batches[first]
        assert delivered({n: batch for n, batch in batches.items() if n < first}, again) == every(a=5, b=3)


def test_s6_a_failed_attempt_two_actions_and_two_scans_read_the_same(spark, home, checkpoint):
    """S6: read is a pure function of its slices; S5: partitions of its offset."""
    counts = []
    frame = read_stream(spark, Journal(home=home, fail="once"))
    both = frame.unionAll(frame)
    batches = run(both, checkpoint, each=lambda found: counts.append(found.count()))
    assert delivered(batches) == sorted(every(a=5, b=3) * 2)
    assert counts == [16]
    assert marks(home, "read-a") >= 5, "two scans, two actions, a failed attempt"


@pytest.mark.soak
def test_two_queries_of_one_load_go_each_their_own_way(spark, home, tmp_path):
    """Trap 4: they count the same numbers, and nothing but the id in their offsets tells them apart."""
    frame = read_stream(spark, Journal(home=home), max_rows_per_trigger=4)
    places = [tmp_path / "one", tmp_path / "two"]
    started = [start(frame, place, {"availableNow": True}) for place in places]
    for query, _ in started:
        assert query.awaitTermination(500)
    assert [delivered(batches) for _, batches in started] == [every(a=5, b=3)] * 2
    ids = [json.loads((place / "offsets" / "0").read_text().split("\n")[2])["id"] for place in places]
    assert ids[0] != ids[1]


def test_s18_a_stream_reads_in_the_time_zone_of_its_query(spark, checkpoint):
    """S18: not in the one that was set when the format was registered."""
    register(spark, Zoned)
    frame = spark.readStream.format("zoned").load()
    spark.conf.set("spark.sql.session.timeZone", "America/Lima")
    try:
        assert delivered(run(frame, checkpoint)) == [("America/Lima",)]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")


def test_s3_nothing_of_the_planner_reaches_tasks(home):
    """S3: Spark pickles the reader for tasks, which get all they need in their InputPartition."""
    source, target = Journal(home=home), pa.schema({"split": pa.string(), "n": pa.int64()})
    planner = StreamReader(Readable(source, HostOptions(), ("split", "n"), 2), target, inferred=False)
    start = planner.initialOffset()
    parts = planner.partitions(start, planner.latestOffset(start, ReadAllAvailable()))
    reader = pickle.loads(pickle.dumps(planner))
    assert vars(reader) == {}
    batches = [batch for part in parts for batch in reader.read(part)]
    assert sorted(zip(*pa.Table.from_batches(batches).to_pydict().values(), strict=True)) == every(a=5, b=3)


# ---- errors and refusals


@pytest.mark.parametrize("place", [pytest.param("splits", marks=pytest.mark.soak), "latest", "read"])
def test_an_error_of_ours_comes_back_typed(spark, home, checkpoint, place):
    error = failure(lambda: run(read_stream(spark, Journal(home=home, fail=place)), checkpoint))
    assert type(error) is DataLossError
    assert (error.message, error.source, error.split, error.advice) == (f"gone: {place}", "journal", "a", "start again")


def test_a_connectors_own_error_shows_no_secret(spark, home, checkpoint):
    source = Journal(home=home, fail="own latest", token=Secret("hush-hush"))
    error = failure(lambda: run(read_stream(spark, source), checkpoint))
    assert type(error) is FatalError
    assert "LookupError: latest says" in error.message
    assert "hush-hush" not in str(error)


@pytest.mark.soak
def test_a_checkpoint_that_does_not_fit_is_refused_by_name(spark, home, checkpoint):
    """Other options, Spark's own Kafka source. Other sources and releases are in tests/microbatch/test_offset.py."""
    run(read_stream(spark, Journal(home=home)), checkpoint)
    error = failure(lambda: run(read_stream(spark, Journal(home=home, topic="u")), checkpoint))
    assert isinstance(error, ConfigurationError)
    assert error.option == "topic"
    assert "was t, is now u" in error.message
    change_offset(checkpoint, 0, lambda _: '{"topic":{"0":12}}')
    error = failure(lambda: run(read_stream(spark, Journal(home=home)), checkpoint))
    assert isinstance(error, ConfigurationError)
    assert error.option == "checkpointLocation"
    assert "not written by forebay" in error.message


def test_changed_options_are_refused_before_a_replay_reads_anything(spark, home, checkpoint):
    run(read_stream(spark, Journal(home=home)), checkpoint)
    forget_commits(checkpoint, 0)
    before = marks(home, "read-a")
    error = failure(lambda: run(read_stream(spark, Journal(home=home, topic="u")), checkpoint))
    assert error.option == "topic"
    assert marks(home, "read-a") == before
