# SPDX-License-Identifier: Apache-2.0
"""A million keys, from a scripted client: memory, requests, and the same files as with few."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

Report = Callable[[str, object], None]

MEASURED = """
import json, resource, sys, time
sys.path.insert(0, sys.argv[1])
import pyarrow, botocore.exceptions
from scripted_lister import ScriptedLister
from forebay.sources.files import FileSource
from forebay.sources.files.listing.file_index import list_files
from forebay.stores.s3 import store

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

lister = ScriptedLister(int(sys.argv[2]))
store.client_of = lambda options: lister
idle, begun = peak(), time.process_time()
index = FileSource(path="s3://bucket/lake/events").list()
seconds = time.process_time() - begun
print(json.dumps({
    "megabytes": peak() - idle, "seconds": seconds, "requests": lister.requests, "files": len(index.files),
    "first": index.files[0].path, "last": index.files[-1].path, "etag": index.files[-1].etag,
    "size": index.files[-1].size, "sum": sum(file.size for file in index.files),
    "texts": [index.partition_texts[0], index.partition_texts[-1]],
}))
"""


def measured(count: int) -> dict:
    here = str(Path(__file__).parent)
    command = [sys.executable, "-P", "-c", MEASURED, here, str(count)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def test_a_million_keys_are_listed_within_250_megabytes(record_property: Report) -> None:
    count = 1_000_000
    found = measured(count)
    record_property("a million keys listed", f"{found['megabytes']} MB, {found['seconds']:.1f} s of CPU")
    assert found["files"] == count
    assert found["first"].startswith("s3://bucket/lake/events/day=000000/part-00000")
    assert found["last"].endswith("/day=000999/part-00999-4f0c1b52-93b7-4f0e-8d43-000000999999.c000.parquet")
    assert (found["etag"], found["size"]) == (f"{count - 1:032x}", 100_000 + count - 1)
    assert found["texts"] == [["000000"], ["000999"]]
    assert found["sum"] == sum(range(100_000, 100_000 + count))
    assert found["requests"] <= count / 1000 + 40
    assert found["megabytes"] < 250
