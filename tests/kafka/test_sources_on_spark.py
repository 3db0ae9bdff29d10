# SPDX-License-Identifier: Apache-2.0
"""Kafka, and a hybrid of files and Kafka, pass the kit's part on Spark."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay import FileSource, HybridSource, KafkaSource
from forebay.testkit import check_on_spark

pytestmark = pytest.mark.soak


@pytest.fixture
def live(kafka):
    """A topic of two partitions with ten records each."""
    topic = kafka.topic(2)
    for partition in (0, 1):
        kafka.send(topic, range(10 * partition, 10 * partition + 10), partition=partition)
    return KafkaSource(subscribe=topic, starting_offsets="earliest", kafka={"bootstrap.servers": kafka.address})


def test_kafka(spark, live):
    assert check_on_spark(spark, live, max_rows_per_trigger=7).verdict == "passed"


def test_hybrid(spark, live, tmp_path):
    for name in "ab":
        pq.write_table(pa.table({"value": [b"one", b"two", b"three"]}), tmp_path / f"{name}.parquet")
    history = FileSource(path=str(tmp_path), file_format="parquet")
    report = check_on_spark(spark, HybridSource(history, live, columns=["value"]))
    assert (report.verdict, report.rules("n/a")) == ("passed", {"SPK-3", "SPK-4"})
