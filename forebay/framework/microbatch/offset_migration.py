# SPDX-License-Identifier: Apache-2.0
"""Going on from a checkpoint that another source wrote: its last offset becomes the start of a new query (S2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forebay.errors import ConfigurationError
from forebay.framework.microbatch.offsets.codec import OffsetCodec
from forebay.framework.microbatch.offsets.finished_splits import DoneSplits
from forebay.framework.microbatch.offsets.offset import BEFORE_FIRST, Offset, Planned
from forebay.framework.microbatch.split_providers.split_provider import SplitProvider
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.source import Source
from forebay.framework.split import Json


class MigratingOffsetCodec(OffsetCodec):
    """Reads foreign offsets by the author's `adopt`, and leaves all else to another book.

    An adopted offset is the one before the first micro-batch, with splits in it: what was read before is not read
    again, and what is found later is no longer a first discovery.

    Args:
        book: Reads and writes our own.
        source: What is read.
        supply: Knows the author's enumerator; told that the query began earlier.
        calls: Bounds the author's call.
    """

    def __init__(self, book: OffsetCodec, source: Source, supply: SplitProvider, calls: ConnectorCalls) -> None:
        self._book = book
        self._source = source
        self._supply = supply
        self._calls = calls

    def write(self, offset: Offset, done: DoneSplits) -> dict[str, Json]:
        """Return the offset as Spark is to log it."""
        return self._book.write(offset, done)

    def read(self, data: Any) -> Offset:  # noqa: ANN401 - as in the base class
        """Return the offset, our own or an adopted one."""
        enumerator = self._supply.enumerator
        if enumerator is None or not _foreign(data):
            return self._book.read(data)
        splits = self._calls.call("adopt()", lambda: enumerator.adopt(data))
        if splits is None:
            return self._book.read(data)  # which says what it is
        self._supply.restore(None)
        return Offset(self._source.name, splits=[Planned(split, split.position) for split in splits])

    def read_done(self, data: Any) -> DoneSplits:  # noqa: ANN401 - as in the base class
        """Return what is remembered of splits that ended: nothing where another source wrote it."""
        return DoneSplits(self._source.split_class) if _foreign(data) else self._book.read_done(data)

    def room(self, there: Sequence[Planned] = ()) -> int | None:
        """Return how many splits a micro-batch may take."""
        return self._book.room(there)

    def patience(self) -> float:
        """Return for how many seconds a call may wait before it finds nothing new."""
        return self._book.patience()

    def proven(self, offset: Offset) -> None:
        """A micro-batch is done."""
        if offset.n != BEFORE_FIRST:
            self._book.proven(offset)


def unfinished_replay(source: str) -> ConfigurationError:
    """Return the error for a micro-batch that another source planned, and nobody finished."""
    return ConfigurationError(
        "the last micro-batch in the checkpoint was planned by another source, and was not finished",
        source=source,
        option="checkpointLocation",
        advice="finish the last batch with the old source first (one run with trigger availableNow), then change over",
    )


def _foreign(data: object) -> bool:
    return isinstance(data, Mapping) and "v" not in data
