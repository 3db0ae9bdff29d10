# SPDX-License-Identifier: Apache-2.0
"""The options for decoding keys and values: raw bytes, strings, or JSON with a schema; and for corrupt records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.ddl import parse_schema
from forebay.formats.json.options import OPTION_NAMES, JsonOptions
from forebay.formats.json.values import check_type
from forebay.options import camel_case, class_options, parse_options
from forebay.sources.kafka.records.decoding import COLUMNS, record_schema

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

_JSON = (
    "date_format",
    "timestamp_format",
    "timestamp_ntz_format",
    "enable_date_time_parsing_fallback",
    "allow_comments",
    "allow_unquoted_field_names",
    "allow_single_quotes",
    "allow_numeric_leading_zeros",
    "allow_non_numeric_numbers",
    "allow_backslash_escaping_any_character",
    "allow_unquoted_control_chars",
)
"""The options of `JsonOptions` that apply to one record with a known schema."""


class DecodingOptions(Protocol):
    """The options of `KafkaOptions` for decoding."""

    @property
    def value_format(self) -> str: ...  # noqa: D102 - see KafkaOptions
    @property
    def key_format(self) -> str: ...  # noqa: D102 - see KafkaOptions
    @property
    def value_schema(self) -> str | None: ...  # noqa: D102 - see KafkaOptions
    @property
    def key_schema(self) -> str | None: ...  # noqa: D102 - see KafkaOptions
    @property
    def mode(self) -> Literal["PERMISSIVE", "DROPMALFORMED", "FAILFAST"]: ...  # noqa: D102 - see KafkaOptions
    @property
    def column_name_of_corrupt_record(self) -> str: ...  # noqa: D102 - see KafkaOptions
    @property
    def json_options(self) -> dict[str, str]: ...  # noqa: D102 - see KafkaOptions
    @property
    def time_zone(self) -> str: ...  # noqa: D102 - see KafkaOptions
    @property
    def name(self) -> str: ...  # noqa: D102 - see KafkaOptions


@dataclass(frozen=True)
class Payloads:
    """How keys and values are decoded.

    Args:
        types: The type of each decoded column of `key` and `value`: a string, or the struct of a JSON schema.
        options: The JSON options, the mode, and the name of the corrupt-record column.
    """

    types: dict[str, pa.DataType]
    options: JsonOptions

    @classmethod
    def of(cls, source: DecodingOptions) -> Payloads:
        """Parse the options of a source. Called wherever a source is made, and on task threads.

        Raises:
            ConfigurationError: The options do not fit together, or a schema is invalid.
        """
        types: dict[str, pa.DataType] = {}
        options = _json_options(source)
        for column, form, schema in (
            ("key", source.key_format, source.key_schema),
            ("value", source.value_format, source.value_schema),
        ):
            kind = _type(column, form, schema, options)
            if kind is not None:
                types[column] = kind
        payloads = cls(types, options)
        payloads._check(source)
        return payloads

    @property
    def corrupt_column(self) -> str:
        """The name of the corrupt-record column."""
        return self.options.column_name_of_corrupt_record

    def schema(self, columns: Sequence[str] | None, *, include_headers: bool) -> pa.Schema:
        """Return the schema of the read.

        Args:
            columns: The wanted columns, in this order; None = all.
            include_headers: Whether all columns include `headers`.

        Raises:
            ConfigurationError: An unknown column.
        """
        if not self.types:
            return record_schema(columns, include_headers=include_headers)
        known = {**COLUMNS, **self.types, self.corrupt_column: CORRUPT}
        if columns is None:
            columns = [name for name in known if include_headers or name != "headers"]
        for name in columns:
            if name not in known:
                raise ConfigurationError(
                    f"there is no column {name!r}", option="columns", advice=f"there are {', '.join(known)}"
                )
        return pa.schema([pa.field(name, known[name]) for name in columns])

    def decoded(self, columns: Sequence[str]) -> list[str]:
        """Return which of `key` and `value` these columns need decoded; the others are not checked either."""
        return [name for name in self.types if name in columns or self.corrupt_column in columns]

    def raw_columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the columns to fetch, with raw keys and values, for these columns."""
        wanted = {*columns, *self.decoded(columns)}
        if self.decoded(columns):
            wanted.add("offset")  # for errors
        if self.corrupt_column in columns:
            wanted |= {"key", "value"}
        return tuple(name for name in COLUMNS if name in wanted)

    def _check(self, source: DecodingOptions) -> None:
        for option_name, given in (
            ("mode", source.mode != "PERMISSIVE"),
            ("columnNameOfCorruptRecord", self.corrupt_column != JsonOptions.column_name_of_corrupt_record),
        ):
            if given and not self.types:
                raise ConfigurationError(
                    f"{option_name} applies to decoded keys and values only, and neither is decoded",
                    source=source.name,
                    option=option_name,
                    advice="set valueFormat or keyFormat, or leave it out",
                )
        if source.json_options and "json" not in (source.value_format, source.key_format):
            raise ConfigurationError(
                "options of JSON are given, but neither keys nor values are JSON",
                source=source.name,
                option=f"json.{next(iter(source.json_options))}",
                advice="set valueFormat=json or keyFormat=json, or leave it out",
            )
        if self.corrupt_column in COLUMNS:
            raise ConfigurationError(
                f"the source already has a column {self.corrupt_column!r}",
                source=source.name,
                option="columnNameOfCorruptRecord",
                advice="give another name",
            )


def _type(column: str, form: str, schema: str | None, options: JsonOptions) -> pa.DataType | None:
    """Return the type of a decoded key or value; None for raw bytes."""
    option_name = f"{column}Schema"
    if form != "json":
        if schema is not None:
            raise ConfigurationError(
                f"{option_name} is given, but {column}Format is {form}",
                option=option_name,
                advice=f"set {column}Format=json, or leave the schema out",
            )
        return pa.string() if form == "string" else None
    if schema is None:
        raise ConfigurationError(
            f"{column}Format=json needs a schema",
            option=option_name,
            advice=f"give {option_name} as for Spark's from_json, such as 'id BIGINT, tags ARRAY<STRING>'; "
            f"or look at some records with {column}Format=string and forebay.peek",
        )
    fields = parse_schema(schema, option_name)
    corrupt = options.column_name_of_corrupt_record
    if corrupt in fields.names and not pa.types.is_string(fields.field(corrupt).type):
        raise ConfigurationError(
            f"the field {corrupt!r} of {option_name} must be a string, because it holds malformed text",
            option=option_name,
            advice="leave it out, since the column of this name has the reason, too; or set columnNameOfCorruptRecord",
        )
    try:
        for field in fields:
            check_type(field.type, field.name, options)
    except ConfigurationError as error:
        error.option = option_name
        raise
    return pa.struct(list(fields))


def _json_options(source: DecodingOptions) -> JsonOptions:
    names = {field: name for name, field in OPTION_NAMES.items()}
    specs = [
        replace(spec, name=names.get(spec.python_name, camel_case(spec.python_name)))
        for spec in class_options(JsonOptions)
        if spec.python_name in _JSON
    ]
    try:
        values = parse_options(specs, source.json_options, source=source.name)
        return JsonOptions(
            **values,
            mode=source.mode,
            column_name_of_corrupt_record=source.column_name_of_corrupt_record,
            # JSON does not support every session time zone; without JSON any zone is accepted.
            time_zone=source.time_zone if "json" in (source.key_format, source.value_format) else "UTC",
        )
    except ConfigurationError as error:
        if error.option is not None and error.option.lower() in (name.lower() for name in source.json_options):
            error.option = f"json.{error.option}"
        raise
