# SPDX-License-Identifier: Apache-2.0
"""Imported by each Python that `make test` starts: Spark's daemons import what their workers need, before they fork.

Spark forks a worker for many calls of a planner and for most tasks of a test, and each would import pyarrow, pandas and
forebay again: a quarter of the CPU of tests on Spark. `make soak` and `make newest` have Spark's own daemons. These
import little before a fork, because an import may start threads; here it is one of jemalloc, which knows of forks.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress

if sys.orig_argv[1:3] == ["-m", "pyspark.daemon"]:
    # Not `forebay.spark.data_source`, whose import changes what a planner of other sources reports.
    for name in (
        "pandas",
        "pyspark.sql.worker.create_data_source",
        "pyspark.sql.worker.plan_data_source_read",
        "pyspark.worker",
        "forebay.sources.files",
        "forebay.sources.kafka",
        "forebay.spark.data_source",
        "forebay.spark.stream",
    ):
        with suppress(ImportError):
            importlib.import_module(name)
