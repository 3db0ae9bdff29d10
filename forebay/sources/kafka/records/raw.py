# SPDX-License-Identifier: Apache-2.0
"""What decoding begins with: the bytes of one fetch, and in it the bytes of one batch's records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forebay.sources.kafka.records.wire import BatchFrame, Header


@dataclass(frozen=True, slots=True)
class RawFetch:
    """What a broker sent for one partition, as it came.

    Args:
        topic: The topic.
        partition: The partition.
        data: The bytes: record batches, the last one perhaps cut off.
        start: The first wanted offset.
        end: The offset to stop before; None: no end.
        read_committed: Leave out records of aborted transactions.
        aborted: Those transactions, as (producer id, first offset); a broker names them with each fetch.
    """

    topic: str
    partition: int
    data: memoryview
    start: int
    end: int | None = None
    read_committed: bool = False
    aborted: Sequence[tuple[int, int]] = ()

    @property
    def place(self) -> BatchFrame:
        """The partition, for errors."""
        return BatchFrame(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class Body:
    """The records of one batch, decompressed.

    Args:
        header: What the batch says of itself.
        data: The bytes that hold them; of an uncompressed batch, all the fetched ones. Of an old message, the message.
        begin: Where they begin in `data`.
        end: Where they end.
    """

    header: Header
    data: memoryview
    begin: int
    end: int
