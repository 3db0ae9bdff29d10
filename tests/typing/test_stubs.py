# SPDX-License-Identifier: Apache-2.0
"""What the stubs of pyarrow promise exists. What they refuse is in `*_refuse.py`, which `make lint` checks."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STUBS = ROOT / "stubs" / "pyarrow"

Owner = ast.Module | ast.ClassDef


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
def test_stubs_promise_nothing_that_pyarrow_has_not(path: Path) -> None:
    name = ".".join(("pyarrow", *path.relative_to(STUBS).with_suffix("").parts)).removesuffix(".__init__")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert list(faults(tree, importlib.import_module(name), name)) == []


def test_a_false_promise_is_noticed() -> None:
    tree = ast.parse("def schema(fields, colour): ...\ndef no_such(): ...\nclass Table:\n    def fly(self): ...\n")
    assert list(faults(tree, importlib.import_module("pyarrow"), "pa")) == [
        "pa.schema has no parameter colour",
        "pa.no_such does not exist",
        "pa.Table.fly does not exist",
    ]
