# SPDX-License-Identifier: Apache-2.0
"""What the tests of files share: small tables written in each format, a plain read of a source, a real Spark."""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

Row = tuple[int, str | None]


def encoded(file_format: str, rows: Sequence[Row]) -> bytes:
    """The bytes of a file of columns `k` and `v`, or of lines."""
    if file_format == "parquet":
        sink = pa.BufferOutputStream()
        table = pa.table(
            {"k": pa.array([k for k, _ in rows], pa.int64()), "v": pa.array([v for _, v in rows], pa.string())}
        )
        pq.write_table(table, sink, row_group_size=3)
        return sink.getvalue().to_pybytes()
    if file_format == "csv":
        lines = ["k,v", *(f"{k},{'' if v is None else quoted(v)}" for k, v in rows)]
    elif file_format == "json":
        lines = [json.dumps({"k": k, "v": v}, ensure_ascii=False) for k, v in rows]
    else:
        lines = [f"{k} {v}" for k, v in rows]
    return "".join(line + "\n" for line in lines).encode()


def quoted(text: str) -> str:
    """A CSV value in quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@dataclass(frozen=True)
class Kind:
    """A file format, as tests use it."""

    name: str
    suffix: str
    schema: str
    options: dict[str, str]


KINDS = [
    Kind("csv", ".csv", "k bigint, v string", {"header": "true", "inferSchema": "true"}),
    Kind("json", ".json", "k bigint, v string", {}),
    Kind("parquet", ".parquet", "k bigint, v string", {}),
    Kind("text", ".txt", "value string", {}),
]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each format in turn."""
    found: Kind = request.param
    return found


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    """Writes files, given as {relative path: rows}, below a fresh directory, and returns that."""

    def write(file_format: str, files: dict[str, Sequence[Row]], *, compressed: bool = False) -> str:
        root = tmp_path / uuid.uuid4().hex[:8]
        root.mkdir()
        for name, rows in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            data = encoded(file_format, rows)
            path.write_bytes(gzip.compress(data) if compressed else data)
        return str(root)

    return write


@pytest.fixture(scope="session")
def spark() -> Any:
    """A session of its own over whatever Spark this process runs; UTC, with forebay's formats registered."""
    sql = pytest.importorskip("pyspark.sql")
    import forebay

    builder = sql.SparkSession.builder.master("local[2,2]").appName("forebay tests of files")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate().newSession()
    session.sparkContext.setLogLevel("OFF")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.shuffle.partitions", "1")
    forebay.register(session)
    return session
