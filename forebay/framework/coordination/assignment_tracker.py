# SPDX-License-Identifier: Apache-2.0
"""Records which splits each reader got since which checkpoint, so that a reset loses none (TRK-1 … TRK-3)."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.framework.split import Split


class AssignmentTracker:
    """Keeps assignments until a completed checkpoint contains them. Used on the coordinator thread only.

    A completed checkpoint contains the splits assigned before it, in the state of their reader. Splits assigned later
    are only here, for the reset of their reader.

    Example (TRK-2): assign {0}; checkpoint 100; assign {3}; checkpoint 101. A reset to 99 takes {0, 3}, to 100 takes
    {3}, to 101 takes nothing.
    """

    def __init__(self) -> None:
        self._open: dict[int, list[Split]] = {}
        self._cut: dict[int, dict[int, list[Split]]] = {}

    def record(self, subtask: int, splits: Sequence[Split]) -> None:
        """Record an assignment. Called before it is sent (CTX-1)."""
        self._open.setdefault(subtask, []).extend(splits)

    def cut(self, checkpoint_id: int) -> None:
        """Begin a checkpoint: open assignments belong to it (TRK-1). Called before the enumerator's snapshot."""
        cut, self._open = self._open, {}
        if cut:
            self._cut[checkpoint_id] = cut

    def complete(self, checkpoint_id: int) -> None:
        """Forget the assignments of a durable checkpoint and of all earlier ones, completed or not (TRK-3)."""
        self._cut = {key: cut for key, cut in self._cut.items() if key > checkpoint_id}

    def take(self, subtask: int, restored_checkpoint: int) -> list[Split]:
        """Remove and return the splits that a reader got after a checkpoint, in assignment order (TRK-2).

        A checkpoint lower than all ids means "to the beginning".
        """
        taken: list[Split] = []
        for key in sorted(self._cut):
            if key > restored_checkpoint:
                taken += self._cut[key].pop(subtask, [])
        return taken + self._open.pop(subtask, [])
