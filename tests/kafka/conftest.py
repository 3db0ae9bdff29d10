# SPDX-License-Identifier: Apache-2.0
"""One real broker and one session of Spark for all tests of this room, and a planner that stands in for Spark."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import socket
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from manual_clock import ManualClock
from spark_kafka_source import spark_source_jars

import forebay
from forebay.framework.microbatch.stream_planner import StreamPlanner, open_stream
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.framework.tasks.assign_tasks import plan_bounded
from forebay.framework.tasks.read_task import ReadTask, run_task
from forebay.sources.kafka import KafkaSource
from forebay.testkit.kafka_broker import KafkaBroker
from forebay.testkit.proxies import TcpProxy

# kafka-python reads its protocol, when it is imported, in a way that Python 3.11 warns of.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka.record.memory_records import MemoryRecordsBuilder

MakeTopic = Callable[..., str]


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session that has our source, and on Spark 4.2 its own as well."""
    pyspark = pytest.importorskip("pyspark")
    configuration = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.noDataProgressEventInterval": "500",  # else an idle query reports every 10 s
    }
    if pyspark.__version__.startswith("4.2."):
        configuration["spark.jars"] = spark_source_jars()
    builder = pyspark.sql.SparkSession.builder.master("local[2]").appName("forebay tests of Kafka")
    if (earlier := pyspark.sql.SparkSession.getActiveSession()) is not None:
        earlier.stop()  # of another room, whose JVM started without the jars
    session = builder.config(map=configuration).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    forebay.register(session)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def no_query_runs_on(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that fails leaves no query behind, which would disturb the next one."""
    yield
    if "spark" in request.fixturenames:
        for query in request.getfixturevalue("spark").streams.active:
            query.stop()


@pytest.fixture(scope="session")
def broker() -> Iterator[KafkaBroker]:
    """A broker; tests that stop or spoil one start their own."""
    with KafkaBroker() as running:
        yield running


class MortalBroker(KafkaBroker):
    """Listens on one more port, for those who log in."""

    def __init__(self) -> None:
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        super().__init__(
            {
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
                "inter.broker.listener.name": "PLAINTEXT",
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.login.plain.sasl.jaas.config": f'{module} required user_alice="open sesame";',
            },
            listeners=["LOGIN"],
        )


@pytest.fixture(scope="session")
def _mortal() -> Iterator[MortalBroker]:
    with MortalBroker() as running:
        yield running


@pytest.fixture
def mortal(_mortal: MortalBroker) -> MortalBroker:
    """A running broker that a test may stop; its topics of earlier tests are there."""
    if _mortal.pid is None:
        _mortal.start()
    return _mortal


@pytest.fixture
def topic(broker: KafkaBroker) -> Iterator[MakeTopic]:
    """Makes topics with names of their own, and deletes them afterwards."""
    made: list[str] = []

    def make(partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        name = f"t-{uuid.uuid4().hex[:10]}"
        broker.create_topic(name, partitions, config)
        made.append(name)
        return name

    yield make
    with broker.admin() as admin:
        if made:
            admin.delete_topics(made, raise_errors=False)


class Kafka:
    """The broker, its topics and records, for tests that do much with them."""

    def __init__(self, broker: KafkaBroker, append: Callable[[str, Mapping[int, bytes]], None]) -> None:
        self.address = broker.address
        self._broker, self._append = broker, append
        self._numbers = itertools.count()

    def admin(self) -> Any:
        """An admin client of kafka-python, as a context."""
        return self._broker.admin()

    def name(self, prefix: str = "k") -> str:
        """A name that no topic has had."""
        return f"{prefix}-{next(self._numbers)}"

    def topic(self, partitions: int = 1, name: str | None = None, **config: str) -> str:
        """Create a topic that keeps records however old they say they are, and return its name."""
        name = name or self.name()
        given = {key.replace("_", "."): value for key, value in config.items()}
        self._broker.create_topic(name, partitions, {"retention.ms": "-1", **given})
        return name

    def delete(self, topic: str) -> None:
        """Delete a topic, and return once it is gone."""
        with self._broker.admin() as admin:
            admin.delete_topics([topic])
            while any(one["error_code"] == 0 for one in admin.describe_topics([topic])):
                pass

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions, and return once they are there."""
        self._broker.add_partitions(topic, partitions)
        with self._broker.admin() as admin:
            while len(admin.describe_topics([topic])[0]["partitions"]) != partitions:
                pass

    def send(self, topic: str, values: Sequence[Any], partition: int = 0, **each: Any) -> None:
        """Write values (of anything, as text) to a partition, in order, and return once they are there."""
        made = {"timestamp": each.get("timestamp_ms", round(time.time() * 1000)), "key": each.get("key")}
        for start in range(0, len(values), 1000):
            batch = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1 << 20)
            for value in values[start : start + 1000]:
                assert batch.append(value=str(value).encode(), headers=each.get("headers", []), **made)
            batch.close()
            self._append(topic, {partition: bytes(batch.buffer())})

    def lose(self, topic: str, partition: int, before: int) -> None:
        """Delete the records before an offset, as retention does."""
        with self._broker.admin() as admin:
            admin.delete_records({kafka.TopicPartition(topic, partition): before})


@pytest.fixture(scope="session", name="kafka")
def _kafka(broker: KafkaBroker) -> Iterator[Kafka]:
    with broker.appending() as append:  # a producer for each call would cost more than what it writes
        yield Kafka(broker, append)


class SecondBroker(KafkaBroker):
    """Joins the cluster of another one; clients reach it through a proxy."""

    def __init__(self, first: KafkaBroker, proxy: TcpProxy) -> None:
        assert first._ports is not None
        super().__init__(
            {
                "process.roles": "broker",
                "node.id": "2",
                "controller.quorum.voters": f"1@127.0.0.1:{first._ports[1]}",
                "advertised.listeners": f"PLAINTEXT://{proxy.address}",
            }
        )
        self._proxy = proxy

    def _text(self) -> str:
        self._proxy.target = self.address
        lines = [line for line in super()._text().splitlines() if not line.startswith("listeners=")]
        return "\n".join([*lines, f"listeners=PLAINTEXT://{self.address}"]) + "\n"


class Cluster:
    """Two brokers; the controller is on the first one, and the second one is behind a proxy."""

    def __init__(self, first: KafkaBroker, second: KafkaBroker, proxy: TcpProxy) -> None:
        self.first, self.second, self.proxy = first, second, proxy
        self.servers = f"{first.address},{proxy.address}"

    def topic(self, name: str, *replicas: Sequence[int]) -> str:
        """Create a topic with these brokers for each partition; its records are kept."""
        given = {"assignments": dict(enumerate(map(list, replicas))), "configs": {"retention.ms": "-1"}}
        with self.first.admin() as admin:
            admin.create_topics({name: given}, wait_for_metadata=True)
        return name

    def send(self, topic: str, *values: str) -> None:
        """Write to partition 0."""
        with kafka.KafkaProducer(bootstrap_servers=self.servers, acks="all") as producer:
            for one in [producer.send(topic, value.encode(), partition=0) for value in values]:
                one.get(30)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with TcpProxy() as proxy, KafkaBroker() as first, SecondBroker(first, proxy) as second:
        yield Cluster(first, second, proxy)


@pytest.fixture
def throttle() -> Callable[[KafkaBroker, float | None, str], None]:
    """Sets, or takes away, a quota of bytes a second for what a client of this id fetches."""
    from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest

    entry = AlterClientQuotasRequest.EntryData

    def limit(broker: KafkaBroker, rate: float | None, client_id: str) -> None:
        entity = entry.EntityData(entity_type="client-id", entity_name=client_id)
        change = entry.OpData(key="consumer_byte_rate", value=rate or 0.0, remove=rate is None)
        request = AlterClientQuotasRequest(entries=[entry(entity=[entity], ops=[change])], validate_only=False)
        with broker.admin() as admin:
            answer = admin._manager.run(admin._manager.send, request)  # kafka-python has no method for it
        assert [one.error_code for one in answer.entries] == [0]

    return limit


@pytest.fixture
def without_internals(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes forebay find that parts of kafka-python are not as it expects: the raw bytes, the topic ids, …."""
    from forebay.sources.kafka.client import kafka_internals

    real = kafka_internals.unexpected_internal

    def without(*parts: str) -> None:
        monkeypatch.setattr(
            kafka_internals, "unexpected_internal", lambda part: f"{part} of a test" if part in parts else real(part)
        )

    return without


@pytest.fixture
def refusing() -> Iterator[None]:
    """For tests where connections are refused: kafka-python forgets to close their sockets; here they are found."""
    yield
    for found in gc.get_objects():
        if isinstance(found, socket.socket) and found.fileno() >= 0 and found.family is socket.AF_INET:
            with contextlib.suppress(OSError):  # the thread of a client that is kept on loan closed it meanwhile
                listening = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if not listening and found.getsockname()[0] == "0.0.0.0":
                    found.close()


HOST = {
    "max_rows_per_trigger": "maxOffsetsPerTrigger",
    "min_rows_per_trigger": "minOffsetsPerTrigger",
    "max_trigger_delay": "maxTriggerDelay",
    "alignment_max_drift": "alignmentMaxDrift",
    "retries": "retries",
}


def _source(address: str, options: Mapping[str, Any]) -> KafkaSource:
    own = {name: text for name, text in options.items() if name not in {"columns", *HOST.values()} and text is not None}
    given = {name.replace("__", "."): str(text) for name, text in own.items()}
    source = KafkaSource.from_options({"kafka.bootstrap.servers": address, **given})
    return source.with_columns(options["columns"].split(",")) if "columns" in options else source


def _host(options: Mapping[str, Any]) -> HostOptions:
    return HostOptions(**{name: options[spark] for name, spark in HOST.items() if spark in options})


def _rows(tasks: Sequence[ReadTask]) -> list[dict[str, Any]]:
    return [row for task in tasks for part in run_task(task) for row in part.batch.to_pylist()]


def _values(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Values as numbers; a record without one is -1000, and what is no number is left out."""
    values = [row.get("value") for row in rows]
    numbers = [int(value) for value in values if isinstance(value, bytes) and value.lstrip(b"-").isdigit()]
    return sorted([*numbers, *[-1000] * values.count(None)])


class Query:
    """A streaming query: as many runs as wanted, from one checkpoint.

    Args:
        address: The broker.
        now: What its clock shows at first.
        options: Those of Spark, with `__` for a point.
    """

    def __init__(self, address: str, *, now: float = 1_700_000_000, **options: Any) -> None:
        self.clock = ManualClock(now)
        self.offset: Mapping[str, Any] | None = None
        self.batches: list[list[int]] = []
        self.rows: list[dict[str, Any]] = []
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
        rows = _rows(self.planner.tasks(self.offset or {}, end))
        self.rows += rows
        values = _values(rows)
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


@pytest.fixture
def begin(kafka) -> Iterator[Callable[..., Query]]:
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
def batch(table) -> Callable[..., list[int]]:
    """Reads a batch; returns its values."""
    return lambda **options: _values(table(**options))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Excuse the sockets that kafka-python leaves to the garbage collector when a connection fails: it comes later."""
    left = "ignore:Exception ignored in. <(ssl.SSLSocket|socket.socket):pytest.PytestUnraisableExceptionWarning"
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings(left))
