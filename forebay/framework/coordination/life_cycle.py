# SPDX-License-Identifier: Apache-2.0
"""The states of splits in a coordinator: NEW → ASSIGNED → FINISHED → FORGOTTEN."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import Enum
from itertools import islice
from types import MappingProxyType

from forebay.framework.coordination.validation import repeated_id
from forebay.framework.discovery import KnownSplits
from forebay.framework.split import Split


class SplitState(Enum):
    """The state of a split in a `LifeCycle`."""

    NEW = "known, waiting for a reader"
    ASSIGNED = "given to a reader"
    FINISHED = "delivered to its end; its id is kept so that discovery cannot bring it again"
    FORGOTTEN = "below the horizon of discovery; its id is not kept"


class LifeCycle:
    """Holds all splits that are not forgotten, with their states. Used on the coordinator thread only.

    NEW splits wait in the order of discovery. Splits that readers returned go before them, because they have progress.
    """

    def __init__(self) -> None:
        self._splits: dict[str, Split] = {}
        # Unlike a dict, it does not step over all removed splits to its first one.
        self._new: OrderedDict[str, None] = OrderedDict()
        self._owner: dict[str, int | None] = {}
        self._finished: dict[str, None] = {}

    def __contains__(self, split_id: str) -> bool:
        return split_id in self._splits

    def known(self) -> KnownSplits:
        """Return a read-only copy of all splits by id, for use on any thread."""
        finished = {split_id: self._splits[split_id] for split_id in self._finished}
        unfinished = {split_id: split for split_id, split in self._splits.items() if split_id not in finished}
        return KnownSplits(MappingProxyType(unfinished), MappingProxyType(finished))

    def has_unfinished(self) -> bool:
        """Whether any split is NEW or ASSIGNED."""
        return bool(self._new or self._owner)

    def state(self, split_id: str) -> SplitState:
        """Return the state of a split; an unknown id counts as forgotten."""
        if split_id in self._new:
            return SplitState.NEW
        if split_id in self._owner:
            return SplitState.ASSIGNED
        return SplitState.FINISHED if split_id in self._finished else SplitState.FORGOTTEN

    def add(self, split: Split) -> None:
        """Add a NEW split.

        Raises:
            ContractError: The id is known (SPL-1).
        """
        if split.id in self._splits:
            raise repeated_id(None, split.id)
        self._splits[split.id] = split
        self._new[split.id] = None

    def assign(self, split_id: str, subtask: int | None) -> None:
        """Move a split from NEW to ASSIGNED; `subtask` is its reader, None if a reader held it before a restart."""
        del self._new[split_id]
        self._owner[split_id] = subtask

    def give_back(self, splits: list[Split]) -> None:
        """Move splits from any state to NEW, at their given positions, before all other NEW splits (ENU-3).

        A split may be FINISHED, if its reader was reset to an older checkpoint, or unknown.
        """
        for split in splits:
            self._leave_state(split.id)
            self._splits[split.id] = split
        for split in reversed(splits):
            self._new[split.id] = None
            self._new.move_to_end(split.id, last=False)

    def finish(self, split: Split) -> bool:
        """Move a split from ASSIGNED to FINISHED; in any other state (a late message) do nothing and return False."""
        if split.id not in self._owner:
            return False
        del self._owner[split.id]
        self._splits[split.id] = split
        self._finished[split.id] = None
        return True

    def drop(self, split_id: str) -> None:
        """Move a split from any state to FORGOTTEN, because it no longer exists or its id is not needed."""
        self._leave_state(split_id)
        self._splits.pop(split_id, None)

    def forget(self, below_horizon: Callable[[Split], bool]) -> list[Split]:
        """Move the FINISHED splits that no discovery can return (below the horizon) to FORGOTTEN; return them."""
        gone = [self._splits[split_id] for split_id in self._finished if below_horizon(self._splits[split_id])]
        for split in gone:
            self.drop(split.id)
        return gone

    def waiting(self, most: int | None = None) -> list[Split]:
        """Return the NEW splits, at most `most`, in the order of assignment."""
        return [self._splits[split_id] for split_id in islice(self._new, most)]

    def next_waiting(self) -> Split | None:
        """Return the NEW split that is assigned next, or None."""
        return next((self._splits[split_id] for split_id in self._new), None)

    def assigned(self) -> list[Split]:
        """Return the ASSIGNED splits, sorted by id, at the positions that they had when they were assigned."""
        return [self._splits[split_id] for split_id in sorted(self._owner)]

    def finished(self) -> list[Split]:
        """Return the FINISHED splits, sorted by id, at their last position."""
        return [self._splits[split_id] for split_id in sorted(self._finished)]

    def balanced(self, subtasks: Iterable[int]) -> dict[int, list[Split]]:
        """Divide the NEW splits over readers: each split goes to the reader with the fewest splits.

        If several readers have the fewest, the lowest subtask gets the split. The result is by subtask.
        """
        loads = dict.fromkeys(subtasks, 0)
        for owner in self._owner.values():
            if owner in loads:
                loads[owner] += 1
        heap = [(load, subtask) for subtask, load in loads.items()]
        heapq.heapify(heap)
        assignment: dict[int, list[Split]] = {}
        for split in self.waiting():
            load, subtask = heap[0]
            assignment.setdefault(subtask, []).append(split)
            heapq.heapreplace(heap, (load + 1, subtask))
        return assignment

    def _leave_state(self, split_id: str) -> None:
        for state in (self._new, self._owner, self._finished):
            state.pop(split_id, None)
