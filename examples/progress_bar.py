# SPDX-License-Identifier: Apache-2.0
"""A progress bar for the Spark job that an action starts, from Spark's own status tracker."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

_WIDTH = 30


@contextmanager
def progress(spark: SparkSession, what: str) -> Iterator[None]:
    """Show how many tasks of the jobs started inside the block are done, until it ends."""
    tracker = spark.sparkContext.statusTracker()
    earlier = set(tracker.getJobIdsForGroup(None))
    stages: dict[int, tuple[int, int]] = {}
    ended = threading.Event()
    began = time.monotonic()

    def show() -> None:
        for job in set(tracker.getJobIdsForGroup(None)) - earlier:
            for stage in getattr(tracker.getJobInfo(job), "stageIds", ()):
                info = tracker.getStageInfo(stage)
                if info is not None and (info.numActiveTasks or info.numCompletedTasks):
                    stages[stage] = (info.numCompletedTasks, info.numTasks)
        done, tasks = (sum(column) for column in zip((0, 0), *stages.values(), strict=True))
        filled = _WIDTH * done // tasks if tasks else 0
        bar = "█" * filled + "░" * (_WIDTH - filled)
        sys.stdout.write(f"\r  {what} {bar} {done}/{tasks} tasks, {time.monotonic() - began:.1f} s ")
        sys.stdout.flush()

    def watch() -> None:
        while not ended.wait(0.1 if sys.stdout.isatty() else 60):
            show()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        show()
        sys.stdout.write("\n")
