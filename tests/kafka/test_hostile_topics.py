# SPDX-License-Identifier: Apache-2.0
"""Topics and partitions with names that an enemy chose, in options and in checkpoints."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hostile_names import hostile_names, hostile_sql_names

from forebay.errors import ConfigurationError, DataLossError
from forebay.framework.tasks.read_task import run_task
from forebay.sources.kafka import KafkaSource
from forebay.sources.kafka.split import TopicPartition

BROKER = {"kafka.bootstrap.servers": "127.0.0.1:1"}


def names(seed, count):
    """Half of them lead out of directories, half out of quotes."""
    yield from hostile_names(seed, count // 2, Path("/outside"))
    yield from hostile_sql_names(seed, count - count // 2)


def named(**options):
    """What the options subscribe to; None if they are refused."""
    try:
        return KafkaSource.from_options(BROKER | options).subscription
    except ConfigurationError as error:
        assert error.option in options  # noqa: PT017
        return None


@pytest.mark.filterwarnings("ignore:Possible set:FutureWarning")
@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.soak)])
def test_an_option_names_topics_and_partitions_as_they_are(count):
    for name in names(10, count):
        topics = tuple(dict.fromkeys(part.strip() for part in name.split(",") if part.strip()))
        subscribed, assigned = named(subscribe=name), named(assign=json.dumps({name: [7]}))
        assert subscribed.topics == topics if topics else subscribed is None, name
        assert assigned.partitions == (TopicPartition(name, 7),)
        assert TopicPartition.of(assigned.partitions[0].split_id) == TopicPartition(name, 7)
        named(subscribePattern=name)


@pytest.mark.parametrize("count", [40, pytest.param(2_000, marks=pytest.mark.soak)])
def test_an_offset_reads_no_other_topic_and_creates_none(kafka, begin, count, record_property):
    topic, other = kafka.topic(2), kafka.topic(name="other")
    kafka.send(topic, range(10))
    kafka.send(other, range(100, 110))
    with kafka.admin() as admin:
        before = sorted(admin.list_topics())
    query = begin(subscribe=topic, startingOffsets="earliest")
    chance, start, end, refused = random.Random(11), query.planner.initial(), query.plan(), 0
    for name in names(11, count):
        hostile = json.loads(json.dumps(end))
        entry = chance.choice(hostile["splits"])
        entry[0] = chance.choice(
            [
                name,
                f"{name}/0",
                f"{topic}/{name}",
                f"{other}/0",
                f"{topic}/0:{name}",
                f"{name}/{topic}/0",
                f"{topic}/-1",
            ]
        )
        try:
            tasks = query.planner.tasks(start, json.loads(json.dumps(hostile)))
            values = [
                int(value) for task in tasks for part in run_task(task) for value in part.batch["value"].to_pylist()
            ]
        except (ConfigurationError, DataLossError) as error:
            assert error.advice, error  # noqa: PT017
            refused += 1
        else:
            assert set(values) <= set(range(10)), hostile
    with kafka.admin() as admin:
        assert sorted(admin.list_topics()) == before
    record_property("report", f"{count} offsets with names of an enemy: {refused} refused")
