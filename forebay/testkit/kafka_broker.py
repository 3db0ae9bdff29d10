# SPDX-License-Identifier: Apache-2.0
"""Runs a real Apache Kafka for tests: one node on loopback. Needs Java, but no Docker."""

from __future__ import annotations

import atexit
import base64
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from forebay.errors import ConfigurationError, FatalError
from forebay.testkit.servers.kafka_jars import VERSION, jars, java
from forebay.testkit.servers.processes import end_session

HOST = "127.0.0.1"
_GUARD = Path(__file__).parent.joinpath("servers", "lifeline.py")
_CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"
_START_TIMEOUT = 60.0
_STOP_TIMEOUT = 15.0
_POLL_SECONDS = 0.05
_MAX_STARTS = 3

# One small node: internal topics have one partition and one replica, and the cleaner runs at once.
_PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.coordinator.rebalance.protocols": "classic,consumer",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": "8388608",
    "log.initial.task.delay.ms": "200",
    "log.retention.check.interval.ms": "500",
    "file.delete.delay.ms": "100",
    # After a crash the broker registers only when its old session has ended.
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "500",
    "num.io.threads": "2",
    "num.network.threads": "2",
    "background.threads": "2",
}


class KafkaBroker:
    """Runs Apache Kafka (KRaft, one node) in a `with` block; each test process may have its own.

    The first use downloads 43 MB of jars into the user's cache, or into `FOREBAY_CACHE`. When this process ends or is
    killed, the broker ends and its data is deleted. `FOREBAY_KAFKA_OPTS` (an environment variable) adds options of the
    broker's JVM.

    Args:
        properties: Kafka's settings. They override the settings of this class.
        listeners: Names of additional listeners, each with its own port. The property `listener.security.protocol.map`
            sets their protocols.
        heap: Megabytes of Java heap.
        patience: Maximum seconds until the broker answers.
    """

    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        *,
        listeners: Sequence[str] = (),
        heap: int = 384,
        patience: float = _START_TIMEOUT,
    ) -> None:
        self._properties = dict(properties or {})
        self._listeners = tuple(listeners)
        self._heap = heap
        self._patience = patience
        self._home: Path | None = None
        self._ports: tuple[int, ...] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    @property
    def address(self) -> str:
        """`host:port`, for `bootstrap.servers`; the same after `stop` and `start`.

        Raises:
            FatalError: The broker was never started.
        """
        if self._ports is None:
            raise _not_started()
        return f"{HOST}:{self._ports[0]}"

    def address_of(self, listener: str) -> str:
        """Return `host:port` of one of the `listeners`; the same after `stop` and `start`.

        Raises:
            ConfigurationError: There is no listener of this name.
            FatalError: The broker was never started.
        """
        if listener not in self._listeners:
            raise ConfigurationError(
                f"the broker has no listener {listener!r}; it has: {', '.join(self._listeners) or 'none'}",
                advice="add it to `listeners` when you create the broker",
            )
        if self._ports is None:
            raise _not_started()
        return f"{HOST}:{self._ports[2 + self._listeners.index(listener)]}"

    @property
    def pid(self) -> int | None:
        """The id of the process that starts and watches the broker's JVM; None while the broker is down."""
        return None if self._process is None else self._process.pid

    @property
    def log(self) -> str:
        """The warnings and errors that the broker has logged so far."""
        if self._home is None:
            return ""
        with suppress(FileNotFoundError):
            return (self._home / "broker.log").read_text(encoding="utf-8", errors="replace")
        return ""

    def start(self) -> None:
        """Start the broker, and return when it answers. After `stop` or `kill`, data and ports stay the same.

        Raises:
            ConfigurationError: Java or PySpark is missing.
            RetriableError: The download failed.
            FatalError: The broker did not start. The text has the end of its log.
        """
        if self._process is not None:
            raise FatalError("the broker already runs", advice="call start() once, or use another KafkaBroker")
        library = jars()
        if self._home is None:
            self._home = Path(tempfile.mkdtemp(prefix="forebay-kafka-"))
            atexit.register(self.close)
        again, tries, deadline = self._ports is not None, 0, time.monotonic() + self._patience
        while True:
            self._ports = self._ports or _free_ports(2 + len(self._listeners))
            begin, tries = len(self.log), tries + 1
            try:
                self._launch(library)
                self._wait()
            except BaseException as error:
                self._end()
                # Another process took a port before the broker listened on it.
                taken = isinstance(error, FatalError) and "BindException" in self.log[begin:]
                if taken and (time.monotonic() < deadline if again else tries < _MAX_STARTS):
                    self._ports = self._ports if again else None
                    continue
                self.close()
                raise
            return

    def stop(self) -> None:
        """Shut the broker down cleanly. Data and ports stay. No effect if the broker is down."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_TIMEOUT)
        self._end()

    def kill(self) -> None:
        """Kill the broker with SIGKILL, like a crash. Data and ports stay. No effect if the broker is down."""
        self._end()

    def close(self) -> None:
        """Kill the broker and remove its data. Idempotent."""
        self._end()
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = self._ports = None
        atexit.unregister(self.close)

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic and wait until every partition has a leader.

        Args:
            name: The name of the topic.
            partitions: Number of partitions.
            config: Kafka's topic settings, for example ``{"cleanup.policy": "compact"}``.
        """
        topics = {name: {"num_partitions": partitions, "replication_factor": 1, "configs": dict(config or {})}}
        with self.admin() as admin:
            admin.create_topics(topics, wait_for_metadata=True)

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        with self.admin() as admin:
            admin.delete_topics([name])

    def add_partitions(self, name: str, total: int) -> None:
        """Raise the number of a topic's partitions to `total`."""
        with self.admin() as admin:
            admin.create_partitions({name: total})
            admin.wait_for_topics([name])

    @contextmanager
    def admin(self) -> Iterator[Any]:
        """Yield kafka-python's `KafkaAdminClient`."""
        from kafka import KafkaAdminClient

        client = KafkaAdminClient(bootstrap_servers=self.address)
        try:
            yield client
        finally:
            client.close()

    @contextmanager
    def appending(self) -> Iterator[Callable[[str, Mapping[int, bytes]], None]]:
        """Yield a function that writes encoded Kafka record batches to a topic, and waits for acknowledgements.

        Its arguments are the topic, and one Kafka record batch for each partition number. Use it to write many records
        fast, or batches that no producer writes. The broker sets the offsets.
        """
        from kafka.errors import for_code
        from kafka.protocol.producer import ProduceRequest

        topics = ProduceRequest.TopicProduceData
        with self.admin() as admin:
            manager = admin._manager  # noqa: SLF001 - kafka-python's producer takes records only
            node = next(iter(manager.cluster.brokers())).node_id

            def append(name: str, batches: Mapping[int, bytes]) -> None:
                left, deadline = dict(batches), time.monotonic() + self._patience
                while left:
                    data = [topics.PartitionProduceData(index=at, records=batch) for at, batch in left.items()]
                    request = ProduceRequest(
                        acks=-1, timeout_ms=30_000, topic_data=[topics(name=name, partition_data=data)], max_version=9
                    )
                    answer = manager.run(manager.send, request, node)
                    for partition in (part for topic in answer.responses for part in topic.partition_responses):
                        error = for_code(partition.error_code)
                        if not partition.error_code:
                            del left[partition.index]
                        elif not getattr(error, "retriable", False) or time.monotonic() > deadline:
                            raise error(partition.error_message or "")
                    if left:
                        time.sleep(_POLL_SECONDS)  # the leader of a new topic may not know the topic yet

            yield append

    def _launch(self, library: Path) -> None:
        assert self._home is not None  # noqa: S101 - set by start
        (self._home / "server.properties").write_text(self._text(), encoding="utf-8")
        options = [java(), f"-Xmx{self._heap}m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]
        options += shlex.split(os.environ.get("FOREBAY_KAFKA_OPTS", ""))
        options += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{library}/*"]
        settings = str(self._home / "server.properties")
        with (self._home / "broker.log").open("ab") as out:
            data, properties = self._home / "data", self._properties
            node = properties.get("node.id", _PROPERTIES["node.id"])
            if not data.exists() and not copy_format(library, data, properties, _CLUSTER, node):
                tool = [*options, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", settings]
                subprocess.run(tool, stdout=out, stderr=out, check=False, timeout=self._patience)  # noqa: S603 - our own command
                keep_format(library, data, properties)
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-I", str(_GUARD), str(self._home), *options, "kafka.Kafka", settings],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                start_new_session=True,
                cwd=self._home,
            )

    def _text(self) -> str:
        assert self._ports is not None  # noqa: S101 - set by start
        broker, controller, *more = self._ports
        own = [f"PLAINTEXT://{HOST}:{broker}"]
        own += [f"{name}://{HOST}:{port}" for name, port in zip(self._listeners, more, strict=True)]
        settings = {
            **_PROPERTIES,
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "listeners": ",".join([*own, f"CONTROLLER://{HOST}:{controller}"]),
            "advertised.listeners": ",".join(own),
            "log.dirs": f"{self._home}/data",
            **self._properties,
        }
        return "".join(f"{key}={value}\n" for key, value in settings.items())

    def _wait(self) -> None:
        """Wait until the broker listens on all ports and answers an admin client."""
        from kafka.errors import KafkaError

        deadline = time.monotonic() + self._patience
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                raise FatalError(
                    f"Apache Kafka {VERSION} did not start; the end of its log:\n{self._tail()}",
                    advice="read this log; the properties given to KafkaBroker may be wrong",
                )
            # Listeners open one after the other; the controller's port needs no check.
            if self._ports and all(_listens(port) for port in (self._ports[0], *self._ports[2:])):
                with suppress(KafkaError), self.admin():
                    return
            time.sleep(_POLL_SECONDS)
        raise FatalError(
            f"Apache Kafka {VERSION} did not answer on {self.address} within {self._patience:.0f} s; "
            f"the end of its log:\n{self._tail()}",
            advice="read this log; on a slow machine, give a greater patience",
        )

    def _tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.splitlines()[-lines:])

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        end_session(process.pid)
        if process.stdin is not None:
            process.stdin.close()
        process.wait()


def _not_started() -> FatalError:
    return FatalError(
        "the broker has no address before it starts", advice="use KafkaBroker in a `with` block, or call start() first"
    )


def _free_ports(count: int) -> tuple[int, ...]:
    """Return different free ports. All are bound at the same time, so that no port is returned twice."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in held:
            listener.bind((HOST, 0))
        return tuple(int(listener.getsockname()[1]) for listener in held)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


# -- Formats a Kafka broker's data directory as an earlier one was, without the JVM of Kafka's tool (0.6 s).


_FEATURES = "bootstrap.checkpoint"
"""The file that says which features a formatted cluster has. It is the same for all brokers of one Kafka version."""
_OWN_FEATURES = frozenset(
    {"log.dirs", "log.dir", "metadata.log.dir", "process.roles", "unstable.feature.versions.enable"}
)
"""Properties with which Kafka's tool would write other files."""


def copy_format(library: Path, data: Path, properties: Mapping[str, str], cluster: str, node: str) -> bool:
    """Format a directory with the features that an earlier broker kept; return False if Kafka's tool must format it.

    Args:
        library: The directory of Kafka's jars, where the features are kept.
        data: The data directory, which does not exist.
        properties: The properties that the user of the broker set.
        cluster: The id of the cluster.
        node: The id of the node.
    """
    features = library / _FEATURES
    if _OWN_FEATURES & properties.keys() or not features.exists():
        return False
    data.mkdir()
    shutil.copyfile(features, data / _FEATURES)
    directory = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    text = f"version=1\ncluster.id={cluster}\nnode.id={node}\ndirectory.id={directory}\n"
    (data / "meta.properties").write_text(text, encoding="utf-8")
    return True


def keep_format(library: Path, data: Path, properties: Mapping[str, str]) -> None:
    """Keep the features that Kafka's tool wrote, for later brokers. No effect where `library` is read-only."""
    made = data / _FEATURES
    if made.exists() and not _OWN_FEATURES & properties.keys():
        with suppress(OSError):
            partial = library / f"{_FEATURES}.{os.getpid()}"
            shutil.copyfile(made, partial)
            partial.replace(library / _FEATURES)
