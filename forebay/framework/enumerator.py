# SPDX-License-Identifier: Apache-2.0
"""The contract of the planning side: an enumerator discovers splits and assigns them to readers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar, dataclass_transform

from forebay.clock import Clock
from forebay.errors import ContractError
from forebay.framework.split import Json, Split

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
class SourceEvent:
    """A message between a source's enumerator and its readers (EVT-1). Subclass it with annotated, picklable fields.

    A subclass becomes a frozen dataclass without a decorator: ``class Done(SourceEvent): split: str``. It may also have
    its own `__init__`, or the decorator.

    Sent by `SplitEnumeratorContext.send_event_to_reader` and `SourceReaderContext.send_source_event`. Events and
    assignments to one reader keep their order (CTX-10). Only the in-process host delivers events; on Spark sending one
    is an error.
    """

    def __new__(cls, *_: object, **__: object) -> Self:
        """Return a new event. The first one makes a frozen dataclass of a class without `__init__` or decorator."""
        # Not when the class is made: a frozen dataclass cannot be decorated once more.
        if not {"__dataclass_fields__", "__init__"} & vars(cls).keys():
            parameters = (getattr(base, "__dataclass_params__", None) for base in cls.__mro__[1:])
            dataclass(frozen=all(each is None or each.frozen for each in parameters))(cls)
        return super().__new__(cls)


class SplitEnumerator(ABC):
    """Discovers splits and assigns them to readers; one per query.

    The host calls all methods on the coordinator thread, one at a time (ENU-1). No method may block: run slow work with
    `SplitEnumeratorContext.call_async`. Most authors extend `DiscoveryEnumerator` instead: the framework then
    assigns splits, takes them back and stores state.

    On Spark there is one virtual reader, subtask 0. It requests splits only while the micro-batch has room. A split
    that is assigned to it becomes part of the micro-batch.
    """

    def restore_state(self, state: Json) -> None:
        """Restore a result of `snapshot_state`. Called once, before `start`, if there is a checkpoint (ENU-6).

        The state lacks the splits that readers held. The host passes these to `add_splits_back` after `start`
        (FLIP-537). On Spark they stay in the offset instead.

        Raises:
            ContractError: By default, for any state.
        """
        if state is not None:
            raise ContractError(
                f"there is a stored state of {type(self).__name__}, which does not override restore_state()",
                rule="ENU-6",
                advice="override restore_state(state) in the enumerator; it gets a result of snapshot_state()",
            )

    def start(self) -> None:
        """Start discovery with `call_async`. Called once, before all other methods except `restore_state`."""

    @abstractmethod
    def handle_split_request(self, subtask: int, host: str | None) -> None:
        """Answer a reader's request: assign a split, signal that no more follow, or remember the request (ENU-2).

        A reader requests a split when it starts and each time it finishes one. A split without an end never finishes.
        So assign such splits in `add_reader` and after each discovery, without a request (ENU-11).

        Args:
            subtask: The index of the reader. A reader may fail after its request: check `context.registered_readers()`
                before assigning.
            host: The name of the reader's machine; None if unknown.
        """

    @abstractmethod
    def add_splits_back(self, splits: Sequence[Split], subtask: int | None) -> None:
        """Take back splits, at the positions that they reached, and make them assignable again (ENU-3).

        Called after a reader failed, before its replacement registers; `splits` may be empty. After a restore, it is
        called with `subtask` None and the splits that readers held at the checkpoint.
        """

    def add_reader(self, subtask: int) -> None:
        """Handle the registration of a reader: splits may be assigned to it from now on (ENU-4)."""

    def handle_source_event(self, subtask: int, event: SourceEvent) -> None:
        """Handle an event that a reader sent. Raise an error for unknown events, or ignore them on purpose (ENU-8).

        Raises:
            ContractError: By default, for any event.
        """
        raise ContractError(
            f"reader {subtask} sent the event {type(event).__name__}, which {type(self).__name__} does not handle",
            rule="ENU-8",
            advice="override handle_source_event(subtask, event) in the enumerator",
        )

    def handle_splits_finished(self, subtask: int, splits: Sequence[Split]) -> None:
        """Handle splits that a reader has delivered to their end, each at its last position, in any order."""

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> Json:
        """Return the state from which a new enumerator continues, JSON-ready, without the splits of readers (ENU-5).

        An error of this method fails the checkpoint, not the run (COO-3).
        """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Handle the notice that a checkpoint is durable. Best effort: correctness must not depend on it (ENU-7)."""

    def close(self) -> None:
        """Free all resources and end all threads. Called once on every path, also after a failed `start` (ENU-9)."""


class SplitEnumeratorContext(ABC):
    """What a host offers to an enumerator. Calls from other threads are run on the coordinator thread (CTX-9)."""

    @property
    @abstractmethod
    def clock(self) -> Clock:
        """The clock of the host."""

    @property
    def streaming(self) -> bool:
        """Whether the host plans micro-batches of a stream, and so requests splits repeatedly."""
        return False

    @property
    def reads_once(self) -> bool:
        """Whether the host plans the whole read at once, with one discovery, as a batch read on Spark does."""
        return False

    @property
    def follows_history(self) -> bool:
        """Whether other sources were read before this one, as in a hybrid source.

        If True and the user set no start, the source must start at its earliest record, so that no record is left out.
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
        """Assign splits to readers, by subtask; a reader gets its splits in the given order (CTX-1).

        The host records an assignment before it sends the splits to the reader.

        Raises:
            ContractError: A reader is not registered (CTX-2), or a split is assigned already and not finished
                (SPL-1). Then no split of the call is assigned.
        """

    @abstractmethod
    def signal_no_more_splits(self, subtask: int) -> None:
        """Tell a reader that it gets no more splits. Its later requests are dropped (CTX-3).

        If the reader is replaced after a failure, call this method for the replacement too.
        """

    @abstractmethod
    def send_event_to_reader(self, subtask: int, event: SourceEvent) -> None:
        """Send an event to a reader. Events and assignments to one reader keep their order (CTX-10).

        Raises:
            ContractError: The reader is not registered.
            ConfigurationError: The host delivers no events (Spark).
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
        fails the run. When the host closes, the result of running work is dropped and does not fail the run (CTX-11).

        Args:
            work: Called without arguments; may block.
            handler: Takes the result or the error.
            delay: Seconds before the first run.
            period: Seconds from one run to the next, at a fixed rate, also after errors (CTX-7); None = once.
        """

    @abstractmethod
    def run_in_coordinator_thread(self, action: Callable[[], None]) -> None:
        """Queue an action for the coordinator thread. The action must not block; its error fails the run (CTX-8)."""
