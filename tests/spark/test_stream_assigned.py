# SPDX-License-Identifier: Apache-2.0
"""A raw SplitEnumerator under Structured Streaming, killed in the middle and started again."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from forebay.framework.enumerator import SplitEnumerator
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay.spark.register import register

SCHEMA = pa.schema({"split": pa.string(), "n": pa.int64()})


class Deals(SplitEnumerator):
    """Finds its splits in a call of its own, and gives them out one by one."""

    def __init__(self, context, count):
        self.context = context
        self.count = count
        self.left = None

    def restore_state(self, state):
        self.left = state

    def start(self):
        if self.left is None:
            self.context.call_async(lambda: [f"s{n}" for n in range(self.count)], self.found)

    def found(self, result, error):
        self.left = result
        self.give()

    def handle_split_request(self, subtask, host):
        if self.left is not None:
            self.give()

    def give(self):
        if self.left:
            self.context.assign_splits({0: [Split(self.left.pop(0))]})
        else:
            self.context.signal_no_more_splits(0)

    def add_splits_back(self, splits, subtask):
        raise AssertionError

    def snapshot_state(self, checkpoint_id):
        return self.left


class Three(SplitReader):
    """Three rows of every split."""

    def __init__(self):
        self.splits = []

    def add_splits(self, splits):
        self.splits.extend(splits)

    def fetch(self):
        found = [
            Fetched(one.id, pa.RecordBatch.from_pylist([{"split": one.id, "n": n} for n in range(3)], SCHEMA), 3, True)
            for one in self.splits
        ]
        self.splits = []
        return found

    def wake_up(self):
        """Never blocks."""


class Dealt(Source):
    count: int = 5

    def schema(self):
        return SCHEMA

    def create_enumerator(self, context):
        return Deals(context, self.count)

    def create_split_reader(self, context):
        return Three()


def test_a_raw_enumerator_is_streamed_and_goes_on_after_a_failure(spark, tmp_path):
    register(spark, Dealt)
    rows = {}

    def take(fail_at):
        def each(frame, number):
            rows[number] = [tuple(row) for row in frame.collect()]
            if number == fail_at:
                raise RuntimeError("the sink is down")

        return each

    def run(fail_at=None):
        frame = spark.readStream.format("dealt").option("maxFilesPerTrigger", 2).load()
        writer = frame.writeStream.option("checkpointLocation", str(tmp_path)).foreachBatch(take(fail_at))
        writer.trigger(availableNow=True).start().awaitTermination(500)

    with pytest.raises(StreamingQueryException, match="the sink is down"):
        run(fail_at=1)
    assert len(rows) == 2
    run()
    assert sorted(row for batch in rows.values() for row in batch) == [(f"s{s}", n) for s in range(5) for n in range(3)]
    assert [len(batch) for _, batch in sorted(rows.items())] == [6, 6, 3]
