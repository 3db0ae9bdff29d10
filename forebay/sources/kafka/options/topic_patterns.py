# SPDX-License-Identifier: Apache-2.0
"""Translates the Java regular expression of `subscribePattern` to Python's `re`, exactly for names of topics.

Names of topics have only ASCII letters, digits, dots, underscores and hyphens. So each Java character class, with its
nesting, intersections and properties, becomes the plain list of those characters that it matches.
"""

from __future__ import annotations

import re
import string
from typing import Final

from forebay.errors import ConfigurationError

LEGAL: Final = frozenset(string.ascii_letters + string.digits + "._-")
"""The characters that Kafka allows in names of topics."""

_LETTERS: Final = frozenset(string.ascii_letters)
_DIGITS: Final = frozenset(string.digits)
_PROPERTIES: Final = {
    "lower": frozenset(string.ascii_lowercase),
    "upper": frozenset(string.ascii_uppercase),
    "alpha": _LETTERS,
    "digit": _DIGITS,
    "alnum": _LETTERS | _DIGITS,
    "punct": frozenset("._-"),
    "xdigit": frozenset(string.hexdigits),
    "ascii": LEGAL,
    "graph": LEGAL,
    "print": LEGAL,
    "space": frozenset(""),
    "blank": frozenset(""),
    "cntrl": frozenset(""),
}
_PROPERTIES_ALSO: Final = {
    "islowercase": "lower", "ll": "lower", "isuppercase": "upper", "lu": "upper", "isalphabetic": "alpha",
    "l": "alpha", "isl": "alpha", "isletter": "alpha", "isdigit": "digit", "n": "digit", "nd": "digit", "p": "punct",
    "ispunctuation": "punct", "javalowercase": "lower", "javauppercase": "upper", "islatin": "alpha",
}  # fmt: skip
_SHORT: Final = {
    "d": _DIGITS,
    "w": _LETTERS | _DIGITS | {"_"},
    "s": frozenset(""),
    "h": frozenset(""),
    "v": frozenset(""),
}


def compile_topics(pattern: str, option: str = "subscribePattern") -> re.Pattern[str]:
    """Return a pattern that matches the same names as Java's `pattern`; use `fullmatch`, as Spark does.

    Raises:
        ConfigurationError: It is no regular expression, or it uses a feature without a translation.
    """
    try:
        return re.compile(_JavaPattern(pattern).translated(), re.ASCII)
    except (re.error, ValueError, IndexError, OverflowError) as error:
        raise ConfigurationError(
            f"{option} {pattern!r} cannot be used: {str(error) or 'it is incomplete'}",
            option=option,
            advice="write a regular expression of letters, classes, groups and repetitions, such as orders-.*",
        ) from error


class _JavaPattern:
    """Translates a Java regular expression in one pass."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def translated(self) -> str:
        parts: list[str] = []
        while self._at < len(self._text):
            char = self._next()
            if char == "\\":
                parts.append(self._escape())
            elif char == "[":
                parts.append(_as_class(self._set()))
            elif char == "(":
                parts.append(self._group())
            else:
                parts.append(char)
        return "".join(parts)

    def _group(self) -> str:
        """Translate the beginning of a group, after its parenthesis."""
        if re.match(r"\?[a-zA-Z]*[duxU][a-zA-Z]*[):-]", self._text[self._at :]):
            raise ValueError("the flags d, u, x and U exist only in Java")
        named = re.match(r"\?<(?=[a-zA-Z])", self._text[self._at :])
        self._at += 2 if named else 0
        return "(?P<" if named else "("

    def _next(self) -> str:
        char = self._text[self._at]
        self._at += 1
        return char

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1] or "\0"

    def _take(self, expected: str) -> bool:
        if not self._text.startswith(expected, self._at):
            return False
        self._at += len(expected)
        return True

    def _quoted(self) -> str:
        end = self._text.find("\\E", self._at)
        found = self._text[self._at :] if end < 0 else self._text[self._at : end]
        self._at = len(self._text) if end < 0 else end + 2
        return found

    def _escape(self) -> str:
        """Translate an escape outside of a class, after its backslash."""
        if self._take("Q"):
            return re.escape(self._quoted())
        if self._peek() in "AbB123456789":
            return "\\" + self._next()
        if self._take("G") or self._take("R") or self._take("X"):
            raise ValueError(f"\\{self._text[self._at - 1]} exists only in Java")
        if self._take("z") or self._take("Z"):
            return r"\Z"  # no name ends in a line break
        if self._take("k<"):
            end = self._text.index(">", self._at)
            name, self._at = self._text[self._at : end], end + 1
            return f"(?P={name})"
        return _as_class(self._escaped())

    def _escaped(self) -> frozenset[str]:
        """Return the characters that an escape matches."""
        char = self._next()
        if char in "pP":
            name = self._next()
            if name == "{":
                end = self._text.index("}", self._at)
                name, self._at = self._text[self._at : end], end + 1
            key = name.lower().removeprefix("general_category=").removeprefix("script=")
            found = _PROPERTIES.get(_PROPERTIES_ALSO.get(key, key))
            if found is None:
                raise ValueError(f"the property {name!r} is not supported")
            return found if char == "p" else LEGAL - found
        if char.lower() in _SHORT:
            return _SHORT[char.lower()] if char.islower() else LEGAL - _SHORT[char.lower()]
        if char in "xu":
            digits = 2 if char == "x" else 4
            if self._take("{"):
                digits = self._text.index("}", self._at) - self._at
            code, self._at = int(self._text[self._at : self._at + digits], 16), self._at + digits
            self._take("}")
            return frozenset(chr(code))
        if char.isalnum():
            if char in "tnrfae":
                return frozenset("\0")  # a control character: no name has one
            raise ValueError(f"\\{char} is not supported")
        return frozenset(char)

    def _set(self) -> frozenset[str]:
        """Return the characters that a class matches, after its opening bracket."""
        negated = self._take("^")
        found: frozenset[str] = frozenset()
        whole: frozenset[str] | None = None
        first = True
        while True:
            if self._take("&&"):
                whole = found if whole is None else whole & found
                found = frozenset()
                continue
            char = self._next()
            if char == "]" and not first:
                break
            first = False
            if char == "[":
                found |= self._set()
            elif char == "\\" and self._take("Q"):
                found |= frozenset(self._quoted())
            else:
                found |= self._range(self._escaped() if char == "\\" else frozenset(char))
        found = found if whole is None else whole & found
        return LEGAL - found if negated else found

    def _range(self, low: frozenset[str]) -> frozenset[str]:
        after = self._text[self._at + 1 : self._at + 2]
        if self._peek() != "-" or after in ("]", "[", "") or len(low) != 1 or self._text.startswith("-&&", self._at):
            return low
        self._at += 1
        char = self._next()
        high = self._escaped() if char == "\\" else frozenset(char)
        if len(high) != 1:
            raise ValueError("a range ends in a class")
        start, stop = ord(next(iter(low))), ord(next(iter(high)))
        if stop < start:
            raise ValueError(f"the range {chr(start)}-{chr(stop)} is empty")
        return frozenset(char for char in LEGAL if start <= ord(char) <= stop)


def _as_class(chars: frozenset[str]) -> str:
    return "[" + "".join(re.escape(char) for char in sorted(chars)) + "]" if chars else "(?!)"
