# SPDX-License-Identifier: Apache-2.0
"""Selects the record batches of a fetch to decode, by offset range and transaction; checks and groups them."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence

import crc32c
import pyarrow as pa

from forebay.errors import DataError
from forebay.sources.kafka.records.codecs import TooLargeError, decompress
from forebay.sources.kafka.records.decoding import GROUP_BYTES, MAX_BATCH_BYTES, Body, Decoded, RawFetch
from forebay.sources.kafka.records.parsing import records
from forebay.sources.kafka.records.wire import CRC_BEGIN, Header, corrupt_batch, headers, too_large

_MARKER = struct.Struct(">hh")  # version and type: the key of a control record
_ABORT = 0
_NO_END = 1 << 63


class Selection:
    """Iterates over the record batches of one fetch, and keeps track of its aborted transactions."""

    def __init__(self, fetch: RawFetch, *, check_crcs: bool = True, limit: int = MAX_BATCH_BYTES) -> None:
        self._fetch = fetch
        self._limit = limit
        self._check = check_crcs
        self._waiting = deque(sorted((first, producer) for producer, first in fetch.aborted))
        self._aborted: set[int] = set()

    def bodies(self) -> Iterator[tuple[Body | None, int]]:
        """Yield each batch, or None for a batch without wanted records, with the next offset after it.

        Raises:
            DataError: A batch is damaged. The text names topic, partition and offset.
        """
        fetch, reached = self._fetch, self._fetch.start
        end = fetch.end if fetch.end is not None else _NO_END
        for header in headers(fetch.data, fetch.topic_partition):
            if header.base >= end and header.magic == 2:
                yield None, end
                return
            wanted = (header.magic < 2 or self._wanted(header)) and header.last >= fetch.start
            body = self._body(header) if wanted else None
            reached = max(reached, min(header.last + 1, end))
            yield body, reached
            if reached >= end:
                return

    def groups(self, least: int) -> Iterator[tuple[list[Body], int]]:
        """Yield the batches in groups of at least `least` decompressed bytes, each with the next offset after it.

        The last group is empty if only batches without readable records follow.

        Raises:
            DataError: A batch is damaged. The batches before it are yielded first.
        """
        reported = reached = self._fetch.start
        group: list[Body] = []
        size, damage = 0, None
        try:
            for body, reached in self.bodies():
                if body is not None:
                    group.append(body)
                    size += body.end - body.begin
                if body is not None and size >= least:
                    reported = reached
                    yield group, reported
                    group, size = [], 0
        except DataError as error:
            damage = error
        if group or reached != reported:
            yield group, reached
        if damage is not None:
            raise damage

    def _wanted(self, header: Header) -> bool:
        """Return whether a batch contains readable records. Also tracks the open aborted transactions."""
        if self._fetch.read_committed and header.producer >= 0:
            while self._waiting and self._waiting[0][0] <= header.last:
                self._aborted.add(self._waiting.popleft()[1])
            if header.control:
                if header.producer in self._aborted and self._ends_aborted(header):
                    self._aborted.discard(header.producer)
            elif header.transactional and header.producer in self._aborted:
                return False
        return header.records > 0 and not header.control

    def _ends_aborted(self, header: Header) -> bool:
        marker = next(records(self._body(header), self._fetch.topic_partition), None)
        if marker is None or marker.key is None or len(marker.key) < _MARKER.size:
            raise corrupt_batch(
                self._fetch.topic_partition, "the marker at the end of a transaction cannot be read", header.base
            )
        return bool(_MARKER.unpack_from(marker.key)[1] == _ABORT)

    def _body(self, header: Header) -> Body:
        data, partition = self._fetch.data, self._fetch.topic_partition
        if header.magic < 2:
            return Body(header, data[header.begin : header.end], 0, header.end - header.begin)
        if self._check and crc32c.crc32c(data[header.begin + CRC_BEGIN : header.end]) != header.crc:
            raise corrupt_batch(partition, "the checksum of the record batch is wrong", header.base)
        try:
            plain = decompress(header.codec, data[header.body : header.end], self._limit)
        except TooLargeError:
            raise too_large(partition, self._limit, header.base) from None
        except ValueError as error:
            raise corrupt_batch(partition, str(error), header.base) from error
        return Body(header, plain, 0, len(plain)) if header.codec else Body(header, data, header.body, header.end)


class FetchDecoder(ABC):
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

    def decode(self, fetch: RawFetch) -> Iterator[Decoded]:
        """Decode a fetch, part by part.

        The last part's `next_offset` is the start of the next fetch. This offset comes from the header of the last
        whole batch, so it lies after compacted offsets and control records.

        Raises:
            DataError: Bytes are damaged. The records before them are yielded first. The text names topic, partition and
                offset.
        """
        reported = fetch.start
        for bodies, after in Selection(fetch, check_crcs=self._check, limit=self._limit).groups(self._least):
            for part in self.group(bodies, after, fetch):
                if part.batch is not None or part.next_offset != reported:
                    reported = part.next_offset
                    yield part

    @abstractmethod
    def group(self, bodies: Sequence[Body], after: int, fetch: RawFetch) -> Iterator[Decoded]:
        """Decode a group of batches of a fetch; `after` is the next offset after them."""
