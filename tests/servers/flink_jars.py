# SPDX-License-Identifier: Apache-2.0
"""Compiles and runs Java programs that use Flink's own classes, which come from Maven Central."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from forebay.errors import ConfigurationError, FatalError
from forebay.testkit.kafka_broker import Module, fetched, java

VERSION = "2.3.0"
KAFKA_VERSION = "5.0.0-2.2"
"""The newest version of Flink's Kafka connector for Flink 2.x."""

_GROUP = "org.apache.flink"
_RUNTIME = ("flink-table-runtime", "flink-table-api-java", "flink-streaming-java", "flink-statebackend-rocksdb")
# The test jar of flink-runtime has the test harnesses of operators, which need classes of the other test jars.
_TESTS = ("flink-core", "flink-runtime", "flink-table-runtime")


def javac() -> str | None:
    """Return the path of the Java compiler, preferably the one beside `java()`; None if only a runtime is installed."""
    beside = Path(java()).resolve().parent / "javac"
    return str(beside) if beside.exists() else shutil.which("javac")


def flink_jars() -> list[Path]:
    """Return the jars of Flink's table operators, test harnesses, local cluster and RocksDB (200 MB). See `fetched`."""
    modules = {
        f"flink-{VERSION}": [Module(_GROUP, name, VERSION) for name in (*_RUNTIME, "flink-clients")],
        # Ivy takes one jar of a module, so that the tests of the same modules are fetched apart.
        f"flink-{VERSION}-tests": [
            *(Module(_GROUP, name, VERSION, alone=True, classifier="tests") for name in _TESTS),
            Module(_GROUP, "flink-test-utils-junit", VERSION, alone=True),
        ],
    }
    return sorted(jar for place, some in modules.items() for jar in fetched(place, some).glob("*.jar"))


def kafka_connector_jars() -> list[Path]:
    """Return the jars of Flink's Kafka connector, for a program that also has `flink_jars`."""
    modules = [Module(_GROUP, "flink-connector-kafka", KAFKA_VERSION), Module(_GROUP, "flink-connector-base", VERSION)]
    return sorted(fetched(f"flink-connector-kafka-{KAFKA_VERSION}", modules).glob("*.jar"))


class FlinkProgram:
    """A compiled Java program of one file.

    Args:
        source: The source file, named after its public class, which is in no package.
        classes: The directory for the compiled classes.
        jars: More jars for the class path, besides `flink_jars`.

    Raises:
        ConfigurationError: There is no JDK.
        RetriableError: Maven Central cannot be reached.
        FatalError: The program does not compile.
    """

    def __init__(self, source: Path, classes: Path, jars: Iterable[Path] = ()) -> None:
        compiler = javac()
        if compiler is None:
            raise ConfigurationError(
                "a program that uses Flink's classes must be compiled, but there is no javac",
                advice="install a JDK (Debian, Ubuntu: apt install openjdk-17-jdk-headless), or set JAVA_HOME to one",
            )
        self._main = source.stem
        self._classpath = ":".join(map(str, [classes, *flink_jars(), *jars]))
        _run([compiler, "-proc:none", "-nowarn", "-d", classes, "-cp", self._classpath, source])

    def run(self, *arguments: object, options: Iterable[str] = ()) -> str:
        """Run the program in a JVM of its own and return what it printed.

        Args:
            arguments: The arguments of `main`.
            options: Options of the JVM.

        Raises:
            FatalError: The program failed.
        """
        return _run(self.command(*arguments, options=options))

    def command(self, *arguments: object, options: Iterable[str] = ()) -> list[str]:
        """Return the command that `run` runs, for a caller that communicates with the running program."""
        return [*map(str, [java(), *options, "-cp", self._classpath, self._main, *arguments])]


def _run(command: Iterable[object]) -> str:
    parts = [str(part) for part in command]
    done = subprocess.run(parts, capture_output=True, text=True, check=False)
    if done.returncode:
        text = f"{parts[0]} ended with code {done.returncode}:\n{done.stderr[-4000:]}"
        raise FatalError(text, advice="read these last lines of its error output")
    return done.stdout
