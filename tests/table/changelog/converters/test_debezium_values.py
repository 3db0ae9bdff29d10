# SPDX-License-Identifier: Apache-2.0
"""Values of events that are not the values of their columns: TOAST placeholders, numbers for times, Base64 decimals."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import DataError

GONE = "__debezium_unavailable_value"
RAW = GONE.encode()
BASE64 = b64encode(RAW).decode()
UUID = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"
POINT = {"wkb": "AQEAACDmEAAAAAAA/IPXl8EAAAD8g9eXwQ==", "srid": 4326}
INTS = list(RAW)
MAP = {GONE: GONE}


def text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


# The type of a column, a value, and the placeholder that Debezium writes for the type in PostgreSQL.
COLUMNS: dict[str, tuple[str, object, object]] = {
    "text": ("STRING", "plain", GONE),
    "bytea": ("BINARY", "AAE=", BASE64),
    "bytea_as_base64": ("STRING", "AAE=", BASE64),
    "bytea_as_hex": ("STRING", "0001", RAW.hex()),
    "text_array": ("ARRAY<STRING>", ["a", None], [GONE]),
    "bytea_array": ("ARRAY<BINARY>", ["AAE="], [BASE64]),
    "int_array": ("ARRAY<INT>", [95, 95], INTS),
    "date_array": ("ARRAY<SMALLINT>", [], INTS),
    "bigint_array": ("ARRAY<BIGINT>", [1, None], INTS),
    "bigint_array_as_double": ("ARRAY<DOUBLE>", [0.5], INTS),
    "bigint_array_as_decimal": ("ARRAY<DECIMAL(12,2)>", [0.5], INTS),
    "int_array_as_text": ("STRING", [1], INTS),
    "uuid_array": ("ARRAY<STRING>", ["0d1d5d5c-0000-4000-8000-000000000000"], [UUID]),
    "hstore": ("MAP<STRING, STRING>", {"a": None}, MAP),
    "hstore_as_text": ("STRING", text({"a": "b"}), text(MAP)),
    "hstore_as_object": ("STRING", {"a": "b"}, MAP),
    "text_array_as_text": ("STRING", ["a"], [GONE]),
    "geometry": ("STRUCT<wkb: BINARY, srid: INT>", {"wkb": "AAE=", "srid": 4326}, POINT),
    "geometry_as_text": ("STRING", {"wkb": "AAE=", "srid": 4326}, POINT),
    # Types that cannot hold the placeholder.
    "numeric": ("DECIMAL(12,2)", "1.50", GONE),
    "numeric_array": ("ARRAY<BIGINT>", [1], [GONE]),
    "jsonb": ("STRUCT<a: INT>", {"a": 1}, GONE),
    "dates": ("ARRAY<DATE>", ["2024-01-01"], INTS),
}
UNFIT = ("numeric", "numeric_array", "jsonb", "dates")


def event(op: str, before: object, after: object, **more: Any) -> dict[str, Any]:
    return {"op": op, "before": before, "after": after, "source": {"ts_ms": 1}, **more}


def ddl(names: Any) -> str:
    return "id INT, " + ", ".join(f"{name} {COLUMNS[name][0]}" for name in names)


def reason(rows: list[dict[str, Any]]) -> str:
    (row,) = rows
    assert row["_change_type"] is None
    found: str = row["_corrupt_record"]["reason"]
    return found


@pytest.mark.parametrize("name", [name for name in COLUMNS if name not in UNFIT])
def test_a_placeholder_of_each_type_is_the_value_of_before_or_malformed(convert: Any, name: str) -> None:
    """C17: PostgreSQL leaves out large values that did not change."""
    _, value, gone = COLUMNS[name]
    old, new = {"id": 1, name: value}, {"id": 1, name: gone}
    before, after = convert("debezium-json", ddl([name]), [event("u", old, new)])
    (plain,) = convert("debezium-json", ddl([name]), [event("c", None, old)])
    assert [before[name], after[name]] == [plain[name]] * 2
    problem = f"value: {name} is {GONE} (TOAST), and before does not have its value"
    for bad in (
        event("u", None, new),
        event("u", new, new),
        event("u", {"id": 1, name: None}, new),
        event("u", new, old),
        event("d", new, None),
        event("c", None, new),
    ):
        assert reason(convert("debezium-json", ddl([name]), [bad])).startswith(problem), bad


@pytest.mark.parametrize("name", UNFIT)
def test_a_placeholder_that_does_not_fit_its_column_is_malformed(convert: Any, name: str) -> None:
    _, value, gone = COLUMNS[name]
    bad = event("u", {"id": 1, name: value}, {"id": 1, name: gone})
    for one in (bad, {"schema": {}, "payload": bad}):
        found = reason(convert("debezium-json", ddl([name]), [one]))
        assert f"after.{name} is the placeholder {GONE} (TOAST)" in found


def test_values_that_are_nearly_placeholders_are_data(convert: Any) -> None:
    near = {
        "text": f"about {GONE}",
        "bytea": b64encode(RAW + b".").decode(),
        "int_array": [*INTS, 1],
        "bigint_array": INTS[::-1],
        "hstore": {"a": "b"},
        "uuid_array": [],
    }
    (row,) = convert("debezium-json", ddl(near), [event("u", None, {"id": 1, **near})])
    assert (row["text"], row["int_array"], row["hstore"]) == (near["text"], near["int_array"], [("a", "b")])


rows = st.fixed_dictionaries({name: st.sampled_from(["value", "null", "gone"]) for name in COLUMNS})


@given(
    names=st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=5, unique=True),
    drawn=st.lists(st.tuples(st.sampled_from("cud"), st.none() | rows, rows), max_size=8),
)
def test_placeholders_at_random_columns_equal_a_plain_replacement(
    convert_once: Any, names: list[str], drawn: list[Any]
) -> None:
    """C17: against events whose placeholders were replaced in the JSON."""

    def row(number: int, states: dict[str, str]) -> dict[str, Any]:
        values = {name: {"value": COLUMNS[name][1], "null": None, "gone": COLUMNS[name][2]} for name in names}
        return {"id": number, **{name: values[name][states[name]] for name in names}}

    events, plain = [], []
    for number, (op, old, new) in enumerate(drawn):
        before = row(number, old) if old and op != "c" else None
        after = row(number, new) if op != "d" else None
        events.append(event(op, before, after))
        known = before or {}
        filled = after and {
            name: known.get(name) if name != "id" and new[name] == "gone" else value for name, value in after.items()
        }
        gone_before = before and any(old[name] == "gone" for name in names)
        lost = after and any(new[name] == "gone" and (known.get(name) is None or name in UNFIT) for name in names)
        plain.append(b"{" if gone_before or lost else event(op, before, filled))
    found = convert_once("debezium-json", ddl(names), events)
    expected = convert_once("debezium-json", ddl(names), plain)
    for one in (*found, *expected):
        one.pop("_corrupt_record")
        if one["_change_type"] is None:
            one["_commit_timestamp"] = None
    assert found == expected


@pytest.mark.parametrize("kind", ["DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "ARRAY<TIMESTAMP>", "STRUCT<at: TIMESTAMP>"])
@pytest.mark.parametrize("form", ["debezium-json", "maxwell-json", "upsert-json"])
def test_a_number_is_no_time(convert: Any, form: str, kind: str) -> None:
    """C17: Debezium writes days, milliseconds, microseconds or nanoseconds, and Spark reads seconds."""
    number = 1704067200000
    row = {"t": [number] if "ARRAY" in kind else {"at": number} if "STRUCT" in kind else number}
    if form == "upsert-json":
        found = reason(convert(form, f"t {kind}", [row], [{"id": 1}], key_schema="id INT"))
    else:
        bad = event("c", None, row) if form == "debezium-json" else {"type": "insert", "data": row}
        found = reason(convert(form, f"t {kind}", [bad]))
    assert "t" in found.split(" does not fit ")[0]
    assert "is a number, whose unit the event does not say: declare it BIGINT" in found


def test_texts_are_times(convert: Any) -> None:
    row = {"day": "2024-01-01", "at": "2024-01-01T00:00:00Z", "number": 1704067200000}
    (found,) = convert("debezium-json", "day DATE, at TIMESTAMP, number BIGINT", [event("c", None, row)])
    assert (found["day"].isoformat(), found["at"].isoformat(), found["number"]) == (
        *("2024-01-01", "2024-01-01T00:00:00+00:00"),
        1704067200000,
    )


def envelope(payload: object, name: str | None, column: str = "amount") -> dict[str, Any]:
    amount = {"type": "bytes", "field": column} | ({} if name is None else {"name": name})
    part = {"type": "struct", "fields": [{"type": "int32", "field": "id"}, amount]}
    parts = [part | {"field": "before"}, part | {"field": "after"}, {"type": "string", "field": "op"}]
    return {"schema": {"type": "struct", "fields": parts}, "payload": payload}


DECIMAL = "org.apache.kafka.connect.data.Decimal"


def test_bytes_of_a_decimal_are_malformed_with_their_cause(convert: Any) -> None:
    """C17: decimal.handling.mode=precise."""
    advice = "decimal.handling.mode=precise writes the bytes of a decimal in Base64; set it to string"
    schema = "id INT, amount DECIMAL(12,2)"
    precise = event("c", None, {"id": 1, "amount": "AXvk"})
    assert advice in reason(convert("debezium-json", schema, [precise]))
    digits = event("c", None, {"id": 1, "amount": "1000"})
    # Without the schema of Kafka Connect, Base64 of digits only is a decimal.
    assert [row["amount"] for row in convert("debezium-json", schema, [digits, envelope(digits, None)])] == [1000, 1000]
    rows = convert(
        "debezium-json", schema, [envelope(one, DECIMAL) for one in (digits, event("d", digits["after"], None))]
    )
    assert [row["_corrupt_record"]["reason"] for row in rows] == [f"value: amount is bytes: {advice}"] * 2
    (row,) = convert("debezium-json", schema, [envelope(event("c", None, {"id": 1, "amount": None}), DECIMAL)])
    assert (row["_change_type"], row["amount"]) == ("insert", None)
    last = [dict(reversed(envelope(digits, DECIMAL, column).items())) for column in ("other", "amount")]
    plain = envelope(event("c", None, {"id": 1, "amount": "1", "about": DECIMAL}), None)
    kinds = [row["_change_type"] for row in convert("debezium-json", schema, [*last, plain])]
    assert kinds == ["insert", None, "insert"]
    (row,) = convert("debezium-json", "id INT, amount STRING", [envelope(digits, DECIMAL)])
    assert row["amount"] == "1000"


@pytest.mark.parametrize(
    ("form", "bad", "cause"),
    [
        ("debezium-json", event("c", None, '{"_id": 1}'), "after is a text, as Debezium writes documents of MongoDB"),
        (
            "maxwell-json",
            {"type": "UPDATE", "data": [{"id": "1"}], "isDdl": False},
            "data is an array, as Canal writes it",
        ),
    ],
)
def test_other_formats_are_named(convert: Any, form: str, bad: object, cause: str) -> None:
    assert cause in reason(convert(form, "id INT", [bad]))
    with pytest.raises(DataError, match=cause):
        convert(form, "id INT", [bad], mode="FAILFAST")
