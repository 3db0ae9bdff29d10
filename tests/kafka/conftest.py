# SPDX-License-Identifier: Apache-2.0
"""One real broker and one session of Spark for all tests of this room; where they do not start, they fail."""

from __future__ import annotations

import contextlib
import datetime as dt
import gc
import ipaddress
import itertools
import socket
import struct
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.testkit.kafka_broker import KafkaBroker
from forebay.testkit.servers.kafka_jars import spark_source_jars
from forebay.testkit.servers.tcp_proxy import TcpProxy

# kafka-python reads its protocol, when it is imported, in a way that Python 3.11 warns of.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka as kafka  # noqa: PLC0414 - imported for that alone

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

    def __init__(self, broker: KafkaBroker) -> None:
        self.address = broker.address
        self._broker = broker
        self._numbers = itertools.count()

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
        with kafka.KafkaProducer(bootstrap_servers=self.address, acks="all") as producer:
            sent = [producer.send(topic, str(value).encode(), partition=partition, **each) for value in values]
            producer.flush()
            for one in sent:
                one.get(30)

    def lose(self, topic: str, partition: int, before: int) -> None:
        """Delete the records before an offset, as retention does."""
        with self._broker.admin() as admin:
            admin.delete_records({kafka.TopicPartition(topic, partition): before})


@pytest.fixture(scope="session", name="kafka")
def _kafka(broker: KafkaBroker) -> Kafka:
    return Kafka(broker)


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


REFUSED = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture
def refusing(request: pytest.FixtureRequest) -> Iterator[None]:
    """For tests where connections are refused: kafka-python forgets to close their sockets; here they are found."""
    request.node.add_marker(REFUSED)
    yield
    for found in gc.get_objects():
        if isinstance(found, socket.socket) and found.fileno() >= 0 and found.family is socket.AF_INET:
            with contextlib.suppress(OSError):  # the thread of a client that is kept on loan closed it meanwhile
                listening = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if not listening and found.getsockname()[0] == "0.0.0.0":
                    found.close()


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A key with its certificate, in all forms."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import pkcs12

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form = serialization.PrivateFormat.PKCS8
    found = {
        "chain": certificate.public_bytes(pem).decode(),
        "key": key.private_bytes(pem, form, serialization.NoEncryption()).decode(),
        "locked": key.private_bytes(pem, form, serialization.BestAvailableEncryption(b"sesame")).decode(),
    }
    directory = tmp_path_factory.mktemp("stores")
    locked = serialization.BestAvailableEncryption(b"sesame")
    for label, content in {
        "both.pem": (found["key"] + found["chain"]).encode(),
        "trust.pem": found["chain"].encode(),
        "both.p12": pkcs12.serialize_key_and_certificates(b"x", key, certificate, None, locked),
        "trust.p12": pkcs12.serialize_java_truststore([pkcs12.PKCS12Certificate(certificate, b"ca")], locked),
        "old.jks": struct.pack(">II", 0xFEEDFEED, 2),
        "junk": b"junk",
    }.items():
        (directory / label).write_bytes(content)
        found[label] = str(directory / label)
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Excuse the sockets that kafka-python leaves to the garbage collector when a connection fails: it comes later."""
    left = "ignore:Exception ignored in. <(ssl.SSLSocket|socket.socket):pytest.PytestUnraisableExceptionWarning"
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.filterwarnings(left))
