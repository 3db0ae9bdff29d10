# SPDX-License-Identifier: Apache-2.0
"""Declarative pipelines: `spark-pipelines run` with sources of forebay, on a server of Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE, STDOUT

import pyspark
import pytest

TOP = """
import forebay
import pyarrow as pa
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
"""
SOURCES = """
class Numbers(forebay.SimpleSource):
    count: int = 3

    def schema(self):
        return pa.schema({"n": pa.int64()})

    def read(self, split):
        for n in range(split.position or 0, self.count):
            yield {"n": n}

forebay.register(spark, Numbers)
made = forebay.read_stream(spark, Numbers(count=4))

@dp.table
def by_name():
    return spark.readStream.format("numbers").option("count", 2).load()

@dp.table
def by_object():
    return made

@dp.materialized_view
def batch():
    return spark.read.format("numbers").load().where("n > 0")
"""
CHANGES = """
forebay.register(spark)

@dp.temporary_view
def changes():
    schema = "k bigint, v string, at bigint, op string"
    return spark.readStream.format("forebay_files").schema(schema).load("{data}")

dp.create_streaming_table("{target}")
dp.create_auto_cdc_flow(
    target="{target}", source="changes", keys=["k"], sequence_by="at",
    apply_as_deletes="op = 'DELETE'", except_column_list=["op"],
)
"""
OF_SPARK = """
from pyspark.sql.datasource import DataSource, DataSourceReader

class Reader(DataSourceReader):
    def read(self, partition):
        yield (1,)

class Plain(DataSource):
    @classmethod
    def name(cls):
        return "plain"

    def schema(self):
        return "n int"

    def reader(self, schema):
        return Reader()

spark.dataSource.register(Plain)

@dp.materialized_view
def of_spark():
    return spark.read.format("plain").load()
"""
IN_FUNCTION = """
@dp.table
def refused():
    return forebay.{call}

"""
SQL = "CREATE STREAMING TABLE of_sql AS SELECT n + 10 AS n FROM STREAM by_name;"

QUERY = """
import json, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
print(json.dumps([sorted(map(list, spark.sql(one).collect())) for one in sys.argv[2:]]))
"""


def project(directory: Path, python: str, sql: str = "") -> Path:
    """Write a pipeline."""
    files = directory / "transformations"
    files.mkdir()
    (directory / "spark-pipeline.yml").write_text(
        f"name: ways\nstorage: file://{directory}/storage\nlibraries:\n  - glob:\n      include: transformations/**\n"
    )
    (files / "sources.py").write_text(TOP + python)
    if sql:
        (files / "tables.sql").write_text(sql)
    return directory


def run(server: str, directory: Path, *, home: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a pipeline to its end."""
    home = home or os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    command = [f"{home}/bin/spark-pipelines", "--remote", server, "run"]
    environment = {**os.environ, "SPARK_HOME": home}
    return subprocess.run(
        command, cwd=directory, env=environment, stdout=PIPE, stderr=STDOUT, text=True, timeout=300, check=False
    )


def query(server: str, *statements: str) -> list[list[list[object]]]:
    """Return the sorted rows of queries."""
    command = [sys.executable, "-P", "-c", QUERY, server, *statements]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[list[list[object]]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.soak
def test_sources_are_streaming_tables_and_materialized_views(server, tmp_path):
    done = run(server, project(tmp_path, SOURCES, SQL))
    assert done.returncode == 0, done.stdout[-4000:]
    found = query(server, *(f"SELECT n FROM {table}" for table in ("by_name", "by_object", "batch", "of_sql")))
    assert found == [[[0], [1]], [[0], [1], [2], [3]], [[1], [2]], [[10], [11]]]


@pytest.mark.soak
def test_pyspark_still_needs_the_way_round(server, tmp_path):
    """If this fails, PySpark accepts empty profiles, and `skip_empty_profiles` is not needed any more."""
    done = run(server, project(tmp_path, OF_SPARK))
    assert done.returncode != 0
    assert "UNKNOWN_RESPONSE" in done.stdout
    assert query(server, "SELECT n FROM of_spark") == [[[1]]]


@pytest.mark.soak
def test_change_records_in_files_keep_a_table_up_to_date(server, merging_jar, tmp_path):
    if merging_jar is None:
        pytest.skip(f"no catalog with MERGE could be downloaded for Spark {pyspark.__version__}")
    query(server, "CREATE NAMESPACE IF NOT EXISTS lake.db")
    data = tmp_path / "data"
    data.mkdir()
    (data / "1.json").write_text('{"k":1,"v":"new","at":3,"op":"UPSERT"}\n{"k":2,"v":"b","at":2,"op":"UPSERT"}\n')
    (data / "2.json").write_text('{"k":1,"v":"old","at":1,"op":"UPSERT"}\n{"k":2,"v":null,"at":4,"op":"DELETE"}\n')
    (tmp_path / "cdc").mkdir()
    pipeline = project(tmp_path / "cdc", CHANGES.format(data=data, target="lake.db.latest"))
    done = run(server, pipeline)
    assert done.returncode == 0, done.stdout[-4000:]
    assert query(server, "SELECT k, v FROM lake.db.latest") == [[[1, "new"]]]

    (data / "3.json").write_text('{"k":3,"v":"c","at":5,"op":"UPSERT"}\n{"k":1,"v":"newer","at":6,"op":"UPSERT"}\n')
    assert run(server, pipeline).returncode == 0
    assert query(server, "SELECT k, v FROM lake.db.latest") == [[[1, "newer"], [3, "c"]]]


@pytest.mark.soak
def test_a_target_without_merge_is_sparks_error(server, tmp_path):
    (tmp_path / "data").mkdir()
    done = run(server, project(tmp_path, CHANGES.format(data=tmp_path / "data", target="in_parquet")))
    assert done.returncode != 0
    assert "AUTOCDC_TARGET_DOES_NOT_SUPPORT_MERGE" in done.stdout


@pytest.mark.soak
@pytest.mark.parametrize("call", ["register(spark)", "read_stream(spark, forebay.RateSource())"])
def test_registering_inside_a_query_function_names_the_way_round(server, tmp_path, call):
    done = run(server, project(tmp_path, IN_FUNCTION.format(call=call)))
    assert done.returncode != 0
    assert "forebay cannot register a source inside a query function" in done.stdout, done.stdout[-3000:]
    assert "at the top of the file" in done.stdout
