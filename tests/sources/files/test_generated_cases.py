# SPDX-License-Identifier: Apache-2.0
"""Generated cases (schema, options, data): the rows of Spark's own readers, from local files and from S3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from generated_files.cases import TEXT_FORMATS, Case, case
from generated_files.outcomes import plain, texts
from s3_servers import S3Server

import forebay
from forebay.framework.runtime.host_options import HostOptions
from forebay.options import Secret
from forebay.sources.files import FileSource
from forebay.testkit.kafka_broker import Module, fetched

pytest.importorskip("pyspark")
pytest.importorskip("boto3")
pytest.importorskip("moto")

NUMBERS = [*range(5), *(pytest.param(number, marks=pytest.mark.soak) for number in range(5, 300))]
SMALL = [*range(2), *(pytest.param(number, marks=pytest.mark.soak) for number in range(2, 50))]
BUCKET = "generated"


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    """A session in UTC, as is its JVM, with spark-avro. That of Spark 4.2 is not on Maven Central."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    jar = fetched("spark-avro-4.1.1", [Module("org.apache.spark", "spark-avro_2.13", "4.1.1", alone=True)])
    spark.sql(f"ADD JAR '{next(jar.iterdir())}'")
    zones: Any = spark._jvm.java.util.TimeZone  # type: ignore[union-attr]  # there is a JVM
    before = spark.conf.get("spark.sql.session.timeZone"), zones.getDefault()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    zones.setDefault(zones.getTimeZone("UTC"))
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before[0])
    zones.setDefault(before[1])


@pytest.fixture(scope="module")
def s3(s3_server: S3Server) -> tuple[Any, dict[str, Secret]]:
    s3_server.make_bucket(BUCKET)
    return s3_server.client, {name: Secret(value) for name, value in s3_server.options().items()}


def rows(table: pa.Table) -> list[tuple[str, ...]]:
    """Return rows as text, in an order of their own: tasks may end in any order."""
    return sorted(zip(*(texts(table[name]) for name in table.schema.names), strict=True))


def types(table: pa.Table) -> list[tuple[str, str]]:
    return [(field.name.lower(), str(plain(field.type))) for field in table.schema]


def by_spark(spark: Any, found: Case, path: str) -> pa.Table:
    reader = spark.read.format(found.kind).options(**found.options)
    frame = (reader if found.schema is None else reader.schema(found.schema)).load(path)
    frame = frame if found.condition is None else frame.where(found.condition)
    return (frame if found.columns is None else frame.select(*found.columns)).toArrow()


def ours(spark: Any, found: Case, path: str, **options: Any) -> pa.Table:
    from pyspark.sql.pandas.types import to_arrow_schema

    given = dict(found.options)
    glob, recursive = given.pop("pathGlobFilter", None), given.pop("recursiveFileLookup", "false")
    source = FileSource(
        path=path,
        file_format=found.kind,
        path_glob_filter=glob,
        recursive_file_lookup=recursive == "true",
        row_filter=found.condition,
        format_options=given,
        **options,
    )
    if found.schema is not None:
        source = source.with_schema(to_arrow_schema(spark.createDataFrame([], found.schema).schema, timezone="UTC"))
    columns = found.columns
    return forebay.run(source, options=HostOptions(columns=columns)).to_table()


Judged = dict[tuple[str, int], tuple[list[tuple[str, str]], list[tuple[str, ...]]]]


@pytest.fixture(scope="module")
def judged() -> Judged:
    """The types and rows of Spark, by format and number of the case: local files and S3 share them."""
    return {}


def check(
    spark: Any, judged: Judged, kind: str, number: int, directory: Path, read: Callable[[Case], pa.Table]
) -> None:
    found = case(kind, number)
    write(found, directory)
    if (kind, number) not in judged:
        theirs = by_spark(spark, found, str(directory))
        judged[kind, number] = types(theirs), rows(theirs)
    mine = read(found)
    assert (types(mine), rows(mine)) == judged[kind, number]


def write(found: Case, directory: Path) -> None:
    for name, data in found.files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("kind", ["avro", "orc", "parquet"])
def test_a_generated_case_is_read_as_by_spark(
    session: Any, judged: Judged, tmp_path: Path, kind: str, number: int
) -> None:
    check(session, judged, kind, number, tmp_path, lambda found: ours(session, found, str(tmp_path)))


@pytest.mark.soak(but=["parquet-0", "csv-0", "json-0", "text-0"])
@pytest.mark.parametrize("number", SMALL)
@pytest.mark.parametrize("kind", ["avro", "orc", "parquet", *TEXT_FORMATS])
def test_a_generated_case_is_read_from_s3_as_by_spark(
    session: Any, judged: Judged, s3: tuple[Any, dict[str, Secret]], tmp_path: Path, kind: str, number: int
) -> None:
    client, storage = s3

    def read(found: Case) -> pa.Table:
        for name, data in found.files.items():
            client.put_object(Bucket=BUCKET, Key=f"{kind}/{number}/{name}", Body=data)
        return ours(session, found, f"s3://{BUCKET}/{kind}/{number}", storage=storage)

    check(session, judged, kind, number, tmp_path, read)
