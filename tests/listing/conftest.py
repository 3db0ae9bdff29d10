# SPDX-License-Identifier: Apache-2.0
"""A real Spark to compare listings with."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark() -> Any:
    """A local Spark, shared by the comparisons."""
    sql = import_module("pyspark.sql")
    os.environ.setdefault("LC_ALL", "C.UTF-8")
    session = (
        sql.SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    return session
