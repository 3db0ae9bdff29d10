# SPDX-License-Identifier: Apache-2.0
"""Damaged ORC, Avro and Parquet files end in an error or are read: no crash, no hang, bounded memory.

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


def check(kind: str, first: int, last: int) -> dict[str, Any]:
    """Read files in a process of its own, and return what it counted."""
    command = [sys.executable, "-P", "-m", "generated_files.reading", kind, str(first), str(last)]
    # Polars prints what it finds damaged.
    environment = {**os.environ, "PYTHONPATH": str(GENERATORS), "RUST_BACKTRACE": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1_800, env=environment)
    *numbers, found = done.stdout.splitlines()
    assert done.returncode == 0, f"file {found or numbers[-1:]}: {done.returncode} {done.stderr[-3_000:]}"
    result = json.loads(found)
    files = last - first
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


# Arrow's own reader of a stripe ends the process for these, also behind the checks of the footers.
FOUND_IN_ORC = {
    600: "a row of stripe 0 may take more than 1 GB",
    2_564: "bad read in RleDecoderV2",
    3_150: "the length of a value is negative",
}


@pytest.mark.parametrize(("number", "text"), FOUND_IN_ORC.items())
def test_what_damage_in_orc_was_found(number: int, text: str) -> None:
    files = Files("orc")
    found = read("orc", files.damaged(number), files.schema(number))
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
