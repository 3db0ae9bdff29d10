# SPDX-License-Identifier: Apache-2.0
"""Reading from a cluster of two brokers while one is down or a leader changes."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import forebay
from forebay.errors import RetriableError
from forebay.sources.kafka import KafkaSource

pytestmark = pytest.mark.soak


def source(cluster: Any, topic: str, **options: Any) -> KafkaSource:
    given = {"bootstrap.servers": cluster.servers, "default.api.timeout.ms": "3000"}
    return KafkaSource(**{"subscribe": [topic], "starting_offsets": "earliest", "kafka": given, **options})


def refusal(cluster: Any, topic: str) -> RetriableError:
    """Return what a look at a topic ends with, once the controller has noticed that its broker is down."""
    paused = threading.Event()
    for _ in range(100):
        with pytest.raises(RetriableError) as caught:
            forebay.peek(source(cluster, topic))
        if "no leader" in caught.value.message:
            return caught.value
        assert caught.value.advice, caught.value
        paused.wait(0.2)
    raise AssertionError("the controller does not notice")


def test_a_partition_without_a_leader_is_reported_and_read_later(cluster):
    topic, other = cluster.topic("alone", [2]), cluster.topic("other", [1])
    cluster.send(topic, "a", "b")
    cluster.send(other, "c")
    cluster.second.kill()
    error = refusal(cluster, topic)
    assert error.split == f"{topic}/0" and error.advice
    assert "the partition alone/0 has no leader" in error.message
    assert forebay.peek(source(cluster, other)).table.column("value").to_pylist() == [b"c"]
    cluster.second.start()
    assert forebay.peek(source(cluster, topic)).table.column("value").to_pylist() == [b"a", b"b"]


def test_a_leader_that_moves_is_followed(cluster):
    """The leader dies during a read: the other broker takes over, and each record comes once."""
    topic = cluster.topic("moving", [2, 1])
    cluster.send(topic, *map(str, range(100)))
    short_intervals = forebay.HostOptions(poll_interval="50ms", discovery_interval="200ms")
    with forebay.run(source(cluster, topic), options=short_intervals) as run:
        assert taken(run, 100) == [*range(100)]
        cluster.second.kill()
        cluster.send(topic, *map(str, range(100, 200)))  # which waits for the new leader
        assert taken(run, 100) == [*range(100, 200)]
        cluster.second.start()
        cluster.send(topic, *map(str, range(200, 300)))
        assert taken(run, 100) == [*range(200, 300)]


def taken(run: forebay.Run, rows: int) -> list[int]:
    """Return at least `count` next values of an endless run."""
    found: list[int] = []
    while len(found) < rows:
        found += [int(value) for value in next(run).column("value").to_pylist()]
    return found
