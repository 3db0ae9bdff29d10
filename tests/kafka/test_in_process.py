# SPDX-License-Identifier: Apache-2.0
"""Runs in this process, from a real broker, that go on at positions which the consumer stored."""

from __future__ import annotations

import json
from typing import Any

import forebay
from forebay.sources.kafka import KafkaSource


def test_stored_positions_go_on_without_a_checkpoint(kafka: Any) -> None:
    """Also in a partition that nothing was read of, and in one that startingOffsets cannot name."""
    topic = kafka.topic(2)
    source = KafkaSource(
        subscribe=[topic],
        starting_offsets=json.dumps({topic: {"0": 5, "1": 5}}),
        kafka={"bootstrap.servers": kafka.address},
    )
    options = forebay.HostOptions(poll_interval=0.05, discovery_interval=0.2, retries=0)
    kafka.send(topic, range(8), 0)
    kafka.send(topic, range(10, 15), 1)
    with forebay.run(source, until_caught_up=True, options=options) as run:
        found = [int(value.as_py()) for batch in run for value in batch.column("value")]
    positions = run.positions()
    assert found == [5, 6, 7] and positions == {f"{topic}/0": 8, f"{topic}/1": 5}
    kafka.send(topic, [15], 1)
    kafka.grow(topic, 3)
    kafka.send(topic, [20, 21], 2)
    table = forebay.run(source, positions=positions, until_caught_up=True, options=options).to_table()
    assert sorted(int(value.as_py()) for value in table["value"]) == [15, 20, 21]
