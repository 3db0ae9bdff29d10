# SPDX-License-Identifier: Apache-2.0
"""The life of a split: NEW → ASSIGNED → FINISHED → FORGOTTEN."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from types import MappingProxyType

from forebay.errors import ContractError
from forebay.framework.split import Split


class SplitState(Enum):
    """Where a split stands."""

    NEW = "known, waiting for a reader"
    ASSIGNED = "given to a reader"
    FINISHED = "delivered to its end; its id is kept so that discovery cannot bring it again"
    FORGOTTEN = "below the horizon of discovery; its id is not kept"


class LifeCycle:
    """Every split not yet forgotten, with its state. Called on the coordinator thread only.

    New splits wait in the order they came; returned ones go before them, since they have progress to save.
    """

    def __init__(self) -> None:
        self._splits: dict[str, Split] = {}
        self._new: dict[str, None] = {}
        self._owner: dict[str, int | None] = {}
        self._finished: dict[str, None] = {}

    def __contains__(self, split_id: str) -> bool:
        return split_id in self._splits

    def __getitem__(self, split_id: str) -> Split:
        return self._splits[split_id]

    def known(self) -> Mapping[str, Split]:
        """Return a read-only copy of all splits not yet forgotten, by id, safe to hand to another thread."""
        return MappingProxyType(dict(self._splits))

    def state(self, split_id: str) -> SplitState:
        """Return where a split stands; an id never seen is no different from a forgotten one."""
        if split_id in self._new:
            return SplitState.NEW
        if split_id in self._owner:
            return SplitState.ASSIGNED
        return SplitState.FINISHED if split_id in self._finished else SplitState.FORGOTTEN

    def add(self, split: Split) -> None:
        """Begin a life.

        Raises:
            ContractError: A split of this id is alive (SPL-1).
        """
        if split.id in self._splits:
            raise ContractError(
                f"two splits have the id {split.id!r}",
                split=split.id,
                rule="SPL-1",
                advice="make ids unique and stable: derive them from what the split is",
            )
        self._splits[split.id] = split
        self._new[split.id] = None

    def assign(self, split_id: str, subtask: int | None) -> None:
        """NEW → ASSIGNED; `subtask` is None for a split that a reader held before a restart."""
        del self._new[split_id]
        self._owner[split_id] = subtask

    def give_back(self, splits: list[Split]) -> None:
        """Back to NEW, with the progress made, before all that wait (ENU-3).

        Whoever returns a split knows best: it may even be finished here, when its reader went back to a checkpoint
        from before its end, or unknown.
        """
        for split in splits:
            self._leave_state(split.id)
            self._splits[split.id] = split
        self._new = dict.fromkeys([split.id for split in splits]) | self._new

    def finish(self, split: Split) -> bool:
        """ASSIGNED → FINISHED; return False, and do nothing, in any other state (a late or repeated message)."""
        if split.id not in self._owner:
            return False
        del self._owner[split.id]
        self._splits[split.id] = split
        self._finished[split.id] = None
        return True

    def drop(self, split_id: str) -> None:
        """Forget a split in whatever state, because its input is gone."""
        self._leave_state(split_id)
        self._splits.pop(split_id, None)

    def forget(self, below_horizon: Callable[[Split], bool]) -> list[Split]:
        """FINISHED → FORGOTTEN for what no discovery can return; return the forgotten splits."""
        gone = [self._splits[split_id] for split_id in self._finished if below_horizon(self._splits[split_id])]
        for split in gone:
            self.drop(split.id)
        return gone

    def waiting(self) -> list[Split]:
        """Return the NEW splits, in the order they are to be assigned."""
        return [self._splits[split_id] for split_id in self._new]

    def next_waiting(self) -> Split | None:
        """Return the NEW split to assign next, or None."""
        return next((self._splits[split_id] for split_id in self._new), None)

    def assigned(self) -> list[Split]:
        """Return the ASSIGNED splits by id, as they were when assigned."""
        return [self._splits[split_id] for split_id in sorted(self._owner)]

    def finished(self) -> list[Split]:
        """Return the FINISHED splits by id, at their last position."""
        return [self._splits[split_id] for split_id in sorted(self._finished)]

    def loads(self, subtasks: Iterable[int]) -> dict[int, int]:
        """Return how many splits each of these readers holds."""
        loads = dict.fromkeys(subtasks, 0)
        for owner in self._owner.values():
            if owner in loads:
                loads[owner] += 1
        return loads

    def _leave_state(self, split_id: str) -> None:
        self._new.pop(split_id, None)
        self._owner.pop(split_id, None)
        self._finished.pop(split_id, None)
