# SPDX-License-Identifier: Apache-2.0
"""Decodes messages of the formats 0 and 1 (before Kafka 0.11) with kafka-python's own decoder: they are rare."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from kafka.record.legacy_records import LegacyRecordBatch

from forebay.errors import ForebayError
from forebay.sources.kafka.records.codecs import decompress
from forebay.sources.kafka.records.decoding import Body
from forebay.sources.kafka.records.parsing import Record
from forebay.sources.kafka.records.wire import corrupt_batch
from forebay.sources.kafka.split import TopicPartition

_LENGTH = struct.Struct(">i")


class _Message(LegacyRecordBatch):  # type: ignore[misc]  # kafka-python has no types
    """Decompresses with forebay's codecs in place of kafka-python's optional packages."""

    __slots__ = ()

    def _decompress(self, key_offset: int) -> memoryview:
        (key,) = _LENGTH.unpack_from(self._buffer, key_offset)
        at = key_offset + _LENGTH.size + max(key, 0)
        (size,) = _LENGTH.unpack_from(self._buffer, at)
        at += _LENGTH.size
        if size < 0 or at + size > len(self._buffer):
            raise ValueError(f"a compressed message of {size} bytes")
        return decompress(self.compression_type, self._buffer[at : at + size])


def records(body: Body, partition: TopicPartition, *, check_crcs: bool) -> Iterator[Record]:
    """Yield the records of an old message; a compressed message contains others.

    Raises:
        DataError: A damaged message.
    """
    offset = body.header.base
    try:
        batch = _Message(body.data, body.header.magic)
        right = not check_crcs or batch.validate_crc()
        for record in batch if right else ():
            if not 0 <= record.offset <= offset:
                raise ValueError(f"it contains a record of offset {record.offset}")  # noqa: TRY301 - reported below, like others
            stamped = record.timestamp is not None
            kind = record.timestamp_type if record.timestamp_type is not None else -1
            yield Record(record.offset, record.timestamp if stamped else -1, kind, record.key, record.value)
    except ForebayError:
        raise
    except Exception as error:
        raise corrupt_batch(
            partition, f"a message of format {body.header.magic} is damaged: {error!r}", offset
        ) from error
    if not right:
        raise corrupt_batch(partition, "the checksum of the message is wrong", offset)
