# SPDX-License-Identifier: Apache-2.0
"""Which splits the reader of a run has, and up to which positions their rows are delivered and acknowledged."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from forebay.framework.split import Position, Split
from forebay.framework.split_reader import check_may_catch_up

_MOST_FINISHED = 10_000
"""Finished splits kept for progress reports; the oldest are dropped first. The enumerator remembers all of them."""


@dataclass(frozen=True, slots=True)
class SplitProgress:
    """The progress of one split.

    Args:
        split_id: The id of the split.
        position: The position after the last record batch that was yielded.
        end: The end of the split, exclusive; None if it has no end, or it is unknown.
        rows: Rows yielded in this run.
        bytes: Bytes of Arrow memory yielded in this run.
        state: "waiting" for the reader, "reading", "caught up" (no more rows for now), "paused" (by alignment), or
            "finished".
    """

    split_id: str
    position: Position | None
    end: Position | None
    rows: int
    bytes: int
    state: str


@dataclass(slots=True)
class _Entry:
    split: Split
    position: Position | None
    held: bool = True
    rows: int = 0
    nbytes: int = 0
    caught_up: bool = False

    def progress(self, state: str) -> SplitProgress:
        return SplitProgress(self.split.id, self.position, self.split.end, self.rows, self.nbytes, state)


class DeliveryLog:
    """Records for each split of a run its delivered and its covered position. Used on the consumer's thread.

    A batch that the run has yielded is *delivered*: it is not read again after its reader fails. When the consumer
    acknowledges it, or asks for the next one, it is *covered*: checkpoints include it. So at most one delivered batch
    is not covered.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._finished: dict[str, _Entry] = {}
        self._never_caught_up: dict[str, None] = {}
        self._uncovered: tuple[str, Position | None] | None = None
        self.delivered: tuple[str, Position | None] | None = None

    def give(self, splits: Iterable[Split]) -> None:
        """Record that splits were assigned to the reader."""
        for split in splits:
            old = self._entries.get(split.id) or self._finished.pop(split.id, None)
            rows, nbytes = (old.rows, old.nbytes) if old else (0, 0)
            if old is None:
                self._never_caught_up[split.id] = None
            self._entries[split.id] = _Entry(split, split.position, rows=rows, nbytes=nbytes)

    def holds(self, split_id: str) -> bool:
        """Whether the reader has an unfinished split."""
        entry = self._entries.get(split_id)
        return entry is not None and entry.held

    def unfinished(self) -> list[str]:
        """Return the ids of all splits that were assigned and are not finished."""
        return list(self._entries)

    def position(self, split_id: str) -> Position | None:
        """Return the delivered position of a split; None if the split is at its start, or unknown."""
        entry = self._entries.get(split_id) or self._finished.get(split_id)
        return None if entry is None else entry.position

    def deliver(self, split_id: str, batch: pa.RecordBatch, position: Position | None) -> None:
        """Record that a record batch is yielded to the consumer; `position` is the position after it."""
        entry = self._entries[split_id]
        self._uncovered = (split_id, entry.position)
        entry.position = position
        entry.rows += batch.num_rows
        entry.nbytes += batch.nbytes
        entry.caught_up = False
        self.delivered = (split_id, position)

    def cover(self) -> None:
        """Record that the consumer has processed the last delivered batch, so that checkpoints include it."""
        self._uncovered = None

    def caught_up(self, split_id: str) -> None:
        """Record that a reader has caught up with a split: it has no more rows for now."""
        if split_id in self._entries:
            self._entries[split_id].caught_up = True
            self._never_caught_up.pop(split_id, None)

    def check_may_catch_up(self, split_id: str, source: str) -> None:
        """Raise a ContractError if a reader must not report `caught_up` for this split (SR-4)."""
        if (entry := self._entries.get(split_id)) is not None:
            check_may_catch_up(entry.split.at(entry.position), source)

    def is_caught_up(self, split_id: str) -> bool:
        """Whether a split has no more rows for now, or is finished."""
        entry = self._entries.get(split_id)
        return split_id in self._finished if entry is None else entry.caught_up

    def never_caught_up(self) -> Collection[str]:
        """Return the ids of the unfinished splits that the reader has never caught up with in this run."""
        return self._never_caught_up.keys()

    def finish(self, split_id: str) -> Split:
        """Record that a split is delivered to its end; return it with its last position."""
        entry = self._entries.pop(split_id)
        self._never_caught_up.pop(split_id, None)
        self._finished[split_id] = entry
        while len(self._finished) > _MOST_FINISHED:
            del self._finished[next(iter(self._finished))]
        return entry.split.at(entry.position)

    def take_back(self) -> list[Split]:
        """Record that the reader lost its unfinished splits; return them at their delivered positions."""
        lost = [entry for entry in self._entries.values() if entry.held]
        for entry in lost:
            entry.held = False
            entry.caught_up = False
        return [entry.split.at(entry.position) for entry in lost]

    def held(self) -> list[str]:
        """Return the ids of the reader's unfinished splits."""
        return [split_id for split_id, entry in self._entries.items() if entry.held]

    def checkpoint(self, snapshots: Mapping[str, Split], queued: Sequence[str]) -> list[Split]:
        """Return the unfinished splits that the reader has, at their covered positions, sorted by id.

        Args:
            snapshots: The reader's snapshot of its splits, by id. If all emitted rows of a split are covered, the
                position in its snapshot is used. It may be after the last batch, if later records gave no rows.
            queued: Ids of splits with batches that the reader has emitted and the run has not yielded.
        """
        splits = []
        for split_id, entry in sorted(self._entries.items()):
            if not entry.held:
                continue  # it is in the snapshot of the enumerator
            if self._uncovered is not None and self._uncovered[0] == split_id:
                splits.append(entry.split.at(self._uncovered[1]))
            elif split_id in queued or split_id not in snapshots:
                splits.append(entry.split.at(entry.position))
            else:
                splits.append(snapshots[split_id])
        return splits

    def covered(self) -> dict[str, Position]:
        """Return the covered positions by split id, without splits at their start."""
        positions = {split_id: entry.position for split_id, entry in (*self._finished.items(), *self._entries.items())}
        if self._uncovered is not None:
            positions[self._uncovered[0]] = self._uncovered[1]
        return {split_id: position for split_id, position in positions.items() if position is not None}

    def progress(self, paused: Iterable[str]) -> dict[str, SplitProgress]:
        """Return, by split id, the progress of each split that was assigned; `paused` are ids of paused splits."""
        paused = set(paused)
        progress = {split_id: entry.progress("finished") for split_id, entry in self._finished.items()}
        for split_id, entry in self._entries.items():
            state = "waiting" if not entry.held else "caught up" if entry.caught_up else "reading"
            progress[split_id] = entry.progress("paused" if split_id in paused else state)
        return progress
