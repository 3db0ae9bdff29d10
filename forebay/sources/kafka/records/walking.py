# SPDX-License-Identifier: Apache-2.0
"""Where the records of many batches begin: each begins with its length, so they are walked from the first one on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from forebay.sources.kafka.records.numbers import STEP, Bytes, Ints
from forebay.sources.kafka.records.parsing import LEAST_RECORD, Cursor, MalformedError

_LEAST_LANES = 24
"""With fewer batches side by side, one record after the other is quicker."""
_PIECE = 32
"""Records of a piece of a long batch."""
_LONG = 8 * _PIECE
_ROUNDS = 3
"""How often wrong guesses are taken back before a batch is walked record by record."""
_CHAIN = 3
"""So many records must follow one another where a piece is guessed to begin."""


def starts(source: Bytes, begins: Ints, ends: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Find the records of many batches; return where each begins, after its length, and where it ends.

    The batches are walked side by side, a record of each in one step. Where there are few, long ones are cut into
    pieces at what looks like the beginning of a record, and the pieces are walked side by side; each must lead exactly
    to the next one, or else the guess was wrong. What is left is walked one record after the other.

    Args:
        source: The bytes.
        begins: Where the records of each batch begin.
        ends: Where they end.
        counts: How many there are.

    Raises:
        MalformedError: The lengths do not lead from begin to end.
    """
    firsts = np.cumsum(counts) - counts
    total = int(counts.sum())
    at, stops = np.empty(total, np.int64), np.empty(total, np.int64)
    order = np.argsort(-counts, kind="stable")
    lanes = _LanesWalk(source, begins[order], counts[order], firsts[order])
    lanes.walk(at)
    body = at.copy()
    whole = np.zeros(len(counts), bool)
    whole[order] = lanes.reached(ends[order])
    # A record ends where the next one begins; the last one of a batch with the batch.
    stops[:-1] = at[1:]
    stops[firsts + counts - 1] = ends
    for batch, found in _long_ones(source, begins, ends, np.where(whole, 0, counts)):
        first, whole[batch] = int(firsts[batch]), True
        body[first : first + len(found)] = found
        stops[first : first + len(found) - 1] = found[1:]
    good = np.repeat(whole, counts)
    body[good] += 1 + (source.u8[body[good]] >= 0x80)
    for batch in np.flatnonzero(~whole).tolist():
        first, count = int(firsts[batch]), int(counts[batch])
        _walk(source, int(begins[batch]), int(ends[batch]), body[first : first + count], stops[first : first + count])
    return body, stops


class _LanesWalk:
    """One record of each batch in one step; batches with the most records come first."""

    def __init__(self, source: Bytes, begins: Ints, counts: Ints, firsts: Ints) -> None:
        self._source = source
        self._at = begins.copy()
        self._counts = counts
        self._firsts = firsts
        # How many batches have more than n records, for each n: the lanes of step n.
        self._steps = int(counts[_LEAST_LANES - 1]) if len(counts) >= _LEAST_LANES else 0

    def walk(self, out: Ints) -> None:
        """Write where the lengths of records stand; batches that are longer than the steps are left unfinished."""
        counts, pairs = self._counts, self._source.u16
        active = len(counts)
        for step in range(self._steps):
            while counts[active - 1] <= step:
                active -= 1
            at = self._at[:active]
            out[self._firsts[:active] + step] = at
            try:
                at += STEP[pairs[at]]
            except IndexError:  # damaged: whoever is not at the end is walked alone
                return

    def reached(self, ends: Ints) -> npt.NDArray[np.bool_]:
        """Say which batches were walked exactly to their ends."""
        whole: npt.NDArray[np.bool_] = (self._at == ends) & (self._counts <= self._steps)
        return whole


def _walk(source: Bytes, begin: int, end: int, body: Ints, stops: Ints) -> None:
    """Walk one batch alone."""
    data, at = source.data, begin
    begun, ended = [], []
    try:
        for _ in range(len(body)):
            first, second = data[at], data[at + 1]
            if first < 0x80:
                length, at = first, at + 1
            elif second < 0x80:
                length, at = (first & 0x7F) | (second << 7), at + 2
            else:
                cursor = Cursor(data, at, end)
                length = cursor.varint() * 2
                at = cursor.at
            if length & 1 or length < 0:
                raise MalformedError("a negative length")
            begun.append(at)
            at += length >> 1
            ended.append(at)
            if at > end:
                raise MalformedError("a record reaches beyond its batch")
    except IndexError as error:
        raise MalformedError("a record reaches beyond its batch") from error
    if at != end:
        raise MalformedError("bytes are left after the records of a batch")
    body[:], stops[:] = begun, ended


def _long_ones(source: Bytes, begins: Ints, ends: Ints, counts: Ints) -> Iterator[tuple[int, Ints]]:
    """Walk long batches in pieces; yield the number of each batch where that worked, and where its records begin."""
    left = {
        one: _guesses(source, int(begins[one]), int(ends[one]), int(counts[one]))
        for one in np.flatnonzero(counts >= _LONG).tolist()
    }
    for _ in range(_ROUNDS):
        if not left:
            return
        limits = [np.append(guess[1:], ends[one]) for one, guess in left.items()]
        walked, right = _pieces(source, np.concatenate([*left.values()]), np.concatenate(limits))
        first, again = 0, {}
        for one, guess in left.items():
            pieces = slice(first, first + len(guess))
            first += len(guess)
            found = walked[pieces]
            found = found[found >= 0]
            if right[pieces].all() and len(found) == counts[one]:
                yield one, found
            else:  # a piece that the one before did not lead to was guessed wrongly
                again[one] = guess[np.append(True, right[pieces][:-1])]
        left = again


def _pieces(source: Bytes, at: Ints, limits: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Walk pieces side by side; return their records, a row for each with -1 to fill it, and which led to their limits.

    A piece at its limit waits for the others. A length of more than two bytes lets it wait for ever, and fail.
    """
    rows: list[Ints] = []
    live = at < limits
    while live.any() and len(rows) < _LONG:
        rows.append(np.where(live, at, -1))
        at = at + np.where(live, STEP[source.u16[np.where(live, at, 0)]], 0)
        live = at < np.minimum(limits, source.size - 1)
    return np.stack(rows, axis=1), at == limits


def _guesses(source: Bytes, begin: int, end: int, count: int) -> Ints:
    """Return the first record of a batch, and every so often another place where records seem to begin.

    The byte after a record's length is 0, and so it is at the next ones. In places at equal distances, zeros are looked
    for whose neighbours lead from one to the next.
    """
    pieces = count // _PIECE
    span = (end - begin) // pieces
    width = min(span, 3 * (end - begin) // count + 8)
    windows = np.lib.stride_tricks.as_strided(
        source.u8[begin + span :], (pieces - 1, width), (span, 1), writeable=False
    )
    row, column = np.nonzero(windows == 0)
    zero = begin + span * (row + 1) + column
    position = zero - 1 - (source.u8[zero - 2] >= 0x80)
    likely = source.u8[zero - 1] < 0x80
    at = position
    for _ in range(_CHAIN):
        step = STEP[source.u16[at]]
        at = np.minimum(at + step, end - LEAST_RECORD)
        after = source.u8[at + 1 + (source.u8[at] >= 0x80)]
        likely &= (step >= LEAST_RECORD) & (after == 0)
    row, position = row[likely], position[likely]
    _, firsts = np.unique(row, return_index=True)
    found = np.concatenate([np.array([begin], np.int64), position[firsts]])
    ascending: Ints = found[np.append(True, found[1:] > np.maximum.accumulate(found)[:-1])]
    return ascending
