# SPDX-License-Identifier: Apache-2.0
"""The memory of a task stays bounded with messages of a megabyte and a slow sink."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MOST = 400
"""Megabytes above a process that has read a little."""


def fill(kafka, partitions: int, messages: int, codec: str | None, value: bytes) -> str:
    """Write `count` messages into each partition of a new topic."""
    import kafka as client

    topic = kafka.topic(partitions)
    with client.KafkaProducer(bootstrap_servers=kafka.address, compression_type=codec, linger_ms=0) as producer:
        sent = [producer.send(topic, value, partition=number % partitions) for number in range(partitions * messages)]
        producer.flush()
        for one in sent:
            one.get(120)
    return topic


def read(kafka, topic: str) -> tuple[int, int]:
    """Read it in a process of its own; return its rows, and the megabytes that it took above idle."""
    small = kafka.topic()
    kafka.send(small, range(10))
    program = Path(__file__).with_name("memory_program.py")
    command = [sys.executable, "-P", str(program), kafka.address, small, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    rows, idle, most = map(int, done.stdout.split())
    return rows, most - idle


@pytest.mark.soak
def test_a_task_with_messages_of_a_megabyte_and_a_slow_sink_stays_small(kafka, record_property):
    topic = fill(kafka, 4, 100, None, os.urandom(1_000_000))
    rows, megabytes = read(kafka, topic)
    record_property("megabytes", megabytes)
    assert rows == 400
    assert megabytes < MOST


@pytest.mark.soak
@pytest.mark.parametrize(
    ("partitions", "codec", "value"),
    [
        (1, None, os.urandom(1_000_000)),
        (16, None, os.urandom(1_000_000)),
        # A fetch of these few bytes is gigabytes when it is decompressed.
        (4, "zstd", b"much the same " * 70_000),
    ],
    ids=["one partition", "many partitions", "compressed a thousandfold"],
)
def test_gigabytes_of_big_messages_stay_as_small(kafka, record_property, partitions, codec, value):
    topic = fill(kafka, partitions, 3200 // partitions, codec, value)
    rows, megabytes = read(kafka, topic)
    kafka.delete(topic)
    record_property("megabytes", megabytes)
    assert rows == 3200 // partitions * partitions
    assert megabytes < MOST
