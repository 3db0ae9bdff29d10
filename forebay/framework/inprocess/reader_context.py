# SPDX-License-Identifier: Apache-2.0
"""What the in-process host offers one attempt of a reader."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from typing import TypeVar

from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.events import SourceEvent
from forebay.framework.host_options import HostOptions
from forebay.framework.reader import SourceReaderContext
from forebay.framework.runtime.clients import Loans
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.options import Duration

C = TypeVar("C")

HOST = "localhost"
"""The host name of every reader of this host."""


class LocalReaderContext(SourceReaderContext):
    """The context of one reader, until it fails or closes.

    Args:
        source: Whose clients are leased.
        coordinator: Takes requests and events.
        runtime: Threads, locks, time and chance.
        options: The host's.
        subtask: The index of the reader.
        parallelism: How many readers there are.
    """

    def __init__(
        self,
        source: Source,
        coordinator: Coordinator,
        runtime: Runtime,
        options: HostOptions,
        subtask: int,
        parallelism: int,
    ) -> None:
        self._loans = Loans(source, runtime)
        self._coordinator: Coordinator | None = coordinator
        self._runtime = runtime
        self._options = options
        self._subtask = subtask
        self._parallelism = parallelism

    @property
    def runtime(self) -> Runtime:
        """Threads, locks, clock and random numbers."""
        return self._runtime

    @property
    def subtask(self) -> int:
        """The index of this reader, from 0."""
        return self._subtask

    @property
    def options(self) -> HostOptions:
        """The host's options; while closing, `close_timeout` is what is left of it for all readers together."""
        return self._options

    def current_parallelism(self) -> int:
        """Return how many readers there are."""
        return self._parallelism

    def send_split_request(self) -> None:
        """Ask the enumerator for a split."""
        if self._coordinator is not None:
            self._coordinator.handle_split_request(self._subtask, HOST)

    def send_source_event(self, event: SourceEvent) -> None:
        """Send an event to the enumerator."""
        if self._coordinator is not None:
            self._coordinator.handle_source_event(self._subtask, event)

    def lease(self, key: Hashable, factory: Callable[[], C]) -> C:
        """Borrow a client from this process until the reader closes."""
        return self._loans.borrow(key, factory)

    # ---- called by the host

    def detach(self, close_timeout: float) -> None:
        """From here on messages go nowhere, and `close` may take so many seconds."""
        self._coordinator = None
        self._options = dataclasses.replace(self._options, close_timeout=Duration(max(0.0, close_timeout)))

    def hand_back(self, *, failed: bool) -> list[Exception]:
        """Hand clients back, or close them after a failure; return what their `close` raised."""
        return self._loans.hand_back(failed=failed)
