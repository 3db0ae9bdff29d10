# SPDX-License-Identifier: Apache-2.0
"""A topic of changes becomes an index while its driver is killed again and again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forebay.changelog import current_view
from forebay.index import SearchNode
from forebay.table.index.pipelines import IndexStore
from forebay.table.index.verify import verify

PROGRAM = Path(__file__).parent / "index_program.py"
KILLS = int(os.environ.get("FOREBAY_INDEX_KILLS", "20"))


def random_changes(model: dict[int, str], chance: random.Random, first: int, count: int) -> list[tuple[int, bytes]]:
    """Changes of random keys with their partition, which are also made to the model."""
    made = []
    for lsn in range(first, first + count):
        key = chance.randrange(60)
        before = {"id": key, "name": model[key]} if key in model else None
        after = None if before is not None and chance.random() < 0.3 else {"id": key, "name": f"{key}.{lsn}"}
        op = "c" if before is None else "d" if after is None else "u"
        value = {"before": before, "after": after, "op": op, "source": {"lsn": lsn, "ts_ms": 1700000000000}}
        made.append((key % 3, json.dumps(value).encode()))
        if after is None:
            del model[key]
        else:
            model[key] = str(after["name"])
    return made


@pytest.mark.soak
def test_a_topic_whose_driver_is_killed_20_times_is_the_index(kafka: Any, spark: Any, tmp_path: Path) -> None:
    import kafka as client

    topic, chance, model = kafka.topic(3), random.Random(7), dict[int, str]()
    options = {
        "kafka.bootstrap.servers": kafka.address,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "changelogFormat": "debezium-json",
        "valueSchema": "id BIGINT, name STRING",
        "changelogSequence": "lsn",
    }
    plan = {"options": options, "location": str(tmp_path / "objects"), "checkpoint": str(tmp_path / "check")}
    file, ended, written = tmp_path / "plan.json", [], 0
    while ended.count(-signal.SIGKILL) < KILLS or ended[-1] != 0:
        killed = ended.count(-signal.SIGKILL)
        with client.KafkaProducer(bootstrap_servers=kafka.address) as producer:
            for partition, value in random_changes(model, chance, written, 90):
                producer.send(topic, value, key=b"k", partition=partition).get(30)
        written += 90
        file.write_text(json.dumps({**plan, "at": 1 + killed * 7 % 15 if killed < KILLS else 0}))
        command = [sys.executable, "-P", str(PROGRAM), str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
        ended.append(done.returncode)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        assert len(ended) <= 2 * KILLS + 1
    index = IndexStore(plan["location"], "Thing")
    with SearchNode(plan["location"], "Thing", cache=tmp_path / "cache") as node:
        rows = node.objects.limit(1000).fetch().rows
        assert verify(index, node.view()).is_equal
    assert [(row["id"], row["name"]) for row in rows] == sorted(model.items())
    view = current_view(spark.read.format("forebay_kafka").options(**options).load(), "id").collect()
    assert [(row["id"], row["name"]) for row in rows] == sorted((row["id"], row["name"]) for row in view)
    sys.stderr.write(f"{KILLS} kills, {written} changes, {index.head().number} facts of the log\n")
