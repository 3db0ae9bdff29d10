# SPDX-License-Identifier: Apache-2.0
"""The analysed plan of a DataFrame as plain objects."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from typing import Any, Final, TypeAlias

from pyspark.sql import DataFrame

from forebay.table.changelog.shape import RowKind

# -- Reads the analysed plan of a DataFrame from the JVM of a classic session: nodes, expressions, output columns.


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
        return frozenset(part.id for part in self.walk() if part.kind == "AttributeReference" and part.id is not None)


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
        trees = self.fields.get(field)
        if not isinstance(trees, list) or not trees:
            return ()
        lists = trees if isinstance(trees[0], list) else [trees]
        return tuple(_expression(iter(tree)) for tree in lists if _is_tree(tree))

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
    numbers = [column.rpartition("#")[2] for column in text.split(_SEPARATOR)] if text else []
    fields = json.loads(jvm.schema().json())["fields"]
    return tuple(
        Column(_leading_number(number), field["name"], field.get("metadata") or {})
        for number, field in zip(numbers, fields, strict=True)
    )


def _leading_number(text: str) -> int:
    digits = len(text) - len(text.lstrip("0123456789"))
    return int(text[:digits])


def _is_tree(values: Sequence[Any]) -> bool:
    return bool(values) and isinstance(values[0], dict) and "num-children" in values[0]


def _expression(structure: Iterator[dict[str, Any]]) -> Expression:
    fields = next(structure)
    children = tuple(_expression(structure) for _ in range(fields["num-children"]))
    return Expression(_kind(fields), _without_structure(fields), children)


def _kind(fields: Mapping[str, Any]) -> str:
    return str(fields["class"]).rpartition(".")[2].rstrip("$")


def _without_structure(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in _STRUCTURE}


# -- Follows values through a plan: columns have one origin if their values are equal, or convertible without loss.


Origins: TypeAlias = Mapping[int, int]
"""Id of each column → its origin: the id of the column in which its value first appeared in the plan."""

_WHOLE_NUMBERS: Final = ("byte", "short", "integer", "long")
_DISTINCT_AS_TEXT: Final = (*_WHOLE_NUMBERS, "boolean", "date")


def origins_after(node: PlanNode, before: Origins) -> dict[int, int]:
    """Return the origins of the columns that a node puts out, given those of its inputs."""
    made = {alias.id: alias for alias in node.made() if alias.kind == "Alias" and alias.id is not None}
    origins = {}
    for column in node.output:
        origin = before.get(column.id)
        if origin is None and column.id in made:
            origin = origin_of(made[column.id].children[0], before)
        origins[column.id] = column.id if origin is None else origin
    return origins


def origin_of(expression: Expression, origins: Origins) -> int | None:
    """Return the origin of an expression that is a column, or a lossless cast of a column; otherwise None."""
    if expression.kind == "AttributeReference" and expression.id is not None:
        return origins.get(expression.id)
    if expression.kind == "Cast" and _lossless(expression):
        return origin_of(expression.children[0], origins)
    return None


def ordered_as(expression: Expression) -> int | None:
    """Return the id of the column that an expression is, or is a wider whole number of: both order rows alike."""
    if expression.kind == "Cast" and expression.fields.get("dataType") in _WHOLE_NUMBERS and _lossless(expression):
        return ordered_as(expression.children[0])
    return expression.id if expression.kind == "AttributeReference" else None


def origins_of(expressions: Iterable[Expression], origins: Origins) -> frozenset[int] | None:
    """Return the origins of expressions; None if one is neither a column nor a lossless cast of a column."""
    numbers = [origin_of(expression, origins) for expression in expressions]
    known = [number for number in numbers if number is not None]
    return frozenset(known) if len(known) == len(numbers) else None


def equal_columns(condition: Iterable[Expression], left: Origins, right: Origins) -> list[tuple[int, int]] | None:
    """Return the pairs of columns that a join condition equates, each as (origin on the left, origin on the right).

    Returns:
        None if the condition equates nothing, or equates an expression that is not a column.
    """
    pairs: list[tuple[int, int]] = []
    for conjunct in conjuncts(condition):
        if conjunct.kind not in ("EqualTo", "EqualNullSafe"):
            continue
        first, second = conjunct.children
        for here, there in ((first, second), (second, first)):
            left_origin, right_origin = origin_of(here, left), origin_of(there, right)
            if left_origin is not None and right_origin is not None:
                pairs.append((left_origin, right_origin))
                break
        else:
            return None
    return pairs or None


def conjuncts(condition: Iterable[Expression]) -> Iterator[Expression]:
    """Yield the conditions that are combined by AND."""
    for conjunct in condition:
        if conjunct.kind == "And":
            yield from conjuncts(conjunct.children)
        else:
            yield conjunct


def _lossless(cast: Expression) -> bool:
    """Return whether a cast of a column converts different values to different values."""
    source, target = cast.children[0].fields.get("dataType"), cast.fields.get("dataType")
    if cast.children[0].kind not in ("AttributeReference", "Cast"):
        return False
    if source == target or (target == "string" and source in _DISTINCT_AS_TEXT):
        return True
    if source in _WHOLE_NUMBERS and target in _WHOLE_NUMBERS:
        return _WHOLE_NUMBERS.index(source) <= _WHOLE_NUMBERS.index(target)
    return False


# -- Finds columns and conditions whose values differ each time they are computed (C12).


_CLOCKS: Final = frozenset({"CurrentTimestamp", "CurrentDate", "CurrentTime", "LocalTimestamp", "Now"})
"""Expressions that Spark calls deterministic: constant within a micro-batch, but different between micro-batches."""


def unrepeatable(plan: PlanNode) -> tuple[list[str], list[str]]:
    """Return the output columns (names) and the conditions (texts) of a plan that differ each time they are computed.

    A column that the plan drops does not count, unless another column or a condition depends on it.
    """
    tainted, conditions = _tainted(plan)
    return [column.name for column in plan.output if column.id in tainted], conditions


def reads_unrepeatable(node: PlanNode) -> bool:
    """Return whether an expression of a node differs each time it is computed."""
    tainted = {number for child in node.children for number in _tainted(child)[0]}
    made, others = _nondeterministic(node)
    return bool(made) or others or any(_depends(expression, tainted) for expression in node.all_expressions())


def _tainted(node: PlanNode) -> tuple[set[int], list[str]]:
    """Return the ids of the columns, and the texts of the conditions, that differ each time they are computed."""
    tainted: set[int] = set()
    conditions: list[str] = []
    for child in node.children:
        below, texts = _tainted(child)
        tainted |= below
        conditions += texts
    made, others = _nondeterministic(node)
    tainted |= made
    tainted |= {column.id for column in node.made() if column.id is not None and _depends(column, tainted)}
    condition = node.expressions("condition")
    if node.kind == "Generate":  # how many rows it makes
        condition = tuple(node.all_expressions())
    if condition and (others or any(_depends(conjunct, tainted) for conjunct in condition)):
        conditions.append(node.text)
    return tainted, conditions


def _nondeterministic(node: PlanNode) -> tuple[set[int], bool]:
    """Return the ids of columns that non-deterministic expressions make, and whether one of these makes no column."""
    made: set[int] = set()
    others = False
    if not node.jvm.deterministic():  # False also if only a node below it is not
        expressions = node.jvm.expressions()
        for place in range(expressions.size()):
            expression = expressions.apply(place)
            if expression.deterministic():
                continue
            if expression.getClass().getSimpleName() == "Alias":
                made.add(int(expression.exprId().id()))
            else:
                others = True
    return made, others


def _depends(expression: Expression, tainted: set[int]) -> bool:
    return any(
        part.kind in _CLOCKS or (part.kind == "AttributeReference" and part.id in tainted) for part in expression.walk()
    )


# -- Finds aggregates that add up changes by their sign: what a change adds, its retraction takes away (C14).


_ADDS: Final = (RowKind.INSERT.change_type, RowKind.UPDATE_AFTER.change_type)
_TAKES: Final = (RowKind.UPDATE_BEFORE.change_type, RowKind.DELETE.change_type)
_NUMBERS: Final = ("byte", "short", "integer", "long", "float", "double", "decimal")
_WIDE: Final = ("long", "double", "decimal")
"""Types to which numbers are cast without another absolute value for a negative number."""

_Product: TypeAlias = tuple[Fraction, tuple[object, ...]]
"""A number and factors: two products with opposite numbers and equal factors are opposite values."""


def adds_by_sign(node: PlanNode, kind: Collection[int], of_change: frozenset[int]) -> bool:
    """Return whether an aggregate only adds up values of rows, each with the sign of its change.

    Args:
        node: The aggregate.
        kind: The ids of the columns that are `_change_type`.
        of_change: The ids of the columns that depend on the kind or the place of a change.
    """
    functions = [part for column in node.made() for part in column.walk() if part.kind == "AggregateExpression"]
    made = {column.id: column.children[0] for below in node.walk() for column in below.made() if column.kind == "Alias"}
    kinds: set[int | None] = {*kind}
    while more := {made[one].id for one in kinds if one in made and made[one].kind == "AttributeReference"} - kinds:
        kinds |= more
    signs = _Signs(frozenset(kinds), of_change, made)
    return bool(functions) and all(
        function.children[0].kind == "Sum"
        and not function.fields.get("isDistinct")
        and not any(condition.references & of_change for condition in function.children[1:])
        and signs.turns(function.children[0].children[0])
        for function in functions
    )


@dataclass(frozen=True)
class _Signs:
    """Judges expressions by the kind of a change.

    Args:
        kind: The ids of the columns that are `_change_type`, in any node of the plan.
        of_change: The ids of the columns that depend on the kind or the place of a change.
        made: The expression of each computed column, by its id.
    """

    kind: frozenset[int | None]
    of_change: frozenset[int]
    made: Mapping[int | None, Expression]

    def turns(self, value: Expression) -> bool:
        """Return whether a value is the same for an added row, and has the opposite sign if that row is retracted."""
        match value.kind:
            case "AttributeReference":
                return value.id in self.of_change and value.id in self.made and self.turns(self.made[value.id])
            case "Cast":
                return _simple_type(value) in _WIDE and self.turns(value.children[0])
            case "UnaryMinus":
                return self.turns(value.children[0])
            case "Add" | "Subtract":
                return all(self.turns(child) for child in value.children)
            case "Multiply":
                first, second = value.children
                return (self.turns(first) and self._of_row(second)) or (self._of_row(first) and self.turns(second))
            case "Coalesce":
                return all(self.turns(child) or _is_zero(child) for child in value.children)
            case "CaseWhen" | "If":
                return self._chooses(value)
            case _:
                return False

    def _chooses(self, value: Expression) -> bool:
        cases = list(_cases(value))
        if all(condition is None or self._of_row(condition) for condition, _ in cases):
            return all(self.turns(branch) or _is_zero(branch) for _, branch in cases)
        added, taken = ({self._product_for(cases, kind) for kind in kinds} for kinds in (_ADDS, _TAKES))
        if len(added) != 1 or len(taken) != 1:
            return False
        plus, minus = added.pop(), taken.pop()
        return plus is not None and minus == (-plus[0], plus[1])

    def _product_for(self, cases: list[tuple[Expression | None, Expression]], kind: str) -> _Product | None:
        """Return what a CASE gives for a kind of change; None if that is not known, or no value of the row."""
        for condition, value in cases:
            meets = True if condition is None else self._holds(condition, kind)
            if meets is None:
                return None
            if meets:
                return _product(value) if self._of_row(value) else None
        return None

    def _holds(self, condition: Expression, kind: str) -> bool | None:
        """Return whether a condition holds for a kind of change; None if other values decide, too."""
        match condition.kind:
            case "EqualTo" | "EqualNullSafe" | "In":
                tested, *others = condition.children
                if tested.kind == "Literal" and condition.kind != "In":
                    tested, *others = others[0], tested
                if self._source(tested).id not in self.kind or any(other.kind != "Literal" for other in others):
                    return None
                return kind in [other.fields.get("value") for other in others]
            case "Not":
                holds = self._holds(condition.children[0], kind)
                return None if holds is None else not holds
            case "And" | "Or":
                verdicts = [self._holds(child, kind) for child in condition.children]
                if None in verdicts:
                    return None
                return all(verdicts) if condition.kind == "And" else any(verdicts)
            case _:
                return None

    def _source(self, column: Expression) -> Expression:
        """Return the column that a renamed column is."""
        while column.id not in self.kind and column.id in self.made and self.made[column.id].id is not None:
            column = self.made[column.id]
        return column

    def _of_row(self, value: Expression) -> bool:
        return not value.references & self.of_change


def _cases(value: Expression) -> Iterator[tuple[Expression | None, Expression]]:
    """Yield the conditions of a CASE with their values; the condition of ELSE is None."""
    if value.kind == "If":
        condition, yes, no = value.children
        yield condition, yes
        yield None, no
        return
    pairs = len(value.children) // 2
    for place in range(pairs):
        yield value.children[2 * place], value.children[2 * place + 1]
    if len(value.children) % 2:
        yield None, value.children[-1]


def _product(value: Expression) -> _Product:
    """Return a value of a row as a number times factors."""
    if value.kind == "Literal" and _simple_type(value) in _NUMBERS and isfinite(float(value.fields["value"] or "nan")):
        return Fraction(str(value.fields["value"])), ()
    if value.kind == "UnaryMinus":
        number, factors = _product(value.children[0])
        return -number, factors
    if value.kind == "Cast" and _simple_type(value) in _WIDE:
        number, factors = _product(value.children[0])
        return number, tuple((str(value.fields["dataType"]), factor) for factor in factors)
    if value.kind == "Multiply":
        (left_number, left_factors), (right_number, right_factors) = map(_product, value.children)
        return left_number * right_number, tuple(sorted((*left_factors, *right_factors), key=repr))
    return Fraction(1), (_shown(value),)


def _shown(value: Expression) -> str:
    """Return an expression as text: the same text for expressions with the same value for each row."""
    fields = {name: field for name, field in value.fields.items() if name not in ("qualifier", "metadata", "name")}
    return f"{value.kind}{fields!r}({', '.join(map(_shown, value.children))})"


def _is_zero(value: Expression) -> bool:
    number, factors = _product(value)
    return number == 0 and not factors


def _simple_type(value: Expression) -> str:
    return str(value.fields.get("dataType")).partition("(")[0]
