# SPDX-License-Identifier: Apache-2.0
"""The jars of Apache Kafka, fetched once by the Ivy that ships inside PySpark, and the Java that runs them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

from forebay.errors import ConfigurationError, RetriableError

VERSION = "4.1.0"

# Kafka logs through slf4j and brings no logger: without one a broker that does not start says nothing.
_IVY = """\
<ivy-module version="2.0"><info organisation="forebay" module="testkit"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_2.13" rev="{version}" conf="default->default"/>
    <dependency org="org.slf4j" name="slf4j-simple" rev="1.7.36" conf="default->default"/>
  </dependencies>
</ivy-module>
"""
_PATIENCE = 600.0


def cache() -> Path:
    """Return where things are kept between runs: `FOREBAY_CACHE`, or `forebay` in the user's cache directory."""
    own = os.environ.get("FOREBAY_CACHE")
    if own:
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "forebay"


def java() -> str:
    """Return the Java to run.

    Raises:
        ConfigurationError: There is none.
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if not found or not Path(found).exists():
        raise ConfigurationError(
            f"a broker needs Java 17 or newer, and there is none ({found or 'no java on the PATH'})",
            advice="install a JDK (Debian, Ubuntu: apt install openjdk-17-jre-headless), or set JAVA_HOME to one",
        )
    return found


def jars(version: str = VERSION) -> Path:
    """Return the directory of Kafka's jars; the first call downloads them (43 MB), later ones find them.

    Safe to call from several processes at once: the directory appears whole or not at all.

    Raises:
        ConfigurationError: No Java, or no PySpark, in which Ivy is.
        RetriableError: The download failed.
    """
    place = cache() / f"kafka-{version}"
    if place.is_dir():
        return place
    spec = find_spec("pyspark")
    ivy = sorted(Path(str(spec.origin)).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not ivy:
        raise ConfigurationError(
            "the jars of Apache Kafka are fetched by the Ivy inside PySpark, and there is no PySpark here",
            advice="pip install 'forebay[spark]'",
        )
    cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache(), prefix="fetching-") as work:
        _retrieve(ivy[-1], Path(work), version)
        try:
            (Path(work) / "lib").rename(place)
        except OSError:
            if not place.is_dir():  # else another process was quicker
                raise
    return place


def _retrieve(ivy: Path, work: Path, version: str) -> None:
    (work / "ivy.xml").write_text(_IVY.format(version=version), encoding="utf-8")
    pattern = f"{work}/lib/[artifact]-[revision].[ext]"
    command = [java(), "-jar", str(ivy), "-cache", str(cache() / "ivy"), "-ivy", str(work / "ivy.xml")]
    command += ["-confs", "default", "-retrieve", pattern, "-types", "jar", "bundle"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False, cwd=work)  # noqa: S603 - our own command
    except subprocess.TimeoutExpired as error:
        raise RetriableError(f"Ivy did not fetch Apache Kafka {version} within {_PATIENCE:.0f} s") from error
    if done.returncode or not list((work / "lib").glob(f"kafka_2.13-{version}.jar")):
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise RetriableError(
            f"Ivy could not fetch Apache Kafka {version}:\n{tail}", advice="is Maven Central within reach?"
        )
