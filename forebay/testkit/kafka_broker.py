# SPDX-License-Identifier: Apache-2.0
"""Runs a real Apache Kafka for tests: one node on loopback. Needs Java, but no Docker.

Its jars come from Maven Central once, by the Ivy inside PySpark.
"""

from __future__ import annotations

import atexit
import base64
import fcntl
import os
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from forebay.errors import ConfigurationError, FatalError, RetriableError
from forebay.testkit.processes import end_session, tied

# -- Jars of Maven Central, and the Java that runs them.


VERSION = "4.1.0"

_IVY = """\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven"><info organisation="forebay" module="testkit"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""
_DEPENDENCY = (
    '<dependency org="{0.group}" name="{0.name}" rev="{0.version}" transitive="{1}" conf="{2}">{3}</dependency>'
)
_ARTIFACT = '<artifact name="{0.name}" type="jar" ext="jar" m:classifier="{0.classifier}"/>'
_TIMEOUT = 600.0


def cache() -> Path:
    """Return the directory of downloads: `FOREBAY_CACHE`, or `forebay` in the user's cache directory."""
    own = os.environ.get("FOREBAY_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "forebay"


def java() -> str:
    """Return the path of the `java` program.

    Raises:
        ConfigurationError: Java is not installed, or JAVA_HOME is wrong.
    """
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if not program or not Path(program).exists():
        raise ConfigurationError(
            "the test kit needs Java 17 or newer, but "
            + (f"JAVA_HOME leads to no {program}" if home else "there is no java on the PATH"),
            advice="install a JDK (Debian, Ubuntu: apt install openjdk-17-jre-headless), or correct JAVA_HOME",
        )
    return program


class Module(NamedTuple):
    """A module of Maven Central.

    Args:
        group: The group id, such as `org.apache.kafka`.
        name: The artifact id.
        version: The version.
        alone: Do not download the dependencies of the module.
        classifier: The classifier of the jar, such as `tests`; empty for the main jar.
    """

    group: str
    name: str
    version: str
    alone: bool = False
    classifier: str = ""

    @property
    def file(self) -> str:
        """The file name of the jar."""
        return "-".join(filter(None, (self.name, self.version, self.classifier))) + ".jar"

    @property
    def dependency(self) -> str:
        """The module as an element of an `ivy.xml`."""
        artifact, configuration = (
            (_ARTIFACT.format(self), "default->*") if self.classifier else ("", "default->default")
        )
        return _DEPENDENCY.format(self, "false" if self.alone else "true", configuration, artifact)


def jars() -> Path:
    """Return the directory of Kafka's jars; the first call downloads them (43 MB). See `fetched`."""
    # Kafka logs through slf4j, but brings no logger. Without a logger, a failed start leaves no message.
    modules = [Module("org.apache.kafka", "kafka_2.13", VERSION), Module("org.slf4j", "slf4j-simple", "1.7.36")]
    return fetched(f"kafka-{VERSION}", modules)


def fetched(place: str, modules: Sequence[Module]) -> Path:
    """Return a directory of jars in the cache; the first call downloads them.

    Several processes may call this at once: one downloads, and the others wait.

    Args:
        place: The name of the directory; different modules need different names.
        modules: The modules to download.

    Raises:
        ConfigurationError: Java or PySpark is missing.
        RetriableError: The download failed.
    """
    directory = cache() / place
    if directory.is_dir():
        return directory
    spec = find_spec("pyspark")
    ivy = sorted(Path(str(spec.origin)).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not ivy:
        raise ConfigurationError(
            f"the Ivy inside PySpark downloads the jars of {modules[0].name}, but PySpark is not installed",
            advice="pip install 'forebay[spark]'",
        )
    cache().mkdir(parents=True, exist_ok=True)
    with _one_download(), tempfile.TemporaryDirectory(dir=cache(), prefix="fetching-") as work:
        if not directory.is_dir():
            _retrieve(ivy[-1], Path(work), modules)
            (Path(work) / "lib").rename(directory)
    return directory


@contextmanager
def _one_download() -> Iterator[None]:
    """Wait for the downloads of other processes: Ivy fails if another one writes the same cache."""
    with (cache() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _retrieve(ivy: Path, work: Path, modules: Sequence[Module]) -> None:
    lines = (module.dependency for module in modules)
    (work / "ivy.xml").write_text(_IVY.format(dependencies="\n".join(lines)), encoding="utf-8")
    pattern = f"{work}/lib/[artifact]-[revision](-[classifier]).[ext]"
    command = [java(), "-jar", str(ivy), "-cache", str(cache() / "ivy"), "-ivy", str(work / "ivy.xml")]
    command += ["-confs", "default", "-retrieve", pattern, "-types", "jar", "bundle"]
    names = ", ".join(f"{module.name} {module.version}" for module in modules)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False, cwd=work)  # noqa: S603 - our own command
    except subprocess.TimeoutExpired as error:
        raise RetriableError(
            f"Ivy did not fetch {names} within {_TIMEOUT:.0f} s", advice="check that this machine reaches Maven Central"
        ) from error
    exist = [(work / "lib" / module.file).exists() for module in modules]
    if done.returncode or not all(exist):
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise RetriableError(
            f"Ivy could not fetch {names}:\n{tail}", advice="check that this machine reaches Maven Central"
        )


# -- The broker.


HOST = "127.0.0.1"
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
                tied(self._home, *options, "kafka.Kafka", settings),
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
