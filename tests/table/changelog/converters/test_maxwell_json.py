# SPDX-License-Identifier: Apache-2.0
"""Events as the documentation of Maxwell's daemon shows them, and every kind of malformed event."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from forebay.errors import ConfigurationError, DataError

DDL = "id INT, daemon STRING"
LEM = {
    "database": "test",
    "table": "maxwell",
    "type": "insert",
    "ts": 1449786310,
    "xid": 940752,
    "commit": True,
    "position": "master.000006:800911",
    "server_id": 23042,
    "data": {"id": 1, "daemon": "Stanislaw Lem"},
}
FIREBUS = LEM | {
    "type": "update",
    "ts": 1449786341,
    "xid": 940786,
    "data": {"id": 1, "daemon": "firebus!  firebus!"},
    "old": {"daemon": "Stanislaw Lem"},
}


def changes(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["_change_type"], row["id"], row["daemon"]) for row in rows]


def test_the_events_of_a_row(convert: Any) -> None:
    """C17: a bootstrap, an insert, an update whose `old` has the changed columns only, a delete."""
    start = LEM | {"type": "bootstrap-start", "data": {}}
    values = [start, LEM | {"type": "bootstrap-insert"}, start | {"type": "bootstrap-complete"}, LEM, FIREBUS]
    rows = convert("maxwell-json", DDL, [*values, FIREBUS | {"type": "delete", "old": None}, None])
    assert changes(rows) == [
        ("insert", 1, "Stanislaw Lem"),
        ("insert", 1, "Stanislaw Lem"),
        ("update_preimage", 1, "Stanislaw Lem"),
        ("update_postimage", 1, "firebus!  firebus!"),
        ("delete", 1, "firebus!  firebus!"),
    ]
    at = dt.datetime(2015, 12, 10, 22, 25, 41, tzinfo=dt.UTC)
    assert (rows[2]["_transaction"], rows[2]["_commit_timestamp"], rows[2]["_pos"]) == ("940786", at, 104)


@pytest.mark.parametrize(
    ("data", "old", "before"),
    [
        ({"id": 1, "daemon": "b"}, {"daemon": None}, (1, None)),
        ({"id": 1, "daemon": None}, {"daemon": "a"}, (1, "a")),
        ({"id": 1, "daemon": "b"}, {"id": 9}, (9, "b")),
        ({"id": 1, "daemon": "null"}, {"id": None}, (None, "null")),
        ({"id": 1, "daemon": "b"}, {}, (1, "b")),
        ({"id": 1, "daemon": "b"}, {"other": None}, (1, "b")),
    ],
)
def test_old_with_null_is_not_an_unchanged_column(convert: Any, data: Any, old: Any, before: Any) -> None:
    """C17: `old` has changed columns only."""
    rows = convert("maxwell-json", DDL, [FIREBUS | {"data": data, "old": old}])
    assert changes(rows) == [("update_preimage", *before), ("update_postimage", data["id"], data["daemon"])]


def test_the_position_orders_events_and_rows_of_an_event(convert: Any) -> None:
    values = [LEM, LEM | {"xoffset": 1}, LEM | {"position": "master.000010:4"}]
    rows = convert("maxwell-json", DDL, [*values, LEM | {"server_id": 7}], sequence="binlog")
    found = [row["_sequence"] for row in rows[:3]]
    assert found == sorted(set(found))
    assert len(found) == 3
    assert [row["_log"] for row in rows] == ["23042", "23042", "23042", "7"]
    assert list(rows[0])[4:7] == ["_pos", "_sequence", "_log"]


def test_the_rows_of_a_bootstrap_have_no_log(convert: Any) -> None:
    """C17: Maxwell writes no server id for them."""
    (row,) = convert("maxwell-json", DDL, [LEM | {"server_id": None, "type": "bootstrap-insert"}], sequence="binlog")
    assert (row["_change_type"], row["_log"]) == ("insert", None)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"[", "value: malformed JSON"),
        ({"data": {}}, "value: it has no field type"),
        (LEM | {"data": None}, "value: an event with type insert has no field data"),
        (LEM | {"data": {"id": "x"}}, "value: the field data.id does not fit INT"),
        (LEM | {"position": "here"}, "value: it has no position such as"),
        (LEM | {"server_id": None}, "value: it has no server_id, which _log comes from; set output_server_id=true"),
    ],
)
def test_a_malformed_event(convert: Any, bad: Any, reason: str) -> None:
    rows = convert("maxwell-json", DDL, [LEM, bad, LEM], sequence="binlog")
    assert [row["_change_type"] for row in rows] == ["insert", None, "insert"]
    assert rows[1]["_corrupt_record"]["reason"].startswith(reason)
    with pytest.raises(DataError, match="at split t/0, position 101 is malformed"):
        convert("maxwell-json", DDL, [LEM, bad], sequence="binlog", mode="FAILFAST")


@pytest.mark.parametrize("columns", [None, ["_change_type", "daemon", "_pos"]])
def test_an_update_that_changes_the_key_is_a_delete_and_an_insert(convert: Any, columns: Any) -> None:
    """C17: both rows have the position of the event."""
    moved = FIREBUS | {"old": {"id": 9, "daemon": "Stanislaw Lem"}}
    rows = convert("maxwell-json", DDL, [FIREBUS, moved], columns=columns, key=["id"])
    assert [(row["_change_type"], row["daemon"], row["_pos"]) for row in rows] == [
        ("update_preimage", "Stanislaw Lem", 100),
        ("update_postimage", "firebus!  firebus!", 100),
        ("delete", "Stanislaw Lem", 101),
        ("insert", "firebus!  firebus!", 101),
    ]
    assert columns or [row["id"] for row in rows] == [1, 1, 9, 1]
    assert convert("maxwell-json", DDL, [moved])[0]["_change_type"] == "update_preimage"


@pytest.mark.parametrize("columns", [None, ["id", "_change_type"]])
@pytest.mark.parametrize("kind", ["insert", "update", "delete", "bootstrap-insert"])
def test_rows_without_a_column_are_refused_with_missing_before_error(convert: Any, kind: str, columns: Any) -> None:
    """C17: with output_nulls=false an old row lacks its NULLs."""
    null = FIREBUS | {"type": kind, "data": {"id": 1, "daemon": None}}
    assert convert("maxwell-json", DDL, [null], missing_before="error", columns=columns)
    lacking = null | {"data": {"id": 1, "other": None}}
    with pytest.raises(DataError, match="lacks the column 'daemon', .* at split t/0 position 101") as failed:
        convert("maxwell-json", DDL, [null, lacking], missing_before="error", columns=columns)
    assert "set output_nulls=true" in (failed.value.advice or "")
    assert convert("maxwell-json", DDL, [lacking], mode="FAILFAST", columns=columns)
    skipped = [LEM | {"type": "bootstrap-start", "data": {}}, b"{torn"]
    assert len(convert("maxwell-json", DDL, skipped, missing_before="error")) == 1


def test_other_events_stop(convert: Any) -> None:
    """C2."""
    with pytest.raises(DataError, match="unknown type 'table-drop' in an event of Maxwell, at split t/0 position 100"):
        convert("maxwell-json", DDL, [LEM | {"type": "table-drop"}])
    without = {name: value for name, value in FIREBUS.items() if name != "old"}
    assert changes(convert("maxwell-json", DDL, [without])) == [("update_postimage", 1, "firebus!  firebus!")]
    with pytest.raises(DataError, match="has no field `old`"):
        convert("maxwell-json", DDL, [without], missing_before="error")


@pytest.mark.parametrize("options", [{"sequence": "lsn"}, {"truncate": "ignore"}, {"key_schema": "id INT"}])
def test_options_of_other_formats_are_refused(convert: Any, options: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"maxwell-json does not take {next(iter(options))}="):
        convert("maxwell-json", DDL, [], **options)
