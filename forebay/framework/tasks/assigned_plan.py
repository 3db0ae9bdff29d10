# SPDX-License-Identifier: Apache-2.0
"""The enumerator of a planner; plans a bounded read whose splits a connector's own `SplitEnumerator` assigns."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.errors import ConfigurationError, FatalError
from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.coordination.validation import checked_enumerator
from forebay.framework.discovery import DiscoveryEnumerator
from forebay.framework.enumerator import SourceEvent, SplitEnumerator, SplitEnumeratorContext
from forebay.framework.reading.reader_context import event_refused
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.runtime.connector_errors import closing
from forebay.framework.source import Source
from forebay.framework.split import Split


def create_enumerator(
    source: Source, context: SplitEnumeratorContext, calls: ConnectorCalls
) -> DiscoveryEnumerator | SplitEnumerator:
    """Return a new enumerator of the source, created with `context`.

    Raises:
        ContractError: The source's `create_enumerator()` returned no enumerator.
    """
    made = calls.call("create_enumerator()", lambda: source.create_enumerator(context))
    return checked_enumerator(source, made)


class PlannedReader:
    """The one reader that an enumerator sees on Spark: it keeps the splits that it gets, for the plan."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._splits: list[Split] = []
        self.requested = False
        """Whether the reader has requested a split and got none yet."""

    def __len__(self) -> int:
        return len(self._splits)

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Keep the splits."""
        self._splits += splits
        self.requested = False

    def notify_no_more_splits(self) -> None:
        """Do nothing: the planner asks the coordinator."""

    def handle_source_event(self, event: SourceEvent) -> None:
        """Raise a ConfigurationError: Spark has no channel to send an event to readers."""
        raise event_refused(self._source, event)

    def take(self) -> list[Split]:
        """Return the splits since the last call, in the order of assignment."""
        splits, self._splits = self._splits, []
        return splits


def plan_assigned(source: Source, enumerator: SplitEnumerator, coordinator: Coordinator, timeout: float) -> list[Split]:
    """Request splits until the enumerator signals that there are no more, close it, and return them.

    If the source is unbounded, its enumerator may never signal: planning then fails as soon as all its asynchronous
    calls have got a result, see `AsyncCalls.awaited`.

    Args:
        source: The source.
        enumerator: Its enumerator, not started yet.
        coordinator: The context that `enumerator` was created with.
        timeout: Maximum seconds until all splits are assigned.

    Raises:
        ConfigurationError: The source is unbounded, and its enumerator did not call `signal_no_more_splits`.
        FatalError: The enumerator failed, or did not call `signal_no_more_splits` in time.
        ContractError: The enumerator broke a rule of the contract.
    """
    deadline = coordinator.clock.monotonic() + timeout
    reader = PlannedReader(source.name)
    # Not `coordinator.close(timeout)`: work in flight is dropped, not waited for.
    coordinator.attach(enumerator)
    with closing(source.name, lambda: coordinator.close(0.0)):
        coordinator.begin()
        coordinator.register(reader, None)
        while True:
            coordinator.signal.clear()
            left = deadline - coordinator.clock.monotonic()
            if left > 0 and coordinator.run_next():  # an enumerator that assigns splits without end is late too
                continue
            if coordinator.no_more:
                return reader.take()
            if not reader.requested and left > 0:
                reader.requested = True
                coordinator.request()
            elif not source.bounded and coordinator.is_idle(delayed=True):
                raise _unbounded(source.name)
            elif left <= 0:
                raise _late(source.name, timeout)
            else:
                due = coordinator.due_in()
                coordinator.signal.wait(left if due is None else min(left, due))


def _unbounded(source: str) -> ConfigurationError:
    return ConfigurationError(
        "an unbounded source cannot be read once, because its enumerator did not call signal_no_more_splits(0)",
        source=source,
        advice="read it with spark.readStream or forebay.run; or, in the connector, let the enumerator call "
        "context.signal_no_more_splits(0) after the last assignment if context.reads_once is True",
    )


def _late(source: str, timeout: float) -> FatalError:
    return FatalError(
        f"the enumerator did not call signal_no_more_splits(0) within {timeout:g} s",
        source=source,
        rule="ENU-2",
        advice="in the connector, call context.signal_no_more_splits(0) after the last assignment (of an "
        "unbounded source: if context.reads_once is True); or, if the work needs longer, raise planningTimeout",
    )
