# SPDX-License-Identifier: Apache-2.0
"""Parses the options for decoding keys and values (bytes, strings, or JSON with a schema) and for corrupt records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.json.jackson import check_type
from forebay.formats.json.options import JsonOptions, text_options
from forebay.formats.values.ddl import parse_schema
from forebay.sources.kafka.records.batches import COLUMNS, record_schema
from forebay.table.changelog.shape import POSITION, SPLIT, TYPES

CORRUPT = pa.struct(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("reason", pa.string()),
    ]
)
"""The type of the corrupt-record column: the raw record, its topic, partition and offset, and the reason."""

POSITIONS: Final[dict[str, pa.DataType]] = {name: TYPES[name] for name in (SPLIT, POSITION)}
"""The columns that the option `rowPositions` adds: the id of the split, and the offset."""


@dataclass(frozen=True)
class Payloads:
    """Says how keys and values are decoded.

    Args:
        types: For `key` and `value`, if decoded: the type string, or the struct of the JSON schema.
        options: The JSON options, the mode, and the name of the corrupt-record column.
        row_positions: Whether rows have the columns `POSITIONS`.
    """

    types: dict[str, pa.DataType]
    options: JsonOptions
    row_positions: bool = False

    @classmethod
    def of(
        cls,
        formats: Mapping[str, tuple[str, str | None]],
        json_options: Mapping[str, str],
        mode: Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"],
        corrupt_column: str,
        time_zone: str,
        *,
        row_positions: bool = False,
    ) -> Self:
        """Parse the options for decoding.

        Args:
            formats: For `key` and `value`: the options for its format and its schema.
            json_options: The options `json.*`.
            mode: The option `mode`.
            corrupt_column: The name of the corrupt-record column.
            time_zone: The time zone of JSON timestamps without a zone.
            row_positions: The option `rowPositions`.
        """
        has_json = "json" in (form for form, _ in formats.values())
        if json_options and not has_json:
            raise ConfigurationError(
                "JSON options are set, but neither keys nor values are JSON",
                option=f"json.{next(iter(json_options))}",
                advice="set valueFormat=json or keyFormat=json, or remove the option",
            )
        # JSON does not support every session time zone; without JSON any zone is accepted.
        options = json_payload_options(json_options, mode, corrupt_column, time_zone if has_json else "UTC")
        kinds = {column: _type(column, form, schema, options) for column, (form, schema) in formats.items()}
        types = {column: kind for column, kind in kinds.items() if kind is not None}
        _check(types, mode, corrupt_column)
        return cls(types, options, row_positions)

    @property
    def corrupt_column(self) -> str:
        """The name of the corrupt-record column."""
        return self.options.column_name_of_corrupt_record

    def schema(self, columns: Sequence[str] | None, *, include_headers: bool) -> pa.Schema:
        """Return the schema of the read for the selected columns (None = all); see `record_schema`."""
        types = {**COLUMNS, **self.types, **(POSITIONS if self.row_positions else {})}
        if self.types:
            types[self.corrupt_column] = CORRUPT
        return record_schema(columns, include_headers=include_headers, column_types=types)

    def decoded(self, columns: Sequence[str]) -> list[str]:
        """Return which of `key` and `value` must be decoded for the selected columns.

        A column that is not decoded is not checked for corrupt records.
        """
        return [name for name in self.types if name in columns or self.corrupt_column in columns]

    def raw_columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of Kafka to fetch for the selected columns; keys and values are not decoded yet."""
        needed = {*columns, *self.decoded(columns)}
        if self.decoded(columns) or not POSITIONS.keys().isdisjoint(columns):
            needed.add("offset")  # for errors and positions
        if self.corrupt_column in columns:
            needed |= {"key", "value"}
        return tuple(name for name in COLUMNS if name in needed)


def _type(column: str, form: str, schema: str | None, options: JsonOptions) -> pa.DataType | None:
    """Return the type of a decoded key or value; None for raw bytes. `form` is the value of its format option."""
    option_name = f"{column}Schema"
    if form != "json":
        if schema is not None:
            raise ConfigurationError(
                f"{option_name} is set, but {column}Format is {form}",
                option=option_name,
                advice=f"set {column}Format=json, or remove the schema",
            )
        return pa.string() if form == "string" else None
    if schema is None:
        raise ConfigurationError(
            f"{column}Format=json needs a schema, but {option_name} is not set",
            option=option_name,
            advice=f"set {option_name} as for Spark's from_json, such as 'id BIGINT, tags ARRAY<STRING>'; "
            f"to find the fields, look at some records with {column}Format=string and forebay.peek",
        )
    fields = parse_schema(schema, option_name)
    corrupt = options.column_name_of_corrupt_record
    if corrupt in fields.names and not pa.types.is_string(fields.field(corrupt).type):
        raise ConfigurationError(
            f"the field {corrupt!r} of {option_name} must be a string, because it holds malformed text",
            option=option_name,
            advice="remove the field, because the corrupt-record column has this name and holds the text and the "
            "reason; or set columnNameOfCorruptRecord to another name",
        )
    try:
        for field in fields:
            check_type(field.type, field.name, options)
    except ConfigurationError as error:
        error.option = option_name
        raise
    return pa.struct(list(fields))


def _check(types: Mapping[str, pa.DataType], mode: str, corrupt_column: str) -> None:
    for option_name, is_set in (
        ("mode", mode != "PERMISSIVE"),
        ("columnNameOfCorruptRecord", corrupt_column != JsonOptions.column_name_of_corrupt_record),
    ):
        if is_set and not types:
            raise ConfigurationError(
                f"{option_name} applies to decoded keys and values only, and neither is decoded",
                option=option_name,
                advice="set valueFormat or keyFormat, or remove the option",
            )
    if corrupt_column in {*COLUMNS, *POSITIONS}:
        raise ConfigurationError(
            f"the source already has a column {corrupt_column!r}, so the column for corrupt records needs another name",
            option="columnNameOfCorruptRecord",
            advice="set columnNameOfCorruptRecord to another name",
        )


def json_payload_options(
    options: Mapping[str, str],
    mode: Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"],
    corrupt_column: str,
    time_zone: str,
) -> JsonOptions:
    """Return the JSON options for keys and values from the options `json.*`, `mode`, and the corrupt-record column.

    Raises:
        ConfigurationError: An option is invalid. The error names it with the prefix `json.`.
    """
    try:
        return text_options(
            options,
            source="forebay_kafka",
            mode=mode,
            column_name_of_corrupt_record=corrupt_column,
            time_zone=time_zone,
        )
    except ConfigurationError as error:
        if error.option is not None and error.option.lower() in (name.lower() for name in options):
            error.option = f"json.{error.option}"
        raise
