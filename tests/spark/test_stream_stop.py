# SPDX-License-Identifier: Apache-2.0
"""A query that is stopped while its planner waits for a server that says nothing: the process ends, in order."""

from __future__ import annotations

import socket
from pathlib import Path

import pyarrow as pa

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
            assert connection.recv(1) == b"", "the process has ended, and its connections with it"
    assert (tmp_path / "closed").exists()
