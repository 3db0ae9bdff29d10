# SPDX-License-Identifier: Apache-2.0
"""Runs the readers and writers of change events in the tasks of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every user of PySpark writes it
from pyspark.sql.types import BinaryType, StringType

from forebay.errors import ConfigurationError
from forebay.spark.arrow.conform import arrow_schema, spark_schema
from forebay.spark.changelog.declaring import declare
from forebay.spark.changelog.mapping import map_in_arrow
from forebay.spark.errors import as_spark_error
from forebay.spark.processes.worker_modules import freeze_modules
from forebay.table.changelog.converters.debezium_json import DebeziumJsonWriter
from forebay.table.changelog.converters.event_converter import EventConverter, Mode
from forebay.table.changelog.converters.event_formats import EventFormat, event_images, keyed_options
from forebay.table.changelog.converters.json_texts import json_text_options
from forebay.table.changelog.converters.maxwell_json import MaxwellJsonWriter
from forebay.table.changelog.converters.upsert_json import UpsertJsonWriter
from forebay.table.changelog.shape import POSITION, SPLIT
from forebay.table.changelog.traits import CORRUPT_RECORD, ChangeTraits

_NAMES: Final = {"value_schema": "schema", "key_schema": "key"}
_NAMES_OF_OPTIONS: Final = {name: name for name in ("sequence", "missing_before", "truncate")}
_KAFKA: Final = {"topic", "partition", "offset"}


@dataclass(frozen=True)
class EventReading:
    """The function that `mapInArrow` runs to read change events. Spark pickles it to the workers.

    Args:
        form: The format.
        schema: The columns of a row, as for Spark's `from_json`.
        key: The columns of the primary key.
        mode: What happens to malformed events; see `EventConverter`.
        keep: Columns of the input to copy into the changelog.
        special: The options of the format, as fields of `EventOptions`.
        json: The options of `from_json`.
        zone: The time zone of JSON times without one.
        name: The name of the function that the user called.
    """

    form: EventFormat
    schema: str
    key: tuple[str, ...]
    mode: Mode
    keep: tuple[str, ...]
    special: Mapping[str, Any]
    json: Mapping[str, str]
    zone: str = "UTC"
    name: str = ""

    def converter(self, events: pa.Schema) -> EventConverter:
        """Return the converter for record batches of events with the schema `events`.

        Raises:
            ConfigurationError: An option is wrong.
        """
        json = json_text_options(self.json, source=self.name, time_zone=self.zone)
        from_message = "key" in events.names and self.form != "maxwell-json"
        names = _NAMES | _NAMES_OF_OPTIONS
        options = keyed_options(
            self.form, self.schema, self.key, json, names, from_message=from_message, **self.special
        )
        return EventConverter(options.reader(json), events, mode=self.mode, kept=self.keep, source=self.name)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Convert the events of a partition to changes."""
        freeze_modules()
        converter: EventConverter | None = None
        for batch in batches:
            with as_spark_error(self.name, "reading change events"):
                converter = converter or self.converter(batch.schema)
                found = converter.convert(batch)
            yield found
        if converter is not None:
            converter.close()


@dataclass(frozen=True)
class EventWriting:
    """The function that `mapInArrow` runs to write change events. Spark pickles it to the workers.

    Args:
        writer: The class of the writer.
        arguments: The keyword arguments of the writer.
    """

    writer: type[DebeziumJsonWriter | MaxwellJsonWriter | UpsertJsonWriter]
    arguments: Mapping[str, Any]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Convert the changes of a partition to events."""
        freeze_modules()
        first = next(batches, None)
        if first is None:
            return
        written = self.writer(first.schema, **self.arguments).write(chain([first], batches))
        while True:
            with as_spark_error(self.writer.__name__, "writing change events"):
                found = next(written, None)
            if found is None:
                return
            yield found


def read_events(df: DataFrame, reading: EventReading, name: str, *, complete: bool = False) -> DataFrame:
    """Return the changelog of the events in `df`, with the key of `reading`.

    Args:
        df: The events.
        reading: How to read them.
        name: The name of the function that the user called, for errors.
        complete: Whether each change comes exactly once, from the first one of its row on.

    Raises:
        ConfigurationError: A column does not exist, or an option is wrong.
    """
    if complete and reading.mode == "DROPMALFORMED":
        raise ConfigurationError(
            "history='complete' needs every change, but mode='DROPMALFORMED' leaves malformed ones out",
            option="mode",
            advice="give mode='FAILFAST', or leave history out",
        )
    zone = df.sparkSession.conf.get("spark.sql.session.timeZone") or "UTC"
    reading = replace(reading, zone=zone, name=name)
    kinds = {one.name: one.dataType for one in df.schema}
    for column in ["value", *(["key"] if reading.form == "upsert-json" else [])]:
        if not isinstance(kinds.get(column), (StringType, BinaryType)):
            found = f"is {kinds[column].simpleString()}" if column in kinds else "does not exist"
            raise ConfigurationError(
                f"the column {column!r} must hold the JSON of the events, but it {found}",
                option=column,
                advice=f"select the JSON as a string or binary column {column!r}; there are {', '.join(df.columns)}",
            )
    if not {SPLIT, POSITION} <= kinds.keys() and kinds.keys() >= _KAFKA:
        df = df.withColumn(SPLIT, F.concat_ws("/", "topic", "partition")).withColumn(POSITION, F.col("offset"))
    schema = reading.converter(arrow_schema(df.schema)).schema
    changes = map_in_arrow(df, reading, spark_schema(schema, name))
    images = event_images(reading.form, reading.special.get("missing_before"))
    return declare(changes, ChangeTraits(images, complete, corrupt=CORRUPT_RECORD, kept=reading.keep), reading.key)


def write_events(df: DataFrame, writing: EventWriting, name: str) -> DataFrame:
    """Return the changelog `df` as change events. `name` is the user's function, for errors.

    Raises:
        ConfigurationError: A column does not exist.
    """
    schema = writing.writer(arrow_schema(df.schema), **writing.arguments).schema
    return map_in_arrow(df, writing, spark_schema(schema, name))
