# SPDX-License-Identifier: Apache-2.0
"""The decoder by record: reference and fallback of the columnar decoder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from forebay.errors import DataError
from forebay.sources.kafka.records import legacy, parsing
from forebay.sources.kafka.records.decoding import GROUP_BYTES, Body, Decoded, RawFetch
from forebay.sources.kafka.records.parsing import Record
from forebay.sources.kafka.records.selecting import Selection
from forebay.sources.kafka.records.wire import corrupt_batch

_MAX_MILLIS = (1 << 63) // 1000 - 1


class PlainDecoder:
    """Decodes record by record.

    Args:
        schema: The wanted columns, from `record_schema`.
        check_crcs: Verify checksums.
        group_bytes: Decompressed bytes after which a record batch is complete.
    """

    def __init__(self, schema: pa.Schema, *, check_crcs: bool = True, group_bytes: int = GROUP_BYTES) -> None:
        self._schema = schema
        self._check = check_crcs
        self._least = group_bytes

    def decode(self, fetch: RawFetch) -> Iterator[Decoded]:
        """Decode a fetch, part by part; see `RecordDecoder`."""
        reported = fetch.start
        for bodies, after in Selection(fetch, check_crcs=self._check).groups(self._least):
            for part in self.group(bodies, after, fetch):
                if part.batch is not None or part.next_offset != reported:
                    reported = part.next_offset
                    yield part

    def group(self, bodies: Iterable[Body], after: int, fetch: RawFetch) -> Iterator[Decoded]:
        """Decode a group of batches.

        Args:
            bodies: The batches.
            after: The next offset after them.
            fetch: The fetch of these batches.

        Raises:
            DataError: Damaged records, after the batches before them.
        """
        rows: list[Record] = []
        reached = fetch.start
        for body in bodies:
            try:
                rows += self.rows(body, fetch)
            except DataError:
                if rows:  # stop before the damaged batch: an old message has only its last offset
                    yield Decoded(self.table(rows, fetch), reached)
                raise
            reached = max(reached, min(body.header.last + 1, after))
        yield Decoded(self.table(rows, fetch) if rows else None, after)

    def rows(self, body: Body, fetch: RawFetch) -> list[Record]:
        """Return the wanted records of one batch.

        Raises:
            DataError: Damaged records.
        """
        with_headers = "headers" in self._schema.names
        found: Iterable[Record]
        if body.header.magic == 2:
            found = parsing.records(body, fetch.topic_partition, with_headers=with_headers)
        else:
            found = legacy.records(body, fetch.topic_partition, check_crcs=self._check)
        return [one for one in found if one.offset >= fetch.start and (fetch.end is None or one.offset < fetch.end)]

    def table(self, rows: list[Record], fetch: RawFetch) -> pa.RecordBatch:
        """Return records as columns.

        Raises:
            DataError: A timestamp does not fit microseconds.
        """
        for row in rows if "timestamp" in self._schema.names else ():
            if abs(row.timestamp) > _MAX_MILLIS:
                raise corrupt_batch(
                    fetch.topic_partition, f"the timestamp {row.timestamp} ms is out of range", row.offset
                )
        columns: dict[str, list[object]] = {
            "key": [row.key for row in rows],
            "value": [row.value for row in rows],
            "topic": [fetch.topic] * len(rows),
            "partition": [fetch.partition] * len(rows),
            "offset": [row.offset for row in rows],
            "timestamp": [row.timestamp * 1000 for row in rows],
            "timestampType": [row.timestamp_type for row in rows],
            "headers": [[{"key": k, "value": v} for k, v in row.headers] or None for row in rows],
        }
        arrays = [pa.array(columns[field.name], field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
