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
from typing import get_args

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient
from kafka.consumer.fetcher import Fetcher
from kafka.net.connection import KafkaConnection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.transport import KafkaTCPTransport
from kafka.protocol.parser import KafkaProtocol
from kafka.record import MemoryRecords
from kafka.version import __version__

from forebay.sources.kafka import fetching
from forebay.sources.kafka.client import kafka_internals
from forebay.sources.kafka.client.kafka_internals import connect
from forebay.sources.kafka.fetching import PartitionFetcher
from forebay.sources.kafka.records.batches import record_schema
from forebay.sources.kafka.split import KafkaSplit


@pytest.mark.parametrize(
    "part", get_args(kafka_internals.Part), ids=lambda part: f"{part} of kafka-python {__version__}"
)
def test_the_internals_are_there(part):
    assert kafka_internals.unexpected_internal(part) is None


def test_the_connections_of_clients_are_those_with_corrections(broker):
    admin = connect(KafkaAdminClient, {"bootstrap_servers": broker.address})
    assert isinstance(admin._manager, kafka_internals.Connections)
    admin.close()


@pytest.mark.parametrize(
    ("part", "owner", "name"),
    [
        ("raw bytes", Fetcher, "PartitionRecords"),
        ("raw bytes", Fetcher, "_parse_fetched_data"),
        ("raw bytes", Fetcher.PartitionRecords, "take"),
        ("raw bytes", Fetcher.PartitionRecords, "_unpack_records"),
        ("topic ids", Fetcher, "_create_fetch_requests"),
        ("receiver", KafkaProtocol, "_process_response"),
        ("connections", KafkaConnectionManager, "_build_transport"),
        ("connections", KafkaTCPTransport, "_sock_recv"),
        ("connections", KafkaConnection, "init_future"),
    ],
)
def test_a_missing_internal_is_named(monkeypatch, part, owner, name):
    monkeypatch.delattr(owner, name)
    assert kafka_internals.unexpected_internal(part) == f"{owner.__name__}.{name}"


def test_a_changed_constructor_is_named(monkeypatch):
    class Other:
        def __init__(self, records):
            self.records = records

    monkeypatch.setattr(Fetcher, "PartitionRecords", Other)
    assert kafka_internals.unexpected_internal("raw bytes") == "Fetcher.PartitionRecords"


def test_without_connections_of_ours_clients_are_as_the_library_makes_them(broker, without_internals):
    without_internals("connections")
    admin = connect(KafkaAdminClient, {"bootstrap_servers": broker.address})
    assert not isinstance(admin._manager, kafka_internals.Connections)
    assert admin.list_topics() is not None
    admin.close()


@pytest.mark.parametrize("missing", ["raw bytes", "receiver", None])
def test_without_the_hooks_the_same_is_read(broker, topic, monkeypatch, without_internals, caplog, missing):
    name = topic()
    with KafkaProducer(bootstrap_servers=broker.address, batch_size=3000) as producer:
        for number in range(3000):
            producer.send(name, b"%d" % number * 30, partition=0)
    if missing is not None:
        without_internals(missing)
    received = []  # another test's consumer may be kept for the next reader, and hear something meanwhile
    real = kafka_internals._Plain._sock_recv
    monkeypatch.setattr(kafka_internals._Plain, "_sock_recv", lambda self: received.append(1) or real(self))
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
    assert ("raw bytes of a test" in caplog.text) == (missing == "raw bytes")
    assert received or missing == "receiver"


@pytest.mark.parametrize("sizes", [[1], [5], [70_000], [3_000_001, 1, 2_000_000]], ids=str)
def test_responses_are_received_whole_however_they_come(monkeypatch, sizes):
    """The receiver waits for many bytes, but never for more than the response has left."""
    chance = random.Random(7)
    responses = [chance.randbytes(size) for size in sizes]
    sent = b"".join(struct.pack(">i", len(one)) + one for one in responses)
    parser, got = KafkaProtocol(), []
    parser._process_response = lambda buffer: got.append(bytes(buffer)) or (1, None)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()
        ours.setblocking(False)
        monkeypatch.setattr(kafka_internals._PlainAsItIs, "_sock_recv", lambda _: pytest.fail("the slow way"))
        transport = kafka_internals._Plain(None, ours)
        transport._protocol = SimpleNamespace(parser=parser)

        def receive() -> None:
            assert select.select([ours], [], [], 30)[0], "the kernel waits for bytes that nobody sends"
            data, error = transport._sock_recv()
            assert error is None
            parser.receive_bytes(data)

        with theirs, ThreadPoolExecutor(1) as pool:
            theirs.sendall(sent[:14])
            receive()
            if sys.platform == "linux" and sizes[0] > 10:
                assert transport._sock_recv() == (b"", None)
                waits = ours.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)
                assert waits == min(1 << 20, sizes[0] - 10)
            done = pool.submit(theirs.sendall, sent[14:])
            while len(got) < len(responses):
                receive()
            done.result()
    assert got == responses


def test_the_bytes_are_where_the_hook_looks():
    assert MemoryRecords(b"some bytes")._buffer == b"some bytes"
