# SPDX-License-Identifier: Apache-2.0
"""Imported by each Python that `make test` starts: Spark's daemons import what their workers need, before they fork.

Spark forks a worker for many calls of a planner and for most tasks of a test, and each would import pyarrow, pandas and
forebay again: a quarter of the CPU of tests on Spark. `make soak` has Spark's own daemons.
"""

from __future__ import annotations

import importlib
import sys

if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
    for name in (
        "pandas",
        "pyspark.sql.worker.create_data_source",
        "pyspark.sql.worker.plan_data_source_read",
        "pyspark.worker",
        "forebay.sources.files",
        "forebay.sources.kafka",
        "forebay.spark.data_source",
    ):
        importlib.import_module(name)
