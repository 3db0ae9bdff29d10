# SPDX-License-Identifier: Apache-2.0
"""Downloads jars from Maven Central once, with the Ivy inside PySpark, and finds the Java that runs them."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from forebay.errors import ConfigurationError, RetriableError

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


_SPARK_SOURCE = (
    Module("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0", alone=True),
    # Maven Central does not have the version for Spark 4.2; the one for 4.0 works too.
    Module("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0", alone=True),
    Module("org.apache.kafka", "kafka-clients", "3.9.1", alone=True),
    Module("org.apache.commons", "commons-pool2", "2.12.1", alone=True),
)


def spark_source_jars() -> str:
    """Return the jars of Spark's own Kafka source as a value of `spark.jars`, for Spark 4.2. See `fetched`."""
    return ",".join(str(jar) for jar in sorted(fetched("spark-kafka-4.2.0", _SPARK_SOURCE).iterdir()))


def jars(version: str = VERSION) -> Path:
    """Return the directory of Kafka's jars; the first call downloads them (43 MB). See `fetched`."""
    # Kafka logs through slf4j, but brings no logger. Without a logger, a failed start leaves no message.
    modules = [Module("org.apache.kafka", "kafka_2.13", version), Module("org.slf4j", "slf4j-simple", "1.7.36")]
    return fetched(f"kafka-{version}", modules)


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
