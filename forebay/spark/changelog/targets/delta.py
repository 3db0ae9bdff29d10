# SPDX-License-Identifier: Apache-2.0
"""A Delta table as a target: one MERGE for each micro-batch, whose id is in the same commit."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from forebay.errors import ConfigurationError
from forebay.spark.changelog.targets.changes import DELETED, Changes
from forebay.spark.changelog.targets.target import Target, check_owner

_OWNER: Final = "forebay.query"
_TRANSACTION: Final = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")
"""Session settings: Delta records (application, version) in a commit, and skips a commit that it already has."""


class DeltaTarget(Target):
    """A Delta table. It is created if it does not exist; the session needs the jar of Delta and its catalog.

    The table property `forebay.query` has the id of the query that writes. The target refuses
    `sequence_by`, and so also `stored_as_scd_type=2`, which needs it.

    Args:
        table: The name of the table, as in SQL.
    """

    def __init__(self, table: str) -> None:
        self._table = table

    def __repr__(self) -> str:
        return f"DeltaTarget({self._table!r})"

    def _apply(self, changes: Changes, batch_id: int, query_id: str, *, adopt: bool) -> bool:
        if changes.sequence is not None:
            raise ConfigurationError(
                "DeltaTarget stores no sequences, so it cannot order changes of different micro-batches",
                option="sequence_by",
                advice="apply latest_per_key(df, key, sequence_by=…) to the stream, or use PostgresTarget",
            )
        spark = changes.df.sparkSession
        if not spark.catalog.tableExists(self._table):
            self._create(spark, changes)
        self._check_table(spark, changes)
        properties = {row[0]: row[1] for row in spark.sql(f"SHOW TBLPROPERTIES {self._table}").collect()}
        owner = properties.get(_OWNER)
        check_owner(f"the table {self._table}", owner, query_id, adopt=adopt)
        if owner != query_id:
            spark.sql(f"ALTER TABLE {self._table} SET TBLPROPERTIES ('{_OWNER}' = {_literal(query_id)})")
        before = self._version(spark)
        with _transaction(spark, query_id, batch_id):
            self._merge(spark, changes)
        return self._version(spark) > before

    def _create(self, spark: SparkSession, changes: Changes) -> None:
        writer = spark.createDataFrame([], changes.df.drop(DELETED).schema).writeTo(self._table).using("delta")
        try:
            writer.create()
        except AnalysisException as error:
            if "[DELTA_INVALID_CHARACTER" not in str(error):
                raise
            # Parquet files cannot have these names, such as those with spaces, so Delta gives the files others.
            writer.tableProperty("delta.columnMapping.mode", "name").create()

    def _merge(self, spark: SparkSession, changes: Changes) -> None:
        view = f"forebay_changes_{uuid.uuid4().hex}"
        changes.df.createOrReplaceTempView(view)
        on = " AND ".join(f"t.{_name(key)} = s.{_name(key)}" for key in changes.keys)
        values = ", ".join(f"t.{_name(name)} = s.{_name(name)}" for name in changes.names)
        names = ", ".join(_name(name) for name in changes.names)
        inserted = ", ".join(f"s.{_name(name)}" for name in changes.names)
        try:
            spark.sql(
                f"MERGE INTO {self._table} t USING {view} s ON {on} "  # noqa: S608 - names are quoted
                f"WHEN MATCHED AND s.{DELETED} THEN DELETE WHEN MATCHED THEN UPDATE SET {values} "
                f"WHEN NOT MATCHED AND NOT s.{DELETED} THEN INSERT ({names}) VALUES ({inserted})"
            )
        finally:
            spark.catalog.dropTempView(view)

    def _check_table(self, spark: SparkSession, changes: Changes) -> None:
        detail = spark.sql(f"DESCRIBE DETAIL {self._table}").first()
        if detail is None or detail["format"] != "delta":
            raise ConfigurationError(
                f"the table {self._table} is not a Delta table", option="table", advice="give the name of a Delta table"
            )
        stored = {field.name: field.dataType for field in spark.table(self._table).schema}
        expected = {field.name: field.dataType for field in changes.fields}
        for name in [*expected, *stored]:
            if stored.get(name) != expected.get(name):
                shown = [
                    kind.simpleString() if (kind := kinds.get(name)) else "missing" for kinds in (stored, expected)
                ]
                raise ConfigurationError(
                    f"the column {name!r} is {shown[0]} in the table {self._table}, and {shown[1]} in the changes",
                    advice="cast, add or leave out the column (except_column_list), or alter the table",
                )

    def _version(self, spark: SparkSession) -> int:
        newest: DataFrame = spark.sql(f"DESCRIBE HISTORY {self._table} LIMIT 1")
        return int(newest.collect()[0]["version"])


@contextmanager
def _transaction(spark: SparkSession, query_id: str, batch_id: int) -> Iterator[None]:
    """Make Delta record the query and the micro-batch in each commit of this session."""
    for name, value in zip(_TRANSACTION, (f"forebay:{query_id}", str(batch_id)), strict=True):
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in _TRANSACTION:
            spark.conf.unset(name)


def _name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
