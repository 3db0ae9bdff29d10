# SPDX-License-Identifier: Apache-2.0
"""Which splits went to which reader since which checkpoint, so that a reader's reset loses none (TRK-1 … TRK-3)."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.framework.split import Split


class AssignmentTracker:
    """Remembers assignments until a completed checkpoint holds them. Called on the coordinator thread only.

    A split that was assigned before a completed checkpoint is in that checkpoint, as part of its reader's state.
    One assigned later is in no checkpoint yet: when its reader is reset, only this tracker can give it back.

    Worked example (TRK-2): assign {0}; checkpoint 100; assign {3}; checkpoint 101. A reset to 99 takes {0, 3}, to 100
    takes {3}, to 101 takes nothing.
    """

    def __init__(self) -> None:
        self._open: dict[int, list[Split]] = {}
        self._cut: dict[int, dict[int, list[Split]]] = {}

    def record(self, subtask: int, splits: Sequence[Split]) -> None:
        """Note an assignment, before it is sent (CTX-1)."""
        self._open.setdefault(subtask, []).extend(splits)

    def cut(self, checkpoint_id: int) -> None:
        """Begin a checkpoint: what is open moves under its key (TRK-1). Called before the enumerator's snapshot."""
        cut, self._open = self._open, {}
        if cut:
            self._cut[checkpoint_id] = cut

    def complete(self, checkpoint_id: int) -> None:
        """A checkpoint is durable: forget what it and all earlier ones hold.

        A checkpoint that never completes loses nothing: its entries stay until a later one does (TRK-3).
        """
        self._cut = {key: cut for key, cut in self._cut.items() if key > checkpoint_id}

    def take(self, subtask: int, restored_checkpoint: int) -> list[Split]:
        """Return and remove what a reader got after the checkpoint it is reset to, in assignment order (TRK-2).

        Args:
            subtask: The reader that is reset.
            restored_checkpoint: The checkpoint it goes back to; below every id given so far for "to the beginning".
        """
        taken: list[Split] = []
        for key in sorted(self._cut):
            if key > restored_checkpoint:
                taken += self._cut[key].pop(subtask, [])
        return taken + self._open.pop(subtask, [])
