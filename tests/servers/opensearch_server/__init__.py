# SPDX-License-Identifier: Apache-2.0
"""A real OpenSearch on loopback, for tests and benchmarks: jars of Maven Central, started by a program of Java."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from flink_jars import javac

from forebay.errors import ConfigurationError, FatalError
from forebay.testkit.kafka_broker import Module, fetched, java

VERSION: Final = "2.19.6"
_GROUP: Final = "org.opensearch"
_MODULES: Final = (
    Module(_GROUP, "opensearch", VERSION),
    Module(f"{_GROUP}.plugin", "transport-netty4-client", VERSION),
    Module(f"{_GROUP}.plugin", "analysis-common", VERSION),
    Module("org.apache.logging.log4j", "log4j-core", "2.25.4"),  # without it, no node starts
)
_SOURCE: Final = Path(__file__).with_name("SearchServer.java")


class OpenSearchServer:
    """A server of one node, in a `with` block; its port and data survive `kill` and `start`.

    The first time its jars are fetched (45 MB). It ends with this process, which holds its standard input.

    Args:
        directory: A directory for its classes, data and log.
        flags: Flags of the JVM; without any, those with which it starts fast.
    """

    def __init__(self, directory: Path, *flags: str) -> None:
        self._directory = directory
        self._flags = flags or ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        self._server: subprocess.Popen[bytes] | None = None
        self.port = 0

    def __enter__(self) -> Self:
        compiler = javac()
        if compiler is None:
            raise ConfigurationError("install a JDK: OpenSearch is started by a program of Java")
        self._jars = fetched(f"opensearch-{VERSION}", _MODULES)
        self._classes = self._directory / "classes"
        for each in ("classes", "home/config", "home/modules", "home/plugins"):
            (self._directory / each).mkdir(parents=True)
        compiled = [compiler, "-nowarn", "-proc:none", "-d", str(self._classes), "-cp", f"{self._jars}/*", str(_SOURCE)]
        subprocess.run(compiled, check=True)
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def process(self) -> int:
        """The id of the process."""
        assert self._server is not None
        return self._server.pid

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        classes = f"{self._classes}:{self._jars}/*"
        command = [java(), *self._flags, "-cp", classes, _SOURCE.stem, str(self._directory / "home")]
        with (self._directory / "log").open("ab") as log:
            server = subprocess.Popen(
                [*command, str(self.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        self._server = server
        assert server.stdout is not None
        line = b"\n"
        while line and not line.strip().isdigit():
            line = server.stdout.readline()
        if not line:
            self.kill()
            raise FatalError((self._directory / "log").read_text()[-4000:])
        self.port = int(line)

    def kill(self) -> None:
        """Kill the server at once."""
        if self._server is None:
            return
        self._server.kill()
        self._server.wait()
        for stream in (self._server.stdin, self._server.stdout):
            assert stream is not None
            stream.close()
        self._server = None

    def wipe(self) -> None:
        """Remove the data of a server that was killed: its disk is lost."""
        shutil.rmtree(self._directory / "home" / "data")
