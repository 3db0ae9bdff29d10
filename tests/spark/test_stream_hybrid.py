# SPDX-License-Identifier: Apache-2.0
"""The hybrid source on Spark: a batch of both sources, and a stream that goes from one to the next."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import forebay
from forebay import Discovered, DiscoveryEnumerator, FileSource, HybridSource, Source, Split, SplitReader, option
from forebay.framework.split_reader import Fetched


class GrowingFile(Source):
    """An unbounded source: one split, whose records are the lines of a file; the present end is known."""

    path: str = option()
    start: int = option(default=0)
    name: ClassVar[str] = "lines"

    @property
    def bounded(self) -> bool:
        return False

    def schema(self) -> pa.Schema:
        return pa.schema([pa.field("value", pa.string())])

    def create_enumerator(self, context) -> DiscoveryEnumerator:
        return LinesEnumerator(self)

    def create_split_reader(self, context) -> SplitReader:
        return LinesReader(self)

    def lines(self) -> list[str]:
        path = Path(self.path)
        return path.read_text().splitlines() if path.exists() else []


class LinesEnumerator(DiscoveryEnumerator):
    exact_ends = True
    refresh_floor = 0.0

    def __init__(self, source: GrowingFile) -> None:
        self.source = source

    def discover(self, known: Mapping[str, Split], first: bool) -> Discovered:
        return Discovered([known.get("log") or Split(id="log", position=self.source.start)])

    def latest(self, splits: Sequence[Split]) -> dict[str, int]:
        return {split.id: len(self.source.lines()) for split in splits}

    def advance(self, split: Split, *, rows: int | None = None, byte_budget: int | None = None) -> int | None:
        return None if rows is None else min(split.position + rows, split.end)


class LinesReader(SplitReader):
    def __init__(self, source: GrowingFile) -> None:
        self.source = source
        self.splits: list[Split] = []

    def add_splits(self, splits: Sequence[Split]) -> None:
        self.splits += splits

    def fetch(self) -> list[Fetched]:
        splits, self.splits = self.splits, []
        found = []
        for split in splits:
            lines = self.source.lines()[split.position : split.end]
            batch = pa.RecordBatch.from_pydict({"value": lines}, schema=self.source.schema())
            found.append(Fetched(split.id, batch, split.end, finished=True))
        return found

    def wake_up(self) -> None:
        pass


def history(directory: Path, files: int, rows: int = 2) -> FileSource:
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        (directory / f"{number:04}.txt").write_text("".join(f"h{number}-{row}\n" for row in range(rows)))
    return FileSource(path=str(directory), file_format="text")


def expected(files: int, rows: int = 2) -> list[str]:
    return sorted(f"h{number}-{row}" for number in range(files) for row in range(rows))


class Kept:
    """A running query, and the values of each of its micro-batches; a replayed micro-batch replaces the first one."""

    def __init__(self, frame: DataFrame, checkpoint: Path, before: Kept | None = None) -> None:
        self.batches: dict[int, list[str]] = {} if before is None else before.batches
        writer = frame.writeStream.option("checkpointLocation", str(checkpoint))
        self.query = writer.foreachBatch(self._keep).start()

    def _keep(self, batch: DataFrame, number: int) -> None:
        self.batches[number] = sorted(row.value for row in batch.collect())

    def values(self) -> list[str]:
        return [value for _, batch in sorted(self.batches.items()) for value in batch]

    def wait_for(self, count: int) -> list[str]:
        """Return the values, in order, once there are so many."""
        deadline = time.monotonic() + 200
        while len(self.values()) < count and self.query.isActive and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.values()


def test_a_batch_reads_both_sources(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("l0\nl1\n")
    source = HybridSource(history(tmp_path / "in", 3), GrowingFile(path=str(tmp_path / "log")))
    found = sorted(row.value for row in forebay.read(spark, source).collect())
    assert found == [*expected(3), "l0", "l1"]


def test_a_stream_goes_from_the_history_to_live_data_and_over_restarts(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("l0\nl1\n")
    source = HybridSource(history(tmp_path / "in", 5), GrowingFile(path=str(log)))
    options = {"max_files_per_trigger": 2, "max_rows_per_trigger": 1}
    first = Kept(forebay.read_stream(spark, source, **options), tmp_path / "checkpoint")
    try:
        found = first.wait_for(12)
    finally:
        first.query.stop()
    assert found == [*expected(5), "l0", "l1"], "maxRowsPerTrigger does not stop files, which cannot be counted"
    assert [len(batch) for _, batch in sorted(first.batches.items())] == [4, 4, 2, 1, 1]
    (tmp_path / "in" / "late.txt").write_text("too late\n")
    with log.open("a") as file:
        file.write("l2\n")
    again = Kept(forebay.read_stream(spark, source, **options), tmp_path / "checkpoint", first)
    try:
        assert again.wait_for(13)[12:] == ["l2"]
        with log.open("a") as file:
            file.write("l3\n")
        assert again.wait_for(14)[12:] == ["l2", "l3"]
    finally:
        again.query.stop()


@pytest.mark.soak
def test_available_now_reads_one_source_in_each_run(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("l0\n")
    source = HybridSource(history(tmp_path / "in", 3), GrowingFile(path=str(tmp_path / "log")))
    runs = []
    for _ in range(3):
        frame = forebay.read_stream(spark, source)
        rows: list[str] = []

        def keep(batch: DataFrame, _n: int, rows: list[str] = rows) -> None:
            rows += [row.value for row in batch.collect()]

        writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(keep)
        assert writer.trigger(availableNow=True).start().awaitTermination(120)
        runs.append(sorted(rows))
    assert runs == [expected(3), ["l0"], []]


def after_names(then: Source, finished: Sequence[Split]) -> GrowingFile:
    """Start after the number in the name of the last file."""
    assert isinstance(then, GrowingFile)
    return GrowingFile(path=then.path, start=max(int(Path(split.id).stem) for split in finished) + 1)


@pytest.mark.soak
def test_the_switch_follows_from_the_files(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"l{number}\n" for number in range(6)))
    source = HybridSource(history(tmp_path / "in", 4, 1), GrowingFile(path=str(log)), switch=after_names)
    first = Kept(forebay.read_stream(spark, source), tmp_path / "checkpoint")
    try:
        assert first.wait_for(6) == [*expected(4, 1), "l4", "l5"]
    finally:
        first.query.stop()
    with log.open("a") as file:
        file.write("l6\n")
    again = Kept(forebay.read_stream(spark, source), tmp_path / "checkpoint", first)
    try:
        assert again.wait_for(7)[4:] == ["l4", "l5", "l6"]
    finally:
        again.query.stop()


def test_format_forebay_hybrid_by_options(spark: SparkSession, tmp_path: Path) -> None:
    forebay.register(spark)
    history(tmp_path / "in", 2)
    history(tmp_path / "more", 1)
    reader = (
        spark.read.format("forebay_hybrid").option("first.format", "forebay_files").option("first.fileFormat", "text")
    )
    reader = reader.option("first.path", str(tmp_path / "in")).option("then.format", "forebay_files")
    reader = reader.option("then.path", str(tmp_path / "more")).option("then.fileFormat", "text")
    assert sorted(row.value for row in reader.load().collect()) == sorted([*expected(2), *expected(1)])


@pytest.mark.soak
def test_two_hybrids_in_one_query(spark: SparkSession, tmp_path: Path) -> None:
    frames = []
    for name in ("a", "b"):
        (tmp_path / f"{name}.log").write_text(f"{name}0\n")
        source = HybridSource(history(tmp_path / name, 2), GrowingFile(path=str(tmp_path / f"{name}.log")))
        frames.append(forebay.read_stream(spark, source))
    kept = Kept(frames[0].union(frames[1]), tmp_path / "checkpoint")
    try:
        assert sorted(kept.wait_for(10)) == sorted([*expected(2), *expected(2), "a0", "b0"])
    finally:
        kept.query.stop()


@pytest.mark.soak
def test_many_files_of_history(spark: SparkSession, tmp_path: Path) -> None:
    files = 250
    log = tmp_path / "log"
    log.write_text("l0\n")
    source = HybridSource(history(tmp_path / "in", files, 1), GrowingFile(path=str(log)))
    kept = Kept(forebay.read_stream(spark, source, max_files_per_trigger=200), tmp_path / "checkpoint")
    try:
        found = kept.wait_for(files + 1)
    finally:
        kept.query.stop()
    assert found[-1] == "l0" and sorted(found[:-1]) == expected(files, 1)
