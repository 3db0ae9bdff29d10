# SPDX-License-Identifier: Apache-2.0
"""Tokenizes CSV one character at a time, with the same result as Spark's own parser.

The rules for stray quotes are those of univocity 2.9.1 with the settings of Spark's CSVOptions; they are documented
nowhere else. Only blocks that Arrow would split differently are tokenized here.
"""

from __future__ import annotations

from forebay.formats.csv.univocity.cursor import WHITESPACE, CsvCursor, End
from forebay.formats.csv.univocity.rules import NUL, CsvRules, TooManyColumns, UnescapedQuote


class CsvTokenizer(CsvCursor):
    """Splits text into records of tokens (texts of values). Reusable for many texts; not thread-safe."""

    def __init__(self, rules: CsvRules) -> None:
        super().__init__(rules)
        quote, escape = rules.quote, rules.escape
        # The state inside quotes is the previous character. Quotes and escape characters are read by this table:
        # previous and present character → text to append, and the new state. A later entry replaces an equal one if
        # the escape character is the quote. A pair that is missing appends nothing.
        self._pairs = {
            quote + escape: None,  # the quote before was a stray one
            quote + quote: (quote, quote),
            escape + escape: (escape, NUL),
            escape + quote: (quote, NUL),
        }

    def line(self, text: str) -> list[str | None] | None:
        """Return the tokens of one line; None if the line has no tokens."""
        self.begin(text, True)
        self._in_plain_line = self._plain_rules and self._newline not in text
        row = self._row(in_stream=False)
        self._in_plain_line = False
        return row

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
        if self._length() == 0:
            if self._in_plain_line:
                self._split_plainly()
                return
            if self._value_before_delimiter():
                return
        self._trim = self._rules.trim_trailing
        self._append_until_delimiter()
        self._value_parsed()

    def _split_plainly(self) -> None:
        """Split the fields before the next quoted field with `str.split`, and add them to the record."""
        start = self._i - 1
        end = self._text.find(self._sep + self._quote, start)
        fields = self._text[start:] if end < 0 else self._text[start:end]
        self._values += [field or self._rules.null_value for field in fields.split(self._sep)]
        if len(self._values) > self._rules.max_columns:
            raise TooManyColumns
        self._i = len(self._text) if end < 0 else end + 1
        self._ch = self._newline if end < 0 else self._sep

    def _value_before_delimiter(self) -> bool:
        """Read an unquoted value up to the next separator or line end; return False if the text ends first."""
        text, at, ch = self._text, self._i, self._ch
        while ch != self._sep:
            if at >= len(text):
                return self._at_end()
            if ch == self._sep1 and text.startswith(self._sep2, at):
                break
            found = self._value_run.match(text, at)
            at = found.end() if found else at + 1
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
        """Read a quoted value that has no escapes and is followed by a separator or newline.

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
        while (found := self._special.search(text, at)) is not None:
            at = found.start()
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
            raise UnescapedQuote
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
        found = self._pairs.get(self._prev + self._ch, _NOTHING)
        if found is None:
            return False
        text, self._ch = found[0], found[1] or self._ch
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
            raise UnescapedQuote
        self._skip_value()

    def _skip_value(self) -> None:
        self._value.clear()
        self._skipped = True
        ch = self._ch
        while ch not in self._enders:
            ch = self._next_char()
        self._ch = ch


_NOTHING = ("", "")
