# SPDX-License-Identifier: Apache-2.0
r"""Globs in paths, with Hadoop's meaning: `*`, `?`, `[abc]`, `[^a-c]`, `{a,b}`, and `\` before any of these.

Unlike the shell's, they also match names that start with a dot: hidden files are left out by another rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from forebay.errors import ConfigurationError

_SPECIAL = frozenset("*?[]{}\\")
_ANYWHERE = {"*": ".*", "?": ".", "{": "(?:"}
_IN_GROUP = {**_ANYWHERE, ",": "|", "}": ")"}
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def is_glob(path: str) -> bool:
    """Whether a path is to be looked up as a glob: it holds any special character, were it only a backslash."""
    return not _SPECIAL.isdisjoint(path)


def escape(path: str) -> str:
    """The glob that matches exactly this path."""
    return "".join("\\" + char if char in _SPECIAL else char for char in path)


def expand(pattern: str) -> list[str]:
    """Write out the braces that hold a slash, so that each result can be matched name by name.

    `p{a/b,c/d}s` gives `pa/bs` and `pc/ds`; braces without a slash stay for `compile_name`.

    Raises:
        ConfigurationError: The pattern ends in a backslash.
    """
    done: list[str] = []
    waiting = [pattern]
    while waiting:
        current = waiting.pop(0)
        bounds = _first_group_with_slash(current)
        if bounds is None:
            done.append(current)
            continue
        start, end = bounds
        waiting[:0] = [current[:start] + item + current[end + 1 :] for item in _alternatives(current[start + 1 : end])]
    return done


def compile_name(pattern: str) -> re.Pattern[str] | str:
    """What one name of a path must match: a regular expression, or the exact name if there is no wildcard.

    Raises:
        ConfigurationError: A bracket or brace is not closed, or nothing follows a backslash.
    """
    if not _SPECIAL.intersection(char for _, char in _unescaped(pattern)) - set("]}"):
        return _ESCAPED.sub(r"\1", pattern)
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
            regex.append(re.escape(pattern[position]))
        else:
            regex.append((_IN_GROUP if depth else _ANYWHERE).get(char) or re.escape(char))
            depth += (char == "{") - (char == "}" and depth > 0)
        position += 1
    if depth:
        raise _bad(pattern, "a brace is not closed")
    try:
        return re.compile("".join(regex), re.DOTALL)
    except re.error as error:
        raise _bad(pattern, str(error)) from error


def _character_class(pattern: str, start: int) -> tuple[int, str]:
    """The end and the regular expression of `[…]`; a `]` right at its start is a member of it."""
    position = start + 1
    negated = pattern[position : position + 1] in ("^", "!") and position < len(pattern)
    if negated:
        position += 1
    members: list[str] = []
    while position < len(pattern):
        char = pattern[position]
        if char == "]" and members:
            return position, f"[{'^' if negated else ''}{''.join(members)}]"
        if char == "\\":
            position += 1
            char = pattern[position : position + 1]
            members.append("\\" + char if not char.isalnum() else char)
        else:
            members.append(char if char == "-" or char.isalnum() else "\\" + char)
        position += 1
    raise _bad(pattern, "a bracket is not closed")


def _first_group_with_slash(pattern: str) -> tuple[int, int] | None:
    depth = 0
    start = 0
    slash = False
    for position, char in _unescaped(pattern):
        if char == "{":
            if depth == 0:
                start, slash = position, False
            depth += 1
        elif char == "}" and depth:
            depth -= 1
            if depth == 0 and slash:
                return start, position
        elif char == "/" and depth:
            slash = True
    return None


def _alternatives(inside: str) -> list[str]:
    cuts = [-1]
    depth = 0
    for position, char in _unescaped(inside):
        if char == "," and depth == 0:
            cuts.append(position)
        depth += (char == "{") - (char == "}")
    return [inside[left + 1 : right] for left, right in zip(cuts, [*cuts[1:], len(inside)], strict=True)]


def _unescaped(pattern: str) -> Iterator[tuple[int, str]]:
    position = 0
    while position < len(pattern):
        if pattern[position] == "\\":
            if position + 1 == len(pattern):
                raise _bad(pattern, "nothing follows the last backslash")
            position += 2
            continue
        yield position, pattern[position]
        position += 1


def _bad(pattern: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"not a glob: {pattern!r}: {why}",
        option="path",
        advice="write a backslash before a special character that stands for itself",
    )
