# SPDX-License-Identifier: Apache-2.0
"""Names of PostgreSQL that an enemy chose, and archives that an enemy wrote: nothing else is touched, no code runs."""

from __future__ import annotations

import json
import random
import shutil

import psycopg
import pyarrow as pa
import pytest
from hostile_names import Untouched, hostile_sql_names
from psycopg.sql import SQL, Identifier
from pyspark.ml.linalg import Vectors
from pyspark.sql.types import IntegerType, StringType, StructField

from forebay.errors import ConfigurationError, FatalError
from forebay.spark.changelog.targets.archive import ArchiveTarget, read_archive
from forebay.spark.changelog.targets.postgres import PostgresTarget

COUNT = [200, pytest.param(20_000, marks=pytest.mark.soak)]
"""Names, of which a round has five."""

SYSTEM = {"cmax", "cmin", "ctid", "tableoid", "xmax", "xmin"}
OTHERS = """
SELECT nspname, relname, relkind FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
WHERE nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema' ORDER BY 1, 2
"""


class Database:
    """A server, a table of somebody else on it, and everything that is there before the names are used."""

    def __init__(self, dsn):
        self.connection = psycopg.connect(dsn, autocommit=True)
        self("DROP SCHEMA IF EXISTS outside CASCADE")
        self("CREATE SCHEMA outside")
        self("CREATE TABLE outside.victim AS SELECT 1 AS id")
        self.before = self.others()

    def __call__(self, statement, *names):
        cursor = self.connection.execute(SQL(statement).format(*map(Identifier, names)))
        return cursor.fetchall() if cursor.description else []

    def others(self):
        return self(OTHERS), self("SELECT rolname FROM pg_roles ORDER BY 1"), self("SELECT * FROM outside.victim")


@pytest.fixture
def database(postgres):
    made = Database(postgres)
    yield made
    made("DROP SCHEMA outside CASCADE")
    made.connection.close()


def is_name(text):
    """Whether PostgreSQL keeps this name as it is."""
    return "\0" not in text and "\ud800" not in text and 0 < len(text.encode()) <= 63


def write(tables, schema, table, key, value):
    """Apply two micro-batches; the second one exchanges two values and deletes a row."""
    fields = (StructField(key, IntegerType()), StructField(value, StringType()))
    written = tables(table, schema=schema)
    batches: list[list[str | None]] = [["a", "b", "c"], ["b", "a", None]]
    for number, values in enumerate(batches):
        rows = {key: pa.array([1, 2, 3], pa.int32()), value: pa.array(values)}
        written.write(number, rows, fields=fields, deleted=[False, False, values[2] is None], keys=(key,))


@pytest.mark.parametrize("count", COUNT)
def test_no_name_of_sql_touches_another_table(database, tables, count, record_property):
    chosen, chance, written, refused = hostile_sql_names(9, count), random.Random(9), 0, 0
    for schema, table, key, value, constraint in zip(*[chosen] * 5, strict=False):
        if (
            schema in ("outside", "public", "information_schema")
            or key.lower() == value.lower()
            or "\ud800" in key + value
        ):
            continue  # Spark has no such columns
        good = all(map(is_name, (schema, table, key, value))) and not {key, value} & SYSTEM
        good = good and table != "forebay_applied" and not table.endswith("__tombstones")
        exists = is_name(schema) and not schema.startswith("pg_")
        if exists:
            database("CREATE SCHEMA {}", schema)
        if (
            good
            and exists
            and is_name(constraint)
            and constraint not in (table, "forebay_applied")
            and chance.random() < 0.5
        ):
            columns = "({} int PRIMARY KEY, {} text, CONSTRAINT {} UNIQUE ({}))"
            database(f"CREATE TABLE {{}}.{{}} {columns}", schema, table, key, value, constraint, value)
        try:
            write(tables, schema, table, key, value)
        except ConfigurationError:
            assert not (good and exists), (schema, table, key, value, constraint)
            refused += 1
        else:
            assert database("SELECT {}, {} FROM {}.{} ORDER BY 1", key, value, schema, table) == [(1, "b"), (2, "a")]
            written += 1
        if exists:
            database("DROP SCHEMA {} CASCADE", schema)
    assert database.others() == database.before
    assert written and refused
    record_property("report", f"{count} names of SQL: {written} tables written, {refused} refused")


@pytest.mark.parametrize("name", ["x" * 64, "é" * 32, "", "a\0b", "a\ud800"])
@pytest.mark.parametrize("place", ["table", "schema"])
def test_a_table_that_postgresql_would_give_another_name_is_refused(name, place):
    """It cuts long names, so that two targets would be one table."""
    names = {"table": "t", "schema": "s"} | {place: name}
    with pytest.raises(ConfigurationError, match=f"PostgreSQL cannot have a {place} ") as caught:
        PostgresTarget("dbname=x", **names)
    assert caught.value.option == place


@pytest.mark.parametrize("name", ["forebay_applied", "orders__tombstones"])
def test_a_table_that_belongs_to_other_targets_is_refused(name):
    with pytest.raises(ConfigurationError, match="targets keep their own rows in tables with names such as") as caught:
        PostgresTarget("dbname=x", name)
    assert caught.value.option == "table"


def test_the_statement_of_an_advice_names_only_what_it_should(database, table):
    name = 'v" int; DROP TABLE outside.victim; --'
    table.sql("CREATE TABLE {t} (id int PRIMARY KEY)")
    fields = (StructField("id", IntegerType()), StructField(name, StringType()))
    rows = {"id": pa.array([1], pa.int32()), name: pa.array(["a"])}
    with pytest.raises(ConfigurationError, match="has no column") as caught:
        table.write(0, rows, fields=fields)
    database.connection.execute(str(caught.value.advice).rpartition(", or name the column")[0])
    assert database("SELECT * FROM outside.victim") == [(1,)]
    assert table.write(0, rows, fields=fields)


def test_the_statement_of_an_advice_names_a_constraint_as_it_is(database, table):
    name = 'u"; DROP TABLE outside.victim; --'
    quoted = name.replace('"', '""')
    table.sql(f'CREATE TABLE {{t}} (id int PRIMARY KEY, v text CONSTRAINT "{quoted}" UNIQUE)')
    table.sql("CREATE TABLE {t}_child (parent int)".replace('"', "").replace("{t}", f"child_of_{table.name}"))
    table.sql(f"ALTER TABLE child_of_{table.name}_child ADD FOREIGN KEY (parent) REFERENCES {{t}}")
    fields = (StructField("id", IntegerType()), StructField("v", StringType()))
    for number, values in enumerate((["a", "b"], ["b", "a"], ["b", "a"])):
        rows = {"id": pa.array([1, 2], pa.int32()), "v": pa.array(values)}
        if number == 1:
            with pytest.raises(ConfigurationError, match="exchange values of") as caught:
                table.write(number, rows, fields=fields)
            database.connection.execute(str(caught.value.advice).partition("; if it is violated")[0])
        else:
            assert table.write(number, rows, fields=fields)
    assert table.rows() == [(1, "b"), (2, "a")]
    assert database("SELECT * FROM outside.victim") == [(1,)]


# -- archives

UDT = {"type": "udt", "class": None, "pyClass": "module_of_an_enemy.Type", "serializedClass": "", "sqlType": "string"}


@pytest.fixture(scope="module")
def written(spark, tmp_path_factory):
    root = tmp_path_factory.mktemp("written") / "archive"
    ArchiveTarget(root).apply(spark.createDataFrame([(1, "a")], "id int, v string"), 0, "q", keys="id")
    return root


@pytest.fixture
def archive(written, tmp_path):
    """An archive with one micro-batch."""
    return shutil.copytree(written, tmp_path / "archive")


def uses(spark, archive):
    """What reads the files of an archive."""
    df = spark.createDataFrame([(2, "b")], "id int, v string")
    return [
        lambda: ArchiveTarget(archive).apply(df, 1, "q", keys="id"),
        lambda: read_archive(spark, archive).collect(),
    ]


@pytest.mark.parametrize("kind", [UDT, {"type": "array", "elementType": UDT, "containsNull": True}], ids=str)
def test_the_schema_of_an_archive_runs_no_code(spark, archive, tmp_path, monkeypatch, kind):
    """PySpark imports the module of a user-defined type."""
    (tmp_path / "module_of_an_enemy.py").write_text(f"open({str(tmp_path / 'PWNED')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    facts = json.loads((archive / "_schema.json").read_text())
    facts["schema"]["fields"][1]["type"] = kind
    (archive / "_schema.json").write_text(json.dumps(facts))
    for use in uses(spark, archive):
        with pytest.raises(FatalError, match=r"_schema\.json .* is damaged: .* user-defined type"):
            use()
    assert not (tmp_path / "PWNED").exists()


def test_a_column_of_a_user_defined_type_is_refused_before_anything_is_written(spark, tmp_path):
    df = spark.createDataFrame([(1, Vectors.dense(1.0))], ["id", "v"])
    with pytest.raises(ConfigurationError, match="user-defined type vectorudt, which archives do not keep"):
        ArchiveTarget(tmp_path / "archive").apply(df, 0, "q", keys="id")
    assert not (tmp_path / "archive").exists()


@pytest.mark.soak(but=["_schema.json-", "_schema.json-[]", "_commit_version=0000000000/_applied.json-{}"])
@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "\x00", '{"format": 1, "keys": ["id"]}'),
        '{"format": 1, "keys": 5, "schema": {"type": "struct"}}',
        '{"format": 1, "keys": [5], "schema": {"type": "struct", "fields": []}}',
        '{"format": 1, "keys": ["id"], "schema": {"type": "struct", "fields": [{"name": "id", "type": "nothing"}]}}',
    ],
)
@pytest.mark.parametrize("file", ["_schema.json", "_commit_version=0000000000/_applied.json"])
def test_a_damaged_file_of_an_archive_is_named(spark, archive, text, file):
    (archive / file).write_text(text)
    with pytest.raises(FatalError, match="is damaged") as caught:
        uses(spark, archive)[0]()
    assert file in caught.value.message and caught.value.advice


@pytest.mark.parametrize("link", ["_staging", "_commit_version=0000000007"])
def test_a_linked_directory_of_an_archive_does_not_lead_out_of_it(spark, archive, tmp_path, link):
    outside = Untouched(tmp_path / "outside")
    if (archive / link).exists():
        (archive / link).rmdir()
    (archive / link).symlink_to(outside.directory)
    for use in uses(spark, archive)[: 1 if link == "_staging" else 2]:
        with pytest.raises(ConfigurationError, match="of the archive is a link to"):
            use()
    outside.check()
