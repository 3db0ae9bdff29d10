# SPDX-License-Identifier: Apache-2.0
"""Planner processes send no empty profiles, and all others."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from pyspark import accumulators

import forebay
from forebay.spark.processes import skip_empty_profiles

UTILS = "pyspark.sql.worker.utils"


@pytest.fixture
def sent(monkeypatch) -> list[list[int]]:
    """The ids of the accumulators that this process sent, as a planner process would."""
    found: list[list[int]] = []
    registry = {
        -1: SimpleNamespace(_value={}),
        -2: SimpleNamespace(_value={"plan": "profile"}),
        5: SimpleNamespace(_value=0),
    }
    monkeypatch.setattr(accumulators, "_accumulatorRegistry", registry)
    send = SimpleNamespace(send_accumulator_updates=lambda _: found.append(sorted(registry)))
    monkeypatch.setitem(sys.modules, UTILS, send)
    return found


def test_only_empty_profiles_are_left_out_also_if_asked_for_twice(sent):
    for _ in range(2):
        skip_empty_profiles()
        sys.modules[UTILS].send_accumulator_updates(None)
    assert sent == [[-2, 5], [-2, 5]]


def test_another_process_is_left_alone(monkeypatch):
    monkeypatch.delitem(sys.modules, UTILS, raising=False)
    skip_empty_profiles()
    assert UTILS not in sys.modules


@pytest.mark.soak
def test_a_profile_of_the_planner_arrives(spark, tmp_path):
    forebay.register(spark)
    spark.conf.set("spark.sql.pyspark.dataSource.profiler", "perf")
    try:
        assert spark.read.format("forebay_rate").option("rows", 3).load().count() == 3
        spark.profile.dump(str(tmp_path), type="perf")
        assert list(tmp_path.glob("*.pstats"))
    finally:
        spark.conf.unset("spark.sql.pyspark.dataSource.profiler")
        spark.profile.clear(type="perf")
