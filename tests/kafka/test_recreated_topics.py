# SPDX-License-Identifier: Apache-2.0
"""A topic that is deleted and created again after its offsets were planned: a task reads rows of the planned topic only."""

from __future__ import annotations

from random import Random

import pytest
from kafka.net.manager import KafkaConnectionManager

from forebay.errors import DataLossError
from forebay.framework.microbatch.read_task import run_task
from forebay.sources.kafka.client import kafka_internals


def recreate(kafka, topic, values, partitions=1):
    kafka.delete(topic)
    kafka.topic(partitions, name=topic)
    for partition in range(partitions):
        kafka.send(topic, values, partition=partition)


def send_large(kafka, topic, letter):
    for _ in range(60):
        kafka.send(topic, [letter * 100_000] * 5)


@pytest.mark.parametrize("warm", [True, False])
def test_a_task_refuses_a_topic_created_again_after_planning(kafka, begin, warm):
    topic = kafka.topic()
    query = begin(subscribe=topic, startingOffsets="earliest")
    if warm:
        kafka.send(topic, range(10))
        assert query.trigger() == list(range(10))
    kafka.send(topic, range(10, 40))
    end = query.plan()
    recreate(kafka, topic, range(1000, 1200))
    with pytest.raises(DataLossError, match="created again") as caught:
        query.read(end)
    assert caught.value.split == f"{topic}/0"
    assert query.rows[10 * warm :] == []


@pytest.mark.parametrize("warm", [True, False])
def test_without_fail_on_data_loss_the_rows_of_the_new_topic_come_once(kafka, begin, caplog, warm):
    topic = kafka.topic()
    query = begin(subscribe=topic, startingOffsets="earliest", failOnDataLoss="false")
    if warm:
        kafka.send(topic, range(10))
        assert query.trigger() == list(range(10))
    kafka.send(topic, range(10, 40))
    end = query.plan()
    recreate(kafka, topic, range(1000, 1200))
    assert query.read(end) == []
    assert "created again" in caplog.text
    query.drain()
    assert query.values == [*range(10 * warm), *range(1000, 1200)]


def test_rows_fetched_before_the_topic_was_created_again_are_handed_over(kafka, begin):
    """They are rows of the planned topic; the next fetch, for the rest of the range, is refused."""
    topic = kafka.topic()
    send_large(kafka, topic, "x")
    small = {"kafka.max.partition.fetch.bytes": 100_000, "columns": "value,offset"}
    query = begin(subscribe=topic, startingOffsets="earliest", **small)
    offset = query.planner.initial()
    task = query.planner.tasks(offset, query.planner.latest(offset))[0]
    parts = run_task(task)
    assert next(parts).batch.num_rows > 0
    kafka.delete(topic)
    kafka.topic(name=topic)
    send_large(kafka, topic, "y")
    values = []
    with pytest.raises(DataLossError, match="created again"):
        values += [value for part in parts for value in part.batch["value"].to_pylist()]
    assert {value[:1] for value in values} <= {b"x"}


def test_reading_by_topic_id_sends_no_further_request(kafka, begin, monkeypatch):
    sent = []
    send = KafkaConnectionManager.send

    def sending(self, request, **arguments):
        sent.append((type(request).__name__, request._max_version))
        return send(self, request, **arguments)

    topic = kafka.topic(2)
    query = begin(subscribe=topic, startingOffsets="earliest")
    kafka.send(topic, range(10))
    query.trigger()
    kafka.send(topic, range(10, 40))
    end = query.plan()
    monkeypatch.setattr(KafkaConnectionManager, "send", sending)
    assert query.read(end) == list(range(10, 40))
    assert set(sent) == {("FetchRequest", 13)}


@pytest.mark.parametrize("strict", [True, False])
def test_a_client_that_reads_by_name_asks_for_the_id(kafka, begin, monkeypatch, strict):
    """Brokers before 3.1, and a kafka-python whose internals differ, cannot read by topic id."""
    monkeypatch.setattr(kafka_internals, "unexpected_topic_id_internal", lambda: "Fetcher._create_fetch_requests")
    topic = kafka.topic()
    kafka.send(topic, range(10))
    group = {"kafka.client.id": f"by-name-{strict}"}
    query = begin(subscribe=topic, startingOffsets="earliest", failOnDataLoss=str(strict).lower(), **group)
    assert query.trigger() == list(range(10))
    kafka.send(topic, range(10, 40))
    end = query.plan()
    recreate(kafka, topic, range(1000, 1200))
    if strict:
        with pytest.raises(DataLossError, match="created again"):
            query.read(end)
    else:
        assert query.read(end) == []
        query.drain()
        assert query.values == [*range(10), *range(1000, 1200)]
