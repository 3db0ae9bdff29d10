# SPDX-License-Identifier: Apache-2.0
"""docs/kafka-cases.md maps cases of other suites to tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs/kafka-cases.md").read_text(encoding="utf-8")
ROWS = [line for line in DOCUMENT.splitlines() if line.startswith("| ") and not line.startswith(("| case", "|---"))]
TESTS = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", DOCUMENT)))


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests/kafka" / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize(("file", "name"), TESTS)
def test_the_test_of_a_case_exists(file: str, name: str) -> None:
    assert name in functions(file)


def test_every_case_has_a_test_or_a_reason() -> None:
    kept, struck = DOCUMENT.split("## Struck")
    assert all("::test_" in row for row in ROWS if row in kept)
    assert all(row.count("|") == 3 for row in ROWS)
    assert struck.count("\n| ") >= 2


def test_every_test_of_the_suites_is_on_the_page() -> None:
    listed = {name for _, name in TESTS}
    files = sorted((ROOT / "tests/kafka/suites").glob("test_*.py"))
    names = {name for file in files for name in functions(f"suites/{file.name}") if name.startswith("test_")}
    assert names and names <= listed
