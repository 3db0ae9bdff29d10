# SPDX-License-Identifier: Apache-2.0
"""Event time with two brokers of which one is slow, hangs or is away: its partitions are not idle, and lose no row."""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
from collections import Counter
from typing import Any

import kafka as kafka_python
import pytest
from pyspark.sql import functions as F  # noqa: N812 - Spark's own abbreviation

from forebay.framework.microbatch.planner_factory import open_stream
from forebay.framework.runtime.host_options import HostOptions
from forebay.sources.kafka.source import KafkaSource

BASE = 1_700_000_000


def write(cluster, topic, times):
    """Write records with these timestamps, in seconds after BASE, by partition."""
    with kafka_python.KafkaProducer(bootstrap_servers=cluster.servers, acks="all") as sending:
        for partition, seconds in times.items():
            for second in seconds:
                sending.send(topic, b"", partition=partition, timestamp_ms=(BASE + second) * 1000)
        sending.flush()


class Query:
    """Plans a stream over a topic as Spark does, and applies Spark's watermark to the rows of each micro-batch."""

    def __init__(self, servers, topic, times, *, drift, **options):
        brokers = {"bootstrap.servers": servers, "default.api.timeout.ms": "2000", "request.timeout.ms": "2000"}
        source = KafkaSource(subscribe=[topic], starting_offsets="earliest", kafka=brokers)
        limits = HostOptions(alignment_max_drift=f"{drift}s", retries=0, **options)
        self.planner: Any = open_stream(source, limits, parallelism=1)
        self.topic, self.times, self.drift = topic, times, drift
        self.offset = self.planner.initial()
        self.read = Counter()
        self.watermark = float("-inf")
        self.dropped = 0

    def turn(self):
        """Plan a micro-batch, if there is one."""
        end = json.loads(json.dumps(dict(self.planner.latest(self.offset))))
        rows = []
        for task in self.planner.tasks(self.offset, end):
            for part in task.slices:
                partition = int(part.id[-1])
                rows += self.times[partition][part.position : part.end]
                self.read[partition] = part.end
        self.dropped += sum(second <= self.watermark for second in rows)
        self.watermark = max([self.watermark, *(second - self.drift for second in rows)])
        self.offset = end

    def idle(self, partition):
        return self.planner._alignment.times[f"{self.topic}/{partition}"].idle


def leave(cluster, how):
    cluster.second.stop() if how == "stop" else getattr(cluster.proxy, how)()


def come_back(cluster, how):
    cluster.second.start() if how == "stop" else cluster.proxy.resume()


@pytest.mark.soak
@pytest.mark.parametrize("how", ["cut", "stall", "stop"])
def test_a_partition_of_a_broker_that_is_away_for_longer_than_the_idle_timeout_is_not_idle(
    cluster, request, refusing, how
):
    topic = cluster.topic(f"away-{how}", [1], [2])
    times = {0: [*range(0, 600, 60)], 1: [*range(1, 11)]}
    write(cluster, topic, times)
    query = Query(cluster.servers, topic, times, drift=5, idle_timeout="2s")
    request.addfinalizer(query.planner.close)
    while query.read[1] < 10:
        query.turn()
    more = {1: [*range(11, 21)]}
    write(cluster, topic, more)  # the planner does not know of it yet
    times[1] += more[1]
    leave(cluster, how)
    try:
        until = time.monotonic() + 6
        while time.monotonic() < until:
            query.turn()
            assert not query.idle(1) and query.read == {0: 1, 1: 10}
        assert not query.planner.report()["discovery"]["error"]["over"]
    finally:
        come_back(cluster, how)
    while query.read[1] < 20:
        query.turn()
        assert not query.idle(1) and query.read[0] == 1
    while query.read[0] < 10:  # partition 1 is silent now
        query.turn()
    assert query.idle(1)
    assert query.dropped == query.planner._alignment.late == 0


class Windows:
    """The rows of each window of a minute, by its begin in seconds after BASE and by partition."""

    def __init__(self):
        self.found = {}

    def keep(self, frame, _number):
        for row in frame.collect():
            begin = int(row["window"].start.replace(tzinfo=dt.UTC).timestamp()) - BASE
            self.found[begin, row["partition"]] = row["rows"]


def windows_of(times):
    """Return what `Windows` is to find."""
    shift = BASE % 60
    return dict(
        Counter(((at + shift) // 60 * 60 - shift, partition) for partition, all_at in times.items() for at in all_at)
    )


def idle_partitions(report):
    """Return the position of each split that was idle when a micro-batch was planned."""
    source = report["sources"][0]
    before = {entry[0]: entry[1] for entry in (json.loads(source["startOffset"] or "null") or {}).get("splits", ())}
    state = json.loads(source["endOffset"])["eventTime"]
    return {int(one["split"][-1]): before[one["split"]] for one in state["splits"] if one.get("idle")}


def test_no_row_of_a_partition_behind_a_slow_broker_is_dropped(spark, cluster, request, tmp_path):
    """Each look takes longer than `idleTimeout`; partition 1 is silent, and the last records close all windows."""
    topic = cluster.topic("slow", [1], [1], [2], [2])
    times = {0: [*range(0, 2400, 60)], 1: [0], 2: [*range(0, 800, 20)], 3: [*range(0, 2400, 60)]}
    last = 10_000
    write(cluster, topic, {partition: [*at, *[last] * (partition != 1)] for partition, at in times.items()})
    cluster.proxy.to_client = 0.3
    request.addfinalizer(lambda: setattr(cluster.proxy, "to_client", 0.0))
    windows = Windows()
    query = (
        spark.readStream.format("forebay_kafka")
        .option("kafka.bootstrap.servers", cluster.servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 40)
        .option("alignmentMaxDrift", "10m")
        .option("idleTimeout", "200ms")
        .load()
        .withWatermark("timestamp", "10 minutes")
        .groupBy(F.window("timestamp", "1 minute"), "partition")
        .agg(F.count("*").alias("rows"))
        .writeStream.foreachBatch(windows.keep)
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    pause, deadline = threading.Event(), time.monotonic() + 120
    while len(windows.found) < len(windows_of(times)) and time.monotonic() < deadline:
        assert query.exception() is None
        pause.wait(0.05)
    query.stop()
    assert windows.found == windows_of(times)
    reports = query.recentProgress
    assert sum(operator.numRowsDroppedByWatermark for report in reports for operator in report.stateOperators) == 0
    for report in reports:
        assert all(
            position == len(times[partition]) + (partition != 1)
            for partition, position in idle_partitions(report).items()
        )
    assert any(1 in idle_partitions(report) for report in reports)
