# SPDX-License-Identifier: Apache-2.0
"""Which processes keep their modules from the garbage collector."""

from __future__ import annotations

import gc

import pyarrow as pa

from forebay.framework.simple import SimpleSource
from forebay.spark.processes import freeze_modules
from forebay.spark.register import read


class Frozen(SimpleSource):
    """Yields how many objects the process that reads has frozen."""

    def schema(self):
        return pa.schema({"objects": pa.int64()})

    def read(self, split):
        yield {"objects": gc.get_freeze_count()}


def test_spark_s_collection_after_each_task_leaves_modules_out(spark):
    assert read(spark, Frozen()).collect()[0].objects > 10_000


def test_a_process_of_the_user_keeps_its_garbage_collection():
    frozen, new = gc.get_freeze_count(), [[] for _ in range(1000)]
    freeze_modules()
    assert gc.get_freeze_count() < frozen + len(new)  # other threads may free frozen objects
