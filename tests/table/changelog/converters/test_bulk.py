# SPDX-License-Identifier: Apache-2.0
"""The columnar path equals a plain reading of each event, for any mixture of events."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

DDL = "id INT, name STRING"
IDS = st.integers(-5, 5) | st.none()
ROWS = st.fixed_dictionaries({"id": IDS, "name": st.none() | st.text('ab"\\é\n', max_size=3)})


def wrapped(event: Any) -> Any:
    return {"schema": {"type": "struct"}, "payload": event}


debezium = st.builds(
    lambda op, before, after, lsn, ms, extra: (
        {"before": before, "after": after, "op": op, "source": {"lsn": lsn, "ts_ms": ms}} | extra
    ),
    st.sampled_from(["c", "r", "u", "d", "t"]),
    st.none() | ROWS,
    st.none() | ROWS | st.just({"id": "no number"}),
    st.none() | st.integers(0, 2**63 - 1),
    st.integers(0, 10**12),
    st.sampled_from([{}, {"transaction": None}, {"transaction": {"id": "7:1", "total_order": 1}}, {"ts_ms": 4}]),
)
broken = st.sampled_from([b"{", b"", b"null", b"[1]", b'{"op":"c","op":"d"}'])
values = st.lists(st.none() | debezium | debezium.map(wrapped) | broken, max_size=40)
maxwell = st.builds(
    lambda kind, data, old, ts: {"type": kind, "data": data, "ts": ts} | ({} if old is None else {"old": old}),
    st.sampled_from(["insert", "update", "delete", "bootstrap-insert", "bootstrap-start"]),
    st.none() | ROWS,
    st.none() | st.fixed_dictionaries({}, optional={"id": IDS, "name": st.none() | st.text("an", max_size=2)}),
    st.integers(0, 10**9),
)


def expected_of_debezium(event: Any) -> list[tuple[Any, ...]]:
    """Read one event with Python's json."""
    if event is None:
        return []
    try:
        event = json.loads(event) if isinstance(event, bytes) else event
    except ValueError:
        return [(None, None, None)]
    if isinstance(event, dict):
        event = event.get("payload", event)
    if not isinstance(event, dict) or event.get("op") not in {"c", "r", "u", "d", "t"} or "source" not in event:
        return [(None, None, None)]
    before, after, op = event["before"], event["after"], event["op"]
    rows = [] if op == "t" else [("delete", before)] if op == "d" else [("insert", after)]
    if op == "u":
        rows = (
            [("update_postimage", after)]
            if before is None
            else [("update_preimage", before), ("update_postimage", after)]
        )
    wrong = any(row is None for _, row in rows) or (after or {}).get("id") == "no number"
    if wrong or (op != "t" and event["source"]["lsn"] is None):
        return [(None, None, None)]
    return [(kind, row["id"], row["name"]) for kind, row in rows]


def expected_of_maxwell(event: Any) -> list[tuple[Any, ...]]:
    """Read one event with Python's json."""
    if event is None or event["type"] == "bootstrap-start":
        return []
    data, kind = event["data"], event["type"]
    if data is None:
        return [(None, None, None)]
    word = {"delete": "delete", "update": "update_postimage"}.get(kind, "insert")
    both = [(word, data)]
    if kind == "update" and "old" in event:
        both.insert(0, ("update_preimage", data | event["old"]))
    return [(kind, row["id"], row["name"]) for kind, row in both]


def found(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["_pos"] - 100, (row["_change_type"], row["id"], row["name"])) for row in rows]


@given(events=values)
def test_debezium_in_bulk_equals_event_by_event(convert_once: Any, events: list[Any]) -> None:
    """C17: also with malformed events, tombstones, and both forms in one batch."""
    rows = convert_once("debezium-json", DDL, events, sequence="lsn", truncate="ignore")
    assert found(rows) == [(place, row) for place, event in enumerate(events) for row in expected_of_debezium(event)]
    kept = convert_once("debezium-json", DDL, events, sequence="lsn", truncate="ignore", mode="DROPMALFORMED")
    assert found(kept) == [one for one in found(rows) if one[1][0] is not None]


@given(events=st.lists(st.none() | maxwell, max_size=40))
def test_maxwell_in_bulk_equals_event_by_event(convert_once: Any, events: list[Any]) -> None:
    """C17: `old` with the changed columns only."""
    rows = convert_once("maxwell-json", DDL, events)
    assert found(rows) == [(place, row) for place, event in enumerate(events) for row in expected_of_maxwell(event)]
