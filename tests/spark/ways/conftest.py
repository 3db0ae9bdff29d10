# SPDX-License-Identifier: Apache-2.0
"""Servers of Spark Connect, each in a process of its own, for the tests of Connect and of declarative pipelines."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from forebay.errors import RetriableError
from forebay.testkit.kafka_broker import Module, fetched
from forebay.testkit.processes import end_session

_STARTED = re.compile(r"Spark Connect server started at: \S*:(\d+)")
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@contextmanager
def connect_server(directory: Path, settings: Mapping[str, str], **environment: str) -> Iterator[str]:
    """Start a server with two cores; gives its address, `sc://127.0.0.1:port`."""
    import pyspark

    home = environment.get("SPARK_HOME") or os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    own = {
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.port": "0",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "INFO",  # the line with the port
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
    }
    command = [f"{home}/bin/spark-submit", "--master", "local[2]", "--class", _SERVER]
    for name, value in {**own, **settings}.items():
        command += ["--conf", f"{name}={value}"]
    log = directory / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "spark-internal"],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "SPARK_HOME": home, **environment},
            cwd=directory,
            start_new_session=True,
        )
    try:
        yield f"sc://127.0.0.1:{_port(process, log)}"
    finally:
        end_session(process.pid)
        process.wait()


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    end = time.monotonic() + 120
    while True:
        text = log.read_text(errors="replace")
        if found := _STARTED.search(text):
            return int(found[1])
        assert process.poll() is None, text[-3000:]
        assert time.monotonic() < end, text[-3000:]
        time.sleep(0.1)


Start = Callable[..., AbstractContextManager[str]]


@pytest.fixture(scope="session")
def start_server(tmp_path_factory) -> Start:
    """Starts a server in a new directory."""
    pytest.importorskip("grpc")
    return lambda settings=None, **environment: connect_server(
        tmp_path_factory.mktemp("connect"), settings or {}, **environment
    )


@pytest.fixture(scope="session")
def merging_jar() -> Path | None:
    """A jar of Spark's own tests, with a catalog in memory whose tables support MERGE; None if it is not published."""
    import pyspark

    version = pyspark.__version__
    tests = Module("org.apache.spark", "spark-catalyst_2.13", version, alone=True, classifier="tests")
    try:
        return next(fetched(f"spark-catalyst-tests-{version}", [tests]).iterdir())
    except RetriableError:
        return None


@pytest.fixture(scope="session")
def server(start_server: Start, merging_jar: Path | None) -> Iterator[str]:
    """A server whose catalog `lake` has tables with MERGE, if there is the jar for it."""
    settings = {"spark.default.parallelism": "3"}
    if merging_jar is not None:
        settings["spark.driver.extraClassPath"] = str(merging_jar)
        settings["spark.sql.catalog.lake"] = (
            "org.apache.spark.sql.connector.catalog.SharedTablesInMemoryRowLevelOperationTableCatalog"
        )
    with start_server(settings) as address:
        yield address
