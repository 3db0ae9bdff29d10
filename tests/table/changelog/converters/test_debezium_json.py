# SPDX-License-Identifier: Apache-2.0
"""Events as Debezium's documentation shows them, and every kind of malformed event."""

from __future__ import annotations

import datetime as dt
import json
import logging
from typing import Any

import pytest

from forebay.errors import ConfigurationError, DataError

DDL = "id INT, first_name STRING, last_name STRING, email STRING"
ANNE = {"id": 1, "first_name": "Anne", "last_name": "Kretchmar", "email": "annek@noanswer.org"}
MARIE = ANNE | {"first_name": "Anne Marie"}
SOURCE = {
    "version": "3.2.0.Final",
    "connector": "postgresql",
    "name": "PostgreSQL_server",
    "ts_ms": 1559033904863,
    "snapshot": True,
    "db": "postgres",
    "sequence": '["24023119","24023128"]',
    "schema": "public",
    "table": "customers",
    "txId": 555,
    "lsn": 24023128,
    "xmin": None,
}
AT = dt.datetime(2019, 5, 28, 8, 58, 24, 863000, dt.UTC)
MYSQL = {
    "version": "3.2.0.Final",
    "connector": "mysql",
    "name": "mysql-server-1",
    "ts_ms": 1465491411815,
    "snapshot": False,
    "db": "inventory",
    "table": "customers",
    "server_id": 112233,
    "gtid": None,
    "file": "mysql-bin.000003",
    "pos": 484,
    "row": 0,
    "thread": 7,
    "query": None,
}


def event(op: str | None, before: object = None, after: object = None, **more: Any) -> dict[str, Any]:
    found = {"before": before, "after": after, "source": SOURCE, "op": op, "ts_ms": 1559033904900, **more}
    return {name: value for name, value in found.items() if name != "op" or value is not None}


def changes(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["_change_type"], row["id"], row["first_name"], row["_pos"]) for row in rows]


@pytest.mark.parametrize("wrapped", [False, True], ids=["bare", "with schema"])
def test_the_events_of_a_row(convert: Any, wrapped: bool) -> None:
    """C17: create, read, update, delete, tombstone."""
    life = [
        event("c", after=ANNE),
        event("r", after=ANNE),
        event("u", ANNE, MARIE),
        event("d", MARIE),
        None,
        event("u", after=MARIE),
    ]
    if wrapped:
        schema = {"type": "struct", "optional": False, "name": "PostgreSQL_server.inventory.customers.Envelope"}
        life = [one and {"schema": schema, "payload": one} for one in life]
    rows = convert("debezium-json", DDL, life, sequence="lsn")
    assert changes(rows) == [
        ("insert", 1, "Anne", 100),
        ("insert", 1, "Anne", 101),
        ("update_preimage", 1, "Anne", 102),
        ("update_postimage", 1, "Anne Marie", 102),
        ("delete", 1, "Anne Marie", 103),
        ("update_postimage", 1, "Anne Marie", 105),
    ]
    assert list(rows[0]) == [
        *("id", "first_name", "last_name", "email", "_change_type", "_split", "_pos"),
        *("_sequence", "_log", "_transaction", "_commit_timestamp", "_corrupt_record"),
    ]
    assert {row["_log"] for row in rows} == {"PostgreSQL_server"}
    assert {(row["_sequence"], row["_commit_timestamp"], row["_corrupt_record"]) for row in rows} == {
        (24023128, AT, None)
    }


def test_both_forms_in_one_batch(convert: Any) -> None:
    both = [event("c", after=ANNE), {"payload": event("d", ANNE)}, {"payload": event("c", after=MARIE)}]
    kinds = [row["_change_type"] for row in convert("debezium-json", DDL, both * 3)]
    assert kinds == ["insert", "delete", "insert"] * 3


def test_a_changed_primary_key_is_a_delete_and_an_insert(convert: Any) -> None:
    """C17."""
    moved = [event("d", ANNE), None, event("c", after=ANNE | {"id": 7})]
    assert changes(convert("debezium-json", DDL, moved)) == [("delete", 1, "Anne", 100), ("insert", 7, "Anne", 102)]


def test_transactions_are_named_and_times_are_no_sequence(convert: Any) -> None:
    named = event("c", after=ANNE, transaction={"id": "571:53195829", "total_order": 1, "data_collection_order": 1})
    rows = convert("debezium-json", DDL, [named, event("c", after=ANNE, transaction=None)])
    assert [row["_transaction"] for row in rows] == ["571:53195829", None]
    assert not {"_sequence", "_log"} & set(rows[0])


def test_binlog_positions_sort_as_the_log_does(convert: Any) -> None:
    places = [("mysql-bin.000003", 484, 0), ("mysql-bin.000003", 484, 12), ("mysql-bin.000003", 1484, 0)]
    places += [("mysql-bin.999999", 4, 0), ("mysql-bin.1000000", 4, 0)]
    sources = [MYSQL | {"file": file, "pos": pos, "row": row} for file, pos, row in places]
    rows = convert("debezium-json", DDL, [event("c", after=ANNE, source=one) for one in sources], sequence="binlog")
    found = [row["_sequence"] for row in rows]
    assert found == sorted(found)
    assert len(set(found)) == len(found)
    assert found[0] == "mysql-bin.0000000003:00000000000000000484:0000000000"


SNAPSHOT = MYSQL | {"server_id": 0}


@pytest.mark.parametrize(
    ("sequence", "sources", "logs"),
    [
        ("lsn", [SOURCE, SOURCE | {"name": None}], ["PostgreSQL_server", ""]),
        (
            "binlog",
            [MYSQL, MYSQL | {"server_id": 7}, MYSQL | {"name": None}, MYSQL | {"server_id": None}, SNAPSHOT],
            ["mysql-server-1/112233", "mysql-server-1/7", "/112233", "mysql-server-1/", None],
        ),
    ],
)
def test_the_log_of_a_sequence_is_that_of_its_server(convert: Any, sequence: str, sources: Any, logs: Any) -> None:
    """C17: positions in the logs of two servers have no order."""
    rows = convert("debezium-json", DDL, [event("c", after=ANNE, source=one) for one in sources], sequence=sequence)
    assert [row["_log"] for row in rows] == logs


def test_a_delete_without_before_takes_the_key(convert: Any) -> None:
    """C17: a table with the replica identity NOTHING, or with an index without the key."""
    keys = [{"schema": {}, "payload": {"id": 4}}, {"id": 5}, {"id": 6}, b"no json"]
    events = [event("d"), event("d"), event("d", {"id": None, "email": "a@x"}), event("d")]
    rows = convert("debezium-json", DDL, events, keys, key_schema="id INT")
    assert [(row["_change_type"], row["id"]) for row in rows] == [*(("delete", key) for key in (4, 5, 6)), (None, None)]
    assert rows[3]["_corrupt_record"]["reason"].startswith("value: a delete has no field before")


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED", "FAILFAST"])
@pytest.mark.parametrize(
    ("value", "key", "problem"),
    [
        (event("c", after=ANNE), None, "has no message key"),
        (event("d"), None, "has no message key"),
        (event("u", ANNE, MARIE), {"id": 2}, "has another message key than id of its row"),
        (event("d", ANNE), {"schema": {}, "payload": {"id": 2}}, "has another message key than id of its row"),
        (event("c", after=ANNE), {"email": "a@x"}, "has another message key than id of its row"),
    ],
)
def test_a_message_key_that_is_not_the_key_of_the_row_stops_in_every_mode(
    convert: Any, value: Any, key: Any, problem: str, mode: str
) -> None:
    """K5: the changes of a key would be in several partitions."""
    events = [event("c", after=ANNE), None, event("t"), b"{torn", value]
    kept = events if mode == "PERMISSIVE" else [one for one in events if one != b"{torn"]
    keys = [{"id": 1}, *[None] * (len(kept) - 2), key]
    with pytest.raises(
        DataError, match=rf"a Debezium event {problem}.* at split t/0 position {99 + len(kept)}"
    ) as failed:
        convert("debezium-json", DDL, kept, keys, key_schema="id INT", truncate="ignore", mode=mode)
    assert "message.key.columns" in (failed.value.advice or "")
    free = [one for one in kept if one != event("d")]
    assert convert("debezium-json", DDL, free, keys[: len(free)], key=["id"], truncate="ignore", mode=mode)


def test_message_keys_are_not_read_without_their_schema_and_not_compared_if_they_are_no_objects(convert: Any) -> None:
    values = [event("c", after=ANNE), event("u", ANNE, MARIE)]
    assert len(convert("debezium-json", DDL, values, [b"Struct{id=1}", 1], key_schema="id INT")) == 3
    only = convert("debezium-json", DDL, values, [{"id": 1}] * 2, key_schema="id INT", columns=["first_name"])
    assert [row["first_name"] for row in only] == ["Anne", "Anne", "Anne Marie"]
    with pytest.raises(DataError, match="has another message key"):
        convert("debezium-json", DDL, values, [{"id": 2}] * 2, key_schema="id INT", columns=["first_name"])


@pytest.mark.parametrize("columns", [None, ["_change_type", "first_name", "_pos"]])
def test_an_update_that_changes_the_key_is_a_delete_and_an_insert(convert: Any, columns: Any) -> None:
    """C17: a connector that does not split such an update; both rows have its position."""
    moved = [event("u", ANNE, MARIE), event("u", ANNE, MARIE | {"id": 7}), event("u", after=MARIE | {"id": 8})]
    keys = [{"id": key} for key in (1, 7, 8)]
    rows = convert("debezium-json", DDL, moved, keys, columns=columns, key=["id"])
    assert [(row["_change_type"], row["first_name"], row["_pos"]) for row in rows] == [
        ("update_preimage", "Anne", 100),
        ("update_postimage", "Anne Marie", 100),
        ("delete", "Anne", 101),
        ("insert", "Anne Marie", 101),
        ("update_postimage", "Anne Marie", 102),
    ]
    with pytest.raises(DataError, match="or changes the key"):  # the old row's earlier changes are in another partition
        convert("debezium-json", DDL, moved, keys, columns=columns, key_schema="id INT")
        assert columns or [row["id"] for row in rows] == [1, 1, 1, 7, 8]


def test_an_old_row_without_the_key_counts_as_missing(convert: Any) -> None:
    """C17: the replica identity is an index without the key, so PostgreSQL sends the columns of the index."""
    part = dict.fromkeys(ANNE) | {"email": "a@x"}
    rows = convert("debezium-json", DDL, [event("u", part, MARIE)], key=["id"])
    assert changes(rows) == [("update_postimage", 1, "Anne Marie", 100)]


MALFORMED = [
    (b"{torn", "value: malformed JSON near byte"),
    (b"", "value: it has no field op"),
    (b"17", "value: "),
    ({"before": None}, "value: it has no field op"),
    (event(None, after=ANNE), "value: it has no field op"),
    (event("c"), "value: an event with op c has no field after"),
    (event("u", ANNE), "value: an event with op u has no field after"),
    (event("d"), "value: a delete has no field before"),
    (event("c", after=ANNE | {"id": "one"}), "value: the field after.id does not fit INT"),
    ({"payload": event("c", after=ANNE | {"id": "one"})}, "value: the field payload.after.id does not fit INT"),
    (event("c", after=ANNE, source={"ts_ms": 1}), "value: it has no source.lsn"),
]


@pytest.mark.parametrize(("bad", "reason"), MALFORMED, ids=[reason for _, reason in MALFORMED])
def test_a_malformed_event(convert: Any, bad: object, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    """C17: kept with the reason, dropped, or an error with the position."""
    values = [event("c", after=ANNE), bad, event("d", ANNE)]
    rows = convert("debezium-json", DDL, values, sequence="lsn")
    assert [row["_change_type"] for row in rows] == ["insert", None, "delete"]
    assert [rows[1][name] for name in ("id", "first_name", "_pos")] == [None, None, 101]
    report = rows[1]["_corrupt_record"]
    assert report["reason"].startswith(reason)
    assert report["_pos"] == 101
    assert report["value"] == (bad if isinstance(bad, bytes) else json.dumps(bad).encode())
    with caplog.at_level(logging.WARNING):
        dropped = convert("debezium-json", DDL, values, sequence="lsn", mode="DROPMALFORMED")
    assert [row["_change_type"] for row in dropped] == ["insert", "delete"]
    assert "_corrupt_record" not in dropped[0]
    assert (
        f"dropped 1 malformed change events in this task; the first one is at split t/0, position 101: {reason}"
        in caplog.text
    )
    with pytest.raises(DataError) as failed:
        convert("debezium-json", DDL, values, sequence="lsn", mode="FAILFAST")
    assert (failed.value.split, failed.value.position, failed.value.option) == ("t/0", "101", "mode")
    assert reason in failed.value.message


@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED", "FAILFAST"])
def test_an_unknown_op_stops_in_every_mode(convert: Any, mode: str) -> None:
    """C2: dropping it could leave the target wrong."""
    with pytest.raises(DataError, match="unknown op 'm' in a Debezium event, at split t/0 position 101"):
        convert("debezium-json", DDL, [None, event("m")], mode=mode)


def test_a_truncate_stops_unless_it_is_ignored(convert: Any) -> None:
    """C17."""
    values = [event("c", after=ANNE), event("t"), event("c", after=ANNE)]
    with pytest.raises(DataError, match=r"truncated \(op t\).* position 101") as failed:
        convert("debezium-json", DDL, values)
    assert failed.value.option == "truncate"
    assert [row["_pos"] for row in convert("debezium-json", DDL, values, truncate="ignore")] == [100, 102]


KEY_ALONE = dict.fromkeys(ANNE) | {"id": 1}


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (event("u", after=MARIE), "an update event of Debezium has no field `before`"),
        (event("d"), "a delete event of Debezium has no field `before`"),
        (event("d", KEY_ALONE), "a delete event of Debezium has only the key in `before`"),
        (
            event("u", KEY_ALONE | {"id": None, "email": "a"}, MARIE),
            "an update event of Debezium has no field `before`",
        ),
    ],
)
@pytest.mark.parametrize("columns", [None, ["id", "_change_type"]])
def test_events_without_the_whole_old_row_are_refused_with_missing_before_error(
    convert: Any, bad: Any, problem: str, columns: Any
) -> None:
    """C17: full images, or an error."""
    values = [event("u", ANNE, MARIE), event("u", KEY_ALONE, MARIE), bad]
    for options in ({"key": ["id"]}, {"key_schema": "id INT"}):
        keys = [{"id": (one["after"] or ANNE)["id"]} for one in values]
        with pytest.raises(DataError, match=f"{problem}.*, at split t/0 position 102") as failed:
            convert("debezium-json", DDL, values, keys, columns=columns, missing_before="error", **options)
        assert failed.value.option == "missing_before"
        assert "replica identity of the table to FULL" in (failed.value.advice or "")
        assert "normalize" in (failed.value.advice or "")
        assert convert("debezium-json", DDL, values, keys, columns=columns, **options)


def test_full_images_pass_with_missing_before_error(convert: Any) -> None:
    part = KEY_ALONE | {"email": "a@x"}
    values = [event("u", ANNE, MARIE), event("d", part), b"{torn", event("c")]
    for columns in (None, ["id", "_change_type"]):  # a NULL in the selected columns does not make a row partial
        rows = convert("debezium-json", DDL, values, key=["id"], missing_before="error", columns=columns)
        assert [row["_change_type"] for row in rows] == ["update_preimage", "update_postimage", "delete", None, None]
    assert len(convert("debezium-json", DDL, [event("d", KEY_ALONE)], missing_before="error")) == 1  # no key is known
    assert len(convert("debezium-json", "id INT", [event("d", {"id": 1})], key=["id"], missing_before="error")) == 1


def test_only_wanted_columns_are_read_and_checked(convert: Any) -> None:
    values = [event("u", ANNE, MARIE | {"id": "x"})]
    rows = convert("debezium-json", DDL, values, columns=["_change_type", "first_name"])
    assert rows == [
        {"_change_type": "update_preimage", "first_name": "Anne"},
        {"_change_type": "update_postimage", "first_name": "Anne Marie"},
    ]
    assert convert("debezium-json", DDL, [event("c", after=ANNE)], columns=["_pos"]) == [{"_pos": 100}]


@pytest.mark.parametrize(
    ("schema", "options", "problem"),
    [
        (None, {}, "the events need a schema: the option value_schema is missing"),
        (
            "id INT, _pos BIGINT",
            {},
            "the field '_pos' of value_schema has the name of a column that the changelog adds",
        ),
        ("id INT", {"key_schema": "id STRING"}, "the key column 'id' is not in the schema of the row"),
        ("id INT", {"key_schema": "x INT"}, "the key column 'x' is not in the schema of the row"),
        ("_corrupt_record STRING", {}, "two columns with the name '_corrupt_record'"),
        ("id INT", {"columns": ["nothing"]}, "the changelog has no column 'nothing'"),
    ],
)
def test_options_that_do_not_fit(convert: Any, schema: str, options: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        convert("debezium-json", schema, [], **options)
