# SPDX-License-Identifier: Apache-2.0
"""A streaming query of files, one file in a micro-batch."""

from __future__ import annotations

import pytest

SCHEMA = "id long, level int, name string, _change_type string"


class StreamOfFiles:
    """A stream of files of changes; `run` processes all files that are there, one in a micro-batch."""

    def __init__(self, spark, directory, transform, schema):
        self.spark, self.directory, self.transform, self.schema = spark, directory, transform, schema
        (directory / "in").mkdir(exist_ok=True)
        self.files = 0
        self.state = str(directory / "state")

    def write(self, rows):
        path = self.directory / "in" / f"{self.files:05d}"
        self.spark.createDataFrame(rows, self.schema).coalesce(1).write.parquet(str(path))
        self.files += 1

    def run(self):
        """Return the changes of each new micro-batch."""
        batches = {}
        df = (
            self.spark.readStream.schema(self.schema)
            .option("maxFilesPerTrigger", 1)
            .option("recursiveFileLookup", True)
            .parquet(str(self.directory / "in"))
        )

        def keep(batch, number):
            batches[number] = [tuple(row) for row in batch.collect()]

        query = (
            self.transform(df, self.state)
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(self.directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return batches


@pytest.fixture
def stream_of_files(spark, tmp_path):
    """Make a `StreamOfFiles` of a function of a DataFrame and a state location."""
    return lambda transform, schema=SCHEMA: StreamOfFiles(spark, tmp_path, transform, schema)
