# SPDX-License-Identifier: Apache-2.0
"""Parses filter options: `day >= DATE '2024-03-01' AND region IN ('eu', 'us')`, a part of Spark SQL."""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from forebay.errors import ConfigurationError
from forebay.formats.filters.expressions import (
    Both,
    Compare,
    DateLiteral,
    Expression,
    IsNull,
    Not,
    Operator,
    Parsed,
    TimestampLiteral,
)

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
        found = self._any_of()
        if self._peek().kind != "end":
            raise self._error("expected AND, OR or the end")
        return found

    def _split(self) -> list[_Token]:
        found: list[_Token] = []
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
            found.append(_Token(kind, match[kind], match.start(kind)))  # type: ignore[arg-type] # the groups are the kinds
            at = match.end()
        return [*found, _Token("end", "", end)]

    def _any_of(self) -> Expression:
        return self._joined("OR", lambda: self._joined("AND", self._negated))

    def _joined(self, word: Literal["AND", "OR"], part: Callable[[], Expression]) -> Expression:
        found = part()
        while self._take_word(word):
            found = Both(word, found, part())
        return found

    def _negated(self) -> Expression:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(f"more than {_MAX_DEPTH} nested parentheses or NOT")
        try:
            if self._take_word("NOT"):
                return Not(self._negated())
            if self._take_symbol("("):
                found = self._any_of()
                self._expect(")")
                return found
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
            found = self._in_list(column)
        elif self._take_word("BETWEEN"):
            least = self._literal()
            if not self._take_word("AND"):
                raise self._error("expected AND")
            found = Both("AND", Compare(column, ">=", least), Compare(column, "<=", self._literal()))
        elif negated:
            raise self._error("expected IN or BETWEEN")
        else:
            operator = self._operator()
            return self._compared(column, operator, self._literal())
        return Not(found) if negated else found

    def _in_list(self, column: str) -> Expression:
        self._expect("(")
        found: Expression = Compare(column, "=", self._literal())
        while self._take_symbol(","):
            found = Both("OR", found, Compare(column, "=", self._literal()))
        self._expect(")")
        return found

    @staticmethod
    def _compared(column: str, operator: str, literal: Parsed, *, mirrored: bool = False) -> Expression:
        if operator in ("!=", "<>"):
            return Not(Compare(column, "=", literal))
        found = _SAME[operator]
        return Compare(column, _MIRRORED[found] if mirrored else found, literal)

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
        found = token.kind == "word" and token.text.upper() == word
        self._next += found
        return found

    def _take_symbol(self, symbol: str) -> bool:
        token = self._peek()
        found = token.kind == "symbol" and token.text == symbol
        self._next += found
        return found

    def _expect(self, symbol: str) -> None:
        if not self._take_symbol(symbol):
            raise self._error(f"expected {symbol}")

    def _error(self, why: str, at: int | None = None) -> ConfigurationError:
        place = self._peek().at if at is None else at
        rest = self._text[place:].strip()
        where = f"at {rest[:30]!r}" if rest else "at the end"
        return ConfigurationError(
            f"{self._option} {self._text!r} cannot be parsed {where}: {why}",
            option=self._option,
            advice="write comparisons of a column with a literal, IN, BETWEEN and IS NULL, joined by AND, OR and NOT; "
            "for anything else use where() on the result",
        )
