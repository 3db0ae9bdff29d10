# SPDX-License-Identifier: Apache-2.0
"""A port of the univocity CSV parser (2.9.1) with the settings of Spark 4.2.0."""

from __future__ import annotations

import io
import re
from collections import deque
from collections.abc import Iterator

from forebay.formats.csv.options import (
    NUL,
    TOO_MANY_CHARS,
    TOO_MANY_COLUMNS,
    WHITESPACE,
    CsvRules,
    LimitError,
    strip_line_end,
)

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
        for match in delimiter.finditer(text):
            before = self._prefix + self._undivided.getvalue() if not at else ""
            yield before + text[at : match.start()], match[0]
            at = match.end()
        if at:
            self.clear()
        self._new = io.StringIO()
        self._undivided.write(text[at:])
        self._size = len(self._prefix) + self._undivided.tell()


# -- Tokenizes CSV one character at a time, with the same result as Spark's own parser.
#
# The rules for stray quotes are those of univocity 2.9.1 with the settings of Spark's CSVOptions; they are documented
# nowhere else. Only blocks that Arrow would split differently are tokenized here.


_NOTHING = ("", "")


class End(Exception):
    """Raised at the end of the text."""


class CsvTokenizer:
    """Splits text into records of tokens (texts of values). Reusable for many texts; not thread-safe."""

    def __init__(self, rules: CsvRules) -> None:
        self._rules = rules
        self._sep, self._quote, self._escape = _, quote, escape = rules.sep, rules.quote, rules.escape
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
        # The state inside quotes is the previous character. Quotes and escape characters are read by this table:
        # previous and present character → text to append, and the new state. A later entry replaces an equal one if
        # the escape character is the quote. A pair that is missing appends nothing.
        self._pairs = {
            quote + escape: None,  # the quote before was a stray one
            quote + quote: (quote, quote),
            escape + escape: (escape, NUL),
            escape + quote: (quote, NUL),
        }
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
            raise LimitError(*TOO_MANY_CHARS)

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
            raise LimitError(*TOO_MANY_COLUMNS)
        self._values.append(value)

    def _row_parsed(self) -> list[str | None] | None:
        if self._pending:
            return self._pending.popleft()
        row, self._values = self._values, []
        return row or None

    def _append_until(self, ch: str, run: re.Pattern[str], stops: tuple[str, ...]) -> str:
        while ch not in stops:
            match = run.match(self._text, self._i)
            self._append(ch + (match[0] if match else ""))
            if match:
                self._i = match.end()
            ch = self._next_char()
        return ch

    def _append_until_delimiter(self) -> None:
        self._ch = self._append_until(self._ch, self._delimiter_run, self._enders)

    def line(self, text: str) -> list[str | None] | None:
        """Return the tokens of one line; None if the line has no tokens."""
        self.begin(text, True)
        return self._row(in_stream=False)

    def next(self) -> list[str | None] | None:
        """Return the tokens of the next record; None if the text has no further complete record."""
        return self._row(in_stream=True)

    def _row(self, in_stream: bool) -> list[str | None] | None:
        if self._over:
            return self._row_parsed() if self._pending else None
        try:
            while True:
                self._record_start = self._i
                self._ch = self._next_char()
                if self._ch == self._rules.comment:
                    self._skip_line()
                    if not in_stream:
                        return None
                    continue
                if not self._pending:
                    self._parse_record()
                row = self._row_parsed()
                if row:
                    return row
        except End:
            if self._final:
                self._over = True
                return self._row_at_end()
            self._i = self._record_start
            return None

    def _row_at_end(self) -> list[str | None] | None:
        in_value, length = self._consume_value_at_end(), self._length()
        moved = self._i > self._record_start
        if in_value or length > 0 or (moved and length < 0 and not self._values):
            self._value_parsed()
        elif moved:
            self._empty_parsed()
        return self._row_parsed()

    def _consume_value_at_end(self) -> bool:
        if self._ch == self._quote:
            if self._prev == self._quote:
                return True
            if not self._unescaped:
                self._append(self._quote)
        # The parser's own comment character counts here even though comments are switched off.
        in_value = self._prev != NUL and self._ch not in (self._sep, self._newline, self._rules.comment or "#")
        self._ch = self._prev = NUL
        return in_value

    def _parse_record(self) -> None:
        if self._rules.trim_leading:
            self._skip_whitespace()
        while self._ch != self._newline:
            if self._rules.trim_leading:
                self._skip_whitespace()
            if self._ch in self._enders:
                self._empty_parsed()
            else:
                self._unescaped = False
                self._prev = NUL
                if self._ch == self._quote:
                    if self._plain_quoted():
                        continue
                    self._quoted()
                else:
                    self._unquoted()
            if self._ch != self._newline:
                self._ch = self._next_char()
                if self._ch == self._newline:
                    self._empty_parsed()

    def _skip_whitespace(self) -> None:
        ch = self._ch
        while ch <= " " and ch not in (self._sep, self._newline, self._quote):
            ch = self._next_char()
        self._ch = ch

    def _unquoted(self) -> None:
        if self._length() == 0 and self._value_before_delimiter():
            return
        self._trim = self._rules.trim_trailing
        self._append_until_delimiter()
        self._value_parsed()

    def _value_before_delimiter(self) -> bool:
        """Read an unquoted value up to the next separator or line end; return False if the text ends first."""
        text, at, ch = self._text, self._i, self._ch
        while ch != self._sep:
            if at >= len(text):
                return self._at_end()
            if ch == self._sep1 and text.startswith(self._sep2, at):
                break
            match = self._value_run.match(text, at)
            at = match.end() if match else at + 1
            ch = text[at - 1]
        value = text[self._i - 1 : at - 1]
        if -1 < self._rules.max_chars < len(value):
            return False
        if self._rules.trim_trailing:
            value = value.rstrip(WHITESPACE)
        self._push(value or self._rules.null_value)
        self._i = at - 1
        self._ch = self._next_char()
        return True

    def _plain_quoted(self) -> bool:
        """Read a quoted value that has no escapes and is followed by a separator or newline, as univocity does first.

        Return False if the value is not of this form.
        """
        self._normalize = self._rules.newlines_in_quotes
        if self._length() != 0:
            return False
        end = self._plain_quoted_end()
        if end < 0 or -1 < self._rules.max_chars < end - self._i:
            return False
        value = self._text[self._i : end]
        self._push(value or self._rules.empty_value)
        self._i = end + 1
        self._normalize = True
        self._ch = self._next_char()
        if self._ch == self._sep:
            if self._i >= len(self._text) and self._final:
                self._empty_parsed()
                self._ch = self._newline  # the record is over
                return True
            self._ch = self._next_char()
            if self._ch == self._newline:
                self._empty_parsed()
        return True

    def _plain_quoted_end(self) -> int:
        """Return the index of the closing quote of a value without escapes; -1 if there is none."""
        text, at = self._text, self._i
        while (match := self._special.search(text, at)) is not None:
            at = match.start()
            follower = text[at + 1 : at + 2]
            if not follower:
                self._at_end()
            if text[at] == self._quote:
                ends = text[at - 1] != self._escape and follower in self._enders
                return at if ends else -1
            if text[at] == self._escape:
                if follower in (self._quote, self._escape):
                    return -1
            elif self._normalize and text.startswith(self._sep2, at + 1):
                return -1
            at += 1
        self._at_end()
        return -1

    def _quoted(self) -> None:
        self._trim = False
        while not self._quoted_part():
            if self._prev != NUL and self._until_delimiter:
                self._rest_after_stray_quote()
                break
        self._normalize = True
        if not (self._unescaped and self._rules.stray_quotes == "BACK_TO_DELIMITER" and self._length() == 0):
            self._value_parsed()

    def _quoted_part(self) -> bool:
        """Read to the end of the value, or to a quote that belongs to the value; return whether the value has ended."""
        self._ch = self._next_char()
        while not (self._prev == self._quote and (self._ch <= " " or self._ch in self._enders)):
            if self._ch in (self._quote, self._escape):
                if not self._pair_read():
                    self._stray_quote_before_escape()
                self._advance()
                if self._unescaped and self._ch in self._enders:
                    return True
            elif self._prev == self._quote:
                return not self._stray_quote()
            else:
                if self._prev == self._escape and self._escape != NUL:
                    self._append(self._escape)
                self._ch = self._append_until(self._ch, self._quoted_run, self._quoted_stops)
                self._advance()
        if self._ch in self._enders:
            return True
        if self._goes_on_after_blanks():
            return False
        if self._ch not in self._enders:
            raise LimitError("unescapedQuoteHandling", "an unescaped quote")
        return True

    def _rest_after_stray_quote(self) -> None:
        if self._rules.stray_quotes == "SKIP_VALUE":
            self._skip_value()
            return
        self._value.prepend(self._quote)
        self._ch = self._next_char()
        self._trim = self._rules.trim_trailing
        self._append_until_delimiter()

    def _advance(self) -> None:
        self._prev = self._ch
        self._ch = self._next_char()

    def _pair_read(self) -> bool:
        """Handle a quote or escape character by the table of character pairs.

        Return False if the quote before it is stray.
        """
        pair = self._pairs.get(self._prev + self._ch, _NOTHING)
        if pair is None:
            return False
        text, self._ch = pair[0], pair[1] or self._ch
        if text:
            self._append(text)
        return True

    def _goes_on_after_blanks(self) -> bool:
        """Skip white space after a quote inside a quoted value; return whether the value continues after it."""
        start = self._i - 1
        while True:
            self._ch = self._next_char()
            if self._ch == self._newline:
                return False
            if self._ch > " " or self._ch == self._sep:
                break
        if self._ch == self._sep or self._rules.stray_quotes == "RAISE_ERROR":
            return False
        self._append(self._quote + self._text[start : self._i - 1])
        if self._until_delimiter or self._ch not in (self._quote, self._escape):
            self._append(self._ch)
        self._prev = self._ch
        return True

    def _stray_quote(self) -> bool:
        """Handle a stray quote inside a quoted value as `unescapedQuoteHandling` says.

        Return whether the value continues.
        """
        self._unescaped = True
        handling = self._rules.stray_quotes
        if handling == "BACK_TO_DELIMITER":
            for value, delimiter in self._value.divide(self._any_delimiter):
                self._push(value)
                if delimiter == self._newline and (row := self._row_parsed()):
                    self._pending.append(row)
            self._append(self._ch)
            self._prev = NUL
            return True
        if handling in ("STOP_AT_CLOSING_QUOTE", "STOP_AT_DELIMITER"):
            self._append(self._quote + self._ch)
            self._prev = self._ch
            return True
        self._skip_or_raise()
        return False

    def _stray_quote_before_escape(self) -> None:
        """Handle a stray quote that an escape character or quote follows: read on to a separator or line end.

        Univocity recurses here at each further stray quote before an escape character. `calls` is the number of its
        open calls: after an inner call ends at a delimiter, the outer call continues behind it.
        """
        if self._rules.stray_quotes in ("SKIP_VALUE", "RAISE_ERROR"):
            self._skip_or_raise()
            return
        self._append(self._quote)
        self._prev = self._ch
        calls = 1
        while True:
            if self._ch in self._enders:
                calls -= 1
                if not calls:
                    return
            elif self._ch not in (self._quote, self._escape):
                if self._prev == self._quote:
                    self._append(self._quote)
                    self._prev = self._ch
                    continue
                self._append(self._ch)
            elif not self._pair_read():
                self._append(self._quote)
                self._prev = self._ch
                calls += 1
                continue
            self._advance()

    def _skip_or_raise(self) -> None:
        if self._rules.stray_quotes == "RAISE_ERROR":
            raise LimitError("unescapedQuoteHandling", "an unescaped quote")
        self._skip_value()

    def _skip_value(self) -> None:
        self._value.clear()
        self._skipped = True
        ch = self._ch
        while ch not in self._enders:
            ch = self._next_char()
        self._ch = ch


def _run_without(*stops: str) -> re.Pattern[str]:
    return re.compile("[^" + re.escape("".join(stops)) + "]+")
