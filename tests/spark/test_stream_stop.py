# SPDX-License-Identifier: Apache-2.0
"""A query that is stopped while its planner waits for a server that says nothing: the process ends, in order."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pyarrow as pa
import pytest

from forebay.framework.simple import SimpleEnumerator, SimpleSource
from forebay.spark.register import read_stream


class Noting(SimpleEnumerator):
    def __init__(self, source, home):
        super().__init__(source)
        self.home = home

    def close(self):
        (self.home / "closed").touch()


class Silent(SimpleSource):
    """Asks a server that never answers."""

    bounded = False
    port: int
    home: Path

    def schema(self):
        return pa.schema({"n": pa.int64()})

    def latest(self, split):
        with socket.create_connection(("127.0.0.1", self.port)) as server:
            return len(server.recv(1))

    def read(self, split):
        yield {"n": 1}

    def create_enumerator(self, context):
        return Noting(self, self.home)


def planners():
    """What the kernel knows of the processes that plan: their state, parent, and signals that wait or are caught."""
    texts = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if b"streaming_source_runner" in (process / "cmdline").read_bytes():
                lines = (process / "status").read_text().splitlines()
                texts.append([line for line in lines if line.startswith(("Pid", "PPid", "State", "Sig", "Shd"))])
    return texts


def test_s11_a_planner_that_waits_for_an_answer_is_not_left_behind(spark, tmp_path):
    """S11: SIGTERM comes while `latest` blocks, which by itself would go on until `planningTimeout`."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(120)
        frame = read_stream(spark, Silent(port=server.getsockname()[1], home=tmp_path), planning_timeout="1h")
        query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            connection, _ = server.accept()
        finally:
            query.stop()
        with connection:
            connection.settimeout(60)
            try:
                received = connection.recv(1)
            except TimeoutError:
                pytest.fail(f"the process is left behind: {planners()}")
            assert received == b"", "the process has ended, and its connections with it"
    assert (tmp_path / "closed").exists()
