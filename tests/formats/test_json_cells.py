# SPDX-License-Identifier: Apache-2.0
"""JSON texts in a column: the same values as record by record, and the reason for a bad text."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forebay.errors import ConfigurationError
from forebay.formats.json.blocks import column
from forebay.formats.json.cells import CellReader
from forebay.formats.json.jackson import JacksonParser
from forebay.formats.json.options import JsonOptions
from forebay.formats.values.ddl import parse_schema

SCHEMA = parse_schema(
    "id bigint, name string, price decimal(8,2), at timestamp, tags array<string>, by struct<who string, n int>, "
    "d double",
    "schema",
)

WHOLE = st.fixed_dictionaries(
    {"id": st.integers(-5, 2**63 - 1), "name": st.text(max_size=4)},
    optional={
        "price": st.decimals(-9999, 9999, places=2).map(float),
        "at": st.datetimes().map(lambda at: at.isoformat() + "Z"),
        "tags": st.none() | st.lists(st.text(max_size=3) | st.none(), max_size=3),
        "by": st.none() | st.fixed_dictionaries({"who": st.text(max_size=2), "n": st.integers(-9, 9) | st.just("x")}),
        "d": st.floats(allow_nan=False, allow_infinity=False) | st.just("NaN") | st.booleans(),
        "other": st.lists(st.integers(), max_size=2),
    },
).map(lambda value: json.dumps(value).encode())
TEXTS = st.one_of(
    WHOLE,
    WHOLE,
    WHOLE.map(lambda text: json.dumps(json.loads(text), indent=1, ensure_ascii=False).encode("utf-8", "replace")),
    WHOLE.map(lambda text: text[:-1]),
    WHOLE.map(lambda text: b"[" + text + b"]"),
    WHOLE.map(lambda text: text + b"\n" + text),
    st.none(),
    st.sampled_from(
        [b"", b" ", b"\n", b"null", b"1", b"{}", b"{", b"\xef\xbb\xbf{}", b"\x00", b'{"name":"a\nb"}', b"\r"]
    ),
)


def one_by_one(texts: list[bytes | None]) -> tuple[list[Any], list[int]]:
    """The expected values: each text alone, by the Jackson parser."""
    reader = JacksonParser(list(SCHEMA), JsonOptions(), embedded=True)
    values: list[Any] = []
    bad = []
    for row, text in enumerate(texts):
        outcome = None if text is None else reader.read(text)
        if outcome is not None and outcome.bad:
            bad.append(row)
            values.append(outcome.rows[0] if outcome.rows else [None] * len(SCHEMA))
        else:
            values.append(None if outcome is None or not outcome.rows else outcome.rows[0])
    return column(values, pa.struct(list(SCHEMA))).to_pylist(), bad


@given(st.lists(TEXTS, max_size=30), st.sampled_from([16, 200, 4 << 20]), st.integers(0, 3))
@example([None], 200, 0)
@example([], 200, 0)
@example([b'{"id":1}', b'{"id":2}\n{"id":3}'], 4 << 20, 0)
def test_a_column_has_the_values_of_its_texts_alone(texts: list[bytes | None], block_bytes: int, skipped: int) -> None:
    reader = CellReader(SCHEMA, JsonOptions(block_bytes=block_bytes))
    # Fetched records are a slice of a longer column.
    whole = pa.array([b"{}"] * skipped + texts, pa.binary())
    found = reader.read(whole.slice(skipped))
    found.values.validate(full=True)
    assert found.values.type == pa.struct(list(SCHEMA))
    assert repr((found.values.to_pylist(), found.bad)) == repr(one_by_one(texts))


def test_invalid_utf8_is_bad_and_decoded_as_by_java() -> None:
    reader = CellReader(parse_schema("a string, b int", "schema"), JsonOptions())
    found = reader.read(pa.array([b'{"a":"\xff","b":1}', b'{"a":"x","b":2}', b"\xff"], pa.binary()))
    assert found.values.to_pylist() == [{"a": "\ufffd", "b": 1}, {"a": "x", "b": 2}, {"a": None, "b": None}]
    assert found.bad == [0, 2]


def test_many_texts_with_some_bad_ones_in_the_middle() -> None:
    texts = [b'{"id":%d,"name":"n%d"}' % (number, number) for number in range(5000)]
    texts[7], texts[2500], texts[4999] = b"{", b'{"id":"x","name":"kept"}', b"[]"
    found = CellReader(SCHEMA, JsonOptions(block_bytes=50_000)).read(pa.array(texts, pa.binary()))
    assert found.bad == [7, 2500, 4999]
    values = found.values.to_pylist()
    assert (values[2500]["id"], values[2500]["name"], values[2499]["id"]) == (None, "kept", 2499)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"id":1', "malformed JSON near byte 6: the record ends inside an object or array"),
        (b"{'id'", "malformed JSON"),
        (b"[1]", "it is not a JSON object"),
        (b"null", "it is not a JSON object"),
        (b'{"id":"x"}', "the field id does not fit BIGINT"),
        (b'{"id":1.5,"price":"y"}', "the field id does not fit BIGINT; the field price does not fit DECIMAL(8,2)"),
        (b'{"by":{"who":"me","n":"x"}}', "the field by.n does not fit INT"),
        (b'{"by":5}', "the field by does not fit STRUCT<who: STRING, n: INT>"),
        (b'{"id":"","price":"","at":"","d":""}', "the field at does not fit TIMESTAMP, and 1 more"),
        (b'{"name":"\xff"}', "byte 9 is not UTF-8"),
        (b"\xef\xbb\xbf{}", "a character that JSON does not allow there"),
    ],
)
def test_the_reason_is_reported(text: bytes, reason: str) -> None:
    reader = CellReader(SCHEMA, JsonOptions())
    assert reader.read(pa.array([text], pa.binary())).bad == [0]
    assert reason in reader.reason(text)


def test_a_type_that_json_cannot_be_read_as_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="JSON format does not support"):
        CellReader(pa.schema([pa.field("a", pa.map_(pa.int32(), pa.int32()))]), JsonOptions())
