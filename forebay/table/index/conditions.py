# SPDX-License-Identifier: Apache-2.0
"""Conditions of `where`, with the outcome of Spark's `where`: NULL logic, NaN, exact decimals.

A text or an equality becomes a `Bound` condition, whose values are as SQLite stores them. `sql_condition` translates it
to SQL; `forebay.table.index.opensearch_objects` has the translator for OpenSearch.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from forebay.errors import ConfigurationError
from forebay.formats.filters import (
    Both,
    Compare,
    Constant,
    DateLiteral,
    Expression,
    IsNull,
    Not,
    Operator,
    TimestampLiteral,
    moment_text,
    parse_filter,
)
from forebay.formats.values.dates import Zone, parse_date, parse_timestamp, parse_timestamp_ntz
from forebay.table.index.definition import ObjectType
from forebay.table.index.types import INTEGERS, SMALL_DECIMAL, SparkType

_NEVER: Final = "?"
"""What no integer and no float of a column is equal to: a text, which sorts after all numbers."""

VALUES: Final = 10_000
"""Values of a list with which a property can be compared at once. SQLite takes 32,766 in a statement."""

CONDITIONS: Final = 1_000
"""Conditions of a query, of which a list is one. The time in which SQLite plans them grows with their square."""

_DIGITS: Final = 100
"""More digits than any column has. Numbers beyond are all the same: greater or less than every value."""


class Columns(Protocol):
    """The columns that conditions may name."""

    def column(self, name: str) -> tuple[str, SparkType]:
        """Return the name in queries and the type of a column that `where` may use.

        Raises:
            ConfigurationError: There is no such column, or it has no index.
        """


@dataclass(frozen=True)
class Comparison:
    """A comparison of a column with a value, which is as SQLite stores it, or greater or less than all of them."""

    column: str
    operator: Operator
    value: Any


@dataclass(frozen=True)
class OneOf:
    """The test whether a column is equal to one of some values."""

    column: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Missing:
    """The test whether a column is NULL."""

    column: str


@dataclass(frozen=True)
class Negated:
    """The negation of a condition. That of NULL is NULL."""

    inner: Bound


@dataclass(frozen=True)
class Joined:
    """Conditions joined by AND or OR, at least one."""

    operator: Literal["AND", "OR"]
    parts: tuple[Bound, ...]


Bound = Comparison | OneOf | Missing | Negated | Joined
"""A condition whose columns exist, and whose values have their types."""


@dataclass(frozen=True)
class Condition:
    """A condition as SQL, with its parameters."""

    sql: str
    parameters: tuple[Any, ...] = ()


def indexed_type(definition: ObjectType, name: str, where: str) -> SparkType:
    """Return the type of a column with an index.

    Args:
        definition: The definition.
        name: The name of the column.
        where: What answers, for the error.

    Raises:
        ConfigurationError: There is no such column, or it has no index.
    """
    if name not in definition.columns:
        raise ConfigurationError(
            f"{definition.name!r} has no property {name!r:.200} in {where}",
            option="where",
            advice=f"give one of {', '.join(definition.filters)}",
        )
    if name not in definition.filters:
        raise ConfigurationError(
            f"the property {name!r} of {definition.name!r} has no index",
            option="where",
            advice=f"define it with filter=True, or give one of {', '.join(definition.filters)}",
        )
    return definition.columns[name]


def parsed_condition(text: str, columns: Columns, zone: Zone) -> Bound:
    """Return the condition of a text, such as `total >= 10 AND city IN ('Oslo', 'Bergen')`.

    Args:
        text: Comparisons of a column with a literal, IN, BETWEEN and IS NULL, joined by AND, OR and NOT.
        columns: The columns.
        zone: The time zone of timestamps that have none.

    Raises:
        ConfigurationError: It is no such condition, or a literal cannot be compared with its column.
    """
    try:
        return _of_expression(_parsed(text), columns, zone)
    except RecursionError:
        raise ConfigurationError(
            f"the condition {text[:100]!r} … of {len(text):,} characters is nested too deeply",
            option="where",
            advice="ask in several smaller queries, or give the values as a list: where(name=[…])",
        ) from None


def _parsed(text: str) -> Expression:
    try:
        return parse_filter(text, "where")
    except ConfigurationError as error:  # its advice is for files that Spark reads
        error.advice = (
            "compare properties with literals, such as \"total >= 10 AND city IN ('Oslo', 'Bergen')\"; a quote in a "
            "text has one backslash before it; for anything else look at the rows of the pages"
        )
        raise


def equality(name: str, value: object, columns: Columns) -> Bound:
    """Return the condition of a keyword argument: equal to a value, one of a list, or NULL for None, in a list too."""
    _, kind = columns.column(name)
    if value is None:
        return Missing(name)
    if isinstance(value, list | tuple | set | frozenset):
        if len(value) > VALUES:
            raise ConfigurationError(
                f"the property {name!r} is compared with {len(value):,} values",
                option="where",
                advice=f"ask in several queries of at most {VALUES:,} values",
            )
        values = (_comparison(name, kind, "=", _value(name, kind, each)).value for each in value if each is not None)
        listed = OneOf(name, tuple(values))
        if None not in value:
            return listed
        return Joined("OR", (listed, Missing(name))) if listed.values else Missing(name)
    return _comparison(name, kind, "=", _value(name, kind, value))


def joined(operator: Literal["AND", "OR"], parts: Sequence[Bound]) -> Bound:
    """Return conditions joined, with one list for all values to which OR lets a column be equal, or AND does not.

    A list that gets too long for a statement is several lists.

    Args:
        operator: What joins them.
        parts: The conditions, at least one.
    """
    values: dict[str, list[Any]] = {}
    others: list[Bound] = []
    for part in parts:
        excludes = isinstance(part, Negated)  # NOT a AND NOT b is NOT (a OR b)
        match part.inner if isinstance(part, Negated) else part:
            case Comparison(column, "=", value) if excludes == (operator == "AND"):
                values.setdefault(column, []).append(value)
            case OneOf(column, some) if excludes == (operator == "AND"):
                values.setdefault(column, []).extend(some)
            case _:
                others.append(part)
    lists = [
        OneOf(column, tuple(some[start : start + VALUES]))
        for column, some in values.items()
        for start in range(0, len(some), VALUES)
    ]
    whole = [*(Negated(each) if operator == "AND" else each for each in lists), *others]
    return whole[0] if len(whole) == 1 else Joined(operator, tuple(whole))


def all_of(conditions: Sequence[Bound]) -> tuple[Bound, ...]:
    """Return the conditions of a query, all of which an object satisfies, as few as they can be.

    Raises:
        ConfigurationError: There are too many of them.
    """
    if len(conditions) > 1:
        parts: list[Bound] = []
        for each in conditions:
            parts += each.parts if isinstance(each, Joined) and each.operator == "AND" else [each]
        conditions = [joined("AND", parts)]
    if (count := sum(map(_count, conditions))) > CONDITIONS:
        raise ConfigurationError(
            f"the query has {count:,} conditions",
            option="where",
            advice=f"ask in several queries of at most {CONDITIONS:,} conditions; a list counts as one, as in "
            "where(name=[…]) or name IN (…)",
        )
    return tuple(conditions)


def _count(bound: Bound) -> int:
    match bound:
        case Negated(inner):
            return _count(inner)
        case Joined(_, parts):
            return sum(map(_count, parts))
    return 1


def sql_condition(bound: Bound, columns: Columns) -> Condition:
    """Return a condition as SQL of SQLite."""
    match bound:
        case Negated(inner):
            condition = sql_condition(inner, columns)
            return Condition(f"NOT ({condition.sql})", condition.parameters)
        case Joined(operator, parts):
            return _halves(operator, [sql_condition(each, columns) for each in parts])
        case Missing(column):
            return Condition(f"{columns.column(column)[0]} IS NULL")
        case OneOf(column, values):
            sql, _ = columns.column(column)
            places = ", ".join("?" * len(values))
            return Condition(f"{sql} IN ({places})" if values else f"({sql} IS NULL AND NULL)", values)
        case Comparison(column, operator, value):
            return Condition(f"{columns.column(column)[0]} {operator} ?", (value,))


def _halves(operator: str, parts: Sequence[Condition]) -> Condition:
    """Return conditions joined as halves of halves, since SQLite limits the depth."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    left, right = _halves(operator, parts[:middle]), _halves(operator, parts[middle:])
    return Condition(f"({left.sql}) {operator} ({right.sql})", (*left.parameters, *right.parameters))


def _of_expression(expression: Expression, columns: Columns, zone: Zone) -> Bound:
    match expression:
        case Not(inner):
            return Negated(_of_expression(inner, columns, zone))
        case Both(operator, _, _):
            parts = _operands(expression, operator)
            return joined(operator, [_of_expression(each, columns, zone) for each in parts])
        case IsNull(column):
            columns.column(column)
            return Missing(column)
        case Compare(column, operator, literal):
            _, kind = columns.column(column)
            return _comparison(column, kind, operator, _literal(column, kind, literal, zone))
        case Constant():
            raise AssertionError("made by `bind` alone")


def _operands(expression: Expression, operator: str) -> list[Expression]:
    """Return what an operator joins, however its operands are nested."""
    waiting, operands = [expression], []
    while waiting:
        part = waiting.pop()
        if isinstance(part, Both) and part.operator == operator:
            waiting += [part.right, part.left]
        else:
            operands.append(part)
    return operands


def _comparison(column: str, kind: SparkType, operator: Operator, value: Any) -> Comparison:  # noqa: ANN401 - as SQLite stores it
    if isinstance(value, decimal.Decimal):
        operator, value = _on_grid(kind, operator, value)
    return Comparison(column, operator, value)


def _on_grid(kind: SparkType, operator: Operator, number: decimal.Decimal) -> tuple[Operator, Any]:
    """Return operator and value for a number that an integer or decimal column need not have: `x < 1.5` is `x <= 1`."""
    if number.adjusted() > _DIGITS:  # its whole number would have so many digits
        number = decimal.Decimal(10).scaleb(_DIGITS).copy_sign(number)
    with decimal.localcontext(prec=decimal.MAX_PREC):
        scaled = number.scaleb(kind.scale)
        below, above = math.floor(scaled), math.ceil(scaled)
    wide = kind.precision > SMALL_DECIMAL
    first, last = (1 - 10**kind.precision, 10**kind.precision - 1) if kind.precision else (-(1 << 63), (1 << 63) - 1)
    if operator == "=":
        if below != above or not first <= below <= last:
            return operator, b"" if wide else _NEVER
        return operator, kind.unscaled(below)
    unit = below if "<" in operator else above
    if below != above:
        operator = "<=" if "<" in operator else ">="
    if not first <= unit <= last:
        least, most = (b"", b"\xff" * 18) if wide else (-math.inf, math.inf)
        return operator, most if unit > 0 else least
    return operator, kind.unscaled(unit)


def _value(name: str, kind: SparkType, value: object) -> Any:  # noqa: ANN401 - as SQLite stores it, or a decimal
    """Return a Python value for a comparison with a column."""
    try:
        is_exact = kind.name in INTEGERS or kind.name == "decimal"
        if is_exact and isinstance(value, int | decimal.Decimal) and not isinstance(value, bool):
            exact = decimal.Decimal(value)
            if exact.is_finite():
                return exact
        return kind.encode(value)
    except (TypeError, ValueError, ArithmeticError):
        shown = moment_text(value) if isinstance(value, DateLiteral | TimestampLiteral) else repr(value)
        raise ConfigurationError(
            f"the property {name!r} of type {kind.text} cannot be compared with {shown:.200}",
            option="where",
            advice=f"give a value of the type {kind.text}{kind.hint}",
        ) from None


def _literal(name: str, kind: SparkType, literal: object, zone: Zone) -> Any:  # noqa: ANN401 - see `_value`
    text = literal.text if isinstance(literal, DateLiteral | TimestampLiteral) else literal
    parsed: int | None = None
    if kind.name == "date" and isinstance(literal, str | DateLiteral):
        parsed = parse_date(str(text))
    elif kind.name == "timestamp" and isinstance(text, str):
        parsed = parse_timestamp(text, zone, time_alone=False)
    elif kind.name == "timestamp_ntz" and isinstance(text, str):
        parsed = parse_timestamp_ntz(text)
    if parsed is not None:
        return parsed
    if kind.name in ("float", "double") and isinstance(literal, decimal.Decimal):
        return float(literal) + 0.0  # -0.0 is stored as 0.0
    return _value(name, kind, literal)
