# SPDX-License-Identifier: Apache-2.0
"""A client under a quota waits and reads on; the poll timeout covers all attempts together."""

from __future__ import annotations

import os
import re

import pytest
from kafka import KafkaProducer

from forebay.clock import SystemClock
from forebay.errors import RetriableError
from forebay.sources.kafka import KafkaSource
from forebay.sources.kafka.client import client_errors as offset_loss
from forebay.sources.kafka.fetching import PartitionFetcher
from forebay.sources.kafka.records.batches import record_schema
from forebay.sources.kafka.split import KafkaSplit
from forebay.sources.kafka.split_reader import KafkaSplitReader

CLIENT = "held-up"
ROWS = 500
RATE = 2500.0
"""Bytes a second: what is fetched in the first ten seconds is about half of all."""
PATIENCE = 10.0
"""Seconds of a quick clock: some errors come long before the ten real ones that the broker holds a client up for."""
TRIES = 4
"""Of one record: each of them asks again half a patience later."""


class Quick(SystemClock):
    """Ten seconds in one: what waits for the brokers waits less."""

    def monotonic(self):
        return 10 * super().monotonic()


class Context:
    """Yields a reader with the given patience."""

    def __init__(self, reader):
        self.reader = reader

    def lease(self, key, make):
        return self.reader


@pytest.mark.soak  # it waits for the broker's throttling
def test_a_client_under_a_quota_reads_on_and_tries_share_their_patience(
    broker, topic, throttle, monkeypatch, caplog, request
):
    monkeypatch.setattr(offset_loss, "_TIMEOUT_MS", 200)
    name = topic()
    with KafkaProducer(bootstrap_servers=broker.address, batch_size=2000) as producer:
        for _ in range(ROWS):
            producer.send(name, os.urandom(100), partition=0)
    throttle(broker, RATE, CLIENT)
    request.addfinalizer(lambda: throttle(broker, None, CLIENT))
    for _ in range(2):  # the broker knows of the second one only after it has applied all that it knew with the first
        topic()
    arguments = {"bootstrap_servers": broker.address, "client_id": CLIENT}
    fetcher = PartitionFetcher(arguments, record_schema(["offset"]), clock=Quick(), poll_timeout=PATIENCE)
    source = KafkaSource(subscribe=[name], kafka={"bootstrap.servers": broker.address})
    reader = KafkaSplitReader(source, Context(fetcher))
    reader.add_splits([KafkaSplit(id=f"{name}/0", position=0, end=ROWS)])
    offsets, waits, finished = [], {}, False
    try:
        while not finished:
            try:
                for part in reader.fetch():
                    offsets += part.batch.column("offset").to_pylist() if part.batch is not None else []
                    finished = part.finished
            except RetriableError as error:
                for at, waited in re.findall(r"no record arrived from offset (\d+) on for (\d+) s", error.message):
                    if at != "0":  # that is a first connection which takes its time, and no quota
                        waits.setdefault(at, []).append(int(waited))
                        fetcher._timeout = PATIENCE if len(waits[at]) < TRIES else 6000.0  # that was enough
    finally:
        fetcher.close()
    assert offsets == [*range(ROWS)]
    assert "throttled by broker" in caplog.text
    waited = next(found for found in waits.values() if len(found) == TRIES)
    assert waited[0] >= PATIENCE and waited[-1] >= 2 * PATIENCE
