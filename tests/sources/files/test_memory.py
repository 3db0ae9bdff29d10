# SPDX-License-Identifier: Apache-2.0
"""The memory of a task is bounded for files of any size (Shows 7)."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import zstandard

LIMIT = 300 << 20
"""Bytes above the idle worker."""

# A task of Spark: a fetcher thread, its queue, and a consumer that keeps nothing.
WORKER = """
import json, re, sys
from pathlib import Path
from forebay.errors import ForebayError
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.tasks.assign_tasks import plan_bounded
from forebay.framework.tasks.read_task import ReadTask, run_task
from forebay.sources.files import FileSource

def memory(what):
    return int(re.search(what + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10

source = FileSource(path=sys.argv[1], file_format=sys.argv[2], format_options=json.loads(sys.argv[3]))
idle = memory("VmRSS")  # everything is imported, and nothing has been read
rows = 0
try:
    source = source.with_schema(source.schema())
    for slices in plan_bounded(source, HostOptions(num_partitions=1)):
        for delivered in run_task(ReadTask(source, slices, HostOptions())):
            rows += delivered.batch.num_rows
except ForebayError as error:
    rows = error.message
print(json.dumps({"rows": rows, "idle": idle, "peak": memory("VmHWM")}))
"""

BLOCK_ROWS = 20_000


def csv_block(start: int) -> bytes:
    rows = (
        f'{n},name {n % 977},{n * 0.37:.3f},2024-0{n % 9 + 1}-11,"a quoted, text {n}"\n'
        for n in range(start, start + BLOCK_ROWS)
    )
    return "".join(rows).encode()


def json_block(start: int) -> bytes:
    rows = (
        f'{{"k": {n}, "name": "name {n % 977}", "x": {n * 0.37:.3f}, "tags": ["a{n % 7}", "b"], "in": {{"y": {n}}}}}\n'
        for n in range(start, start + BLOCK_ROWS)
    )
    return "".join(rows).encode()


def repeated(path: Path, block: bytes, size: int, head: bytes = b"") -> int:
    """Write a block repeatedly; return the number of rows."""
    times = size // len(block)
    with path.open("wb") as stream:
        stream.write(head)
        for _ in range(times):
            stream.write(block)
    return times * BLOCK_ROWS


def measured(path: Path, file_format: str, options: str = "{}") -> tuple[Any, int]:
    """Return the rows, or the text of an error, and the peak of bytes above the idle worker."""
    command = [sys.executable, "-P", "-c", WORKER, str(path), file_format, options]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return found["rows"], found["peak"] - found["idle"]


CSV = '{"header": "true"}'
HEAD = b"k,name,x,d,t\n"
Report = Callable[[str, object], None]


def csv(directory: Path, size: int, record_property: Report) -> None:
    path = directory / "big.csv"
    expected = repeated(path, csv_block(0), size, HEAD)
    rows, above = measured(path, "csv", CSV)
    path.unlink()
    record_property("report", f"CSV of {size >> 20} MB: {above >> 20} MB above the idle worker")
    assert rows == expected
    assert above < LIMIT


@pytest.mark.soak
def test_a_csv_of_400_megabytes(tmp_path: Path, record_property: Report) -> None:
    csv(tmp_path, 400 << 20, record_property)


@pytest.mark.soak
def test_a_csv_of_4_gigabytes(tmp_path: Path, record_property: Report) -> None:
    csv(tmp_path, 4 << 30, record_property)


@pytest.mark.soak  # bounded by the blocks of records that bound CSV
def test_json_lines_of_150_megabytes(tmp_path: Path, record_property: Report) -> None:
    path = tmp_path / "big.json"
    expected = repeated(path, json_block(0), 150 << 20)
    rows, above = measured(path, "json")
    record_property("report", f"JSON lines of 150 MB: {above >> 20} MB above the idle worker")
    assert rows == expected
    assert above < LIMIT


@pytest.mark.soak
def test_a_gzip_that_expands_a_hundredfold(tmp_path: Path, record_property: Report) -> None:
    path = tmp_path / "big.txt.gz"
    block = gzip.compress(b"some line of text\n" * BLOCK_ROWS * 50, 1)
    path.write_bytes(block * 16)
    rows, above = measured(path, "text")
    record_property("report", f"gzip of {path.stat().st_size >> 20} to 275 MB: {above >> 20} MB above the idle worker")
    assert rows == BLOCK_ROWS * 50 * 16
    assert above < LIMIT


OPENED: dict[str, Any] = {
    "zst": zstandard.open,
    "gz": gzip.GzipFile,
    "bz2": bz2.BZ2File,
    "xz": lzma.LZMAFile,
}


@pytest.mark.soak
@pytest.mark.parametrize("suffix", ["zst", "gz", "bz2", "xz"])
@pytest.mark.parametrize("file_format", ["text", "csv", "json"])
def test_a_bomb_of_one_line_is_bounded(tmp_path: Path, record_property: Report, suffix: str, file_format: str) -> None:
    """A gigabyte without a line end; `maxRecordBytes` is 128 MiB. Its schema is inferred first."""
    path = tmp_path / f"bomb.{suffix}"
    block = b"a" * (1 << 20)
    with OPENED[suffix](path, "wb") as stream:
        for _ in range(1024):
            stream.write(block)
    rows, above = measured(path, file_format)
    record_property(
        "report", f"{file_format}.{suffix} of {path.stat().st_size:,} to 1 GB: {rows!r:.60}, {above >> 20} MB"
    )
    assert rows == 1 or "is longer than maxRecordBytes" in rows or "they hold no record" in rows
    assert above < LIMIT


@pytest.mark.soak
def test_a_parquet_file_whose_values_are_a_thousandth_on_disk(tmp_path: Path, record_property: Report) -> None:
    """1.5 GB in one row group, as a dictionary of one value."""
    path = tmp_path / "bomb.parquet"
    table = pa.table({"a": pa.array(["x" * 1000] * 300_000)})
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        writer.write_table(pa.concat_tables([table] * 5), row_group_size=1_500_000)
    del table
    rows, above = measured(path, "parquet")
    record_property(
        "report", f"Parquet of {path.stat().st_size:,} bytes to 1.5 GB: {above >> 20} MB above the idle worker"
    )
    assert rows == 1_500_000
    assert above < LIMIT


@pytest.mark.soak
def test_a_parquet_file_of_one_big_row_group(tmp_path: Path, record_property: Report) -> None:
    """A row group of 500 MB in memory."""
    rows = 2_000_000
    numbers = pa.array(range(rows), pa.int64())
    text = pc.call_function("binary_join_element_wise", ["y" * 90, numbers.cast(pa.string()), ""])
    table = pa.table({"k": numbers, "x": numbers.cast(pa.float64()), "t": text, "u": text})
    path = tmp_path / "big.parquet"
    pq.write_table(table, path, row_group_size=rows, use_dictionary=False)
    assert pq.ParquetFile(path).num_row_groups == 1
    del table, text, numbers
    found, above = measured(path, "parquet")
    record_property("report", f"Parquet row group of 440 MB: {above >> 20} MB above the idle worker")
    assert found == rows
    assert above < LIMIT
