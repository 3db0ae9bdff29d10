# SPDX-License-Identifier: Apache-2.0
"""What a queue has acknowledged is read once, whatever step a crash interrupts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import acked_queue  # see conftest.py
import pytest
from acked_queue import AckedQueue, Broker

import forebay
from forebay import Split
from forebay.testkit import ConformanceError, ConformanceWarning, SourceContract, check
from forebay.testkit.kills import Kill, Killable, KillList, MicroBatchFiles, restart_until_done


@pytest.fixture
def source(tmp_path):
    Broker(tmp_path / "queue").send(*(f"message {n}" for n in range(20)))
    return AckedQueue(queue=str(tmp_path / "queue"), spool=str(tmp_path / "spool"))


class TestAckedQueue(SourceContract):
    most_splits = 1

    @pytest.fixture(autouse=True)
    def directory(self, tmp_path):
        self.root = tmp_path
        Broker(tmp_path / "queue").send()

    def source(self):
        return AckedQueue(queue=str(self.root / "queue"), spool=str(self.root / "spool"))

    def add_split(self):
        return "all"

    def write(self, split_id, n):
        broker = Broker(self.root / "queue")
        before = set(os.listdir(broker.place))
        broker.send(*(f"message {number}" for number in range(n)))
        new = sorted(set(os.listdir(broker.place)) - before)
        return [json.loads((broker.place / name).read_text()) for name in new]


def test_check_warns_before_it_takes_the_messages_and_passes(source):
    with pytest.warns(ConformanceWarning, match="consumes its input: 20|consumes its input"):
        assert check(source).verdict == "passed"


def test_a_queue_that_acknowledges_what_it_reads_is_caught_with_the_next_step(tmp_path):
    Broker(tmp_path / "queue").send("one", "two")

    class Naive(AckedQueue):  # type: ignore[misc]
        positions_are_rows = False

        def latest(self, split):
            return None

        def read(self, split):
            broker = Broker(self.queue)
            for message in broker.pull(100):
                broker.acknowledge([message["id"]])
                yield message

    with pytest.warns(ConformanceWarning), pytest.raises(ConformanceError) as caught:
        check(Naive(queue=str(tmp_path / "queue"), spool=""), seconds=6)
    first = str(caught.value).splitlines()[0]
    assert "breaks RDR-5" in first and "store them durably before you acknowledge" in first, first


class Crash(BaseException):
    """Ends the process at once, as a kill does."""


STEPS = ["open", "pull", "fsync", "acknowledge", "unlink"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("number", [1, 2])
def test_a_crash_at_any_step_loses_and_doubles_nothing(source, monkeypatch, step, number):
    left = [number]

    def crashing(original):
        def call(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                raise Crash
            return original(*args, **kwargs)

        return call

    with monkeypatch.context() as patches:
        if step == "open":
            patches.setattr(acked_queue, "open", crashing(open), raising=False)
        elif step == "fsync":
            patches.setattr(os, "fsync", crashing(os.fsync))
        elif step == "unlink":
            patches.setattr(Path, "unlink", crashing(Path.unlink))
        else:
            patches.setattr(Broker, step, crashing(getattr(Broker, step)))
        with pytest.raises(Crash):
            for _ in range(number):
                source.latest(forebay.Split("all"))
    with open(source.spool, "ab") as spool:
        spool.write(b'{"id": "half')  # of a write that the crash interrupted
    rows = forebay.run(source, until_caught_up=True).to_table().to_pylist()
    assert sorted(row["text"] for row in rows) == sorted(f"message {n}" for n in range(20))
    assert os.listdir(source.queue) == []


def test_a_new_spool_is_on_its_disk_with_its_name_before_anything_is_acknowledged(source, monkeypatch):
    done, fsync, acknowledge = [], os.fsync, Broker.acknowledge

    def syncing(descriptor):
        done.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def acknowledging(broker, names):
        done.append("acknowledged")
        acknowledge(broker, names)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(Broker, "acknowledge", acknowledging)
    source.latest(Split("all"))
    assert done == [os.stat(source.spool).st_ino, os.stat(os.path.dirname(source.spool)).st_ino, "acknowledged"]


def test_a_spool_that_is_gone_takes_no_message(source, tmp_path):
    with forebay.run(source, checkpoint=tmp_path / "state", until_caught_up=True) as batches:
        assert sum(batch.num_rows for batch in batches) == 20
    Path(source.spool).unlink()
    Broker(source.queue).send("late")
    with pytest.raises(forebay.DataLossError, match="has 0 messages, and 20 were read"):
        forebay.run(source, checkpoint=tmp_path / "state", until_caught_up=True).to_table()
    assert len(os.listdir(source.queue)) == 1


class KillableQueue(Killable, AckedQueue):  # type: ignore[misc]
    """With points at which a kill ends the process."""


@pytest.mark.soak
def test_a_killed_stream_of_acknowledged_messages_loses_and_doubles_nothing(spark, tmp_path):
    kills = KillList(tmp_path / "kills")
    kills.arm(Kill("plan-ends"), Kill("read-middle"), Kill("tasks-end"))
    killable: Any = KillableQueue
    forebay.register(spark, killable)
    queue, sent = Broker(tmp_path / "queue"), []
    options = {"queue": str(queue.place), "spool": str(tmp_path / "spool"), "kills": kills.directory, "pullRows": 15}

    def start():
        texts = [f"message {len(sent) + n}" for n in range(20)]
        sent.extend(texts)
        queue.send(*texts)
        stream = spark.readStream.format(killable.name).options(maxRowsPerTrigger=7, **options).load()
        writer = stream.select("text").writeStream.foreachBatch(MicroBatchFiles(tmp_path / "rows", kills))
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()

    restart_until_done(start, kills)
    assert kills.armed() == []
    rows = MicroBatchFiles(tmp_path / "rows").rows()
    acknowledged = set(sent) - {json.loads(path.read_text())["text"] for path in queue.place.iterdir()}
    assert len(rows) == len(set(rows))
    assert {json.loads(row)[0] for row in rows} == acknowledged


def test_a_message_that_a_pull_brings_twice_is_stored_once(source, monkeypatch):
    pull = Broker.pull
    monkeypatch.setattr(Broker, "pull", lambda self, most: [m for m in pull(self, most) for _ in range(2)])
    assert source.latest(Split("all")) == 20
    assert len({row["id"] for row in source.read(Split("all", None, 20))}) == 20
    assert os.listdir(source.queue) == []
