# SPDX-License-Identifier: Apache-2.0
"""`forebay.read_stream`: a source that was made in Python, streamed."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

import forebay
from forebay.errors import ConfigurationError
from forebay.framework.arrow.row_packer import Batch
from forebay.framework.simple import SimpleSource
from forebay.options import Secret
from forebay.spark.register import read_stream


class Grows(SimpleSource):
    bounded = False
    rows: int = 3
    token: Secret = Secret("none")

    def schema(self):
        return pa.schema({"n": pa.int64(), "token": pa.string()})

    def splits(self):
        return ["a", "b"]

    def latest(self, split):
        return self.rows

    def read(self, split):
        for n in range(split.position or 0, split.end):
            yield Batch([{"n": n, "token": self.token.reveal()}], n + 1)


def run(frame, checkpoint):
    batches = []
    writer = frame.writeStream.option("checkpointLocation", str(checkpoint))
    writer = writer.foreachBatch(lambda rows, _: batches.append(sorted(row.n for row in rows.collect())))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination(500)
    return query, [batch for batch in batches if batch]


def test_a_made_source_is_streamed_within_its_limits_and_goes_on_as_it_is_made_next(spark, tmp_path):
    frame = forebay.read_stream(spark, Grows(rows=3), max_files_per_trigger=1)
    assert frame.isStreaming
    query, batches = run(frame, tmp_path)
    assert batches == [[0, 1, 2], [0, 1, 2]]
    assert json.loads(query.lastProgress.sources[0].latestOffset)["splits"]["behind"] == 0
    again = forebay.read_stream(spark, Grows(rows=4))
    assert run(again, tmp_path)[1] == [[3, 3]]


def test_no_secret_is_in_the_checkpoint_or_in_a_report(spark, tmp_path):
    query, batches = run(read_stream(spark, Grows(token=Secret("hunter2"))), tmp_path)
    assert batches == [[0, 0, 1, 1, 2, 2]]
    texts = [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    assert texts and not any("hunter2" in text for text in [*texts, str(query.lastProgress)])


def test_a_schema_and_wrong_options_are_treated_as_in_read(spark):
    with pytest.raises(ConfigurationError, match="is not a source") as caught:
        read_stream(spark, Grows)
    assert "read_stream" in str(caught.value)
    with pytest.raises(ConfigurationError, match="max_rows_per_triger"):
        read_stream(spark, Grows(), max_rows_per_triger=3)
