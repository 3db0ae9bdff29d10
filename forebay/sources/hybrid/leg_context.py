# SPDX-License-Identifier: Apache-2.0
"""The contexts that a hybrid passes to the enumerator and the split reader of each leg (source)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from forebay.clock import Clock
from forebay.framework.enumerator import SourceEvent, SplitEnumeratorContext
from forebay.framework.reader import SourceReaderContext
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.split import Split

T = TypeVar("T")


class LegEnumeratorContext(SplitEnumeratorContext):
    """The context of a leg's enumerator. It tells each leg but the last that the host reads once and does not stream.

    Args:
        outer: The host's context.
        leg: The index of the leg, from 0.
        last: Whether it is the last leg.
    """

    def __init__(self, outer: SplitEnumeratorContext, leg: int, *, last: bool) -> None:
        self._outer = outer
        self._leg = leg
        self._last = last

    @property
    def clock(self) -> Clock:
        """The clock of the host."""
        return self._outer.clock

    @property
    def streaming(self) -> bool:
        """Whether the host plans a stream and this is the last leg."""
        return self._last and self._outer.streaming

    @property
    def reads_once(self) -> bool:
        """Whether this leg is discovered once: each leg but the last is; the last is if the read is planned at once."""
        return not self._last or self._outer.reads_once

    @property
    def follows_history(self) -> bool:
        """Whether another source is read before this leg."""
        return self._leg > 0 or self._outer.follows_history

    def current_parallelism(self) -> int:
        """Return the number of readers."""
        return self._outer.current_parallelism()

    def registered_readers(self) -> Mapping[int, str | None]:
        """Return the live readers of the host: subtask → host name."""
        return self._outer.registered_readers()

    def assign_splits(self, assignment: Mapping[int, Sequence[Split]]) -> None:
        """Pass the call on to the host's context."""
        self._outer.assign_splits(assignment)

    def signal_no_more_splits(self, subtask: int) -> None:
        """Pass the call on to the host's context."""
        self._outer.signal_no_more_splits(subtask)

    def send_event_to_reader(self, subtask: int, event: SourceEvent) -> None:
        """Pass the call on to the host's context."""
        self._outer.send_event_to_reader(subtask, event)

    def call_async(
        self,
        work: Callable[[], T],
        handler: Callable[[T | None, BaseException | None], None],
        *,
        delay: float = 0.0,
        period: float | None = None,
    ) -> None:
        """Pass the call on to the host's context."""
        self._outer.call_async(work, handler, delay=delay, period=period)

    def run_in_coordinator_thread(self, action: Callable[[], None]) -> None:
        """Pass the call on to the host's context."""
        self._outer.run_in_coordinator_thread(action)


class LegReaderContext(SourceReaderContext):
    """The context of a leg's split reader: that of the host, except `ends_are_promises`.

    Args:
        outer: The host's context.
        last: Whether it is the last leg.
    """

    def __init__(self, outer: SourceReaderContext, *, last: bool) -> None:
        self._outer = outer
        self._last = last

    @property
    def runtime(self) -> Runtime:
        """The host's provider of threads, locks, time and random numbers."""
        return self._outer.runtime

    @property
    def subtask(self) -> int:
        """The index of the host's reader."""
        return self._outer.subtask

    @property
    def options(self) -> HostOptions:
        """The host's options."""
        return self._outer.options

    @property
    def ends_are_promises(self) -> bool:
        """Whether the next read starts at the ends of this leg's splits.

        False for each leg before the last one, because such a leg has no next read.
        """
        return self._last and self._outer.ends_are_promises

    def current_parallelism(self) -> int:
        """Return the number of readers."""
        return self._outer.current_parallelism()

    def send_split_request(self) -> None:
        """Pass the call on to the host's context."""
        self._outer.send_split_request()

    def send_source_event(self, event: SourceEvent) -> None:
        """Pass the call on to the host's context."""
        self._outer.send_source_event(event)

    def lease(self, key: Hashable, factory: Callable[[], T]) -> T:
        """Borrow a client of this process from the host's context."""
        return self._outer.lease(key, factory)
