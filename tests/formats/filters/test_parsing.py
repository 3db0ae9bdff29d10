# SPDX-License-Identifier: Apache-2.0
"""Filters are parsed with Spark SQL's precedence; what is not understood is an error that shows where."""

from __future__ import annotations

from decimal import Decimal

import pytest

from forebay.errors import ConfigurationError
from forebay.formats.filters import Both, Compare, DateLiteral, IsNull, Not, TimestampLiteral, parse_filter

A, B = Compare("a", "=", Decimal(1)), Compare("b", "<", Decimal(2))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1", A),
        ("A==1", Compare("A", "=", Decimal(1))),
        ("1 = a", A),
        ("2 > b", B),
        ("a <> 1", Not(A)),
        ("a != -1.50", Not(Compare("a", "=", Decimal("-1.50")))),
        ("a >= .5e3", Compare("a", ">=", 500.0)),
        ("`a b``c` = 'x'", Compare("a b`c", "=", "x")),
        (r"a = 'it\'s \\'", Compare("a", "=", r"it's \ ".rstrip())),
        ("a = date '2024-01-01'", Compare("a", "=", DateLiteral("2024-01-01"))),
        ("a < TIMESTAMP '2024-01-01 10:00:00'", Compare("a", "<", TimestampLiteral("2024-01-01 10:00:00"))),
        ("date = 1", Compare("date", "=", Decimal(1))),
        ("a = TRUE", Compare("a", "=", literal=True)),
        ("a IS NULL", IsNull("a")),
        ("a is not null", Not(IsNull("a"))),
        ("a = 1 OR a = 1 AND b < 2", Both("OR", A, Both("AND", A, B))),
        ("(a = 1 OR a = 1) AND b < 2", Both("AND", Both("OR", A, A), B)),
        ("NOT a = 1 AND b < 2", Both("AND", Not(A), B)),
        ("a IN (1, 1)", Both("OR", A, A)),
        ("a NOT IN (1)", Not(A)),
        (
            "a BETWEEN 1 AND 2 AND b < 2",
            Both("AND", Both("AND", Compare("a", ">=", Decimal(1)), Compare("a", "<=", Decimal(2))), B),
        ),
    ],
)
def test_what_is_understood(text, expected):
    assert parse_filter(text, "rowFilter") == expected


@pytest.mark.parametrize(
    ("text", "where", "why"),
    [
        ("", "at the end", "expected a literal"),
        ("a", "at the end", "expected ="),
        ("a = ", "at the end", "a literal"),
        ("a = 1 b", "at 'b'", "AND, OR"),
        ('a = "x"', "at '\"x\"'", "single quotes"),
        ("a = NULL", "at 'NULL'", "IS NULL"),
        ("a LIKE 'x%'", "at \"LIKE 'x%'\"", "expected ="),
        ("a <=> 1", "at '<=> 1'", "expected ="),
        ("a.b = 1", "at 'a.b = 1'", "structs"),
        ("upper(a) = 'X'", "at \"(a) = 'X'\"", "expected ="),
        ("a = 'x", 'at "\'x"', "not a name or literal"),
        (r"a = '\n'", "at the end", "escapes"),
        ("a = 1abc", "at '1abc'", "not a name or literal"),
        ("(" * 200 + "a = 1" + ")" * 200, "at '(", "nested"),
        ("a = b", "at 'b'", "a literal"),
        ("1 = 1", "at '1'", "name of a column"),
    ],
)
def test_what_is_not_understood(text, where, why):
    with pytest.raises(ConfigurationError) as caught:
        parse_filter(text, "rowFilter")
    assert caught.value.option == "rowFilter"
    assert where in caught.value.message
    assert why in caught.value.message
    assert "where()" in caught.value.advice
