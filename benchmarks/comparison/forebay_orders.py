# SPDX-License-Identifier: Apache-2.0
"""Orders of a REST service by forebay, on Spark."""

import json
import os
import sys
from urllib.parse import urlencode
from urllib.request import urlopen

import pyarrow as pa
from pyspark.sql import SparkSession

import forebay


# begin
class Orders(forebay.SimpleSource):
    bounded = False
    event_time = "updated_at"
    url: str = forebay.option()
    page_rows: int = forebay.option(default=50)

    def schema(self):
        columns = {"id": pa.int64(), "region": pa.string(), "total": pa.float64()}
        return pa.schema(columns | {"updated_at": pa.timestamp("us", "UTC")})

    def splits(self):
        return self.get("regions")

    def latest(self, split):
        return self.get("newest", region=split.id) + 1

    def read(self, split):
        at = split.position or 0
        while page := self.get("orders", region=split.id, ge=at, lt=split.end, limit=self.page_rows):
            at = page[-1]["id"] + 1
            yield forebay.Batch(page, at)

    def get(self, path, **query):
        try:
            with urlopen(f"{self.url}/{path}?{urlencode(query)}", timeout=10) as response:
                return json.load(response)
        except OSError as error:
            raise forebay.RetriableError(f"{path}: {error}") from error


# end


if __name__ == "__main__":
    url, state, out = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    writer = forebay.read_stream(spark, Orders(url=url)).writeStream.format("parquet").option("path", out)
    writer.option("checkpointLocation", state).trigger(availableNow=True).start().awaitTermination()
