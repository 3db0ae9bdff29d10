# SPDX-License-Identifier: Apache-2.0
"""What a writer writes, the reader of the format reads back; by any cut into record batches."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ConfigurationError, DataError
from forebay.formats.json.options import JsonOptions
from forebay.formats.values.ddl import parse_schema
from forebay.table.changelog.converters.debezium import DebeziumJsonReader, DebeziumJsonWriter
from forebay.table.changelog.converters.event_converter import EventConverter
from forebay.table.changelog.converters.json_texts import json_texts
from forebay.table.changelog.converters.maxwell_json import MaxwellJsonReader, MaxwellJsonWriter
from forebay.table.changelog.converters.upsert_json import UpsertJsonReader, UpsertJsonWriter
from forebay.table.changelog.shape import CHANGE_TYPES

DDL = """id INT, name STRING, price DECIMAL(12,3), ratio DOUBLE, small FLOAT, at TIMESTAMP, local TIMESTAMP_NTZ,
day DATE, raw BINARY, ok BOOLEAN, tags ARRAY<STRING>, counts MAP<STRING, BIGINT>,
by STRUCT<who: STRING, at: ARRAY<DATE>>"""
PAYLOAD = parse_schema(DDL, "schema")
CHANGELOG = pa.schema(
    [
        *PAYLOAD,
        pa.field("_change_type", pa.string()),
        pa.field("_transaction", pa.string()),
        pa.field("_commit_timestamp", pa.timestamp("us", "UTC")),
    ]
)
INSERT, BEFORE, AFTER, DELETE = CHANGE_TYPES

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
moments = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))
days = st.dates(dt.date(1, 1, 2))
optional = {
    "name": words,
    "price": st.decimals(-999_999_999, 999_999_999, places=3),
    "ratio": st.floats(),
    "small": st.floats(width=32),
    "at": moments.map(lambda at: at.replace(tzinfo=dt.UTC)),
    "local": moments,
    "day": days,
    "raw": st.binary(max_size=4),
    "ok": st.booleans(),
    "tags": st.lists(st.none() | words, max_size=3),
    "counts": st.dictionaries(words, st.none() | st.integers(-(2**63), 2**63 - 1), max_size=2).map(
        lambda m: list(m.items())
    ),
    "by": st.fixed_dictionaries({"who": st.none() | words, "at": st.none() | st.lists(days, max_size=2)}),
}
rows = st.fixed_dictionaries(
    {"id": st.integers(0, 3), **{name: st.none() | values for name, values in optional.items()}}
)
seconds = st.integers(0, 4_000_000_000).map(lambda at: dt.datetime.fromtimestamp(at, dt.UTC))


@st.composite
def changelogs(draw: Any) -> list[list[dict[str, Any]]]:
    """Draw a changelog with pairs of updates and single kinds, cut into lists."""
    changes: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(0, 6))):
        about = {
            "_transaction": draw(st.none() | st.integers(0, 9).map(str)),
            "_commit_timestamp": draw(st.none() | seconds),
        }
        row, kind = draw(rows), draw(st.sampled_from([*CHANGE_TYPES, "update"]))
        if kind == "update":
            changes.append({**draw(rows), "id": row["id"], "_change_type": BEFORE, **about})
            kind = AFTER
        changes.append({**row, "_change_type": kind, **about})
    cuts = sorted(draw(st.lists(st.integers(0, len(changes)), max_size=3)))
    return [changes[a:b] for a, b in zip([0, *cuts], [*cuts, len(changes)], strict=True)]


def in_pair(changes: list[dict[str, Any]], place: int) -> bool:
    """Whether a row before an update is directly followed by the row after it."""
    here, after = changes[place], changes[place + 1 : place + 2]
    return (
        bool(after)
        and (here["_change_type"], after[0]["_change_type"]) == (BEFORE, AFTER)
        and here["id"] == after[0]["id"]
    )


def batches(parts: list[list[dict[str, Any]]]) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist(part, schema=CHANGELOG) for part in parts]


def read_back(reader: Any, written: list[pa.RecordBatch]) -> pa.Table:
    columns = {name: pa.string() for name in ("key", "value")}
    converter = EventConverter(reader, pa.schema(list(columns.items())), mode="FAILFAST")
    whole = []
    for batch in written:
        found = {
            name: batch.column(name) if name in batch.schema.names else pa.nulls(len(batch), pa.string())
            for name in columns
        }
        whole.append(converter.convert(pa.record_batch(found)))
    return pa.Table.from_batches(whole, converter.schema)


def same(found: pa.Table, expected: list[dict[str, Any]], names: list[str]) -> None:
    """Compare as text, because NaN is not equal to itself."""
    made = pa.Table.from_pylist(expected, schema=CHANGELOG).select(names)
    assert list(map(repr, found.select(names).to_pylist())) == list(map(repr, made.to_pylist()))


@given(changelogs(), st.booleans())
def test_debezium(parts: list[list[dict[str, Any]]], tombstones: bool) -> None:
    """C17: a single `update_preimage` comes back as a delete."""
    changes = [change for part in parts for change in part]
    written = list(DebeziumJsonWriter(CHANGELOG, ["id"], tombstones=tombstones).write(batches(parts)))
    found = read_back(DebeziumJsonReader(PAYLOAD, JsonOptions()), written)
    expected = [
        change | {"_change_type": DELETE}
        if change["_change_type"] == BEFORE and not in_pair(changes, place)
        else change
        for place, change in enumerate(changes)
    ]
    for place, change in enumerate(changes[:-1]):
        if in_pair(changes, place):  # one event, of which the second row tells the transaction
            expected[place] = change | {
                name: changes[place + 1][name] for name in ("_transaction", "_commit_timestamp")
            }
    same(found, expected, CHANGELOG.names)


@given(changelogs())
def test_maxwell(parts: list[list[dict[str, Any]]]) -> None:
    """C17: `old` has the changed columns only, also those that were NULL."""
    changes = [change for part in parts for change in part]
    written = list(MaxwellJsonWriter(CHANGELOG, ["id"], database="d", table="t").write(batches(parts)))
    found = read_back(MaxwellJsonReader(PAYLOAD, JsonOptions()), written)
    expected = [
        change | {"_change_type": DELETE}
        if change["_change_type"] == BEFORE and not in_pair(changes, place)
        else change
        for place, change in enumerate(changes)
    ]
    same(found, expected, [*PAYLOAD.names, "_change_type"])


@given(changelogs())
def test_upsert_kafka(parts: list[list[dict[str, Any]]]) -> None:
    """C17: rows are upserts, deletes have the key only."""
    changes = [change for part in parts for change in part]
    written = list(UpsertJsonWriter(CHANGELOG, ["id"]).write(batches(parts)))
    found = read_back(UpsertJsonReader(PAYLOAD, pa.schema([PAYLOAD.field("id")]), JsonOptions()), written)
    expected = []
    for place, change in enumerate(changes):
        if change["_change_type"] in (INSERT, AFTER):
            expected.append(change | {"_change_type": AFTER})
        elif not in_pair(changes, place):
            expected.append({"id": change["id"], "_change_type": DELETE})
    same(found, expected, [*PAYLOAD.names, "_change_type"])


def test_a_row_before_waits_for_the_next_batch() -> None:
    before = {"id": 1, "_change_type": BEFORE}
    written = list(DebeziumJsonWriter(CHANGELOG, ["id"]).write(batches([[before], [{"id": 1, "_change_type": AFTER}]])))
    assert sum(batch.num_rows for batch in written) == 1
    alone = list(DebeziumJsonWriter(CHANGELOG, ["id"]).write(batches([[before]])))
    assert '"op":"d"' in alone[0].column("value")[0].as_py()


@pytest.mark.parametrize("kind", ["upsert", None])
def test_an_unknown_kind_is_refused(kind: str | None) -> None:
    """C2: NULL is the kind of a malformed event."""
    with pytest.raises(DataError, match=f"unknown change kind {kind!r}, at position row 0"):
        list(MaxwellJsonWriter(CHANGELOG).write(batches([[{"id": 1, "_change_type": kind}]])))


def test_a_key_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the changelog has no column 'x'"):
        UpsertJsonWriter(CHANGELOG, ["x"])


def test_values_are_those_of_debezium_with_strings() -> None:
    row = {"id": 1, "price": Decimal("1.50"), "ratio": float("inf"), "raw": b"\0", "_change_type": INSERT}
    (batch,) = DebeziumJsonWriter(CHANGELOG, ["id"]).write(batches([[row]]))
    assert batch.column("key")[0].as_py() == '{"id":1}'
    text = batch.column("value")[0].as_py()
    assert '"price":"1.500","ratio":"Infinity"' in text
    assert '"raw":"AA=="' in text
    assert text.endswith('"source":{"ts_ms":null},"op":"c","transaction":null}')


def test_keys_of_maps_are_texts() -> None:
    day, number = dt.date(2024, 1, 2), Decimal("1.50")
    columns = {
        "d": pa.array([[(day, 1)]], pa.map_(pa.date32(), pa.int32())),
        "n": pa.array([[(number, 2)]], pa.map_(pa.decimal128(3, 2), pa.int32())),
        "b": pa.array([[(b"\x00", 3)]], pa.map_(pa.binary(), pa.int32())),
        "i": pa.array([[(7, 4)]], pa.map_(pa.int32(), pa.int32())),
    }
    (found,) = json_texts(columns).to_pylist()
    assert found == '{"d":{"2024-01-02":1},"n":{"1.50":2},"b":{"AA==":3},"i":{"7":4}}'


def test_nan_is_one_key_in_both_rows_of_an_update() -> None:
    rows = [{"k": float("nan"), "v": v, "_change_type": kind} for v, kind in zip("ab", CHANGE_TYPES[1:3], strict=True)]
    batch = pa.RecordBatch.from_pylist(rows)
    (events,) = DebeziumJsonWriter(batch.schema, ["k"]).write([batch])
    assert [('"before":{"k":"NaN","v":"a"}' in one, '"op":"u"' in one) for one in events["value"].to_pylist()] == [
        (True, True)
    ]


def test_an_update_of_zero_to_minus_zero_is_read_back() -> None:
    payload = pa.schema([("id", pa.int64()), ("x", pa.float64())])
    rows = [{"id": 1, "x": x, "_change_type": kind} for x, kind in zip((-0.0, 0.0), CHANGE_TYPES[1:3], strict=True)]
    batch = pa.RecordBatch.from_pylist(rows)
    found = read_back(
        MaxwellJsonReader(payload, JsonOptions()), list(MaxwellJsonWriter(batch.schema, ["id"]).write([batch]))
    )
    assert [str(row["x"]) for row in found.to_pylist()] == ["-0.0", "0.0"]
