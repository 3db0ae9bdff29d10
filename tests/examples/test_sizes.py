# SPDX-License-Identifier: Apache-2.0
"""A connector is short, and so is its test; what the README shows is what runs here."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
HERE = Path(__file__).parent

# What is on a line of its own in the source, but no code.
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def lines_of_code(text: str) -> int:
    """The lines that are neither blank, nor comment, nor docstring, nor the program below `if __name__`."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        doc = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        program = isinstance(node, ast.If) and ast.unparse(node.test).startswith("__name__")
        for_lint = isinstance(node, ast.ImportFrom) and node.module == "__future__"  # wanted in this repository only
        if doc or program or for_lint:
            left_out.update(range(node.lineno, (node.end_lineno or 0) + 1))  # type: ignore[attr-defined]  # narrowed above
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NOT_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - left_out)


@pytest.mark.parametrize(
    ("path", "most"),
    [
        (EXAMPLES / "countdown.py", 10),
        (EXAMPLES / "rest_orders.py", 35),
        (EXAMPLES / "partitioned_log.py", 35),
        (EXAMPLES / "connectors/postgres_table/postgres_table.py", 100),
        (EXAMPLES / "connectors/redis_streams/redis_streams.py", 75),
        (EXAMPLES / "connectors/rest_feed/rest_feed.py", 50),
        (EXAMPLES / "job_queue.py", 95),
        (HERE / "test_countdown_contract.py", 12),
        (HERE / "test_rest_orders_contract.py", 12),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_it_is_short(path, most, record_property):
    lines = lines_of_code(path.read_text(encoding="utf-8"))
    record_property("report", f"{path.name}: {lines} lines of code, at most {most}")
    assert lines <= most


def test_the_count_leaves_out_what_is_no_code():
    text = (
        '"""Doc.\n\nMore.\n"""\n\nimport os  # why\n\n# a comment\nclass A:\n    """Doc."""\n\n    x = """a\nb"""\n\n'
    )
    assert lines_of_code(text + 'if __name__ == "__main__":\n    print(os)\n') == len(["import", "class", "x", "b"])


def shape(text: str) -> str:
    """The class in `text` as one reads it: without comments, docstrings and annotations of methods."""
    (found,) = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef))
    for node in ast.walk(found):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for argument in node.args.args:
                argument.annotation = None
    return ast.unparse(found)


@pytest.mark.parametrize("name", ["Countdown"])
def test_the_readme_shows_the_example(name):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    shown = [block for block in blocks if f"class {name}(" in block]
    assert [shape(block) for block in shown] == [shape((EXAMPLES / f"{name.lower()}.py").read_text(encoding="utf-8"))]
