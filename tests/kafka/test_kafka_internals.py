# SPDX-License-Identifier: Apache-2.0
"""The hooks into kafka-python: they fit the installed version, detect others, and have a fallback."""

from __future__ import annotations

import logging
import random
import select
import socket
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from kafka import KafkaProducer
from kafka.consumer.fetcher import Fetcher
from kafka.net.transport import KafkaTCPTransport
from kafka.protocol.parser import KafkaProtocol
from kafka.record import MemoryRecords

from forebay.sources.kafka import fetching
from forebay.sources.kafka.client import kafka_internals
from forebay.sources.kafka.fetching import PartitionFetcher
from forebay.sources.kafka.records.decoding import record_schema
from forebay.sources.kafka.split import KafkaSplit


def test_the_hooks_fit_the_kafka_python_that_is_installed():
    assert kafka_internals.unexpected_internal() is None
    assert kafka_internals.unexpected_receiver_internal() is None


@pytest.mark.parametrize(
    ("owner", "name", "expected"),
    [
        (Fetcher, "PartitionRecords", "Fetcher.PartitionRecords"),
        (Fetcher, "_parse_fetched_data", "Fetcher._parse_fetched_data"),
        (Fetcher.PartitionRecords, "take", "PartitionRecords.take"),
        (Fetcher.PartitionRecords, "_unpack_records", "PartitionRecords._unpack_records"),
    ],
)
def test_a_missing_internal_is_named(monkeypatch, owner, name, expected):
    monkeypatch.delattr(owner, name)
    assert kafka_internals.unexpected_internal() == expected


def test_a_changed_constructor_is_named(monkeypatch):
    class Other:
        def __init__(self, records):
            self.records = records

    monkeypatch.setattr(Fetcher, "PartitionRecords", Other)
    assert kafka_internals.unexpected_internal() == "Fetcher.PartitionRecords"


def test_a_missing_receiver_is_named(monkeypatch):
    monkeypatch.delattr(KafkaTCPTransport, "_sock_recv")
    assert kafka_internals.unexpected_receiver_internal() == "KafkaTCPTransport._sock_recv"


@pytest.mark.parametrize("missing", ["hooks", "receiver", None])
def test_without_the_hooks_the_same_is_read(broker, topic, monkeypatch, caplog, missing):
    name = topic()
    with KafkaProducer(bootstrap_servers=broker.address, batch_size=3000) as producer:
        for number in range(3000):
            producer.send(name, b"%d" % number * 30, partition=0)
    if missing == "hooks":
        monkeypatch.setattr(kafka_internals, "unexpected_internal", lambda: "MemoryRecords._buffer")
    if missing == "receiver":
        monkeypatch.setattr(kafka_internals, "unexpected_receiver_internal", lambda: "KafkaBytes")
    received, given = [], []  # another test's consumer may be kept for the next reader, and hear something meanwhile
    real, give = kafka_internals._Receiver.__call__, kafka_internals.receive_fast
    monkeypatch.setattr(kafka_internals, "receive_fast", lambda consumer: given.append(consumer) or give(consumer))
    monkeypatch.setattr(kafka_internals._Receiver, "__call__", lambda self: received.append(1) or real(self))
    with caplog.at_level(logging.WARNING, fetching.__name__):
        reader = PartitionFetcher({"bootstrap_servers": broker.address}, record_schema(["value"]))
    try:
        reader.assign(KafkaSplit(id=f"{name}/0", position=0, end=3000))
        values, finished = [], False
        while not finished:
            for part in reader.fetch(30):
                values += part.batch.column("value").to_pylist() if part.batch is not None else []
                finished = part.finished
    finally:
        reader.close()
    assert values == [b"%d" % number * 30 for number in range(3000)]
    assert ("MemoryRecords._buffer" in caplog.text) == (missing == "hooks")
    assert bool(given) == (missing is None)
    assert received or missing is not None


@pytest.mark.parametrize("sizes", [[1], [5], [70_000], [3_000_001, 1, 2_000_000]], ids=str)
def test_responses_are_received_whole_however_they_come(sizes):
    """The receiver waits for many bytes, but never for more than the response has left."""
    chance = random.Random(7)
    responses = [chance.randbytes(size) for size in sizes]
    sent = b"".join(struct.pack(">i", len(one)) + one for one in responses)
    parser, got = KafkaProtocol(), []
    parser._process_response = lambda buffer: got.append(bytes(buffer)) or (1, None)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()
        ours.setblocking(False)
        transport = SimpleNamespace(
            _sock=ours, _protocol=SimpleNamespace(parser=parser), _sock_recv=lambda: pytest.fail("the slow way")
        )
        receiver = kafka_internals._Receiver(transport)

        def receive() -> None:
            assert select.select([ours], [], [], 30)[0], "the kernel waits for bytes that nobody sends"
            data, error = receiver()
            assert error is None
            parser.receive_bytes(data)

        with theirs, ThreadPoolExecutor(1) as pool:
            theirs.sendall(sent[:14])
            receive()
            if sys.platform == "linux" and sizes[0] > 10:
                assert receiver() == (b"", None)
                waits = ours.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)
                assert waits == min(1 << 20, sizes[0] - 10)
            done = pool.submit(theirs.sendall, sent[14:])
            while len(got) < len(responses):
                receive()
            done.result()
    assert got == responses


def test_the_bytes_are_where_the_hook_looks():
    assert MemoryRecords(b"some bytes")._buffer == b"some bytes"
