# SPDX-License-Identifier: Apache-2.0
"""Where a stream's splits come from: an author's discovery, looked at no more often than it is worth."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from forebay.errors import ContractError, RetriableError
from forebay.framework.discovery import Discovered, DiscoveryEnumerator
from forebay.framework.host_options import HostOptions
from forebay.framework.microbatch.split_providers.refresh_policy import Failure, FailureTracker, RefreshPolicy, last_of
from forebay.framework.microbatch.split_providers.validation import checked_discovery
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Json, Position, Split, normalise

_log = logging.getLogger(__name__)


class SplitProvider(ABC):
    """Brings new splits and the present ends of open ones. Called on the planning thread."""

    in_order: bool = False
    """Whether splits that were not begun are listed anew by every look; of a bounded source, one without an end is read
    to its own, whatever `latest` says."""

    always_looks: bool = False
    """Whether it is asked also while an AvailableNow run reads what it began with: to hear what is done, without room.
    What it brings then waits for the next run."""

    @abstractmethod
    def due(self) -> float:
        """Return the monotonic time of the next look."""

    def due_soon(self, since: float, within: float) -> float | None:
        """Return in how many seconds something that is known from before `since` is too old; None = nothing is.

        Args:
            since: A monotonic time.
            within: What is trusted for more seconds than these does not count.
        """
        return None

    @abstractmethod
    def restore(self, state: Json) -> None:
        """Take back what `snapshot` gave, before anything else. Called once, after a restart."""

    @abstractmethod
    def look(self, known: Mapping[str, Split], unfinished: Mapping[str, Split], *, fresh: bool, room: int) -> Look:
        """Look for new splits, if the last look is too old or `fresh` is asked for.

        Args:
            known: Every split that must not come again.
            unfinished: Those of them that have not been read to their end.
            fresh: Look now; a failure is an error.
            room: How many new splits a micro-batch can take.
        """

    @abstractmethod
    def snapshot(self, n: int) -> Json:
        """Return what `restore` takes back, as of the last look, for the offset of micro-batch `n`."""

    @abstractmethod
    def latest(self, splits: Sequence[Split], *, fresh: bool) -> Mapping[str, Position]:
        """Return the present end of each split, by id, as far as it is known; asked for if too old or `fresh`."""

    @property
    def unasked(self) -> frozenset[str]:
        """Ids of the splits that `latest` could not bring an end of this time: they are left to a later look."""
        return frozenset()

    @abstractmethod
    def committed(self, positions: Mapping[str, Position]) -> None:
        """Everything before these positions is durably delivered; may be told again."""

    @abstractmethod
    def finished(self, splits: Sequence[Split]) -> None:
        """These splits are durably delivered to their end; may be told again."""

    def proven(self, n: int) -> None:
        """Micro-batch `n`, and all before, are durably delivered; may be told again. Must not fail."""

    @abstractmethod
    def close(self) -> None:
        """Free everything."""

    @property
    def took(self) -> float:
        """Seconds the last look took."""
        return 0.0

    @property
    def retried(self) -> int:
        """How many looks failed and were tried again later."""
        return 0

    @property
    def failure(self) -> Failure | None:
        """The last of these."""
        return None

    @property
    def enumerator(self) -> DiscoveryEnumerator | None:
        """Who knows sizes, slices and how far a budget reaches; None = nobody does."""
        return None


class Look:
    """What a look brought.

    Args:
        new: Splits that were not known, in order; None = there was no look.
        gone: Ids of unfinished splits that are to be dropped.
        horizon: True for a finished split that no later look can bring; None = keep them all.
    """

    def __init__(
        self,
        new: Sequence[Split] | None = None,
        gone: Sequence[str] = (),
        horizon: Callable[[Split], bool] | None = None,
    ) -> None:
        self.new = new
        self.gone = gone
        self.horizon = horizon


class DiscoverySplitProvider(SplitProvider):
    """Runs an author's `DiscoveryEnumerator` for a stream.

    The first discovery of a query, the first question for ends of a run, and what an AvailableNow run begins with, must
    succeed, after retries. A later one that fails is a warning, with back-off: what is known is read on.

    Args:
        source: What is read.
        enumerator: The author's.
        options: `discovery_interval`, `retries`.
        calls: Bounds the author's calls.
        runtime: Clock and chance.
    """

    def __init__(
        self,
        source: Source,
        enumerator: DiscoveryEnumerator,
        options: HostOptions,
        calls: ConnectorCalls,
        runtime: Runtime,
    ) -> None:
        self._source = source
        self._enumerator = enumerator
        self._calls = calls
        self._runtime = runtime
        self.in_order = bool(enumerator.in_order)
        interval = options.discovery_interval
        seconds = None if interval is None else interval.total_seconds()
        floor = enumerator.refresh_floor if enumerator.discovery_floor is None else enumerator.discovery_floor
        self._freshness = RefreshPolicy(runtime, seconds, floor, enumerator.refresh_share)
        self._ends = Ends(source, enumerator, options, calls, runtime)
        self._once = bool(source.bounded) and not self.in_order
        self._close_timeout = options.close_timeout.total_seconds()
        self._first = True
        self._state: Json = None

    def due(self) -> float:
        """Return when to discover or to ask for ends again; a bounded source is discovered once."""
        discovery = float("inf") if self._once and not self._first else self._freshness.due
        return min(discovery, self._ends.due())

    def due_soon(self, since: float, within: float) -> float | None:
        """Return when the next of both questions can be asked again."""
        discovery = None if self._once and not self._first else self._freshness.due_soon(since, within)
        soon = [one for one in (discovery, self._ends.due_soon(since, within)) if one is not None]
        return min(soon, default=None)

    @property
    def took(self) -> float:
        """Seconds the last discovery took."""
        return self._freshness.took

    @property
    def retried(self) -> int:
        """How many discoveries, and questions for ends, failed and were tried again later."""
        return self._freshness.trouble.failed + self._ends.trouble.failed

    @property
    def failure(self) -> Failure | None:
        """The last of these; while a failure lasts, it is the one."""
        return last_of(self._freshness.trouble.failure, self._ends.trouble.failure)

    @property
    def enumerator(self) -> DiscoveryEnumerator:
        """The author's."""
        return self._enumerator

    def latest(self, splits: Sequence[Split], *, fresh: bool) -> Mapping[str, Position]:
        """Ask the author for the ends, if what is known of them is too old."""
        # What is taken in order is read whole: nobody need be asked about thousands of files.
        return {} if self.in_order else self._ends.latest(splits, fresh=fresh)

    @property
    def unasked(self) -> frozenset[str]:
        """Those whose ends were not brought by the last question, which failed."""
        return self._ends.unasked

    def committed(self, positions: Mapping[str, Position]) -> None:
        """Tell the author."""
        self._calls.call("committed()", lambda: self._enumerator.committed(positions))

    def finished(self, splits: Sequence[Split]) -> None:
        """Tell the author."""
        self._calls.call("finished()", lambda: self._enumerator.finished(splits))

    def close(self) -> None:
        """Close the author's enumerator."""
        within = ("closeTimeout", self._close_timeout)
        self._calls.call("close()", self._enumerator.close, within=within)

    def restore(self, state: Json) -> None:
        """Take the author's state back."""
        # Nothing to keep is not written; but there was a discovery, or there were no offset.
        kept = state if isinstance(state, Mapping) else {}
        self._first = bool(kept.get("first", False))
        self._state = kept.get("state")
        if not self._first:
            self._calls.call("restore_state()", lambda: self._enumerator.restore_state(self._state))

    def snapshot(self, n: int) -> Json:
        """Return the author's state."""
        kept: dict[str, Json] = {"first": self._first} if self._first else {}
        return kept if self._state is None else {**kept, "state": self._state}

    def look(self, known: Mapping[str, Split], unfinished: Mapping[str, Split], *, fresh: bool, room: int) -> Look:
        """Discover, if it is time."""
        if not self._first and (self._once or not (fresh or self._freshness.is_due())):
            return Look()
        found: list[Discovered] = []

        def ask() -> None:
            first = self._first
            found.append(self._calls.call("discover()", lambda: self._enumerator.discover(known, first)))
            if any(split.id not in known for split in getattr(found[0], "splits", ())):
                self._freshness.news()

        try:
            self._freshness.measure(ask)
        except RetriableError as error:
            if fresh or self._first:
                raise
            pause = self._freshness.put_off(error)
            _log.warning("%s: discovery failed, again in %.1f s: %s", self._source.name, pause, error)
            return Look()
        return self._taken(found[0], known, unfinished)

    def _taken(self, result: object, known: Mapping[str, Split], unfinished: Mapping[str, Split]) -> Look:
        discovered, found = checked_discovery(self._source, result)
        missing = [one for one in unfinished.values() if one.id not in found]
        gone: list[str] = []
        dropped = bool(missing) and self._calls.call("vanished()", lambda: bool(self._enumerator.vanished(missing)))
        if dropped:
            _log.warning("%s: %d splits are gone and dropped, first %r", self._source.name, len(missing), missing[0].id)
            gone = [one.id for one in missing]
        self._first, self._state = False, discovered.state
        return Look([split for split_id, split in found.items() if split_id not in known], gone, discovered.horizon)


class Ends:
    """The present ends of open splits, asked no more often than they are worth (S7).

    Args:
        source: What is read.
        enumerator: The author's.
        options: `refresh_interval`.
        calls: Bounds the author's calls.
        runtime: The clock.
    """

    def __init__(
        self,
        source: Source,
        enumerator: DiscoveryEnumerator,
        options: HostOptions,
        calls: ConnectorCalls,
        runtime: Runtime,
    ) -> None:
        self._source = source
        self._enumerator = enumerator
        self._calls = calls
        interval = options.refresh_interval
        seconds = None if interval is None else interval.total_seconds()
        self._freshness = RefreshPolicy(runtime, seconds, enumerator.refresh_floor, enumerator.refresh_share)
        self._known: dict[str, Position] = {}
        self._asked: frozenset[str] = frozenset()
        self._answered = False
        self.unasked: frozenset[str] = frozenset()
        """Splits of the last question that nothing is known of, since it failed."""

    @property
    def trouble(self) -> FailureTracker:
        """The questions that failed, and were asked again later."""
        return self._freshness.trouble

    def due(self) -> float:
        """Return the monotonic time from which on the ends are too old; never, if nobody asks for any."""
        return self._freshness.due if self._asked else float("inf")

    def due_soon(self, since: float, within: float) -> float | None:
        """Return in how many seconds ends from before `since` are too old; None = there are none, or asking is dear."""
        return self._freshness.due_soon(since, within) if self._asked else None

    def latest(self, splits: Sequence[Split], *, fresh: bool) -> Mapping[str, Position]:
        """Return the present end of each split, by id, as far as it is known."""
        wanted = frozenset(split.id for split in splits)
        if not wanted:
            self._asked = self.unasked = wanted  # nobody waits for their next look
            return {}
        more = bool(wanted - self._asked) and not self.trouble.on  # new ones do not wait, but for one that is down
        if fresh or more or self._freshness.is_due():
            try:
                self._freshness.measure(lambda: self._ask(splits))
            except RetriableError as error:
                if fresh or not self._answered:
                    raise
                pause = self._freshness.put_off(error)
                _log.warning("%s: the ends are not known anew, again in %.1f s: %s", self._source.name, pause, error)
            else:
                self._asked, self._answered = wanted, True
        self.unasked = wanted - self._asked
        return self._known

    def _ask(self, splits: Sequence[Split]) -> None:
        found = self._calls.call("latest()", lambda: self._enumerator.latest(splits))
        if not isinstance(found, Mapping):
            raise ContractError(
                f"latest() gave {type(found).__name__}",
                source=self._source.name,
                rule="ENU-10",
                advice="return a mapping of split ids to positions",
            )
        known = {split_id: normalise(end, split_id) for split_id, end in found.items() if end is not None}
        if known != self._known:
            self._freshness.news()
        self._known = known
