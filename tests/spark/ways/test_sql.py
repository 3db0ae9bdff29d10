# SPDX-License-Identifier: Apache-2.0
"""Sources in SQL: views and tables `USING` a format of forebay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import forebay
from forebay import ConfigurationError, ForebayError, unwrap


class Numbers(forebay.SimpleSource):
    """Counts to `count`."""

    name: ClassVar[str] = "sql_numbers"

    count: int = 2

    def schema(self) -> pa.Schema:
        return pa.schema({"n": pa.int64()})

    def read(self, split):
        for n in range(split.position or 0, self.count):
            yield {"n": n}


@pytest.fixture(scope="module")
def session(spark: SparkSession, tmp_path_factory) -> Iterator[SparkSession]:
    """A session whose tables and views go away with it."""
    own = spark.newSession()
    own.sql(f"CREATE DATABASE ways LOCATION '{tmp_path_factory.mktemp('warehouse')}'")
    own.sql("USE ways")
    forebay.register(own)
    forebay.register(own, Numbers)
    yield own
    own.sql("USE default")
    own.sql("DROP DATABASE ways CASCADE")


@pytest.fixture
def options(tree) -> str:
    """The options of two CSV files, as SQL."""
    files = tree({"a.csv": "n,t\n1,a\n2,b\n", "b.csv": "n,t\n3,c\n"})
    return f"path '{files}', fileFormat 'csv', header 'true'"


def refused(session: SparkSession, statement: str) -> ForebayError:
    with pytest.raises(Exception, match=r"PYTHON_DATA_SOURCE_ERROR") as caught:
        session.sql(statement).collect()
    found = unwrap(caught.value)
    assert found is not None, caught.value
    return found


def values(session: SparkSession, query: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in session.sql(query).collect())


def test_a_temporary_view_has_options_and_an_inferred_or_a_given_schema(session, options):
    session.sql(f"CREATE TEMPORARY VIEW inferred USING forebay_files OPTIONS ({options}, inferSchema 'true')")
    assert values(session, "SELECT n + 1, t FROM inferred WHERE n > 1") == [(3, "b"), (4, "c")]
    session.sql(f"CREATE TEMPORARY VIEW given (n BIGINT, t STRING) USING forebay_files OPTIONS ({options})")
    assert values(session, "SELECT sum(n) FROM given") == [(6,)]


def test_a_class_of_the_user_is_a_view(session):
    session.sql("CREATE TEMPORARY VIEW counted USING sql_numbers OPTIONS (count 3)")
    assert values(session, "SELECT * FROM counted") == [(0,), (1,), (2,)]


def test_a_misspelled_option_of_a_view_is_refused_by_name(session):
    error = refused(session, "CREATE TEMPORARY VIEW wrong USING sql_numbers OPTIONS (cuont 3)")
    assert isinstance(error, ConfigurationError)
    assert error.option == "cuont"


def test_a_table_without_columns_is_refused_with_the_view_that_works(session, options):
    for of in (f"forebay_files OPTIONS ({options})", "sql_numbers OPTIONS (count 3)", "FOREBAY_RATE"):
        error = refused(session, f"CREATE TABLE no_columns USING {of}")
        assert "Spark does not give the options of a table" in error.message
        assert "CREATE TEMPORARY VIEW" in str(error.advice)
    assert not session.catalog.tableExists("no_columns")


def test_a_source_may_have_options_called_owner_and_provider(session):
    class Owned(forebay.SimpleSource):
        name: ClassVar[str] = "owned"
        owner: str = ""
        provider: str = ""

        def schema(self) -> pa.Schema:
            return pa.schema({"n": pa.string()})

        def read(self, split):
            yield {"n": f"{self.provider}/{self.owner}"}

    forebay.register(session, Owned)
    session.sql("CREATE TEMPORARY VIEW owned_view USING owned OPTIONS (owner 'me', provider 'github')")
    assert values(session, "SELECT * FROM owned_view") == [("github/me",)]


@pytest.mark.soak
def test_a_table_with_columns_takes_its_options_in_each_query(session, options):
    session.sql(f"CREATE TABLE named (n BIGINT, t STRING) USING forebay_files OPTIONS ({options})")
    # Spark drops the options of the table.
    assert refused(session, "SELECT * FROM named").option == "path"
    taken = options.replace(" '", " = '")
    assert values(session, f"SELECT * FROM named WITH ({taken})") == [(1, "a"), (2, "b"), (3, "c")]
    session.sql(f"CREATE VIEW kept AS SELECT t FROM named WITH ({taken}) WHERE n = 3")
    assert values(session, "SELECT * FROM kept") == [("c",)]
    assert values(session.newSession(), "SELECT * FROM ways.kept") == [("c",)], "of another session"


@pytest.mark.soak
def test_a_table_with_columns_is_streamed_in_sql(session, options, tmp_path):
    session.sql("CREATE TABLE streamed (n BIGINT, t STRING) USING forebay_files")
    taken = options.replace(" '", " = '")
    frame = session.sql(f"SELECT n FROM STREAM streamed WITH ({taken})")
    query = frame.writeStream.format("memory").queryName("from_sql").trigger(availableNow=True).start()
    assert query.awaitTermination(100)
    assert values(session, "SELECT * FROM from_sql") == [(1,), (2,), (3,)]


def test_insert_and_create_as_select_are_refused_by_name(session, options):
    session.sql(f"CREATE TEMPORARY VIEW target (n BIGINT, t STRING) USING forebay_files OPTIONS ({options})")
    for statement in ("INSERT INTO target VALUES (1, 'a')", "CREATE TABLE made USING sql_numbers AS SELECT 1 AS n"):
        assert "cannot be written to" in refused(session, statement).message


def test_a_path_in_place_of_a_table_is_sparks_error(session, tree):
    with pytest.raises(Exception, match="UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY"):
        session.sql(f"SELECT * FROM forebay_files.`{tree({'a.txt': 'a'})}`")
