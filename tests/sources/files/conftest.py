# SPDX-License-Identifier: Apache-2.0
"""Fixtures for files: small tables in each format, a directory to write into, a stream without Spark, a real Spark."""

from __future__ import annotations

import gzip
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from manual_clock import ManualClock

from forebay.framework.arrow.casting import resolve_schema
from forebay.framework.microbatch.stream_planner import StreamPlanner, open_stream
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.framework.tasks.read_task import run_task
from forebay.sources.files import FileSource

Row = tuple[int, str | None]
NOON = 1_700_000_000
"""The clock of these tests and the time of their files, in seconds since 1970."""


TEXT = pa.schema([("value", pa.string())])


def encoded(file_format: str, rows: Sequence[Row]) -> bytes:
    """Return the bytes of a file of columns `k` and `v`, or of lines."""
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
    """Return a CSV value in quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@dataclass(frozen=True)
class Kind:
    """A file format and its test options."""

    name: str
    suffix: str
    schema: str
    options: dict[str, str]


KINDS = {
    "csv": Kind("csv", ".csv", "k bigint, v string", {"header": "true", "inferSchema": "true"}),
    "json": Kind("json", ".json", "k bigint, v string", {}),
    "parquet": Kind("parquet", ".parquet", "k bigint, v string", {}),
    "text": Kind("text", ".txt", "value string", {}),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each format in turn."""
    return KINDS[request.param]


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
    """A new session of the Spark of this process, in UTC, with forebay's formats."""
    sql = pytest.importorskip("pyspark.sql")
    import forebay

    os.environ.setdefault("LC_ALL", "C.UTF-8")  # the JVM reads file names in it
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


class Stream:
    """A streaming query of any number of runs from one checkpoint.

    Args:
        path: What is read, as lines if nothing else is said.
        schema: The user's; None: it is inferred by each run.
        options: Those of the source and of the host, by their Python names.
    """

    def __init__(self, path: str, *, schema: pa.Schema | None = TEXT, **options: Any) -> None:
        self.clock = ManualClock(NOON)
        self.offset: Mapping[str, Any] | None = None
        self.batches: list[list[tuple[Any, ...]]] = []
        self.ends: list[Mapping[str, Any]] = []
        self._options: dict[str, Any] = {"path": path, "file_format": "text", "schema": schema, **options}
        self._begin()

    def restart(self, **options: Any) -> None:
        """End the run, and begin another one from the last commit, with other options if given."""
        self.planner.close()
        self._options |= options
        self._begin()

    def _begin(self) -> None:
        options = dict(self._options)
        schema = options.pop("schema")
        own = {name: options.pop(name) for name in list(options) if name in FileSource.__dataclass_fields__}
        source = FileSource(**own)
        inferred = source.schema() if schema is None else None
        source = resolve_schema(source, source.schema()) if schema is None else source.with_schema(schema)
        runtime = ThreadRuntime(clock=self.clock)
        self.planner: StreamPlanner = open_stream(
            source, HostOptions(**{"retries": 3, **options}), parallelism=2, inferred=inferred, runtime=runtime
        )

    def plan(self, *, limited: bool = True) -> Mapping[str, Any] | None:
        """Return the next offset after a JSON round trip; None if there is nothing new."""
        self.clock.advance(1.0)
        if self.offset is None:
            self.offset = self.planner.initial()
        end = self.planner.latest(self.offset, limited=limited)
        return None if end == self.offset else json.loads(json.dumps(end))

    def read(self, end: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Return the rows of a micro-batch."""
        tasks = self.planner.tasks(self.offset or {}, end)
        return [tuple(row.values()) for task in tasks for part in run_task(task) for row in part.batch.to_pylist()]

    def trigger(self, *, limited: bool = True, commit: bool = True) -> list[tuple[Any, ...]] | None:
        """Run one micro-batch, if there is one, and return its rows."""
        end = self.plan(limited=limited)
        if end is None:
            return None
        rows = self.read(end)
        self.batches.append(rows)
        self.ends.append(end)
        self.offset = end
        if commit:
            self.planner.commit(end)
        return rows

    def drain(self, most: int = 1000) -> list[list[Any]]:
        """Run micro-batches until there is nothing new; return the sorted first column of each that has rows."""
        found = []
        for _ in range(most):
            rows = self.trigger()
            if rows is None:
                return found
            if rows:
                found.append(sorted(row[0] for row in rows))
        raise AssertionError(f"still new rows after {most} micro-batches")


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """An empty directory."""
    found = tmp_path / "in"
    found.mkdir()
    return found


@pytest.fixture
def put(inbox: Path) -> Callable[..., Path]:
    """Writes a file of lines with a time in seconds after NOON."""

    def put(name: str, text: str | bytes | None = None, at: float = 0.0) -> Path:
        path = inbox / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = f"{name}\n" if text is None else text
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        moment = int((NOON + at) * 1e9)
        os.utime(path, ns=(moment, moment))
        return path

    return put


@pytest.fixture
def stream(inbox: Path) -> Iterator[Callable[..., Stream]]:
    """Begins a query on the directory, or on another path."""
    begun: list[Stream] = []

    def stream(path: str | None = None, **options: Any) -> Stream:
        begun.append(Stream(path or str(inbox), **options))
        return begun[-1]

    yield stream
    for each in begun:
        each.planner.close()
