# SPDX-License-Identifier: Apache-2.0
"""The writer of a target is killed by SIGKILL at each numbered point; the target equals that of an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark import cloudpickle

from forebay.spark.changelog.targets.postgres import CopyPartition
from forebay.testkit.kills import Kill, KillList, run_until_done

WRITER = Path(__file__).parent / "writer_program.py"
STREAM = Path(__file__).parent / "stream_program.py"

EXPECTED = {
    "plain": [[1, "a2"], [3, "c"]],
    "sequence": [[1, "a2", 2], [3, "c", 1], [2, 2], [4, 2]],
    "history": [[1, "a", 1, 2], [1, "a2", 2, None], [2, "b", 1, 2], [3, "c", 1, None], [2, 2], [4, 2]],
}
"""Rows, and after them the deleted keys that are remembered."""


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["plain", "sequence", "history"])
def test_a_writer_killed_at_any_point_leaves_whole_micro_batches(postgres, kind, record_property):
    """P8: before each statement, commit and COPY of two micro-batches, and after them; then all is written again."""
    command = [sys.executable, "-P", str(WRITER), postgres, kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["wrong"] == []
    assert result["expected"] == [EXPECTED[kind], []]
    assert result["points"] > 30
    record_property("report", f"PostgresTarget, {kind}: killed at {result['points']} points")


@dataclass(frozen=True)
class DiesOnce(CopyPartition):
    """Copies, commits, and dies before Spark knows it."""

    mark: str = ""

    def __call__(self, batches):
        results = list(super().__call__(batches))
        if not os.path.exists(self.mark):
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield from results


def test_rows_of_a_task_that_died_after_its_copy_count_once(spark, table, tmp_path):
    """Spark runs the task again, and the staging table has its rows twice."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not import the tests
    copier = table.target._copier
    table.target._copier = lambda statements: DiesOnce(**vars(copier(statements)), mark=str(tmp_path / "died"))
    df = spark.range(100).selectExpr("id", "id * 2 AS v").coalesce(1)
    assert table.target.apply(df, 0, "q", keys="id")
    assert (tmp_path / "died").exists()
    assert sorted(table.rows()) == [(number, 2 * number) for number in range(100)]


@pytest.mark.soak
def test_a_stream_whose_driver_is_killed_gives_the_table_of_an_undisturbed_run(table, tmp_path, record_property):
    """P8, §3.2: before the transaction, after it, and in a worker."""
    kills = KillList(tmp_path / "kills")
    kills.arm(
        Kill("sink-begins", "driver", at=1),
        Kill("read-middle", at=4),
        Kill("sink-written", "driver", at=2),
    )
    options = {"rows": 100, "numSplits": 3, "maxRowsPerTrigger": 100, "kills": kills.directory}
    plan = {
        "options": options,
        "dsn": table.dsn,
        "table": table.name,
        "checkpoint": str(tmp_path / "checkpoint"),
        "kills": kills.directory,
    }
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    command = [sys.executable, "-P", str(STREAM), str(tmp_path / "plan.json")]
    starts = run_until_done(command, kills, checkpoint=plan["checkpoint"], timeout=300)
    assert kills.armed() == []
    last = {number % 40: number for number in range(300)}
    assert sorted(table.rows("id, v")) == sorted((key, value) for key, value in last.items() if value % 7)
    record_property("report", f"apply_changes into PostgreSQL: {len(kills.fired())} kills, {starts} starts")
