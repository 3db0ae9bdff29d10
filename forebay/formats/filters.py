# SPDX-License-Identifier: Apache-2.0
"""Filters that users write as options: parsed, with three-valued logic; without pyarrow, for query nodes."""

from __future__ import annotations

import decimal
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, NamedTuple

from forebay.errors import ConfigurationError

# -- The nodes of a filter expression, and their three-valued logic.


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
        return frozenset(None if outcome is None else not outcome for outcome in _possible(expression.inner, outcomes))
    if isinstance(expression, Both):
        sides = (_possible(side, outcomes) for side in (expression.left, expression.right))
        return frozenset(_joined(expression.operator, left, right) for left, right in itertools.product(*sides))
    return outcomes(expression)


def _joined(operator: Literal["AND", "OR"], left: bool | None, right: bool | None) -> bool | None:
    """Return the outcome of AND or OR by the three-valued logic of Kleene and SQL; None is null."""
    deciding = operator == "OR"
    if deciding in (left, right):
        return deciding
    return None if None in (left, right) else not deciding


def range_outcomes(leaf: Compare, least: Value | None, greatest: Value | None) -> Outcomes:
    """Return the possible outcomes of a comparison for values in `[least, greatest]`; None is an unknown bound.

    The values must have the type of the bound literal, and must not be NaN.
    """
    value = leaf.literal
    below = least is None or least < value  # type: ignore[operator] # of one type, as the docstring requires
    above = greatest is None or greatest > value  # type: ignore[operator] # as above
    equal = (least is None or least <= value) and (greatest is None or greatest >= value)  # type: ignore[operator] # as above
    results: set[bool | None] = set()
    for possible, holds in (
        (below, "<" in leaf.operator),
        (above, ">" in leaf.operator),
        (equal, "=" in leaf.operator),
    ):
        if possible:
            results.add(holds)
    return frozenset(results)


def moment_text(literal: Parsed | Value | DateLiteral | TimestampLiteral) -> str:
    """Return a literal as a user would write it, to show it in errors."""
    if isinstance(literal, DateLiteral):
        return f"DATE '{literal.text}'"
    if isinstance(literal, TimestampLiteral):
        return f"TIMESTAMP '{literal.text}'"
    if isinstance(literal, bool):
        return str(literal).upper()
    return repr(literal) if isinstance(literal, str) else str(literal)


# -- Parses filter options: `day >= DATE '2024-03-01' AND region IN ('eu', 'us')`, a part of Spark SQL.


_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?P<exponent>[eE][+-]?\d+)?)(?![\w.])
    | (?P<word>[^\W\d]\w*(?:\.[^\W\d]\w*)*)
    | `(?P<name>(?:[^`]|``)+)`
    | '(?P<text>(?:[^'\\]|\\.)*)'
    | (?P<symbol><=>|==|<>|!=|<=|>=|[=<>(),-])
    )""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_SAME: Final[dict[str, Operator]] = {"=": "=", "==": "=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_MIRRORED: Final[dict[Operator, Operator]] = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_RESERVED = frozenset(
    {"AND", "OR", "NOT", "IN", "IS", "NULL", "BETWEEN", "TRUE", "FALSE", "LIKE", "RLIKE", "ILIKE", "CASE"}
)
_MAX_DEPTH = 100


class _Token(NamedTuple):
    kind: Literal["number", "word", "name", "text", "symbol", "end"]
    text: str
    at: int


def parse_filter(text: str, option: str) -> Expression:
    """Parse the text of a filter option.

    Args:
        text: Comparisons of a column and a literal, `IN`, `BETWEEN` and `IS NULL`, joined by AND, OR, NOT and
            parentheses, with Spark SQL's precedence.
        option: The name of the option, for errors.

    Raises:
        ConfigurationError: The text is not such a filter. The message shows where the error is.
    """
    return _Parser(text, option).parse()


class _Parser:
    def __init__(self, text: str, option: str) -> None:
        self._text = text
        self._option = option
        self._tokens = self._split()
        self._next = 0
        self._depth = 0

    def parse(self) -> Expression:
        expression = self._any_of()
        if self._peek().kind != "end":
            raise self._error("expected AND, OR or the end")
        return expression

    def _split(self) -> list[_Token]:
        tokens: list[_Token] = []
        at = 0
        end = len(self._text.rstrip())
        while at < end:
            match = _TOKEN.match(self._text, at)
            if match is None:
                start = at + len(self._text[at:]) - len(self._text[at:].lstrip())
                quote = self._text[start] == '"'
                raise self._error("write strings in single quotes" if quote else "this is not a name or literal", start)
            kind = "number" if match.lastgroup == "exponent" else match.lastgroup
            assert kind is not None  # noqa: S101 - one of the groups matched
            tokens.append(_Token(kind, match[kind], match.start(kind)))  # type: ignore[arg-type] # the groups are the kinds
            at = match.end()
        return [*tokens, _Token("end", "", end)]

    def _any_of(self) -> Expression:
        return self._joined("OR", lambda: self._joined("AND", self._negated))

    def _joined(self, word: Literal["AND", "OR"], part: Callable[[], Expression]) -> Expression:
        expression = part()
        while self._take_word(word):
            expression = Both(word, expression, part())
        return expression

    def _negated(self) -> Expression:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(f"more than {_MAX_DEPTH} nested parentheses or NOT")
        try:
            if self._take_word("NOT"):
                return Not(self._negated())
            if self._take_symbol("("):
                expression = self._any_of()
                self._expect(")")
                return expression
            return self._predicate()
        finally:
            self._depth -= 1

    def _predicate(self) -> Expression:
        token = self._peek()
        if token.kind == "name" or (token.kind == "word" and not self._begins_literal()):
            return self._of_column(self._column())
        literal = self._literal()
        operator = self._operator()
        column = self._column()
        return self._compared(column, operator, literal, mirrored=True)

    def _of_column(self, column: str) -> Expression:
        if self._take_word("IS"):
            negated = self._take_word("NOT")
            if not self._take_word("NULL"):
                raise self._error("expected NULL")
            return Not(IsNull(column)) if negated else IsNull(column)
        negated = self._take_word("NOT")
        if self._take_word("IN"):
            expression = self._in_list(column)
        elif self._take_word("BETWEEN"):
            least = self._literal()
            if not self._take_word("AND"):
                raise self._error("expected AND")
            expression = Both("AND", Compare(column, ">=", least), Compare(column, "<=", self._literal()))
        elif negated:
            raise self._error("expected IN or BETWEEN")
        else:
            operator = self._operator()
            return self._compared(column, operator, self._literal())
        return Not(expression) if negated else expression

    def _in_list(self, column: str) -> Expression:
        self._expect("(")
        expression: Expression = Compare(column, "=", self._literal())
        while self._take_symbol(","):
            expression = Both("OR", expression, Compare(column, "=", self._literal()))
        self._expect(")")
        return expression

    @staticmethod
    def _compared(column: str, operator: str, literal: Parsed, *, mirrored: bool = False) -> Expression:
        if operator in ("!=", "<>"):
            return Not(Compare(column, "=", literal))
        canonical = _SAME[operator]
        return Compare(column, _MIRRORED[canonical] if mirrored else canonical, literal)

    def _operator(self) -> str:
        token = self._peek()
        if token.kind != "symbol" or token.text not in (*_SAME, "!=", "<>"):
            raise self._error("expected =, !=, <, <=, >, >=, IN, BETWEEN or IS NULL")
        self._next += 1
        return token.text

    def _column(self) -> str:
        token = self._peek()
        if token.kind == "name":
            self._next += 1
            return token.text.replace("``", "`")
        if token.kind != "word" or token.text.upper() in _RESERVED:
            raise self._error(
                "expected the name of a column (in backticks, if it has characters other than letters, digits and _)"
            )
        if "." in token.text:
            raise self._error("fields of structs cannot be filtered by an option: use where() on the result")
        self._next += 1
        return token.text

    def _begins_literal(self) -> bool:
        word, following = self._peek().text.upper(), self._tokens[self._next + 1]
        return word in ("TRUE", "FALSE", "NULL") or (word in ("DATE", "TIMESTAMP") and following.kind == "text")

    def _literal(self) -> Parsed:
        negative = self._take_symbol("-")
        token = self._peek()
        self._next += 1
        if token.kind == "number":
            number = decimal.Decimal(token.text)
            signed = number.copy_negate() if negative else number
            return float(signed) if "e" in token.text.lower() else signed
        if not negative and token.kind == "text":
            return _ESCAPE.sub(self._unescaped, token.text)
        word = token.text.upper() if token.kind == "word" and not negative else ""
        if word in ("TRUE", "FALSE"):
            return word == "TRUE"
        if word in ("DATE", "TIMESTAMP") and self._peek().kind == "text":
            made = DateLiteral if word == "DATE" else TimestampLiteral
            self._next += 1
            return made(self._tokens[self._next - 1].text)
        self._next -= 1
        if word == "NULL":
            raise self._error("a comparison with NULL is never true: write IS NULL")
        raise self._error(
            "expected a literal: 5, 1.5, 'text', TRUE, DATE '2024-01-01' or TIMESTAMP '2024-01-01 12:00:00'"
        )

    def _unescaped(self, match: re.Match[str]) -> str:
        if match[1] not in ("\\", "'"):
            raise self._error(f"the escape {match[0]} is not supported; the only escapes are \\\\ and \\'")
        return match[1]

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take_word(self, word: str) -> bool:
        token = self._peek()
        matched = token.kind == "word" and token.text.upper() == word
        self._next += matched
        return matched

    def _take_symbol(self, symbol: str) -> bool:
        token = self._peek()
        matched = token.kind == "symbol" and token.text == symbol
        self._next += matched
        return matched

    def _expect(self, symbol: str) -> None:
        if not self._take_symbol(symbol):
            raise self._error(f"expected {symbol}")

    def _error(self, why: str, at: int | None = None) -> ConfigurationError:
        place = self._peek().at if at is None else at
        unparsed = self._text[place:].strip()
        where = f"at {unparsed[:30]!r}" if unparsed else "at the end"
        return ConfigurationError(
            f"{self._option} {self._text!r} cannot be parsed {where}: {why}",
            option=self._option,
            advice="write comparisons of a column with a literal, IN, BETWEEN and IS NULL, joined by AND, OR and NOT; "
            "for anything else use where() on the result",
        )


# -- Decides from the statistics of a column which parts of a file may have rows that match a filter.


_NULL: Outcomes = frozenset({None})


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of a column in one part of a file, such as a row group.

    Args:
        rows: The number of rows in the part.
        nulls: The number of nulls; None if unknown.
        least: A lower bound of the values, in the form of a bound literal (`Value`); None if unknown.
        greatest: An upper bound of the values, in the same form; None if unknown.
        nan: Whether there may be NaN. NaN is greater than every number, and may lie outside the bounds.
    """

    rows: int
    nulls: int | None
    least: Value | None = None
    greatest: Value | None = None
    nan: bool = False


def outcomes(leaf: Leaf, column: Statistics) -> Outcomes:
    """Return the outcomes that a comparison may have for the rows of the part."""
    nulls, rows = column.nulls, column.rows
    if isinstance(leaf, IsNull):
        return frozenset([*([True] if nulls != 0 else []), *([False] if nulls != rows else [])])
    if nulls == rows:
        return _NULL
    if isinstance(leaf, Constant):
        possible: Outcomes = frozenset({leaf.outcome})
    else:
        possible = range_outcomes(leaf, column.least, column.greatest)
        if column.nan:
            possible |= {">" in leaf.operator}
    return possible if nulls == 0 else possible | _NULL


def kept_ranges(
    keep: Sequence[bool], starts: Sequence[int], position: int, end: int | None
) -> list[tuple[int, int | None]]:
    """Return the ranges of rows in `[position, end)` that belong to parts to keep. Adjacent ranges are merged.

    Args:
        keep: Whether to keep each part.
        starts: The first row of each part, followed by the number of rows in the file.
        position: The first row to read.
        end: The row after the last one to read; None for the end of the file.
    """
    last = starts[-1] if end is None else end
    ranges: list[tuple[int, int | None]] = []
    for kept, (first, following) in zip(keep, pairwise(starts), strict=True):
        start, stop = max(first, position), min(following, last)
        if not kept or start >= stop:
            continue
        if ranges and ranges[-1][1] == start:
            start = ranges.pop()[0]
        ranges.append((start, stop))
    return ranges
