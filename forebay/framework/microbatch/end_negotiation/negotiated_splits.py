# SPDX-License-Identifier: Apache-2.0
"""The planner's side of ends that are agreed on: which splits have more, and how far they were read (S14)."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

from forebay.errors import ConfigurationError, RetriableError
from forebay.framework.host_options import HostOptions
from forebay.framework.microbatch.admission.admission import Limits
from forebay.framework.microbatch.end_negotiation.claim import Chain, Claiming, Share, begun_of, claims_of
from forebay.framework.microbatch.end_negotiation.probe import RecordProbe
from forebay.framework.microbatch.offsets.offset import Agreed, Offset, Planned
from forebay.framework.microbatch.offsets.state_location import state_store
from forebay.framework.microbatch.split_providers.refresh_policy import FailureTracker
from forebay.framework.runtime.connector_calls import ConnectorCalls
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.state.state_store import StateStore

_log = logging.getLogger(__name__)

KEPT: Final = 200
"""Micro-batches whose claims are kept: so far a query can be set back."""

_SWEPT: Final = 20
"""Micro-batches behind those whose claims are looked for, in case that deleting them failed."""

_PATIENCE: Final = 10.0
"""Seconds that planning waits for an answer to what is new, while there is nothing else to do."""

_GRACE: Final = 0.5
"""Seconds that it waits where there is something to read: that must not wait for a slow split."""

_LISTEN: Final = 0.05
"""Seconds between two looks at whether an answer has come, then."""


class NegotiatedSplits:
    """Knows, of every split without a known end, whether there is more. Lives in the planner; called on its thread.

    A split has more if its last read did not catch up with it, or if a look found a record. A caught-up one is looked
    at again after `pollInterval`.

    Args:
        source: What is read.
        options: `poll_interval`, `max_batch_duration`, limits.
        store: Where claims are kept.
        calls: Bounds the calls of connector and store.
        runtime: Threads and time.
    """

    def __init__(
        self, source: Source, options: HostOptions, store: StateStore, calls: ConnectorCalls, runtime: Runtime
    ) -> None:
        self._source = source
        self._options = options
        self._limits = Limits.of(options)
        self._store = store
        self._calls = calls
        self._runtime = runtime
        self._more: set[str] = set()
        self._rests: dict[str, float] = {}  # until when
        self._probes: list[RecordProbe] = []  # those still without some answers
        self._planned_at = float("-inf")
        self._begun: tuple[str, int] | None = None
        self._resolved: Offset | None = None
        self._swept = -1
        self.trouble = FailureTracker(runtime)
        """The looks that failed."""

    @classmethod
    def of(
        cls, source: Source, options: HostOptions, calls: ConnectorCalls, runtime: Runtime
    ) -> NegotiatedSplits | None:
        """Return what the options allow; None without `stateLocation`."""
        store = state_store(options)
        return None if store is None else cls(source, options, store, calls, runtime)

    # ---- what has more

    def with_more(self, there: Sequence[Planned], *, fresh: bool, ending: bool) -> list[Planned]:
        """Return what there is without the splits that have nothing to read. May block, to look.

        Args:
            there: Splits, with a known end or without.
            fresh: An AvailableNow run begins: look now.
            ending: Such a run is on: what it has caught up with once is done.

        Raises:
            ForebayError: The source failed.
        """
        mine = {planned.split.id: planned.split for planned in there if planned.to is Agreed.AGREED}
        if mine and self._options.min_rows_per_trigger is not None:
            raise ConfigurationError(
                "minRowsPerTrigger cannot be kept: how much there is to read is not known before it is read",
                source=self._source.name,
                split=next(iter(mine)),
                option="minRowsPerTrigger",
                advice="leave it out; or, in the connector, say it in latest(split)",
            )
        if not ending:
            self._look(mine, fresh=fresh, busy=len(mine) < len(there))
            self._rests = {split_id: until for split_id, until in self._rests.items() if split_id in mine}
            self._more &= mine.keys()
        return [planned for planned in there if planned.split.id not in mine or planned.split.id in self._more]

    def due(self) -> float:
        """Return the monotonic time of the next look; never, if nothing rests."""
        if self._probes:
            return self._runtime.clock.monotonic() + _LISTEN
        return min(self._rests.values(), default=float("inf"))

    def close(self) -> None:
        """Stop looking."""
        probes, self._probes = self._probes, []
        with ExitStack() as stack:
            for one in probes:
                stack.callback(one.close)

    def _look(self, splits: Mapping[str, Split], *, fresh: bool, busy: bool) -> None:
        """Ask the splits that are due, and take in the answers that have come."""
        for one in list(self._probes):
            self._probes.remove(one)  # one that fails closes itself
            self._ask(one, fresh=fresh)
        now = self._runtime.clock.monotonic()
        asked = {split_id for one in self._probes for split_id in one.silent}
        due = [one for split_id, one in splits.items() if split_id not in self._more and split_id not in asked]
        due = [one for one in due if fresh or self._rests.get(one.id, now) <= now]
        if not due:
            return
        duration = self._options.max_batch_duration.total_seconds()
        patience = duration if fresh else (_GRACE if busy or self._more else _PATIENCE)
        probe = RecordProbe(self._source, due, self._options, self._runtime)
        self._ask(probe, patience, patience if fresh else _GRACE, fresh=fresh)
        if fresh and probe.silent:
            _log.warning(
                "%s: %d splits gave no answer within %g s and are left to the next run, first %r",
                self._source.name,
                len(probe.silent),
                patience,
                min(probe.silent),
            )

    def _ask(self, probe: RecordProbe, patience: float = 0.0, grace: float = 0.0, *, fresh: bool) -> None:
        """Take in the answers that have come; what fails is asked again after a pause, which grows."""
        try:
            probe.look(patience, grace)
        except RetriableError as error:
            if fresh:  # a run that ends must not take an outage for "nothing new"
                raise
            self._take_in(probe)
            pause = self.trouble.note(error)
            self._rests |= dict.fromkeys(probe.silent, self._runtime.clock.monotonic() + pause)
            _log.warning("%s: looking for more failed, again in %.1f s: %s", self._source.name, pause, error)
            return
        self._take_in(probe)
        if probe.silent:
            self._probes.append(probe)

    def _take_in(self, probe: RecordProbe) -> None:
        something, nothing = probe.answers()
        for split_id in something:
            self._rests.pop(split_id, None)
        self._more |= something
        rest = self._runtime.clock.monotonic() + self._options.poll_interval.total_seconds()
        self._rests |= dict.fromkeys(nothing, rest)
        if something or nothing:
            self.trouble.end()

    # ---- how much of it

    def admit(self, there: Sequence[Planned]) -> tuple[list[Planned], list[Planned]]:
        """Return what a limited micro-batch takes of the splits without a known end, and the other ones it may take.

        The limits are for the one kind or for the other, for that of the split that has waited longest: how much is
        left by those without a known end is not known before they are read.

        Args:
            there: The splits with something to read; who waited longest comes first.
        """
        if not there or there[0].to is not Agreed.AGREED:
            return [], [planned for planned in there if planned.to is not Agreed.AGREED]
        mine = [planned for planned in there if planned.to is Agreed.AGREED]
        limits = (self._limits.rows, self._limits.byte_budget, self._limits.files)
        return mine[: min((limit for limit in limits if limit is not None), default=len(mine))], []

    def claiming(self, offset: Offset) -> Claiming | None:
        """Return what the tasks of a micro-batch need; None where all ends are known.

        Raises:
            ConfigurationError: The claims of this query are not where the options say.
        """
        ids = [planned.split.id for planned in offset.splits if planned.to is Agreed.AGREED]
        if not ids:
            return None
        self._check_begun(offset)
        limits = Limits() if offset.unlimited else self._limits
        rows = _evenly(limits.rows, len(ids))
        byte_budget = _evenly(limits.byte_budget, len(ids))
        given = (Share(*both) for both in zip(rows, byte_budget, strict=True))
        return Claiming(offset.query, offset.n, dict(zip(ids, given, strict=True)))

    # ---- how far it was read

    def begin(self, query: str, n: int, taken: Sequence[Planned]) -> None:
        """Note that the claims of a micro-batch are kept here, before there are any.

        An old copy of `stateLocation`, or another one, has no such note, and then nothing is read twice.

        Args:
            query: The id of the query.
            n: The number of the micro-batch.
            taken: What it reads.
        """
        if not any(planned.to is Agreed.AGREED for planned in taken):
            return
        self._planned_at = self._runtime.clock.monotonic()
        note = self._source.name.encode()
        self._calls.call("writing", lambda: self._store.put_if_absent(begun_of(query, n), note))
        self._begun = (query, n)

    def resolved(self, offset: Offset) -> Offset:
        """Return a micro-batch that is proven done with the ends it has: its chains are sealed, once.

        Raises:
            ConfigurationError: The claims of this query are not where the options say, or are damaged.
            RetriableError: The store did not answer.
        """
        done = self._resolved
        if done is not None and (done.query, done.n) == (offset.query, offset.n):
            return done
        self._check_begun(offset)
        splits = [self._sealed(each, offset) if each.to is Agreed.AGREED else each for each in offset.splits]
        self._resolved = dataclasses.replace(offset, splits=splits)
        return self._resolved

    def forget(self, offset: Offset) -> None:
        """Delete claims of long ago, if the query has any. Best effort."""
        if self._begun is None or self._begun[0] != offset.query:
            return
        last = offset.n - KEPT
        first = max(0, self._swept + 1, last - _SWEPT)
        for n in range(first, last + 1):
            self._calls.call("deleting claims", partial(self._delete, claims_of(offset.query, n)))
            self._swept = n

    def _delete(self, prefix: str) -> None:
        self._store.delete(self._store.names(prefix))

    def _sealed(self, planned: Planned, offset: Offset) -> Planned:
        split = planned.split
        claim = Chain(self._store, self._calls, offset.query, offset.n, split).seal()
        self._more.discard(split.id)
        self._rests.pop(split.id, None)
        if claim.caught_up or claim.end == split.position:  # or nobody read it: there is no hurry
            # Counted from when it was planned: between two rare triggers it has rested; after a restart it need not.
            self._rests[split.id] = self._planned_at + self._options.poll_interval.total_seconds()
        else:
            self._more.add(split.id)
        return Planned(split, claim.end)

    def _check_begun(self, offset: Offset) -> None:
        query, n = offset.query, offset.n
        if self._begun == (query, n):
            return
        if self._calls.call("reading", lambda: self._store.get(begun_of(query, n))) is None:
            raise ConfigurationError(
                f"there is nothing of micro-batch {n} of this query below {self._store.location}: how far it has read "
                "is kept elsewhere, or was lost",
                source=self._source.name,
                option="stateLocation",
                advice="give stateLocation as before, or move what was there; with another one rows would come twice",
            )
        self._begun = (query, n)


def _evenly(total: int | None, count: int) -> list[int | None]:
    """Divide a limit over splits, at least 1 each; what is left over goes to the first ones, who waited longest."""
    if total is None:
        return [None] * count
    each, left = divmod(total, count)
    return [max(1, each + (index < left)) for index in range(count)]
