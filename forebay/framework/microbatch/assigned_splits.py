# SPDX-License-Identifier: Apache-2.0
"""Provides the splits that a `SplitEnumerator` assigns in a stream.

Spark has no readers that live as long as the stream, so the enumerator sees one virtual reader, number 0.

```
restart   call restore_state, start, add_reader(0); splits that were assigned before are in the offset
poll      report finished splits and the complete checkpoint, run handlers of call_async, request splits while there
          is room
offset    holds the assigned splits that are not read yet, and the result of snapshot_state of the same moment
```
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping
from typing import Any, Final

from forebay.errors import ContractError, FatalError
from forebay.framework.coordination.coordinator import Coordinator, Handler
from forebay.framework.enumerator import SplitEnumerator
from forebay.framework.microbatch.offset import BEFORE_FIRST
from forebay.framework.microbatch.split_provider import LONGEST, PollResult, SplitProvider
from forebay.framework.runtime.clients import ConnectorCalls
from forebay.framework.runtime.connector_errors import wrap_errors
from forebay.framework.source import Source
from forebay.framework.split import Json, Split
from forebay.framework.tasks.assign_tasks import PlannedReader, create_enumerator

_SELDOM: Final = 1.0
"""If the previous poll is at least these seconds ago, a poll waits for the asynchronous calls that are now due (S7)."""

_DEPTH: Final = 3
"""How deep an AvailableNow run waits for nested asynchronous calls: a call, one that its handler makes, and so on."""

_MOST_ACTIONS: Final = 10_000
"""Maximum actions in one poll: an enumerator that queues actions endlessly must not stop the stream."""

_MOST_SPLITS: Final = 1_000_000
"""Maximum splits that an AvailableNow run takes when it begins; an enumerator that assigns more never stops."""


class AssignedReads:
    """Runs a `SplitEnumerator` for a bounded time in each poll of a stream. Called on the planning thread.

    A poll may wait for the asynchronous calls that the enumerator starts in it.

    Args:
        source: The name of the source.
        coordinator: The context of the enumerator.
        timeout: Maximum seconds to wait for asynchronous calls of `start`, and for all splits of an AvailableNow run.
    """

    def __init__(self, source: str, coordinator: Coordinator, *, timeout: float) -> None:
        self._source = source
        self._clock = coordinator.clock
        self._timeout = timeout
        self.coordinator = coordinator
        coordinator.async_calls.on_start = self._on_start
        coordinator.async_calls.now = lambda: self._began  # a call that becomes due in a poll starts in the next one
        self.no_more = False
        """Whether the enumerator has signalled that no split follows, also before a restart."""
        self._reader = PlannedReader(source)
        self._began = self._clock.monotonic()  # of this poll
        self._polls = 0
        self._polled_at = 0.0
        self._patient = False
        self._deepest = 1
        self._depth: int | None = None  # of asynchronous calls that start now; None: the poll does not wait for them
        self._pending = 0

    def collect(
        self,
        notify: Callable[[], None],
        unfinished_ids: Container[str],
        *,
        room: int,
        fresh: bool,
    ) -> list[Split]:
        """Run queued actions, request splits while there is room, and return the splits that were assigned.

        The first poll starts the enumerator, and waits for the asynchronous calls of its `start`. A poll more than a
        second after the previous one waits briefly for the asynchronous calls that have become due.

        Args:
            notify: Notifies the enumerator of finished splits and checkpoints.
            unfinished_ids: Ids of splits that are assigned and not finished.
            room: Maximum number of splits to request.
            fresh: An AvailableNow run begins: request splits until the enumerator has no more.

        Raises:
            FatalError: The enumerator failed, or did not answer in time.
            ContractError: The enumerator broke a rule of the contract.
        """
        now = self._began = self._clock.monotonic()
        first = not self.coordinator.registered_readers()
        strict = first or fresh
        self._patient = strict or now - self._polled_at >= _SELDOM
        self._deepest = _DEPTH if fresh else 1
        self._polls, self._pending = self._polls + 1, 0
        self.coordinator.held = unfinished_ids
        if first:
            self._awaited(self._begin)
        self._awaited(notify)
        deadline = now + (self._timeout if strict else LONGEST)
        self._run_queued(_MOST_SPLITS if fresh else room, deadline, strict=strict)
        self._polled_at = self._clock.monotonic()
        new = self._reader.take()
        self.coordinator.forget(new)
        self.no_more = self.no_more or self.coordinator.no_more
        return new

    def _begin(self) -> None:
        self.coordinator.begin()
        self.coordinator.register(self._reader, None)

    def _run_queued(self, room: int, deadline: float, *, strict: bool) -> None:
        for _ in range(_MOST_ACTIONS):
            self.coordinator.signal.clear()
            self.coordinator.due_in()
            self._pull(room, deadline, strict=strict)
            if self.coordinator.run_next():
                continue
            if not self._pending:
                return
            if (left := deadline - self._clock.monotonic()) > 0:
                self.coordinator.signal.wait(left)
            elif strict:
                raise self._late(f"the enumerator's call_async() returned no result within {self._timeout:g} s")
            else:
                return

    def _pull(self, room: int, deadline: float, *, strict: bool) -> None:
        while not (self.no_more or self.coordinator.no_more or self._reader.requested) and len(self._reader) < room:
            if self._clock.monotonic() >= deadline:
                if not strict:
                    return  # the next poll goes on
                raise self._late(f"the enumerator did not stop assigning splits within {self._timeout:g} s")
            # An enumerator without splits remembers the request, and may answer in any later poll.
            self._reader.requested = True
            self._awaited(self.coordinator.request)
        if len(self._reader) >= _MOST_SPLITS:
            raise self._late(f"the enumerator assigned {len(self._reader)} splits at once and did not stop")

    def _awaited(self, work: Callable[[], None], depth: int = 1) -> None:
        """Run `work`. If this poll waits for asynchronous calls, count those that `work` starts.

        `depth` is 1 for calls of the poll itself, 2 for calls that their handlers make, and so on.
        """
        self._depth = depth if self._patient and depth <= self._deepest else None
        try:
            work()
            self.coordinator.due_in()
        finally:
            self._depth = None

    def _on_start(self, handler: Handler) -> Handler:
        if self._depth is None:
            return handler
        poll, depth, self._pending = self._polls, self._depth, self._pending + 1

        def counted(result: object, error: BaseException | None) -> None:
            if poll == self._polls:
                self._pending -= 1
                self._awaited(lambda: handler(result, error), depth + 1)
            else:
                handler(result, error)

        return counted

    def _late(self, what: str) -> FatalError:
        return FatalError(
            f"{what}, so no micro-batch could be planned",
            source=self._source,
            rule="ENU-2",
            advice="in the connector, bound the time of call_async() work, and call signal_no_more_splits(0) when all "
            "splits are assigned",
        )


class AssignedSplitProvider(SplitProvider):
    """Provides the splits that an author's `SplitEnumerator` assigns. Their present ends are unknown.

    Args:
        source: The source.
        enumerator: The author's enumerator, not started yet.
        coordinator: The context that `enumerator` was created with.
        calls: Creates another enumerator with a time limit.
        new_coordinator: Makes the context of another enumerator, if the stream is set back to an earlier offset.
        timeout: See `AssignedReads`.
    """

    always_polls = True

    def __init__(
        self,
        source: Source,
        enumerator: SplitEnumerator,
        coordinator: Coordinator,
        calls: ConnectorCalls,
        new_coordinator: Callable[[], Coordinator],
        *,
        timeout: float,
    ) -> None:
        self._source = source
        coordinator.attach(enumerator)
        self._timeout = timeout
        self._reads = AssignedReads(source.name, coordinator, timeout=timeout)
        self._calls = calls
        self._new_coordinator = new_coordinator
        self._used = False
        self._reported: set[str] = set()
        self._committed = BEFORE_FIRST
        self._notified = BEFORE_FIRST
        self._known: Mapping[str, Split] = {}
        self._unfinished: Mapping[str, Split] = {}

    def due(self) -> float:
        """Return a time in the past, so that each call polls: handlers may be queued, and a poll costs little."""
        return float("-inf")

    def restore(self, state: Json) -> None:
        """Restore the enumerator from `state`, which `snapshot` returned.

        An enumerator that has run already is closed and replaced by a new one.
        """
        if self._used:
            self.close()
            coordinator = self._new_coordinator()
            made = create_enumerator(self._source, coordinator, self._calls)
            assert isinstance(made, SplitEnumerator)  # noqa: S101 - the first one was, of the same source
            coordinator.attach(made)
            self._reads = AssignedReads(self._source.name, coordinator, timeout=self._timeout)
        self._used = True
        stored: Mapping[str, Any] = state if isinstance(state, Mapping) else {}
        self._reads.no_more = bool(stored.get("noMore", False))
        self._reported = set(stored.get("told", ()))
        self._committed = self._notified = BEFORE_FIRST
        self._reads.coordinator.restore(stored.get("state"))

    def poll(
        self, known: Mapping[str, Split], unfinished: Mapping[str, Split], *, fresh: bool, room: int
    ) -> PollResult:
        """Notify the enumerator of finished splits and checkpoints, and return the splits that it assigns."""
        self._used = True
        committed = self._committed != self._notified
        self._known, self._unfinished = known, unfinished
        # Open splits without an end are in every micro-batch, so they do not count against the room for new ones.
        waiting = sum(
            1 for split in unfinished.values() if self._source.bounded or split.end is not None or split.ends_itself
        )
        room = max(0, room - waiting)
        new = self._reads.collect(self._notify, unfinished, room=room, fresh=fresh)
        self._reported.difference_update(split.id for split in new)
        # The enumerator's state holds what is not assigned yet, so splits reported to it can be forgotten.
        return PollResult(new, horizon=(lambda split: split.id in self._reported) if committed else None)

    def snapshot(self, n: int) -> Json:
        """Return the enumerator's state for the offset of micro-batch `n`. The offset has the assigned splits, too."""
        with wrap_errors(self._source.name, "snapshot_state()"):
            state = self._reads.coordinator.snapshot(n)
        try:
            state = json.loads(json.dumps(state, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ContractError(
                f"the result of snapshot_state() cannot be written as JSON: {error}",
                source=self._source.name,
                rule="ENU-5",
                advice="let snapshot_state() return None, bool, int, float, str, or lists and dicts of these",
            ) from error
        stored: dict[str, Json] = {} if state is None else {"state": state}  # [], {} and 0 are states too
        if self._reads.no_more:
            stored["noMore"] = True
        if reported := sorted(self._reported & (self._known.keys() - self._unfinished.keys())):
            stored["told"] = reported
        return stored

    def batch_committed(self, n: int) -> None:
        """Record that a micro-batch is committed; the next poll notifies the enumerator."""
        self._committed = n

    def close(self) -> None:
        """Close the author's enumerator, and drop the results of its asynchronous calls."""
        with wrap_errors(self._source.name, "close()"):
            self._reads.coordinator.close(0.0)

    def _notify(self) -> None:
        """If a micro-batch was committed since the last call, report newly finished splits, then the checkpoint.

        A split is reported once, also if the query restarts from a later offset.
        """
        if self._committed == self._notified:
            return
        done = {split_id: split for split_id, split in self._known.items() if split_id not in self._unfinished}
        ended = [split.at(split.end) for split_id, split in done.items() if split_id not in self._reported]
        self._reported = set(done)
        if ended:
            self._reads.coordinator.splits_finished(ended)
        self._notified = self._committed
        self._reads.coordinator.checkpoint_complete(self._committed)
