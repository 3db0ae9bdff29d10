# SPDX-License-Identifier: Apache-2.0
"""What a stream of many files remembers, in a real Spark: below the session's checkpoints, or where the option says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import forebay

CHECKPOINTS = "spark.sql.streaming.checkpointLocation"


@pytest.fixture
def checkpoints(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "checkpoints"
    spark.conf.set(CHECKPOINTS, str(place))
    forebay.register(spark)
    yield place
    spark.conf.unset(CHECKPOINTS)
    forebay.register(spark)


def put(inbox: Path, first: int, last: int) -> None:
    inbox.mkdir(exist_ok=True)
    for number in range(first, last):
        (inbox / f"part-{number:05}-{number * 2654435761 % 2**32:08x}.txt").write_text(f"{number}\n")


def run(spark: SparkSession, inbox: Path, checkpoint: Path, **options: Any) -> list[int]:
    """Read what there is; return the numbers that arrived."""
    arrived: list[int] = []
    reader = spark.readStream.format("forebay_files").schema("value string").options(fileFormat="text", **options)
    writer = reader.load(str(inbox)).writeStream.foreachBatch(
        lambda frame, _n: arrived.extend(int(row[0]) for row in frame.collect())
    )
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination(200)
    assert not query.isActive
    return sorted(arrived)


def last_offset(checkpoint: Path) -> dict[str, Any]:
    logged = max(
        (one for one in (checkpoint / "offsets").iterdir() if one.name.isdigit()), key=lambda one: int(one.name)
    )
    found: dict[str, Any] = json.loads(logged.read_text().splitlines()[2])
    return found


@pytest.mark.soak
def test_by_default_the_memory_lies_beside_the_checkpoints(spark, checkpoints, tmp_path):
    inbox = tmp_path / "in"
    put(inbox, 0, 900)
    assert run(spark, inbox, checkpoints / "q", maxFilesPerTrigger=500) == list(range(900))
    offset = last_offset(checkpoints / "q")
    state = offset["state"]
    assert state["at"] == str(checkpoints / "_forebay")
    assert (checkpoints / "_forebay" / offset["id"] / "segments" / state["segment"]).is_file()
    put(inbox, 900, 910)
    assert run(spark, inbox, checkpoints / "q") == list(range(900, 910))
    assert max(len(one.read_bytes()) for one in (checkpoints / "q" / "offsets").iterdir()) < 32 << 10


@pytest.mark.soak
def test_a_query_without_location_takes_one_later_and_keeps_it(spark, tmp_path):
    forebay.register(spark)
    inbox, place = tmp_path / "in", str(tmp_path / "state")
    put(inbox, 0, 800)
    assert run(spark, inbox, tmp_path / "q") == list(range(800))
    assert "state" not in last_offset(tmp_path / "q")
    put(inbox, 800, 810)
    assert run(spark, inbox, tmp_path / "q", stateLocation=place) == list(range(800, 810))
    assert last_offset(tmp_path / "q")["state"]["at"] == place
    put(inbox, 810, 820)
    with pytest.raises(StreamingQueryException, match="keeps its state below stateLocation") as caught:
        run(spark, inbox, tmp_path / "q")
    found = forebay.unwrap(caught.value)
    assert found is not None and place in str(found.advice)
    assert run(spark, inbox, tmp_path / "q", stateLocation=place) == list(range(810, 820))
