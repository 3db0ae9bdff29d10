# SPDX-License-Identifier: Apache-2.0
"""Literals get the types of their columns, and those that do not fit are refused."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from forebay.errors import ConfigurationError
from forebay.formats.bound_filters import bind
from forebay.formats.filters import Compare, Constant, parse_filter
from forebay.formats.values.dates import session_zone

SCHEMA = pa.schema(
    {
        "tiny": pa.int8(),
        "price": pa.decimal128(5, 2),
        "share": pa.float64(),
        "name": pa.string(),
        "day": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
        "local": pa.timestamp("us"),
        "yes": pa.bool_(),
        "raw": pa.binary(),
    }
)


def bound(text):
    return bind(parse_filter(text, "rowFilter"), SCHEMA, session_zone("Europe/Berlin"), "rowFilter")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("TINY = 5", Compare("tiny", "=", 5)),
        ("tiny < 1.5", Compare("tiny", "<=", 1)),
        ("tiny >= 1.5", Compare("tiny", ">=", 2)),
        ("tiny > -1.5", Compare("tiny", ">=", -1)),
        ("tiny = 1.5", Constant("tiny", outcome=False)),
        ("tiny < 128", Constant("tiny", outcome=True)),
        ("tiny <= 127", Compare("tiny", "<=", 127)),
        ("tiny > 127.5", Constant("tiny", outcome=False)),
        ("tiny > -1000", Constant("tiny", outcome=True)),
        ("tiny < -128.5", Constant("tiny", outcome=False)),
        ("price > 1.005", Compare("price", ">=", Decimal("1.01"))),
        ("price = 1000", Constant("price", outcome=False)),
        ("price < 1e3", None),
        ("share = 1", Compare("share", "=", 1.0)),
        ("share < 1e3", Compare("share", "<", 1000.0)),
        ("day = '2024-01-01'", Compare("day", "=", 19723)),
        ("at = '2024-01-01 01:00:00'", Compare("at", "=", 1704067200000000)),
        ("at < DATE '1970-01-01'", Compare("at", "<", -3600000000)),
        ("local = TIMESTAMP '1970-01-01 00:00:01'", Compare("local", "=", 1000000)),
        ("name = 5", None),
        ("tiny = '5'", None),
        ("day = 5", None),
        ("day = '2024-13-01'", None),
        ("at = 'noon'", None),
        ("yes = 1", None),
        ("raw = 'x'", None),
        ("nothing = 1", None),
    ],
)
def test_literals_get_the_type_of_the_column(text, expected):
    if expected is not None:
        assert bound(text) == expected
        return
    with pytest.raises(ConfigurationError) as caught:
        bound(text)
    assert caught.value.option == "rowFilter"
    assert text.split(" ", maxsplit=1)[0] in caught.value.message


def test_names_that_differ_in_case_are_told_apart():
    schema = pa.schema({"a": pa.int32(), "A": pa.int32()})
    zone = session_zone("UTC")
    assert bind(parse_filter("A = 1", "f"), schema, zone, "f") == Compare("A", "=", 1)
    with pytest.raises(ConfigurationError, match="ambiguous"):
        bind(parse_filter("ab = 1", "f"), pa.schema({"Ab": pa.int32(), "aB": pa.int32()}), zone, "f")
