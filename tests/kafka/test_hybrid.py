# SPDX-License-Identifier: Apache-2.0
"""An archive of files, then the topic: in this process, on Spark, and while processes die around the switch."""

from __future__ import annotations

import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay
from forebay import ConfigurationError, DataLossError, FileSource, HybridSource, KafkaSource, Source, Split
from forebay.testkit.kills import Kill, KillList, MicroBatchFiles, run_until_done

PROGRAM = Path(__file__).parent.parent / "spark" / "kill_program.py"
NOON = 1_700_000_000_000


def archive(directory: Path, numbers: Sequence[int], *, each: int = 10) -> FileSource:
    """Write an archive of the topic: the file is named for the offset of its first record."""
    directory.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(numbers), each):
        part = numbers[start : start + each]
        times = pa.array([(NOON + n) * 1000 for n in part], pa.timestamp("us", "UTC"))
        table = pa.table({"value": [str(n).encode() for n in part], "timestamp": times})
        pq.write_table(table, directory / f"{part[0]:06}.parquet")
    return FileSource(path=str(directory), file_format="parquet")


def live(kafka: Any, topic: str, **options: Any) -> KafkaSource:
    return KafkaSource(subscribe=[topic], kafka={"bootstrap.servers": kafka.address}, **options)


def after_archive(then: Source, finished: Sequence[Split]) -> Source:
    """Start at the offset after the last file, whose name and size in records say it."""
    assert isinstance(then, KafkaSource)
    end = max(int(Path(split.id).stem) for split in finished) + 10
    (topic,) = then.subscribe or ()
    start = json.dumps({topic: {"0": end}})
    return KafkaSource(subscribe=[topic], starting_offsets=start, kafka=then.kafka)


def values(run: forebay.Run) -> list[int]:
    return [int(value.as_py()) for batch in run for value in batch.column("value")]


def test_the_whole_topic_follows_the_archive_by_default(kafka: Any, tmp_path: Path) -> None:
    """A query of Kafka alone starts at the latest offsets; after an archive this would be a gap."""
    topic = kafka.topic()
    kafka.send(topic, range(20, 25))
    source = HybridSource(archive(tmp_path, range(20)), live(kafka, topic), columns=["value", "timestamp"])
    assert values(forebay.run(source, until_caught_up=True)) == list(range(25))


def test_the_switch_leaves_neither_gap_nor_overlap(kafka: Any, tmp_path: Path) -> None:
    topic = kafka.topic()
    kafka.send(topic, range(35))
    source = HybridSource(archive(tmp_path, range(20)), live(kafka, topic), columns=["value"], switch=after_archive)
    assert values(forebay.run(source, until_caught_up=True)) == list(range(35))


def test_a_start_by_time_overlaps_as_chosen(kafka: Any, tmp_path: Path) -> None:
    topic = kafka.topic()
    for number in range(30):
        kafka.send(topic, [number], timestamp_ms=NOON + number)
    source = HybridSource(
        archive(tmp_path, range(20)), live(kafka, topic, starting_timestamp=NOON + 18), columns=["value"]
    )
    assert values(forebay.run(source, until_caught_up=True)) == [*range(20), *range(18, 30)]


def test_a_switch_position_that_is_already_deleted_is_an_error(kafka: Any, tmp_path: Path) -> None:
    topic = kafka.topic()
    kafka.send(topic, range(40))
    kafka.lose(topic, 0, before=30)
    source = HybridSource(archive(tmp_path, range(20)), live(kafka, topic), columns=["value"], switch=after_archive)
    with pytest.raises((DataLossError, ConfigurationError), match="20"):
        values(forebay.run(source, until_caught_up=True))


def test_the_columns_of_kafka_and_of_an_archive_are_compared(kafka: Any, tmp_path: Path) -> None:
    source = HybridSource(archive(tmp_path, range(10)), live(kafka, kafka.topic()))
    with pytest.raises(ConfigurationError, match=r"topic +- +(large_)?string|topic +- "):
        forebay.run(source)


def test_the_watermark_does_not_jump_at_the_switch(kafka: Any, tmp_path: Path) -> None:
    """Between the two sources no split is open; the watermark waits for the first record of the next one."""
    topic = kafka.topic()
    for number in range(20, 26):
        kafka.send(topic, [number], timestamp_ms=NOON + number)
    source = HybridSource(archive(tmp_path, range(20)), live(kafka, topic), columns=["value", "timestamp"])
    strategy = forebay.WatermarkStrategy.bounded_disorder(0.001)
    found = []
    with forebay.run(source, until_caught_up=True, watermarks=strategy) as run:
        for batch in run:
            first = NOON * 1000 + 1000 * int(batch.column("value")[0].as_py())
            found.append((run.watermark, first))
    assert len(found) >= 3
    assert all(watermark is None or watermark < first for watermark, first in found)


@pytest.mark.soak
def test_a_stream_on_spark_goes_from_the_archive_to_the_topic(spark: Any, kafka: Any, tmp_path: Path) -> None:
    topic = kafka.topic(2)
    kafka.send(topic, range(100, 103))
    archive(tmp_path / "in", range(30))
    checkpoint, batches = str(tmp_path / "checkpoint"), {}

    def keep(batch: Any, number: int) -> None:
        batches[number] = sorted(int(row.value) for row in batch.collect())

    def found() -> list[int]:
        return [value for _, batch in sorted(batches.items()) for value in batch]

    def start() -> Any:
        reader = spark.readStream.format("forebay_hybrid").option("commonColumns", "value")
        reader = reader.options(**{"first.format": "forebay_files", "first.fileFormat": "parquet"})
        reader = reader.options(**{"first.path": str(tmp_path / "in"), "then.format": "forebay_kafka"})
        reader = reader.options(**{"then.subscribe": topic, "then.kafka.bootstrap.servers": kafka.address})
        frame = reader.options(maxFilesPerTrigger=2, maxRowsPerTrigger=3).load()
        writer = frame.writeStream.option("checkpointLocation", checkpoint)
        return writer.foreachBatch(keep).start()

    def wait_for(count: int) -> None:
        deadline = time.monotonic() + 120
        while len(found()) < count and time.monotonic() < deadline:
            time.sleep(0.05)

    query = start()
    wait_for(33)
    query.stop()
    assert sorted(found()[:30]) == list(range(30)) and found()[30:] == [100, 101, 102]
    kafka.send(topic, range(200, 205), 1)
    query = start()
    wait_for(38)
    query.stop()
    assert sorted(found()[33:]) == list(range(200, 205))


POINTS = ("plan-begins", "discovered", "plan-ends", "tasks-begin", "tasks-end", "commit-begins", "commit-ends")
READS = ("read-begins", "read-first", "read-ends")
KILLS = 16


def around_the_switch(seed: int) -> list[Kill]:
    """Draw kills at the visits of each point before, at and after the switch."""
    chance = random.Random(f"hybrid {seed}")
    names = chance.choices(POINTS, k=7)  # commits are rarest: a killed runner has none for its micro-batch
    runner = [Kill(name, "self", chance.randint(1, 3 if name.startswith("commit") else 7)) for name in names]
    worker = [Kill(chance.choice(READS), "self", chance.randint(1, 8)) for _ in range(6)]
    driver = [Kill(chance.choice(POINTS), "jvm", chance.randint(1, 3)) for _ in range(2)]
    return [*runner, *worker, *driver, Kill("sink-written", "driver", chance.randint(1, 6))]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_kills_around_the_switch_lose_and_double_nothing(
    kafka: Any, tmp_path: Path, seed: int, record_property: Any
) -> None:
    topic = kafka.topic(2)
    for partition in (0, 1):
        kafka.send(topic, range(1000 * (partition + 1), 1000 * (partition + 1) + 60), partition)
    archive(tmp_path / "in", range(80))
    kills = KillList(tmp_path / "kills")
    kills.arm(*around_the_switch(seed))
    options = {
        "first.format": "forebay_files",
        "first.fileFormat": "parquet",
        "first.path": str(tmp_path / "in"),
        "then.format": "forebay_kafka",
        "then.subscribe": topic,
        "then.kafka.bootstrap.servers": kafka.address,
        "commonColumns": "value",
        "maxFilesPerTrigger": 2,
        "maxRowsPerTrigger": 30,
        "maxRowsPerBatch": 5,
    }
    expected = [*range(80), *range(1000, 1060), *range(2000, 2060)]
    plan = {
        "format": "killable_hybrid",
        "options": options,
        "rows": str(tmp_path / "rows"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "kills": kills.directory,
        "master": "local[2,3]",
        "expected": len(expected),
    }
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    command = [sys.executable, "-P", str(PROGRAM), str(tmp_path / "plan.json")]
    run_until_done(command, kills, checkpoint=plan["checkpoint"], timeout=400)
    found = sorted(
        int(number) for row in MicroBatchFiles(tmp_path / "rows").rows() for number in re.findall(r"\d+", row)
    )
    assert found == sorted(expected)
    assert kills.armed() == []
    fired = Counter(f"{kill.point} {kill.victim}" for kill in kills.fired())
    record_property("report", f"{fired.total()} kills around the switch: {dict(sorted(fired.items()))}")
    assert fired.total() == KILLS
