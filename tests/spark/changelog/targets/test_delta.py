# SPDX-License-Identifier: Apache-2.0
"""Micro-batches applied to a Delta table, in a session of its own with Delta's jars from Maven Central."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from forebay.testkit.kafka_broker import Module, fetched

VERSION = "4.4.0"
MODULES = [
    Module("io.delta", name, VERSION, alone=True)
    for name in ("delta-spark_4.2_2.13", "delta-storage", "delta-kernel-api", "delta-kernel-defaults")
]
PROGRAM = Path(__file__).parent / "delta_program.py"
# Its JVM loads Delta and compiles its plans: 32 s of CPU time.
pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """What the program saw."""
    if not pyspark.__version__.startswith("4.2."):
        pytest.skip(f"Delta {VERSION} is for Spark 4.2, and this is {pyspark.__version__}")
    jars = fetched(f"delta-{VERSION}", MODULES)
    command = [sys.executable, "-P", str(PROGRAM), str(jars), str(tmp_path_factory.mktemp("delta"))]
    options = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -Dlog4j2.level=OFF"
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": options}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500, env=environment)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_micro_batches_are_merged_once(result):
    """K7, K8, §3.2: folded, with deletes; repeated and older ones are skipped."""
    assert result["applied"] == [True, True, False, False]
    assert result["rows"] == [[1, None]]


def test_what_does_not_fit_is_refused_before_the_table_changes(result):
    assert "was written by the query q" in result["other"]
    assert result["schema"] == "the column 'v' is string in the table orders, and int in the changes"
    assert "stores no sequences" in result["sequence"]
    assert "'id' is NULL, _split s, _pos 1" in result["null"]
    assert result["unchanged"] == result["rows"]


def test_a_query_that_adopts_the_table_keeps_the_other_one_out(result):
    assert result["adopted"] and "was written by the query q2" in result["fenced"]
    assert result["after"] == [[1, "adopted"]]


def test_a_stream_repeats_a_micro_batch_without_a_second_merge(result):
    assert result["streamed"] == [[5, "e"]]
    assert result["merges"] == 1


def test_any_names_of_columns(result):
    assert result["names"] == [True, [list(range(11)), list(range(1, 12))]]
