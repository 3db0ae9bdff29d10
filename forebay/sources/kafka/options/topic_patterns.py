# SPDX-License-Identifier: Apache-2.0
r"""Compiles the Java regular expression of `subscribePattern` with Python's `re`.

Both languages agree on most syntax for names of topics, which have only ASCII letters, digits, dots, underscores and
hyphens. This module rewrites `\Q…\E`, `\z`, `(?<name>` and `\k<name>`, and refuses syntax that Python reads otherwise.
"""

from __future__ import annotations

import re
from typing import Final

from forebay.errors import ConfigurationError

_TOKEN: Final = re.compile(
    r"\\Q(?P<quoted>.*?)(?:\\E|$)"
    r"|\\k<(?P<group>\w+)>"
    r"|(?P<octal>\\0|\\[1-3][0-7][0-7])"
    r"|(?P<comments>\(\?[a-zA-Z-]*x)"
    r"|\\.|\(\?<(?=[a-zA-Z])|&&|.",
    re.DOTALL,
)
_REWRITTEN: Final = {r"\z": r"\Z", "(?<": "(?P<"}


def compile_topics(pattern: str, option: str = "subscribePattern") -> re.Pattern[str]:
    """Return a pattern that matches the same names as Java's `pattern`; use `fullmatch`, as Spark does.

    Raises:
        ConfigurationError: It is no regular expression, or Python has no such syntax.
    """
    try:
        return re.compile(_to_python(pattern), re.ASCII)
    except (re.error, ValueError, OverflowError) as error:
        raise ConfigurationError(
            f"{option} {pattern!r} cannot be used: {error}",
            option=option,
            advice="write a regular expression of letters, classes, groups and repetitions, such as orders-.*",
        ) from error


def _to_python(pattern: str) -> str:
    parts: list[str] = []
    class_begin: int | None = None
    for match in _TOKEN.finditer(pattern):
        text = match[0]
        if match["quoted"] is not None:
            text = re.escape(match["quoted"])
        elif match["octal"]:
            raise ValueError(f"Python and Java read {text} differently")
        elif class_begin is not None:
            if text in ("[", "&&"):
                raise ValueError("nested classes and && exist only in Java")
            if text == "^" and match.start() == class_begin:
                class_begin += 1
            elif text == "]" and match.start() > class_begin:
                class_begin = None
        elif match["comments"]:
            raise ValueError("the flag x is not supported")
        elif match["group"]:
            text = f"(?P={match['group']})"
        else:
            text = _REWRITTEN.get(text, text)
            class_begin = match.end() if text == "[" else None
        parts.append(text)
    return "".join(parts)
