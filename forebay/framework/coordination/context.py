# SPDX-License-Identifier: Apache-2.0
"""What an enumerator may do in a run: assign splits, send events, make asynchronous calls (CTX-1 … CTX-11)."""

from __future__ import annotations

import heapq
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from itertools import islice
from types import MappingProxyType
from typing import TypeVar

from forebay.clock import Clock
from forebay.errors import ContractError
from forebay.framework.coordination.inbox import (
    MAX_SPLITS_PER_MESSAGE,
    AddSplits,
    AsyncCalls,
    EnumeratorEvent,
    Gateway,
    Inbox,
    NoMoreSplits,
)
from forebay.framework.coordination.validation import repeated_id
from forebay.framework.discovery import KnownSplits
from forebay.framework.enumerator import SourceEvent, SplitEnumeratorContext
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.split import Position, Split

# -- The start positions of a run: positions that its user stored in an earlier run, by split id.


_log = logging.getLogger(__name__)


class StartPositions:
    """Moves each split to its start position, once. Used on the coordinator thread only.

    A split is moved when it is discovered, or when a connector's own `SplitEnumerator` first assigns it.
    """

    def __init__(self, source: str, positions: Mapping[str, Position]) -> None:
        self.given = bool(positions)
        self._source = source
        self._left = dict(positions)

    def __contains__(self, split_id: str) -> bool:
        return split_id in self._left

    def apply(self, split: Split) -> Split:
        """Return the split at its start position; unchanged if it has none, or if it was applied before."""
        return split.at(self._left.pop(split.id)) if split.id in self._left else split

    def warn_of_unused(self) -> None:
        """Log a warning if there are start positions that no split used."""
        if self._left:
            _log.warning(
                "%s: %d of the given start positions match no discovered split and are not used; one is for the split "
                "%r. If these splits still exist, check that their ids are the same as in the earlier run",
                self._source,
                len(self._left),
                next(iter(self._left)),
            )


# -- Records which splits were assigned after which checkpoint, so that a reset loses none (TRK-1 … TRK-3).


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


# -- The states of splits in a coordinator: NEW → ASSIGNED → FINISHED → FORGOTTEN.


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


T = TypeVar("T")


class CoordinatorContext(SplitEnumeratorContext):
    """The `SplitEnumeratorContext` that the coordinator gives to its enumerator.

    The enumerator may call the methods of `SplitEnumeratorContext` on any thread; those that change state run on the
    coordinator thread (CTX-9). The coordinator calls the other methods, on its own thread.
    """

    start_positions: StartPositions | None = None
    """Start positions for a connector's own `SplitEnumerator`; `DiscoveringEnumerator` applies them itself."""

    def __init__(
        self, source: str, runtime: Runtime, inbox: Inbox, tracker: AssignmentTracker, parallelism: int
    ) -> None:
        self._source = source
        self._runtime = runtime
        self._inbox = inbox
        self._tracker = tracker
        self._parallelism = parallelism
        self._gateways: dict[int, Gateway] = {}
        # Replaced, never changed, so that earlier views can be read on any thread.
        self._hosts: Mapping[int, str | None] = MappingProxyType({})
        self._no_more_sent: set[int] = set()
        self._holders: dict[str, int] = {}
        self.async_calls = AsyncCalls(source, runtime, inbox)

    # ---- called by the enumerator

    @property
    def clock(self) -> Clock:
        """The clock of the run."""
        return self._runtime.clock

    def current_parallelism(self) -> int:
        """Return the number of readers (CTX-4)."""
        return self._parallelism

    def registered_readers(self) -> Mapping[int, str | None]:
        """Return the live readers: subtask → host name, sorted by subtask (CTX-4)."""
        return self._hosts

    def assign_splits(self, assignment: Mapping[int, Sequence[Split]]) -> None:
        """Assign splits to readers, by subtask. After an error, no split is assigned (CTX-1 … CTX-3, SPL-1).

        Each message to a reader has at most `MAX_SPLITS_PER_MESSAGE` splits.
        """
        copied = {subtask: tuple(splits) for subtask, splits in assignment.items()}
        self._inbox.call(lambda: self._assign(copied))

    def signal_no_more_splits(self, subtask: int) -> None:
        """Tell a reader that it gets no more splits (CTX-3)."""
        self._inbox.call(lambda: self._signal_no_more(subtask))

    def send_event_to_reader(self, subtask: int, event: SourceEvent) -> None:
        """Send an event to a reader; events and assignments keep their order (CTX-10)."""
        self._inbox.call(lambda: self._gateway(subtask, "CTX-10")(EnumeratorEvent(event)))

    def call_async(
        self,
        work: Callable[[], T],
        handler: Callable[[T | None, BaseException | None], None],
        *,
        delay: float = 0.0,
        period: float | None = None,
    ) -> None:
        """Run `work` on another thread, then `handler` on the coordinator thread (CTX-5 … CTX-7); see `AsyncCalls`."""
        self._inbox.call(lambda: self.async_calls.call(work, handler, delay, period))

    def run_in_coordinator_thread(self, action: Callable[[], None]) -> None:
        """Queue an action for the coordinator thread, behind all earlier ones (CTX-8)."""
        self._inbox.post(action)

    # ---- called by the coordinator

    def register(self, subtask: int, host: str | None, gateway: Gateway) -> None:
        """Register a reader and the host name of its machine; `gateway` sends messages to the reader."""
        self._gateways[subtask] = gateway
        self._hosts = MappingProxyType(dict(sorted({**self._hosts, subtask: host}.items())))

    def unregister(self, subtask: int) -> None:
        """Remove a failed reader: it gets no more messages (COO-4)."""
        self._gateways.pop(subtask, None)
        self._hosts = MappingProxyType({each: host for each, host in self._hosts.items() if each != subtask})

    def clear_no_more_splits(self, subtask: int) -> None:
        """Forget that a reader got "no more splits", because its replacement did not get it (CTX-3)."""
        self._no_more_sent.discard(subtask)

    def accepts_request(self, subtask: int) -> bool:
        """Whether a reader may request a split: it is registered, and did not get "no more splits" (CTX-3)."""
        return subtask in self._hosts and subtask not in self._no_more_sent

    def holder(self, split_id: str) -> int | None:
        """Return the subtask of the reader that a split is assigned to; None if it is not assigned."""
        return self._holders.get(split_id)

    def release(self, split_id: str) -> None:
        """Record that a reader has finished or returned a split, so that its id may be assigned again."""
        self._holders.pop(split_id, None)

    def _assign(self, assignment: Mapping[int, tuple[Split, ...]]) -> None:
        for subtask in assignment:
            self._gateway(subtask, "CTX-2")
            if subtask in self._no_more_sent:
                raise self._broken(
                    f"splits were assigned to reader {subtask} after signal_no_more_splits({subtask})",
                    "CTX-3",
                    "assign to another reader, or signal only after every split is assigned",
                )
        self._check_unique([split for splits in assignment.values() for split in splits])
        if self.start_positions is not None:
            apply = self.start_positions.apply
            assignment = {subtask: tuple(map(apply, splits)) for subtask, splits in assignment.items()}
        for subtask, splits in assignment.items():
            self._tracker.record(subtask, splits)
            self._holders.update((split.id, subtask) for split in splits)
        for subtask, splits in assignment.items():
            for start in range(0, len(splits), MAX_SPLITS_PER_MESSAGE):
                self._gateways[subtask](AddSplits(splits[start : start + MAX_SPLITS_PER_MESSAGE]))

    def _check_unique(self, splits: Sequence[Split]) -> None:
        ids: set[str] = set()
        for split in splits:
            if not isinstance(split, Split):
                raise self._broken(f"assign_splits() got {split!r}, not a Split", "SPL-1", "assign Split objects")
            if split.id in ids or split.id in self._holders:
                raise self._broken(
                    f"the split {split.id!r} is already assigned",
                    "SPL-1",
                    "assign each split once, until add_splits_back returns it",
                    split.id,
                )
            ids.add(split.id)

    def _signal_no_more(self, subtask: int) -> None:
        if not 0 <= subtask < self._parallelism:
            raise self._broken(
                f"there is no reader {subtask!r}; the run has {self._parallelism}, counted from 0",
                "CTX-3",
                "take the number of readers from context.current_parallelism(): it may differ after a restart",
            )
        gateway = self._gateway(subtask, "CTX-3")
        self._no_more_sent.add(subtask)
        gateway(NoMoreSplits())

    def _gateway(self, subtask: int, rule: str) -> Gateway:
        gateway = self._gateways.get(subtask)
        if gateway is None:
            raise self._broken(
                f"reader {subtask!r} is not registered; the registered readers are {sorted(self._gateways)}",
                rule,
                "wait for add_reader, and check context.registered_readers() before each call",
            )
        return gateway

    def _broken(self, message: str, rule: str, advice: str, split: str | None = None) -> ContractError:
        return ContractError(message, source=self._source, split=split, rule=rule, advice=advice)
