# SPDX-License-Identifier: Apache-2.0
"""Processes of a streaming query are killed at named points; its sink contains each row once."""

from __future__ import annotations

import importlib.util
import json
import random
import string
import sys
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

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


@pytest.mark.parametrize("of_each", [2, pytest.param(6, marks=pytest.mark.soak)])
def test_kills_of_stream_runner_and_workers_lose_and_double_nothing(
    spark, program, undisturbed, kills, tmp_path, of_each
):
    forebay.register(spark, *program.SOURCES)
    kills.arm(*RUNNER[:of_each], *WORKER[:of_each])
    starts = restart_until_done(lambda: program.start(spark, planned(tmp_path, kills), kills), kills)
    assert MicroBatchFiles(tmp_path / "rows").rows() == undisturbed
    assert kills.armed() == []
    assert starts > of_each


CLAIMS = [
    Kill("claim-made"),
    Kill("read-middle", at=4),
    Kill("tasks-begin", at=2),
    Kill("claim-begins", at=2),
    Kill("claim-made", at=5),
    Kill("plan-ends", at=3),
]


@pytest.mark.soak
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


STATE = [
    Kill("state-begins"),
    Kill("state-written", at=2),
    Kill("tasks-begin", at=3),
    Kill("read-middle", at=9),
    Kill("commit-begins", at=4),
]


@pytest.mark.soak
def test_kills_with_data_and_state_on_s3_lose_and_double_nothing(spark, program, bucket, kills, tmp_path):
    """Names so long that what was read does not fit into an offset; test_kills_soak.py kills a hundred times."""
    expected, chance = [], random.Random(0)
    for number in range(45):
        rows = [(number, line) for line in range(8)]
        text = "".join(f"{a},{b}\n" for a, b in rows)
        directory, name = ("".join(chance.choices(string.ascii_letters, k=200)) for _ in range(2))
        (tmp_path / "in" / directory).mkdir(parents=True)
        (tmp_path / "in" / directory / f"{name}.csv").write_text(text)
        expected += [json.dumps(list(row)) for row in rows]
    options = {"path": str(tmp_path / "in"), "fileFormat": "csv", "recursiveFileLookup": "true"}
    on_s3 = bucket.moved(options, tmp_path.name) | {"maxFilesPerTrigger": 5, "maxRowsPerBatch": 4}
    plan = planned(tmp_path, kills, format="killable_files", options=on_s3, schema="a int, b int")
    forebay.register(spark, *program.SOURCES)
    kills.arm(*STATE)
    restart_until_done(lambda: program.start(spark, plan, kills), kills)
    assert MicroBatchFiles(tmp_path / "rows").rows() == sorted(expected)
    assert kills.armed() == []
    assert bucket.client.list_objects_v2(Bucket=bucket.name, Prefix=f"{tmp_path.name}/state/")["KeyCount"] > 0


# Each start takes a new JVM; test_kills_soak.py has every point.
DRIVER = [Kill("sink-written", "driver", at=2)]


def driver(plan, place):
    (place / "plan.json").write_text(json.dumps(plan))
    return [sys.executable, "-P", str(PROGRAM), str(place / "plan.json")]


@pytest.mark.soak
@pytest.mark.parametrize("armed", [DRIVER, [*DRIVER, Kill("offset-logged", "jvm", at=4)]], ids=len)
def test_kills_of_the_driver_lose_and_double_nothing(undisturbed, kills, tmp_path, armed):
    kills.arm(*armed)
    plan = planned(tmp_path, kills)
    starts = run_until_done(driver(plan, tmp_path), kills, checkpoint=plan["checkpoint"])
    assert MicroBatchFiles(tmp_path / "rows").rows() == undisturbed
    assert kills.armed() == []
    assert starts == len(armed) + 1


@pytest.mark.soak
@pytest.mark.parametrize("file_format", ["json", "parquet"])
def test_a_new_column_over_an_error_kills_and_restarts_is_read_once(spark, program, kills, tmp_path, file_format):
    forebay.register(spark, *program.SOURCES)
    inbox, files = tmp_path / "in", MicroBatchFiles(tmp_path / "rows", kills)
    inbox.mkdir()
    options = {"fileFormat": file_format, "schemaEvolution": "addNewColumns", "maxFilesPerTrigger": 2}

    def put(name, **columns):
        if file_format == "json":
            (inbox / name).write_text(json.dumps({"a": name, **columns}))
        else:
            pq.write_table(pa.table({key: [value] for key, value in {"a": name, **columns}.items()}), inbox / name)

    def start(arriving=()):
        frame = spark.readStream.format("killable_files").options(**options, kills=kills.directory).load(str(inbox))
        for name, columns in arriving:  # after the schema was inferred
            put(name, **columns)
        writer = frame.writeStream.foreachBatch(files).option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.trigger(availableNow=True).start()

    for number in range(3):
        put(f"old-{number}")
    kills.arm(Kill("read-first"), Kill("plan-ends"))
    restart_until_done(start, kills)
    before = [f'["old-{number}"]' for number in range(3)]
    assert files.rows() == before

    with pytest.raises(StreamingQueryException) as raised:
        start([("old-3", {}), ("new-0", {"c": 1})]).awaitTermination()
    error = forebay.unwrap(raised.value)
    assert isinstance(error, forebay.DataError)
    assert error.option == "schemaEvolution"
    assert "new-0' has new columns" in error.message and "'c'" in error.message
    assert files.rows() == before

    put("new-1", c=2)
    kills.arm(Kill("tasks-begin"), Kill("read-first"), Kill("plan-begins"), Kill("commit-begins"))
    assert restart_until_done(start, kills) > 2
    assert kills.armed() == []
    assert files.rows() == sorted([*before, '["old-3", null]', '["new-0", 1]', '["new-1", 2]'])
