# SPDX-License-Identifier: Apache-2.0
"""Splits lines that have the form of one into their values, all lines of a block at once.

Without backslashes a double quote begins or ends a string wherever it stands. So where the values are follows from
where the quotes and the ends of lines are, and no other byte has to be looked for. What stands between two values, from
the end of one to the start of the next, is the same text in every line of the form; where it is not, the line is odd.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forebay.formats.csv.columns import token_view
from forebay.formats.json.arrow import Doubt
from forebay.formats.json.template import Template

_QUOTE, _FEED, _RETURN = b'"\n\r'

_Places: TypeAlias = npt.NDArray[np.int64]
_Offsets: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Lines:
    """Where lines begin, and where they end, without what ends them."""

    starts: _Places
    ends: _Places

    def only(self, which: npt.NDArray[np.bool_]) -> Lines:
        """Some of the lines."""
        return Lines(self.starts[which], self.ends[which])


@dataclass(frozen=True, slots=True)
class Values:
    """The values of the lines of a block that have the form: its rows."""

    rows: Lines
    by_piece: dict[int, pa.Array]
    """The texts of each value, by the index of its piece: strings without their quotes, all else as it is written."""
    others: Lines
    """The lines that do not have the form."""
    before_others: _Places
    """How many rows there are before each of them."""


class LineSplitter:
    """Splits blocks of lines of one form. One object per read.

    Args:
        template: The form of the lines.

    Raises:
        Doubt: The form has no values.
    """

    def __init__(self, template: Template) -> None:
        if not template.values:
            raise Doubt(None)
        self._per_line = template.size - 1
        self._pieces = [piece.index for piece in template.values]
        self._to_first_quote = len(template.constants[0].encode()) + 1
        self._gaps = [_Gap(text) for text in template.gaps()]
        # Where values begin and end in turn: after how many quotes of the line, and how far from the next; behind the
        # last quote, how far from the end of the line.
        self._bounds: list[tuple[int, int]] = []
        for piece in template.values:
            self._bounds.append((piece.index - 1, 1 + len(piece.before.encode())))
            self._bounds.append((piece.index, -len(piece.after.encode())))

    def split(self, data: bytes | bytearray) -> Values | None:
        """The values of a block of UTF-8; None if no line has the form, or a carriage return alone ends one."""
        text = np.frombuffer(data, np.uint8)
        quotes = np.flatnonzero(text == _QUOTE)
        lines = _lines_of(text, self._feeds(text, quotes), returns=b"\r" in data)
        if lines is None:
            return None
        fits = np.ones(len(lines.starts), np.bool_)
        if not self._in_each(quotes, lines):
            counts = np.diff(np.searchsorted(quotes, lines.ends), prepend=0)
            fits = counts == self._per_line
            quotes = quotes[np.repeat(fits, counts)]
        while fits.any():  # at most three times: then the rows left are what they should be
            rows = lines.only(fits)
            offsets = self._offsets(quotes, rows)
            good = _ascending(offsets)
            if good.all():
                spans = _spans(offsets, data)
                good = self._alike(spans, len(offsets))
                if good.all():
                    others, before_others = lines.only(~fits), np.cumsum(fits, dtype=np.int64)[~fits]
                    return Values(rows, self._values(spans), others, before_others)
            fits[fits] = good
            quotes = quotes[np.repeat(good, self._per_line)]
        return None

    def _feeds(self, text: npt.NDArray[np.uint8], quotes: _Places) -> _Places:
        """Where the line feeds are. Looking where they should be is much faster than looking everywhere."""
        are_feeds = text == _FEED
        guessed = quotes[self._per_line :: self._per_line] - self._to_first_quote
        if len(text) and text[-1] == _FEED:
            guessed = np.append(guessed, len(text) - 1)
        if len(guessed) == np.count_nonzero(are_feeds) and (guessed >= 0).all() and are_feeds[guessed].all():
            return guessed
        return np.flatnonzero(are_feeds)

    def _in_each(self, quotes: _Places, lines: Lines) -> bool:
        """Whether each line has as many quotes as the form."""
        count = self._per_line
        if len(quotes) != count * len(lines.starts):
            return False
        return bool((quotes[::count] >= lines.starts).all() and (quotes[count - 1 :: count] < lines.ends).all())

    def _offsets(self, quotes: _Places, rows: Lines) -> _Offsets:
        """Where each row begins, where each of its values begins and ends, and where the row ends."""
        offsets = np.empty((len(rows.starts), len(self._bounds) + 2), np.int32)
        offsets[:, 0], offsets[:, -1] = rows.starts, rows.ends
        for place, (quote, shift) in enumerate(self._bounds, 1):
            offsets[:, place] = (rows.ends if quote == self._per_line else quotes[quote :: self._per_line]) + shift
        return offsets

    def _alike(self, spans: pa.Array, rows: int) -> npt.NDArray[np.bool_]:
        """Which rows have what they should before, between and behind their values."""
        alike = np.ones(rows, np.bool_)
        for number, gap in enumerate(self._gaps):
            texts = self._every(2 * number, spans)
            if not gap.is_all_of(texts):
                alike &= pc.equal(texts, gap.text).to_numpy(zero_copy_only=False)
        return alike

    def _values(self, spans: pa.Array) -> dict[int, pa.Array]:
        """The texts of each value: gaps and values take turns."""
        return {piece: self._every(2 * number + 1, spans) for number, piece in enumerate(self._pieces)}

    def _every(self, place: int, spans: pa.Array) -> pa.Array:
        """One span of each row; the last span of all is what stands between it and the next row."""
        return spans.take(pa.array(np.arange(place, len(spans), len(self._bounds) + 2, dtype=np.int32)))


def _ascending(offsets: _Offsets) -> npt.NDArray[np.bool_]:
    """Which rows have their offsets in order: not if what should be around a value is longer than its piece.

    From one row to the next they always are, because a row begins and ends with its line.
    """
    flat = offsets.reshape(-1)
    if (flat[1:] >= flat[:-1]).all():
        return np.ones(len(offsets), np.bool_)
    return np.asarray((offsets[:, 1:] >= offsets[:, :-1]).all(axis=1))


def _spans(offsets: _Offsets, data: bytes | bytearray) -> pa.Array:
    """The text from each offset to the next. They must ascend."""
    buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), offsets.size - 1, buffers)


class _Gap:
    """What should stand between two values in all lines.

    Args:
        text: What it should be.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._size = len(text.encode())
        self._copies: pa.Array = pa.nulls(0, pa.string())

    def is_all_of(self, texts: pa.Array) -> bool:
        """Whether all texts of an array are this one: faster than finding those that are not."""
        rows = len(texts)
        if token_view(texts).nbytes != rows * self._size:
            return False  # nor would as many copies of a long text be bounded by the block
        if rows > len(self._copies):
            self._copies = pa.repeat(self.text, rows + rows // 4)  # the next blocks may have some lines more
        return texts.equals(self._copies.slice(0, rows))


def _lines_of(text: npt.NDArray[np.uint8], feeds: _Places, *, returns: bool) -> Lines | None:
    """The lines that are not empty; None if a carriage return alone ends one."""
    starts, ends = np.append(0, feeds + 1), np.append(feeds, len(text))
    if returns:
        ended = text[np.maximum(feeds - 1, 0)] == _RETURN
        if np.count_nonzero(ended) != np.count_nonzero(text == _RETURN):
            return None
        ends[: len(feeds)] -= ended
    return Lines(starts, ends).only(ends > starts)
