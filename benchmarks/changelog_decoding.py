# SPDX-License-Identifier: Apache-2.0
"""Change events a second of one core: JSON of Debezium and Maxwell to the rows of a changelog."""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, get_args

import pyarrow as pa

from forebay.formats.json.options import JsonOptions
from forebay.table.changelog.converters.debezium import DebeziumJsonWriter
from forebay.table.changelog.converters.event_converter import EventConverter
from forebay.table.changelog.converters.event_formats import EventFormat, EventOptions

SCHEMA = "id BIGINT, name STRING, weight DOUBLE, amount INT"
NAMES = {name: name for name in ("value_schema", "key_schema", "sequence", "missing_before", "truncate")}
BATCH = 16_384


def row(key: int, number: int) -> dict[str, Any]:
    return {"id": key, "name": f"name {number}", "weight": number / 7, "amount": number}


def debezium(number: int, op: str) -> dict[str, Any]:
    source = {"version": "3.2.0.Final", "connector": "postgresql", "name": "shop", "ts_ms": 1_700_000_000_000 + number}
    source |= {
        "snapshot": "false",
        "db": "shop",
        "schema": "public",
        "table": "orders",
        "txId": 5,
        "lsn": 1000 + number,
    }
    return {
        "before": None if op == "c" else row(number % 1000, number),
        "after": None if op == "d" else row(number % 1000, number + 1),
        "source": source,
        "op": op,
        "ts_ms": 1_700_000_000_001 + number,
        "transaction": None,
    }


def maxwell(number: int, op: str) -> dict[str, Any]:
    words = {"c": "insert", "u": "update", "d": "delete"}
    event = {
        "database": "shop",
        "table": "orders",
        "type": words[op],
        "ts": 1_700_000_000,
        "xid": number,
        "commit": True,
    }
    event["data"] = row(number % 1000, number)
    return event | ({"old": {"name": "before"}} if op == "u" else {})


def upsert(number: int, op: str) -> dict[str, Any]:
    del op
    return row(number % 1000, number)


EVENTS: dict[str, Callable[[int, str], dict[str, Any]]] = {
    "debezium-json": debezium,
    "maxwell-json": maxwell,
    "upsert-json": upsert,
}


def batches(texts: pa.Array, keys: pa.Array) -> Iterator[pa.RecordBatch]:
    whole = pa.record_batch({"key": keys, "value": texts})
    for start in range(0, len(texts), BATCH):
        yield whole.slice(start, BATCH)


def measure(form: EventFormat, count: int, *, wrapped: bool) -> None:
    """Print the events a second of CPU time, the best of three runs."""
    draw = random.Random(1)
    events = [EVENTS[form](number, draw.choice("cuud")) for number in range(count)]
    if wrapped:
        events = [{"schema": {"type": "struct", "optional": False}, "payload": event} for event in events]
    texts = pa.array([json.dumps(event, separators=(",", ":")).encode() for event in events])
    keys = pa.array([b'{"id":%d}' % (number % 1000) for number in range(count)])
    key = "id BIGINT" if form == "upsert-json" else None
    options = EventOptions(form=form, value_schema=SCHEMA, key_schema=key, names=NAMES)
    converter = EventConverter(options.reader(JsonOptions()), next(batches(texts, keys)).schema, mode="FAILFAST")
    best, found = 0.0, list[pa.RecordBatch]()
    for _ in range(3):
        began = time.process_time()
        found = [converter.convert(batch) for batch in batches(texts, keys)]
        best = max(best, count / (time.process_time() - began))
    changes = sum(batch.num_rows for batch in found)
    title = form + (" with schema" if wrapped else "")
    size = texts.nbytes // count
    print(f"{title:28} {size:4} bytes an event, {changes / count:.2f} changes an event: {best:10,.0f} events/s a core")
    if form == "debezium-json" and not wrapped:
        began = time.process_time()
        written = sum(batch.num_rows for batch in DebeziumJsonWriter(converter.schema, ["id"]).write(found))
        print(f"{'  written back':28} {written / (time.process_time() - began):10,.0f} events/s a core")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=200_000)
    count = parser.parse_args().events
    for form in get_args(EventFormat):
        measure(form, count, wrapped=False)
    measure("debezium-json", count, wrapped=True)


if __name__ == "__main__":
    main()
