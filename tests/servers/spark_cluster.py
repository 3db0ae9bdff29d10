# SPDX-License-Identifier: Apache-2.0
"""A standalone Spark cluster on this machine, from the jars of the installed PySpark.

Unlike a local master, the cluster has speculative execution, and executors that can be killed without the driver.
Speculation needs two hosts, so each Worker has its own loopback address (Linux answers on all of 127.0.0.0/8).
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from forebay.errors import ConfigurationError, FatalError
from forebay.testkit.processes import end_session

_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.master.rest.enabled=false"
_POLL = 0.02


class SparkCluster:
    """A standalone Master and some Workers in a `with` block: `with SparkCluster() as cluster: … cluster.url …`.

    The cluster runs the Spark of SPARK_HOME if that is set, else the Spark of the installed PySpark.

    A process can have only one SparkContext, so a test uses the cluster from a separate program.

    Args:
        hosts: The loopback address of each Worker.
        cores: Number of cores of each Worker.
        memory: Memory of each Worker, in Spark's notation; at least the application's `spark.executor.memory`.
        environment: Additional environment variables of all processes, such as PYSPARK_PYTHON.
        patience: Maximum seconds to wait until the cluster has started.

    Attributes:
        url: The URL for `SparkSession.builder.master`.
        started_in: Seconds that the start took.
    """

    def __init__(
        self,
        hosts: Sequence[str] = ("127.0.0.2", "127.0.0.3"),
        *,
        cores: int = 1,
        memory: str = "600m",
        environment: Mapping[str, str] | None = None,
        patience: float = 90.0,
    ) -> None:
        self.url = ""
        self.started_in = 0.0
        self._hosts = tuple(hosts)
        self._cores = cores
        self._memory = memory
        self._environment = dict(environment or {})
        self._patience = patience
        self._processes: list[tuple[Path, subprocess.Popen[bytes]]] = []  # each with its log
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        """Start Master and Workers, and wait until the Workers are registered.

        Raises:
            ConfigurationError: PySpark is not installed.
            FatalError: A process did not start in time. The text has the end of its log.
        """
        began = time.monotonic()
        self._directory = tempfile.TemporaryDirectory(prefix="forebay-cluster-", ignore_cleanup_errors=True)
        try:
            log = self._start("127.0.0.1", _MASTER)
            self.url = self._wait_for(log, r"Starting Spark master at (spark://\S+)", began)
            self._wait_for(log, r"(I have been elected leader)", began)
            for host in self._hosts:
                work = f"{self._directory.name}/work-{host}"
                sizes = ["--cores", str(self._cores), "--memory", self._memory, "--work-dir", work]
                self._start(host, _WORKER, *sizes, self.url)
            for host in self._hosts:
                self._wait_for(self._log(host), r"(Successfully registered with master)", began)
        except BaseException:  # also an interrupt: clean up, and raise it again
            self._stop()
            raise
        self.started_in = time.monotonic() - began
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill all processes, also executors and their Python workers, and wait until they have ended."""
        self._stop()

    def _start(self, host: str, role: str, *arguments: str) -> Path:
        home = _spark_home()
        log = self._log(host)
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": host,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": _OPTIONS,
            **self._environment,
        }
        command = [str(home / "bin" / "spark-class"), role]
        command += ["--host", host, "--port", "0", "--webui-port", "0", *arguments]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._processes.append((log, process))
        return log

    def _log(self, host: str) -> Path:
        assert self._directory is not None
        return Path(self._directory.name) / f"{host}.log"

    def _wait_for(self, log: Path, pattern: str, began: float) -> str:
        while True:
            text = log.read_text(errors="replace")
            if match := re.search(pattern, text):
                return match[1]
            ended = next(((name, process) for name, process in self._processes if process.poll() is not None), None)
            if ended or time.monotonic() - began > self._patience:
                what = f"not ready after {self._patience:g} s"
                if ended:
                    log, process = ended
                    what, text = f"a process ended with code {process.returncode}", log.read_text(errors="replace")
                raise FatalError(f"the Spark cluster did not start: {what}:\n{text[-3000:]}", advice="read this log")
            time.sleep(_POLL)

    def _stop(self) -> None:
        for _, process in reversed(self._processes):
            end_session(process.pid)
            process.wait()
        self._processes.clear()
        if self._directory is not None:
            self._directory.cleanup()


def _spark_home() -> Path:
    try:
        import pyspark
    except ImportError as error:
        raise ConfigurationError(
            "SparkCluster needs PySpark, which is not installed", advice='pip install "forebay[spark]"'
        ) from error
    return Path(os.environ.get("SPARK_HOME") or Path(str(pyspark.__file__)).parent)
