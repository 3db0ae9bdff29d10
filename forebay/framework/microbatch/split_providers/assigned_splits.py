# SPDX-License-Identifier: Apache-2.0
"""A stream's splits from an enumerator of FLIP-27's own kind: what it assigns to one virtual reader is planned.

```
restart   restore_state → start → add_reader(0); the splits that were assigned are in the offset, the host owns them
a look    finished splits, checkpoint complete → handlers of call_async → requests while there is room
offset    what was assigned and not planned, beside snapshot_state of the same call
```
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final

from forebay.errors import ContractError, FatalError
from forebay.framework.enumerator import SplitEnumerator
from forebay.framework.microbatch.offsets.offset import BEFORE_FIRST
from forebay.framework.microbatch.split_providers.planning_context import AsyncCall, PlanningContext
from forebay.framework.microbatch.split_providers.refresh_policy import LONGEST
from forebay.framework.microbatch.split_providers.split_provider import Look, SplitProvider
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.runtime.connector_errors import explained
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Json, Position, Split

_SELDOM: Final = 1.0
"""Seconds between two looks from which on the later one waits for the calls that came due in between (S7)."""

_STEPS: Final = 3
"""How many calls, each made by the handler of the one before, an AvailableNow run waits for: list, then describe, …"""

_MOST_ACTIONS: Final = 10_000
"""Actions in one look: an enumerator that keeps itself busy for ever must not stop the stream."""

_MOST_SPLITS: Final = 1_000_000
"""Splits that an AvailableNow run takes at its begin: an enumerator that gives more gives them for ever."""


class AssignedContext(PlanningContext):
    """Runs a `SplitEnumerator` a little in each look of a stream. Called on the planning thread.

    Args:
        source: The format name, for errors.
        runtime: Threads, clock, locks.
        timeout: Seconds that what `start` set off may take, and that an AvailableNow run may ask for splits.
    """

    def __init__(self, source: str, runtime: Runtime, *, timeout: float) -> None:
        super().__init__(source, runtime, timeout=timeout, streaming=True)
        self._held: Container[str] = ()
        self._asked = False
        self._looked = 0.0
        self._patient = False
        self._look = 0
        self._step_now: int | None = None  # calls made now are waited for: this many handlers came before them
        self._deepest = 1
        self._pending = 0

    @property
    def no_more(self) -> bool:
        """Whether the enumerator said that no split follows; set after a restart."""
        return self._no_more

    @no_more.setter
    def no_more(self, value: bool) -> None:
        self._no_more = value

    def collect(
        self,
        enumerator: SplitEnumerator,
        tell: Callable[[], None],
        held: Container[str],
        *,
        room: int,
        fresh: bool,
    ) -> list[Split]:
        """Run what has come, ask for splits while there is room, and return those that were assigned.

        The first time the enumerator is started, and what `start` set off is waited for, so that the first
        micro-batch is not needlessly empty. A look that comes long after the last one waits, for a short time, for
        the calls that came due in between.

        Args:
            enumerator: The same one each time.
            tell: Tells the enumerator what is done, once it has started.
            held: Ids of splits that are assigned and not read to their end.
            room: How many splits a micro-batch can take.
            fresh: Take all there is; an AvailableNow run begins.

        Raises:
            FatalError: There was no answer in time, or the enumerator failed.
            ContractError: It broke a rule of the contract.
        """
        now = self.clock.monotonic()
        first = not self._registered
        strict = first or fresh
        deadline = now + (self._timeout if strict else LONGEST)
        self._patient = strict or now - self._looked >= _SELDOM
        self._held, self._look, self._pending = held, self._look + 1, 0
        self._deepest = _STEPS if fresh else 1
        if first:
            self._awaited(lambda: self._begin(enumerator))
        self._awaited(tell)
        while self._timers and self._timers[0][0] <= now:
            self._awaited(heapq.heappop(self._timers)[2])
        self._run_what_has_come(_MOST_SPLITS if fresh else room, deadline, strict=strict)
        self._looked = self.clock.monotonic()
        new, self._assigned = list(self._assigned.values()), {}
        return new

    def _run_what_has_come(self, room: int, deadline: float, *, strict: bool) -> None:
        for _ in range(_MOST_ACTIONS):
            self._wake.clear()
            self._pull(room, deadline, strict=strict)
            if (action := self._next_action()) is not None:
                self._run("a handler of the enumerator", action)
            elif not self._pending:
                return
            elif (left := deadline - self.clock.monotonic()) > 0:
                self._wake.wait(left)
            elif strict:
                raise self._late("its call_async work gave no result")
            else:
                return

    def _pull(self, room: int, deadline: float, *, strict: bool) -> None:
        while not (self._no_more or self._asked) and len(self._assigned) < room:
            if self.clock.monotonic() >= deadline:
                if not strict:
                    return  # the next look goes on
                raise self._late("it gave splits without end")
            # An enumerator that has none remembers who asked; the answer may come in any later look.
            self._asked = True
            self._awaited(self._ask)
        if len(self._assigned) >= _MOST_SPLITS:
            raise self._late(f"it gave {len(self._assigned)} splits and would give more")

    def _is_given(self, split_id: str) -> bool:
        return split_id in self._assigned or split_id in self._held

    def _took_some(self) -> None:
        self._asked = False

    def _awaited(self, work: Callable[[], None]) -> None:
        """Wait in this look for the calls that `work` makes without delay, if the look is one that waits."""
        self._step_now = 1 if self._patient else None
        try:
            work()
        finally:
            self._step_now = None

    def _start(self, call: AsyncCall) -> None:
        step = self._step_now if self._runtime.thread_id() == self._home else None
        if step is None:
            super()._start(call)
            return
        look, self._pending = self._look, self._pending + 1

        def handle(result: object, error: BaseException | None) -> None:
            if look == self._look:
                self._pending -= 1
                self._step_now = step + 1 if step < self._deepest else None
            try:
                self._handle(call, result, error)
            finally:
                self._step_now = None

        call.began = self.clock.monotonic()
        self._submit(call, handle)

    def _late(self, what: str) -> FatalError:
        return FatalError(
            f"{what} within {self._timeout:g} s, so that nothing could be planned",
            source=self._source,
            rule="ENU-2",
            advice="bound the work of the enumerator's calls, and signal_no_more_splits(0) once everything is assigned",
        )


class AssignedSplitProvider(SplitProvider):
    """Brings what an author's `SplitEnumerator` assigns; what is known of a split's end is what the split says.

    Args:
        source: What is read.
        context: The enumerator's.
        enumerator: The author's, not started.
        calls: Bounds the making of another enumerator.
        renew: Makes another context, for a stream that goes back to an earlier offset.
    """

    always_looks = True

    def __init__(
        self,
        source: Source,
        context: AssignedContext,
        enumerator: SplitEnumerator,
        calls: ConnectorCalls,
        renew: Callable[[], AssignedContext],
    ) -> None:
        self._source = source
        self._context = context
        self._enumerator = enumerator
        self._calls = calls
        self._renew = renew
        self._used = False
        self._told: set[str] = set()
        self._proven = BEFORE_FIRST
        self._notified = BEFORE_FIRST
        self._known: Mapping[str, Split] = {}
        self._unfinished: Mapping[str, Split] = {}

    def due(self) -> float:
        """Return a time that is past: a handler may wait, and a look costs little."""
        return float("-inf")

    def restore(self, state: Json) -> None:
        """Hand the enumerator its state back; one that has run already is replaced."""
        if self._used:
            self.close()
            context = self._context = self._renew()
            made = self._calls.call("create_enumerator()", lambda: self._source.create_enumerator(context))
            assert isinstance(made, SplitEnumerator)  # noqa: S101 - the first one was, of the same source
            self._enumerator = made
        self._used = True
        kept: Mapping[str, Any] = state if isinstance(state, Mapping) else {}
        self._context.no_more = bool(kept.get("noMore", False))
        self._told = set(kept.get("told", ()))
        self._proven = self._notified = BEFORE_FIRST
        with explained(self._source.name, "restore_state()"):
            self._enumerator.restore_state(kept.get("state"))

    def look(self, known: Mapping[str, Split], unfinished: Mapping[str, Split], *, fresh: bool, room: int) -> Look:
        """Tell the enumerator what is done, and take what it assigns."""
        self._used = True
        proven = self._proven != self._notified
        self._known, self._unfinished = known, unfinished
        bounded = self._source.bounded
        # Open splits without end are read in every micro-batch: they must not keep others out for ever.
        waiting = sum(1 for split in unfinished.values() if bounded or split.end is not None)
        new = self._context.collect(self._enumerator, self._tell, unfinished, room=max(0, room - waiting), fresh=fresh)
        self._told.difference_update(split.id for split in new)
        # Its own state holds what was not assigned yet, so nothing that it was told of has to be remembered here.
        return Look(new, horizon=(lambda split: split.id in self._told) if proven else None)

    def snapshot(self, n: int) -> Json:
        """Return the enumerator's state: everything it assigned is planned, or beside it in the offset."""
        with explained(self._source.name, "snapshot_state()"):
            state = self._enumerator.snapshot_state(n)
        try:
            state = json.loads(json.dumps(state, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ContractError(
                f"snapshot_state() gave what cannot be written as JSON: {error}",
                source=self._source.name,
                rule="ENU-5",
                advice="return None, bool, int, float, str, and lists and dicts of these",
            ) from error
        remembered = self._known.keys() - self._unfinished.keys()
        kept: dict[str, Json] = {} if state is None else {"state": state}  # one that is empty is a state
        if self._context.no_more:
            kept["noMore"] = True
        if told := sorted(self._told & remembered):
            kept["told"] = told
        return kept

    def latest(self, splits: Sequence[Split], *, fresh: bool) -> Mapping[str, Position]:
        """Return nothing: nobody knows more than the splits say."""
        return {}

    def committed(self, positions: Mapping[str, Position]) -> None:
        """Do nothing: this enumerator is told of checkpoints, by number."""

    def finished(self, splits: Sequence[Split]) -> None:
        """Do nothing: the next look tells it, before any snapshot, so that the state and what was told agree."""

    def proven(self, n: int) -> None:
        """Note that a micro-batch is done; the next look tells the enumerator."""
        self._proven = n

    def close(self) -> None:
        """Close the author's enumerator; what its calls still bring is dropped."""
        with explained(self._source.name, "close()"):
            self._context.end(self._enumerator)

    def _tell(self) -> None:
        """Tell what ended, once in the life of the enumerator's state, and then which checkpoint is complete."""
        if self._proven == self._notified:
            return
        done = {split_id: split for split_id, split in self._known.items() if split_id not in self._unfinished}
        ended = [split.at(split.end) for split_id, split in done.items() if split_id not in self._told]
        self._told = set(done)
        if ended:
            with explained(self._source.name, "handle_splits_finished()"):
                self._enumerator.handle_splits_finished(0, ended)
        self._notified = self._proven
        with explained(self._source.name, "notify_checkpoint_complete()"):
            self._enumerator.notify_checkpoint_complete(self._proven)
