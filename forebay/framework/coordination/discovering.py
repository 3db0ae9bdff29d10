# SPDX-License-Identifier: Apache-2.0
"""The enumerator around a `DiscoveryEnumerator`: discovery, assignment, add-back, ends and state, done once for all."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random

from forebay.errors import ContractError, RetriableError
from forebay.framework.coordination.balance import spread
from forebay.framework.coordination.discovery_state import dump_state, load_state
from forebay.framework.coordination.life_cycle import LifeCycle, SplitState
from forebay.framework.coordination.start_positions import StartPositions
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.enumerator import SplitEnumerator, SplitEnumeratorContext
from forebay.framework.host_options import HostOptions
from forebay.framework.runtime.retry import RetryCount, RetryPolicy
from forebay.framework.source import Source
from forebay.framework.split import Json, Position, Split

_log = logging.getLogger(__name__)

_INTERVAL = 10.0
"""Seconds between two discoveries, unless the user says it."""


class DiscoveringEnumerator(SplitEnumerator):
    """Runs an author's `DiscoveryEnumerator`.

    Discovery is single-flight: the next one is planned only when the result of the last is in, so no two results can
    bring the same split. Every result is compared with all ids not yet forgotten. After a `RetriableError` it is
    tried again with back-off. The first discovery of a query fails the run after `retries` retries; a later one never
    does: each failure is a warning, and the splits already known are read on. A discovery interval of 0 means once.

    A bounded source is discovered once and pulled: a reader that asks gets one split, and all are told once nothing
    is left. An unbounded one is pushed, each split to the reader with the fewest, whenever all readers are there: a
    replacement is waited for, or the failed reader's splits would stay with the others for ever.

    Args:
        author: What the source made.
        context: The coordinator's side.
        source: Its name, its split class, whether it is bounded.
        options: How often to discover and to retry.
        chance: For the jitter of the back-off.
        positions: Where splits of this run begin. If an unbounded source has some, the author is told that this is
            no first discovery, and which splits are known: a setting such as "start at the latest" had its effect in
            the run that the positions come from.
    """

    def __init__(
        self,
        author: DiscoveryEnumerator,
        context: SplitEnumeratorContext,
        source: Source,
        options: HostOptions,
        chance: Random,
        *,
        positions: StartPositions,
    ) -> None:
        self._author = author
        self._context = context
        self._source = source
        self._bounded = bool(source.bounded)
        interval = options.discovery_interval
        self._interval = _INTERVAL if interval is None else interval.total_seconds()
        self._positions = positions
        self._resumes = positions.given and not self._bounded
        self._life = LifeCycle()
        self._dropped: set[str] = set()
        self._first = True
        self._discovered = False
        self._state: Json = None
        self._below_horizon: Callable[[Split], bool] | None = None
        self._failures = RetryCount(RetryPolicy.of(options), context.clock, chance)
        self._asking: deque[int] = deque()
        self._told: set[int] = set()
        self._ended: list[Split] = []
        self._ended_in: dict[int, list[Split]] = {}

    # ---- for hosts, on the coordinator thread

    def splits(self) -> Mapping[str, tuple[Split, SplitState]]:
        """Return every split not yet forgotten, with its state; positions are those of the last (re)assignment."""
        return {split_id: (split, self._life.state(split_id)) for split_id, split in self._life.known().items()}

    def caught_up(self, behind: Iterable[str]) -> bool:
        """Whether a discovery of this run has succeeded, and readers have caught up with all splits of it.

        Args:
            behind: Splits that readers hold or held and have not caught up with; those dropped since do not count.
        """
        return (
            self._discovered
            and self._life.next_waiting() is None
            and not any(split_id in self._life for split_id in behind)
        )

    def latest(self, splits: Sequence[Split]) -> Mapping[str, Position]:
        """Ask the author for the present ends (see `DiscoveryEnumerator.latest`). May block."""
        return self._author.latest(splits)

    def committed(self, positions: Mapping[str, Position]) -> None:
        """Tell the author what is durably delivered; a `RetriableError` is left to the next time."""
        try:
            self._author.committed(positions)
        except RetriableError as error:
            _log.warning("%s: telling of committed positions failed, next time again: %s", self._source.name, error)

    # ---- called by the coordinator

    def restore_state(self, state: Json) -> None:
        """Take back a snapshot (ENU-6)."""
        stored = load_state(state, self._source)
        for split in (*stored.new, *stored.assigned, *stored.finished):
            self._life.add(split)
        for split in (*stored.assigned, *stored.finished):
            self._life.assign(split.id, None)
        for split in stored.finished:
            self._life.finish(split)
        self._dropped = set(stored.dropped)
        # They may have ended just before the crash, so the author hears of them again.
        self._ended_in[-1] = list(stored.finished)
        self._first, self._state = stored.first, stored.author
        if not self._first:
            self._author.restore_state(self._state)

    def start(self) -> None:
        """Discover, unless the source is bounded and was discovered before the restart."""
        self._tell_ended(-1)
        if self._first or not self._bounded:
            self._discover()

    def add_reader(self, subtask: int) -> None:
        """Let a new reader take part."""
        self._told.discard(subtask)
        self._hand_out()

    def handle_split_request(self, subtask: int, host: str | None) -> None:
        """Give one split, now or once there is one; an unbounded source pushes and need not be asked."""
        if self._bounded:
            self._asking.append(subtask)
            self._hand_out()

    def add_splits_back(self, splits: Sequence[Split], subtask: int | None) -> None:
        """Make splits assignable again, before all others; requests of the failed reader are void (ENU-2, ENU-3)."""
        if subtask is not None:
            self._asking = deque(each for each in self._asking if each != subtask)
        self._life.give_back([split for split in splits if not self._was_dropped(split.id)])
        self._hand_out()

    def handle_splits_finished(self, subtask: int, splits: Sequence[Split]) -> None:
        """Mark splits finished; the author hears of it when a checkpoint holds it."""
        for split in splits:
            if not self._was_dropped(split.id) and self._life.finish(split):
                self._ended.append(split)

    def snapshot_state(self, checkpoint_id: int) -> Json:
        """Return what is known of every split, in canonical order."""
        if self._ended:
            self._ended_in[checkpoint_id], self._ended = self._ended, []
        return dump_state(self._first, self._state, self._life, self._dropped)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Tell the author which splits have durably ended."""
        self._tell_ended(checkpoint_id)

    def close(self) -> None:
        """Close the author's enumerator."""
        self._author.close()

    # ---- discovery

    def _discover(self) -> None:
        known, first = self._life.known(), self._first and (self._bounded or not self._positions.given)
        self._context.call_async(lambda: self._author.discover(known, first), self._on_discovered)

    def _discover_in(self, seconds: float) -> None:
        # A timer first: what is known must be copied on this thread, and when the discovery begins.
        self._context.call_async(lambda: None, lambda _nothing, _error: self._discover(), delay=seconds)

    def _on_discovered(self, result: Discovered | None, error: BaseException | None) -> None:
        if error is not None:
            self._on_failure(error)
            return
        if not isinstance(result, Discovered):
            raise self._broken(f"discover() gave a {type(result).__name__}", "return Discovered(splits)", "SRC-1")
        self._failures.succeed()
        found = self._checked(result.splits)
        self._drop_vanished(found)
        new = [split for split in found.values() if split.id not in self._life]
        if self._resumes:
            self._resumes = False
            known = [split for split in new if split.id in self._positions]
            if known and len(known) < len(new):
                # The author has not heard of these when it said how the others begin: it is asked again.
                self._add(known)
                self._discover()
                return
        self._add(new)
        if not self._discovered:
            self._discovered = True
            self._positions.warn_of_unused()
        self._first, self._state, self._below_horizon = False, result.state, result.horizon
        self._forget_below_horizon()
        self._hand_out()
        if not self._bounded and self._interval:
            self._discover_in(self._interval)

    def _add(self, splits: Sequence[Split]) -> None:
        for split in splits:
            self._life.add(self._positions.apply(split))

    def _on_failure(self, error: BaseException) -> None:
        if not isinstance(error, RetriableError):
            raise error
        pause = self._failures.fail(error)
        if self._first and self._failures.exhausted:
            raise self._failures.last_error(error)
        _log.warning("%s: discovery failed, again in %.1f s: %s", self._source.name, pause, error)
        self._discover_in(pause)

    def _checked(self, splits: Sequence[Split]) -> dict[str, Split]:
        found: dict[str, Split] = {}
        for split in splits:
            if not isinstance(split, Split):
                raise self._broken(f"discover() found {split!r}, which is no Split", "give Split objects", "SPL-1")
            if split.id in found:
                raise self._broken(
                    f"discover() found two splits of the id {split.id!r}",
                    "make ids unique and stable: derive them from what the split is",
                    "SPL-1",
                    split.id,
                )
            found[split.id] = split
        return found

    def _drop_vanished(self, found: Mapping[str, Split]) -> None:
        self._dropped -= found.keys()  # back again before its reader noticed: the same split after all
        alive = (*self._life.waiting(), *self._life.assigned())
        gone = [split for split in alive if split.id not in found and split.id not in self._dropped]
        if gone and self._author.vanished(gone):
            _log.warning("%s: %d splits are gone and are dropped, first %r", self._source.name, len(gone), gone[0].id)
            for split in gone:
                if self._life.state(split.id) is SplitState.NEW:
                    self._life.drop(split.id)
                else:
                    self._dropped.add(split.id)  # its reader goes on; when it returns it is not given out again

    # ---- assignment and ends

    def _hand_out(self) -> None:
        if self._bounded:
            self._answer_requests()
            self._signal_no_more()
        else:
            self._push()

    def _push(self) -> None:
        readers = self._context.registered_readers()
        splits = self._life.waiting()
        if splits and len(readers) == self._context.current_parallelism():
            self._assign(spread(splits, self._life.loads(readers)))

    def _answer_requests(self) -> None:
        readers = self._context.registered_readers()
        waiting = iter(self._life.waiting()) if self._asking else iter(())
        assignment: dict[int, list[Split]] = {}
        while self._asking:
            if self._asking[0] in readers and self._asking[0] not in self._told:
                split = next(waiting, None)
                if split is None:
                    break
                assignment.setdefault(self._asking[0], []).append(split)
            self._asking.popleft()
        if assignment:
            self._assign(assignment)

    def _assign(self, assignment: Mapping[int, Sequence[Split]]) -> None:
        self._context.assign_splits(assignment)
        for subtask, splits in assignment.items():
            for split in splits:
                self._life.assign(split.id, subtask)

    def _signal_no_more(self) -> None:
        if self._first or self._life.next_waiting() is not None:
            return
        for subtask in self._context.registered_readers():
            if subtask not in self._told:
                self._told.add(subtask)
                self._context.signal_no_more_splits(subtask)

    def _forget_below_horizon(self) -> None:
        below = self._below_horizon
        if below is not None:
            # One that the author has not heard of is in the snapshot: after a crash it is told from there.
            untold = {split.id for splits in (self._ended, *self._ended_in.values()) for split in splits}
            self._life.forget(lambda split: split.id not in untold and below(split))

    def _was_dropped(self, split_id: str) -> bool:
        """Whether a split that leaves its reader was dropped meanwhile; then it is forgotten here."""
        if split_id not in self._dropped:
            return False
        self._dropped.discard(split_id)
        self._life.drop(split_id)
        return True

    def _tell_ended(self, checkpoint_id: int) -> None:
        keys = [key for key in self._ended_in if key <= checkpoint_id]
        ended = [split for key in keys for split in self._ended_in[key]]
        if not ended:
            return
        try:
            self._author.finished(ended)
        except RetriableError as error:
            _log.warning("%s: telling of finished splits failed, next time again: %s", self._source.name, error)
            return
        for key in keys:
            del self._ended_in[key]
        self._forget_below_horizon()

    def _broken(self, message: str, advice: str, rule: str, split: str | None = None) -> ContractError:
        return ContractError(message, source=self._source.name, split=split, rule=rule, advice=advice)
