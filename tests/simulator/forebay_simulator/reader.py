# SPDX-License-Identifier: Apache-2.0
"""The supplied reader under watch: it fails as the world says, and what it does is checked."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from forebay.framework.reader import InputStatus, ReaderOutput, SourceReaderContext
from forebay.framework.reading.source_reader import SourceReaderBase
from forebay.framework.source import Source
from forebay.framework.split import Position, Split
from forebay_simulator.scenario import Fault
from forebay_simulator.world import InjectedFailure, World


class SimulatedReader(SourceReaderBase):
    """A `SourceReaderBase` of a simulation.

    Args:
        source: Makes the split readers.
        context: The host.
        world: Faults and checks.
    """

    def __init__(self, source: Source, context: SourceReaderContext, world: World) -> None:
        super().__init__(source, context, context.options)
        self.subtask = context.subtask
        self.gate: set[str] = set()
        self._world = world
        self._no_more_splits = False
        self._ended = False
        world.readers.append(self)

    def start(self) -> None:
        """Start, or fail."""
        self._world.crash(f"start of reader {self.subtask}")
        super().start()

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Take splits that no other reader holds."""
        world = self._world
        for split in splits:
            world.note(f"  reader {self.subtask} gets {split.id} at {split.position}")
            if self._no_more_splits:
                world.broken(f"{split.id} came to reader {self.subtask} after it was told that none follow (CTX-3)")
            if split.id in world.holder:
                world.broken(f"{split.id} came to reader {self.subtask} while a reader holds it (SPL-1)")
            world.holder[split.id] = self
        world.crash(f"add_splits of reader {self.subtask}")
        super().add_splits(splits)

    def notify_no_more_splits(self) -> None:
        """Remember it."""
        world = self._world
        world.note(f"  reader {self.subtask} gets no more splits")
        self._no_more_splits = True
        super().notify_no_more_splits()

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Poll, or fail before or after something went out."""
        self._world.crash(f"poll of reader {self.subtask}")
        status = super().poll_next(_WatchedOutput(output, self, self._world))
        self._world.crash(f"end of a poll of reader {self.subtask}")
        if self._ended and status is not InputStatus.END_OF_INPUT:
            self._world.broken(f"reader {self.subtask} went on after its end of input (RDR-6)")
        self._ended = status is InputStatus.END_OF_INPUT
        if self._ended and self.held():
            self._world.broken(f"reader {self.subtask} ended while it holds {self.held()} (RDR-6)")
        return status

    def snapshot_state(self, checkpoint_id: int) -> Sequence[Split]:
        """Snapshot, or fail."""
        if self._world.happens(Fault.SNAPSHOT_FAILURE):
            raise InjectedFailure("snapshot", advice="nothing: it was injected")
        return super().snapshot_state(checkpoint_id)

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Remember what may not go out."""
        super().pause_or_resume_splits(pause, resume)
        self.gate = (self.gate - set(resume)) | set(pause)

    def on_splits_finished(self, splits: Sequence[Split]) -> None:
        """Ask for more; what has finished is held by nobody."""
        for split in splits:
            self._world.note(f"  reader {self.subtask} has finished {split.id} at {split.position}")
            self._world.holder.pop(split.id, None)
        super().on_splits_finished(splits)

    def close(self) -> None:
        """Close; nothing is held then."""
        self._world.note(f"  reader {self.subtask} closes")
        for split_id in self.held():
            del self._world.holder[split_id]
        self._world.readers.remove(self)
        super().close()

    def held(self) -> list[str]:
        """Return the splits of this reader, as the simulation tracks them."""
        return [split_id for split_id, holder in self._world.holder.items() if holder is self]


class _WatchedOutput:
    """The host's output, where nothing of a paused split may go, nor more than one batch a poll."""

    __slots__ = ("_collected", "_output", "_reader", "_world")

    def __init__(self, output: ReaderOutput, reader: SimulatedReader, world: World) -> None:
        self._output = output
        self._reader = reader
        self._world = world
        self._collected = False

    def collect(self, split_id: str, batch: pa.RecordBatch, position: Position | None) -> None:
        if split_id in self._reader.gate:
            self._world.broken(f"{split_id}: records went out while it was paused (RDR-8)")
        if self._collected:
            self._world.broken(f"{split_id}: a second record batch in one poll (RDR-2)")
        self._collected = True
        self._output.collect(split_id, batch, position)

    def split_added(self, split: Split) -> None:
        self._output.split_added(split)

    def split_caught_up(self, split_id: str) -> None:
        self._output.split_caught_up(split_id)

    def split_released(self, split_id: str) -> None:
        self._output.split_released(split_id)
