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
from forebay.sources.kafka.records.numbers import Bytes, Ints, numbers
from forebay.sources.kafka.records.parsing import LEAST_RECORD, MalformedError
from forebay.sources.kafka.records.plain import PlainDecoder
from forebay.sources.kafka.records.selecting import FetchDecoder
from forebay.sources.kafka.records.walking import starts

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
