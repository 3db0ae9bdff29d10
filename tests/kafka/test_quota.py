# SPDX-License-Identifier: Apache-2.0
"""A client under a quota waits and reads on; one that waits too long is told how long in all, not for each try."""

from __future__ import annotations

import os
import re

from kafka import KafkaProducer

from forebay.clock import SystemClock
from forebay.errors import RetriableError
from forebay.sources.kafka import KafkaSource, lost
from forebay.sources.kafka.fetching import PartitionFetcher
from forebay.sources.kafka.records.decoding import record_schema
from forebay.sources.kafka.split import KafkaSplit
from forebay.sources.kafka.split_reader import KafkaSplitReader

CLIENT = "held-up"
ROWS = 500
RATE = 2500.0
"""Bytes a second: what is fetched in the first ten seconds is about half of all."""


class Quick(SystemClock):
    """Ten seconds in one: what waits for the brokers waits less."""

    def monotonic(self):
        return 10 * super().monotonic()


class Context:
    """Lends a reader that is as patient as told."""

    def __init__(self, reader):
        self.reader = reader

    def lease(self, key, make):
        return self.reader


def test_a_client_under_a_quota_reads_on_and_tries_share_their_patience(
    broker, topic, throttle, monkeypatch, caplog, request
):
    monkeypatch.setattr(lost, "ASKING_MS", 200)
    name = topic()
    with KafkaProducer(bootstrap_servers=broker.address, batch_size=2000) as producer:
        for _ in range(ROWS):
            producer.send(name, os.urandom(100), partition=0)
    throttle(broker, RATE, CLIENT)
    request.addfinalizer(lambda: throttle(broker, None, CLIENT))
    arguments = {"bootstrap_servers": broker.address, "client_id": CLIENT}
    fetcher = PartitionFetcher(arguments, record_schema(["offset"]), clock=Quick(), poll_timeout=20)
    source = KafkaSource(subscribe=[name], kafka={"bootstrap.servers": broker.address})
    reader = KafkaSplitReader(source, Context(fetcher))
    reader.add_splits([KafkaSplit(id=f"{name}/0", position=0, end=ROWS)])
    offsets, waits, finished = [], [], False
    try:
        while not finished:
            try:
                for part in reader.fetch():
                    offsets += part.batch.column("offset").to_pylist() if part.batch is not None else []
                    finished = part.finished
            except RetriableError as error:
                waits += re.findall(r"partition 0: nothing came from offset (\d+) on for (\d+) s", error.message)
                fetcher._timeout = 20.0 if len(waits) < 2 else 6000.0  # that was enough
    finally:
        fetcher.close()
    assert offsets == [*range(ROWS)]
    assert "throttled by broker" in caplog.text
    (first, waited), (second, in_all), *_ = waits
    assert first == second and 20 <= int(waited) < int(in_all)
