# SPDX-License-Identifier: Apache-2.0
"""docs/contract.md maps every rule we keep to a test that exists and names the rule."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/contract.md").read_text(encoding="utf-8")
BROKEN = (ROOT / "tests/connectors/kit_connectors/broken.py").read_text(encoding="utf-8")
TEST = re.compile(r"`([^`:]+)::(\w+)`")
_SAYING_AND_TESTS = r"\| .* \| ((?:`[^`:]+::\w+`(?:, )?)+) \|$"
ROW = re.compile(rf"^\| ([A-Z]+-\d+) {_SAYING_AND_TESTS}", re.MULTILINE)
HOST_ROW = re.compile(rf"^\| (S\d+) {_SAYING_AND_TESTS}", re.MULTILINE)
STRUCK = re.compile(r"^\| ([A-Z]+-\d+) \| struck \| .+ \|$", re.MULTILINE)

# The framework's own rules, sections 1.1 to 1.10 of the contract we started from.
FRAMEWORK_RULES = [
    f"{family}-{number}"
    for family, numbers in {
        "SRC": [3],
        "SER": [4],
        "ENU": [1],
        "CTX": [1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12],
        "COO": [1, 2, 3, 4, 5, 6],
        "TRK": [1, 2, 3],
        "RDR": [1, 10],
        "EVT": [1],
        "OUT": [1, 2, 3, 4, 5],
        "RB": [1, 2, 3, 4, 5, 6, 7, 8],
        "REC": [1, 3],
        "FET": [1, 2, 3, 4, 5, 6],
        "FM": [1, 2, 3, 4],
        "Q": [1, 2, 3, 4],
        "WM": [1, 2, 3, 4],
        "WX": [1, 2, 3, 4, 5],
        "AL": [1, 2, 3, 4, 5, 6, 7, 8, 9],
    }.items()
    for number in numbers
]


@cache
def contents(file: str) -> tuple[str, dict[str, ast.FunctionDef]]:
    """The text of a file, and its functions by name."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return text, {node.name: node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}


ROWS = ROW.findall(DOCUMENT)
TESTS = [(rule, *test) for rule, tests in ROWS for test in TEST.findall(tests)]

# The streaming host's, each with all tests that hold it.
HOST_ROWS = HOST_ROW.findall(DOCUMENT)
HOST_TESTS = [(rule, *test) for rule, tests in HOST_ROWS for test in TEST.findall(tests)]


def test_every_rule_of_the_framework_is_kept_or_struck() -> None:
    listed = {rule for rule, _ in ROWS} | set(STRUCK.findall(DOCUMENT))
    assert [rule for rule in FRAMEWORK_RULES if rule not in listed] == []


def test_every_rule_that_an_error_names_is_in_the_document() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "forebay").rglob("*.py")}
    named = {(path, rule) for path, text in texts.items() for rule in re.findall(r'\brule="([^"]+)"', text)}
    assert [(path, rule) for path, rule in named if f"| {rule} |" not in DOCUMENT] == []


def test_no_rule_is_listed_twice() -> None:
    rules = [rule for rule, _ in ROWS] + STRUCK.findall(DOCUMENT)
    assert sorted(rules) == sorted(set(rules))


@pytest.mark.parametrize(("rule", "file", "name"), TESTS)
def test_the_test_exists_and_names_the_rule(rule: str, file: str, name: str) -> None:
    text, functions = contents(file)
    assert name in functions, f"{file} has no {name}"
    if "kit_connectors" in text:
        text += BROKEN
    # A test of many rules names them in its parameters.
    assert rule in (ast.get_docstring(functions[name]) or "").partition("\n")[0] or f'"{rule}"' in text


def test_every_rule_of_the_streaming_host_is_kept() -> None:
    assert [rule for rule, _ in HOST_ROWS] == [f"S{number}" for number in range(1, 20)]


@pytest.mark.parametrize(("rule", "file", "name"), HOST_TESTS)
def test_the_test_of_a_host_rule_exists(rule: str, file: str, name: str) -> None:
    _, functions = contents(file)
    assert name in functions, f"{file} has no {name}"
    # One that is named for a rule says which it is, and no other.
    named = re.findall(r"_(s\d+)_", name)
    assert not named or rule in (ast.get_docstring(functions[name]) or ""), f"{name} does not speak of {rule}"


def test_each_way_into_spark_names_a_test_that_exists() -> None:
    page = (ROOT / "docs/spark.md").read_text(encoding="utf-8")
    table = page[page.index("| Way |") : page.index("Soak tests run")].splitlines()[2:]
    ways = [row for row in table if row]
    for row in ways:
        named = re.findall(r"`(tests/\S+\.py)`", row)
        assert named and all((ROOT / one).exists() for one in named), row
    assert len(ways) >= 8
