# SPDX-License-Identifier: Apache-2.0
"""Damaged Avro and Parquet files end in an error or are read: no crash, no hang, bounded memory.

A few damaged ORC files of 10,000 end the process in Arrow, which trusts the lengths of texts and lists.

The number of files of the long test is in the environment: `MUTATIONS=5000 make soak`. A file alone:
`PYTHONPATH=tests/generators python -P -m generated_files.reading orc 17 18`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from generated_files.reading import SECONDS, Files, read

PER_PROCESS = 5_000
GENERATORS = Path(__file__).parents[2] / "generators"
LEAST_READ = {"avro": 0.03, "orc": 0.1, "parquet": 0.1}
MOST_CRASHES = {"orc": 0.002}


def check(kind: str, first: int, last: int) -> dict[str, Any]:
    """Read files in a process of its own, in another one behind a file that ends it; return what was counted."""
    # Polars prints what it finds damaged.
    environment = {**os.environ, "PYTHONPATH": str(GENERATORS), "RUST_BACKTRACE": "0"}
    crashed: list[int] = []
    while True:
        start = crashed[-1] + 1 if crashed else first
        command = [sys.executable, "-P", "-m", "generated_files.reading", kind, str(start), str(last)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1_800, env=environment)
        *numbers, found = done.stdout.splitlines()
        if done.returncode == 0:
            break
        crashed.append(int(found))
        allowed = (last - first) * MOST_CRASHES.get(kind, 0)
        assert done.returncode < 0, f"file {found}: {done.stderr[-3_000:]}"
        assert len(crashed) <= allowed, f"file {found}: {done.returncode} {done.stderr[-3_000:]}"
    result = json.loads(found) | {"crashed": crashed}
    files = len(numbers)
    assert set(result["ends"]) <= {"DataError", "ConfigurationError", "read"}, result
    assert result["ends"]["DataError"] > files // 4
    assert result["ends"]["read"] > files * LEAST_READ[kind]
    assert result["slowest"] < SECONDS, result
    assert result["megabytes"] < 500, result
    return result


@pytest.mark.soak(but=["parquet"])
@pytest.mark.parametrize("kind", LEAST_READ)
def test_damaged_files_are_refused_or_read(kind: str) -> None:
    check(kind, 0, 60)


@pytest.mark.soak
@pytest.mark.parametrize("kind", LEAST_READ)
def test_fifty_thousand_damaged_files_are_refused_or_read(kind: str, record_property) -> None:
    count = int(os.environ.get("MUTATIONS", "50000"))
    for first in range(0, count, PER_PROCESS):
        found = check(kind, first, min(count, first + PER_PROCESS))
        record_property("report", f"damaged {kind} files from {first}: {json.dumps(found)}")


FOUND = {
    # Arrow ends the process for histograms of the wrong length, unless it reads ahead.
    **dict.fromkeys([5_251, 16_541, 42_325, 46_183], "histogram size mismatch"),
    # Arrow does not compare decimals with their type.
    **dict.fromkeys([203, 343], "column 'w' of /data/f has a value with more digits than decimal128"),
    672: "codec can't decode byte",
}


@pytest.mark.parametrize(("number", "text"), FOUND.items())
def test_what_damage_in_parquet_was_found(number: int, text: str) -> None:
    found = read("parquet", Files("parquet").damaged(number), None)
    assert isinstance(found, str)
    assert text in found


FILTERED = """
import sys, forebay
from forebay.errors import DataError
from forebay.sources.files import FileSource
condition = " AND ".join(f"{name} IS NOT NULL" for name in "insbtzdwefgoy")
for path in sys.argv[1:]:
    try:
        forebay.run(FileSource(path=path, row_filter=condition)).to_table()
    except DataError:
        print("refused")
"""


@pytest.mark.soak
def test_filters_on_damaged_metadata_of_columns_do_not_end_the_process(tmp_path: Path) -> None:
    files = Files("parquet")
    # In file 592 a column has no known type.
    paths = [tmp_path / f"{number}.parquet" for number in (5_251, 16_541, 42_325, 46_183, 592)]
    for path in paths:
        path.write_bytes(files.damaged(int(path.stem)))
    command = [sys.executable, "-P", "-c", FILTERED, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() >= ["refused"] * 4


def test_reads_of_parquet_keep_no_memory() -> None:
    files = Files("parquet")
    whole = [files.whole(number) for number in range(5)]
    before = pa.total_allocated_bytes()
    for data in whole * 20:
        assert not isinstance(read("parquet", data, None), str)
    assert pa.total_allocated_bytes() <= before
