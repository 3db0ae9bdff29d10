# SPDX-License-Identifier: Apache-2.0
"""Selects the record batches of a fetch: verifies checksums, and applies the offset range and transactions."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator

import crc32c

from forebay.errors import DataError
from forebay.sources.kafka.records.codecs import decompress
from forebay.sources.kafka.records.decoding import Body, RawFetch
from forebay.sources.kafka.records.parsing import records
from forebay.sources.kafka.records.wire import CRC_BEGIN, Header, corrupt_batch, headers

_MARKER = struct.Struct(">hh")  # version and type: the key of a control record
_ABORT = 0


class Selection:
    """Iterates over one fetch and tracks the next offset.

    Args:
        fetch: The fetch.
        check_crcs: Verify checksums.
    """

    def __init__(self, fetch: RawFetch, *, check_crcs: bool = True) -> None:
        self._fetch = fetch
        self._check = check_crcs
        self._waiting = deque(sorted((first, producer) for producer, first in fetch.aborted))
        self._aborted: set[int] = set()
        self.next_offset = fetch.start
        """The offset after all yielded and skipped batches; never beyond the end of the range."""

    def bodies(self) -> Iterator[Body]:
        """Yield the batches that may contain wanted records; `next_offset` moves before each.

        Raises:
            DataError: A batch is damaged; the text names topic, partition and offset.
        """
        fetch = self._fetch
        for header in headers(fetch.data, fetch.topic_partition):
            if fetch.end is not None and header.base >= fetch.end and header.magic == 2:
                self._pass(fetch.end)
                return
            wanted = (header.magic < 2 or self._wanted(header)) and header.last >= fetch.start
            body = self._body(header) if wanted else None
            self._pass(header.last + 1)
            if body is not None:
                yield body
            if fetch.end is not None and self.next_offset >= fetch.end:
                return

    def groups(self, least: int) -> Iterator[tuple[list[Body], int]]:
        """Yield the batches in groups of at least `least` decompressed bytes, each with `next_offset` after it.

        The last group is empty if only batches without readable records follow.

        Raises:
            DataError: As `bodies`, after the batches before the damaged one.
        """
        bodies, reported = self.bodies(), self.next_offset
        group: list[Body] = []
        size, damage = 0, None
        while True:
            try:
                body = next(bodies, None)
            except DataError as error:
                damage = error
                break
            if body is None:
                break
            group.append(body)
            size += body.end - body.begin
            if size >= least:
                reported = self.next_offset
                yield group, reported
                group, size = [], 0
        if group or self.next_offset != reported:
            yield group, self.next_offset
        if damage is not None:
            raise damage

    def _pass(self, offset: int) -> None:
        if self._fetch.end is not None:
            offset = min(offset, self._fetch.end)
        self.next_offset = max(self.next_offset, offset)

    def _wanted(self, header: Header) -> bool:
        """Whether the batch contains readable data; tracks open aborted transactions."""
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
        if header.codec == 0:
            return Body(header, data, header.body, header.end)
        try:
            plain = decompress(header.codec, data[header.body : header.end])
        except ValueError as error:
            raise corrupt_batch(partition, str(error), header.base) from error
        return Body(header, plain, 0, len(plain))
