# SPDX-License-Identifier: Apache-2.0
"""The split reader of a hybrid: runs the split readers of its legs (sources), in the order of the legs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack

import pyarrow as pa

from forebay.framework.arrow.casting import Casting
from forebay.framework.arrow.schemas import resolved_schema
from forebay.framework.reader import SourceReaderContext
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay.sources.hybrid.leg_context import LegReaderContext
from forebay.sources.hybrid.legs import HybridLegs
from forebay.sources.hybrid.split import by_leg


class HybridSplitReader(SplitReader):
    """Fetches from the earliest leg (source) with a split to read, and casts the record batches to the hybrid's schema.

    Args:
        source: The hybrid.
        context: The host's context.
    """

    def __init__(self, source: HybridLegs, context: SourceReaderContext) -> None:
        self._source = source
        self._context = context
        self._mapping = source.mapping()
        self._schema = resolved_schema(source)
        self._readers: dict[int, SplitReader] = {}
        self._open: dict[int, set[str]] = {}
        self._paused: dict[int, set[str]] = {}
        self._castings: dict[int, Casting] = {}

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Give each split to the split reader of its leg."""
        for leg, outer in by_leg(splits).items():
            part = [self._mapping.inner(split) for split in outer]
            if leg not in self._readers:
                context = LegReaderContext(self._context, last=leg == len(self._source.legs) - 1)
                # A new dict: `wake_up` reads it on another thread.
                self._readers = {**self._readers, leg: self._source.legs[leg].create_split_reader(context)}
            self._open.setdefault(leg, set()).update(split.id for split in part)
            self._readers[leg].add_splits(part)

    def fetch(self) -> Sequence[Fetched]:
        """Return records of the earliest leg with an unfinished split that is not paused; may block."""
        unfinished = [leg for leg, splits in sorted(self._open.items()) if splits]
        if not unfinished:
            return []
        # If all unfinished splits are paused, the split reader of the earliest leg blocks until `wake_up`.
        leg = next((one for one in unfinished if self._open[one] - self._paused.get(one, set())), unfinished[0])
        fetched = self._readers[leg].fetch()
        self._open[leg].difference_update(one.split_id for one in fetched if one.finished)
        return [self._outer(leg, one) for one in fetched]

    def wake_up(self) -> None:
        """Wake the split readers of all legs."""
        for reader in self._readers.values():
            reader.wake_up()

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> bool:
        """Pass the ids on to the split readers of their legs. Return True if all split readers can pause splits."""
        answers = []
        for leg, reader in self._readers.items():
            pausing, resuming = self._inner_ids(leg, pause), self._inner_ids(leg, resume)
            self._paused[leg] = (self._paused.get(leg, set()) | set(pausing)) - set(resuming)
            answers.append(reader.pause_or_resume_splits(pausing, resuming))
        return bool(answers) and all(answers)

    def close(self) -> None:
        """Close the split readers of all legs."""
        with ExitStack() as closed:  # all of them, also if one fails
            for reader in self._readers.values():
                closed.callback(reader.close)

    def _inner_ids(self, leg: int, split_ids: Collection[str]) -> list[str]:
        prefix = self._mapping.outer_id(leg, "")
        return [split_id.removeprefix(prefix) for split_id in split_ids if split_id.startswith(prefix)]

    def _outer(self, leg: int, fetched: Fetched) -> Fetched:
        split_id = self._mapping.outer_id(leg, fetched.split_id)
        batch = None if fetched.batch is None else self._cast(leg, fetched.batch)
        position = self._mapping.outer_position(leg, fetched.position)
        # A split of a bounded source has an end, so being caught up says nothing, also not to an unbounded hybrid.
        caught_up = fetched.caught_up and not self._source.legs[leg].bounded
        return Fetched(split_id, batch, position, fetched.finished, caught_up)

    def _cast(self, leg: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema.equals(self._schema):
            return batch
        if leg not in self._castings:
            labels = {"source": self._source.legs[leg].name}
            self._castings[leg] = Casting(self._schema, lambda row: {**labels, "position": f"row {row} of a batch"})
        return self._castings[leg].cast(batch, 0)
