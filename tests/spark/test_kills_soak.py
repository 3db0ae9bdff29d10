# SPDX-License-Identifier: Apache-2.0
"""Hundreds of kills, drawn by seed, over three kinds of sources, of files on S3 too: `make soak`."""

from __future__ import annotations

import json
import random
import string
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.sources.rate import RateSource
from forebay.testkit.kills import POINTS, STATE_POINTS, Kill, KillList, MicroBatchFiles, run_until_done

pytestmark = pytest.mark.soak

PROGRAM = Path(__file__).parent / "kill_program.py"
# Of each kind; 18 kills each.
SEEDS = {"rate": 4, "files": 4, "files on S3": 6, "log": 4}
LEAST = 300

# How often a point is visited at least in a run of any kind.
RUNNER = {
    "plan-begins": 14,
    "discovered": 1,
    "plan-ends": 14,
    "tasks-begin": 12,
    "tasks-end": 12,
    "commit-begins": 9,
    "commit-ends": 9,
}
WORKER = {"read-begins": 24, "read-first": 24, "read-middle": 12, "read-ends": 24}
DRIVER = {"sink-begins": 10, "sink-written": 10}
WATCHED = {"offset-logged": 10, "commit-logged": 9}


def rate(place: Path, expected: list[str]) -> dict[str, Any]:
    """Rows by number, all there from the beginning."""
    rows = forebay.run(RateSource(rows=500, num_splits=3)).to_table().to_pylist()
    naive = [row | {"timestamp": row["timestamp"].astimezone().replace(tzinfo=None)} for row in rows]
    expected += [json.dumps(list(row.values()), default=str) for row in naive]
    return {
        "format": "killable_rate",
        "options": {"rows": 500, "numSplits": 3, "maxRowsPerTrigger": 100, "maxRowsPerBatch": 12},
    }


def files(place: Path, expected: list[str]) -> dict[str, Any]:
    """Small files, three in a micro-batch, with names so long that what was read soon does not fit into an offset."""
    chance = random.Random(0)
    for number in range(45):
        directory, name = ("".join(chance.choices(string.ascii_letters + string.digits, k=200)) for _ in range(2))
        (place / "in" / directory).mkdir(parents=True)
        rows = [(number, index, f"{number}/{index}") for index in range(20)]
        text = "".join(f"{a},{b},{c}\n" for a, b, c in rows)
        (place / "in" / directory / f"{name}.csv").write_text(text)
        expected += [json.dumps(list(row)) for row in rows]
    return {
        "format": "killable_files",
        "schema": "a int, b int, c string",
        "options": {
            "path": str(place / "in"),
            "fileFormat": "csv",
            "recursiveFileLookup": "true",
            "maxFilesPerTrigger": 3,
            "maxRowsPerBatch": 10,
            "stateLocation": str(place / "state"),
        },
    }


def log(place: Path, expected: list[str]) -> dict[str, Any]:
    """Lines that are appended while they are read; their ends are unknown before they are read."""
    for name in ("in", "to_come"):
        (place / name).mkdir()
    for split in ("a", "b", "c"):
        lines = [f"{split}{number:05}" for number in range(200)]
        (place / "to_come" / f"{split}.rest").write_text("".join(f"{line}\n" for line in lines))
        (place / "in" / f"{split}.log").write_text("")
        expected += [json.dumps([split, line]) for line in lines]
    return {
        "format": "killable_log",
        "to_come": str(place / "to_come"),
        "expected": len(expected),
        "options": {"directory": str(place / "in"), "stateLocation": str(place / "state"), "pollInterval": "100 ms"},
    }


def draw(seed: str, more: dict[str, int]) -> list[Kill]:
    """Draw what dies where: many workers and runners, some drivers."""
    chance = random.Random(seed)
    worker = WORKER | {point: bound for point, bound in more.items() if point.startswith("claim")}
    runner = RUNNER | {point: bound for point, bound in more.items() if point not in worker}

    def some(points: dict[str, int], count: int, victim: Any = "self") -> list[Kill]:
        names = chance.choices(list(points), k=count)
        return [Kill(name, victim, chance.randint(1, points[name])) for name in names]

    drivers = [*some(runner | worker, 2, "jvm"), *some(WATCHED, 1, "jvm"), *some(DRIVER, 1, "driver")]
    return [*some(runner, 7), *some(worker, 7), *drivers]


_STATE = {"state-begins": 5, "state-written": 5}
# A source, and how often it visits points that not all sources visit, at least.
KINDS: dict[str, tuple[Callable[[Path, list[str]], dict[str, Any]], dict[str, int]]] = {
    "rate": (rate, {}),
    "files": (files, _STATE),
    "files on S3": (files, _STATE),
    "log": (log, {"ends-known": 6, "claim-begins": 12, "claim-made": 12}),
}


@pytest.fixture(scope="module")
def tally() -> Counter[str]:
    return Counter()


@pytest.mark.parametrize(("kind", "seed"), [(kind, seed) for kind, count in SEEDS.items() for seed in range(count)])
def test_kills_lose_and_double_nothing(kind, seed, tally, tmp_path, request):
    make, more = KINDS[kind]
    expected: list[str] = []
    kills = KillList(tmp_path / "kills")
    kills.arm(*draw(f"{kind} {seed}", more))
    checkpoint = str(tmp_path / "checkpoint")
    plan = make(tmp_path, expected) | {
        "rows": str(tmp_path / "rows"),
        "checkpoint": checkpoint,
        "kills": kills.directory,
        "master": "local[2,3]",
    }
    if kind == "files on S3":
        plan["options"] = request.getfixturevalue("bucket").moved(plan["options"], tmp_path.name)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    command = [sys.executable, "-P", str(PROGRAM), str(tmp_path / "plan.json")]
    run_until_done(command, kills, checkpoint=checkpoint, timeout=300)
    assert MicroBatchFiles(tmp_path / "rows").rows() == sorted(expected)
    assert kills.armed() == []
    tally.update(f"{kill.point:<14} {kill.victim}" for kill in kills.fired())


def test_there_were_enough_kills(tally, record_property):
    table = "\n".join(f"  {name:<22} {count:4}" for name, count in sorted(tally.items()))
    record_property("report", f"kills of streams, by point and victim:\n{table}\n  in all {tally.total():18}")
    assert tally.total() >= LEAST
    assert {name.split()[0] for name in tally} == set(POINTS) - set(STATE_POINTS)
