# SPDX-License-Identifier: Apache-2.0
"""A stream over Kafka reports position, end, lag and the last failed request."""

from __future__ import annotations

import json
import threading

import pytest

from forebay.framework.microbatch.stream_planner import open_stream
from forebay.framework.runtime.host_options import HostOptions
from forebay.sources.kafka import KafkaSource


class Query:
    """A planner with its last offset, as Spark holds it; its refresh policy never caches an answer."""

    def __init__(self, address, topic, kafka=None, **limits):
        brokers = {"bootstrap.servers": address, **(kafka or {})}
        source = KafkaSource(subscribe=[topic], starting_offsets="earliest", kafka=brokers)
        options = HostOptions(refresh_interval="0s", discovery_interval="0s", retries=0, **limits)
        self.planner = open_stream(source, options, parallelism=2)
        self.offset = self.planner.initial()

    def look(self):
        self.offset = json.loads(json.dumps(dict(self.planner.latest(self.offset))))
        return self.planner.report()


@pytest.fixture
def query(request):
    made = []

    def make(*args, **limits):
        made.append(Query(*args, **limits))
        return made[-1]

    yield make
    for one in made:
        one.planner.close()


def test_a_capped_query_reports_position_end_and_lag_of_each_partition(kafka, query):
    topic = kafka.topic(2)
    kafka.send(topic, range(30), partition=0)
    kafka.send(topic, range(10), partition=1)
    capped = query(kafka.address, topic, max_rows_per_trigger=20)
    report = capped.look()
    assert report["behind"]["rows"] == 20
    worst = {one["split"]: (one["position"], one["end"], one["behind"]) for one in report["worst"]}
    assert worst == {f"{topic}/0": (15, 30, 15), f"{topic}/1": (5, 10, 5)}
    kafka.send(topic, range(100), partition=1)  # more than a micro-batch takes: the lag grows
    report = capped.look()
    assert report["behind"]["rows"] == 100
    (first, *_) = report["worst"]
    assert (first["split"], first["end"]) == (f"{topic}/1", 110)
    while not report["idle"]:
        report = capped.look()
    assert report["behind"]["rows"] == 0 and report["splits"]["behind"] == 0
    assert "error" not in report["discovery"]


@pytest.mark.soak
def test_a_broker_that_goes_down_and_comes_back_is_reported(query, mortal, monkeypatch, refusing):
    connecting = "forebay.sources.kafka.client.client_options.CONNECT_TIMEOUT_MS"
    mortal.create_topic("stopped")
    stopped = query(mortal.address, "stopped", {"request.timeout.ms": "2000"})
    stopped.look()
    monkeypatch.setattr(connecting, 2000)  # the timeout of a broker that does not answer
    mortal.stop()
    report = stopped.look()  # what is known is read on
    error = report["discovery"]["error"]
    assert not error["over"] and report["discovery"]["retried"] >= 1
    assert mortal.address in error["text"]
    monkeypatch.setattr(connecting, 30_000)
    mortal.start()
    pause = threading.Event()
    for _ in range(3000):
        report = stopped.look()
        if report["discovery"]["error"]["over"]:
            break
        pause.wait(0.1)
    assert report["discovery"]["error"]["over"]
    assert report["discovery"]["error"]["at"] >= error["at"]


@pytest.mark.soak
def test_spark_shows_that_the_broker_of_an_idle_query_is_down(spark, mortal, tmp_path, refusing):
    mortal.create_topic("idle")
    query = (
        spark.readStream.format("forebay_kafka")
        .option("kafka.bootstrap.servers", mortal.address)
        .option("kafka.default.api.timeout.ms", "2000")
        .option("kafka.request.timeout.ms", "2000")
        .option("subscribe", "idle")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    pause, found = threading.Event(), None
    try:
        for _ in range(3000):
            assert query.exception() is None
            report = query.lastProgress
            if report is not None:
                mortal.stop()
                found = json.loads(report["sources"][0]["latestOffset"])["discovery"].get("error")
            if found is not None and not found["over"]:
                break
            pause.wait(0.1)
    finally:
        query.stop()
    assert found is not None and mortal.address in found["text"] and not found["over"]
