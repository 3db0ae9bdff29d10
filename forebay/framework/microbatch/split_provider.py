# SPDX-License-Identifier: Apache-2.0
"""Provides the splits of a stream and their present ends; `DiscoverySplitProvider` gets them from a discovery."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from forebay.errors import ContractError, ForebayError, RetriableError
from forebay.framework.coordination.validation import checked_discovery
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.runtime.clients import ConnectorCalls
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Json, Position, Split, normalise
from forebay.options import Duration
from forebay.retry import RetryPolicy

# -- Decides when a planner asks the source again: how long it caches an answer, and pauses after a failure (S7).


LONGEST: Final = 10.0
"""Maximum seconds for which an answer is cached, however long it took."""

QUIET_FLOOR: Final = 0.1
"""Minimum seconds for which an answer is cached if there is no new data. The planner must be ready to wait so long for
a fresh one."""

_QUIET_AFTER: Final = 5.0
"""Seconds without new data after which `QUIET_FLOOR` applies."""

_ASK_AGAIN: Final = RetryPolicy(first_pause=0.1, factor=2, max_pause=10.0)
"""Pauses between failures in a stream, which continues with the last answer."""


class Failure(NamedTuple):
    """A failed call of a source: when (seconds since 1970), its text, split, and whether a later call succeeded.

    The text contains no secrets.
    """

    at: float
    text: str
    split: str | None
    over: bool


def last_of(*failures: Failure | None) -> Failure | None:
    """Return the latest failure that is not over; if all are over, the latest one; None if there is none."""
    return max(
        (failure for failure in failures if failure is not None),
        key=lambda failure: (not failure.over, failure.at),
        default=None,
    )


class FailureTracker:
    """Counts failed calls of one kind, and decides how long to wait before the next call."""

    def __init__(self, runtime: Runtime) -> None:
        self._clock = runtime.clock
        self._random = runtime.random
        self._in_a_row = 0
        self._last: Failure | None = None
        self.failed = 0
        """The total number of failures."""

    @property
    def failing(self) -> bool:
        """Whether the last call failed."""
        return self._in_a_row > 0

    @property
    def failure(self) -> Failure | None:
        """The last failure; None if no call has failed."""
        return self._last and self._last._replace(over=not self.failing)

    def fail(self, error: ForebayError) -> float:
        """Count a failed call; return the seconds until the next call. They grow with each failure in a row."""
        self._in_a_row += 1
        self.failed += 1
        self._last = Failure(self._clock.now(), str(error), error.split, over=False)
        return _ASK_AGAIN.pause(self._in_a_row, self._random, error)

    def succeed(self) -> None:
        """Record a successful call."""
        self._in_a_row = 0


class RefreshPolicy:
    """Decides how long a source's answer, such as its splits, is cached before the source is asked again (S7).

    Args:
        runtime: Gives the time.
        interval: The time for which an answer is cached; None = the slower the answer, the longer, up to `LONGEST`.
        floor: Without an interval, the minimum seconds for which an answer is cached. After five seconds without new
            data, the minimum is at least `QUIET_FLOOR`.
        share: Without an interval, the share of the time that asking should take at most. It takes more if `LONGEST`
            ends the caching earlier.
    """

    def __init__(self, runtime: Runtime, interval: Duration | None, floor: float, share: float) -> None:
        self._clock = runtime.clock
        self._interval = None if interval is None else interval.total_seconds()
        self._floor = floor
        self._share = share
        self._trust = 0.0
        self._news = float("-inf")
        self._asked: float | None = None
        self._before = 0.0
        self.due = 0.0
        """The monotonic time when the cached answer expires."""
        self.took = 0.0
        """Seconds that the last call took; 0 before the first call."""
        self.failures = FailureTracker(runtime)

    def is_due(self) -> bool:
        """Return whether the cached answer has expired, or there is none."""
        return self._asked is None or self._clock.monotonic() >= self.due

    def due_soon(self, since: float, within: float) -> float | None:
        """Return the seconds until the cached answer expires; None if the caller should not wait for a fresh answer.

        The caller should wait if the source was asked before `since`, and its answer is cached for at most `within`.

        Args:
            since: A monotonic time.
            within: Seconds.
        """
        if self._asked is None or self._asked >= since or self._trust > within:
            return None
        return max(0.0, self.due - self._clock.monotonic())

    def measure(self, ask: Callable[[], None]) -> None:
        """Call `ask`, measure its duration, and decide until when its answer is cached.

        The cost is the shorter of the last two durations: the first call connects, and any call may be delayed once.
        """
        began = self._clock.monotonic()
        ask()
        now = self._clock.monotonic()
        self.failures.succeed()
        self._before, self.took = self.took, now - began
        pause = self._interval
        if pause is None:
            floor = self._floor if now < self._news + _QUIET_AFTER else max(self._floor, QUIET_FLOOR)
            pause = min(LONGEST, max(floor, min(self._before, self.took) / self._share))
        self._asked, self.due, self._trust = began, now + pause, pause

    def news(self) -> None:
        """Record that the source has new data. Called by the `ask` of `measure` if its answer differs from the last."""
        self._news = self._clock.monotonic()

    def put_off(self, error: ForebayError) -> float:
        """Count a failed call, and cache the last answer until the next call; return the seconds until then.

        They grow with each failure in a row.
        """
        self._asked = self._clock.monotonic()
        self._trust = self.failures.fail(error)
        self.due = self._asked + self._trust
        return self._trust


# -- Provides the splits of a stream and their present ends; `DiscoverySplitProvider` gets them from a discovery.


_log = logging.getLogger(__name__)


class PollResult(NamedTuple):
    """The result of `SplitProvider.poll`.

    Args:
        new: Splits that were not known before, in order; None = the source was not asked.
        gone: Ids of unfinished splits that no longer exist and must be dropped.
        horizon: Returns whether a finished split may be forgotten, because no later poll can return it; None = keep
            all finished splits.
    """

    new: Sequence[Split] | None = None
    gone: Sequence[str] = ()
    horizon: Callable[[Split], bool] | None = None


class DiscoveryStatus(NamedTuple):
    """Seconds that the last discovery took, the number of failed calls so far, and the last failed call."""

    took: float = 0.0
    failed: int = 0
    failure: Failure | None = None


class SplitProvider(ABC):
    """Provides new splits, and the present ends of open ones. Called on the planning thread."""

    in_order: bool = False
    """Whether splits are read one after the other. If so, each poll lists all splits that are not begun; bounded splits
    without an end are read whole, and `latest` is ignored."""

    always_polls: bool = False
    """Whether `poll` is called in each call of an AvailableNow run, with `room` 0 after the first one. New splits then
    wait for the next run."""

    enumerator: DiscoveryEnumerator | None = None
    """Provides sizes, slices and `advance`; None = no enumerator."""

    unanswered: frozenset[str] = frozenset()
    """Ids of the splits whose present end is unknown because `latest` failed; they are not read until it succeeds."""

    looked_at: float = float("-inf")
    """The monotonic time at which the source was asked for the ends that `latest` returns."""

    @abstractmethod
    def due(self) -> float:
        """Return the monotonic time of the next poll."""

    def due_soon(self, since: float, within: float) -> float | None:
        """Return the seconds until a cached answer expires, if the caller should wait; see `RefreshPolicy.due_soon`."""
        return None

    @abstractmethod
    def restore(self, state: Json) -> None:
        """Restore the state that `snapshot` returned. Called after a restart, before `poll` and `latest`."""

    @abstractmethod
    def poll(
        self, known: Mapping[str, Split], unfinished: Mapping[str, Split], *, fresh: bool, room: int
    ) -> PollResult:
        """Ask the source for new splits if the cached answer has expired, or if `fresh` is set.

        Args:
            known: All splits, by id, that must not be returned again.
            unfinished: The splits of `known` that are not read to their end.
            fresh: Ask now, and raise an error if the source fails.
            room: The maximum number of new splits that a micro-batch can read.
        """

    @abstractmethod
    def snapshot(self, n: int) -> Json:
        """Return the state after the last poll, for the offset of micro-batch `n`."""

    def latest(self, splits: Sequence[Split], *, fresh: bool) -> Mapping[str, Position]:
        """Return the present ends of the splits, by id; unknown ends are left out.

        The source is asked if the cached ends have expired, or if `fresh` is set.
        """
        return {}

    def committed(self, positions: Mapping[str, Position]) -> None:
        """Record that all records before these positions, by split id, are durably delivered. May be repeated."""

    def finished(self, splits: Sequence[Split]) -> None:
        """Record that these splits are durably delivered to their end. May be repeated."""

    def batch_committed(self, n: int) -> None:
        """Record that micro-batch `n` and all before it are durably delivered. May be repeated; must not raise."""

    @abstractmethod
    def close(self) -> None:
        """Free all resources."""

    def status(self) -> DiscoveryStatus:
        """Return the cost and the failures of discovery, for reports."""
        return DiscoveryStatus()


class DiscoverySplitProvider(SplitProvider):
    """Runs an author's `DiscoveryEnumerator` for a stream.

    Some calls must succeed, maybe after retries: the first `discover` of a query, the first `latest` of a run, and both
    when an AvailableNow run begins. Any other failure is logged and retried with back-off, and known splits are still
    read.

    Args:
        source: The source.
        enumerator: The author's enumerator.
        options: The host's options; `discovery_interval`, `refresh_interval` and `close_timeout` are used.
        calls: Runs the methods of the enumerator.
        runtime: Gives the time.
    """

    enumerator: DiscoveryEnumerator

    def __init__(
        self,
        source: Source,
        enumerator: DiscoveryEnumerator,
        options: HostOptions,
        calls: ConnectorCalls,
        runtime: Runtime,
    ) -> None:
        self._source = source
        self.enumerator = enumerator
        self._calls = calls
        self._clock = runtime.clock
        self.in_order = bool(enumerator.in_order)
        floor, share = enumerator.refresh_floor, enumerator.refresh_share
        discovery_floor = floor if enumerator.discovery_floor is None else enumerator.discovery_floor
        self._refresh = RefreshPolicy(runtime, options.discovery_interval, discovery_floor, share)
        self._ends_refresh = RefreshPolicy(runtime, options.refresh_interval, floor, share)
        self._once = bool(source.bounded) and not self.in_order
        self._close_timeout = options.close_timeout.total_seconds()
        self._in_stages = bool(enumerator.in_stages)
        self._in_stage = False  # the last discovery found splits, or some were unfinished then or since
        self._first = True
        self._state: Json = None
        self._ends: Mapping[str, Position] = {}
        self._asked: frozenset[str] = frozenset()
        self._answered = False

    def due(self) -> float:
        """Return the monotonic time when `discover` or `latest` is due again. A bounded source is discovered once."""
        discovery = float("inf") if self._once and not self._first else self._refresh.due
        return min(discovery, self._ends_refresh.due if self._asked else float("inf"))

    def due_soon(self, since: float, within: float) -> float | None:
        """Return the seconds until the answer of discovery or `latest` expires, if the caller should wait for that."""
        discovery = None if self._once and not self._first else self._refresh.due_soon(since, within)
        ends = self._ends_refresh.due_soon(since, within) if self._asked else None
        return min((due for due in (discovery, ends) if due is not None), default=None)

    def status(self) -> DiscoveryStatus:
        """Return the seconds that discovery took, and the failures of discovery and `latest`."""
        discovery, ends = self._refresh.failures, self._ends_refresh.failures
        failure = last_of(discovery.failure, ends.failure)
        return DiscoveryStatus(self._refresh.took, discovery.failed + ends.failed, failure)

    def committed(self, positions: Mapping[str, Position]) -> None:
        """Pass the positions on to the author's `committed`."""
        self._calls.call("committed()", lambda: self.enumerator.committed(positions))

    def finished(self, splits: Sequence[Split]) -> None:
        """Pass the splits on to the author's `finished`."""
        self._calls.call("finished()", lambda: self.enumerator.finished(splits))

    def close(self) -> None:
        """Close the author's enumerator."""
        self._calls.call("close()", self.enumerator.close, within=("closeTimeout", self._close_timeout))

    def restore(self, state: Json) -> None:
        """Restore the author's enumerator from `state`, which `snapshot` returned."""
        # An empty state is not written. An offset means that a discovery succeeded, unless its state has "first".
        stored = state if isinstance(state, Mapping) else {}
        self._first = bool(stored.get("first", False))
        self._state = stored.get("state")
        if not self._first:
            self._calls.call("restore_state()", lambda: self.enumerator.restore_state(self._state))

    def snapshot(self, n: int) -> Json:
        """Return the state that the author's last `discover` returned, and whether no discovery has succeeded yet."""
        stored: dict[str, Json] = {"first": self._first} if self._first else {}
        return stored if self._state is None else {**stored, "state": self._state}

    def poll(
        self, known: Mapping[str, Split], unfinished: Mapping[str, Split], *, fresh: bool, room: int
    ) -> PollResult:
        """Call the author's `discover` if it is due or `fresh` is set; return new, gone and forgettable splits."""
        self._in_stage = self._in_stage or bool(unfinished)
        next_stage = self._in_stages and self._in_stage and not unfinished and not self._refresh.failures.failing
        if not self._first and (self._once or not (fresh or next_stage or self._refresh.is_due())):
            return PollResult()
        discovered: list[Discovered] = []

        def ask() -> None:
            first = self._first
            call = partial(self._calls.call, brief=not (fresh or first))
            discovered.append(call("discover()", lambda: self.enumerator.discover(known, first)))
            if any(split.id not in known for split in getattr(discovered[0], "splits", ())):
                self._refresh.news()

        try:
            self._refresh.measure(ask)
        except RetriableError as error:
            if fresh or self._first:
                raise
            pause = self._refresh.put_off(error)
            _log.warning("%s: discovery failed and is retried in %.1f s: %s", self._source.name, pause, error)
            return PollResult()
        result = self._compare(discovered[0], known, unfinished)
        self._in_stage = bool(result.new or unfinished)
        return result

    def _compare(self, result: object, known: Mapping[str, Split], unfinished: Mapping[str, Split]) -> PollResult:
        """Check `result`, which `discover` returned; return its new splits, and the known splits that are gone."""
        discovered, splits = checked_discovery(self._source, result)
        missing = [split for split in unfinished.values() if split.id not in splits]
        gone: list[str] = []
        dropped = bool(missing) and self._calls.call("vanished()", lambda: bool(self.enumerator.vanished(missing)))
        if dropped:
            _log.warning(
                "%s: %d splits no longer exist and are no longer read; one of them is %r",
                self._source.name,
                len(missing),
                missing[0].id,
            )
            gone = [split.id for split in missing]
        self._first, self._state = False, discovered.state
        new = [split for split_id, split in splits.items() if split_id not in known]
        return PollResult(new, gone, discovered.horizon)

    def latest(self, splits: Sequence[Split], *, fresh: bool) -> Mapping[str, Position]:
        """Return the present ends by split id; call the author's `latest` if the cached ends have expired."""
        if self.in_order:  # such splits are read whole: their ends are not needed
            return {}
        split_ids = frozenset(split.id for split in splits)
        if not split_ids:
            self._asked = self.unanswered = split_ids
            return {}
        # The ends of new splits are asked for at once, unless the last call failed.
        more = bool(split_ids - self._asked) and not self._ends_refresh.failures.failing
        if fresh or more or self._ends_refresh.is_due():
            try:
                self._ends_refresh.measure(lambda: self._ask_for_ends(splits, brief=not fresh and self._answered))
            except RetriableError as error:
                if fresh or not self._answered:
                    raise
                pause = self._ends_refresh.put_off(error)
                _log.warning("%s: latest() failed and is retried in %.1f s: %s", self._source.name, pause, error)
            else:
                self._asked, self._answered = split_ids, True
        self.unanswered = split_ids - self._asked
        return self._ends

    def _ask_for_ends(self, splits: Sequence[Split], *, brief: bool) -> None:
        began = self._clock.monotonic()
        answer = self._calls.call("latest()", lambda: self.enumerator.latest(splits), brief=brief)
        if not isinstance(answer, Mapping):
            raise ContractError(
                f"latest() returned {type(answer).__name__}, not a mapping",
                source=self._source.name,
                rule="ENU-10",
                advice="in the connector, let latest() return a mapping of split ids to positions",
            )
        ends = {split_id: normalise(end, split_id) for split_id, end in answer.items() if end is not None}
        if ends != self._ends:
            self._ends_refresh.news()
        self._ends, self.looked_at = ends, began
