# SPDX-License-Identifier: Apache-2.0
"""The nodes of a filter expression, and their three-valued logic."""

from __future__ import annotations

import decimal
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

Operator = Literal["=", "<", "<=", ">", ">="]
Value = bool | int | float | decimal.Decimal | str
"""A literal after `bind`. A date is the number of days since 1970-01-01, a timestamp the number of microseconds."""


@dataclass(frozen=True, slots=True)
class DateLiteral:
    """A literal such as `DATE '2024-01-01'`. `text` is the part in quotes."""

    text: str


@dataclass(frozen=True, slots=True)
class TimestampLiteral:
    """A literal such as `TIMESTAMP '2024-01-01 12:00:00'`. `text` is the part in quotes."""

    text: str


Parsed = bool | decimal.Decimal | float | str | DateLiteral | TimestampLiteral
"""A literal before `bind`. As in Spark, a number with an exponent is a float, and any other number a decimal."""


@dataclass(frozen=True, slots=True)
class Compare:
    """A comparison of a column with a literal. The literal is a `Parsed` before `bind`, and a `Value` after it."""

    column: str
    operator: Operator
    literal: Parsed | Value | DateLiteral | TimestampLiteral


@dataclass(frozen=True, slots=True)
class Constant:
    """A comparison with the same outcome for every value except null, such as `tiny < 1000` for an 8-bit column."""

    column: str
    outcome: bool


@dataclass(frozen=True, slots=True)
class IsNull:
    """The test whether a column is null."""

    column: str


@dataclass(frozen=True, slots=True)
class Not:
    """The negation of an expression. The negation of null is null."""

    inner: Expression


@dataclass(frozen=True, slots=True)
class Both:
    """Two expressions joined by AND or OR."""

    operator: Literal["AND", "OR"]
    left: Expression
    right: Expression


Leaf = Compare | Constant | IsNull
Expression = Leaf | Not | Both

Outcomes = frozenset[bool | None]
"""The outcomes that an expression may have over a set of rows; None is SQL's null."""

ANY: Outcomes = frozenset({True, False, None})


def leaves(expression: Expression) -> Iterator[Leaf]:
    """Yield the comparisons of an expression, from left to right."""
    if isinstance(expression, Not):
        yield from leaves(expression.inner)
    elif isinstance(expression, Both):
        yield from leaves(expression.left)
        yield from leaves(expression.right)
    else:
        yield expression


def transformed(expression: Expression, change: Callable[[Leaf], Leaf]) -> Expression:
    """Return the expression with each comparison replaced by what `change` returns for it."""
    if isinstance(expression, Not):
        return Not(transformed(expression.inner, change))
    if isinstance(expression, Both):
        return Both(expression.operator, transformed(expression.left, change), transformed(expression.right, change))
    return change(expression)


def may_be_true(expression: Expression, outcomes: Callable[[Leaf], Outcomes]) -> bool:
    """Return whether some row may satisfy the expression, given the possible outcomes of each comparison."""
    return True in _possible(expression, outcomes)


def _possible(expression: Expression, outcomes: Callable[[Leaf], Outcomes]) -> Outcomes:
    if isinstance(expression, Not):
        return frozenset(None if one is None else not one for one in _possible(expression.inner, outcomes))
    if isinstance(expression, Both):
        sides = (_possible(side, outcomes) for side in (expression.left, expression.right))
        return frozenset(_joined(expression.operator, one, other) for one, other in itertools.product(*sides))
    return outcomes(expression)


def _joined(operator: Literal["AND", "OR"], one: bool | None, other: bool | None) -> bool | None:
    """Return the outcome of AND or OR by the three-valued logic of Kleene and SQL; None is null."""
    deciding = operator == "OR"
    if deciding in (one, other):
        return deciding
    return None if None in (one, other) else not deciding


def range_outcomes(leaf: Compare, least: Value | None, greatest: Value | None) -> Outcomes:
    """Return the possible outcomes of a comparison for values in `[least, greatest]`; None is an unknown bound.

    The values must have the type of the bound literal, and must not be NaN.
    """
    value = leaf.literal
    below = least is None or least < value  # type: ignore[operator] # of one type, as the docstring requires
    above = greatest is None or greatest > value  # type: ignore[operator] # as above
    equal = (least is None or least <= value) and (greatest is None or greatest >= value)  # type: ignore[operator] # as above
    found: set[bool | None] = set()
    for possible, holds in (
        (below, "<" in leaf.operator),
        (above, ">" in leaf.operator),
        (equal, "=" in leaf.operator),
    ):
        if possible:
            found.add(holds)
    return frozenset(found)


def moment_text(literal: Parsed | Value | DateLiteral | TimestampLiteral) -> str:
    """Return a literal as a user would write it, to show it in errors."""
    if isinstance(literal, DateLiteral):
        return f"DATE '{literal.text}'"
    if isinstance(literal, TimestampLiteral):
        return f"TIMESTAMP '{literal.text}'"
    if isinstance(literal, bool):
        return str(literal).upper()
    return repr(literal) if isinstance(literal, str) else str(literal)
