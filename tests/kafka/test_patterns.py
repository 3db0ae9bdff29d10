# SPDX-License-Identifier: Apache-2.0
"""`subscribePattern` is Java's: the same names of topics match."""

from __future__ import annotations

import pytest

from forebay.errors import ConfigurationError
from forebay.sources.kafka.options import compile_topics


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("orders-.*", ["orders-", "orders-eu"], ["orders", "my-orders-eu"]),
        (r"\Qa.b\E.*", ["a.b", "a.bc"], ["axb"]),
        (r"a\Q.*", ["a.*"], ["ab", "a"]),
        (r"(?<area>eu|us)-\k<area>", ["eu-eu", "us-us"], ["eu-us"]),
        (r"(?<!x)orders(?<=s)", ["orders"], ["xorders"]),
        (r"[\Qa.\E-]+", ["a.-"], ["b"]),
        (r"[]a]b&&", [], ["ab"]),
        (r"[^]a(?<b]+", ["cd"], ["a", "b"]),
        (r"[\-.a]+", ["-.a"], ["b"]),
        (r"[a-]+", ["a-"], ["b"]),
        (r"\d{2,3}+", ["12", "123"], ["1", "1234"]),
        (r"(?>ab|a)b", ["abb"], ["ab"]),
        (r"\x61\u0062", ["ab"], ["a"]),
        (r"(?i)ORDERS", ["orders", "Orders"], ["order"]),
        (r"^a\.b$", ["a.b"], ["axb"]),
        (r"a\z", ["a"], ["ab"]),
    ],
)
def test_the_same_topics_match_as_in_java(pattern, yes, no):
    compiled = compile_topics(pattern)
    assert [name for name in yes if not compiled.fullmatch(name)] == []
    assert [name for name in no if compiled.fullmatch(name)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", "a{2", "[a", "a\\", "[z-a]", "*", r"\R", "(?x)a b", "a(?i)b", r"\0141", r"\101", r"\x{63}"),
        *(r"\p{Lower}+", r"\P{L}", r"[\p{Alpha}&&[^aeiou]]+", "[a-c[x-z]]+", "[^a-z&&[^0]]+", r"[\w&&\D]+"),
    ],
)
def test_invalid_patterns_and_java_only_syntax_are_refused(pattern):
    if pattern == "a{2":
        assert compile_topics(pattern).fullmatch(pattern)  # Python takes it literally; no topic has a brace
        return
    with pytest.raises(ConfigurationError) as caught:
        compile_topics(pattern)
    assert caught.value.option == "subscribePattern" and repr(pattern) in caught.value.message
