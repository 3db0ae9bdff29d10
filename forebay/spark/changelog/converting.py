# SPDX-License-Identifier: Apache-2.0
"""Converts DataFrames of change events to changelogs, and back (C17). They take batch and streaming DataFrames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every user of PySpark writes it
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import BinaryType, BooleanType, StringType

from forebay.errors import ConfigurationError
from forebay.spark.changelog.columns import key_names, map_in_arrow, quoted
from forebay.spark.changelog.newest import failure
from forebay.spark.changelog.strategy import refuse_broken, require_order
from forebay.spark.conform import arrow_schema, spark_schema
from forebay.spark.errors import as_spark_error
from forebay.spark.keys.found_keys import keys_of
from forebay.spark.keys.plan import plan_hash
from forebay.spark.keys.set_keys import set_key, set_metadata
from forebay.spark.processes import freeze_modules
from forebay.table.changelog.converters.change_events import SequenceSource
from forebay.table.changelog.converters.debezium import DebeziumJsonWriter
from forebay.table.changelog.converters.event_converter import EventConverter, Mode
from forebay.table.changelog.converters.event_formats import (
    DELTA_CDF,
    HUDI,
    ICEBERG_CHANGES,
    ColumnFormat,
    EventFormat,
    check_flag,
    delta_cdf_names,
    event_images,
    keyed_options,
)
from forebay.table.changelog.converters.json_texts import json_text_options
from forebay.table.changelog.converters.maxwell_json import MaxwellJsonWriter
from forebay.table.changelog.converters.upsert_json import UpsertJsonWriter
from forebay.table.changelog.shape import (
    CHANGE_TYPE,
    CHANGE_TYPES,
    CORRUPT_RECORD,
    POSITION,
    SEQUENCE,
    SPLIT,
    TYPES,
    ChangeTraits,
    HistoryName,
    Images,
    ImagesName,
    is_complete,
)
from forebay.table.keys import KeySpec

# -- Declares what a DataFrame of changes is: its key, its images, its history (C16).


def from_changes(
    df: DataFrame,
    key: str | Sequence[str] = (),
    *,
    images: ImagesName = "upsert",
    history: HistoryName = "unknown",
    ordered: bool = False,
) -> DataFrame:
    """Declare that a DataFrame with `_change_type` is a changelog, and what its changes hold.

    The plan of a DataFrame that forebay did not make shows neither. If the declaration is wrong, results are wrong.

    Args:
        df: A batch or streaming DataFrame with `_change_type`. `_split` and `_pos`, and `_sequence` are taken to be as
            in every changelog: comparable within a split, and over all rows (of one `_log`, if there is one).
        key: The columns that identify a row of the changelog.
        images: `full`: each update has `update_preimage` with the whole old row, and each delete the whole row.
            `upsert`: old rows are missing, or have the columns of the key alone. `append`: there are only inserts.
        history: `complete`: each change comes exactly once, from the first one of its row on. `unknown`: changes may
            come again, and the first ones may be missing.
        ordered: Whether the changes of each key arrive in order.

    Raises:
        ConfigurationError: There is no column `_change_type`, a column does not exist, or a value is unknown.
    """
    check_changelog(df)
    columns = key_names(df, key) if key else ()
    return declare(df, replace(ChangeTraits.named(images, history), asserted=True), columns, ordered=ordered)


def declare(df: DataFrame, traits: ChangeTraits, key: Sequence[str] = (), *, ordered: bool = False) -> DataFrame:
    """Return a changelog with its traits, and its primary key, if any. Called by functions that make changes."""
    columns = [field.name for field in df.schema]
    order = (SEQUENCE,) if SEQUENCE in columns else ()
    changes = {CHANGE_TYPE: traits.metadata(plan_hash(df), tuple(columns), tuple(key))}
    if not key:
        return set_metadata(df, changes)
    return set_key(df, KeySpec.keyed_by(key, cdc=True, ordering=order), ordered=ordered, added=changes)


def check_changelog(df: DataFrame) -> None:
    """Check that a DataFrame has `_change_type`.

    Raises:
        ConfigurationError: It has not.
    """
    if CHANGE_TYPE not in df.columns:
        raise ConfigurationError(
            f"the DataFrame is not a changelog: it has no column {CHANGE_TYPE!r}, only {', '.join(df.columns)}",
            advice="make a changelog of it with a from_… function, such as from_append for rows that never change",
        )


_INSERT, _BEFORE, _AFTER, _DELETE = CHANGE_TYPES


def from_debezium(  # noqa: PLR0913 - keywords of a function for users
    df: DataFrame,
    schema: str,
    *,
    key: str | Sequence[str] = (),
    mode: Mode = "PERMISSIVE",
    sequence: SequenceSource | None = None,
    missing_before: Literal["postimage", "error"] = "postimage",
    truncate: Literal["error", "ignore"] = "error",
    history: HistoryName = "unknown",
    keep: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the changelog of Debezium's events, in JSON with or without the schema of Kafka Connect.

    The events are in the column `value`, as string or binary. `_split` and `_pos` come from columns with these names,
    or from `topic`, `partition` and `offset`.

    Args:
        df: The events.
        schema: The columns of a row, as for Spark's `from_json`.
        key: The columns of the primary key. Deletes without `before` take them from the column `key`.
        mode: `PERMISSIVE` keeps a malformed event, with the reason, in `_corrupt_record` of a row whose `_change_type`
            is NULL; `DROPMALFORMED` drops it; `FAILFAST` raises an error.
        sequence: The log position for the column `_sequence`: `lsn` (PostgreSQL) or `binlog` (MySQL); None: no column.
        missing_before: `postimage`: old rows may be missing; an update without `before` gives only the
            `update_postimage`. `error`: each update and delete has the whole old row; one that has not is an error.
        truncate: For an event of a truncated table: `error` fails, `ignore` skips the event.
        history: `complete`: each change comes exactly once, from the first one of its row on, as connectors deliver
            that read a table from its first snapshot, exactly once. `unknown`: changes may come again or begin late.
        keep: Columns of `df` to copy into the changelog, such as `timestamp`.
        options: Options of `from_json`, such as `timestampFormat`.

    Raises:
        ConfigurationError: A column does not exist, or an option is wrong.
    """
    special = {"sequence": sequence, "missing_before": missing_before, "truncate": truncate}
    reading = EventReading("debezium-json", schema, _names(key), mode, tuple(keep), special, options or {})
    return read_events(df, reading, "from_debezium", complete=is_complete(history))


def from_maxwell(  # noqa: PLR0913 - keywords of a function for users
    df: DataFrame,
    schema: str,
    *,
    key: str | Sequence[str] = (),
    mode: Mode = "PERMISSIVE",
    sequence: Literal["binlog"] | None = None,
    missing_before: Literal["postimage", "error"] = "postimage",
    history: HistoryName = "unknown",
    keep: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the changelog of events of Maxwell's daemon. The arguments are those of `from_debezium`.

    `sequence="binlog"` needs events with `position`, which Maxwell writes with `output_binlog_position`.
    """
    special = {"sequence": sequence, "missing_before": missing_before}
    reading = EventReading("maxwell-json", schema, _names(key), mode, tuple(keep), special, options or {})
    return read_events(df, reading, "from_maxwell", complete=is_complete(history))


def from_upsert_kafka(
    df: DataFrame,
    schema: str,
    *,
    key: str | Sequence[str],
    mode: Mode = "PERMISSIVE",
    keep: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the changelog of a compacted topic, as Flink's upsert-kafka connector writes it.

    A row with a value becomes an `update_postimage`. A row with a NULL value becomes a `delete`, which has only the
    columns of the key. `normalize` completes the result to a full changelog.

    Args:
        df: The rows, with JSON in the columns `key` and `value`.
        schema: The columns of a row, also those of the key.
        key: The columns of the key. They always come from the column `key`.
        mode: See `from_debezium`.
        keep: See `from_debezium`.
        options: Options of `from_json`.
    """
    reading = EventReading("upsert-json", schema, _names(key), mode, tuple(keep), {}, options or {})
    return read_events(df, reading, "from_upsert_kafka")


def from_delta_cdf(df: DataFrame, *, key: str | Sequence[str] = (), history: HistoryName = "unknown") -> DataFrame:
    """Return the changelog of Delta's change data feed, or of Spark's `changes()`. It has whole old rows.

    Args:
        df: The change feed.
        key: The columns that identify a row of the table.
        history: `complete`: the feed begins with the first version of the table, which has no rows that are older.
            `unknown`: it may begin later.

    Raises:
        ConfigurationError: There is no column `_change_type`, or a column of the key does not exist.
    """
    return _renamed(df, DELTA_CDF, key, history)


def from_iceberg_changes(
    df: DataFrame, *, key: str | Sequence[str] = (), history: HistoryName = "unknown"
) -> DataFrame:
    """Return the changelog of a view that Iceberg's `create_changelog_view` made. The arguments are as for Delta.

    `_change_ordinal` becomes `_sequence`, and `_commit_snapshot_id` becomes `_transaction`.

    Raises:
        ConfigurationError: There is no column `_change_type`, or a column of the key does not exist.
    """
    return _renamed(df, ICEBERG_CHANGES, key, history)


def from_hudi(df: DataFrame, *, key: str | Sequence[str] = ()) -> DataFrame:
    """Return the changelog of a Hudi table with `_hoodie_operation`; `_hoodie_commit_time` becomes `_sequence`.

    Old rows may be missing, and a stream of Hudi may leave out changes between two commits.

    Args:
        df: The change stream.
        key: The columns that identify a row of the table.

    Raises:
        ConfigurationError: There is no column `_hoodie_operation`, or a column of the key does not exist.
    """
    return _renamed(df, HUDI, key)


def from_is_deleted(df: DataFrame, deleted: str = "is_deleted", *, key: str | Sequence[str] = ()) -> DataFrame:
    """Return the changelog of rows with a deletion flag: a `delete` where it is true, else an `update_postimage`.

    A NULL flag counts as false (K7). The result does not have the flag, and no old rows.

    Args:
        df: The rows.
        deleted: The column with the flag.
        key: The columns that identify a row; by default the primary key of `df`.

    Raises:
        ConfigurationError: There is no such column, or it is not boolean.
    """
    check_flag(deleted, {field.name: isinstance(field.dataType, BooleanType) for field in df.schema})
    kind = F.when(F.coalesce(quoted(deleted), F.lit(False)), _DELETE).otherwise(_AFTER)
    keys = key_names(df, key) if key else keys_of(df).primary or ()
    changes = df.select(*(quoted(name) for name in df.columns if name != deleted), kind.alias(CHANGE_TYPE))
    return declare(changes, ChangeTraits(), keys)


def from_append(df: DataFrame) -> DataFrame:
    """Return the changelog of rows that never change: every row is an `insert`."""
    return declare(df.select("*", F.lit(_INSERT).alias(CHANGE_TYPE)), ChangeTraits(Images.APPEND, complete=True))


def to_debezium(
    df: DataFrame, key: str | Sequence[str], *, tombstones: bool = False, ordered: bool = False
) -> DataFrame:
    """Return Debezium's events as the string columns `key` and `value`, for a Kafka sink.

    The two rows of an update become one event if they are adjacent in a partition of `df`. Otherwise the
    `update_preimage` becomes a delete, and the `update_postimage` an update without `before`.

    Args:
        df: A changelog whose changes are in order within each key.
        key: The columns of the message key.
        tombstones: Whether a NULL value follows each delete, for compacted topics.
        ordered: Do not check that the plan proves the changes of each key to be in order.

    Raises:
        ConfigurationError: A column does not exist, or nothing proves that the changes of each key are in order.
    """
    _check_order(df, key, "to_debezium", ordered=ordered)
    return write_events(
        df, EventWriting(DebeziumJsonWriter, {"key": _names(key), "tombstones": tombstones}), "to_debezium"
    )


def to_maxwell(
    df: DataFrame, key: str | Sequence[str], *, database: str, table: str, ordered: bool = False
) -> DataFrame:
    """Return events of Maxwell's daemon as the string column `value`. Updates are paired as by `to_debezium`.

    Raises:
        ConfigurationError: See `to_debezium`.
    """
    _check_order(df, key, "to_maxwell", ordered=ordered)
    arguments = {"key": _names(key), "database": database, "table": table}
    return write_events(df, EventWriting(MaxwellJsonWriter, arguments), "to_maxwell")


def to_upsert_kafka(df: DataFrame, key: str | Sequence[str], *, ordered: bool = False) -> DataFrame:
    """Return rows for a compacted topic (upsert-kafka): string columns `key` and `value`, which is NULL for deletes.

    Raises:
        ConfigurationError: See `to_debezium`.
    """
    _check_order(df, key, "to_upsert_kafka", ordered=ordered)
    return write_events(df, EventWriting(UpsertJsonWriter, {"key": _names(key)}), "to_upsert_kafka")


def _check_order(df: DataFrame, key: str | Sequence[str], function: str, *, ordered: bool) -> None:
    require_order(df, key_names(df, key), function, ordered=ordered)


def to_delta_cdf(df: DataFrame) -> DataFrame:
    """Return the columns of Delta's change data feed: payload, `_change_type`, and the `_commit_…` columns, if any.

    Raises:
        ConfigurationError: The DataFrame is not a changelog, its plan makes a wrong table of it, or it was filtered
            before anything was declared of it.
    """
    check_changelog(df)
    refuse_broken(df)
    return df.select(*map(quoted, delta_cdf_names(df.columns)))


def to_is_deleted(df: DataFrame, deleted: str = "is_deleted") -> DataFrame:
    """Return rows with a deletion flag instead of `_change_type`.

    Each `update_preimage` is dropped: its `update_postimage` has the same key.

    Raises:
        ConfigurationError: The DataFrame is not a changelog, its plan makes a wrong table of it, it was filtered before
            anything was declared of it, or a column has the name of the flag.
    """
    check_changelog(df)
    if deleted in df.columns:
        raise ConfigurationError(
            f"the DataFrame already has a column {deleted!r}", option="deleted", advice="give the flag another name"
        )
    known = DELTA_CDF.words
    kind = _word(CHANGE_TYPE, known, DELTA_CDF.name)
    rows = df.where(quoted(CHANGE_TYPE) != _BEFORE)
    flagged = rows.select(
        *(quoted(name) for name in df.columns if name != CHANGE_TYPE), (kind == _DELETE).alias(deleted)
    )
    refuse_broken(flagged)
    return flagged


def _renamed(
    df: DataFrame, form: ColumnFormat, key: str | Sequence[str] = (), history: HistoryName = "unknown"
) -> DataFrame:
    columns = [quoted(name) for name in form.payload(df.columns)]
    columns.append(_word(form.kind, form.words, form.name).alias(CHANGE_TYPE))
    for name, there in form.renamed.items():
        if there in df.columns:
            column = quoted(there)
            columns.append((column.cast(from_arrow_type(TYPES[name])) if name in TYPES else column).alias(name))
    images = Images.UPSERT if form is HUDI else Images.FULL
    changes = df.select(*columns)
    return declare(changes, ChangeTraits(images, is_complete(history)), key_names(changes, key) if key else ())


def _word(column: str, words: Mapping[str, str], name: str) -> Column:
    """Return an expression that translates `column` to `_change_type` by `words`, and raises for an unknown value."""
    unknown = failure(
        ["unknown kind ", F.coalesce(quoted(column), F.lit("NULL")), f" in {name}"],
        f"filter out such rows first; known kinds are {', '.join(words)}",
    )
    known = (F.when(quoted(column) == word, F.lit(change)) for word, change in words.items())
    return F.coalesce(*known, unknown)


def _names(key: str | Sequence[str]) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)


# -- Runs the readers and writers of change events in the tasks of Spark.


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
                converted = converter.convert(batch)
            yield converted
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
                batch = next(written, None)
            if batch is None:
                return
            yield batch


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
    kinds = {field.name: field.dataType for field in df.schema}
    for column in ["value", *(["key"] if reading.form == "upsert-json" else [])]:
        if not isinstance(kinds.get(column), (StringType, BinaryType)):
            problem = f"is {kinds[column].simpleString()}" if column in kinds else "does not exist"
            raise ConfigurationError(
                f"the column {column!r} must hold the JSON of the events, but it {problem}",
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
