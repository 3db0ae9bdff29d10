# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a simulation: text in memory, which survives the process, checked when it is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forebay.framework.inprocess.checkpoints import Checkpoint, CheckpointStore
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay_simulator.scenario import Fault
from forebay_simulator.world import World


class MemoryStore(CheckpointStore):
    """Keeps the last checkpoint, as a file would; without a disk, because an fsync takes longer than a simulation.

    Args:
        source: Whose they are.
        world: Faults and checks.
    """

    def __init__(self, source: Source, world: World) -> None:
        super().__init__(Path("memory"), source)
        self._world = world
        self._text: str | None = None

    def open(self) -> Checkpoint | None:
        """Return what was written last."""
        if self._text is None:
            return None
        data = json.loads(self._text)
        return Checkpoint(data["number"], data["enumerator"], [Split.from_json(split) for split in data["splits"]])

    def write(self, checkpoint: Checkpoint) -> Path:
        """Keep a checkpoint, unless the process dies before; fail before or after."""
        world = self._world
        world.kill("before a checkpoint is written")
        if world.chance.random() < 0.5:
            world.maybe_fail(Fault.STORE_FAILURE, "a checkpoint is not written")
        splits = [split.to_json() for split in checkpoint.splits]
        self._text = json.dumps({"number": checkpoint.number, "enumerator": checkpoint.enumerator, "splits": splits})
        self._check(json.loads(self._text))
        world.kill("after a checkpoint was written")
        world.maybe_fail(Fault.STORE_FAILURE, "a checkpoint is written, and says not")
        return Path("memory")

    def _check(self, data: Mapping[str, Any]) -> None:
        """Find out where each split stands, as a restart will: with a reader, or with the enumerator."""
        world = self._world
        held = {split["id"]: split.get("position") for split in data["splits"]}
        state = data["enumerator"]
        world.note(f"  checkpoint {data['number']}: held {held}, enumerator {json.dumps(state)}")
        where = dict(held)
        for split in (*state["new"], *state["finished"]):
            if split["id"] in where:
                world.broken(f"{split['id']} is twice in a checkpoint: a reader and the enumerator have it")
            where[split["id"]] = split.get("position")
        lost = [split["id"] for split in state["assigned"] if split["id"] not in held]
        if lost:
            world.broken(f"{lost} are given out by a checkpoint's enumerator, and no reader has them in it")
        world.store(
            {split_id: world.scripts[split_id].row_index(position) for split_id, position in where.items()},
            [split["id"] for split in state["finished"]],
        )
