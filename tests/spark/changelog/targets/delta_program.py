# SPDX-License-Identifier: Apache-2.0
"""A session with Delta's jars, which exist from its start: applies micro-batches and prints what the table has.

Run by the tests as `python -P delta_program.py JARS DIRECTORY`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import lit

from forebay.errors import ForebayError
from forebay.spark.changelog.converting import from_changes
from forebay.spark.changelog.targets.delta import DeltaTarget
from forebay.spark.changelog.targets.target import apply_changes

CHANGES = "id int, v string, _change_type string, _split string, _pos long"


def in_one_split(rows: list[Any]) -> list[Any]:
    """Changes as (id, v, kind, position), with the split."""
    return [(*row[:3], "s", row[3]) for row in rows]


def session(jars: str, directory: str) -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(str(path) for path in Path(jars).glob("*.jar")))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.sql.warehouse.dir", f"{directory}/tables")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )


def refused(action: Callable[[], object]) -> str:
    try:
        action()
    except ForebayError as error:
        return error.message
    return "not refused"


def main() -> None:
    jars, directory = sys.argv[1:]
    spark = session(jars, directory)
    spark.sparkContext.setLogLevel("OFF")
    target = DeltaTarget("orders")
    result: dict[str, Any] = {}

    def apply(number: int, rows: list[Any], query: str = "q", schema: str = CHANGES, **options: Any) -> bool:
        df = spark.createDataFrame(in_one_split(rows) if schema == CHANGES else rows, schema)
        return target.apply(df, number, query, keys="id", **options)

    def table(name: str = "orders") -> list[Any]:
        return sorted([list(row) for row in spark.table(name).collect()], key=repr)

    result["applied"] = [
        apply(0, [(1, "a", "insert", 1), (2, "b", "insert", 2), (3, "c", "insert", 3), (3, "c", "delete", 4)]),
        apply(1, [(1, None, "update_postimage", 5), (2, "b", "delete", 6), (9, "x", "delete", 7)]),
        apply(1, [(1, "repeated", "update_postimage", 5)]),
        apply(0, [(1, "older", "update_postimage", 5)]),
    ]
    result["rows"] = table()
    result["other"] = refused(lambda: apply(0, [(1, "other", "insert", 1)], "q2"))
    result["schema"] = refused(lambda: apply(2, [(1, 7, "insert")], schema="id int, v int, _change_type string"))
    result["sequence"] = refused(lambda: apply(2, [(1, "a", "insert", 1)], sequence_by="_pos"))
    result["null"] = refused(lambda: apply(2, [(None, "a", "insert", 1)]))
    result["unchanged"] = table()
    result["adopted"] = apply(0, [(1, "adopted", "update_postimage", 1)], "q2", adopt=True)
    result["fenced"] = refused(lambda: apply(2, [(1, "late", "insert", 1)]))
    result["after"] = table()

    names = ["at", "Été 日本", "a.b", "a`b", 'q"x', "a b,;{}()=", "select", "s", "t", "UPPER", "x" * 63]
    for number, kind in enumerate(["insert", "update_postimage"]):
        rows = spark.createDataFrame([tuple(range(number, number + 11)), tuple(range(1, 12))]).dropDuplicates(["_1"])
        changed = rows.withColumn("_change_type", lit(kind)).toDF(*names, "_change_type")
        DeltaTarget("named").apply(changed, number, "q", keys=names[:1])
    result["names"] = [spark.table("named").columns == names, table("named")]

    spark.createDataFrame(in_one_split([(5, "e", "insert", 1)]), CHANGES).write.parquet(f"{directory}/in")
    stream = from_changes(spark.readStream.schema(CHANGES).parquet(f"{directory}/in"), "id", ordered=True)
    checkpoint = f"{directory}/checkpoint"
    options: dict[str, Any] = {"keys": "id", "checkpoint_location": checkpoint, "trigger": {"availableNow": True}}
    apply_changes(stream, DeltaTarget("streamed"), **options).awaitTermination()
    (Path(checkpoint) / "commits" / "0").unlink()  # as if the driver had died before Spark logged the micro-batch
    (Path(checkpoint) / "commits" / ".0.crc").unlink()
    apply_changes(stream, DeltaTarget("streamed"), **options).awaitTermination()
    result["streamed"] = table("streamed")
    history = spark.sql("DESCRIBE HISTORY streamed").collect()
    result["merges"] = sum(row["operation"] == "MERGE" for row in history)
    sys.stdout.write("\n" + json.dumps(result))
    spark.stop()


if __name__ == "__main__":
    main()
