# SPDX-License-Identifier: Apache-2.0
"""Converts lists of events to lists of rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from forebay.formats.json.options import JsonOptions
from forebay.table.changelog.converters.event_converter import EventConverter
from forebay.table.changelog.converters.event_formats import EventOptions

Convert = Callable[..., list[dict[str, Any]]]
NAMES = {name: name for name in ("value_schema", "key_schema", "sequence", "missing_before", "truncate")}


def text(value: object) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()


def run(
    form: Any,
    schema: str,
    values: Sequence[object],
    keys: Sequence[object] | None = None,
    mode: Any = "PERMISSIVE",
    columns: Sequence[str] | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Convert events of a format."""
    reader = EventOptions(form=form, value_schema=schema, names=NAMES, **options).reader(JsonOptions(), columns)
    events = {
        "key": pa.array([text(key) for key in keys or [None] * len(values)], pa.binary()),
        "value": pa.array([text(value) for value in values], pa.binary()),
        "_split": pa.repeat("t/0", len(values)),
        "_pos": pa.array(range(100, 100 + len(values)), pa.int64()),
    }
    batch = pa.record_batch(events)
    converter = EventConverter(reader, batch.schema, mode=mode, columns=columns)
    found = converter.convert(batch)
    converter.close()
    found.validate(full=True)
    assert found.schema == converter.schema
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


@pytest.fixture(scope="session")
def convert_once() -> Convert:
    """Convert events of a format, for tests that hypothesis runs many times."""
    return run


@pytest.fixture
def convert() -> Convert:
    """Convert events: `convert(format, schema, values, keys=…, mode=…, columns=…, **options)`."""
    return run
