# SPDX-License-Identifier: Apache-2.0
"""The fast decoder: decodes records column by column, without a Python object for each record.

It accepts a batch only if every byte belongs to a valid record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.errors import DataError
from forebay.sources.kafka.records.batches import (
    COLUMNS,
    GROUP_BYTES,
    MAX_BATCH_BYTES,
    MAX_MILLIS,
    Body,
    Decoded,
    RawFetch,
    Record,
    corrupt_batch,
    record_table,
)
from forebay.sources.kafka.records.selecting import Cursor, MalformedError, Selection, old_records

# -- Decodes many zigzag varints at once.
#
# A table of all 65,536 byte pairs gives value and size of a varint of one or two bytes. Longer varints are rare and
# decoded byte by byte.


Ints = npt.NDArray[np.int64]


def _tables() -> tuple[Ints, npt.NDArray[np.int32]]:
    pairs = np.arange(1 << 16, dtype=np.int64)
    low, high = pairs & 0xFF, pairs >> 8
    size = np.where(low < 0x80, 1, np.where(high < 0x80, 2, 0))
    raw = np.where(low < 0x80, low, (low & 0x7F) | (high << 7))
    value = (raw >> 1) ^ -(raw & 1)
    step = np.where((size > 0) & (value >= 0), size + value, 0)
    return step, np.where(size > 0, value * 4 + size, 0).astype(np.int32)


# STEP: bytes from the length of a record to the next record; 0 = the length has more than two bytes, or is negative.
# _NUMBER: four times the number, plus its size in bytes; 0 = more than two bytes.
STEP, _NUMBER = _tables()


class Bytes:
    """A buffer of at least 8 bytes, with unaligned views of 1, 2, 4 and 8 bytes at each position."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.size = len(data)
        self.u8 = np.frombuffer(data, np.uint8)
        self.u16 = self._view("<u2", 2)
        self.u32 = self._view("<u4", 4)
        self.u64 = self._view("<u8", 8)

    def _view(self, kind: str, width: int) -> npt.NDArray[np.unsignedinteger]:
        return np.ndarray(shape=(max(0, self.size - width + 1),), dtype=kind, buffer=self.data, strides=(1,))

    def pairs_up_to_the_end(self, at: Ints) -> Ints:
        """Return the byte pairs that begin at the given positions.

        The positions may include the last byte, which is paired with a continuation byte.
        """
        alone = at == self.size - 1
        pairs = np.where(alone, 0x8000, self.u16[np.where(alone, 0, at)].astype(np.int64))
        pairs[alone] |= self.u8[-1]
        return pairs


def numbers(source: Bytes, at: Ints, most: int = 5) -> tuple[Ints, Ints]:
    """Read a varint of at most `most` bytes (5 for 32 bits, 10 for 64) at each position.

    Returns:
        The numbers, and the positions after them.

    Raises:
        MalformedError: A varint is longer than `most` bytes.
        IndexError: A varint reaches beyond the bytes.
    """
    try:
        packed = _NUMBER[source.u16[at]]
    except IndexError:
        packed = _NUMBER[source.pairs_up_to_the_end(at)]
    value, after = (packed >> 2).astype(np.int64), at + (packed & 3)
    long = np.flatnonzero(packed == 0)
    if long.size:
        value[long], after[long] = _long(source, at[long], most)
    return value, after


def _long(source: Bytes, at: Ints, most: int) -> tuple[Ints, Ints]:
    value, after = np.zeros(len(at), np.uint64), at.copy()
    left = np.arange(len(at))
    for number in range(most):
        byte = source.u8[after[left]]
        # The last byte of a 64-bit varint has one bit, that of a 32-bit varint four.
        if number == most - 1 and (byte >> (1 if most == 10 else 4)).any():
            break
        value[left] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * number)
        after[left] += 1
        left = left[byte >= 0x80]
        if not left.size:
            return (value >> np.uint64(1)).astype(np.int64) ^ -(value & np.uint64(1)).astype(np.int64), after
    raise MalformedError(f"a varint has more than {most} bytes")


# -- Builds Arrow columns from the positions of values in a buffer.


_INLINE = 12
"""Maximum bytes that an Arrow view stores inline. For longer values, a view stores a pointer."""


def binary(source: Bytes, at: Ints, lengths: Ints, nulls: npt.NDArray[np.bool_]) -> pa.Array:
    """Return a binary column whose values are slices of `source` with the begins `at` and `lengths` (0 for nulls).

    It creates a column of views, and Arrow copies the bytes once into a plain column. Arrow raises an error for columns
    of more than 2 GiB.
    """
    rows = len(at)
    views = np.zeros((rows, 4), np.int32)
    views[:, 0] = lengths
    views[:, 3] = at
    short = np.flatnonzero((lengths <= _INLINE) & (lengths > 0))
    if short.size == rows:
        views[:, 1:] = _inline(source, at, lengths)
    elif short.size:
        views[short, 1:] = _inline(source, at[short], lengths[short])
    validity = bitmap(~nulls) if nulls.any() else None
    buffers = [validity, _buffer(views), pa.py_buffer(source.data)]
    return pa.Array.from_buffers(pa.binary_view(), rows, buffers).cast(pa.binary())


def _inline(source: Bytes, at: Ints, lengths: Ints) -> npt.NDArray[np.int32]:
    """Return for each short slice the twelve bytes that its Arrow view stores inline.

    Arrow ignores the bytes beyond the length of the slice.
    """
    inside = np.minimum(at, source.size - _INLINE)
    held = np.empty((len(at), 3), np.int32)
    held[:, :2] = source.u64[inside].view(np.int32).reshape(-1, 2)
    held[:, 2] = source.u32[inside + 8].view(np.int32)
    for row in np.flatnonzero(inside != at).tolist():  # fewer than twelve bytes of the buffer are left
        begin = int(at[row])
        piece = bytes(source.data[begin : begin + int(lengths[row])]).ljust(_INLINE, b"\0")
        held[row] = np.frombuffer(piece, np.int32)
    return held


def bitmap(present: npt.NDArray[np.bool_]) -> pa.Buffer:
    """Return Arrow's validity bitmap for a mask of the values that are not null."""
    return _buffer(np.packbits(present, bitorder="little"))


def _buffer(values: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(np.ascontiguousarray(values).data)


def column(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return a column of fixed-width values without copying them."""
    return pa.Array.from_buffers(kind, len(values), [None, _buffer(values)])


class Constants:
    """Caches columns of one repeated value, and returns slices of them."""

    def __init__(self) -> None:
        self._cached: dict[int | str, pa.Array] = {}

    def column(self, value: int | str, rows: int) -> pa.Array:
        """Return a column of `rows` equal values: a string or a 32-bit number."""
        cached = self._cached.get(value)
        if cached is None or len(cached) < rows:
            cached = self._cached[value] = _repeated(value, rows)
        return cached.slice(0, rows)


def _repeated(value: int | str, rows: int) -> pa.Array:
    if isinstance(value, int):
        return column(np.full(rows, value, np.int32), pa.int32())
    data = value.encode()
    positions = np.arange(rows + 1, dtype=np.int32) * len(data)
    return pa.Array.from_buffers(pa.string(), rows, [None, _buffer(positions), pa.py_buffer(data * rows)])


LEAST_RECORD = 7
"""Bytes of the smallest record: length, attributes, timestamp, offset, two null lengths, a header count of 0."""
_LEAST_HEADER = 2
_MAX_BYTES = (1 << 31) - 64
"""Maximum bytes of a group of batches, because Arrow's offsets have 32 bits."""
_MIN_BYTES = 16
"""Minimum size of a buffer in bytes, so that views of 8 bytes exist."""


_UNREADABLE = (MalformedError, IndexError, pa.ArrowInvalid)


class ColumnarDecoder:
    """Decodes fetched bytes into Arrow record batches. Called on one thread; stateless between fetches.

    Args:
        schema: The wanted columns, from `record_schema`; others are neither decoded nor checked.
        check_crcs: Whether to verify the checksums of Kafka's record batches.
        group_bytes: Decompressed bytes after which an Arrow record batch is complete.
        limit: The most bytes of a record batch of Kafka, decompressed.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        check_crcs: bool = True,
        group_bytes: int = GROUP_BYTES,
        limit: int = MAX_BATCH_BYTES,
    ) -> None:
        self._limit = limit
        self._schema = schema
        self._check = check_crcs
        self._least = group_bytes
        self._names = frozenset(schema.names)
        self._constants = Constants()

    def decode(self, fetch: RawFetch) -> Iterator[Decoded]:
        """Decode a fetch, part by part.

        The last part's `next_offset` is the start of the next fetch. This offset comes from the header of the last
        whole batch, so it lies after compacted offsets and control records.

        Raises:
            DataError: Bytes are damaged. The batches before them are yielded first. The text names topic, partition and
                offset.
        """
        reported = fetch.start
        for bodies, after in Selection(fetch, check_crcs=self._check, limit=self._limit).groups(self._least):
            for part in self._group(bodies, after, fetch):
                if part.batch is not None or part.next_offset != reported:
                    reported = part.next_offset
                    yield part

    def _group(self, bodies: Sequence[Body], after: int, fetch: RawFetch) -> Iterator[Decoded]:
        """Decode a group of batches of a fetch; `after` is the next offset after them."""
        try:
            batch = self._columns(bodies, fetch) if bodies else None
        except _UNREADABLE:
            yield from self._one_by_one(bodies, after, fetch)
        else:
            yield Decoded(batch, after)

    def _one_by_one(self, bodies: Sequence[Body], after: int, fetch: RawFetch) -> Iterator[Decoded]:
        """Decode a group with messages of old formats, or with damage, which is named after the batches before it."""
        reached = fetch.start
        for old, run in groupby(bodies, lambda body: body.header.magic < 2):
            rows: list[Record] = []
            for body in run:
                batch = None
                try:
                    if old:
                        rows += self._old_rows(body, fetch)
                    else:
                        batch = self._alone(body, fetch)
                except DataError:
                    if rows:
                        yield Decoded(record_table(self._schema, rows, fetch), reached)
                    raise
                reached = max(reached, min(body.header.last + 1, after))
                if batch is not None:
                    yield Decoded(batch, reached)
            if rows:
                yield Decoded(record_table(self._schema, rows, fetch), reached)
        yield Decoded(None, after)

    def _alone(self, body: Body, fetch: RawFetch) -> pa.RecordBatch | None:
        try:
            return self._columns([body], fetch)
        except _UNREADABLE as error:
            reason = "a record reaches beyond its batch" if isinstance(error, IndexError) else error
            text = f"the records of the batch from this offset on are damaged: {reason}"
            raise corrupt_batch(fetch.topic_partition, text, body.header.base) from error

    def _old_rows(self, body: Body, fetch: RawFetch) -> list[Record]:
        rows = old_records(body, fetch.topic_partition, self._limit, check_crcs=self._check)
        return [row for row in rows if row.offset >= fetch.start and (fetch.end is None or row.offset < fetch.end)]

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
        fields: dict[str, pa.Array] = {}
        source, at = taken.source, taken.at
        if not self._names & {"key", "value", "headers"}:
            return fields
        for name in ("key", "value"):
            lengths, nulls, at = _lengths(source, at, taken.stops)
            if name in self._names:
                fields[name] = binary(source, at, lengths, nulls)
            at += lengths
        if (at >= taken.stops).any():
            raise MalformedError("a record has no header count")
        counts = source.u8[at]
        plain = counts == 0
        if not (at[plain] + 1 == taken.stops[plain]).all():
            raise MalformedError("bytes are left after a record's headers")
        if "headers" in self._names:
            fields["headers"] = _headers_column(source, at, taken.stops, plain)
        elif not plain.all():
            _header_counts(source, at[~plain], taken.stops[~plain])
        return fields

    def _metadata(self, taken: _Records, group: Sequence[Body], fetch: RawFetch) -> dict[str, pa.Array]:
        """Return the columns of the schema that come from metadata: offset, timestamp, topic and partition."""
        rows = len(taken.offsets)
        columns: dict[str, pa.Array] = {}
        if "offset" in self._names:
            columns["offset"] = column(taken.offsets, pa.int64())
        if "timestamp" in self._names:
            columns["timestamp"] = column(_times(taken, group), COLUMNS["timestamp"])
        if "timestampType" in self._names:
            kinds = np.array([body.header.timestamp_type for body in group], np.int32)
            mixed = kinds.any() and not kinds.all()
            columns["timestampType"] = (
                column(kinds[taken.of], pa.int32()) if mixed else self._constants.column(int(kinds[0]), rows)
            )
        if "topic" in self._names:
            columns["topic"] = self._constants.column(fetch.topic, rows)
        if "partition" in self._names:
            columns["partition"] = self._constants.column(fetch.partition, rows)
        return columns


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
    in_range = offsets >= fetch.start
    if fetch.end is not None:
        in_range &= offsets < fetch.end
    return batch.filter(pa.array(in_range.tolist(), pa.bool_()))


def _times(taken: _Records, group: Sequence[Body]) -> Ints:
    """Return the timestamps of the records in µs since 1970."""
    headers = [body.header for body in group]
    firsts = np.array([header.first_timestamp for header in headers], np.int64)
    appended = np.array([header.timestamp_type == 1 for header in headers], np.bool_)
    millis = taken.stamps + firsts[taken.of]
    if _too_far(firsts) or _too_far(taken.stamps):  # the sum may have gone round
        around = ((taken.stamps ^ millis) & (firsts[taken.of] ^ millis)) < 0
        millis = np.where(around, np.iinfo(np.int64).max, millis)
    if appended.any():
        latest = np.array([header.max_timestamp for header in headers], np.int64)
        millis = np.where(appended[taken.of], latest[taken.of], millis)
    if _too_far(millis):
        raise MalformedError("the timestamp of a record is out of range")
    return millis * 1000


def _too_far(millis: Ints) -> bool:
    # Not by `abs`, which overflows for the smallest 64-bit number.
    return bool(((millis > MAX_MILLIS) | (millis < -MAX_MILLIS)).any())


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
        MalformedError: Headers are damaged.
    """
    rows = len(at)
    having = np.flatnonzero(~without)
    counts = np.zeros(rows, np.int64)
    stops = stops[having]
    counts[having], positions = _header_counts(source, at[having], stops)
    lists = np.zeros(rows + 1, np.int32)
    np.cumsum(counts, out=lists[1:])
    parts = _walk_headers(source, positions, stops, counts[having], lists[:-1][having].astype(np.int64))
    values = _pairs(source, parts)
    validity = bitmap(counts > 0)
    return pa.Array.from_buffers(COLUMNS["headers"], rows, [validity, pa.py_buffer(lists.data)], children=[values])


def _header_counts(source: Bytes, at: Ints, stops: Ints) -> tuple[Ints, Ints]:
    """Read the header counts of records; return them, and the positions after them."""
    counts, after = numbers(source, at)
    if (counts < 0).any() or (counts > (stops - after) // _LEAST_HEADER).any():
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
    keys = binary(source, parts[0], parts[1], none)
    try:
        names = keys.cast(pa.string())
    except pa.ArrowInvalid:  # U+FFFD for invalid UTF-8, as in Java
        names = pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.string())
    nulls = parts[3] < 0
    values = binary(source, parts[2], np.where(nulls, 0, parts[3]), nulls)
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
    for batch, positions in _long_ones(source, begins, ends, np.where(whole, 0, counts)):
        first, whole[batch] = int(firsts[batch]), True
        body[first : first + len(positions)] = positions
        stops[first : first + len(positions) - 1] = positions[1:]
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
        index: _guesses(source, int(begins[index]), int(ends[index]), int(counts[index]))
        for index in np.flatnonzero(counts >= _LONG).tolist()
    }
    for _ in range(_ROUNDS):
        if not left:
            return
        limits = [np.append(guess[1:], ends[index]) for index, guess in left.items()]
        walked, right = _pieces(source, np.concatenate([*left.values()]), np.concatenate(limits))
        first, again = 0, {}
        for index, guess in left.items():
            pieces = slice(first, first + len(guess))
            first += len(guess)
            positions = walked[pieces]
            positions = positions[positions >= 0]
            if right[pieces].all() and len(positions) == counts[index]:
                yield index, positions
            else:  # drop each guess that the piece before it does not lead to
                again[index] = guess[np.append(True, right[pieces][:-1])]
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
    positions = np.concatenate([np.array([begin], np.int64), position[firsts]])
    ascending: Ints = positions[np.append(True, positions[1:] > np.maximum.accumulate(positions)[:-1])]
    return ascending
