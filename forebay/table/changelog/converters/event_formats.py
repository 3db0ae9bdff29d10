# SPDX-License-Identifier: Apache-2.0
"""The formats of change events by name, as Flink names them, with the options that each of them has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.json.options import JsonOptions
from forebay.table.changelog.converters import change_events as positions
from forebay.table.changelog.converters.change_events import EventReader
from forebay.table.changelog.converters.debezium import DebeziumJsonReader
from forebay.table.changelog.converters.json_texts import EventJsonOptions, payload_schema, wanted_fields
from forebay.table.changelog.converters.maxwell_json import MaxwellJsonReader
from forebay.table.changelog.converters.upsert_json import UpsertJsonReader
from forebay.table.changelog.shape import (
    CHANGE_TYPE,
    CHANGE_TYPES,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    SEQUENCE,
    TRANSACTION,
    TYPES,
    Images,
)

# -- Change formats whose rows already have columns: change feeds of tables, deletion flags, plain appends (C17).
# A `ColumnFormat` only lists words and names, so each host can convert it by expressions of its own.

_INSERT, _BEFORE, _AFTER, _DELETE = CHANGE_TYPES


@dataclass(frozen=True)
class ColumnFormat:
    """How the columns of a change feed become those of a changelog.

    Args:
        name: The name for errors.
        kind: The column with the kind.
        words: The word of the feed → the word of `_change_type`.
        renamed: The column of the changelog → the column of the feed, whose values are cast to the changelog's type.
        dropped: Other columns of the feed that are not payload.
    """

    name: str
    kind: str
    words: Mapping[str, str]
    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: frozenset[str] = frozenset()

    def payload(self, names: list[str]) -> list[str]:
        """Return the payload columns among `names`, the columns of the feed.

        Raises:
            ConfigurationError: The feed has no column with the kind.
        """
        if self.kind not in names:
            raise ConfigurationError(
                f"the rows are not a {self.name}: there is no column {self.kind!r}, only {', '.join(names)}",
                advice="read the changes of the table, not its rows",
            )
        own = {self.kind, *self.renamed.values(), *self.dropped}
        return [name for name in names if name not in own]


DELTA_CDF: Final = ColumnFormat(
    "change data feed of Delta",
    CHANGE_TYPE,
    dict(zip(CHANGE_TYPES, CHANGE_TYPES, strict=True)),
    {COMMIT_VERSION: COMMIT_VERSION, COMMIT_TIMESTAMP: COMMIT_TIMESTAMP},
)
"""The format of Delta's change data feed, and of Spark's `changes()`."""

ICEBERG_CHANGES: Final = ColumnFormat(
    "changelog view of Iceberg",
    CHANGE_TYPE,
    {"INSERT": _INSERT, "UPDATE_BEFORE": _BEFORE, "UPDATE_AFTER": _AFTER, "DELETE": _DELETE},
    {SEQUENCE: "_change_ordinal", TRANSACTION: "_commit_snapshot_id"},
)
"""The format of Iceberg's changelog view. `_change_ordinal` counts its snapshots, so it orders the changes."""

HUDI: Final = ColumnFormat(
    "change stream of Hudi",
    "_hoodie_operation",
    {"I": _INSERT, "-U": _BEFORE, "U": _AFTER, "D": _DELETE},
    {SEQUENCE: "_hoodie_commit_time"},
    frozenset({"_hoodie_commit_seqno", "_hoodie_record_key", "_hoodie_partition_path", "_hoodie_file_name"}),
)
"""The format of Hudi's change stream. `_hoodie_commit_time` is a text that sorts in the order of commits."""


def check_flag(flag: str, booleans: Mapping[str, bool]) -> None:
    """Check that a deletion flag exists and is boolean. `booleans` says for each column whether it is boolean.

    Raises:
        ConfigurationError: The column does not exist, or is not boolean.
    """
    if not booleans.get(flag):
        problem = "is not boolean" if flag in booleans else "does not exist"
        raise ConfigurationError(
            f"the deletion flag {flag!r} {problem}",
            option="deleted",
            advice=f"give a boolean column; the columns are {', '.join(booleans)}",
        )


def delta_cdf_names(names: list[str]) -> list[str]:
    """Return the columns among `names`, those of a changelog, that Delta's change data feed has."""
    own = {CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP}
    return [name for name in names if name in own or name not in {*TYPES, SEQUENCE}]


# -- The formats of change events by name, as Flink names them, with the options that each of them has.

EventFormat = Literal["debezium-json", "maxwell-json", "upsert-json"]

_OPTIONS: Final[dict[str, dict[str, tuple[object, ...]]]] = {
    "debezium-json": {
        "sequence": ("lsn", "binlog"),
        "missing_before": ("postimage", "error"),
        "truncate": ("error", "ignore"),
        "key_schema": (),
    },
    "maxwell-json": {"sequence": ("binlog",), "missing_before": ("postimage", "error")},
    "upsert-json": {"key_schema": ()},
}
"""Format → the options that it has → their possible values; () allows any value."""


@dataclass(frozen=True, kw_only=True)
class EventOptions:
    """The options by which change events are read. Errors name the options as `names` does.

    Args:
        form: The format.
        value_schema: The columns of a row, as for Spark's `from_json`.
        key_schema: The columns of the message key, in the same form.
        key: The columns of the primary key. Empty: those of `key_schema`.
        sequence: The log position for `_sequence`; None: there is no such column.
        missing_before: `postimage` accepts events without the old row, or with a part of it; `error` fails.
        truncate: For a truncate event: `error` fails, `ignore` skips it.
        names: The name of an option here → its name for the user.
    """

    form: EventFormat
    value_schema: str | pa.Schema | None
    key_schema: str | pa.Schema | None = None
    key: Sequence[str] = ()
    sequence: positions.SequenceSource | None = None
    missing_before: Literal["postimage", "error"] = "postimage"
    truncate: Literal["error", "ignore"] = "error"
    names: Mapping[str, str]

    def reader(self, options: JsonOptions, columns: Sequence[str] | None = None) -> EventReader:
        """Return the reader of the format.

        Args:
            options: How to read JSON.
            columns: The columns of a row to read. None: all.

        Raises:
            ConfigurationError: An option does not fit the format, or a schema is not valid.
        """
        self._check()
        options = EventJsonOptions.of(options)
        payload = payload_schema(self.value_schema, self.names["value_schema"], options)
        key = None
        if self.key_schema is not None:
            key = payload_schema(self.key_schema, self.names["key_schema"], options)
        if self.form == "upsert-json":
            return UpsertJsonReader(payload, self._required(key), options, columns)
        self._check_columns(key or pa.schema([]), payload)
        names = list(self.key or (key or pa.schema([])).names)
        # Changed keys show in the columns of the key, and whole rows in all columns.
        pruned = columns is not None and self.missing_before == "postimage"
        fields = wanted_fields(list(payload), [*(columns or ()), *names] if pruned else None)
        arguments: dict[str, Any] = {"key": names, "sequence": self.sequence, "missing_before": self.missing_before}
        if self.form == "maxwell-json":
            return MaxwellJsonReader(fields, options, **arguments)
        return DebeziumJsonReader(fields, options, message_key=key, truncate=self.truncate, **arguments)

    def key_names(self, options: JsonOptions) -> list[str]:
        """Return the columns of the key, if `key_schema` gives them."""
        if self.key_schema is None:
            return []
        return payload_schema(self.key_schema, self.names["key_schema"], options).names

    def _required(self, key: pa.Schema | None) -> pa.Schema:
        if key is None:
            raise ConfigurationError(
                f"the format {self.form} needs the columns of the message key",
                option=self.names["key_schema"],
                advice=f"give them in {self.names['key_schema']}",
            )
        return key

    def _check_columns(self, key: pa.Schema, payload: pa.Schema) -> None:
        """Check that the row has all columns of the key, with the same types."""
        option, rows = self.names["key_schema"], self.names["value_schema"]
        for name in key.names:
            if name not in payload.names or payload.field(name).type != key.field(name).type:
                raise ConfigurationError(
                    f"the key column {name!r} is not in the schema of the row, or not of type {key.field(name).type}",
                    option=option,
                    advice=f"give it the same name and type in {option} and {rows}",
                )

    def _check(self) -> None:
        known = _OPTIONS[self.form]
        defaults = {"sequence": None, "missing_before": "postimage", "truncate": "error", "key_schema": None}
        for name, default in defaults.items():
            value = getattr(self, name)
            allowed = known.get(name)
            if value == default or (allowed is not None and (not allowed or value in allowed)):
                continue
            values = f"; it takes {' and '.join(map(str, allowed))}" if allowed else ""
            raise ConfigurationError(
                f"{self.form} does not take {self.names[name]}={value}{values}",
                option=self.names[name],
                advice=f"remove {self.names[name]}, or give another format",
            )


def event_images(form: EventFormat, missing_before: str | None) -> Images:
    """Return which rows the changes of a format hold. Full images are those that `missing_before=error` checks."""
    return Images.FULL if form != "upsert-json" and missing_before == "error" else Images.UPSERT


def keyed_options(
    form: EventFormat,
    schema: str,
    key: Sequence[str],
    json: JsonOptions,
    names: Mapping[str, str],
    *,
    from_message: bool,
    **options: Any,  # noqa: ANN401 - fields of `EventOptions`
) -> EventOptions:
    """Return the options of a format, for a key that is given by the names of its columns.

    Args:
        form: The format.
        schema: The columns of a row, as for Spark's `from_json`.
        key: The columns of the key.
        json: How to read JSON.
        names: The names of the options for the user.
        from_message: Whether the columns of the key are read from the column `key`.
        options: Other fields of `EventOptions`.

    Raises:
        ConfigurationError: The schema is not valid, or has no such column.
    """
    row = payload_schema(schema, names["value_schema"], json)
    missing = next((name for name in key if name not in row.names), None)
    if missing is not None:
        raise ConfigurationError(
            f"the key column {missing!r} is not in the schema",
            option=names["key_schema"],
            advice=f"give columns of the schema: {', '.join(row.names)}",
        )
    keys = pa.schema([row.field(name) for name in key]) if key and from_message else None
    return EventOptions(form=form, value_schema=row, key_schema=keys, key=key, names=names, **options)
