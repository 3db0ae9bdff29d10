# SPDX-License-Identifier: Apache-2.0
"""Makes the examples importable by name, and starts the servers that some of them read."""

from __future__ import annotations

import platform
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from postgres_server import postgres_server

from forebay.testkit.kafka_broker import Module, fetched

EXAMPLES = Path(__file__).parents[2] / "examples"

# Last, so that nothing there can stand in for an installed module.
sys.path += [str(EXAMPLES), *map(str, sorted((EXAMPLES / "connectors").iterdir()))]


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Run a PostgreSQL server, and yield its DSN."""
    with postgres_server() as dsn:
        yield dsn


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """Two cores; a failed task is tried once more, as on a cluster."""
    sql = pytest.importorskip("pyspark.sql")
    if (earlier := sql.SparkSession.getActiveSession()) is not None:
        earlier.stop()  # of other tests: its master cannot be changed any more
    address = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
    session = sql.SparkSession.builder.master("local[2,2]").config(map=address).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def redis() -> Iterator[str]:
    """Run the Redis server that is in a jar of Maven Central, and yield its URL."""
    module = Module("com.github.codemonstur", "embedded-redis", "1.4.3", alone=True)
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    with tempfile.TemporaryDirectory(prefix="redis-") as directory:
        with zipfile.ZipFile(fetched("redis-1.4.3", [module]) / module.file) as jar:
            (name,) = (one for one in jar.namelist() if one.endswith(f"-{sys.platform}-{machine}"))
            program = Path(jar.extract(name, directory))
        program.chmod(0o755)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory]
        log = Path(directory, "log")
        with log.open("wb") as output, subprocess.Popen([program, *options], stdout=output) as server:
            try:
                deadline = time.monotonic() + 30
                while b"Ready to accept connections" not in log.read_bytes():
                    assert server.poll() is None and time.monotonic() < deadline, log.read_text()
                    time.sleep(0.02)
                yield f"redis://127.0.0.1:{port}"
            finally:
                server.terminate()
