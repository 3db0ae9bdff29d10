# SPDX-License-Identifier: Apache-2.0
"""Driver, runner, workers and the broker die by SIGKILL while topics are written, grow and are throttled.

Each row that was produced is in the sink once all the same, and no row of a transaction that was aborted.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from forebay.sources.kafka.client.kafka_internals import network
from forebay.testkit.kafka_broker import KafkaBroker
from forebay.testkit.kills import Kill, KillList, MicroBatchFiles, run_until_done
from forebay.testkit.processes import alive, session_of

PROGRAM = Path(__file__).parent.parent / "spark" / "kill_program.py"
FEW, MANY = 4, 10
AT_ONCE = 40
EACH = 600
"""Most records of a micro-batch."""
AHEAD = 2000
QUOTA = 20_000.0
"""Bytes a second; a client that fetched more in the last ten seconds waits."""
CLIENT = "killed"


@dataclass
class Writer:
    """Writes to all partitions of a topic, also to those that come later, until it is stopped.

    It waits for the sink where that is some micro-batches behind, as a driver that starts leaves it. What
    brokers have confirmed is in `sure`, what a transaction took back in `never`; the rest may be there or not.
    """

    address: str
    topic: str
    transactional: bool
    sink: MicroBatchFiles
    stop: threading.Event
    sure: list[bytes] = field(default_factory=list)
    never: list[bytes] = field(default_factory=list)
    number: int = 0

    def run(self) -> None:
        """Write; a producer that failed is replaced by a new one."""
        while not self.stop.is_set():
            with suppress(KafkaError):
                self._write()
        with self._producer() as producer:  # it knows all partitions, whatever has died since they came
            if not self.transactional:
                self.sure += self._some(producer)
                return
            producer.init_transactions()  # what the last producer left open is aborted
            producer.begin_transaction()
            written = self._some(producer)
            producer.commit_transaction()
            self.sure += written

    def _producer(self) -> KafkaProducer:
        more: dict[str, Any] = {"transactional_id": self.topic} if self.transactional else {}
        more |= {"acks": "all", "metadata_max_age_ms": 500, "kafka_client": network}
        return KafkaProducer(bootstrap_servers=self.address, **more)

    def _write(self) -> None:
        chance = random.Random(self.number)
        with self._producer() as producer:
            if self.transactional:
                producer.init_transactions()
            while not self.stop.wait(0.2):
                if self.number > AHEAD + EACH // 2 * self.sink.micro_batches():
                    continue
                if not self.transactional:
                    self.sure += self._some(producer)
                    continue
                producer.begin_transaction()
                written = self._some(producer)
                if chance.random() < 0.3:
                    self.never += written
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
                    self.sure += written

    def _some(self, producer: KafkaProducer) -> list[bytes]:
        """Write a few records of which none has been before, and return them once all are there."""
        count = len(producer.partitions_for(self.topic))
        values = [b"%s:%d:%s" % (self.topic.encode(), self.number + n, b"x" * 100) for n in range(AT_ONCE)]
        self.number += AT_ONCE
        sent = [producer.send(self.topic, value, partition=n % count) for n, value in enumerate(values, self.number)]
        producer.flush(60)
        for one in sent:
            one.get(60)
        return values


class Outside:
    """What happens around a query: a broker that dies is started again, and other things, after some micro-batches.

    Args:
        broker: The broker.
        kills: What is to die; all of it has died before the end.
        sink: Counts micro-batches.
    """

    def __init__(self, broker: KafkaBroker, kills: KillList, sink: MicroBatchFiles) -> None:
        self.broker, self._kills, self._sink = broker, kills, sink
        self.restarts = 0
        self.done = threading.Event()
        self._changing = threading.Lock()

    def announce(self) -> None:
        """Tell the kill list which process the broker is: the one below its guard."""
        assert self.broker.pid is not None
        (java,) = (pid for pid in session_of(self.broker.pid) if pid != self.broker.pid)
        self._kills.broker_is(java)
        self._java = java

    def keep_up(self) -> None:
        """Start the broker again whenever it has died. On a thread of its own: others may be waiting for the broker."""
        while not self.done.wait(0.05):
            with self._changing:
                if not alive(self._java):
                    self.broker.kill()
                    self._start()

    def go_through(self, steps: list[tuple[int, Callable[[], object]]]) -> None:
        """Do each step after so many micro-batches, and return after the last one, and the last kill."""
        while (steps or self._kills.armed()) and not self.done.wait(0.05):
            if steps and self._sink.micro_batches() >= steps[0][0]:
                with suppress(KafkaError):  # the broker may be dying just now: once more
                    steps[0][1]()
                    steps.pop(0)

    def restart(self) -> None:
        """Shut the broker down in order, and start it again on the same data and port."""
        with self._changing:
            self.broker.stop()
            self._start()

    def _start(self) -> None:
        self.broker.start()
        self.announce()
        self.restarts += 1


def there(address: str, topic: str, **options: Any) -> list[tuple[bytes, int, int]]:
    """Return values, partitions and offsets of all records, as kafka-python reads them."""
    with KafkaConsumer(bootstrap_servers=address, group_id=None, kafka_client=network, **options) as consumer:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        found = []
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for records in consumer.poll(500).values():
                found += [(one.value, one.partition, one.offset) for one in records]
    return found


def look(address: str, topic: str) -> None:
    """Fetch more than the quota as the query's own client; kafka-python's log tells that the broker makes it wait."""
    with KafkaConsumer(bootstrap_servers=address, group_id=None, client_id=CLIENT, kafka_client=network) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        read, until = 0, time.monotonic() + 20
        while read < 15 * QUOTA and time.monotonic() < until:  # the window of a quota is about ten seconds
            consumer.seek_to_beginning()
            read += sum(len(one.value) for records in consumer.poll(5000).values() for one in records)


@dataclass
class Told:
    """How a run went."""

    starts: int
    restarts: int
    rows: int


def run(directory: Path, kills: KillList, throttle: Callable[..., None], *, isolation: str, timeout: float) -> Told:
    """Run a query against all of it, and compare what is in its sink with what is in the topics."""
    sink, stop = MicroBatchFiles(directory / "rows"), threading.Event()
    with ExitStack() as stack:
        broker = stack.enter_context(KafkaBroker())
        outside = Outside(broker, kills, sink)
        outside.announce()
        for name in ("plain", "transactional"):
            broker.create_topic(name, FEW)
        writers = [
            Writer(broker.address, name, name == "transactional", sink, stop) for name in ("plain", "transactional")
        ]
        pool = stack.enter_context(ThreadPoolExecutor())
        stack.callback(stop.set)
        stack.callback(tell, directory, 0)  # where something fails: the query does not wait for more
        stack.callback(outside.done.set)
        keeping = pool.submit(outside.keep_up)
        writing = [pool.submit(writer.run) for writer in writers]
        running = pool.submit(query, directory, broker.address, kills, isolation, timeout)
        running.add_done_callback(lambda _: outside.done.set())
        outside.go_through([
            (3, lambda: broker.add_partitions("plain", MANY)),
            (3, lambda: broker.add_partitions("transactional", MANY)),
            (5, lambda: throttle(broker, QUOTA, CLIENT)),
            (7, lambda: look(broker.address, "plain")),
            (7, lambda: throttle(broker, None, CLIENT)),
            (8, outside.restart),
        ])  # fmt: skip
        if running.done():
            running.result()  # says why it ended before its time
        stop.set()
        for one in writing:
            one.result(120)
        expected = expectation(broker.address, writers, isolation)
        tell(directory, len(expected))
        starts = running.result(timeout)
        outside.done.set()
        keeping.result(120)
    assert sink.rows() == expected
    assert kills.armed() == []
    return Told(starts, outside.restarts, len(expected))


def tell(directory: Path, total: int) -> None:
    """Write the total number of rows for the driver."""
    (directory / "total.new").write_text(str(total))
    (directory / "total.new").rename(directory / "total")


def expectation(address: str, writers: list[Writer], isolation: str) -> list[str]:
    """Return the rows that a query must bring, after a look at whether the topics hold what writers were promised."""
    expected = []
    for writer in writers:
        records = there(address, writer.topic, isolation_level=isolation)
        values = Counter(value for value, _, _ in records)
        assert not set(writer.sure) - set(values) and max(values.values()) == 1
        assert isolation == "read_uncommitted" or not set(writer.never) & set(values)
        assert {partition for _, partition, _ in records} == set(range(MANY))
        expected += [json.dumps([value, *where], default=str) for value, *where in records]
    return sorted(expected)


def query(directory: Path, address: str, kills: KillList, isolation: str, timeout: float) -> int:
    """Run the driver until it ends by itself."""
    plan = {
        "format": "killable_kafka",
        "options": {
            "kafka.bootstrap.servers": address,
            "kafka.client.id": CLIENT,
            "kafka.isolation.level": isolation,
            "subscribe": "plain,transactional",
            "startingOffsets": "earliest",
            "columns": "value,partition,offset",
            "discoveryInterval": "300ms",
            "maxOffsetsPerTrigger": EACH,
            "maxRowsPerBatch": 25,
            "kafka.max.partition.fetch.bytes": 8192,
        },
        "rows": str(directory / "rows"),
        "checkpoint": str(directory / "checkpoint"),
        "kills": kills.directory,
        "master": "local[2,3]",
        "expected_in": str(directory / "total"),
    }
    (directory / "plan.json").write_text(json.dumps(plan))
    command = [sys.executable, "-P", str(PROGRAM), str(directory / "plan.json")]
    return run_until_done(command, kills, checkpoint=plan["checkpoint"], timeout=timeout)


RUNNER = [Kill("discovered", at=3), Kill("ends-known", at=5), Kill("plan-ends", at=7), Kill("commit-ends", at=6)]
WORKER = [Kill("read-first", at=5), Kill("read-middle", at=30), Kill("read-ends", at=24), Kill("read-begins", at=40)]
DRIVER = [Kill("sink-written", "driver", at=3)]
BROKER = [Kill("read-middle", "broker", at=60), Kill("plan-begins", "broker", at=14)]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_kills_lose_and_double_nothing(throttle, tmp_path, record_property, caplog):
    kills = KillList(tmp_path / "kills")
    kills.arm(*RUNNER, *WORKER, *DRIVER, *BROKER)
    report = run(tmp_path, kills, throttle, isolation="read_committed", timeout=600)
    assert report.restarts == len(BROKER) + 1
    assert report.starts >= len(DRIVER) + 1
    assert "throttled by broker" in caplog.text
    record_property("report", f"kills of a stream of Kafka: {len(kills.fired())}, {report}")


# How often a point is visited at least before the sink has a dozen micro-batches.
POINTS = {
    "plan-begins": 14, "discovered": 10, "ends-known": 12, "plan-ends": 14, "tasks-begin": 12, "tasks-end": 12,
    "commit-begins": 9, "commit-ends": 9, "read-begins": 24, "read-first": 24, "read-middle": 24, "read-ends": 24,
}  # fmt: skip
SEEDS = range(2)
LEAST = 60


def draw(seed: str) -> list[Kill]:
    """Draw the kills: many workers and runners, some drivers and brokers."""
    chance = random.Random(seed)

    def some(points: dict[str, int], count: int, victim: Any = "self") -> Iterator[Kill]:
        for name in chance.choices(list(points), k=count):
            yield Kill(name, victim, chance.randint(1, 3 * points[name]))

    # A driver takes long to start: one is killed at a point inside it, one when a log entry or a written file shows.
    logged = some({"offset-logged": 4, "commit-logged": 4}, 1, "jvm")
    done = some({"sink-begins": 4, "sink-written": 4}, 1, "driver")
    drivers = [*some(POINTS, 1, "jvm"), *(logged if chance.random() < 0.5 else done)]
    return [*some(POINTS, 18), *drivers, *some(POINTS, 4, "broker")]


@pytest.fixture(scope="module")
def tally() -> Counter[str]:
    return Counter()


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("seed", SEEDS)
def test_many_kills_lose_and_double_nothing(seed, isolation, throttle, tally, tmp_path):
    kills = KillList(tmp_path / "kills")
    kills.arm(*draw(f"{isolation} {seed}"))
    began = time.monotonic()
    report = run(tmp_path, kills, throttle, isolation=isolation, timeout=600)
    tally.update(f"{kill.point:<14} {kill.victim}" for kill in kills.fired())
    tally.update({"broker restarts": report.restarts, "rows": report.rows, "seconds": int(time.monotonic() - began)})


@pytest.mark.soak
def test_there_were_enough_kills(tally, record_property):
    rest = {name: tally.pop(name) for name in ("broker restarts", "rows", "seconds")}
    table = "\n".join(f"  {name:<22} {count:4}" for name, count in sorted(tally.items()))
    record_property("report", f"kills of streams of Kafka:\n{table}\n  in all {tally.total():18}\n  {rest}")
    assert tally.total() >= LEAST
    assert {name.split()[0] for name in tally} >= set(POINTS)
