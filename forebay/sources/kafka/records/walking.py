# SPDX-License-Identifier: Apache-2.0
"""Finds the records of many batches by walking: each record begins with its length, which leads to the next one.

A walk in Python costs much per record. So numpy walks many batches in lockstep, one record of each batch per step:

    batch 0  |r0|-r1-|r2|r3|        step 0: r0 of all batches, step 1: r1 of all batches, …
    batch 1  |-r0-|r1|              A finished batch leaves the lockstep.
    batch 2  |r0|r1|r2|

A few long batches would make many steps of few lanes. They are cut at guessed record starts, and the pieces walk in
lockstep. A guess is right if the piece before it leads exactly to it; wrong guesses are dropped and the walk repeats:

    batch    |r0|r1|r2|…|r32|r33|…|r64|…|
    guesses   ^          ^         ^         each piece must end where the next one begins

The remaining batches are walked alone, record by record; that walk also detects damage.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from forebay.sources.kafka.records.numbers import STEP, Bytes, Ints
from forebay.sources.kafka.records.parsing import LEAST_RECORD, Cursor, MalformedError

_MIN_LANES = 24
"""Minimum number of batches for a lockstep walk. With fewer, walking record by record is faster."""
_PIECE = 32
"""Approximate number of records in a piece of a long batch."""
_LONG = 8 * _PIECE
"""Minimum number of records of a batch that is cut into pieces, and maximum number of steps in a piece."""
_ROUNDS = 3
"""Maximum number of walks with guesses, before a batch is walked alone."""
_CHAIN = 3
"""Number of consecutive plausible records that make a guess."""


def starts(source: Bytes, begins: Ints, ends: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Return the position of each record, after its length field, and the position of its end.

    Each batch has its records between `begins` and `ends`; `counts` are the numbers of records.

    Raises:
        MalformedError: The record lengths do not lead from the batch's begin to its end.
    """
    firsts = np.cumsum(counts) - counts
    total = int(counts.sum())
    at, stops = np.empty(total, np.int64), np.empty(total, np.int64)
    order = np.argsort(-counts, kind="stable")
    lanes, whole = begins[order], np.zeros(len(counts), bool)
    whole[order] = _lockstep(source, lanes, counts[order], firsts[order], at) & (lanes == ends[order])
    body = at.copy()
    # A record ends at the begin of the next; the last one at the end of its batch.
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


def _lockstep(source: Bytes, at: Ints, counts: Ints, firsts: Ints, out: Ints) -> npt.NDArray[np.bool_]:
    """Walk one record of each batch per step; return which batches were walked to their record counts.

    The position of each record is written to `out`; `at` is moved to where each walk stops. The batches are sorted by
    their number of records, largest first.
    """
    # Steps while at least _MIN_LANES batches have records left.
    steps = int(counts[_MIN_LANES - 1]) if len(counts) >= _MIN_LANES else 0
    active, pairs = len(counts), source.u16
    for step in range(steps):
        while counts[active - 1] <= step:
            active -= 1
        here = at[:active]
        out[firsts[:active] + step] = here
        try:
            here += STEP[pairs[here]]
        except IndexError:  # damaged: unfinished batches are walked alone
            break
    whole: npt.NDArray[np.bool_] = counts <= steps
    return whole


def _walk(source: Bytes, begin: int, end: int, body: Ints, stops: Ints) -> None:
    """Walk one batch record by record; write positions and ends of its records to `body` and `stops`."""
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
                raise MalformedError("a record's length is negative")
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
    """Walk long batches in pieces. Yield the index of each completed batch, with the positions of its records."""
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
            else:  # drop each guess that the piece before it does not lead to
                again[one] = guess[np.append(True, right[pieces][:-1])]
        left = again


def _pieces(source: Bytes, at: Ints, limits: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Walk pieces in lockstep. Return the record positions of each piece, padded with -1, and whether it hit its limit.

    The walk of a piece stops at its limit, or before a record whose length field has more than two bytes.
    """
    rows: list[Ints] = []
    live = at < limits
    while live.any() and len(rows) < _LONG:
        rows.append(np.where(live, at, -1))
        at = at + np.where(live, STEP[source.u16[np.where(live, at, 0)]], 0)
        live = at < np.minimum(limits, source.size - 1)
    return np.stack(rows, axis=1), at == limits


def _guesses(source: Bytes, begin: int, end: int, count: int) -> Ints:
    """Return the begin of a batch's first record, and at most one plausible record begin for each of several spans.

    A record begins with its length and the attributes byte 0. A plausible record begins so, and its length leads to
    another begin of this form, and so on for `_CHAIN` records.
    """
    pieces = count // _PIECE
    span = (end - begin) // pieces
    width = min(span, 3 * (end - begin) // count + 8)
    spans = np.lib.stride_tricks.as_strided(source.u8[begin + span :], (pieces - 1, width), (span, 1), writeable=False)
    row, column = np.nonzero(spans == 0)
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
