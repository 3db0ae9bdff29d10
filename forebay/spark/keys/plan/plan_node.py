# SPDX-License-Identifier: Apache-2.0
"""Reads the analysed plan of a DataFrame from the JVM of a classic session: nodes, expressions, output columns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame

_SEPARATOR: Final = "\x1f"
_STRUCTURE: Final = ("class", "num-children")
_SHOWN: Final = 120
"""Maximum characters of a node in a message."""
_SHOWN_COLUMNS: Final = 8


@dataclass(frozen=True)
class Expression:
    """An expression of the plan.

    Args:
        kind: The name of its Catalyst class, without the package, such as `Alias`.
        fields: Its fields as Spark prints them to JSON.
        children: Its operands.
    """

    kind: str
    fields: Mapping[str, Any]
    children: tuple[Expression, ...]

    @property
    def id(self) -> int | None:
        """The id of the column that this expression is (`AttributeReference`) or makes (`Alias`); None for others."""
        made = self.fields.get("exprId")
        return made["id"] if isinstance(made, dict) else None

    def walk(self) -> Iterator[Expression]:
        """Yield this expression and all below it."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def references(self) -> frozenset[int]:
        """The ids of the columns that the expression reads."""
        return frozenset(one.id for one in self.walk() if one.kind == "AttributeReference" and one.id is not None)


@dataclass(frozen=True)
class Column:
    """A column that a node puts out: its id in the plan (Spark's `exprId`), name and metadata."""

    id: int
    name: str
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class PlanNode:
    """A node of the plan.

    Args:
        kind: The name of its Catalyst class, without the package, such as `Project`.
        fields: Its fields as Spark prints them to JSON.
        children: Its inputs.
        output: The columns that it puts out.
        jvm: The node in the JVM.
    """

    kind: str
    fields: Mapping[str, Any]
    children: tuple[PlanNode, ...]
    output: tuple[Column, ...]
    jvm: Any

    def walk(self) -> Iterator[PlanNode]:
        """Yield all nodes below this one, leaves first, and then this node."""
        for child in self.children:
            yield from child.walk()
        yield self

    def expressions(self, field: str) -> tuple[Expression, ...]:
        """Return the expressions of a field, such as the `projectList` of a `Project`."""
        found = self.fields.get(field)
        if not isinstance(found, list) or not found:
            return ()
        lists = found if isinstance(found[0], list) else [found]
        return tuple(_expression(iter(one)) for one in lists if _is_tree(one))

    def all_expressions(self) -> Iterator[Expression]:
        """Yield the expressions of all fields."""
        for name in self.fields:
            yield from self.expressions(name)

    def subqueries(self) -> Iterator[PlanNode]:
        """Yield the plans of the subqueries in the expressions of the node."""
        plans = self.jvm.subqueries()
        for place in range(plans.size()):
            plan = plans.apply(place)
            yield _node(plan, iter(json.loads(plan.toJSON())))

    def made(self) -> Iterator[Expression]:
        """Yield the expressions that make the output columns of the node."""
        for name in ("projectList", "aggregateExpressions", "windowExpressions"):
            yield from self.expressions(name)

    @property
    def text(self) -> str:
        """The node as Spark prints it, cut to one readable line."""
        text = " ".join(str(self.jvm.simpleString(_SHOWN_COLUMNS)).lstrip("~").split())
        return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"

    @property
    def semantic_hash(self) -> int:
        """A number that equal plans have in common; see `plan_hash`."""
        return int(self.jvm.semanticHash())

    @property
    def streaming(self) -> bool:
        """Whether the rows come from a stream."""
        return bool(self.jvm.isStreaming())


def analysed_plan(df: DataFrame) -> PlanNode | None:
    """Return the analysed plan of a DataFrame; None on Spark Connect, which shows no plan to the client."""
    root = _root(df)
    return None if root is None else _node(root, iter(json.loads(root.toJSON())))


def plan_hash(df: DataFrame) -> int:
    """Return the `semantic_hash` that the plan of a DataFrame has as a part of later plans."""
    root = _root(df)
    return int(df.semanticHash()) if root is None else int(root.semanticHash())


def _root(df: DataFrame) -> Any:  # noqa: ANN401 - an object of the JVM
    if not hasattr(df, "_jdf"):
        return None
    # PySpark has no other way to the plan. Spark's own rule says which hint a join follows.
    root = df._jdf.queryExecution().analyzed()  # noqa: SLF001
    # Asked for part by part, py4j would look for `org`, `org.apache`, … in every jar of Spark: 11 ms instead of 0.5.
    rule = getattr(df.sparkSession._jvm, "org.apache.spark.sql.catalyst.optimizer.EliminateResolvedHint")  # noqa: SLF001
    return rule.apply(root)


def join_hints(node: PlanNode) -> tuple[str | None, str | None]:
    """Return the strategies that Spark takes from hints for the left and for the right side of a join, if any."""

    def strategy(hint: Any) -> str | None:  # noqa: ANN401 - an Option of the JVM
        if not hint.isDefined() or not hint.get().strategy().isDefined():
            return None
        return str(hint.get().strategy().get().toString())

    hints = node.jvm.hint()
    return strategy(hints.leftHint()), strategy(hints.rightHint())


def _node(jvm: Any, structure: Iterator[dict[str, Any]]) -> PlanNode:  # noqa: ANN401 - an object of the JVM
    """Build a node and its inputs. `structure` yields the nodes in pre-order: each node before its inputs."""
    fields = next(structure)
    inputs = jvm.children()
    children = tuple(_node(inputs.apply(place), structure) for place in range(fields["num-children"]))
    return PlanNode(_kind(fields), _without_structure(fields), children, _output(jvm), jvm)


def _output(jvm: Any) -> tuple[Column, ...]:  # noqa: ANN401 - an object of the JVM
    # Spark prints a column as name#id and a suffix for its type, which has no '#'.
    text = str(jvm.output().mkString(_SEPARATOR))
    numbers = [one.rpartition("#")[2] for one in text.split(_SEPARATOR)] if text else []
    fields = json.loads(jvm.schema().json())["fields"]
    return tuple(
        Column(_leading_number(number), field["name"], field.get("metadata") or {})
        for number, field in zip(numbers, fields, strict=True)
    )


def _leading_number(text: str) -> int:
    digits = len(text) - len(text.lstrip("0123456789"))
    return int(text[:digits])


def _is_tree(found: Sequence[Any]) -> bool:
    return bool(found) and isinstance(found[0], dict) and "num-children" in found[0]


def _expression(structure: Iterator[dict[str, Any]]) -> Expression:
    fields = next(structure)
    children = tuple(_expression(structure) for _ in range(fields["num-children"]))
    return Expression(_kind(fields), _without_structure(fields), children)


def _kind(fields: Mapping[str, Any]) -> str:
    return str(fields["class"]).rpartition(".")[2].rstrip("$")


def _without_structure(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in _STRUCTURE}
