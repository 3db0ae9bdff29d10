# SPDX-License-Identifier: Apache-2.0
"""Lists and plans a read of many keys in a process of its own, and prints what it measured as JSON."""

from __future__ import annotations

import json
import re
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from forebay.framework.runtime.host_options import HostOptions
from forebay.sources.files import FileSource
from forebay.spark.batch import BatchReader, Readable
from forebay.stores.s3 import store

# Tests are no package.
ScriptedLister = runpy.run_path(str(Path(__file__).with_name("scripted_lister.py")))["ScriptedLister"]
SCHEMA = pa.schema([("a", pa.int64()), ("day", pa.string())])
SOURCE = FileSource(path="s3://bucket/lake/events", file_format="parquet")


def peak() -> int:
    """Return the peak memory in MB. `ru_maxrss` would begin with the memory of the parent process."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) >> 10


def serve(count: int) -> Any:
    lister = ScriptedLister(count)
    setattr(store, "client_of", lambda _: lister)  # noqa: B010 - the store is given the scripted client
    return lister


def plan() -> tuple[int, list[int]]:
    """Plan a read as Spark's planner process does; return the pickled bytes, and the splits of the first two tasks."""
    readable = Readable(SOURCE.with_schema(SCHEMA), HostOptions(), ("a", "day"), 2)
    partitions = BatchReader(readable, SCHEMA).partitions()
    size = sum(len(cloudpickle.dumps(one)) for one in partitions)
    first = [cloudpickle.loads(cloudpickle.dumps(one)).value.task.slices for one in partitions[:2]]
    return size, [len(partitions), *map(len, first)]


serve(10)
plan()  # imports what a plan needs
idle, lister, begun = peak(), serve(int(sys.argv[1])), time.process_time()
pickled, tasks = plan()
found = {
    "megabytes": peak() - idle,
    "seconds": time.process_time() - begun,
    "requests": lister.requests,
    "pickled": pickled,
    "tasks": tasks,
}
begun = time.process_time()
index = SOURCE.list()
files = index.files
found |= {
    "listed in": time.process_time() - begun,
    "files": len(files),
    "first": files[0].path,
    "last": files[-1].path,
    "etag": files[-1].etag,
    "size": files[-1].size,
    "sum": sum(file.size for file in files),
    "texts": [index.partition_texts[0], index.partition_texts[-1]],
}
sys.stdout.write(json.dumps(found))
