# SPDX-License-Identifier: Apache-2.0
"""What the tests of streamed files share: a directory to write into, and a stream that is read without Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.clock import ManualClock
from forebay.framework.host_options import HostOptions
from forebay.framework.microbatch.planner_factory import open_stream
from forebay.framework.microbatch.read_task import run_task
from forebay.framework.microbatch.stream_planner import StreamPlanner
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.sources.files import FileSource

NOON = 1_700_000_000
"""The time of day in these tests, in seconds since 1970; files are dated by it."""
TEXT = pa.schema([("value", pa.string())])


class Stream:
    """A streaming query: as many runs as wanted, from one checkpoint.

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
        """End the run, and begin another one with what was committed, under other options if any are given."""
        self.planner.close()
        self._options |= options
        self._begin()

    def _begin(self) -> None:
        options = dict(self._options)
        schema = options.pop("schema")
        own = {name: options.pop(name) for name in list(options) if name in FileSource.__dataclass_fields__}
        source = FileSource(**own)
        inferred = source.schema() if schema is None else None
        source = source.with_schema(schema or source.schema())
        runtime = ThreadRuntime(clock=self.clock)
        self.planner: StreamPlanner = open_stream(
            source, HostOptions(**options), parallelism=2, inferred=inferred, runtime=runtime
        )

    def plan(self, *, limited: bool = True) -> Mapping[str, Any] | None:
        """Return the next offset, through JSON; None if there is nothing new."""
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
        """Run micro-batches until there is nothing new; return the first column of each, sorted, but the empty ones."""
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
    """Writes a file of lines, dated so many seconds after noon."""

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
    """Begins a query over the directory, or over another path."""
    begun: list[Stream] = []

    def stream(path: str | None = None, **options: Any) -> Stream:
        begun.append(Stream(path or str(inbox), **options))
        return begun[-1]

    yield stream
    for each in begun:
        each.planner.close()
