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
from forebay.framework.coordination.inbox import Handler
from forebay.framework.enumerator import SplitEnumerator
from forebay.framework.microbatch.offset import BEFORE_FIRST
from forebay.framework.microbatch.split_provider import LONGEST, PollResult, SplitProvider
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.runtime.connector_errors import wrap_errors
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Json, Split
from forebay.framework.tasks.planning_context import PlanningContext, create_enumerator

_SELDOM: Final = 1.0
"""If the previous poll is at least these seconds ago, a poll waits for the asynchronous calls that are now due (S7)."""

_DEPTH: Final = 3
"""How deep an AvailableNow run waits for nested asynchronous calls: a call, one that its handler makes, and so on."""

_MOST_ACTIONS: Final = 10_000
"""Maximum actions in one poll: an enumerator that queues actions endlessly must not stop the stream."""

_MOST_SPLITS: Final = 1_000_000
"""Maximum splits that an AvailableNow run takes when it begins; an enumerator that assigns more never stops."""


class AssignedContext(PlanningContext):
    """Runs a `SplitEnumerator` for a bounded time in each poll of a stream. Called on the planning thread.

    A poll may wait for the asynchronous calls that the enumerator starts in it.

    Args:
        timeout: Maximum seconds to wait for asynchronous calls of `start`, and for all splits of an AvailableNow run.
    """

    def __init__(self, source: str, runtime: Runtime, *, timeout: float) -> None:
        super().__init__(source, runtime, timeout=timeout, streaming=True)
        self._began = runtime.clock.monotonic()  # of this poll
        self._polls = 0
        self._polled_at = 0.0
        self._patient = False
        self._deepest = 1
        self._depth: int | None = None  # of asynchronous calls that start now; None: the poll does not wait for them
        self._pending = 0

    def collect(
        self,
        enumerator: SplitEnumerator,
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
            enumerator: The enumerator; the same object in each call.
            notify: Notifies the enumerator of finished splits and checkpoints.
            unfinished_ids: Ids of splits that are assigned and not finished.
            room: Maximum number of splits to request.
            fresh: An AvailableNow run begins: request splits until the enumerator has no more.

        Raises:
            FatalError: The enumerator failed, or did not answer in time.
            ContractError: The enumerator broke a rule of the contract.
        """
        now = self._began = self.clock.monotonic()
        first = not self._registered
        strict = first or fresh
        self._patient = strict or now - self._polled_at >= _SELDOM
        self._deepest = _DEPTH if fresh else 1
        self._held, self._polls, self._pending = unfinished_ids, self._polls + 1, 0
        if first:
            self._awaited(lambda: self._begin(enumerator))
        self._awaited(notify)
        deadline = now + (self._timeout if strict else LONGEST)
        self._run_queued(_MOST_SPLITS if fresh else room, deadline, strict=strict)
        self._polled_at = self.clock.monotonic()
        new, self._assigned = list(self._assigned.values()), {}
        return new

    def _run_queued(self, room: int, deadline: float, *, strict: bool) -> None:
        for _ in range(_MOST_ACTIONS):
            self._signal.clear()
            self._async_calls.fire_due()
            self._pull(room, deadline, strict=strict)
            if (action := self._inbox.take()) is not None:
                self._run("a handler of the enumerator", action)
            elif not self._pending:
                return
            elif (left := deadline - self.clock.monotonic()) > 0:
                self._signal.wait(left)
            elif strict:
                raise self._late(f"the enumerator's call_async() returned no result within {self._timeout:g} s")
            else:
                return

    def _pull(self, room: int, deadline: float, *, strict: bool) -> None:
        while not (self.no_more or self._requested) and len(self._assigned) < room:
            if self.clock.monotonic() >= deadline:
                if not strict:
                    return  # the next poll goes on
                raise self._late(f"the enumerator did not stop assigning splits within {self._timeout:g} s")
            # An enumerator without splits remembers the request, and may answer in any later poll.
            self._awaited(self._request)
        if len(self._assigned) >= _MOST_SPLITS:
            raise self._late(f"the enumerator assigned {len(self._assigned)} splits at once and did not stop")

    def _awaited(self, work: Callable[[], None], depth: int = 1) -> None:
        """Run `work`. If this poll waits for asynchronous calls, count those that `work` starts.

        `depth` is 1 for calls of the poll itself, 2 for calls that their handlers make, and so on.
        """
        self._depth = depth if self._patient and depth <= self._deepest else None
        try:
            work()
            self._async_calls.fire_due()
        finally:
            self._depth = None

    def _now(self) -> float:
        """Return the time when this poll began: a call whose time comes during a poll starts in the next one."""
        return self._began

    def _on_start(self, handler: Handler) -> Handler | None:
        handled = super()._on_start(handler)
        if handled is None or self._depth is None:
            return handled
        poll, depth, self._pending = self._polls, self._depth, self._pending + 1

        def counted(result: object, error: BaseException | None) -> None:
            if poll == self._polls:
                self._pending -= 1
                self._awaited(lambda: handled(result, error), depth + 1)
            else:
                handled(result, error)

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
        context: The context that `enumerator` was created with.
        calls: Creates another enumerator with a time limit.
        new_context: Creates a context for another enumerator, if the stream is set back to an earlier offset.
    """

    always_polls = True

    def __init__(
        self,
        source: Source,
        enumerator: SplitEnumerator,
        context: AssignedContext,
        calls: ConnectorCalls,
        new_context: Callable[[], AssignedContext],
    ) -> None:
        self._source = source
        self._enumerator = enumerator
        self._context = context
        self._calls = calls
        self._new_context = new_context
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
            context = self._context = self._new_context()
            made = create_enumerator(self._source, context, self._calls)
            assert isinstance(made, SplitEnumerator)  # noqa: S101 - the first one was, of the same source
            self._enumerator = made
        self._used = True
        stored: Mapping[str, Any] = state if isinstance(state, Mapping) else {}
        self._context.no_more = bool(stored.get("noMore", False))
        self._reported = set(stored.get("told", ()))
        self._committed = self._notified = BEFORE_FIRST
        with wrap_errors(self._source.name, "restore_state()"):
            self._enumerator.restore_state(stored.get("state"))

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
        new = self._context.collect(self._enumerator, self._notify, unfinished, room=room, fresh=fresh)
        self._reported.difference_update(split.id for split in new)
        # The enumerator's state holds what is not assigned yet, so splits reported to it can be forgotten.
        return PollResult(new, horizon=(lambda split: split.id in self._reported) if committed else None)

    def snapshot(self, n: int) -> Json:
        """Return the enumerator's state for the offset of micro-batch `n`. The offset has the assigned splits, too."""
        with wrap_errors(self._source.name, "snapshot_state()"):
            state = self._enumerator.snapshot_state(n)
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
        if self._context.no_more:
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
            self._context.end(self._enumerator)

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
            with wrap_errors(self._source.name, "handle_splits_finished()"):
                self._enumerator.handle_splits_finished(0, ended)
        self._notified = self._committed
        with wrap_errors(self._source.name, "notify_checkpoint_complete()"):
            self._enumerator.notify_checkpoint_complete(self._committed)
