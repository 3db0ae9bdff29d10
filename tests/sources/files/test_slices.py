# SPDX-License-Identifier: Apache-2.0
"""Any cuts of any file, and a restart at any position, give every record once and in order (Shows 5)."""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.framework.split import Split
from forebay.sources.files import FileSource, FileSplit
from forebay.sources.files.enumerator import FileEnumerator
from forebay.sources.files.split_reader import FileSplitReader

COMPRESS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}
# Small blocks, so that small files have many positions.
SMALL = {"csv": {"blockBytes": "64"}, "json": {"blockBytes": "64"}, "text": {"blockBytes": "64"}, "parquet": {}}

fast = settings(
    max_examples=settings().max_examples // 3,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
texts = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x00"), min_size=1, max_size=12)
tables = st.lists(st.tuples(st.integers(-(2**40), 2**40), texts), max_size=40)


def put(directory: Path, name: str, data: bytes) -> Path:
    path = directory / name
    path.write_bytes(data)
    return path


def resolved(source: FileSource) -> FileSource:
    return source.with_schema(source.schema())


def whole(source: FileSource) -> list[FileSplit]:
    return [split for split in FileEnumerator(source).discover({}, True).splits if isinstance(split, FileSplit)]


def steps(source: FileSource, split: Split) -> list[tuple[list[dict[str, Any]], Any]]:
    """Return the rows of each fetch, and the position after them."""
    reader = FileSplitReader(source)
    reader.add_splits([split])
    found = []
    finished = False
    while not finished:
        (part,) = reader.fetch()
        found.append(([] if part.batch is None else part.batch.to_pylist(), part.position))
        finished = part.finished
    assert reader.fetch() == []
    reader.close()
    return found


def rows(source: FileSource, splits: Sequence[Split]) -> list[dict[str, Any]]:
    return [row for split in splits for part, _ in steps(source, split) for row in part]


def check(source: FileSource, expected: list[dict[str, object]], sizes: Sequence[int], data: st.DataObject) -> None:
    """Cut in several ways, and continue from a snapshot."""
    source = resolved(source)
    splits = whole(source)
    assert rows(source, splits) == expected
    for split, size, count in itertools.product(splits, sizes, (1, 3)):
        # Slices of single bytes in small files, and not thousands in larger ones.
        cutting = replace(source, max_partition_bytes=max(size, split.size // 40)).with_schema(source.full_schema())
        slices = FileEnumerator(cutting).slices(split, count)
        assert all(one.end == other.position for one, other in itertools.pairwise(slices))
        assert rows(source, slices) == expected
        one = data.draw(st.sampled_from(list(slices)), label="slice")
        parts = steps(source, one)
        at = data.draw(st.integers(0, len(parts) - 1), label="snapshot")
        before = [row for part, _ in parts[: at + 1] for row in part]
        travelled = FileSplit.from_json(json.loads(json.dumps(one.at(parts[at][1]).to_json())))
        assert before + rows(source, [travelled]) == [row for part, _ in parts for row in part]


def csv_value(text: str | None) -> str:
    return "" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


sizes = st.lists(st.integers(1, 80), min_size=1, max_size=2)


@pytest.mark.parametrize("suffix", COMPRESS)
@fast
@given(
    newline=st.sampled_from(["\n", "\r\n"]),
    table=tables,
    header=st.booleans(),
    last=st.booleans(),
    sizes=sizes,
    data=st.data(),
)
def test_csv(tmp_path: Path, suffix: str, newline: str, table, header: bool, last: bool, sizes, data) -> None:
    lines = [*(["k,v"] if header else []), *(f"{k},{csv_value(v)}" for k, v in table)]
    text = newline.join(lines) + (newline if last and lines else "")
    path = put(tmp_path, "f.csv" + suffix, COMPRESS[suffix](text.encode()))
    options = {"header": str(header), **SMALL["csv"]}
    source = FileSource(path=str(path), format_options=options)
    source = source.with_schema(pa.schema([("k", pa.int64()), ("v", pa.string())]))
    check(source, [{"k": k, "v": v} for k, v in table], sizes, data)


@fast
@given(
    table=st.lists(st.tuples(st.integers(0, 99), st.text(st.sampled_from('ab",\n é'), max_size=9)), max_size=20),
    sizes=sizes,
    data=st.data(),
)
def test_csv_of_many_lines_is_one_slice(tmp_path: Path, table, sizes, data) -> None:
    text = "".join(f"{k},{csv_value('x' + v)}\n" for k, v in table)
    path = put(tmp_path, "f.csv", text.encode())
    source = FileSource(path=str(path), format_options={"multiLine": "true", **SMALL["csv"]})
    source = source.with_schema(pa.schema([("k", pa.int64()), ("v", pa.string())]))
    expected = [{"k": k, "v": "x" + v} for k, v in table]
    check(source, expected, sizes, data)


@pytest.mark.parametrize("suffix", COMPRESS)
@fast
@given(table=tables, last=st.booleans(), sizes=sizes, data=st.data())
def test_json_lines(tmp_path: Path, suffix: str, table, last: bool, sizes, data) -> None:
    lines = [json.dumps({"k": k, "v": v}, ensure_ascii=k % 2 == 0) for k, v in table]
    text = "\n".join(lines) + ("\n" if last and lines else "")
    path = put(tmp_path, "f.jsonl" + suffix, COMPRESS[suffix](text.encode()))
    source = FileSource(path=str(path), format_options=SMALL["json"])
    source = source.with_schema(pa.schema([("k", pa.int64()), ("v", pa.string())]))
    check(source, [{"k": k, "v": v} for k, v in table], sizes, data)


@pytest.mark.parametrize("suffix", COMPRESS)
@fast
@given(
    lines=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=30), max_size=30),
    newline=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
    sizes=sizes,
    data=st.data(),
)
def test_text(tmp_path: Path, suffix: str, lines, newline: str, last: bool, sizes, data) -> None:
    if lines and not last and not lines[-1]:
        lines = lines[:-1]  # nothing shows that there is one more line
        last = True
    text = newline.join(lines) + (newline if last and lines else "")
    if text.startswith("\ufeff"):
        text = "x" + text
        lines = ["x" + lines[0], *lines[1:]]
    path = put(tmp_path, "f.txt" + suffix, COMPRESS[suffix](text.encode()))
    source = FileSource(path=str(path), format_options=SMALL["text"])
    check(source, [{"value": line} for line in lines], sizes, data)


@fast
@given(
    table=st.lists(st.tuples(st.integers(), st.none() | st.text(max_size=5)), max_size=200),
    group=st.integers(1, 50),
    sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=2),
    position=st.integers(0, 200),
    data=st.data(),
)
def test_parquet(tmp_path: Path, table, group: int, sizes, position: int, data) -> None:
    sink = io.BytesIO()
    texts = pa.array([v for _, v in table], pa.string())
    keys = pa.array([k % 2**63 for k, _ in table], pa.int64())
    pq.write_table(pa.table({"k": keys, "v": texts}), sink, row_group_size=group)
    path = put(tmp_path, "f.parquet", sink.getvalue())
    source = FileSource(path=str(path), include_metadata=True)
    expected = [{"k": k % 2**63, "v": v} for k, v in table]

    plain = FileSource(path=str(path))
    check(plain, expected, sizes, data)
    position = min(position, len(expected))
    (split,) = whole(resolved(source))
    found = rows(resolved(source), [split.at(position)])
    assert [{"k": row["k"], "v": row["v"]} for row in found] == expected[position:]
    indexes = [row["_metadata"]["row_index"] for row in found]
    assert indexes == list(range(position, len(expected)))


def test_blocks_in_metadata_tile_the_file(tmp_path: Path) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"k": range(1000)}), sink, row_group_size=100)
    path = put(tmp_path, "f.parquet", sink.getvalue())
    source = resolved(FileSource(path=str(path), include_metadata=True, max_partition_bytes=3000))
    slices = FileEnumerator(source).slices(whole(source)[0], 4)
    assert len(slices) > 2
    blocks = [row["_metadata"] for one in slices for row in rows(source, [one])[:1]]
    at = 0
    for block in blocks:
        assert block["file_block_start"] == at
        at += block["file_block_length"]
    assert at == path.stat().st_size
    # A slice that is restored in its middle keeps its block.
    (middle,) = {str(row["_metadata"]["file_block_start"]) for row in rows(source, [slices[1].at(150)])}
    assert middle == str(blocks[1]["file_block_start"])
