# SPDX-License-Identifier: Apache-2.0
"""The fast decoder: all records of a fetch at once, column by column, without a Python object for each record.

It accepts a batch only if it can account for every byte. The plain decoder reads all other batches, or names the
damaged record. So both decoders always agree.
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

_MAX_MILLIS = (1 << 63) // 1000 - 1
"""Maximum timestamp in ms that fits microseconds in 64 bits."""
_MAX_BYTES = (1 << 31) - 64
"""Maximum bytes of a group: Arrow's 32-bit offsets."""
_MIN_BYTES = 16
"""Minimum size of a buffer, for its wide views."""


class ColumnarDecoder:
    """Decodes column by column.

    Args:
        schema: The wanted columns, from `record_schema`; others are neither decoded nor checked.
        check_crcs: Verify checksums.
        group_bytes: Decompressed bytes after which a record batch is complete.
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
        reported = fetch.start
        for bodies, after in Selection(fetch, check_crcs=self._check).groups(self._least):
            for part in self._group(bodies, after, fetch):
                if part.batch is not None or part.next_offset != reported:
                    reported = part.next_offset
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
            raise MalformedError("no batch of format 2, or too small for its records")
        at, stops = starts(source, begins, ends, counts)
        stamps, at = numbers(source, at + 1, 10)  # skip the attributes, which are unused
        offsets, at = numbers(source, at)
        spans = np.array([header.last - header.base for header in headers], np.int64)
        if (offsets < 0).any() or (offsets > np.repeat(spans, counts)).any():
            raise MalformedError("an offset outside the batch")
        offsets += np.repeat(np.array([header.base for header in headers], np.int64), counts)
        of = np.repeat(np.arange(len(group)), counts)
        taken = _Records(source, at, stops, offsets, stamps, of)
        # Decode all records, then slice: damage outside of the range is reported, too.
        columns = self._fields(taken) | self._metadata(taken, group, fetch)
        batch = pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)
        batch = _in_range(batch, offsets, fetch)
        return batch if batch.num_rows else None

    def _fields(self, taken: _Records) -> dict[str, pa.Array]:
        """Return the wanted columns of key, value and headers."""
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
            found["headers"] = headers_column(source, at, taken.stops, plain)
        elif not plain.all():
            _check_counts(source, at[~plain], taken.stops[~plain])
        return found

    def _metadata(self, taken: _Records, group: Sequence[Body], fetch: RawFetch) -> dict[str, pa.Array]:
        """Return the wanted columns of offset, timestamp, topic and partition."""
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


class _Records:
    """The records of a group, as parallel arrays.

    Args:
        source: The bytes.
        at: The begin of each key.
        stops: The end of each record.
        offsets: The offsets.
        stamps: The timestamps, relative to the first one of the batch.
        of: The index of each record's batch in the group.
    """

    def __init__(self, source: Bytes, at: Ints, stops: Ints, offsets: Ints, stamps: Ints, of: Ints) -> None:
        self.source = source
        self.at = at
        self.stops = stops
        self.offsets = offsets
        self.stamps = stamps
        self.of = of


def _joined(group: Sequence[Body]) -> tuple[Bytes, Ints]:
    """Join the records of a group in one buffer; return it, and the begin of each batch."""
    first = group[0].data
    if all(body.data is first for body in group) and len(first) >= _MIN_BYTES:
        data, begins = first, np.array([body.begin for body in group], np.int64)
    else:
        pieces = [body.data[body.begin : body.end] for body in group]
        data = memoryview(b"".join([*pieces, bytes(_MIN_BYTES)]))
        sizes = np.array([len(piece) for piece in pieces], np.int64)
        begins = np.cumsum(sizes) - sizes
    if len(data) > _MAX_BYTES:
        raise MalformedError("the group exceeds the size of an Arrow column")
    return Bytes(data), begins


def _in_range(batch: pa.RecordBatch, offsets: Ints, fetch: RawFetch) -> pa.RecordBatch:
    """Return the rows in the range of the fetch: usually a slice, since offsets ascend."""
    if (offsets[1:] > offsets[:-1]).all():
        low = int(np.searchsorted(offsets, fetch.start))
        high = len(offsets) if fetch.end is None else int(np.searchsorted(offsets, fetch.end))
        return batch.slice(low, max(0, high - low))
    wanted = offsets >= fetch.start
    if fetch.end is not None:
        wanted &= offsets < fetch.end
    return batch.filter(pa.array(wanted.tolist(), pa.bool_()))


def _times(taken: _Records, group: Sequence[Body]) -> Ints:
    """Return timestamps in microseconds."""
    headers = [body.header for body in group]
    firsts = np.array([header.first_timestamp for header in headers], np.int64)
    appended = np.array([header.timestamp_type == 1 for header in headers], np.bool_)
    if _too_far(firsts) or _too_far(taken.stamps):
        raise MalformedError("a timestamp may overflow")
    millis = taken.stamps + firsts[taken.of]
    if appended.any():
        latest = np.array([header.max_timestamp for header in headers], np.int64)
        millis = np.where(appended[taken.of], latest[taken.of], millis)
    if _too_far(millis):
        raise MalformedError("a timestamp does not fit")
    return millis * 1000


def _too_far(millis: Ints) -> bool:
    # Not by `abs`, which overflows for the minimum of 64 bits.
    return bool(((millis > _MAX_MILLIS) | (millis < -_MAX_MILLIS)).any())


def _lengths(source: Bytes, at: Ints, stops: Ints) -> tuple[Ints, npt.NDArray[np.bool_], Ints]:
    """Return the lengths of a field with 0 for nulls, the nulls, and the begins of the field."""
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
    """Check the header counts of unwanted headers."""
    counts, after = numbers(source, at)
    if (counts < 0).any() or (counts > stops - after).any():
        raise MalformedError("a header count is invalid")
