# SPDX-License-Identifier: Apache-2.0
"""Processes of queries with keyed state are killed at named points; the changes are those of an undisturbed run."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from spark_cluster import SparkCluster

import forebay
from forebay.testkit.kills import STATE_POINTS, Kill, KillList, MicroBatchFiles, restart_until_done, run_until_done

PROGRAM = Path(__file__).parent / "state_kill_program.py"
SOAK = {"view": 2, "join": 2, "latest": 1, "view on S3": 1, "join on S3": 1}
"""Runs of each kind, of 22 kills each."""

LEAST = 150

# How often a point is visited at least in a run of any kind.
# A kill before a removal leaves that removal out for ever: the next attempt finds the manifest.
STATE = dict.fromkeys(STATE_POINTS, 8) | {"merge-done": 6, "removed-some": 3, "removed-all": 4}
RUNNER = {"plan-begins": 10, "plan-ends": 10, "tasks-begin": 8, "commit-begins": 6}
DRIVER = {"sink-begins": 9, "sink-written": 9}
WATCHED = {"offset-logged": 8, "commit-logged": 7}


@pytest.fixture(scope="module")
def program() -> ModuleType:
    """The program as a module: its query runs in this process too."""
    spec = importlib.util.spec_from_file_location("state_kill_program", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["state_kill_program"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def inbox(tmp_path_factory) -> Path:
    """Twenty files of a changelog in any order. Each side has at most one row for a key; times go on."""
    chance, live, changes = random.Random(5), {}, []
    for number in range(400):
        side, key = chance.randrange(2), chance.randrange(30)
        row = {"side": side, "id": key, "level": number, "name": f"n{number % 11}"}
        if (side, key) in live and chance.random() < 0.3:
            changes.append(live.pop((side, key)) | {"_change_type": "delete"})
            continue
        if (side, key) in live:
            changes.append(live[side, key] | {"_change_type": "update_preimage"})
        changes.append(row | {"_change_type": "update_postimage" if (side, key) in live else "insert"})
        live[side, key] = row
    chance.shuffle(changes)
    directory = tmp_path_factory.mktemp("inbox")
    size = len(changes) // 20 + 1
    for number in range(20):
        rows = [
            change | {"at": f"2026-01-01T00:{number:02}:{place % 60:02}Z"}
            for place, change in enumerate(changes[number * size : (number + 1) * size])
        ]
        (directory / f"{number:03}.json").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return directory


def planned(place, kills, inbox, kind="view", files=2, **changes):
    return {
        "query": kind.split()[0],
        "options": {"path": str(inbox), "maxFilesPerTrigger": files},
        "rows": str(place / "rows"),
        "state": str(place / "state"),
        "checkpoint": str(place / "checkpoint"),
        "kills": kills.directory,
        "master": "local[2,3]",
    } | changes


def run(plan, kills, place):
    (place / "plan.json").write_text(json.dumps(plan))
    command = [sys.executable, "-P", str(PROGRAM), str(place / "plan.json")]
    return run_until_done(command, kills, checkpoint=plan["checkpoint"], timeout=600)


@pytest.fixture(scope="module")
def undisturbed(spark, program, inbox, tmp_path_factory):
    """Run a kind of query without kills, once; return its changes."""
    known: dict[str, list[str]] = {}

    def changes(kind: str) -> list[str]:
        if kind not in known:
            place = tmp_path_factory.mktemp(kind)
            kills = KillList(place / "kills")
            forebay.register(spark, program.KillableFiles)
            program.start(spark, planned(place, kills, inbox, kind), kills).awaitTermination()
            known[kind] = MicroBatchFiles(place / "rows").rows()
            assert MicroBatchFiles(place / "rows").micro_batches() == 10
        return known[kind]

    return changes


KILLS = [
    Kill("segment-written", at=2),
    Kill("manifest-begins", at=4),
    Kill("manifest-written", at=5),
    Kill("merge-done", at=4),
    Kill("removed-some", at=2),
    Kill("removed-all", at=7),
    Kill("changes-handed-on", at=8),
    Kill("tasks-begin", at=3),
    Kill("commit-begins", at=4),
]


@pytest.mark.soak
def test_kills_of_workers_with_state_lose_and_double_nothing(spark, program, inbox, tmp_path):
    """P2, P5: the soak of this file kills more than 150 times, drivers and executors too."""
    kills = KillList(tmp_path / "kills")
    kills.arm(*KILLS)
    plan = planned(tmp_path, kills, inbox, files=4)
    forebay.register(spark, program.KillableFiles)
    restart_until_done(lambda: program.start(spark, plan, kills), kills)
    assert kills.armed() == []
    written = MicroBatchFiles(tmp_path / "rows")
    assert written.micro_batches() == 5
    assert folded(written) == sequential(inbox)


def folded(files):
    """The rows that the changes leave."""
    rows: Counter[tuple[object, ...]] = Counter()
    for change in map(json.loads, files.rows()):
        rows[tuple(change[:-2])] += 1 if change[-2] in ("insert", "update_postimage") else -1
    return +rows


def sequential(inbox):
    """The rows of one side that were added more often than retracted."""
    counts: Counter[tuple[object, ...]] = Counter()
    for path in inbox.glob("*.json"):
        for change in map(json.loads, path.read_text().splitlines()):
            add = change["_change_type"] in ("insert", "update_postimage")
            if change["side"] == 0:
                counts[change["id"], change["level"], change["name"]] += 1 if add else -1
    return +counts


def draw(seed):
    """Draw what dies where: many workers, some runners, drivers."""
    chance = random.Random(seed)

    def some(points, count, victim="self"):
        names = chance.choices(list(points), k=count)
        return [Kill(name, victim, chance.randint(1, points[name])) for name in names]

    drivers = [*some(STATE, 1, "jvm"), *some(WATCHED, 1, "jvm"), *some(DRIVER, 1, "driver")]
    return [*some(STATE, 16), *some(RUNNER, 3), *drivers]


@pytest.fixture(scope="module")
def tally() -> Counter[str]:
    return Counter()


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "seed"), [(kind, seed) for kind, count in SOAK.items() for seed in range(count)])
def test_many_kills_lose_and_double_nothing(kind, seed, inbox, undisturbed, tally, tmp_path, request):
    """P5: workers, stream runners, drivers and their JVMs."""
    expected = undisturbed(kind.split()[0])
    kills = KillList(tmp_path / "kills")
    kills.arm(*draw(f"{kind} {seed}"))
    plan = planned(tmp_path, kills, inbox, kind)
    if kind.endswith("S3"):
        bucket = request.getfixturevalue("bucket")
        plan |= {"state": f"s3://{bucket.name}/{tmp_path.name}/state", "storage": dict(bucket.settings)}
    run(plan, kills, tmp_path)
    assert MicroBatchFiles(tmp_path / "rows").rows() == expected
    assert kills.armed() == []
    tally.update(f"{kill.point:<18} {kill.victim}" for kill in kills.fired())


CLUSTER = {
    "spark.executor.memory": "512m",
    "spark.speculation": "true",
    # Otherwise tasks that report no rows yet, as all that are stuck in Python, are never overtaken.
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
}


@pytest.mark.soak
def test_executors_that_are_killed_lose_and_double_nothing(inbox, undisturbed, tally, tmp_path):
    """P5: the executor of a task that has written some of its state."""
    expected = undisturbed("join")
    kills = KillList(tmp_path / "kills")
    points = ("segment-written", "manifest-begins", "manifest-written", "removed-some", "changes-handed-on")
    kills.arm(*(Kill(point, "executor", at=3 + place) for place, point in enumerate(points)))
    conf = CLUSTER | {"spark.speculation": "false", "spark.task.maxFailures": "8"}
    with SparkCluster() as cluster:
        run(planned(tmp_path, kills, inbox, "join", master=cluster.url, conf=conf), kills, tmp_path)
    assert MicroBatchFiles(tmp_path / "rows").rows() == expected
    assert kills.armed() == []
    tally.update(f"{kill.point:<18} {kill.victim}" for kill in kills.fired())


@pytest.mark.soak
def test_a_speculative_attempt_overtakes_one_that_has_not_written_its_manifest(inbox, undisturbed, tmp_path):
    """Two attempts of one shard run at the same time; both write segments, one a manifest."""
    expected = undisturbed("view")
    kills = KillList(tmp_path / "kills")
    place = tmp_path / "straggler"
    place.mkdir()
    with SparkCluster() as cluster:
        plan = planned(tmp_path, kills, inbox, master=cluster.url, conf=CLUSTER, straggler=str(place))
        run(plan, kills, tmp_path)
    assert (place / "stuck").exists()
    assert (place / "passed.1").exists()
    assert not (place / "late.True").exists()
    assert MicroBatchFiles(tmp_path / "rows").rows() == expected


@pytest.mark.soak
def test_there_were_enough_kills_of_queries_with_state(tally, record_property):
    table = "\n".join(f"  {name:<26} {count:4}" for name, count in sorted(tally.items()))
    record_property(
        "report", f"kills of queries with state, by point and victim:\n{table}\n  in all {tally.total():22}"
    )
    assert tally.total() >= LEAST
    assert {name.split()[0] for name in tally} >= set(STATE_POINTS)
