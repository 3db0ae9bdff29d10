# SPDX-License-Identifier: Apache-2.0
"""mypy knows Arrow and sources: it refuses wrong code, and what the stubs of pyarrow promise exists."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STUBS = ROOT / "stubs" / "pyarrow"
ERROR = re.compile(r"(.*?):(\d+): error: .*\[([a-z-]+)\]")

Owner = ast.Module | ast.ClassDef


SAMPLES = sorted([*HERE.glob("*_types_hold.py"), *HERE.glob("*_types_refuse.py")])


@pytest.fixture(scope="module")
def refusals() -> dict[str, list[tuple[int, str]]]:
    """The errors mypy reports for each sample, as (line, code), with the project's own configuration; in one run."""
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--no-error-summary"]
    command += [str(path.relative_to(ROOT)) for path in SAMPLES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = [ERROR.fullmatch(line) for line in done.stdout.splitlines() if ": error: " in line]
    assert all(found), done.stdout + done.stderr
    assert done.returncode == 1, done.stdout + done.stderr
    errors: dict[str, list[tuple[int, str]]] = {path.name: [] for path in SAMPLES}
    for match in found:
        if match:
            errors[Path(match[1]).name].append((int(match[2]), match[3]))
    return errors


@pytest.mark.parametrize("about", ["arrow", "source"])
def test_mypy_refuses_wrong_code_and_nothing_else(refusals, about):
    path = HERE / f"{about}_types_refuse.py"
    marks = [
        (number, line.rsplit("# refused: ", 1)[1])
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if "# refused: " in line
    ]
    assert len(marks) > 5
    assert refusals[path.name] == marks


@pytest.mark.parametrize("about", ["arrow", "source"])
def test_mypy_accepts_right_code(refusals, about):
    assert refusals[f"{about}_types_hold.py"] == []


def signature(thing: object) -> inspect.Signature | None:
    try:
        return inspect.signature(thing)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def faults(owner: Owner, real: Any, place: str) -> Iterator[str]:
    """What a stub promises and the installed pyarrow does not have: names, and parameters of functions."""
    for node in owner.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            if not hasattr(real, node.name):
                yield f"{place}.{node.name} does not exist"
            elif isinstance(node, ast.ClassDef):
                yield from faults(node, getattr(real, node.name), f"{place}.{node.name}")
            else:
                yield from parameter_faults(node, getattr(real, node.name), f"{place}.{node.name}")


def parameter_faults(node: ast.FunctionDef, real: object, place: str) -> Iterator[str]:
    actual = signature(real)
    if actual is None or isinstance(real, property):
        return
    known = actual.parameters
    if any(kind.kind is inspect.Parameter.VAR_KEYWORD for kind in known.values()):
        return
    promised = {argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
    for name in sorted(promised - known.keys() - {"self", "cls"}):
        yield f"{place} has no parameter {name}"
    for name, parameter in known.items():
        needed = parameter.default is inspect.Parameter.empty and parameter.kind is not inspect.Parameter.VAR_POSITIONAL
        if needed and name not in promised | {"self", "cls"}:
            yield f"{place} needs the parameter {name}"


@pytest.mark.parametrize("path", sorted(STUBS.rglob("*.pyi")), ids=lambda path: str(path.relative_to(STUBS)))
def test_stubs_promise_nothing_that_pyarrow_has_not(path):
    name = ".".join(("pyarrow", *path.relative_to(STUBS).with_suffix("").parts)).removesuffix(".__init__")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert list(faults(tree, importlib.import_module(name), name)) == []


def test_a_false_promise_is_noticed():
    tree = ast.parse("def schema(fields, colour): ...\ndef no_such(): ...\nclass Table:\n    def fly(self): ...\n")
    assert list(faults(tree, importlib.import_module("pyarrow"), "pa")) == [
        "pa.schema has no parameter colour",
        "pa.no_such does not exist",
        "pa.Table.fly does not exist",
    ]
