# SPDX-License-Identifier: Apache-2.0
"""Globs of Hadoop."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import ConfigurationError
from forebay.sources.files import listing


def matches(pattern: str, name: str) -> bool:
    return listing.name_matcher(pattern)(name)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("*", "a b"),
        ("*", ".hidden"),
        ("*", "two\nlines"),
        ("a?c", "a\nc"),
        ("?.csv", "😀.csv"),
        ("[abc]*", "beta"),
        ("[a-c]*", "beta"),
        ("[^a-c]*", "delta"),
        ("[!a-c]*", "delta"),
        ("[]a]x", "]x"),
        ("{a,b}", "b"),
        ("{a,}b", "b"),
        ("{a,{b,c}d}", "cd"),
        ("{a*,[xy]}", "y"),
        ("a\\*b", "a*b"),
        ("a\\b", "ab"),
        ("{a\\,b,c}", "a,b"),
        ("[\\]]", "]"),
        ("a,b*", "a,b"),
        ("a]}*", "a]}b"),
        ("a.b*", "a.bc"),
        ("$(|)+^*", "$(|)+^"),
        ("[&&~|[x]", "["),
        ("[+--]", ","),
        ("[--/]", "."),
        ("[a-]", "-"),
        ("[-a]", "-"),
        ("x%2F*", "x%2Fy"),
    ],
)
def test_matches(pattern, name):
    assert matches(pattern, name)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("a.b*", "axb"),
        ("a?c", "ac"),
        ("[^a-c]*", "alpha"),
        ("{a,b}", "a,b"),
        ("a\\*b", "axb"),
        ("x%2F*", "x/y"),
        ("br[1].csv", "br[1].csv"),
        ("é*", "e\u0301"),
    ],
)
def test_does_not_match(pattern, name):
    assert not matches(pattern, name)


@pytest.mark.parametrize("pattern", ["{a", "[a", "[]", "a\\", "*\\", "{a,{b}", "[z-a]", "[?--]", "[^]", "[a\\"])
def test_a_pattern_that_is_not_closed_is_refused_by_name(pattern):
    with pytest.raises(ConfigurationError, match=re.escape(repr(pattern))):
        listing.name_matcher(pattern)


@pytest.mark.parametrize(
    ("pattern", "expanded"),
    [
        ("{a/b}", ["a/b"]),
        ("/}{a/b}", ["/}a/b"]),
        ("p{a/b,c/d}s", ["pa/bs", "pc/ds"]),
        ("{a/b,c/d,{e,f}}", ["a/b", "c/d", "{e,f}"]),
        ("{a/b,c/d}{e,f}", ["a/b{e,f}", "c/d{e,f}"]),
        ("{a,b}/{b,{c/d,e/f}}", ["{a,b}/b", "{a,b}/c/d", "{a,b}/e/f"]),
        ("{a,b}", ["{a,b}"]),
        ("\\{a/b\\}", ["\\{a/b\\}"]),
        ("{a/b", ["{a/b"]),
    ],
)
def test_only_braces_with_a_slash_are_written_out(pattern, expanded):
    assert listing.expand(pattern) == expanded


@given(st.text(min_size=1).filter(lambda text: "/" not in text))
def test_an_escaped_name_matches_itself_and_is_plain(name):
    assert listing.literal_name(listing.escape(name)) == name
    assert matches(listing.escape(name), name)


@given(st.text(alphabet="ab*?[]{},\\^!-.", max_size=8))
def test_any_pattern_compiles_or_is_refused(pattern):
    try:
        listing.name_matcher(pattern)
        listing.expand(pattern)
    except ConfigurationError as error:
        text = str(error)
    else:
        text = repr(pattern)
    assert repr(pattern) in text
