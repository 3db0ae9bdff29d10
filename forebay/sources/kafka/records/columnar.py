# SPDX-License-Identifier: Apache-2.0
"""The decoder for speed: all the records of a fetch at once, column by column, no Python object for each record.

It accepts only what it has understood to the last byte. Whatever else comes, it hands to the plain decoder, which then
reads it or says which record is damaged: so both always agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay.sources.kafka.records import arrays
from forebay.sources.kafka.records.decoding import GROUP_BYTES, Body, Decoded, RawFetch
from forebay.sources.kafka.records.nested import headers_column
from forebay.sources.kafka.records.numbers import Bytes, Ints, numbers
from forebay.sources.kafka.records.parsing import LEAST_RECORD, MalformedError
from forebay.sources.kafka.records.plain import PlainDecoder
from forebay.sources.kafka.records.selecting import Selection
from forebay.sources.kafka.records.walking import starts

_FARTHEST = (1 << 63) // 1000 - 1
_LIMIT = (1 << 31) - 64
_LEAST_BYTES = 16


class ColumnarDecoder:
    """Decodes column by column.

    Args:
        schema: The wanted columns, from `record_schema`; the others are not decoded, nor checked.
        check_crcs: Compare checksums.
        group_bytes: Decompressed bytes that make a record batch, at least.
    """

    def __init__(self, schema: pa.Schema, *, check_crcs: bool = True, group_bytes: int = GROUP_BYTES) -> None:
        self._schema = schema
        self._wanted = frozenset(schema.names)
        self._check = check_crcs
        self._least = group_bytes
        self._plain = PlainDecoder(schema, check_crcs=check_crcs, group_bytes=group_bytes)
        self._constants = arrays.Constants()

    def decode(self, fetch: RawFetch) -> Iterator[Decoded]:
        """Decode a fetch, part by part; see `RecordDecoder`."""
        told = fetch.start
        for bodies, after in Selection(fetch, check_crcs=self._check).groups(self._least):
            for part in self._group(bodies, after, fetch):
                if part.batch is not None or part.next_offset != told:
                    told = part.next_offset
                    yield part

    def _group(self, bodies: Sequence[Body], after: int, fetch: RawFetch) -> Iterator[Decoded]:
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
            raise MalformedError("not what a batch of today looks like")
        at, stops = starts(source, begins, ends, counts)
        stamps, at = numbers(source, at + 1, 10)  # past the attributes, which mean nothing yet
        offsets, at = numbers(source, at)
        spans = np.array([header.last - header.base for header in headers], np.int64)
        if (offsets < 0).any() or (offsets > np.repeat(spans, counts)).any():
            raise MalformedError("an offset outside the batch")
        offsets += np.repeat(np.array([header.base for header in headers], np.int64), counts)
        of = np.repeat(np.arange(len(group)), counts)
        taken = _Taken(source, at, stops, offsets, stamps, of)
        # All of it: what is damaged is damage wherever it lies, and only the first and the last batch can be outside.
        columns = self._fields(taken) | self._facts(taken, group, fetch)
        batch = pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)
        batch = _in_range(batch, offsets, fetch)
        return batch if batch.num_rows else None

    def _fields(self, taken: _Taken) -> dict[str, pa.Array]:
        """Return the columns that lie in the bytes, as far as they are wanted."""
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
            raise MalformedError("a record without a number of headers")
        counts = source.u8[at]
        plain = counts == 0
        if not (at[plain] + 1 == taken.stops[plain]).all():
            raise MalformedError("bytes are left after a record's headers")
        if "headers" in self._wanted:
            found["headers"] = headers_column(source, at, taken.stops, plain)
        elif not plain.all():
            _check_counts(source, at[~plain], taken.stops[~plain])
        return found

    def _facts(self, taken: _Taken, group: Sequence[Body], fetch: RawFetch) -> dict[str, pa.Array]:
        """Return the other columns, as far as they are wanted."""
        rows = len(taken.offsets)
        found: dict[str, pa.Array] = {}
        if "offset" in self._wanted:
            found["offset"] = arrays.longs(taken.offsets)
        if "timestamp" in self._wanted:
            found["timestamp"] = arrays.longs(_times(taken, group), self._schema.field("timestamp").type)
        if "timestampType" in self._wanted:
            kinds = np.array([body.header.timestamp_type for body in group], np.int32)
            mixed = kinds.any() and not kinds.all()
            found["timestampType"] = (
                arrays.ints(kinds[taken.of]) if mixed else self._constants.ints(int(kinds[0]), rows)
            )
        if "topic" in self._wanted:
            found["topic"] = self._constants.text(fetch.topic, rows)
        if "partition" in self._wanted:
            found["partition"] = self._constants.ints(fetch.partition, rows)
        return found


class _Taken:
    """The records of a group; each array has an entry for each.

    Args:
        source: The bytes.
        at: Where the key begins.
        stops: Where the record ends.
        offsets: Offsets.
        stamps: Time stamps, relative to the batch's first one.
        of: Which batch of the group.
    """

    def __init__(self, source: Bytes, at: Ints, stops: Ints, offsets: Ints, stamps: Ints, of: Ints) -> None:
        self.source = source
        self.at = at
        self.stops = stops
        self.offsets = offsets
        self.stamps = stamps
        self.of = of


def _joined(group: Sequence[Body]) -> tuple[Bytes, Ints]:
    """Bring the records of a group into one buffer; return it, and where each batch begins in it."""
    first = group[0].data
    if all(body.data is first for body in group) and len(first) >= _LEAST_BYTES:
        data, begins = first, np.array([body.begin for body in group], np.int64)
    else:
        pieces = [body.data[body.begin : body.end] for body in group]
        data = memoryview(b"".join([*pieces, bytes(_LEAST_BYTES)]))
        sizes = np.array([len(piece) for piece in pieces], np.int64)
        begins = np.cumsum(sizes) - sizes
    if len(data) > _LIMIT:
        raise MalformedError("more bytes than a column holds")
    return Bytes(data), begins


def _in_range(batch: pa.RecordBatch, offsets: Ints, fetch: RawFetch) -> pa.RecordBatch:
    """Return the wanted rows: nearly always a slice, since offsets ascend."""
    if (offsets[1:] > offsets[:-1]).all():
        low = int(np.searchsorted(offsets, fetch.start))
        high = len(offsets) if fetch.end is None else int(np.searchsorted(offsets, fetch.end))
        return batch.slice(low, max(0, high - low))
    wanted = offsets >= fetch.start
    if fetch.end is not None:
        wanted &= offsets < fetch.end
    return batch.filter(pa.array(wanted.tolist(), pa.bool_()))


def _times(taken: _Taken, group: Sequence[Body]) -> Ints:
    """Return microseconds."""
    headers = [body.header for body in group]
    firsts = np.array([header.first_timestamp for header in headers], np.int64)
    appended = np.array([header.timestamp_type == 1 for header in headers], np.bool_)
    if _too_far(firsts) or _too_far(taken.stamps):
        raise MalformedError("a time stamp that may not fit")
    millis = taken.stamps + firsts[taken.of]
    if appended.any():
        latest = np.array([header.max_timestamp for header in headers], np.int64)
        millis = np.where(appended[taken.of], latest[taken.of], millis)
    if _too_far(millis):
        raise MalformedError("a time stamp that does not fit")
    return millis * 1000


def _too_far(millis: Ints) -> bool:
    # Not by `abs`: that of the least number there is, is negative.
    return bool(((millis > _FARTHEST) | (millis < -_FARTHEST)).any())


def _lengths(source: Bytes, at: Ints, stops: Ints) -> tuple[Ints, npt.NDArray[np.bool_], Ints]:
    """Return the lengths of a field, 0 for nulls; which are null; and where the field begins."""
    lengths, at = numbers(source, at)
    nulls = lengths < 0
    if nulls.any():
        if (lengths < -1).any():
            raise MalformedError("a negative length")
        lengths[nulls] = 0
    if (lengths > stops - at).any():
        raise MalformedError("a field reaches beyond its record")
    return lengths, nulls, at


def _check_counts(source: Bytes, at: Ints, stops: Ints) -> None:
    """Check the numbers of headers that nobody wants."""
    counts, after = numbers(source, at)
    if (counts < 0).any() or (counts > stops - after).any():
        raise MalformedError("a number of headers that cannot be")
