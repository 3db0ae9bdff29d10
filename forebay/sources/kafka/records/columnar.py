# SPDX-License-Identifier: Apache-2.0
"""The fast decoder: decodes records column by column, without a Python object for each record.

It accepts a group of batches only if every byte belongs to a valid record. The plain decoder reads all other groups,
or names the damaged record. So both decoders give the same result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.sources.kafka.records import arrays
from forebay.sources.kafka.records.decoding import COLUMNS, GROUP_BYTES, MAX_BATCH_BYTES, Body, Decoded, RawFetch
from forebay.sources.kafka.records.numbers import STEP, Bytes, Ints, numbers
from forebay.sources.kafka.records.parsing import LEAST_RECORD, Cursor, MalformedError
from forebay.sources.kafka.records.plain import PlainDecoder
from forebay.sources.kafka.records.selecting import FetchDecoder

_MAX_MILLIS = (1 << 63) // 1000 - 1
"""Maximum timestamp in ms whose microseconds fit into 64 bits."""
_MAX_HEADERS = 1000
"""Maximum number of headers of a record. The plain decoder reads groups in which a record has more."""
_MAX_BYTES = (1 << 31) - 64
"""Maximum bytes of a group of batches, because Arrow's offsets have 32 bits."""
_MIN_BYTES = 16
"""Minimum size of a buffer in bytes, so that views of 8 bytes exist."""


class ColumnarDecoder(FetchDecoder):
    """Decodes groups of record batches column by column."""

    def __init__(
        self,
        schema: pa.Schema,
        *,
        check_crcs: bool = True,
        group_bytes: int = GROUP_BYTES,
        limit: int = MAX_BATCH_BYTES,
    ) -> None:
        super().__init__(schema, check_crcs=check_crcs, group_bytes=group_bytes, limit=limit)
        self._wanted = frozenset(schema.names)
        self._plain = PlainDecoder(schema, check_crcs=check_crcs, limit=limit)
        self._constants = arrays.Constants()

    def group(self, bodies: Sequence[Body], after: int, fetch: RawFetch) -> Iterator[Decoded]:
        """Decode a group of batches. If any byte belongs to no valid record, the plain decoder decodes the group.

        Args:
            bodies: The batches.
            after: The next offset after the group.
            fetch: The fetch that contains the batches.
        """
        try:
            batch = self._columns(bodies, fetch) if bodies else None
        except (MalformedError, IndexError, pa.ArrowInvalid):
            yield from self._plain.group(bodies, after, fetch)
        else:
            yield Decoded(batch, after)

    def _columns(self, group: Sequence[Body], fetch: RawFetch) -> pa.RecordBatch | None:
        source, begins = _joined(group)
        headers = [body.header for body in group]
        counts = np.array([header.records for header in headers], np.int64)
        ends = begins + np.array([body.end - body.begin for body in group], np.int64)
        if (counts * LEAST_RECORD > ends - begins).any() or any(header.magic != 2 for header in headers):
            raise MalformedError("a record batch is not of format 2, or is too small for its records")
        at, stops = starts(source, begins, ends, counts)
        stamps, at = numbers(source, at + 1, 10)  # skip the attributes, which are unused
        offsets, at = numbers(source, at)
        spans = np.array([header.last - header.base for header in headers], np.int64)
        if (offsets < 0).any() or (offsets > np.repeat(spans, counts)).any():
            raise MalformedError("a record has an offset outside its batch")
        offsets += np.repeat(np.array([header.base for header in headers], np.int64), counts)
        of = np.repeat(np.arange(len(group)), counts)
        taken = _Records(source, at, stops, offsets, stamps, of)
        # Decode all records, then slice, so that damage outside of the range is reported, too.
        columns = self._fields(taken) | self._metadata(taken, group, fetch)
        batch = pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)
        batch = _in_range(batch, offsets, fetch)
        return batch if batch.num_rows else None

    def _fields(self, taken: _Records) -> dict[str, pa.Array]:
        """Return the columns of the schema that come from the bytes of the records: key, value and headers."""
        found: dict[str, pa.Array] = {}
        source, at = taken.source, taken.at
        if not self._wanted & {"key", "value", "headers"}:
            return found
        for name in ("key", "value"):
            lengths, nulls, at = _lengths(source, at, taken.stops)
            if name in self._wanted:
                found[name] = arrays.binary(source, at, lengths, nulls)
            at += lengths
        if (at >= taken.stops).any():
            raise MalformedError("a record has no header count")
        counts = source.u8[at]
        plain = counts == 0
        if not (at[plain] + 1 == taken.stops[plain]).all():
            raise MalformedError("bytes are left after a record's headers")
        if "headers" in self._wanted:
            found["headers"] = _headers_column(source, at, taken.stops, plain)
        elif not plain.all():
            _header_counts(source, at[~plain], taken.stops[~plain])
        return found

    def _metadata(self, taken: _Records, group: Sequence[Body], fetch: RawFetch) -> dict[str, pa.Array]:
        """Return the columns of the schema that come from metadata: offset, timestamp, topic and partition."""
        rows = len(taken.offsets)
        found: dict[str, pa.Array] = {}
        if "offset" in self._wanted:
            found["offset"] = arrays.column(taken.offsets, pa.int64())
        if "timestamp" in self._wanted:
            found["timestamp"] = arrays.column(_times(taken, group), COLUMNS["timestamp"])
        if "timestampType" in self._wanted:
            kinds = np.array([body.header.timestamp_type for body in group], np.int32)
            mixed = kinds.any() and not kinds.all()
            found["timestampType"] = (
                arrays.column(kinds[taken.of], pa.int32()) if mixed else self._constants.column(int(kinds[0]), rows)
            )
        if "topic" in self._wanted:
            found["topic"] = self._constants.column(fetch.topic, rows)
        if "partition" in self._wanted:
            found["partition"] = self._constants.column(fetch.partition, rows)
        return found


class _Records(NamedTuple):
    """The records of a group, as parallel arrays.

    Args:
        source: The bytes of the records of all batches.
        at: The position of each record's key in `source`.
        stops: The position of each record's end in `source`.
        offsets: The offset of each record.
        stamps: The timestamp of each record, relative to the first timestamp of its batch.
        of: The index of each record's batch in the group.
    """

    source: Bytes
    at: Ints
    stops: Ints
    offsets: Ints
    stamps: Ints
    of: Ints


def _joined(group: Sequence[Body]) -> tuple[Bytes, Ints]:
    """Return one buffer with the records of a group, copied if necessary, and the position of each batch in it."""
    first = group[0].data
    if all(body.data is first for body in group) and len(first) >= _MIN_BYTES:
        data, begins = first, np.array([body.begin for body in group], np.int64)
    else:
        pieces = [body.data[body.begin : body.end] for body in group]
        data = memoryview(b"".join([*pieces, bytes(_MIN_BYTES)]))
        sizes = np.array([len(piece) for piece in pieces], np.int64)
        begins = np.cumsum(sizes) - sizes
    if len(data) > _MAX_BYTES:
        raise MalformedError("the records of one Arrow column exceed 2 GB")
    return Bytes(data), begins


def _in_range(batch: pa.RecordBatch, offsets: Ints, fetch: RawFetch) -> pa.RecordBatch:
    """Return the rows whose offsets are in the range of the fetch. If offsets ascend, as usual, this is a slice."""
    if (offsets[1:] > offsets[:-1]).all():
        low = int(np.searchsorted(offsets, fetch.start))
        high = len(offsets) if fetch.end is None else int(np.searchsorted(offsets, fetch.end))
        return batch.slice(low, max(0, high - low))
    wanted = offsets >= fetch.start
    if fetch.end is not None:
        wanted &= offsets < fetch.end
    return batch.filter(pa.array(wanted.tolist(), pa.bool_()))


def _times(taken: _Records, group: Sequence[Body]) -> Ints:
    """Return the timestamps of the records in µs since 1970."""
    headers = [body.header for body in group]
    firsts = np.array([header.first_timestamp for header in headers], np.int64)
    appended = np.array([header.timestamp_type == 1 for header in headers], np.bool_)
    if _too_far(firsts) or _too_far(taken.stamps):
        raise MalformedError("the timestamp of a record may exceed 64 bits")
    millis = taken.stamps + firsts[taken.of]
    if appended.any():
        latest = np.array([header.max_timestamp for header in headers], np.int64)
        millis = np.where(appended[taken.of], latest[taken.of], millis)
    if _too_far(millis):
        raise MalformedError("the timestamp of a record does not fit into 64 bits")
    return millis * 1000


def _too_far(millis: Ints) -> bool:
    # Not by `abs`, which overflows for the smallest 64-bit number.
    return bool(((millis > _MAX_MILLIS) | (millis < -_MAX_MILLIS)).any())


def _lengths(source: Bytes, at: Ints, stops: Ints) -> tuple[Ints, npt.NDArray[np.bool_], Ints]:
    """Read the length of a field of each record.

    Return the lengths (0 for null), the nulls, and the positions of the fields.
    """
    lengths, at = numbers(source, at)
    nulls = lengths < 0
    if nulls.any():
        if (lengths < -1).any():
            raise MalformedError("the length of a field is negative")
        lengths[nulls] = 0
    if (lengths > stops - at).any():
        raise MalformedError("a field reaches beyond its record")
    return lengths, nulls, at


def _headers_column(source: Bytes, at: Ints, stops: Ints, without: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the column of headers; null for records `without` headers. `at` are the positions of the header counts.

    Raises:
        MalformedError: Headers are damaged, or a record has more than `_MAX_HEADERS`.
    """
    rows = len(at)
    having = np.flatnonzero(~without)
    counts = np.zeros(rows, np.int64)
    stops = stops[having]
    counts[having], positions = _header_counts(source, at[having], stops)
    if counts.max(initial=0) > _MAX_HEADERS:
        raise MalformedError("a record has too many headers")
    lists = np.zeros(rows + 1, np.int32)
    np.cumsum(counts, out=lists[1:])
    parts = _walk_headers(source, positions, stops, counts[having], lists[:-1][having].astype(np.int64))
    values = _pairs(source, parts)
    validity = arrays.bitmap(counts > 0)
    return pa.Array.from_buffers(COLUMNS["headers"], rows, [validity, pa.py_buffer(lists.data)], children=[values])


def _header_counts(source: Bytes, at: Ints, stops: Ints) -> tuple[Ints, Ints]:
    """Read the header counts of records; return them, and the positions after them."""
    counts, after = numbers(source, at)
    if (counts < 0).any() or (counts > stops - after).any():
        raise MalformedError("the header count of a record is invalid")
    return counts, after


def _walk_headers(source: Bytes, at: Ints, stops: Ints, counts: Ints, first: Ints) -> Ints:
    """Read the headers, one of each record per step; return the positions and lengths of their keys and values."""
    parts = np.zeros((4, int(counts.sum())), np.int64)
    left = np.arange(len(at))
    for step in range(int(counts.max(initial=0))):
        left = left[counts[left] > step]
        where, limit = first[left] + step, stops[left]
        length, here = numbers(source, at[left])
        _check_length(length, here, limit, 0)
        parts[0, where], parts[1, where] = here, length
        length, here = numbers(source, here + length)
        _check_length(length, here, limit, -1)
        parts[2, where], parts[3, where] = here, length
        at[left] = here + np.maximum(length, 0)
    if (at != stops).any():
        raise MalformedError("bytes are left after a record's headers")
    return parts


def _check_length(length: Ints, here: Ints, limit: Ints, least: int) -> None:
    if (length < least).any() or (length > limit - here).any():
        raise MalformedError("a header reaches beyond its record")


def _pairs(source: Bytes, parts: Ints) -> pa.Array:
    none = np.zeros(parts.shape[1], np.bool_)
    keys = arrays.binary(source, parts[0], parts[1], none)
    try:
        names = keys.cast(pa.string())
    except pa.ArrowInvalid:  # U+FFFD for invalid UTF-8, as in Java
        names = pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
    nulls = parts[3] < 0
    values = arrays.binary(source, parts[2], np.where(nulls, 0, parts[3]), nulls)
    return pa.StructArray.from_arrays([names, values], names=["key", "value"])


# -- Finds the records of many batches by walking: each record begins with its length, which leads to the next one.
#
# A walk in Python costs much per record. So numpy walks many batches in lockstep, one record of each batch per step:
#
#     batch 0  |r0|-r1-|r2|r3|        step 0: r0 of all batches, step 1: r1 of all batches, …
#     batch 1  |-r0-|r1|              A finished batch leaves the lockstep.
#     batch 2  |r0|r1|r2|
#
# A few long batches would make many steps of few lanes. They are cut at guessed record starts, and the pieces walk in
# lockstep. A guess is right if the piece before it leads exactly to it; wrong guesses are dropped and the walk repeats:
#
#     batch    |r0|r1|r2|…|r32|r33|…|r64|…|
#     guesses   ^          ^         ^         each piece must end where the next one begins
#
# The remaining batches are walked alone, record by record; that walk also detects damage.


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
