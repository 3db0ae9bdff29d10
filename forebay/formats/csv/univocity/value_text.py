# SPDX-License-Identifier: Apache-2.0
"""Collects the text of one CSV value, in time linear in its length."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator


class ValueText:
    """The text of the current value. Each character is copied twice: when appended and when taken."""

    def __init__(self) -> None:
        self._prefix = ""
        self._undivided = io.StringIO()  # without delimiters, after `divide`
        self._new = io.StringIO()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, text: str) -> None:
        """Append text."""
        self._new.write(text)
        self._size += len(text)

    def prepend(self, text: str) -> None:
        """Prepend text; called once per value at most."""
        self._prefix = text + self._prefix
        self._size += len(text)

    def take(self) -> str:
        """Return the text, and begin an empty value."""
        text = self._prefix + self._undivided.getvalue() + self._new.getvalue()
        self.clear()
        return text

    def clear(self) -> None:
        """Begin an empty value."""
        self._prefix, self._size = "", 0
        self._undivided, self._new = io.StringIO(), io.StringIO()

    def divide(self, delimiter: re.Pattern[str]) -> Iterator[tuple[str, str]]:
        """Remove and yield each part of the text that ends at a match of `delimiter`, with the match.

        No text is searched twice.
        """
        text, at = self._new.getvalue(), 0
        for found in delimiter.finditer(text):
            before = self._prefix + self._undivided.getvalue() if not at else ""
            yield before + text[at : found.start()], found[0]
            at = found.end()
        if at:
            self.clear()
        self._new = io.StringIO()
        self._undivided.write(text[at:])
        self._size = len(self._prefix) + self._undivided.tell()
