# SPDX-License-Identifier: Apache-2.0
"""What an enumerator may do in a run: assign splits, send events, make asynchronous calls (CTX-1 … CTX-11)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from forebay.clock import Clock
from forebay.errors import ContractError
from forebay.framework.coordination.assignment_tracker import AssignmentTracker
from forebay.framework.coordination.async_calls import AsyncCalls
from forebay.framework.coordination.inbox import Inbox
from forebay.framework.coordination.messages import (
    MAX_SPLITS_PER_MESSAGE,
    AddSplits,
    EnumeratorEvent,
    Gateway,
    NoMoreSplits,
)
from forebay.framework.coordination.start_positions import StartPositions
from forebay.framework.enumerator import SourceEvent, SplitEnumeratorContext
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.split import Split

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
