# SPDX-License-Identifier: Apache-2.0
"""A topic that is deleted and created again after its offsets were planned: a task reads the planned topic only."""

from __future__ import annotations

from random import Random

import pytest
from kafka.net.manager import KafkaConnectionManager

from forebay.errors import DataLossError
from forebay.framework.tasks.read_task import run_task


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


@pytest.mark.parametrize("restarted", [False, True])
def test_progress_in_the_old_topic_is_not_committed_for_the_new_one(kafka, begin, restarted):
    """Else a query that starts from the group would begin in the middle of the new topic."""
    topic = kafka.topic()
    group = {"commitOffsets": "true", "kafka.group.id": f"of-{topic}-{restarted}"}
    kafka.send(topic, range(40))
    query = begin(subscribe=topic, startingOffsets="earliest", **group)
    end = query.plan()
    assert query.read(end) == list(range(40))
    recreate(kafka, topic, range(1000, 1100))
    if restarted:
        query.restart()
    with pytest.raises(DataLossError, match="created again"):
        query.plan()
    later = begin(subscribe=topic, startingOffsets="committed", **group)
    later.drain()
    assert later.values == list(range(1000, 1100))


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
def test_a_client_that_reads_by_name_asks_for_the_id(kafka, begin, without_internals, strict):
    """Brokers before 3.1, and a kafka-python whose internals differ, cannot read by topic id."""
    without_internals("topic ids")
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


class Topic:
    """A topic that is deleted, created again, grown and cut by retention, and what each topic of its name had.

    A value says in which topic of the name, in which partition and at which offset it was written.
    """

    def __init__(self, kafka, random):
        self._kafka, self._random = kafka, random
        self.name = kafka.name("random")
        self.generations = {}
        self.ends, self.cut, self.number = {}, {}, 0
        self._create()

    def _create(self):
        self.number += 1
        self._kafka.topic(self._random.randint(1, 3), name=self.name)
        with self._kafka.admin() as admin:
            (described,) = admin.describe_topics([self.name])
        self.generations[str(described["topic_id"])] = self.number
        self.ends = dict.fromkeys(range(len(described["partitions"])), 0)
        self.cut = dict(self.ends)
        self.write()

    def write(self):
        for partition, end in self.ends.items():
            more = self._random.choice([0, 3, 40])
            base = self.number * 1_000_000 + partition * 100_000
            self._kafka.send(self.name, range(base + end, base + end + more), partition=partition)
            self.ends[partition] = end + more

    def recreate(self):
        self._kafka.delete(self.name)
        self._create()

    def grow(self):
        self.ends[len(self.ends)] = self.cut[len(self.cut)] = 0
        self._kafka.grow(self.name, len(self.ends))
        self.write()

    def lose(self):
        partition = self._random.choice(list(self.ends))
        self.cut[partition] = self._random.randint(self.cut[partition], self.ends[partition])
        self._kafka.lose(self.name, partition, self.cut[partition])

    def change(self, likely):
        """Do nothing, or one of the changes."""
        if self._random.random() < likely:
            self._random.choice([self.recreate, self.recreate, self.grow, self.lose, self.write])()

    @property
    def present(self):
        """The values that the topic of today has."""
        bases = {partition: self.number * 1_000_000 + partition * 100_000 for partition in self.ends}
        return {base + offset for one, base in bases.items() for offset in range(self.cut[one], self.ends[one])}


def search(kafka, begin, seed):
    """Run a query over a topic that changes at random moments; return how it ended, and the micro-batches of it."""
    random = Random(seed)
    strict = bool(seed % 2)
    topic = Topic(kafka, random)
    query = begin(
        subscribe=topic.name,
        startingOffsets="earliest",
        failOnDataLoss=str(strict).lower(),
        maxOffsetsPerTrigger=random.choice([None, 30, 100]),
        minPartitions=random.choice([None, 3, 6]),
        **{"kafka.max.partition.fetch.bytes": random.choice([400, 1_000_000])},
    )
    committed = []

    def run_one():
        start = query.offset or query.planner.initial()
        end = query.plan()
        if end is None:
            return False
        topic.change(0.3)
        batch, tasks = [], query.planner.tasks(start, end)
        topic.change(0.3)
        for task in tasks:
            planned = {topic.generations[split.topic_id] for split in task.slices}
            for part in run_task(task):
                values = [int(value) for value in part.batch["value"].to_pylist()]
                assert {value // 1_000_000 for value in values} <= planned, f"seed {seed}: rows of another topic"
                batch += values
                topic.change(0.1)
        topic.change(0.2)
        query.planner.commit(end)
        query.offset = end
        committed.append(batch)
        return True

    try:
        for _ in range(6):
            topic.change(0.5)
            run_one()
            if random.random() < 0.2:
                query.restart()
        topic.change = lambda _: None  # now the query catches up
        while run_one():
            pass
    except DataLossError:
        assert strict, f"seed {seed}"
        outcome = "DataLossError"
    else:
        outcome = "read"
    values = [value for batch in committed for value in batch]
    assert len(values) == len(set(values)), f"seed {seed}: rows came twice"
    assert all(len({value // 1_000_000 for value in batch}) <= 1 for batch in committed), f"seed {seed}: mixed"
    if outcome == "read":
        assert topic.present <= set(values), f"seed {seed}: rows are missing"
    return outcome, topic.number


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(200), marks=pytest.mark.soak)], ids=["few", "many"])
def test_rows_are_of_the_planned_topic_whenever_topics_change(kafka, begin, seeds, record_property):
    outcomes = [search(kafka, begin, seed) for seed in seeds]
    recreated = sum(number > 1 for _, number in outcomes)
    errors = sum(outcome == "DataLossError" for outcome, _ in outcomes)
    record_property(
        "report", f"{len(outcomes)} queries, {recreated} of recreated topics, {errors} ended in DataLossError"
    )
    assert recreated
