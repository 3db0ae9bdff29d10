# SPDX-License-Identifier: Apache-2.0
"""The hooks into kafka-python: they fit the installed one, notice when they do not, and there is a way without."""

from __future__ import annotations

import logging

import pytest
from kafka import KafkaProducer
from kafka.consumer.fetcher import Fetcher
from kafka.net.transport import KafkaTCPTransport
from kafka.record import MemoryRecords

from forebay.sources.kafka import consuming, inside
from forebay.sources.kafka.fetching import PartitionFetcher
from forebay.sources.kafka.records.decoding import record_schema


def test_the_hooks_fit_the_kafka_python_that_is_installed():
    assert inside.misfit() is None
    assert inside.receiver_misfit() is None


@pytest.mark.parametrize(
    ("owner", "name", "told"),
    [
        (Fetcher, "PartitionRecords", "Fetcher.PartitionRecords"),
        (Fetcher, "_parse_fetched_data", "Fetcher._parse_fetched_data"),
        (Fetcher.PartitionRecords, "take", "PartitionRecords.take"),
        (Fetcher.PartitionRecords, "_unpack_records", "PartitionRecords._unpack_records"),
    ],
)
def test_what_is_missing_is_told(monkeypatch, owner, name, told):
    monkeypatch.delattr(owner, name)
    assert inside.misfit() == told


def test_a_changed_constructor_is_told(monkeypatch):
    class Other:
        def __init__(self, records):
            self.records = records

    monkeypatch.setattr(Fetcher, "PartitionRecords", Other)
    assert inside.misfit() == "Fetcher.PartitionRecords"


def test_a_missing_receiver_is_told(monkeypatch):
    monkeypatch.delattr(KafkaTCPTransport, "_sock_recv")
    assert inside.receiver_misfit() == "KafkaTCPTransport._sock_recv"


@pytest.mark.parametrize("missing", ["hooks", "receiver", None])
def test_without_the_hooks_the_same_is_read(broker, topic, monkeypatch, caplog, missing):
    name = topic()
    with KafkaProducer(bootstrap_servers=broker.address, batch_size=3000) as producer:
        for number in range(3000):
            producer.send(name, b"%d" % number * 30, partition=0)
    if missing == "hooks":
        monkeypatch.setattr(inside, "misfit", lambda: "MemoryRecords._buffer")
    if missing == "receiver":
        monkeypatch.setattr(inside, "receiver_misfit", lambda: "KafkaBytes")
    received = []
    real = inside._received
    monkeypatch.setattr(inside, "_received", lambda *args: received.append(1) or real(*args))
    with caplog.at_level(logging.WARNING, consuming.__name__):
        reader = PartitionFetcher({"bootstrap_servers": broker.address}, record_schema(["value"]))
    try:
        reader.assign(name, 0, 0, 3000)
        values, finished = [], False
        while not finished:
            for part in reader.fetch(30):
                values += part.batch.column("value").to_pylist() if part.batch is not None else []
                finished = part.finished
    finally:
        reader.close()
    assert values == [b"%d" % number * 30 for number in range(3000)]
    assert ("MemoryRecords._buffer" in caplog.text) == (missing == "hooks")
    assert bool(received) == (missing is None)


def test_the_bytes_are_where_the_hook_looks():
    assert MemoryRecords(b"some bytes")._buffer == b"some bytes"
