# SPDX-License-Identifier: Apache-2.0
"""`maxRowsPerBatch` and `maxBytesPerBatch` apply to every format, and every batch ends at a position."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.split import Position
from forebay.framework.tasks.assign_tasks import plan_bounded
from forebay.framework.tasks.read_task import ReadTask, run_task
from forebay.sources.files import FileSource, FileSplit
from forebay.sources.files.enumerator import FileEnumerator
from forebay.sources.files.split_reader import FileSplitReader

ROWS = 1000
RECORDS = [{"k": number, "v": f"value {number}" * (number % 7)} for number in range(ROWS)]
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


def csv(path: Path) -> None:
    path.write_text("".join(f'{row["k"]},"{row["v"]}"\n' for row in RECORDS))


def json_lines(path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in RECORDS))


def arrays(path: Path) -> None:
    path.write_text("".join(json.dumps(RECORDS[at : at + 250]) + "\n" for at in range(0, ROWS, 250)))


def document(path: Path) -> None:
    path.write_text(json.dumps(RECORDS))


def parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(RECORDS, SCHEMA), path)


def text(path: Path) -> None:
    path.write_text("".join(f"{row['v']}\n" for row in RECORDS))


KINDS: dict[str, tuple[Callable[[Path], None], str, dict[str, Any]]] = {
    "csv": (csv, "csv", {}),
    "csv multiLine": (csv, "csv", {"multiLine": "true"}),
    "json": (json_lines, "json", {}),
    "json of arrays": (arrays, "json", {}),
    "json multiLine": (document, "json", {"multiLine": "true"}),
    "parquet": (parquet, "parquet", {}),
    "text": (text, "text", {}),
}


@pytest.fixture(params=KINDS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> FileSource:
    write, file_format, options = KINDS[request.param]
    write(tmp_path / "file")
    made = FileSource(path=str(tmp_path / "file"), file_format=file_format, format_options=options)
    return made if file_format == "text" else made.with_schema(SCHEMA)


def expected(source: FileSource) -> list[dict[str, Any]]:
    if source.file_format == "text":
        return [{"value": row["v"]} for row in RECORDS]
    return [{"k": row["k"], "v": row["v"] or (None if source.file_format == "csv" else "")} for row in RECORDS]


def delivered(source: FileSource, **limits: Any) -> list[tuple[pa.RecordBatch, Position | None]]:
    with forebay.run(source, options=HostOptions(**limits)) as batches:
        return [(batch, (batches.delivered or ("", None))[1]) for batch in batches]


def test_no_batch_has_more_rows_than_allowed(source: FileSource) -> None:
    found = [batch for batch, _ in delivered(source, max_rows_per_batch=10)]
    assert max(batch.num_rows for batch in found) == 10
    assert [row for batch in found for row in batch.to_pylist()] == expected(source)


def test_no_batch_has_more_bytes_than_allowed_unless_it_is_one_row(source: FileSource) -> None:
    found = [batch for batch, _ in delivered(source, max_bytes_per_batch=300)]
    assert all(batch.nbytes <= 300 or batch.num_rows == 1 for batch in found)
    assert len(found) < ROWS
    assert [row for batch in found for row in batch.to_pylist()] == expected(source)


def test_a_task_of_spark_keeps_the_limits(source: FileSource) -> None:
    options = HostOptions(max_rows_per_batch=10, max_bytes_per_batch=300)
    found = []
    for slices in plan_bounded(source, options, parallelism=1):
        task = ReadTask(source, slices, options)
        found += [one.batch for one in run_task(task)]
    assert all(batch.num_rows == 1 or (batch.num_rows <= 10 and batch.nbytes <= 300) for batch in found)
    assert [row for batch in found for row in batch.to_pylist()] == expected(source)


@pytest.mark.soak(but=["csv", "json", "parquet"])
def test_a_read_goes_on_after_any_batch_and_stops_after_any_other(source: FileSource) -> None:
    found = delivered(source, max_rows_per_batch=70)
    counts = list(itertools.accumulate((batch.num_rows for batch, _ in found), initial=0))
    places = list(zip(counts, [None, *(position for _, position in found)], strict=True))
    all_rows = expected(source)
    for place, (begin, position) in enumerate(places):
        for finish, end in (*places[place + 1 : place + 4], (ROWS, None)):
            split = listed(source).slice(position, end)
            stored = FileSplit.from_json(json.loads(json.dumps(split.to_json())))
            assert rows_of(source, stored) == all_rows[begin:finish]


def test_a_parquet_position_is_a_row(tmp_path: Path) -> None:
    parquet(tmp_path / "file")
    source = FileSource(path=str(tmp_path / "file"), file_format="parquet")
    positions = [position for _, position in delivered(source, max_rows_per_batch=300)]
    assert positions == [300, 600, 900, 1000]


def test_a_position_inside_a_block_is_its_offset_and_the_rows_after_it(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("ab\n" * 7)
    source = FileSource(path=str(tmp_path / "file.txt"), format_options={"blockBytes": "15"})
    found = [(batch.num_rows, position) for batch, position in delivered(source, max_rows_per_batch=2)]
    assert found == [(2, (0, 2)), (2, (0, 4)), (1, 15), (2, 21)]


def listed(source: FileSource) -> FileSplit:
    (split,) = FileEnumerator(source).discover({}, True).splits
    assert isinstance(split, FileSplit)
    return split


def rows_of(source: FileSource, split: FileSplit) -> list[dict[str, Any]]:
    reader = FileSplitReader(source, HostOptions(max_rows_per_batch=300))
    reader.add_splits([split])
    rows: list[dict[str, Any]] = []
    while True:
        (part,) = reader.fetch()
        rows += [] if part.batch is None else part.batch.to_pylist()
        if part.finished:
            reader.close()
            return rows
