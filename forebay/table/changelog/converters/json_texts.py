# SPDX-License-Identifier: Apache-2.0
"""Reads a column of JSON texts, bare or inside the `schema` and `payload` of Kafka Connect's JSON converter."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.errors import ConfigurationError
from forebay.formats.json.cells import CellReader
from forebay.formats.json.jackson import check_type
from forebay.formats.json.options import JsonOptions, text_options
from forebay.formats.values.ddl import parse_schema
from forebay.table.changelog.converters.change_events import check_payload, children, valid
from forebay.table.changelog.shape import COLUMNS

_PAYLOAD: Final = "payload"


@dataclass(frozen=True, kw_only=True)
class EventJsonOptions(JsonOptions):
    """The options for reading JSON of change events: a number is no TIMESTAMP.

    Spark reads seconds, but Debezium writes milliseconds, microseconds or nanoseconds, and the value does not tell.
    """

    numeric_timestamps: ClassVar[bool] = False

    @classmethod
    def of(cls, options: JsonOptions) -> EventJsonOptions:
        """Return these options for change events."""
        return cls(**{item.name: getattr(options, item.name) for item in fields(options)})


@dataclass(frozen=True, slots=True)
class Texts:
    """The result of reading a column of JSON texts.

    Args:
        fields: The column of each field, by name.
        bad: For each text, whether it is malformed or does not fit the types.
        reason: Takes the row number of a bad text, and returns why the text is bad.
    """

    fields: dict[str, pa.Array]
    bad: npt.NDArray[np.bool_]
    reason: Callable[[int], str]


class TextReader:
    """Reads fields of JSON objects, at the top level or inside an object `payload`, as Kafka Connect writes them.

    Args:
        fields: The fields.
        options: How to read JSON.
        required: If this field is missing at the top level, read `payload`; None: if all fields are missing there.
    """

    def __init__(self, fields: pa.Schema, options: JsonOptions, required: str | None = None) -> None:
        self._names = fields.names
        self._required = self._names if required is None else [required]
        wrapped = pa.schema([pa.field(_PAYLOAD, pa.struct(list(fields)))])
        self._readers = [CellReader(fields, options), CellReader(wrapped, options)]
        self._first = 0

    def read(self, texts: pa.Array) -> Texts:
        """Read a column of texts, which may be strings or binary."""
        texts = texts.cast(pa.binary())
        count = len(texts)
        values, bad = self._read_as(self._first, texts)
        form = np.full(count, self._first)
        missing = np.flatnonzero(self._is_missing(values) & valid(texts))
        if len(missing):
            others, others_bad = self._read_as(1 - self._first, texts.take(pa.array(missing)))
            there = np.flatnonzero(~self._is_missing(others))
            rows = missing[there]
            form[rows], bad[rows] = 1 - self._first, others_bad[there]
            if len(rows):
                places = np.arange(count)
                places[rows] = count + there
                values = pa.concat_arrays([values, others]).take(pa.array(places))
                self._first = 1 - self._first if 2 * len(rows) > count else self._first

        def reason(row: int) -> str:
            text: str = self._readers[form[row]].reason(texts[row].as_py())
            return text

        return Texts(dict(zip(self._names, children(values), strict=True)), bad, reason)

    def _read_as(self, form: int, texts: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
        parsed = self._readers[form].read(texts)
        bad = np.zeros(len(texts), np.bool_)
        bad[parsed.bad] = True
        return (children(parsed.values)[0] if form else parsed.values), bad

    def _is_missing(self, values: pa.Array) -> npt.NDArray[np.bool_]:
        missing = np.ones(len(values), np.bool_)
        for name, column in zip(self._names, children(values), strict=True):
            if name in self._required:
                missing &= ~valid(column)
        return missing


def payload_schema(text: str | pa.Schema | None, option: str, options: JsonOptions) -> pa.Schema:
    """Return the schema that an option gives as text. `text` may also be a schema, which is only checked.

    Raises:
        ConfigurationError: The schema is missing or not valid, or has a type that JSON does not support, or a field
            with the name of one of the changelog's own columns.
    """
    if text is None:
        raise ConfigurationError(
            f"the events need a schema: the option {option} is missing",
            option=option,
            advice=f"give {option} the columns of a row as for Spark's from_json: 'id BIGINT, name STRING'",
        )
    schema = text if isinstance(text, pa.Schema) else parse_schema(text, option)
    check_payload(schema, option)
    try:
        for field in schema:
            check_type(field.type, field.name, options)
    except ConfigurationError as error:
        error.option = option
        raise
    return schema


def key_rows(keys: Texts, rows: pa.Schema) -> pa.Array:
    """Return the keys as rows whose other columns are NULL; NULL for a key that is malformed or has no key column."""
    count = len(keys.bad)
    there = np.zeros(count, np.bool_)
    for column in keys.fields.values():
        there |= valid(column)
    columns = [keys.fields.get(field.name, pa.nulls(count, field.type)) for field in rows]
    return pa.StructArray.from_arrays(columns, fields=list(rows), mask=pa.array(~there | keys.bad))


def wanted_fields(fields: list[pa.Field], columns: Collection[str] | None) -> pa.Schema:
    """Return the fields whose names are in `columns` (None: all), or the first field if there are none."""
    return pa.schema([field for field in fields if columns is None or field.name in columns] or fields[:1])


def json_text_options(options: Mapping[str, str], *, source: str, time_zone: str) -> JsonOptions:
    """Return the options of `from_json` for change events; see `text_options`."""
    return text_options(options, source=source, time_zone=time_zone)


# -- Writes rows as JSON texts that forebay's JSON reader, and Spark's `from_json`, read back as the same values.


def payload_names(schema: pa.Schema) -> list[str]:
    """Return the payload columns of a changelog: all except its own, such as `_change_type`."""
    return [name for name in schema.names if name not in COLUMNS]


def json_values(array: pa.Array) -> list[Any]:
    """Return the values of an array as Python values that the `json` module writes.

    Decimals, times and special floating-point numbers become strings, binary becomes Base64, maps become objects.
    """
    kind = array.type
    if isinstance(kind, pa.StructType):
        columns = [json_values(column) for column in children(array)]
        names = [field.name for field in kind]
        rows = zip(*columns, strict=True) if columns else iter([()] * len(array))
        made = [dict(zip(names, row, strict=True)) for row in rows]
        return _masked(made, array)
    if isinstance(array, (pa.ListArray, pa.MapArray)):
        return _lists(array)
    if pa.types.is_binary(kind):
        return [None if value is None else b64encode(value).decode() for value in array.to_pylist()]
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        return array.cast(pa.string()).to_pylist()
    values: list[Any] = array.to_pylist()
    if pa.types.is_floating(kind):
        return [value if value is None or math.isfinite(value) else _special(value) for value in values]
    return values


def json_objects(columns: dict[str, pa.Array]) -> list[dict[str, Any]]:
    """Return each row as a dict that the `json` module writes."""
    lists = [json_values(column) for column in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


def json_texts(columns: dict[str, pa.Array], there: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return each row as the text of a JSON object; NULL for rows where `there` is False."""
    rows = json_objects(columns)
    mask: Sequence[bool] = [True] * len(rows) if there is None else there.tolist()
    return pa.array([dump(row) if keep else None for row, keep in zip(rows, mask, strict=True)], pa.string())


def dump(value: object) -> str:
    """Return the compact JSON text of a value from `json_values`."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _lists(array: pa.ListArray | pa.MapArray) -> list[Any]:
    offsets = array.offsets.to_pylist()
    first, last = offsets[0], offsets[-1]
    if isinstance(array, pa.MapArray):
        keys = json_values(array.keys.slice(first, last - first))
        values = json_values(array.items.slice(first, last - first))
        made: list[Any] = [
            dict(zip(keys[a - first : b - first], values[a - first : b - first], strict=True))
            for a, b in pairwise(offsets)
        ]
    else:
        values = json_values(array.values.slice(first, last - first))
        made = [values[a - first : b - first] for a, b in pairwise(offsets)]
    return _masked(made, array)


def _masked(values: list[Any], array: pa.Array) -> list[Any]:
    return [value if there else None for value, there in zip(values, array.is_valid().to_pylist(), strict=True)]


def _special(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
