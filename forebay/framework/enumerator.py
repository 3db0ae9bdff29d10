# SPDX-License-Identifier: Apache-2.0
"""The contract of the side that knows the whole input: it discovers splits and gives them out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from forebay.clock import Clock
from forebay.errors import ContractError
from forebay.framework.events import SourceEvent
from forebay.framework.split import Json, Split

T = TypeVar("T")


class SplitEnumerator(ABC):
    """Discovers splits and assigns them to readers; one per query.

    The host calls every method on one thread, the coordinator's, never two at once (ENU-1). No method may block:
    slow work goes through `SplitEnumeratorContext.call_async`. Most authors extend `DiscoveryEnumerator` instead,
    which brings discovery, assignment, add-back and state along.

    On Spark an enumerator sees one virtual reader, subtask 0 of 1: requests come only while the micro-batch has
    room, and an assignment means "plan this".
    """

    def restore_state(self, state: Json) -> None:
        """Take back what `snapshot_state` gave. Called once, before `start`, only when there is a checkpoint (ENU-6).

        Splits that readers held at the checkpoint come through `add_splits_back`, after `start` (FLIP-537). On Spark
        the host keeps them: they are in the offset, and are not given back.

        Raises:
            ContractError: By default: the enumerator keeps state and does not say how to take it back.
        """
        if state is not None:
            raise ContractError(
                f"{type(self).__name__} snapshots state but does not override restore_state",
                rule="ENU-6",
                advice="override restore_state(state), the way back of snapshot_state()",
            )

    def start(self) -> None:
        """Begin: the first thing the coordinator thread runs. Start discovery here, with `call_async`."""

    @abstractmethod
    def handle_split_request(self, subtask: int, host: str | None) -> None:
        """A reader has room for a split (ENU-2): assign one, signal no more, or remember the requester.

        A reader asks when it starts, and again when it has finished a split. One without an end is never finished, so
        push those: assign them in `add_reader` and after each discovery, without being asked (ENU-11).

        Args:
            subtask: The reader that asks. It may have failed since; assigning to it then is an error to avoid by
                looking at `context.registered_readers()`.
            host: The name of the machine it runs on, if known.
        """

    @abstractmethod
    def add_splits_back(self, splits: Sequence[Split], subtask: int | None) -> None:
        """Splits come back, with their progress, and must become assignable again (ENU-3). May be an empty list.

        Called after a reader failed, before its replacement registers; and after a restore, with `subtask` None,
        for the splits that readers held at the checkpoint.
        """

    def add_reader(self, subtask: int) -> None:
        """A reader registered (ENU-4), once per registration; from here on assigning to it is legal."""

    def handle_source_event(self, subtask: int, event: SourceEvent) -> None:
        """A reader sent an event (ENU-8).

        Raises:
            ContractError: By default: no event is expected. Reject unknown events loudly or ignore them on purpose.
        """
        raise ContractError(
            f"{type(self).__name__} does not know the source event {type(event).__name__} of reader {subtask}",
            rule="ENU-8",
            advice="override handle_source_event(subtask, event)",
        )

    def handle_splits_finished(self, subtask: int, splits: Sequence[Split]) -> None:
        """A reader has delivered these splits to their end; `splits` are at their last position. Best effort order."""

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> Json:
        """Return what a new enumerator needs to go on (ENU-5), JSON-ready; what is assigned counts as delivered.

        A failure here fails that checkpoint only (COO-3).
        """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """A checkpoint is durable. Best effort: may be skipped, correctness must not hang on it (ENU-7)."""

    def close(self) -> None:
        """Free everything. Called once, on every path, also when `start` failed (ENU-9). Leave no thread behind."""


class SplitEnumeratorContext(ABC):
    """What the host offers an enumerator. Calls from other threads are moved to the coordinator thread (CTX-9)."""

    @property
    @abstractmethod
    def clock(self) -> Clock:
        """Where time comes from."""

    @property
    def streaming(self) -> bool:
        """Whether the host plans micro-batches of a stream: what comes later is then asked for too."""
        return False

    @abstractmethod
    def current_parallelism(self) -> int:
        """Return how many readers there are; may change on restore: ask every time (CTX-4)."""

    @abstractmethod
    def registered_readers(self) -> Mapping[int, str | None]:
        """Return a read-only view of the live readers: subtask → host name (CTX-4)."""

    @abstractmethod
    def assign_splits(self, assignment: Mapping[int, Sequence[Split]]) -> None:
        """Give splits to readers, in this order per reader (CTX-1). Recorded before it is sent.

        Raises:
            ContractError: A target is not registered: then nothing of the whole call is assigned (CTX-2); or a split
                id is already given out and not finished (SPL-1).
        """

    @abstractmethod
    def signal_no_more_splits(self, subtask: int) -> None:
        """Tell a reader that no split will follow; its later requests are dropped (CTX-3).

        A reader that is replaced must be told again.
        """

    @abstractmethod
    def send_event_to_reader(self, subtask: int, event: SourceEvent) -> None:
        """Send a source event; keeps its order with the assignments to that reader (CTX-10).

        Raises:
            ContractError: The reader is not registered.
        """

    @abstractmethod
    def call_async(
        self,
        work: Callable[[], T],
        handler: Callable[[T | None, BaseException | None], None],
        *,
        delay: float = 0.0,
        period: float | None = None,
    ) -> None:
        """Run `work` on a worker thread and `handler(result, error)` on the coordinator thread (CTX-5, CTX-6).

        `work` must not touch the enumerator's state. An error of `work` goes to the handler; an error of the handler
        fails the run. With `period` (seconds) it runs again at a fixed rate, and an error does not stop it (CTX-7).
        Work in flight when the host closes is dropped and never fails the run (CTX-11).
        """

    @abstractmethod
    def run_in_coordinator_thread(self, action: Callable[[], None]) -> None:
        """Queue an action for the coordinator thread; an error of it fails the run, and it must not block (CTX-8)."""
