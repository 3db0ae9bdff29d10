# SPDX-License-Identifier: Apache-2.0
"""The log whose segments roll over keeps the contract, and a stream of it that is killed loses nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from segment_log import SegmentLog, SegmentWriter  # see conftest.py

import forebay
from forebay import Split
from forebay.testkit import SourceContract
from forebay.testkit.kills import Kill, Killable, KillList, MicroBatchFiles, restart_until_done


class TestSegmentLog(SourceContract):
    @pytest.fixture(autouse=True)
    def directory(self, tmp_path):
        self.root, self.writers = tmp_path, {}

    def source(self):
        return SegmentLog(directory=str(self.root), page_rows=2)

    def add_split(self):
        name = f"log {len(self.writers)}"
        self.writers[name] = SegmentWriter(self.root, name, records=3)
        return name

    def write(self, split_id, n):
        first = self.writers[split_id].written
        self.writers[split_id].append(*(f"event {first + i}" for i in range(n)))
        return [{"log": split_id, "record": i, "text": f"event {i}"} for i in range(first, first + n)]


class KillableSegmentLog(Killable, SegmentLog):  # type: ignore[misc]
    """With points at which a kill ends the process."""


@pytest.mark.soak
def test_segments_that_roll_over_between_kills_lose_and_double_nothing(spark, tmp_path):
    """Records are written, and segments roll over, before each start of the killed query."""
    (tmp_path / "logs").mkdir()
    writers = [SegmentWriter(tmp_path / "logs", name, records=7) for name in ("north", "south")]
    kills = KillList(tmp_path / "kills")
    kills.arm(Kill("plan-ends"), Kill("read-middle"), Kill("tasks-end"))
    source: Any = KillableSegmentLog
    forebay.register(spark, source)
    options = {"directory": str(tmp_path / "logs"), "pageRows": 3, "kills": kills.directory}

    def start():
        for writer in writers:
            writer.append(*(f"event {writer.written + n}" for n in range(20)))
        stream = spark.readStream.format(source.name).options(**options).load()
        writer = stream.select("log", "record").writeStream.foreachBatch(MicroBatchFiles(tmp_path / "rows", kills))
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()

    restart_until_done(start, kills)
    assert kills.armed() == []
    expected = [
        [name, n] for name, writer in zip(("north", "south"), writers, strict=True) for n in range(writer.written)
    ]
    assert MicroBatchFiles(tmp_path / "rows").rows() == sorted(map(json.dumps, expected))
    assert all(writer.written >= 60 for writer in writers)


def test_a_record_may_hold_other_line_ends(tmp_path):
    SegmentWriter(tmp_path, "north").append("a\rb", "c\u2028d", "e")
    source = SegmentLog(directory=str(tmp_path))
    end = source.latest(Split("north"))
    batches: list[Any] = list(source.read(Split("north", None, end)))
    assert [row[1:] for batch in batches for row in batch.rows] == [
        (0, "a\rb"),
        (1, "c\u2028d"),
        (2, "e"),
    ]


def test_segments_that_were_deleted_before_they_were_read_are_a_loss(tmp_path):
    """What is read already may go; without a position, a read begins with what there is."""
    SegmentWriter(tmp_path, "north", records=3).append(*"abcdefgh")
    source = SegmentLog(directory=str(tmp_path))
    end = source.latest(Split("north"))

    def records(position):
        batches: list[Any] = list(source.read(Split("north", position, end)))
        return [row[1] for batch in batches for row in batch.rows]

    (tmp_path / "north" / f"{0:012d}.seg").unlink()
    assert records(None) == records((0, 3)) == [3, 4, 5, 6, 7]
    with pytest.raises(forebay.DataLossError, match=r"'north' with the records from 2 on[\s\S]*restore them"):
        records((0, 2))
    for segment in (3, 6):
        (tmp_path / "north" / f"{segment:012d}.seg").unlink()
    with pytest.raises(forebay.DataLossError, match="from 6 on"):
        records((6, 0))
    assert records(end) == []
