# SPDX-License-Identifier: Apache-2.0
"""Streams and batches of a real broker's topics, planned and read as on Spark, without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from kafka import KafkaProducer

from forebay.clock import ManualClock
from forebay.framework.microbatch.bounded import plan_bounded
from forebay.framework.microbatch.planner_factory import open_stream
from forebay.framework.microbatch.read_task import ReadTask, run_task
from forebay.framework.microbatch.stream_planner import StreamPlanner
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.sources.kafka import KafkaSource

HOST = {
    "max_rows_per_trigger": "maxOffsetsPerTrigger",
    "min_rows_per_trigger": "minOffsetsPerTrigger",
    "max_trigger_delay": "maxTriggerDelay",
    "retries": "retries",
}


def _source(address: str, options: Mapping[str, Any]) -> KafkaSource:
    given = {name.replace("__", "."): str(value) for name, value in options.items() if name not in HOST.values()}
    return KafkaSource.from_options({"kafka.bootstrap.servers": address, **given})


def _host(options: Mapping[str, Any]) -> HostOptions:
    return HostOptions(**{name: options[spark] for name, spark in HOST.items() if spark in options})


def _rows(tasks: Sequence[ReadTask]) -> list[dict[str, Any]]:
    return [row for task in tasks for part in run_task(task) for row in part.batch.to_pylist()]


def _values(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Values as numbers; a record without one is -1000."""
    return sorted(-1000 if row["value"] is None else int(row["value"]) for row in rows)


class Query:
    """A streaming query: as many runs as wanted, from one checkpoint.

    Args:
        address: The broker.
        options: Those of Spark, with `__` for a point.
    """

    def __init__(self, address: str, **options: Any) -> None:
        self.clock = ManualClock(1_700_000_000)
        self.offset: Mapping[str, Any] | None = None
        self.batches: list[list[int]] = []
        self._address, self._options = address, options
        self._begin()

    @property
    def values(self) -> list[int]:
        """Of all micro-batches."""
        return sorted(value for batch in self.batches for value in batch)

    def restart(self, **options: Any) -> None:
        """Stop, and start again from the checkpoint, under other options if any are given."""
        self.planner.close()
        self._options |= options
        self._begin()

    def _begin(self) -> None:
        runtime = ThreadRuntime(clock=self.clock)
        source = _source(self._address, self._options)
        self.planner: StreamPlanner = open_stream(source, _host(self._options), parallelism=2, runtime=runtime)

    def trigger(self, *, limited: bool = True, seconds: float = 1.0) -> list[int] | None:
        """Run one micro-batch, if there is one, so many seconds after the one before, and return its values."""
        end = self.plan(limited=limited, seconds=seconds)
        return None if end is None else self.read(end)

    def plan(self, *, limited: bool = True, seconds: float = 1.0) -> Mapping[str, Any] | None:
        """Return the next offset as it comes out of a checkpoint; None if there is nothing new."""
        self.clock.advance(seconds)
        if self.offset is None:
            self.offset = self.planner.initial()
        end = self.planner.latest(self.offset, limited=limited)
        return None if end == self.offset else json.loads(json.dumps(end))

    def read(self, end: Mapping[str, Any]) -> list[int]:
        """Read the micro-batch, and commit it."""
        values = _values(_rows(self.planner.tasks(self.offset or {}, end)))
        self.batches.append(values)
        self.offset = end
        self.planner.commit(end)
        return values

    def drain(self) -> list[list[int]]:
        """Run micro-batches until there is nothing new; return those that brought something."""
        found = []
        for _ in range(200):
            values = self.trigger()
            if values is None:
                return found
            if values:
                found.append(values)
        raise AssertionError("still new rows after 200 micro-batches")


Begin = Callable[..., Query]
Batch = Callable[..., list[int]]
Send = Callable[..., None]


@pytest.fixture
def begin(kafka) -> Iterator[Begin]:
    """Begins a streaming query."""
    begun: list[Query] = []

    def begin(**options: Any) -> Query:
        begun.append(Query(kafka.address, **options))
        return begun[-1]

    yield begin
    for each in begun:
        each.planner.close()


@pytest.fixture
def table(kafka) -> Callable[..., list[dict[str, Any]]]:
    """Reads a batch; returns its rows."""

    def table(**options: Any) -> list[dict[str, Any]]:
        source, host = _source(kafka.address, options), _host(options)
        tasks = plan_bounded(source, host, parallelism=2)
        return _rows([ReadTask(source, task, host, index, len(tasks)) for index, task in enumerate(tasks)])

    return table


@pytest.fixture
def batch(table) -> Batch:
    """Reads a batch; returns its values."""
    return lambda **options: _values(table(**options))


@pytest.fixture
def producer(broker) -> Iterator[KafkaProducer]:
    """One for a test: when a topic it knows is deleted, it asks for it without a pause as long as it is open."""
    with KafkaProducer(bootstrap_servers=broker.address, acks="all", linger_ms=0) as made:
        yield made


@pytest.fixture
def send(broker, producer) -> Send:
    """Writes numbers to a partition, or one after the other to so many partitions; they are there when it returns."""

    def send(topic: str, values: Sequence[int], partition: int | None = None, spread: int = 1, **each: Any) -> None:
        def write(by: KafkaProducer) -> None:
            sent = []
            for number, value in enumerate(values):
                to = number % spread if partition is None else partition
                sent.append(by.send(topic, str(value).encode(), partition=to, **each))
            by.flush(30)
            for one in sent:
                one.get(30)

        if max(partition or 0, spread - 1) in producer.partitions_for(topic):
            write(producer)
        else:  # it does not know yet that the topic has grown
            with KafkaProducer(bootstrap_servers=broker.address, acks="all") as other:
                write(other)

    return send
