# SPDX-License-Identifier: Apache-2.0
"""Files and functions stay small enough to read at one go, and say what they are."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "forebay"

# The aims are what the report lists; the limits are where reading becomes work. A file holds one concept.
AIM_FILE, LIMIT_FILE = 500, 700
AIM_FUNCTION, LIMIT_FUNCTION = 60, 80

Function = ast.FunctionDef | ast.AsyncFunctionDef


def shipped() -> list[Path]:
    return sorted([*PACKAGE.rglob("*.py"), *ROOT.glob("pyspark_forebay_*.py")])


def programs() -> list[Path]:
    return sorted(path for name in ("examples", "benchmarks") for path in (ROOT / name).rglob("*.py"))


def suites() -> list[Path]:
    return sorted((ROOT / "tests").rglob("*.py"))


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def length(function: Function) -> int:
    """The lines of a function without its docstring: what a reader has to hold in mind."""
    lines = (function.end_lineno or 0) - function.lineno + 1
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        lines -= (first.end_lineno or 0) - first.lineno + 1
    return lines


@cache
def read(path: Path) -> tuple[str | None, list[tuple[int, str]]]:
    """The docstring of a file, and its functions, each as (lines, place)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    name = path.relative_to(ROOT)
    nodes = [node for node in ast.walk(tree) if isinstance(node, Function)]
    return ast.get_docstring(tree), [(length(node), f"{name}:{node.lineno} {node.name}") for node in nodes]


def test_each_file_names_its_licence():
    lacking = [
        named(path)
        for path in shipped() + programs() + suites()
        if not path.read_text(encoding="utf-8").startswith("# SPDX-License-Identifier: Apache-2.0\n")
    ]
    assert lacking == []


def test_each_module_says_in_its_docstring_what_it_is():
    assert [named(path) for path in shipped() + programs() if not read(path)[0]] == []


def test_a_file_has_at_most_700_lines(record_property):
    sizes = sorted(((len(path.read_text(encoding="utf-8").splitlines()), path) for path in shipped()), reverse=True)
    over = [f"{lines} {path.relative_to(ROOT)}" for lines, path in sizes if lines > AIM_FILE]
    record_property("report", f"files over {AIM_FILE} lines: {', '.join(over) or 'none'}")
    assert [f"{lines} {path.relative_to(ROOT)}" for lines, path in sizes if lines > LIMIT_FILE] == []


def test_a_function_has_at_most_80_lines(record_property):
    found = sorted((entry for path in shipped() for entry in read(path)[1]), reverse=True)
    over = [f"{lines} {place}" for lines, place in found if lines > AIM_FUNCTION]
    record_property("report", f"functions over {AIM_FUNCTION} lines: {', '.join(over) or 'none'}")
    assert [f"{lines} {place}" for lines, place in found if lines > LIMIT_FUNCTION] == []


def test_a_docstring_does_not_count():
    tree = ast.parse('def f():\n    """One.\n\n    Two.\n    """\n    a = 1\n    return a\n')
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    assert length(function) == 3
