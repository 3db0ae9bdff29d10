# SPDX-License-Identifier: Apache-2.0
"""Where every split stands: with whom, handed out to where, covered to where."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from forebay.framework.split import Position, Split

_MOST_FINISHED = 10_000
"""Finished splits remembered for progress; the oldest go first. What must be known for ever is the enumerator's."""


@dataclass(frozen=True, slots=True)
class SplitProgress:
    """How far one split is, for people and tests.

    Args:
        split_id: The split.
        position: Where it goes on: after the last record batch that was yielded.
        end: Where it ends, if that is known.
        rows: Rows yielded in this run.
        bytes: Bytes of Arrow memory yielded in this run.
        state: "waiting" for a reader, "reading", "caught up" (nothing more for now), "paused" (aligned), "finished".
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
    owner: int | None
    rows: int = 0
    nbytes: int = 0
    caught_up: bool = False


class DeliveryLog:
    """The books of one run; the consumer's thread writes them.

    A batch that was yielded is *delivered*: after a failure of its reader it is not read again. Once the consumer
    acknowledges it, or asks for the next one, it is *covered*: a checkpoint may count on it (see `Run`). So at most one
    batch is delivered and not covered.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._finished: dict[str, _Entry] = {}
        self._never_caught_up: dict[str, None] = {}
        self._uncovered: tuple[str, Position | None] | None = None
        self.delivered: tuple[str, Position | None] | None = None

    def give(self, subtask: int, splits: Iterable[Split]) -> None:
        """A reader got splits."""
        for split in splits:
            old = self._entries.get(split.id) or self._finished.pop(split.id, None)
            rows, nbytes = (old.rows, old.nbytes) if old else (0, 0)
            if old is None:
                self._never_caught_up[split.id] = None
            self._entries[split.id] = _Entry(split, split.position, subtask, rows, nbytes)

    def owner(self, split_id: str) -> int | None:
        """Return the reader of an unfinished split; None if none has it."""
        entry = self._entries.get(split_id)
        return None if entry is None else entry.owner

    def unfinished(self) -> list[str]:
        """Return the ids of the splits that some reader has or had, and has not finished."""
        return list(self._entries)

    def position(self, split_id: str) -> Position | None:
        """Return where a split goes on."""
        entry = self._entries.get(split_id) or self._finished.get(split_id)
        return None if entry is None else entry.position

    def deliver(self, split_id: str, batch: pa.RecordBatch, position: Position | None) -> None:
        """A record batch is handed to the consumer."""
        entry = self._entries[split_id]
        self._uncovered = (split_id, entry.position)
        entry.position = position
        entry.rows += batch.num_rows
        entry.nbytes += batch.nbytes
        entry.caught_up = False
        self.delivered = (split_id, position)

    def cover(self) -> None:
        """The consumer is done with the last batch."""
        self._uncovered = None

    def caught_up(self, split_id: str) -> None:
        """A split has nothing more for now."""
        if split_id in self._entries:
            self._entries[split_id].caught_up = True
            self._never_caught_up.pop(split_id, None)

    def is_caught_up(self, split_id: str) -> bool:
        """Whether a split has nothing more for now, or ever."""
        entry = self._entries.get(split_id)
        return split_id in self._finished if entry is None else entry.caught_up

    def never_caught_up(self) -> Collection[str]:
        """Return the unfinished splits that have not been caught up once since the run began."""
        return self._never_caught_up.keys()

    def finish(self, split_id: str) -> Split:
        """A split is delivered to its end; return it there."""
        entry = self._entries.pop(split_id)
        self._never_caught_up.pop(split_id, None)
        entry.owner = None
        self._finished[split_id] = entry
        while len(self._finished) > _MOST_FINISHED:
            del self._finished[next(iter(self._finished))]
        return entry.split.at(entry.position)

    def take_back(self, subtask: int) -> list[Split]:
        """A reader failed: return its unfinished splits, at their delivered positions; nobody holds them now."""
        held = [entry for entry in self._entries.values() if entry.owner == subtask]
        for entry in held:
            entry.owner = None
            entry.caught_up = False
        return [entry.split.at(entry.position) for entry in held]

    def held_by(self, subtask: int) -> list[str]:
        """Return the ids of a reader's unfinished splits."""
        return [split_id for split_id, entry in self._entries.items() if entry.owner == subtask]

    def checkpoint(self, snapshots: Mapping[str, Split], in_hand: Sequence[str]) -> list[Split]:
        """Return what readers hold, at the covered positions, by id.

        Args:
            snapshots: What the readers say. Their word is taken where everything they emitted is covered: it may go
                further than the last batch, past records that are no rows.
            in_hand: Splits of which something was emitted that has not been yielded.
        """
        splits = []
        for split_id, entry in sorted(self._entries.items()):
            if entry.owner is None:
                continue  # the enumerator has it, and its snapshot
            if self._uncovered is not None and self._uncovered[0] == split_id:
                splits.append(entry.split.at(self._uncovered[1]))
            elif split_id in in_hand or split_id not in snapshots:
                splits.append(entry.split.at(entry.position))
            else:
                splits.append(snapshots[split_id])
        return splits

    def covered(self) -> dict[str, Position]:
        """Return the covered position of every split that has one."""
        positions = {split_id: entry.position for split_id, entry in (*self._finished.items(), *self._entries.items())}
        if self._uncovered is not None:
            positions[self._uncovered[0]] = self._uncovered[1]
        return {split_id: position for split_id, position in positions.items() if position is not None}

    def progress(self, paused: Iterable[str]) -> dict[str, SplitProgress]:
        """Return how far each split is that a reader has or had."""
        held_back = set(paused)
        told = {split_id: _told(entry, "finished") for split_id, entry in self._finished.items()}
        for split_id, entry in self._entries.items():
            state = "waiting" if entry.owner is None else "caught up" if entry.caught_up else "reading"
            told[split_id] = _told(entry, "paused" if split_id in held_back else state)
        return told


def _told(entry: _Entry, state: str) -> SplitProgress:
    return SplitProgress(entry.split.id, entry.position, entry.split.end, entry.rows, entry.nbytes, state)
