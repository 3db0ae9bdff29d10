# SPDX-License-Identifier: Apache-2.0
"""Messages in the formats 0 and 1 (before Kafka 0.11), by kafka-python's own decoder: rare, and slow is enough."""

from __future__ import annotations

from collections.abc import Iterator

from kafka.errors import UnsupportedCodecError
from kafka.record.legacy_records import LegacyRecordBatch

from forebay.errors import ConfigurationError, ForebayError
from forebay.sources.kafka.records.parsing import Record
from forebay.sources.kafka.records.raw import Body
from forebay.sources.kafka.records.wire import Place


def records(body: Body, place: Place, *, check_crcs: bool) -> Iterator[Record]:
    """Yield the records of an old message, which may hold others, compressed.

    Raises:
        DataError: A damaged message.
        ConfigurationError: It is compressed, and the package that kafka-python needs for it is not installed.
    """
    offset = body.header.base
    try:
        batch = LegacyRecordBatch(body.data, body.header.magic)
        right = not check_crcs or batch.validate_crc()
        for record in batch if right else ():
            stamped = record.timestamp is not None
            kind = record.timestamp_type if record.timestamp_type is not None else -1
            yield Record(record.offset, record.timestamp if stamped else -1, kind, record.key, record.value)
    except UnsupportedCodecError as error:
        raise ConfigurationError(
            f"topic {place.topic}, partition {place.partition}, offset {offset}: an old message that is compressed: "
            f"{error}",
            advice="pip install lz4 python-snappy, which kafka-python reads such messages with",
        ) from error
    except ForebayError:
        raise
    except Exception as error:  # each codec has errors of its own
        raise place.damage(f"a message of format {body.header.magic} is damaged: {error!r}", offset) from error
    if not right:
        raise place.damage("the checksum of the message is wrong", offset)
