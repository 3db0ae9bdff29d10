# SPDX-License-Identifier: Apache-2.0
r"""Matches globs of Hadoop: `*`, `?`, `[abc]`, `[^a-c]`, `{a,b}`, escape `\`. Wildcards also match a leading dot."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise

from forebay.errors import ConfigurationError

_SPECIAL = frozenset("*?[]{}\\")
_ANYWHERE = {"*": ".*", "?": ".", "{": "(?:"}
_IN_GROUP = {**_ANYWHERE, ",": "|", "}": ")"}
_NO_ESCAPED = "nothing follows the last backslash"
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def is_glob(path: str) -> bool:
    """Return whether a path has any special character of globs, including a backslash."""
    return not _SPECIAL.isdisjoint(path)


def escape(path: str) -> str:
    """Return the glob that matches only this path, with special characters escaped."""
    return "".join("\\" + char if char in _SPECIAL else char for char in path)


def expand(pattern: str) -> list[str]:
    """Expand braces that contain a slash: `p{a/b,c/d}s` gives `pa/bs` and `pc/ds`. Other braces stay."""
    group = _group_with_slash(pattern)
    if group is None:
        return [pattern]
    before, items, after = group
    return [path for item in items for path in expand(before + item + after)]


def literal_name(pattern: str) -> str | None:
    """Return the one name that a pattern without wildcards matches; None if the pattern has wildcards."""
    wildcards = _SPECIAL.intersection(char for _, char in _unescaped(pattern)) - set("]}")
    return None if wildcards else _ESCAPED.sub(r"\1", pattern)


def name_matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that tells whether a name (one part of a path) matches a pattern without slashes.

    Raises:
        ConfigurationError: A bracket or brace is not closed, or nothing follows a backslash.
    """
    regex: list[str] = []
    depth = 0
    position = 0
    while position < len(pattern):
        char = pattern[position]
        if char == "[":
            position, members = _character_class(pattern, position)
            regex.append(members)
        elif char == "\\":
            position += 1
            if position == len(pattern):
                raise _bad(pattern, _NO_ESCAPED)
            regex.append(re.escape(pattern[position]))
        else:
            regex.append((_IN_GROUP if depth else _ANYWHERE).get(char) or re.escape(char))
            depth += (char == "{") - (char == "}" and depth > 0)
        position += 1
    if depth:
        raise _bad(pattern, "a brace is not closed")
    try:
        compiled = re.compile("".join(regex), re.DOTALL)
    except re.error as error:
        raise _bad(pattern, str(error)) from error
    return lambda name: compiled.fullmatch(name) is not None


def _character_class(pattern: str, start: int) -> tuple[int, str]:
    """Convert the character class `[…]` at `start`; return the index after it and its regular expression.

    A `]` directly after the bracket belongs to the class.
    """
    negated = pattern.startswith(("^", "!"), start + 1)
    position = start + 1 + negated
    members: list[str] = []
    while position < len(pattern):
        if pattern[position] == "]" and members:
            return position, f"[{'^' if negated else ''}{''.join(members)}]"
        position, member = _class_member(pattern, position)
        if pattern.startswith("-", position) and pattern[position + 1 : position + 2] not in ("", "]"):
            position, last = _class_member(pattern, position + 1)
            member += "-" + last
        members.append(member)
    raise _bad(pattern, "a bracket is not closed")


def _class_member(pattern: str, position: int) -> tuple[int, str]:
    """Return the index after one character of a class, and its regular expression.

    Escape `-` too, because `re` warns of two hyphens in a row.
    """
    position += pattern[position] == "\\"
    char = pattern[position : position + 1]
    return position + 1, char if char.isalnum() else "\\" + char


def _group_with_slash(pattern: str) -> tuple[str, list[str], str] | None:
    """Split a pattern at its first braces that contain a slash: text before, alternatives, text after; None if none."""
    depth, slash = 0, False
    cuts: list[int] = []
    for position, char in _unescaped(pattern):
        if char == "{":
            if depth == 0:
                slash, cuts = False, [position]
            depth += 1
        elif char == "}" and depth:
            depth -= 1
            if depth == 0 and slash:
                items = [pattern[left + 1 : right] for left, right in pairwise([*cuts, position])]
                return pattern[: cuts[0]], items, pattern[position + 1 :]
        elif char == "," and depth == 1:
            cuts.append(position)
        elif char == "/" and depth:
            slash = True
    return None


def _unescaped(pattern: str) -> Iterator[tuple[int, str]]:
    position = 0
    while position < len(pattern):
        if pattern[position] == "\\":
            if position + 1 == len(pattern):
                raise _bad(pattern, _NO_ESCAPED)
            position += 2
            continue
        yield position, pattern[position]
        position += 1


def _bad(pattern: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"the glob {pattern!r} is invalid: {why}",
        option="path",
        advice="correct the glob; write a backslash before a special character that is part of the name",
    )
