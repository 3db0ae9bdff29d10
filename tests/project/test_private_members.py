# SPDX-License-Identifier: Apache-2.0
"""Private members of other libraries: each is used in one place, and is in the version that is installed."""

from __future__ import annotations

import ast
from importlib.metadata import distribution
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "forebay"
KAFKA = "sources/kafka/client/kafka_internals.py"

# By distribution: the member, the file of the library that has it, and the files of forebay that use it.
USED: dict[str, dict[str, tuple[str, set[str]]]] = {
    "botocore": {"_endpoint": ("botocore/client.py", {"stores/s3/direct_gets.py"})},
    "fsspec": {"_strip_protocol": ("fsspec/spec.py", {"stores/remote.py"})},
    "kafka-python": {
        "_create_fetch_requests": ("kafka/consumer/fetcher.py", {KAFKA}),
        "_handle_fetch_response": ("kafka/consumer/fetcher.py", {KAFKA}),
        "_manager": ("kafka/consumer/group.py", {KAFKA, "testkit/kafka_broker.py"}),
        "_max_version": ("kafka/protocol/api_message.py", {KAFKA}),
        "_net": ("kafka/net/manager.py", {KAFKA}),
        "_parse_fetched_data": ("kafka/consumer/fetcher.py", {KAFKA}),
        "_process_response": ("kafka/protocol/parser.py", {KAFKA}),
        "_protocol": ("kafka/net/transport.py", {KAFKA}),
        "_rbuffer": ("kafka/protocol/parser.py", {KAFKA}),
        "_receiving": ("kafka/protocol/parser.py", {KAFKA}),
        "_send_request": ("kafka/net/connection.py", {KAFKA}),
        "_sock": ("kafka/net/transport.py", {KAFKA}),
    },
    "pyspark": {
        "_accumulatorRegistry": ("pyspark/accumulators.py", {"spark/processes.py"}),
        "_jconf": ("pyspark/sql/conf.py", {"spark/session.py"}),
        "_jdf": ("pyspark/sql/classic/dataframe.py", {"spark/keys/plan.py"}),
        "_jsc": ("pyspark/core/context.py", {"spark/register.py", "spark/session.py"}),
        "_jsparkSession": ("pyspark/sql/session.py", {"spark/register.py"}),
        "_jvm": ("pyspark/sql/session.py", {"spark/keys/plan.py", "spark/register.py"}),
        "_sc": ("pyspark/sql/session.py", {"spark/changelog/stateful.py", "spark/register.py", "spark/session.py"}),
    },
}
# Of Python itself: the only ways to a caller's names, and to where another thread is.
OF_PYTHON = {"_current_frames": {"testkit/harness/calls.py"}}
PUBLIC = {"_replace", "_asdict", "_fields"}  # of named tuples, as documented


def made_by(tree: ast.AST) -> set[str]:
    """The names that a module gives to its own functions, classes, fields and variables."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            found.add(node.attr)
    return found


def private_names(tree: ast.AST) -> set[str]:
    """The private attributes that a module reads, also by `getattr`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) == "getattr"
            and isinstance(node.args[1], ast.Constant)
        ):
            found.add(str(node.args[1].value))
    return {name for name in found if name.startswith("_") and not name.startswith("__")} - PUBLIC


def test_private_members_of_other_libraries_are_used_in_these_files_alone():
    """A name that forebay gives to something of its own too is not seen: the tests of `kafka_internals` have those."""
    trees = {str(path.relative_to(PACKAGE)): ast.parse(path.read_text("utf-8")) for path in PACKAGE.rglob("*.py")}
    own = set().union(*map(made_by, trees.values()))
    found: dict[str, set[str]] = {}
    for file, tree in trees.items():
        for name in private_names(tree) - own:
            found.setdefault(name, set()).add(file)
    wanted = {name: files for members in USED.values() for name, (_, files) in members.items()}
    assert found == wanted | OF_PYTHON


@pytest.mark.parametrize("name", USED, ids=lambda name: f"{name} {distribution(name).version}")
def test_the_installed_version_has_the_private_members(name):
    installed = distribution(name)
    lacking = [
        member
        for member, (file, _) in USED[name].items()
        if member not in Path(str(installed.locate_file(file))).read_text("utf-8")
    ]
    assert lacking == [], f"{name} {installed.version} has other internals than forebay uses"
