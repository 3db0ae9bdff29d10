# SPDX-License-Identifier: Apache-2.0
"""The plugin for pytest, in a run of its own, as an author has it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = 'pytest_plugins = ["forebay.testkit.pytest_plugin"]\n'
PROXY = """
import http.server
import threading
import urllib.error
import urllib.request

import pytest
from forebay.testkit import Fault


def test_proxy(fault_proxy):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        proxy = fault_proxy(f"http://127.0.0.1:{server.server_address[1]}", Fault("internal_error", nth=(1,)))
        with pytest.raises(urllib.error.HTTPError), urllib.request.urlopen(proxy.url):
            pass
        with urllib.request.urlopen(proxy.url) as answer:
            assert answer.status == 200
        server.shutdown()
"""
BROKER_AND_SPARK = """
import forebay


def test_broker_and_spark(kafka_broker, spark):
    kafka_broker.create_topic("orders", partitions=2)
    forebay.register(spark)
    options = {"kafka.bootstrap.servers": kafka_broker.address, "subscribe": "orders"}
    assert spark.read.format("forebay_kafka").options(**options).load().count() == 0
"""


# The fixtures `kafka_broker` and `spark` take a broker and a JVM of their own.
@pytest.mark.parametrize(
    "texts", [[PROXY], pytest.param([PROXY, BROKER_AND_SPARK], marks=pytest.mark.soak)], ids=["proxy", "all"]
)
def test_an_author_gets_the_fixtures(tmp_path: Path, texts: list[str]) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for number, text in enumerate(texts):
        (tmp_path / f"test_author_{number}.py").write_text(text)
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "."]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(texts)} passed" in done.stdout
