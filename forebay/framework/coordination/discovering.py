# SPDX-License-Identifier: Apache-2.0
"""Turns a connector's `DiscoveryEnumerator` into a `SplitEnumerator`: discovers, assigns, and stores splits."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from random import Random
from types import MappingProxyType
from typing import Any

from forebay.errors import ContractError, RetriableError
from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.coordination.validation import checked_discovery, checked_enumerator, repeated_id
from forebay.framework.discovery import Discovered, DiscoveryEnumerator, KnownSplits
from forebay.framework.enumerator import SplitEnumerator, SplitEnumeratorContext
from forebay.framework.runtime.connector_errors import connector_error, wrap_errors
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.source import Source
from forebay.framework.split import Json, Position, Split
from forebay.retry import RetryCount, RetryPolicy

_log = logging.getLogger(__name__)

_INTERVAL = 10.0
"""Seconds between two discoveries, if the user sets no `discoveryInterval`."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """The amount of work that a run has done and has left.

    Args:
        splits: The number of known splits.
        finished: The number of known splits that have been delivered to their end.
        bytes_left: Estimated bytes of the unfinished splits, each counted from the position of its last assignment;
            None if those of any split are unknown.
    """

    splits: int
    finished: int
    bytes_left: int | None


class StartPositions:
    """Moves each split to the start position that the user stored in an earlier run, once.

    A split is moved when it is discovered, or when a connector's own `SplitEnumerator` first assigns it.
    """

    def __init__(self, source: str, positions: Mapping[str, Position]) -> None:
        self.given = bool(positions)
        self._source = source
        self._left = dict(positions)

    def __contains__(self, split_id: str) -> bool:
        return split_id in self._left

    def apply(self, split: Split) -> Split:
        """Return the split at its start position; unchanged if it has none, or if it was applied before."""
        return split.at(self._left.pop(split.id)) if split.id in self._left else split

    def warn_of_unused(self) -> None:
        """Log a warning if there are start positions that no split used."""
        if self._left:
            _log.warning(
                "%s: %d of the given start positions match no discovered split and are not used; one is for the split "
                "%r. If these splits still exist, check that their ids are the same as in the earlier run",
                self._source,
                len(self._left),
                next(iter(self._left)),
            )


class DiscoveringEnumerator(SplitEnumerator):
    """Runs a connector's `DiscoveryEnumerator` (the "author's enumerator"): discovers splits and assigns them.

    The next discovery is scheduled only after the result of the last, so no two results contain the same new split. A
    `RetriableError` is retried with back-off. If the first discovery of a query still fails after `retries`, the run
    fails; later failures are logged, and known splits are still read. With a discovery interval of 0, there is one
    discovery, and one more after each stage of an enumerator with `in_stages`.

    A bounded source is discovered once. Each request of the reader gets one split; when no split is left, it gets "no
    more splits". The splits of an unbounded source are pushed to the reader. With start positions, the first discovery
    of an unbounded source gets `first=False`, because a setting such as "start at the latest record" was already
    applied in the earlier run, which the positions come from.
    """

    def __init__(
        self,
        author: DiscoveryEnumerator,
        context: SplitEnumeratorContext,
        source: Source,
        options: HostOptions,
        rng: Random,
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
        self._asking = False  # from the call of `discover` to its success
        self._stage_over = False  # the last unfinished split was finished, and no discovery has begun since
        self._timer = 0  # the number of the timer that starts the next discovery; earlier ones are void
        self._state: Json = None
        self._below_horizon: Callable[[Split], bool] | None = None
        self._failures = RetryCount(RetryPolicy.of(options), context.clock, rng)
        self._requests = 0  # that the reader waits for
        self._no_more_sent = False
        self._finished: list[Split] = []
        self._finished_in: dict[int, list[Split]] = {}

    # ---- called by hosts, on the coordinator thread

    @property
    def in_stages(self) -> bool:
        """Whether the source is unbounded, and `discover` returns more splits once all known splits are finished."""
        return not self._bounded and bool(self._author.in_stages)

    def splits(self) -> Mapping[str, tuple[Split, SplitState]]:
        """Return all known splits by id, each at the position of its last assignment, with its state."""
        return {split_id: (split, self._life.state(split_id)) for split_id, split in self._life.known().items()}

    def backlog(self) -> Backlog:
        """Return the numbers of known and finished splits, and the estimated bytes of the unfinished ones."""
        known = self._life.known().values()
        left = [self._author.size(split) for split in known if self._life.state(split.id) is not SplitState.FINISHED]
        sizes = [size for size in left if size is not None]
        return Backlog(len(known), len(known) - len(left), sum(sizes) if len(sizes) == len(left) else None)

    def caught_up(self, behind: Iterable[str]) -> bool:
        """Whether a discovery of this run has succeeded, and the readers have caught up with all its splits.

        `behind` are the ids of the splits that readers have not caught up with. Dropped splits do not count.
        """
        return (
            self._discovered
            and not (self.in_stages and self._asking)
            and self._life.next_waiting() is None
            and not any(split_id in self._life for split_id in behind)
        )

    def committed(self, positions: Mapping[str, Position]) -> None:
        """Pass durably delivered positions to the author's `committed`. A `RetriableError` of it is only logged."""
        try:
            with wrap_errors(self._source.name, "committed()"):
                self._author.committed(positions)
        except RetriableError as error:
            _log.warning(
                "%s: committed() failed; after the next checkpoint it is called again: %s", self._source.name, error
            )

    # ---- called by the coordinator

    def restore_state(self, state: Json) -> None:
        """Restore a result of `snapshot_state` (ENU-6)."""
        self._first, self._state, self._dropped = load_state(state, self._source, self._life)
        # Reported again: they may have finished just before the crash.
        self._finished_in[-1] = self._life.finished()
        if not self._first:
            self._author.restore_state(self._state)

    def start(self) -> None:
        """Start a discovery, unless a bounded source was discovered before the restart."""
        self._report_finished(-1)
        if self._first or not self._bounded:
            self._discover()

    def add_reader(self, subtask: int) -> None:
        """Assign waiting splits, now that the reader has registered."""
        self._no_more_sent = False
        self._assign_waiting()

    def handle_split_request(self, subtask: int, host: str | None) -> None:
        """Assign one split of a bounded source to the reader, now or once there is one.

        If the source is unbounded, requests are ignored, because its splits are pushed.
        """
        if self._bounded:
            self._requests += 1
            self._assign_waiting()

    def add_splits_back(self, splits: Sequence[Split], subtask: int | None) -> None:
        """Queue the splits of the failed reader before all others, and drop its requests (ENU-2, ENU-3).

        `subtask` is None for the splits of a restored checkpoint.
        """
        self._requests = 0
        self._life.give_back([split for split in splits if not self._forget_dropped(split.id)])
        self._assign_waiting()

    def handle_splits_finished(self, subtask: int, splits: Sequence[Split]) -> None:
        """Mark splits as finished. The author's `finished` is called once a durable checkpoint contains them."""
        self._finished += [split for split in splits if not self._forget_dropped(split.id) and self._life.finish(split)]
        if self.in_stages and not self._life.has_unfinished():
            self._stage_over = True
            if not self._asking:
                self._discover()

    def snapshot_state(self, checkpoint_id: int) -> Json:
        """Return all splits with their states, as JSON in canonical order (see `dump_state`)."""
        if self._finished:
            self._finished_in[checkpoint_id], self._finished = self._finished, []
        return dump_state(self._first, self._state, self._life, self._dropped)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Pass the splits that are finished in this durable checkpoint to the author's `finished`."""
        self._report_finished(checkpoint_id)

    def close(self) -> None:
        """Close the author's enumerator."""
        self._author.close()

    # ---- discovery

    def _discover(self) -> None:
        self._asking, self._stage_over = True, False
        self._timer += 1
        known, first = self._life.known(), self._first and (self._bounded or not self._positions.given)
        self._context.call_async(lambda: self._author.discover(known, first), self._on_discovered)

    def _discover_in(self, seconds: float) -> None:
        # A timer, not a delayed `discover`: the known splits are copied on this thread when the discovery begins.
        self._timer += 1
        timer = self._timer
        self._context.call_async(
            lambda: None, lambda _nothing, _error: self._discover() if timer == self._timer else None, delay=seconds
        )

    def _on_discovered(self, result: Discovered | None, error: BaseException | None) -> None:
        if error is not None:
            self._on_failure(error)
            return
        discovered, splits = checked_discovery(self._source, result)
        self._failures.succeed()
        self._drop_vanished(splits)
        new = [split for split in splits.values() if split.id not in self._life]
        if self._resumes:
            self._resumes = False
            known = [split for split in new if split.id in self._positions]
            if known and len(known) < len(new):
                # Discover again: where other splits begin may depend on these, which the author did not know of.
                self._add(known)
                self._discover()
                return
        self._add(new)
        if not self._discovered:
            self._discovered = True
            if not self.in_stages:  # later stages bring more splits
                self._positions.warn_of_unused()
        self._first, self._state, self._below_horizon = False, discovered.state, discovered.horizon
        self._forget_below_horizon()
        self._asking = False
        self._assign_waiting()
        if self._stage_over:
            self._discover()
        elif not self._bounded and self._interval:
            self._discover_in(self._interval)

    def _add(self, splits: Sequence[Split]) -> None:
        for split in splits:
            self._life.add(self._positions.apply(split))

    def _on_failure(self, error: BaseException) -> None:
        if not isinstance(error, RetriableError):
            if not isinstance(error, Exception):
                raise error
            raise connector_error(error, source=self._source.name, doing="discover()")
        pause = self._failures.fail(error)
        if self._first and self._failures.exhausted:
            raise self._failures.last_error(error)
        _log.warning("%s: discovery failed and is retried in %.1f s: %s", self._source.name, pause, error)
        self._discover_in(pause)

    def _drop_vanished(self, present: Mapping[str, Split]) -> None:
        self._dropped -= present.keys()  # it exists again, before its reader returned it
        alive = (*self._life.waiting(), *self._life.assigned())
        gone = [split for split in alive if split.id not in present and split.id not in self._dropped]
        if gone and self._vanished(gone):
            _log.warning(
                "%s: %d splits no longer exist and are dropped; one is %r", self._source.name, len(gone), gone[0].id
            )
            for split in gone:
                if self._life.state(split.id) is SplitState.NEW:
                    self._life.drop(split.id)
                else:
                    self._dropped.add(split.id)  # its reader goes on; it is not assigned again

    def _vanished(self, splits: Sequence[Split]) -> bool:
        with wrap_errors(self._source.name, "vanished()"):
            return self._author.vanished(splits)

    # ---- assignment

    def _assign_waiting(self) -> None:
        if not self._context.registered_readers():
            return
        splits = self._life.waiting(self._requests if self._bounded else None)
        if splits:
            self._context.assign_splits({0: splits})
            for split in splits:
                self._life.assign(split.id)
            self._requests = max(0, self._requests - len(splits))
        if self._bounded and not (self._first or self._no_more_sent) and self._life.next_waiting() is None:
            self._no_more_sent = True
            self._context.signal_no_more_splits(0)

    # ---- ends

    def _forget_below_horizon(self) -> None:
        below = self._below_horizon
        if below is not None:
            # Splits not yet reported stay in the snapshot: after a crash they are reported from there.
            unreported = {split.id for splits in (self._finished, *self._finished_in.values()) for split in splits}
            self._life.forget(lambda split: split.id not in unreported and below(split))

    def _forget_dropped(self, split_id: str) -> bool:
        """Forget a split that a reader finished or returned, if discovery had dropped it; return whether it had."""
        if split_id not in self._dropped:
            return False
        self._dropped.discard(split_id)
        self._life.drop(split_id)
        return True

    def _report_finished(self, checkpoint_id: int) -> None:
        keys = [key for key in self._finished_in if key <= checkpoint_id]
        finished = [split for key in keys for split in self._finished_in[key]]
        if not finished:
            return
        try:
            with wrap_errors(self._source.name, "finished()"):
                self._author.finished(finished)
        except RetriableError as error:
            _log.warning(
                "%s: finished() failed; after the next checkpoint it is called again: %s", self._source.name, error
            )
            return
        for key in keys:
            del self._finished_in[key]
        self._forget_below_horizon()


def begin_enumerator(
    source: Source,
    coordinator: Coordinator,
    options: HostOptions,
    rng: Random,
    *,
    state: Json = None,
    splits: Sequence[Split] = (),
    starts: StartPositions | None = None,
) -> DiscoveringEnumerator | None:
    """Make the source's enumerator in a host that runs it as long as its reader, restore it, and start it.

    Args:
        source: The source.
        coordinator: Runs the enumerator from now on.
        options: The host's options.
        rng: Makes the pauses of retries random.
        state: The snapshot from which it continues; None = there is none.
        splits: The splits that the reader held at that time.
        starts: Start positions, for a run without a checkpoint.

    Returns:
        What runs the source's `DiscoveryEnumerator`; None if the source has a `SplitEnumerator` of its own.
    """
    starts = starts or StartPositions(source.name, {})
    with wrap_errors(source.name, "create_enumerator()"):
        enumerator = checked_enumerator(source, source.create_enumerator(coordinator))
    discovering = None
    if isinstance(enumerator, DiscoveryEnumerator):
        enumerator = discovering = DiscoveringEnumerator(
            enumerator, coordinator, source, options, rng, positions=starts
        )
    else:
        coordinator.at_start = starts.apply
    coordinator.attach(enumerator)
    if state is not None:
        coordinator.restore(state)
    coordinator.begin(splits)
    return discovering


# -- The states of splits: NEW → ASSIGNED → FINISHED → FORGOTTEN.


class SplitState(Enum):
    """The state of a split in a `LifeCycle`."""

    NEW = "known, waiting for the reader"
    ASSIGNED = "given to the reader"
    FINISHED = "delivered to its end; its id is kept so that discovery cannot bring it again"
    FORGOTTEN = "below the horizon of discovery; its id is not kept"


class LifeCycle:
    """Holds all splits that are not forgotten, with their states. Used on the coordinator thread only.

    NEW splits wait in the order of discovery. Splits that the reader returned go before them, because they have
    progress.
    """

    def __init__(self) -> None:
        self._splits: dict[str, Split] = {}
        # Unlike a dict, it does not step over all removed splits to its first one.
        self._new: OrderedDict[str, None] = OrderedDict()
        self._assigned: dict[str, None] = {}
        self._finished: dict[str, None] = {}

    def __contains__(self, split_id: str) -> bool:
        return split_id in self._splits

    def known(self) -> KnownSplits:
        """Return a read-only copy of all splits by id, for use on any thread."""
        finished = {split_id: self._splits[split_id] for split_id in self._finished}
        unfinished = {split_id: split for split_id, split in self._splits.items() if split_id not in finished}
        return KnownSplits(MappingProxyType(unfinished), MappingProxyType(finished))

    def has_unfinished(self) -> bool:
        """Whether any split is NEW or ASSIGNED."""
        return bool(self._new or self._assigned)

    def state(self, split_id: str) -> SplitState:
        """Return the state of a split; an unknown id counts as forgotten."""
        if split_id in self._new:
            return SplitState.NEW
        if split_id in self._assigned:
            return SplitState.ASSIGNED
        return SplitState.FINISHED if split_id in self._finished else SplitState.FORGOTTEN

    def add(self, split: Split) -> None:
        """Add a NEW split.

        Raises:
            ContractError: The id is known (SPL-1).
        """
        if split.id in self._splits:
            raise repeated_id(None, split.id)
        self._splits[split.id] = split
        self._new[split.id] = None

    def assign(self, split_id: str) -> None:
        """Move a split from NEW to ASSIGNED."""
        del self._new[split_id]
        self._assigned[split_id] = None

    def give_back(self, splits: list[Split]) -> None:
        """Move splits from any state to NEW, at their given positions, before all other NEW splits (ENU-3).

        A split may be FINISHED, if the reader was reset to an older checkpoint, or unknown.
        """
        for split in splits:
            self._leave_state(split.id)
            self._splits[split.id] = split
        for split in reversed(splits):
            self._new[split.id] = None
            self._new.move_to_end(split.id, last=False)

    def finish(self, split: Split) -> bool:
        """Move a split from ASSIGNED to FINISHED; in any other state (a late message) do nothing and return False."""
        if split.id not in self._assigned:
            return False
        del self._assigned[split.id]
        self._splits[split.id] = split
        self._finished[split.id] = None
        return True

    def drop(self, split_id: str) -> None:
        """Move a split from any state to FORGOTTEN, because it no longer exists or its id is not needed."""
        self._leave_state(split_id)
        self._splits.pop(split_id, None)

    def forget(self, below_horizon: Callable[[Split], bool]) -> list[Split]:
        """Move the FINISHED splits that no discovery can return (below the horizon) to FORGOTTEN; return them."""
        gone = [self._splits[split_id] for split_id in self._finished if below_horizon(self._splits[split_id])]
        for split in gone:
            self.drop(split.id)
        return gone

    def waiting(self, most: int | None = None) -> list[Split]:
        """Return the NEW splits, at most `most`, in the order of assignment."""
        return [self._splits[split_id] for split_id in islice(self._new, most)]

    def next_waiting(self) -> Split | None:
        """Return the NEW split that is assigned next, or None."""
        return next((self._splits[split_id] for split_id in self._new), None)

    def assigned(self) -> list[Split]:
        """Return the ASSIGNED splits, sorted by id, at the positions that they had when they were assigned."""
        return [self._splits[split_id] for split_id in sorted(self._assigned)]

    def finished(self) -> list[Split]:
        """Return the FINISHED splits, sorted by id, at their last position."""
        return [self._splits[split_id] for split_id in sorted(self._finished)]

    def _leave_state(self, split_id: str) -> None:
        for state in (self._new, self._assigned, self._finished):
            state.pop(split_id, None)


# -- The snapshot of a `DiscoveringEnumerator`: JSON-ready, with a version, in canonical order (SER-1, SER-2).


_VERSION = 1


def dump_state(first: bool, author: Json, life: LifeCycle, dropped: Collection[str]) -> Json:
    """Return the snapshot of a `DiscoveringEnumerator`; equal states give equal snapshots.

    New splits keep their order; all others are sorted by id. The horizon is not stored: the next discovery returns it.

    Args:
        first: Whether no discovery has succeeded yet.
        author: The state of the author's enumerator, from `Discovered.state`.
        life: The splits with their states.
        dropped: Ids of splits that no longer exist, but that readers still read.
    """
    return {
        "v": _VERSION,
        "first": first,
        "author": author,
        "new": [split.to_json() for split in life.waiting()],
        "assigned": [split.to_json() for split in life.assigned()],
        "finished": [split.to_json() for split in life.finished()],
        "dropped": sorted(dropped),
    }


def load_state(state: Json, source: Source, life: LifeCycle) -> tuple[bool, Json, set[str]]:
    """Add the splits of a snapshot to `life`; return the other arguments of `dump_state`: first, author, dropped.

    Raises:
        ContractError: `state` is a snapshot of a newer version, or not a snapshot.
    """
    stored: Mapping[str, Any] = state if isinstance(state, Mapping) else {}
    version = stored.get("v")
    if not isinstance(version, int) or version > _VERSION:
        raise _unreadable(source, f"its version is {version!r}, but this release reads only version {_VERSION}")
    try:
        for name in ("new", "assigned", "finished"):
            for split in map(source.split_class.from_json, stored[name]):
                life.add(split)
                if name != "new":
                    life.assign(split.id)
                if name == "finished":
                    life.finish(split)
        return bool(stored["first"]), stored["author"], {str(each) for each in stored["dropped"]}
    except (KeyError, TypeError, AttributeError) as error:
        raise _unreadable(source, f"{type(error).__name__}: {error}") from error


def _unreadable(source: Source, reason: str) -> ContractError:
    return ContractError(
        f"the state of the enumerator in the checkpoint cannot be read: {reason}",
        source=source.name,
        rule="SER-1",
        advice="run the release of forebay that wrote the checkpoint, or start with a new checkpoint",
    )
