# SPDX-License-Identifier: Apache-2.0
"""Rows of upsert-Kafka."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.errors import ConfigurationError, DataError


def test_values_are_upserts_and_null_deletes(convert: Any) -> None:
    """C17: a tombstone has only the key."""
    keys = [{"id": 1}, {"id": 1}, {"schema": {}, "payload": {"id": 2}}]
    rows = convert("upsert-json", "name STRING", [{"name": "a"}, None, {"name": None}], keys, key_schema="id INT")
    assert [(row["_change_type"], row["id"], row["name"], row["_pos"]) for row in rows] == [
        ("update_postimage", 1, "a", 100),
        ("delete", 1, None, 101),
        ("update_postimage", 2, None, 102),
    ]
    assert list(rows[0]) == ["id", "name", "_change_type", "_split", "_pos", "_corrupt_record"]


def test_the_key_decides_where_the_value_has_its_columns_too(convert: Any) -> None:
    rows = convert("upsert-json", "name STRING, id INT", [{"name": "a", "id": 5}], [{"id": 1}], key_schema="id INT")
    assert [(row["name"], row["id"]) for row in rows] == [("a", 1)]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (None, {"name": "a"}, "key: it is NULL, or has none of the key columns"),
        ({"other": 1}, None, "key: it is NULL, or has none of the key columns"),
        ({"id": "x"}, None, "key: the field id does not fit INT"),
        (b"{", {"name": "a"}, "key: malformed JSON"),
        ({"id": 1}, b"{", "value: malformed JSON"),
    ],
)
def test_a_malformed_row(convert: Any, key: Any, value: Any, reason: str) -> None:
    (row,) = convert("upsert-json", "name STRING", [value], [key], key_schema="id INT")
    assert (row["_change_type"], row["id"], row["name"]) == (None, None, None)
    assert row["_corrupt_record"]["reason"].startswith(reason)
    with pytest.raises(DataError, match="position 100"):
        convert("upsert-json", "name STRING", [value], [key], key_schema="id INT", mode="FAILFAST")


def test_the_key_is_needed(convert: Any) -> None:
    with pytest.raises(ConfigurationError, match="needs the columns of the message key"):
        convert("upsert-json", "name STRING", [])
    with pytest.raises(ConfigurationError, match="upsert-json does not take sequence=lsn"):
        convert("upsert-json", "name STRING", [], key_schema="id INT", sequence="lsn")
    only_key = convert("upsert-json", "name STRING", [b"{"], [{"id": 3}], key_schema="id INT", columns=["id"])
    assert only_key == [{"id": 3}]
