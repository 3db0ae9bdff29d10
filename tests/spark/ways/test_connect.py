# SPDX-License-Identifier: Apache-2.0
"""Spark Connect: a client in one process, the server with its workers in others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest

from forebay.errors import ConfigurationError
from forebay.spark import session as workers
from forebay.spark.register import capture
from forebay.version import __version__

PROGRAM = Path(__file__).parent / "connect_program.py"


def run(server: str, place: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", str(PROGRAM), server, str(place)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def seen(server: str, tmp_path_factory) -> dict[str, Any]:
    """What a client saw."""
    done = run(server, tmp_path_factory.mktemp("client"))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.soak
def test_a_client_registers_installed_sources_and_classes_of_its_own(seen):
    assert seen["registered"] == ["forebay_files", "forebay_hybrid", "forebay_kafka", "forebay_rate", "numbers"]
    assert seen["files"] == [1, 2]
    assert seen["class"] == [0, 0, 1, 1]
    assert seen["object"] == [0, 0]


@pytest.mark.soak
def test_the_default_parallelism_of_the_server_is_used(seen):
    assert seen["parallelism"] == 3


@pytest.mark.soak
def test_errors_arrive_typed(seen):
    failed = seen["failed"]
    assert (failed["type"], failed["source"], failed["position"]) == ("FatalError", "numbers", "2")
    assert "no number 2" in failed["message"]
    assert "connect_program.py" in failed["cause"]
    assert (seen["no option"]["type"], seen["no option"]["option"]) == ("ConfigurationError", "cuont")
    assert (seen["no path"]["type"], seen["no path"]["option"]) == ("ConfigurationError", "path")
    assert "did you mean 'numbers'" in seen["no format"]["message"]


@pytest.mark.soak
def test_a_stream_is_followed_recorded_and_its_error_typed(seen):
    assert seen["rows"] == 100
    assert "counted, micro-batch 0, ended; numbers 100 %  caught up" in seen["progress"]
    assert seen["recorded"] == [True]
    assert "numbers: 2 splits read to the end" in seen["offsets"]
    assert seen["failed in progress"]["raised"] == "StreamingQueryException"
    assert seen["failed in progress"]["type"] == seen["exception()"] == "FatalError"


@pytest.mark.soak
def test_a_server_without_forebay_is_refused_by_register(start_server, tmp_path):
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    # Spark's own directory: its workers find PySpark in the zip there.
    home = str(Path(pyspark.__file__).parent)
    with start_server(PYSPARK_PYTHON=str(bare), SPARK_HOME=home) as address:
        done = run(address, tmp_path)
    assert "ConfigurationError: the server of Spark Connect cannot run forebay" in done.stderr, done.stderr[-3000:]
    assert "No module named 'pyarrow'" in done.stderr or "No module named 'forebay'" in done.stderr
    assert "next step: install this version of forebay" in done.stderr


class ConnectSession:
    """A session of Connect that answers the probe."""

    def __init__(self, answer: list[str | None] | Exception, **settings: str) -> None:
        self.session_id = "one"
        self.jobs = 0
        self.conf = SimpleNamespace(get=lambda name, default: settings.get(name.replace(".", "_"), default), getAll={})
        self._answer = answer

    def range(self, _: int) -> ConnectSession:
        return self

    def select(self, _: object) -> ConnectSession:
        return self

    def collect(self) -> list[list[list[str | None]]]:
        self.jobs += 1
        if isinstance(self._answer, Exception):
            raise self._answer
        return [[self._answer]]


@pytest.fixture
def _nothing_was_checked(monkeypatch):
    pytest.importorskip("grpc")
    monkeypatch.setattr(workers, "_checked", set())


@pytest.mark.usefixtures("_nothing_was_checked")
def test_a_session_is_checked_once():
    session = ConnectSession(["/server/python", __version__, ""])
    workers.check_workers(session)
    workers.check_workers(session)
    assert session.jobs == 1


@pytest.mark.usefixtures("_nothing_was_checked")
@pytest.mark.parametrize(
    "answer",
    [
        ["/server/python", None, "No module named 'forebay'"],
        RuntimeError("x\nModuleNotFoundError: No module named 'forebay'"),
    ],
)
def test_a_server_without_forebay_is_an_error_that_says_what_to_install(answer):
    with pytest.raises(ConfigurationError, match="No module named 'forebay'") as caught:
        workers.check_workers(ConnectSession(answer))
    assert "install this version of forebay" in str(caught.value.advice)


@pytest.mark.usefixtures("_nothing_was_checked")
def test_another_version_on_the_server_is_a_warning():
    with pytest.warns(UserWarning, match=r"/server/python with forebay 0\.0\.1"):
        workers.check_workers(ConnectSession(["/server/python", "0.0.1", ""]))


@pytest.mark.usefixtures("_nothing_was_checked")
def test_a_check_inside_a_query_function_of_a_pipeline_names_the_way_round():
    with pytest.raises(ConfigurationError, match="inside a query function") as caught:
        workers.check_workers(ConnectSession(RuntimeError(f"[{workers.IN_QUERY_FUNCTION}] Operations that …")))
    assert "at the top of the file" in str(caught.value.advice)


def test_a_server_tells_its_parallelism_only_if_it_is_set():
    assert capture(ConnectSession([])).parallelism is None
    assert capture(ConnectSession([], spark_default_parallelism="7")).parallelism == 7
