# SPDX-License-Identifier: Apache-2.0
"""Reads damaged files with Spark's own readers, in a process of its own: some of them hang or end the JVM.

`python -m generated_files.reading_by_spark orc DIRECTORY 3 5 8` reads some of the files that `reading --write` wrote
there. It prints each number, reads the file, and prints what it gave as JSON. A file that takes too long ends the
process.
"""

from __future__ import annotations

import faulthandler
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from forebay.testkit.kafka_broker import Module, fetched
from generated_files.outcomes import digests
from generated_files.reading import SECONDS, Files


def session() -> SparkSession:
    """Return a session in UTC, with spark-avro. That of Spark 4.2 is not on Maven Central."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.ui.showConsoleProgress", "false")
    # An array that is too long for the JVM is an OutOfMemoryError, which must not end it.
    builder = builder.config("spark.executor.killOnFatalError.depth", "0").config("spark.driver.memory", "1g")
    builder = builder.config("spark.driver.extraJavaOptions", "-Duser.timezone=UTC")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    jar = fetched("spark-avro-4.1.1", [Module("org.apache.spark", "spark-avro_2.13", "4.1.1", alone=True)])
    spark.sql(f"ADD JAR '{next(jar.iterdir())}'")
    return spark


def schemas(spark: SparkSession, kind: str, directory: Path) -> Callable[[int], StructType | None]:
    """Return what gives the schema for a file by number, as `Files.schema` does."""
    files, known = Files(kind), {}

    def schema(number: int) -> StructType | None:
        if not files.has_schema(number):
            return None
        whole = directory / f"whole-{files.seed(number)}.{kind}"
        if whole not in known:
            whole.write_bytes(files.whole(number))
            known[whole] = spark.read.format(kind).load(str(whole)).schema
        return known[whole]

    return schema


def main(kind: str, directory: Path, numbers: Sequence[int]) -> None:
    spark = session()
    schema_of = schemas(spark, kind, directory)
    for number in numbers:
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        reader, schema = spark.read.format(kind), schema_of(number)
        reader = reader if schema is None else reader.schema(schema)
        found: object
        try:
            found = digests(reader.load(str(directory / f"{number}.{kind}")).toArrow())
        except Exception as error:  # noqa: BLE001 - Spark's readers have many
            found = str(error)
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), [int(number) for number in sys.argv[3:]])
