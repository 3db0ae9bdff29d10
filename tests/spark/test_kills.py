# SPDX-License-Identifier: Apache-2.0
"""Processes of a streaming query are killed at named points; its sink contains each row once."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

import forebay
from forebay.sources.rate import RateSource
from forebay.testkit.kills import Kill, KillList, MicroBatchFiles, restart_until_done, run_until_done

PROGRAM = Path(__file__).parent / "kill_program.py"

RATE = {"rows": 240, "numSplits": 3, "maxRowsPerTrigger": 90, "maxRowsPerBatch": 8}


@pytest.fixture(scope="module")
def program() -> ModuleType:
    """The program as a module, so that its sources can be read in this process too."""
    spec = importlib.util.spec_from_file_location("kill_program", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kill_program"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def kills(tmp_path) -> KillList:
    return KillList(tmp_path / "kills")


def planned(place, kills, **changes):
    return {
        "format": "killable_rate",
        "options": RATE,
        "rows": str(place / "rows"),
        "checkpoint": str(place / "checkpoint"),
        "kills": kills.directory,
        "master": "local[2,3]",
    } | changes


@pytest.fixture(scope="module")
def undisturbed() -> list[str]:
    """All rows as the sink writes them, read by the in-process host."""
    source = RateSource(rows=RATE["rows"], num_splits=RATE["numSplits"])
    rows = forebay.run(source).to_table().to_pylist()
    naive = [row | {"timestamp": row["timestamp"].astimezone().replace(tzinfo=None)} for row in rows]
    return sorted(json.dumps(list(row.values()), default=str) for row in naive)


RUNNER = [
    Kill("discovered"),
    Kill("plan-ends", at=3),
    Kill("tasks-begin", at=5),
    Kill("commit-begins", at=3),
    Kill("commit-ends", at=5),
    Kill("plan-begins", at=9),
]
WORKER = [
    Kill("read-begins"),
    Kill("read-first", at=4),
    Kill("read-middle", at=20),
    Kill("read-ends", at=6),
    Kill("read-middle", at=60),
    Kill("read-ends", at=14),
]


def test_kills_of_stream_runner_and_workers_lose_and_double_nothing(spark, program, undisturbed, kills, tmp_path):
    forebay.register(spark, *program.SOURCES)
    kills.arm(*RUNNER, *WORKER)
    starts = restart_until_done(lambda: program.start(spark, planned(tmp_path, kills), kills), kills)
    assert MicroBatchFiles(tmp_path / "rows").rows() == undisturbed
    assert kills.armed() == []
    assert starts > len(RUNNER)


CLAIMS = [
    Kill("claim-begins", at=2),
    Kill("claim-made"),
    Kill("read-middle", at=4),
    Kill("claim-made", at=5),
    Kill("tasks-begin", at=2),
    Kill("plan-ends", at=3),
]


def test_kills_around_claims_lose_and_double_nothing(spark, program, kills, tmp_path):
    """S14: unknown ends are negotiated, also with tasks that are killed after the negotiation."""
    (tmp_path / "logs").mkdir()
    for split in ("a", "b"):
        lines = [f"{split}{number}" for number in range(100, 160)]
        (tmp_path / "logs" / f"{split}.log").write_text("".join(f"{line}\n" for line in lines))
    options = {"directory": str(tmp_path / "logs"), "stateLocation": str(tmp_path / "state"), "maxRowsPerTrigger": 40}
    plan = planned(tmp_path, kills, format="killable_log", options=options | {"maxRowsPerBatch": 5})
    forebay.register(spark, *program.SOURCES)
    kills.arm(*CLAIMS)
    restart_until_done(lambda: program.start(spark, plan, kills), kills)
    expected = sorted(json.dumps([split, f"{split}{number}"]) for split in ("a", "b") for number in range(100, 160))
    assert MicroBatchFiles(tmp_path / "rows").rows() == expected
    assert kills.armed() == []


# Each takes a new JVM; test_kills_soak.py has every point.
DRIVER = [Kill("sink-written", "driver", at=2), Kill("offset-logged", "jvm", at=4)]


def test_kills_of_the_driver_lose_and_double_nothing(undisturbed, kills, tmp_path):
    kills.arm(*DRIVER)
    plan = planned(tmp_path, kills)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    command = [sys.executable, "-P", str(PROGRAM), str(tmp_path / "plan.json")]
    starts = run_until_done(command, kills, checkpoint=plan["checkpoint"])
    assert MicroBatchFiles(tmp_path / "rows").rows() == undisturbed
    assert kills.armed() == []
    assert starts == len(DRIVER) + 1
