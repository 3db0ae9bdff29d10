# SPDX-License-Identifier: Apache-2.0
"""Creates the Spark data source class of each format."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from forebay.errors import ConfigurationError
from forebay.framework.arrow.casting import resolve_schema, select
from forebay.framework.runtime.clients import ConnectorCalls
from forebay.framework.runtime.runtime import ThreadRuntime
from forebay.framework.source import Source
from forebay.retry import RetryPolicy
from forebay.spark.batch import BatchReader, Readable
from forebay.spark.conform import arrow_schema, check_levels, check_user_schema, spark_schema
from forebay.spark.errors import as_spark_error
from forebay.spark.processes import freeze_modules, skip_empty_profiles
from forebay.spark.session import Installed, Origin, Session

if TYPE_CHECKING:
    from forebay.spark.stream import StreamReader

_WRITING: Final = "pyspark.sql.worker.write_into_data_source"
"""The program in which Spark creates a data source for writing."""


skip_empty_profiles()


class ForebayDataSource(DataSource):
    """The base class of forebay's data sources; `format_class` creates a subclass for each format.

    For every `load()`, Spark creates an object in one planner process, requests the schema unless the user gave one,
    and pickles the object. Spark requests the reader in another process. So the object stores an inferred schema.

    Args:
        options: The user's options; parsed here, so that `load()` reports mistakes.
    """

    _origin: ClassVar[Origin]
    _session: ClassVar[Session]

    def __init__(self, options: Mapping[str, str]) -> None:
        # The texts are not stored: they may contain secrets.
        super().__init__({})
        freeze_modules()
        name = self._origin.name
        with as_spark_error(name, "the options"):
            if _in_program(_WRITING):  # the options are those of a sink
                raise _not_written(name)
            _refuse_table(options, name)
            made = self._origin.make(dict(options), self._session)
        self._source, self._options, self._follows_zone = made.source, made.options, made.follows_zone
        self._promised: tuple[str, ...] | None = None

    @classmethod
    def name(cls) -> str:
        """Return the format name."""
        return cls._origin.name

    def schema(self) -> StructType:
        """Return the schema of the selected columns. Called once per `load()`, unless the user gave a schema."""
        source = self._source
        with as_spark_error(source.name, "schema()"):
            full = self._own_schema()
            # The inferred schema holds for the whole read, even if files change.
            source = resolve_schema(source, full)
            chosen, promised = full, full.names
            if self._options.columns is not None:
                names = select(full.names, self._options.columns, source.name)
                chosen = pa.schema([full.field(name) for name in names])
                if (narrowed := source.with_columns(tuple(names))) is not None:
                    source, promised = narrowed, names
            self._source, self._promised = source, tuple(promised)
            return spark_schema(chosen, source.name)

    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader of a batch query. Called once per `load()`, in a planner process."""
        with as_spark_error(self._source.name, "schema()"):
            return BatchReader(*self._readable(schema))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a streaming query. Called twice for each query: for the planner, and for the tasks."""
        # Imported here, because it takes 40 ms in each new process of a batch read.
        from forebay.spark.stream import StreamReader

        with as_spark_error(self._source.name, "schema()"):
            readable, target = self._readable(schema)
            # A source that accepts another schema has inferred its own; otherwise the schema is fixed.
            inferred = self._promised is not None and readable.source.with_schema(target) is not None
        return StreamReader(readable, target, inferred=inferred)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        """Refuse `df.write`."""
        raise _not_written(self._source.name)

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: N802 - Spark's
        """Refuse `df.writeStream`."""
        raise _not_written(self._source.name)

    def _readable(self, schema: StructType) -> tuple[Readable, pa.Schema]:
        target = arrow_schema(schema)
        check_levels(target, self._source.name)
        source, promised = self._source, self._promised
        if promised is None:
            source, promised = self._with_user_schema(target)
        return Readable(source, self._options, promised, self._session.parallelism, self._follows_zone), target

    def _own_schema(self) -> pa.Schema:
        source = self._source
        timeout = self._options.planning_timeout.total_seconds()
        calls = ConnectorCalls(source.name, ThreadRuntime(), retry=RetryPolicy.of(self._options), timeout=timeout)
        schema = calls.call("schema()", source.schema)
        spark_schema(schema, source.name)  # check names and types first
        return schema

    def _with_user_schema(self, user: pa.Schema) -> tuple[Source, tuple[str, ...]]:
        source = self._source
        if self._options.columns is not None:
            raise ConfigurationError(
                "columns are selected twice: by .schema(…) and by the option `columns`",
                source=source.name,
                option="columns",
                advice="use only one of them; .schema(…) may omit columns if the source supports it",
            )
        typed_source = source.with_schema(user)
        if typed_source is not None:
            return typed_source, tuple(user.names)
        own = self._own_schema()
        check_user_schema(user, own, source.name)
        return resolve_schema(source, own), tuple(own.names)


def _in_program(name: str) -> bool:
    """Return whether this process runs the Spark program `name`, directly or as a child of Spark's daemon."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return name in sys.modules or (spec is not None and spec.name == name)


def _refuse_table(options: Mapping[str, str], source: str) -> None:
    """Refuse `CREATE TABLE … USING` without columns.

    Spark gives a table's options to a Python source when it infers the schema, but not when a query reads the table. So
    a query would read something else.

    Raises:
        ConfigurationError: The options are the properties of a table.
    """
    if "owner" in options and options.get("provider", "").lower() == source.lower():
        raise ConfigurationError(
            f"CREATE TABLE … USING {source} does not work: Spark does not give the options of a table to a Python "
            "source",
            source=source,
            advice=f"use CREATE TEMPORARY VIEW … USING {source} OPTIONS (…); or name the columns of the table, and put "
            "the options into each query, after the name of the table: WITH (option = 'value')",
        )


def _not_written(source: str) -> ConfigurationError:
    return ConfigurationError(
        f"{source} cannot be written to: forebay formats are sources, for spark.read and spark.readStream",
        source=source,
        advice="write with one of Spark's own formats, such as parquet, or from foreachPartition",
    )


def format_class(origin: Origin, session: Session) -> type[ForebayDataSource]:
    """Return the data source class of one format. The class is not importable, so Spark pickles it by value."""
    return type(f"Forebay[{origin.name}]", (ForebayDataSource,), {"_origin": origin, "_session": session})


def installed_format(name: str) -> type[ForebayDataSource]:
    """Return the data source class of an installed format, which Spark finds by name without `register`."""
    return format_class(Installed(name), Session())
