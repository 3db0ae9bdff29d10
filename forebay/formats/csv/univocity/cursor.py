# SPDX-License-Identifier: Apache-2.0
"""The part of the CSV tokenizer that steps through the text and collects the values of a record."""

from __future__ import annotations

import io
import re
from collections import deque
from collections.abc import Iterator

from forebay.formats.csv.univocity.rules import NUL, CsvRules, TooManyChars, TooManyColumns

WHITESPACE = "".join(map(chr, range(33)))
"""The characters that count as white space for the parser and for Java's `String.trim`."""


class End(Exception):
    """Raised at the end of the text."""


class CsvCursor:
    """A position in a text, with the current value and the previous values of the current record."""

    def __init__(self, rules: CsvRules) -> None:
        self._rules = rules
        self._sep, self._quote, self._escape = rules.sep, rules.quote, rules.escape
        self._newline = rules.newline
        self._enders = (self._sep, self._newline)
        self._sep1, self._sep2 = rules.line_sep[0], rules.line_sep[1:]
        self._until_delimiter = rules.stray_quotes in ("STOP_AT_DELIMITER", "SKIP_VALUE", "BACK_TO_DELIMITER")
        self._value_run = _run_without(self._sep, self._sep1)
        self._delimiter_run = _run_without(self._sep, self._newline, self._sep1)
        # If the escape character is the quote, NUL stops a run too, because univocity then drops it from quoted values.
        self._quoted_stops = (self._quote, self._escape, NUL if self._quote == self._escape else self._escape)
        self._quoted_run = _run_without(*self._quoted_stops, self._sep1)
        self._special = re.compile("[" + re.escape(self._quote + self._escape + self._sep1) + "]")
        self._any_delimiter = re.compile("[" + re.escape(self._sep + self._newline) + "]")
        self._plain_rules = rules.max_chars < 0 and not (rules.trim_leading or rules.trim_trailing)
        self._in_plain_line = False
        self.begin("", True)

    def begin(self, text: str, final: bool) -> None:
        """Start reading a text of many records. `final` says whether the file ends with this text."""
        self._text = text
        self._final = final
        self._over = False
        self._i = 0
        self._record_start = 0
        self._normalize = True
        self._values: list[str | None] = []
        self._pending: deque[list[str | None]] = deque()
        self._value = ValueText()
        self._trim = False
        self._unescaped = False
        self._skipped = False
        self._ch = self._prev = NUL

    @property
    def consumed(self) -> int:
        """The number of characters in the records returned so far."""
        return self._i

    @property
    def raw(self) -> str:
        """The text of the last record, as Spark writes it to the corrupt-record column."""
        return strip_line_end(self._text[self._record_start : self._i])

    def _next_char(self) -> str:
        at = self._i
        if at >= len(self._text):
            raise End
        ch = self._text[at]
        self._i = at + 1
        if ch == self._sep1 and self._normalize and self._text.startswith(self._sep2, at + 1):
            self._i += len(self._sep2)
            return self._newline
        if ch == self._sep1 and self._sep2 and at + 1 == len(self._text) and not self._final:
            raise End
        return ch

    def _at_end(self) -> bool:
        """Return False at the end of the file. Raise End at the end of a text that the file continues."""
        if not self._final:
            raise End
        return False

    def _skip_line(self) -> None:
        try:
            while self._next_char() != self._newline:
                continue
        except End:
            if not self._final:
                raise

    def _append(self, text: str) -> None:
        self._value.append(text)
        if -1 < self._rules.max_chars < len(self._value):
            raise TooManyChars

    def _length(self) -> int:
        return -1 if self._skipped else len(self._value)

    def _value_parsed(self) -> None:
        value = self._value.take()
        if self._trim:
            value = value.rstrip(WHITESPACE)
        self._push(None if self._skipped else value or self._rules.empty_value)
        self._skipped = False

    def _empty_parsed(self) -> None:
        self._push(self._rules.null_value)

    def _push(self, value: str | None) -> None:
        if len(self._values) >= self._rules.max_columns:
            raise TooManyColumns
        self._values.append(value)

    def _row_parsed(self) -> list[str | None] | None:
        if self._pending:
            return self._pending.popleft()
        row, self._values = self._values, []
        return row or None

    def _append_until(self, ch: str, run: re.Pattern[str], stops: tuple[str, ...]) -> str:
        while ch not in stops:
            found = run.match(self._text, self._i)
            self._append(ch + (found[0] if found else ""))
            if found:
                self._i = found.end()
            ch = self._next_char()
        return ch

    def _append_until_delimiter(self) -> None:
        self._ch = self._append_until(self._ch, self._delimiter_run, self._enders)


def _run_without(*stops: str) -> re.Pattern[str]:
    return re.compile("[^" + re.escape("".join(stops)) + "]+")


def strip_line_end(text: str) -> str:
    """Remove one trailing line end, as Scala's `stripLineEnd` does."""
    if text.endswith("\r\n"):
        return text[:-2]
    return text[:-1] if text.endswith(("\n", "\r")) else text


# -- Collects the text of one CSV value, in time linear in its length.


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
