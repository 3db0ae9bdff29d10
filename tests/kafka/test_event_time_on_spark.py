# SPDX-License-Identifier: Apache-2.0
"""Event time of queries on a real broker: bad input, the example of docs/event-time.md, progress and report."""

from __future__ import annotations

import datetime as dt
import json
import re
import threading
import time
import uuid
from collections import Counter
from html import unescape
from typing import Any

import kafka as kafka_python
import pytest
from kafka.record.memory_records import MemoryRecordsBuilder
from pyspark.sql import functions as F  # noqa: N812 - Spark's own abbreviation

import forebay
from forebay.errors import ConfigurationError
from forebay.framework.microbatch.stream_planner import open_stream
from forebay.framework.runtime.host_options import HostOptions
from forebay.inspection.progress import QueryProgress, lines
from forebay.sources.kafka import KafkaSource

BASE = 1_700_000_000
"""Seconds since 1970."""

YEAR_1971, YEAR_2100, YEAR_9999 = 31_536_000, 4_102_444_800, 253_370_764_800
SLOW, FAST = 20, 60
"""Seconds of event time from one record of a partition to the next."""


def append(broker, topic, partition, times):
    """Write records with these timestamps (s since 1970), as one record batch."""
    batch = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
    for at in times:
        batch.append(timestamp=round(at * 1000), key=None, value=b"")
    batch.close()
    with broker.appending() as send:
        send(topic, {partition: bytes(batch.buffer())})


def transaction(kafka, topic, partition, times, *, abort=False):
    with kafka_python.KafkaProducer(
        bootstrap_servers=kafka.address, acks="all", transactional_id=uuid.uuid4().hex
    ) as sending:
        sending.init_transactions()
        sending.begin_transaction()
        for at in times:
            sending.send(topic, b"", partition=partition, timestamp_ms=at * 1000)
        sending.flush()
        sending.abort_transaction() if abort else sending.commit_transaction()


def compacted(kafka, times):
    """Return a topic in which of each four records the first three are gaps, and the times of those that are left."""
    policy = {"cleanup_policy": "compact", "segment_ms": "100", "min_cleanable_dirty_ratio": "0.01"}
    topic = kafka.topic(1, **policy, max_compaction_lag_ms="100")
    with kafka_python.KafkaProducer(bootstrap_servers=kafka.address, acks="all") as sending:
        for number, at in enumerate(times):
            sending.send(topic, b"", key=b"%d" % (number // 4), timestamp_ms=at * 1000)
    left: list[int] = []
    rolls = 0
    source = KafkaSource(subscribe=[topic], starting_offsets="earliest", kafka={"bootstrap.servers": kafka.address})
    deadline = time.monotonic() + 60
    while len(left) != len(times) // 4 + rolls:
        assert time.monotonic() < deadline, "the broker did not compact"
        rolls += 1  # a new segment: the one before it may be cleaned
        kafka.send(topic, [""], key=b"roll %d" % rolls, timestamp_ms=(times[-1] + rolls) * 1000)
        found = forebay.run(source, until_caught_up=True).to_table()
        left = [round(at.timestamp()) for at in found.column("timestamp").to_pylist()]
    return topic, left


class Windows:
    """The rows of each window of five minutes, by its begin and by partition."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, str], int] = {}

    def keep(self, frame: Any, _number: int) -> None:
        for row in frame.collect():
            key = int(row["window"].start.replace(tzinfo=dt.UTC).timestamp()), row["split"]
            assert self.found.setdefault(key, row["rows"]) == row["rows"]

    def start(self, rows: Any, directory: Any, *, name: str = "windows", **trigger: Any) -> Any:
        counted = rows.groupBy(F.window("timestamp", "5 minutes"), "split").agg(F.count("*").alias("rows"))
        writer = counted.writeStream.foreachBatch(self.keep).queryName(name)
        writer = writer.option("checkpointLocation", str(directory))
        return (writer.trigger(**trigger) if trigger else writer).start()


def windows_of(times):
    """Return what `Windows` is to find, from the times of each partition."""
    return dict(Counter((at // 300 * 300, split) for split, all_at in times.items() for at in all_at))


def dropped(query):
    return sum(each.numRowsDroppedByWatermark for report in query.recentProgress for each in report.stateOperators)


@pytest.mark.soak
def test_partitions_with_bad_input_stall_nobody_and_lose_no_row(broker, kafka, begin):
    """Other timestamps than those of the years 1971 to 2100 are dropped before the watermark, which is Spark's here."""
    first, second = ([BASE + SLOW * number for number in part] for part in (range(20), range(20, 40)))
    topic = kafka.topic(7, message_timestamp_after_max_ms=str(2**62))
    append(broker, topic, 0, [BASE + FAST * number for number in range(40)])
    for partition, bad in ((1, [-0.001, -0.001]), (2, [YEAR_9999]), (3, [-100_000]), (4, [YEAR_9999, -0.001])):
        append(broker, topic, partition, first)
        append(broker, topic, partition, bad)
        append(broker, topic, partition, second)
    transaction(kafka, topic, 5, first)
    transaction(kafka, topic, 5, [BASE + 100_000] * 3, abort=True)  # later than the limit
    transaction(kafka, topic, 5, second)  # and partition 6 has no record
    gaps, left = compacted(kafka, [BASE + 5 * number for number in range(160)])
    now = kafka.topic(message_timestamp_type="LogAppendTime")
    kafka.send(now, ["", ""])  # its times are years later: read last, it closes all windows
    query = begin(
        subscribe=f"{topic},{gaps},{now}", startingOffsets="earliest", kafka__isolation__level="read_committed",
        now=time.time(), columns="topic,partition,timestamp", maxOffsetsPerTrigger=100, alignmentMaxDrift="10m",
    )  # fmt: skip
    query.planner.prepare_available_now()
    emitted: dict[tuple[int, str], int] = {}
    opened: Counter[tuple[int, str]] = Counter()
    seen, watermark = 0, float("-inf")
    while query.trigger() is not None:
        rows = [(row["timestamp"].timestamp(), f"{row['topic']}/{row['partition']}") for row in query.rows[seen:]]
        rows = [(int(at), split) for at, split in rows if YEAR_1971 <= at < YEAR_2100]
        assert not [row for row in rows if row[0] // 300 * 300 + 300 <= watermark]  # Spark would drop it
        opened.update((at // 300 * 300, split) for at, split in rows)
        seen, watermark = len(query.rows), max([watermark, *(at - 600 for at, _ in rows)])
        over = {window: opened.pop(window) for window in [*opened] if window[0] + 300 <= watermark}
        assert not over.keys() & emitted.keys()
        emitted |= over
    expected = {f"{topic}/{partition}": first + second for partition in range(1, 6)}
    expected |= {f"{topic}/0": [BASE + FAST * number for number in range(40)], f"{gaps}/0": left}
    assert emitted == windows_of(expected)
    assert len(query.batches) >= 4


@pytest.mark.parametrize("column", ["nothing", "value", "partition"])
def test_a_column_that_is_no_timestamp_is_refused_when_the_query_starts(kafka, column):
    source = KafkaSource(subscribe=[kafka.topic()], kafka={"bootstrap.servers": kafka.address})
    with pytest.raises(ConfigurationError) as caught:
        open_stream(source, HostOptions(alignment_max_drift="1h", event_time_column=column), parallelism=1)
    assert caught.value.option == "eventTimeColumn"


@pytest.mark.soak
def test_the_example_of_a_time_in_a_json_payload(spark, kafka, root, tmp_path):
    """Limits are scaled down: a micro-batch takes 15 records of each partition, which cover 15 minutes at most."""
    page = (root / "docs" / "event-time.md").read_text(encoding="utf-8")
    (example,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "valueFormat" in block)
    topic = kafka.topic(2)
    steps, records = {0: 1, 1: FAST}, 120
    with kafka_python.KafkaProducer(bootstrap_servers=kafka.address, acks="all") as sending:
        for partition, step in steps.items():
            for number in range(records):
                at = dt.datetime.fromtimestamp(BASE + step * number, dt.UTC).isoformat()
                value = json.dumps({"id": partition, "at": at}).encode()
                sending.send(topic, value, partition=partition, timestamp_ms=BASE * 1000)
    for text, other in (
        ("kafka-1:9092", kafka.address),
        ('"orders"', f'"{topic}"'),
        ("100000", "30"),
        (".load()", '.option("startingOffsets", "earliest").load()'),
    ):
        assert text in example
        example = example.replace(text, other)
    scope = {"spark": spark, "F": F}
    exec(example, scope)
    windows = Windows()
    rows = scope["rows"].withColumn("split", F.col("id").cast("string")).withColumn("timestamp", F.col("at"))
    query = windows.start(rows, tmp_path, availableNow=True)
    assert query.awaitTermination(200)
    every = {str(one): [BASE + step * number for number in range(records)] for one, step in steps.items()}
    watermark = BASE + FAST * (records - 1) - 70 * 60
    assert windows.found == {key: rows for key, rows in windows_of(every).items() if key[0] + 300 <= watermark}
    assert dropped(query) == 0


def wait(query, condition):
    pause, deadline = threading.Event(), time.monotonic() + 40
    while not condition():
        assert query.exception() is None
        assert time.monotonic() < deadline, shown(query)
        pause.wait(0.1)


@pytest.mark.soak
def test_progress_report_and_page_name_the_partition_that_others_wait_for(spark, broker, kafka, tmp_path):
    """Partition 1 is caught up and holds partition 0, until its next record comes."""
    topic = kafka.topic(2)
    append(broker, topic, 0, [BASE + FAST * number for number in range(30)])
    append(broker, topic, 1, [BASE + 1000])
    rows = (
        spark.readStream.format("forebay_kafka")
        .option("kafka.bootstrap.servers", kafka.address)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("alignmentMaxDrift", "10m")
        .load()
        .withWatermark("timestamp", "10 minutes")
        .withColumn("split", F.concat("topic", F.lit("/"), "partition"))
    )
    directory = tmp_path / "reports"
    listener = forebay.record_progress(spark, str(directory))
    windows = Windows()
    try:
        query = windows.start(rows, tmp_path / "checks", name="orders")
        held = f"drift 10.3 min of 10 min, 1 split held for {topic}/1 (caught up)"
        wait(query, lambda: f"watermark {clock(1000)} UTC, {held}" in shown(query))
        append(broker, topic, 1, [BASE + 1800])
        wait(query, lambda: "caught up, " in shown(query) and "split held" not in shown(query))
        query.stop()
        spark._jsparkSession.sparkContext().listenerBus().waitUntilEmpty(60_000)
    finally:
        spark.streams.removeListener(listener)
    reports = (str(directory), "Rows dropped by Spark's watermark: 0"), (tmp_path / "checks", "dropped rows")
    for given, about_dropped in reports:
        forebay.report(given, tmp_path / "page.html")
        page = unescape((tmp_path / "page.html").read_text())
        assert f"<td>{topic}/0</td>" in page and f"<td>{topic}/1</td>" in page
        assert 'class="held"' in page and 'class="idle"' not in page.partition("Held and idle")[2].partition("<ul>")[0]
        assert "Event time ahead of the slowest active split" in page and about_dropped in page


def shown(query):
    """Return what `forebay.progress` shows in a terminal."""
    state = QueryProgress()
    state.update(query.name, query.lastProgress)
    return "\n".join(lines(state))


def clock(seconds):
    """Return the watermark of a split whose last record is so many seconds after BASE, as it is shown."""
    return f"{dt.datetime.fromtimestamp(BASE + seconds, dt.UTC) - dt.timedelta(microseconds=1):%Y-%m-%d %H:%M:%S}"
