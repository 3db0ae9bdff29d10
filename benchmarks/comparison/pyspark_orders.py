# SPDX-License-Identifier: Apache-2.0
"""Orders of a REST service by PySpark's Python Data Source API alone."""

import json
import os
import sys
from urllib.parse import urlencode
from urllib.request import urlopen

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition


# begin
class Range(InputPartition):
    def __init__(self, region, start, end):
        self.region, self.start, self.end = region, start, end


class OrdersReader(DataSourceStreamReader):
    def __init__(self, url, page_rows):
        self.url, self.page_rows = url, page_rows

    def initialOffset(self):
        return {}

    def latestOffset(self):
        return {region: self.get("newest", region=region) + 1 for region in self.get("regions")}

    def partitions(self, start, end):
        return [Range(region, start.get(region, 0), stop) for region, stop in end.items()]

    def read(self, partition):
        at = partition.start
        while page := self.get("orders", region=partition.region, ge=at, lt=partition.end, limit=self.page_rows):
            at = page[-1]["id"] + 1
            for order in page:
                yield order["id"], order["region"], order["total"], order["updated_at"]

    def get(self, path, **query):
        with urlopen(f"{self.url}/{path}?{urlencode(query)}", timeout=10) as response:
            return json.load(response)


class Orders(DataSource):
    @classmethod
    def name(cls):
        return "orders"

    def schema(self):
        return "id long, region string, total double, updated_at long"

    def streamReader(self, schema):
        return OrdersReader(self.options["url"], int(self.options.get("pageRows", 50)))


# end


if __name__ == "__main__":
    url, state, out = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.dataSource.register(Orders)
    frame = spark.readStream.format("orders").option("url", url).load()
    writer = frame.writeStream.format("parquet").option("path", out)
    writer.option("checkpointLocation", state).trigger(availableNow=True).start().awaitTermination()
