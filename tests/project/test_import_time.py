# SPDX-License-Identifier: Apache-2.0
"""Imports are cheap: `import forebay` loads nothing of an extra, and a batch read nothing of streams."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module

import pytest

# Extras, their dependencies, and packages that only tests need. pyarrow imports numpy and pandas if they are installed,
# so a test of their own subtracts its imports.
EXTRAS = {
    "pyspark",
    "py4j",
    "boto3",
    "botocore",
    "s3transfer",
    "kafka",
    "fsspec",
    "fastavro",
    "polars",
    "cramjam",
    "zstandard",
    "crc32c",
    "cryptography",
}
TOOLS = {"typer", "click", "rich", "pytest", "hypothesis", "moto"}
LINE = re.compile(r"import time:\s*(\d+) \|\s*(\d+) \|(\s*)(\S+)")


def modules_loaded(statement: str) -> dict[str, int]:
    """The modules that a fresh interpreter loads for `statement`, each with its own and its children's microseconds."""
    command = [sys.executable, "-P", "-X", "importtime", "-c", statement]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = [LINE.fullmatch(line) for line in done.stderr.splitlines()]
    return {match[4]: int(match[2]) for match in found if match}


def test_import_forebay_loads_nothing_of_an_extra(record_property):
    loaded = modules_loaded("import forebay")
    record_property("report", f"import forebay: {loaded['forebay'] / 1000:.0f} ms, {len(loaded)} modules")
    tops = {name.split(".")[0] for name in loaded}
    assert tops.isdisjoint(EXTRAS | TOOLS)


def test_import_forebay_loads_no_numpy_of_its_own():
    own = modules_loaded("import forebay").keys() - modules_loaded("import pyarrow").keys()
    assert {name.split(".")[0] for name in own}.isdisjoint({"numpy", "pandas"})


def test_a_batch_read_loads_nothing_of_streams():
    loaded = modules_loaded("import forebay.spark.data_source")
    assert "forebay.spark.data_source" in loaded
    assert not {"forebay.spark.stream", "forebay.framework.microbatch.stream_planner"} & loaded.keys()


def test_planning_loads_no_pandas():
    """Each streaming query has a new planner process. `pa.array` and `pa.scalar` would import pandas: 0.17 s."""
    planning = "plan_bounded(RateSource(rows=100, num_splits=8), HostOptions(), parallelism=4)"
    loaded = modules_loaded(
        "import forebay.sources.kafka.source, forebay.spark.stream\n"
        "from forebay.framework.tasks.assign_tasks import plan_bounded\n"
        "from forebay.framework.runtime.host_options import HostOptions\n"
        "from forebay.sources.rate import RateSource\n"
        f"assert sum(map(len, {planning})) == 8"
    )
    assert not [name for name in loaded if name.startswith(("pandas", "cramjam", "forebay.table.changelog.converters"))]
    assert "pandas" in modules_loaded("import pyarrow; pyarrow.array([1])")


@pytest.mark.parametrize("extra", ["fsspec", "pyspark"])
def test_the_measurement_sees_an_extra(extra):
    import_module(extra)
    assert extra in modules_loaded(f"import {extra}")
