# SPDX-License-Identifier: Apache-2.0
"""Event time with two brokers of which one is slow, hangs or is away: its partitions are not idle, and lose no row."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import Any

import kafka as kafka_python
import pytest

from forebay.framework.microbatch.stream_planner import open_stream
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


@pytest.mark.soak
def test_no_row_of_a_partition_behind_a_slow_broker_is_dropped(cluster, request):
    """Each look takes longer than `idleTimeout`; partition 1 is silent, and the last records close all windows."""
    topic = cluster.topic("slow", [1], [1], [2], [2])
    times = {0: [*range(0, 2400, 60)], 1: [0], 2: [*range(0, 800, 20)], 3: [*range(0, 2400, 60)]}
    for partition in (0, 2, 3):
        times[partition].append(10_000)
    write(cluster, topic, times)
    cluster.proxy.to_client = 0.3
    request.addfinalizer(lambda: setattr(cluster.proxy, "to_client", 0.0))
    query = Query(cluster.servers, topic, times, drift=600, idle_timeout="200ms", max_rows_per_trigger=40)
    request.addfinalizer(query.planner.close)
    was_idle, deadline = False, time.monotonic() + 120
    while query.read != {partition: len(all_at) for partition, all_at in times.items()}:
        assert time.monotonic() < deadline
        before = dict(query.read)
        query.turn()
        idle = [partition for partition in times if query.idle(partition)]
        assert all(before[partition] == len(times[partition]) for partition in idle)
        was_idle |= 1 in idle
    assert was_idle
    assert query.dropped == query.planner._alignment.late == 0
