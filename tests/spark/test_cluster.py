# SPDX-License-Identifier: Apache-2.0
"""What only a cluster does: a second attempt beside one that still runs, and an executor that is lost."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from spark_cluster import SparkCluster

from forebay.errors import FatalError
from forebay.testkit.kills import Kill, KillList, MicroBatchFiles
from forebay.testkit.processes import session_of

PROGRAM = Path(__file__).parent / "cluster_program.py"


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> Path:
    """The directory where the program has left what it read, on a cluster that is gone."""
    place = tmp_path_factory.mktemp("cluster")
    with SparkCluster() as cluster:
        (place / "started_in").write_text(f"{cluster.started_in:.1f}")
        command = [sys.executable, "-P", str(PROGRAM), cluster.url, str(place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=550)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        sessions = [process.pid for _, process in cluster._processes]
    assert [session_of(pid) for pid in sessions] == [[], [], []]
    return place


@pytest.mark.soak
def test_a_speculative_attempt_overtakes_a_stuck_one_and_each_row_arrives_once(ran, record_property):
    record_property("report", f"a Spark cluster of two Workers was there after {(ran / 'started_in').read_text()} s")
    place = ran / "speculation"
    assert (place / "stuck").read_text().startswith("0 ")
    assert not (place / "gave up").exists()
    stuck = (place / "stuck").read_text().split()[1]
    passed = [path.name.split(".")[1:] for path in place.glob("passed.*")]
    assert any(attempt == "1" and pid != stuck for attempt, pid in passed)
    expected = sorted(json.dumps([f"s{split}", n]) for split in range(4) for n in range(30))
    assert MicroBatchFiles(place / "rows").rows() == expected


@pytest.mark.soak
def test_an_executor_killed_in_a_micro_batch_loses_and_doubles_nothing(ran):
    place = ran / "executor"
    assert KillList(place / "kills").fired() == [Kill("read-middle", "executor", at=5)]
    rows = [json.loads(row) for row in MicroBatchFiles(place / "rows").rows()]
    assert sorted(value for _, value, _ in rows) == list(range(400))


def test_of_two_processes_the_log_of_the_one_that_ended_is_shown(tmp_path):
    cluster, log = SparkCluster(), tmp_path / "runs"
    for path, command in ((tmp_path / "ended", "exit 3"), (log, "sleep 60")):
        path.write_text(f"the log of {command}")
        process = subprocess.Popen(["/bin/sh", "-c", command], start_new_session=True)
        cluster._processes.append((path, process))
    cluster._processes[0][1].wait()
    try:
        with pytest.raises(FatalError, match="ended with code 3:\nthe log of exit 3"):
            cluster._wait_for(log, "(ready)", time.monotonic())
    finally:
        cluster._stop()


def test_a_cluster_that_cannot_start_says_why():
    with pytest.raises(FatalError, match=r"did not start: a process ended with code \d+:\n(.|\n)*/nowhere/bin/java"):
        SparkCluster(environment={"JAVA_HOME": "/nowhere"}).__enter__()
