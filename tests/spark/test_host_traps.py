# SPDX-License-Identifier: Apache-2.0
"""Mistakes of hosts that Spark lets one make, each made by a small source on purpose, and not by forebay.

A naive source that no longer falls into its trap says that Spark has changed: then the rule may be looked at again.
Where docs/contract.md does not name the trap, it does so in `make soak`.
"""

from __future__ import annotations

import json
import shutil
import sys
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow

from forebay.framework.simple import SimpleEnumerator, SimpleSource
from forebay.spark.register import read_stream

ROWS = pa.schema({"n": pa.int64()})


def size(home):
    return int((Path(home) / "rows").read_text())


def note(home, what):
    (Path(home) / f"{what}-{uuid.uuid4().hex}.mark").touch()


def marks(home, what):
    return len(list(Path(home).glob(f"{what}-*.mark")))


class Naive(DataSource):
    """What one writes who knows Spark's examples; `trap` says which mistake it makes."""

    @classmethod
    def name(cls):
        return "naive"

    def schema(self):
        return "n bigint"

    def streamReader(self, schema):  # noqa: N802 - Spark's name
        return NaiveReader(self.options["home"], self.options["trap"])


class NaiveReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset is `{"n": number of the micro-batch, "from": …, "to": …}` in rows."""

    def __init__(self, home, trap):
        self.home, self.trap, self.target, self.read_to = home, trap, None, 0

    def initialOffset(self):  # noqa: N802
        return {"n": -1, "from": 0, "to": 0}

    def getDefaultReadLimit(self):  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self):  # noqa: N802
        self.target = self.read_to if self.trap == "target of what is known" else None

    def latestOffset(self, start, limit):  # noqa: N802
        there = size(self.home) if self.target is None else self.target
        if self.trap == "always new" and start["n"] < 2:
            there = start["to"]
        elif start["to"] >= there:
            return start
        return {"n": start["n"] + 1, "from": start["to"], "to": there}

    def partitions(self, start, end):
        self.read_to = end["to"]
        begin = start["to"] if self.trap == "from the start" else end["from"]
        return [InputPartition((begin, end["to"]))]

    def read(self, partition):
        for n in range(*partition.value):
            yield (n,)

    def commit(self, end):
        note(self.home, f"commit-{end['to']}")


class Ours(SimpleSource):
    """The same rows through forebay."""

    name = "ours"
    bounded = False
    home: Path

    def schema(self):
        return ROWS

    def latest(self, split):
        return size(self.home)

    def read(self, split):
        for n in range(split.position or 0, split.end):
            yield {"n": n}

    def create_enumerator(self, context):
        return Told(self, self.home)


class Told(SimpleEnumerator):
    """Records the calls."""

    def __init__(self, source, home):
        super().__init__(source)
        self.home = home

    def committed(self, positions):
        note(self.home, f"committed-{positions['all']}")


@pytest.fixture
def home(tmp_path):
    path = tmp_path / "home"
    path.mkdir()
    grow(path, 5)
    return path


@pytest.fixture
def naive(spark, home):
    # Spark's workers cannot import a test: forebay sees to that by itself.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(Naive)
    yield lambda trap: spark.readStream.format("naive").option("home", str(home)).option("trap", trap).load()
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def grow(home, rows):
    (home / "rows").write_text(str(rows))


def delivered(*runs):
    return sorted(n for batches in runs for batch in batches.values() for n in batch)


def strip_last_offset(checkpoint):
    number = max(int(path.name) for path in (checkpoint / "offsets").iterdir() if path.name.isdigit())
    path = checkpoint / "offsets" / str(number)
    version, metadata, offset = path.read_text().split("\n")
    path.write_text("\n".join([version, metadata, json.dumps(json.loads(offset), separators=(",", ":"))]))
    (checkpoint / "offsets" / f".{number}.crc").unlink(missing_ok=True)


def forget_commits(checkpoint, first):
    for path in (checkpoint / "commits").iterdir():
        number = path.name.removeprefix(".").removesuffix(".crc")
        if number.isdigit() and int(number) >= first:
            path.unlink()


@pytest.mark.soak
@pytest.mark.parametrize("who", ["ours", "naive"])
def test_trap_1_a_start_in_other_words_is_delivered_again(spark, naive, home, run_stream, tmp_path, who):
    """Trap 1: Spark compares texts, so a planner that looks at `end` alone reads a micro-batch under another number."""
    frame = read_stream(spark, Ours(home=home)) if who == "ours" else naive("end alone")
    assert delivered(run_stream(frame, tmp_path / "checkpoint")) == list(range(5))
    strip_last_offset(tmp_path / "checkpoint")
    assert delivered(run_stream(frame, tmp_path / "checkpoint")) == ([] if who == "ours" else list(range(5)))


@pytest.mark.soak
def test_trap_2_and_s2_the_start_of_a_replay_is_not_where_the_micro_batch_began(
    spark, naive, home, run_stream, tmp_path
):
    """Trap 2, S2: offsets in between may never have been logged."""
    # Ours takes in a run what there was at its begin.
    for frame, runs, again in (
        (naive("from the start"), 1, list(range(5, 7))),
        (read_stream(spark, Ours(home=home)), 3, [6]),
    ):
        checkpoint = tmp_path / str(len(again))
        grow(home, 5)
        for _ in range(runs):
            run_stream(frame, checkpoint, before=lambda: grow(home, min(size(home) + 1, 7)))
        # As asynchronous progress tracking leaves it: what was delivered between was not logged.
        shutil.copy(checkpoint / "offsets" / "0", checkpoint / "offsets" / "1")
        (checkpoint / "offsets" / ".1.crc").unlink(missing_ok=True)
        forget_commits(checkpoint, 2)
        assert delivered(run_stream(frame, checkpoint)) == again


@pytest.mark.soak
def test_trap_5_and_s4_an_offset_that_is_always_new_makes_empty_micro_batches(spark, naive, home, run_stream, tmp_path):
    """Trap 5, S4: Spark runs each of them, with nothing in it."""
    assert len(run_stream(naive("always new"), tmp_path / "naive")) == 4
    assert len(run_stream(read_stream(spark, Ours(home=home)), tmp_path / "ours")) == 1


@pytest.mark.soak
def test_trap_6_and_s17_the_target_of_a_run_is_not_what_the_planner_knows_at_its_begin(
    spark, naive, home, run_stream, tmp_path
):
    """Trap 6, S17: prepare comes first, before a replay, to a planner without state."""
    assert delivered(run_stream(naive("target of what is known"), tmp_path / "naive")) == []
    assert delivered(run_stream(read_stream(spark, Ours(home=home)), tmp_path / "ours")) == list(range(5))


@pytest.mark.soak
def test_trap_7_and_s19_the_last_micro_batch_of_a_run_is_never_committed_to_the_source(
    spark, naive, home, run_stream, tmp_path
):
    """Trap 7, S19: but the next latestOffset proves it done."""
    run_stream(naive(""), tmp_path / "naive")
    assert marks(home, "commit-5") == 0
    run_stream(read_stream(spark, Ours(home=home)), tmp_path / "ours")
    assert marks(home, "committed-5") >= 1
