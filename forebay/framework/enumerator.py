# SPDX-License-Identifier: Apache-2.0
"""The contract of the planning side: an enumerator discovers splits and assigns them to readers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from forebay.clock import Clock
from forebay.errors import ContractError
from forebay.framework.split import Json, Split

T = TypeVar("T")


class SourceEvent:
    """A message between a source's enumerator and its readers (EVT-1). Subclass it, frozen and picklable.

    Sent by `SplitEnumeratorContext.send_event_to_reader` and `SourceReaderContext.send_source_event`. Events and
    assignments to one reader keep their order (CTX-10). The in-process host delivers events; Spark has no such channel
    and refuses them by name.
    """


class SplitEnumerator(ABC):
    """Discovers splits and assigns them to readers; one per query.

    The host calls all methods on the coordinator thread, one at a time (ENU-1). No method may block: run slow work with
    `SplitEnumeratorContext.call_async`. Most authors extend `DiscoveryEnumerator` instead, which assigns splits, takes
    them back and stores state.

    On Spark there is one virtual reader, subtask 0 of 1. It requests splits only while the micro-batch has room, and an
    assignment adds the split to the plan.
    """

    def restore_state(self, state: Json) -> None:
        """Restore what `snapshot_state` returned. Called once, before `start`, if there is a checkpoint (ENU-6).

        After `start`, `add_splits_back` returns the splits that readers held (FLIP-537). On Spark they stay in the
        offset instead.

        Raises:
            ContractError: By default, for any state.
        """
        if state is not None:
            raise ContractError(
                f"{type(self).__name__} snapshots state but does not override restore_state",
                rule="ENU-6",
                advice="override restore_state(state), which restores what snapshot_state() returns",
            )

    def start(self) -> None:
        """Start discovery, with `call_async`. Called first on the coordinator thread, after `restore_state` alone."""

    @abstractmethod
    def handle_split_request(self, subtask: int, host: str | None) -> None:
        """Answer a reader that has room for a split (ENU-2): assign one, signal no more, or remember the request.

        A reader requests a split when it starts and each time it finishes one. It never finishes a split without an
        end, so assign unbounded splits in `add_reader` and after each discovery, without a request (ENU-11).

        Args:
            subtask: The reader. It may have failed since: check `context.registered_readers()` before assigning.
            host: The name of its machine, if known.
        """

    @abstractmethod
    def add_splits_back(self, splits: Sequence[Split], subtask: int | None) -> None:
        """Take splits back, with their progress, and make them assignable again (ENU-3). The list may be empty.

        Called after a reader failed, before its replacement registers. After a restore, it is called with `subtask`
        None and the splits that readers held at the checkpoint.
        """

    def add_reader(self, subtask: int) -> None:
        """Called once per registration of a reader, which can be assigned splits from now on (ENU-4)."""

    def handle_source_event(self, subtask: int, event: SourceEvent) -> None:
        """Handle an event of a reader. Refuse unknown events, or ignore them deliberately (ENU-8).

        Raises:
            ContractError: By default, for any event.
        """
        raise ContractError(
            f"{type(self).__name__} does not know the source event {type(event).__name__} of reader {subtask}",
            rule="ENU-8",
            advice="override handle_source_event(subtask, event)",
        )

    def handle_splits_finished(self, subtask: int, splits: Sequence[Split]) -> None:
        """Called after a reader delivered splits to their end. Each has its last position; the order is undefined."""

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> Json:
        """Return the state that a new enumerator needs (ENU-5), JSON-ready, without the splits that readers hold.

        An error fails only this checkpoint (COO-3).
        """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Called when a checkpoint is durable. Best effort: correctness must not depend on this call (ENU-7)."""

    def close(self) -> None:
        """Free all resources and end all threads. Called once on every path, also after a failed `start` (ENU-9)."""


class SplitEnumeratorContext(ABC):
    """The host, as an enumerator sees it. Calls from other threads move to the coordinator thread (CTX-9)."""

    @property
    @abstractmethod
    def clock(self) -> Clock:
        """The time source."""

    @property
    def streaming(self) -> bool:
        """Whether the host plans micro-batches of a stream, and so requests splits repeatedly."""
        return False

    @property
    def reads_once(self) -> bool:
        """Whether the host plans a whole read at once, as a batch read on Spark: there is one discovery."""
        return False

    @property
    def follows_history(self) -> bool:
        """Whether other sources were read before this one, as in a hybrid.

        A source without a start set by the user then starts at its earliest record, so that no record is left out.
        """
        return False

    @abstractmethod
    def current_parallelism(self) -> int:
        """Return the number of readers. It may change on restore, so do not store it (CTX-4)."""

    @abstractmethod
    def registered_readers(self) -> Mapping[int, str | None]:
        """Return a read-only view of the live readers: subtask → host name (CTX-4)."""

    @abstractmethod
    def assign_splits(self, assignment: Mapping[int, Sequence[Split]]) -> None:
        """Assign splits to readers, in this order per reader (CTX-1). Recorded before it is sent.

        Raises:
            ContractError: A reader is not registered (CTX-2), or a split is assigned already and not finished
                (SPL-1). Then no split of the call is assigned.
        """

    @abstractmethod
    def signal_no_more_splits(self, subtask: int) -> None:
        """Tell a reader that no split follows; its later requests are dropped. Repeat it for a replacement (CTX-3)."""

    @abstractmethod
    def send_event_to_reader(self, subtask: int, event: SourceEvent) -> None:
        """Send an event, in order with the assignments to that reader (CTX-10).

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
        """Run `work` on a worker thread, then `handler(result, error)` on the coordinator thread (CTX-5, CTX-6).

        `work` must not touch the enumerator's state. An error of `work` goes to the handler; an error of the handler
        fails the run. When the host closes, work in flight is dropped and never fails the run (CTX-11).

        Args:
            work: Called without arguments; may block.
            handler: Takes the result or the error.
            delay: Seconds before the first run.
            period: Seconds from one run to the next, at a fixed rate, also after errors (CTX-7); None = once.
        """

    @abstractmethod
    def run_in_coordinator_thread(self, action: Callable[[], None]) -> None:
        """Queue an action for the coordinator thread. It must not block; its error fails the run (CTX-8)."""
