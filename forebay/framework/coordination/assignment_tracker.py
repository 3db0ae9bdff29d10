# SPDX-License-Identifier: Apache-2.0
"""Records which splits were assigned after which checkpoint, so that a reset loses none (TRK-1 … TRK-3)."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.framework.split import Split


class AssignmentTracker:
    """Keeps assignments until a completed checkpoint contains them. Used on the coordinator thread only.

    A completed checkpoint contains the splits that were assigned before it, in the snapshots of their readers. Splits
    that were assigned later are recorded only here. When their reader is reset, they return to the enumerator.

    Example (TRK-2): assign {0}; checkpoint 100; assign {3}; checkpoint 101. `take` returns {0, 3} for a reset to
    checkpoint 99, {3} for a reset to 100, and nothing for a reset to 101.
    """

    def __init__(self) -> None:
        self._open: dict[int, list[Split]] = {}
        self._cut: dict[int, dict[int, list[Split]]] = {}

    def record(self, subtask: int, splits: Sequence[Split]) -> None:
        """Record that splits are assigned to a reader. Called before they are sent to it (CTX-1)."""
        self._open.setdefault(subtask, []).extend(splits)

    def cut(self, checkpoint_id: int) -> None:
        """Begin a checkpoint: it contains the assignments since the previous one (TRK-1).

        Called before the enumerator's snapshot.
        """
        cut, self._open = self._open, {}
        if cut:
            self._cut[checkpoint_id] = cut

    def complete(self, checkpoint_id: int) -> None:
        """Forget the assignments of a durable checkpoint and of all earlier ones, completed or not (TRK-3)."""
        self._cut = {key: cut for key, cut in self._cut.items() if key > checkpoint_id}

    def take(self, subtask: int, restored_checkpoint: int) -> list[Split]:
        """Remove and return the splits that a reader got after `restored_checkpoint`, in assignment order (TRK-2).

        Checkpoint ids increase. For a `restored_checkpoint` below all of them, all recorded splits are returned.
        """
        taken: list[Split] = []
        for key in sorted(self._cut):
            if key > restored_checkpoint:
                taken += self._cut[key].pop(subtask, [])
        return taken + self._open.pop(subtask, [])
