# SPDX-License-Identifier: Apache-2.0
"""Negotiation of the end of a split whose end is unknown before it is read (S14): claims, and the planner's part."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import quote

import pyarrow as pa

from forebay.errors import ConfigurationError, FatalError, RetriableError
from forebay.framework.microbatch.admission import BatchLimits
from forebay.framework.microbatch.offset import Offset, Planned, UnknownEnd
from forebay.framework.microbatch.split_provider import FailureTracker
from forebay.framework.reader import InputStatus
from forebay.framework.reading.reader_context import Delivered, Output, ReaderContext, close_reader
from forebay.framework.runtime.clients import ConnectorCalls
from forebay.framework.runtime.connector_errors import wrap_errors
from forebay.framework.runtime.host_options import HostOptions, state_store
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Position, Split, normalise
from forebay.state.state_store import StateStore

# -- A reader of some splits that the caller polls without blocking, and closes when it has read enough.


class OpenRead:
    """A running `SourceReader` of some splits, polled by one thread. It goes on reading splits that have caught up.

    Args:
        source: The source.
        splits: The splits; each is read from its position exactly to its end, if it has one.
        options: The host's options.
        runtime: Threads and time.
        index: The number of the task, from 0.
        count: The number of tasks of the read.

    Raises:
        ForebayError: The source cannot create its reader.
    """

    def __init__(
        self,
        source: Source,
        splits: Sequence[Split],
        options: HostOptions,
        runtime: Runtime,
        *,
        index: int = 0,
        count: int = 1,
    ) -> None:
        self._source = source.name
        self._splits = {split.id: split for split in splits}
        self._only = splits[0].id if len(splits) == 1 else None
        self._context = ReaderContext(source, options, runtime, index=index, count=count)
        self._output = Output(source.name)
        self._reached: dict[str, Position | None] = {split.id: split.position for split in splits}
        self._more = True
        self.caught_up: set[str] = set()
        """Ids of the splits that have caught up at least once."""
        self.finished: set[str] = set()
        """Ids of the splits that were read to their end."""
        self._reader = self._context.new_reader(self._only)
        try:
            with wrap_errors(self._source, "reading", self._only):
                self._reader.add_splits(splits)
                self._reader.notify_no_more_splits()
                self._reader.start()
        except BaseException as error:
            self.close(error)
            raise

    def poll(self) -> Delivered | None:
        """Return the next record batch, or None if there is none now; never blocks.

        Raises:
            ForebayError: The source failed or broke a rule.
        """
        output = self._output
        with wrap_errors(self._source, "reading", self._only):
            status = self._reader.poll_next(output)
        delivered, output.delivered = output.delivered, None
        if delivered is not None:
            self._reached[delivered.split_id] = delivered.position
        self.caught_up.update(output.caught_up)
        self.finished.update(output.released)
        output.caught_up.clear()
        output.released.clear()
        if status is InputStatus.END_OF_INPUT:
            self.finished.update(self._splits)
        self._more = status is InputStatus.MORE_AVAILABLE
        return delivered

    def pause(self, split_id: str) -> None:
        """Stop reading one of the splits."""
        with wrap_errors(self._source, "pause_or_resume_splits()", split_id):
            self._reader.pause_or_resume_splits([split_id], [])

    def position(self, split_id: str) -> Position | None:
        """Return the reader's position in a split. It may be beyond the last record batch, if rows are filtered."""
        split = self._splits[split_id]
        if split_id in self.finished:
            return self._reached[split_id] if split.end is None else split.end
        with wrap_errors(self._source, "snapshot_state()", split_id):
            held = self._reader.snapshot_state(0)
        return next((part.position for part in held if part.id == split_id), self._reached[split_id])

    def available(self) -> Future[None]:
        """Return a future that completes when the next `poll` may have a record batch."""
        if self._more:
            done: Future[None] = Future()
            done.set_result(None)
            return done
        return self._reader.is_available()

    def close(self, error: BaseException | None = None) -> None:
        """Close the reader within `closeTimeout`, and give back its clients; errors become notes of `error`, if given.

        Raises:
            ForebayError: The reader failed to close, and `error` is None.
        """
        close_reader(self._reader, self._context, self._source, error)


class FutureWaiter:
    """Waits until one of several futures is done. Used by one thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._signal = runtime.signal()
        self._watched: list[Future[None]] = []

    def wait(self, futures: Iterable[Future[None]], timeout: float) -> None:
        """Return when one of the futures is done, or after `timeout` seconds. May return early."""
        watched = list(futures)
        for future in watched:
            if not any(future is known for known in self._watched):
                future.add_done_callback(lambda _: self._signal.set())
        self._watched = watched
        if not any(future.done() for future in watched):
            self._signal.wait(timeout)
        self._signal.clear()


# -- Claims: small files that fix how far a micro-batch reads a split whose end is unknown before it is read (S14).
#
# A task reads such a split in chunks. Each attempt of the task claims the end of a chunk before it delivers any row of
# it; the first attempt wins. The claims of a split in a micro-batch, numbered from 0, are a chain, which ends with a
# claim that is `last`. Files below `stateLocation`:
#
# ```
# <query id>/claims/<n>/<split>.<digest>.<k>      claim k: {"end": position, "last": bool, "caughtUp": bool}
# <query id>/claims/<n>/begun                     marks that the claims of micro-batch n are in this directory
# ```
# The digest covers the split's id and the position where the micro-batch begins. So a query that is set back to an
# earlier offset and plans differently gets new chains.


_SHOWN: Final = 48
"""Maximum characters of a split's id in a file name, for people; the digest makes the name unique."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The end of one chunk of a split. Every attempt of the task reads the chunk to this end.

    Args:
        end: The position after the chunk; None if the split is still at its start.
        last: Whether this is the last chunk of the split in the micro-batch.
        caught_up: Whether it is the last one because the split had no more data.
    """

    end: Position | None
    last: bool = False
    caught_up: bool = False

    def dump(self) -> bytes:
        """Return the content of the claim's file, as JSON."""
        return json.dumps({"end": self.end, "last": self.last, "caughtUp": self.caught_up}).encode()


class ClaimChain:
    """The claims of one split in micro-batch `n` of a query. For planners and tasks, on any thread.

    The position of `split` is where the micro-batch begins.
    """

    def __init__(self, store: StateStore, calls: ConnectorCalls, query: str, n: int, split: Split) -> None:
        self._store = store
        self._calls = calls
        self._split = split
        self._stem = f"{claims_of(query, n)}{_component(split)}."

    def newest(self, after: int = -1) -> tuple[int, Claim] | None:
        """Return the number of the newest claim, and the claim itself; None if no claim has a number above `after`.

        A chain has no gaps, so the search doubles its steps until it finds no claim, and then halves them.
        """
        newest, step, doubling = None, 1, True
        while step:
            claim = self._read(after + step)
            if claim is not None:
                after += step
                newest = (after, claim)
                if claim.last:
                    return newest
            doubling = doubling and claim is not None
            step = step * 2 if doubling else step // 2
        return newest

    def propose(self, k: int, claim: Claim) -> Claim:
        """Write claim number `k` unless another attempt of the task has written it; return the claim that is stored."""
        data = claim.dump()
        if self._calls.call("writing claims (stateLocation)", lambda: self._store.put_if_absent(self._name(k), data)):
            return claim
        winner = self._read(k)
        if winner is None:
            raise FatalError(
                f"the file {self._name(k)} below {self._store.location} was deleted while the micro-batch was read",
                split=self._split.id,
                option="stateLocation",
                advice="restart the query, and delete nothing below stateLocation while it runs",
            )
        return winner

    def seal(self) -> Claim:
        """Return the claim that is `last`. If there is none, first write one with the end of the newest claim.

        Called by planners for a committed micro-batch, whose rows are all delivered.
        """
        while True:
            newest = self.newest()
            if newest is not None and newest[1].last:
                return newest[1]
            k, end = (0, self._split.position) if newest is None else (newest[0] + 1, newest[1].end)
            winner = self.propose(k, Claim(end, last=True))
            if winner.last:
                return winner

    def _read(self, k: int) -> Claim | None:
        data = self._calls.call("reading claims (stateLocation)", lambda: self._store.get(self._name(k)))
        if data is None:
            return None
        try:
            stored = json.loads(data)
            end = stored["end"]
            position = None if end is None else normalise(end, self._split.id)
            return Claim(position, last=stored["last"] is True, caught_up=stored["caughtUp"] is True)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigurationError(
                f"the file {self._name(k)} below {self._store.location} is damaged: {type(error).__name__}: {error}",
                split=self._split.id,
                option="stateLocation",
                advice="restore the file from a backup: the end of this split in this micro-batch is only stored there",
            ) from error

    def _name(self, k: int) -> str:
        return f"{self._stem}{k:06d}"


def claims_of(query: str, n: int) -> str:
    """Return the prefix that the names of all claims of micro-batch `n` have."""
    return f"{query}/claims/{n}/"


def begun_of(query: str, n: int) -> str:
    """Return the name of the marker file of micro-batch `n`. It is written before the claims, beside them."""
    return f"{claims_of(query, n)}begun"


def _component(split: Split) -> str:
    digest = hashlib.sha256(json.dumps([split.id, split.position]).encode()).hexdigest()[:16]
    shown = quote(split.id, safe="", errors="replace")[:_SHOWN]
    return f"{'%2E' + shown[1:] if shown.startswith('.') else shown}.{digest}"  # a leading dot hides a file


# -- Reads splits in the planner up to their first record, if only reading shows whether they have one.


class RecordProbe:
    """Reads splits up to their first record, or until they have caught up. Called on the planning thread.

    Fetcher threads read, so reading a slow split goes on between two calls of `poll`.

    Raises:
        ForebayError: The source cannot create its reader.
    """

    def __init__(self, source: Source, splits: Sequence[Split], options: HostOptions, runtime: Runtime) -> None:
        self.silent: set[str] = {split.id for split in splits}
        """Ids of the splits that have not answered."""
        self.first: dict[str, pa.RecordBatch] = {}
        """The first record of each split that has one."""
        self._something: set[str] = set()
        self._nothing: set[str] = set()
        self._clock = runtime.clock
        self._waiter = FutureWaiter(runtime)
        self._read = OpenRead(source, splits, dataclasses.replace(options, max_rows_per_batch=1), runtime)

    def answers(self) -> tuple[set[str], set[str]]:
        """Return the ids of the splits that turned out to have a record, and of those that turned out to have none.

        Only answers since the previous call are returned.
        """
        answers = self._something, self._nothing
        self._something, self._nothing = set(), set()
        return answers

    def poll(self, patience: float = 0.0, grace: float = 0.0) -> None:
        """Wait for records of the splits; stop reading when each split has a record or has caught up.

        Args:
            patience: Maximum seconds to wait for all splits.
            grace: Maximum seconds to wait for the other splits once one has a record.

        Raises:
            ForebayError: The source failed or broke a rule; the probe is closed.
        """
        until = self._clock.monotonic() + patience
        try:
            while self.silent:
                delivered = self._read.poll()
                if delivered is not None and delivered.split_id in self.silent:
                    until = min(until, self._clock.monotonic() + grace)
                    self.silent.discard(delivered.split_id)
                    self._something.add(delivered.split_id)
                    self.first[delivered.split_id] = delivered.batch
                    self._read.pause(delivered.split_id)  # so that the others are read
                caught_up = (self._read.caught_up | self._read.finished) & self.silent
                self.silent -= caught_up
                self._nothing |= caught_up
                available, left = self._read.available(), until - self._clock.monotonic()
                if not available.done() and self.silent:
                    if left <= 0:
                        return
                    self._waiter.wait([available], left)
        except BaseException as error:
            self._read.close(error)
            raise
        self.close()

    def close(self) -> None:
        """Stop reading."""
        self._read.close()


# -- The planner's part of end negotiation: finds the splits with more data, and how far tasks have read them (S14).


_log = logging.getLogger(__name__)

KEPT: Final = 200
"""Number of latest micro-batches whose claims are kept, so that the query can be reset to them."""

_SWEPT: Final = 20
"""Maximum number of older micro-batches whose claims the first deletion of a process covers: earlier ones may have
failed."""

_PATIENCE: Final = 10.0
"""Maximum seconds that planning waits for a probe, while there is nothing else to read."""

_GRACE: Final = 0.5
"""Maximum seconds that planning waits for the other splits of a probe after one split has shown data."""

_LISTEN: Final = 0.05
"""Seconds between two polls of a probe in which some splits have not answered."""


class NegotiatedSplits:
    """Decides which splits without a known end have more data. Called on the planning thread.

    A split has more data if its last micro-batch ended before it had caught up, or if a probe found a record. A split
    that had caught up is probed again after `pollInterval`.

    Args:
        source: The source.
        options: The host's options; `poll_interval`, `max_batch_duration`, `min_rows_per_trigger` and the limits are
            used, and readers get them all.
        store: The store at `stateLocation`, which has the claims.
        calls: Runs the calls to the store.
        runtime: Threads and time.
    """

    def __init__(
        self, source: Source, options: HostOptions, store: StateStore, calls: ConnectorCalls, runtime: Runtime
    ) -> None:
        self._source = source
        self._options = options
        self._limits = BatchLimits.of(options)
        self._store = store
        self._calls = calls
        self._runtime = runtime
        self._more: set[str] = set()
        self._rests: dict[str, float] = {}  # by split id, the monotonic time before which it is not probed
        self._probes: list[RecordProbe] = []  # in which some splits have not answered
        self._planned_at = float("-inf")
        self._begun: tuple[str, int] | None = None
        self._resolved: Offset | None = None
        self._swept = -1
        self.failures = FailureTracker(runtime)
        """Counts the probes that failed."""

    @classmethod
    def of(
        cls, source: Source, options: HostOptions, calls: ConnectorCalls, runtime: Runtime
    ) -> NegotiatedSplits | None:
        """Return the `NegotiatedSplits` of a source; None if `stateLocation` is not set: ends cannot be negotiated."""
        store = state_store(options)
        return None if store is None else cls(source, options, store, calls, runtime)

    def with_data(self, available: Sequence[Planned], *, fresh: bool, ending: bool) -> list[Planned]:
        """Return the available splits with a known end, and those without one that have data. May block to probe.

        Args:
            available: Splits with or without a known end.
            fresh: An AvailableNow run or a run of one micro-batch begins: probe all splits now.
            ending: An AvailableNow run continues: do not probe again.

        Raises:
            ConfigurationError: `minRowsPerTrigger` is set, which needs known ends.
            ForebayError: The source failed.
        """
        negotiated = {planned.split.id: planned.split for planned in available if planned.to is UnknownEnd.NEGOTIATED}
        if negotiated and self._options.min_rows_per_trigger is not None:
            raise ConfigurationError(
                "the source does not support minRowsPerTrigger: the number of available rows is unknown before they "
                "are read",
                source=self._source.name,
                split=next(iter(negotiated)),
                option="minRowsPerTrigger",
                advice="remove minRowsPerTrigger; or, in the connector, return the end of each split from latest()",
            )
        if not ending:
            self._probe(negotiated, fresh=fresh, busy=len(negotiated) < len(available))
            self._rests = {split_id: until for split_id, until in self._rests.items() if split_id in negotiated}
            self._more &= negotiated.keys()
        return [
            planned for planned in available if planned.split.id not in negotiated or planned.split.id in self._more
        ]

    def due(self) -> float:
        """Return the monotonic time at which `with_data` must be called again; infinity if no probe is due."""
        if self._probes:
            return self._runtime.clock.monotonic() + _LISTEN
        return min(self._rests.values(), default=float("inf"))

    def close(self) -> None:
        """Stop all probes."""
        probes, self._probes = self._probes, []
        with ExitStack() as stack:
            for probe in probes:
                stack.callback(probe.close)

    def _probe(self, splits: Mapping[str, Split], *, fresh: bool, busy: bool) -> None:
        """Collect the answers of running probes, and start a probe of the splits that are due.

        `fresh` makes all splits due. `busy` says that other splits have data, so the wait for answers is short.
        """
        for running in list(self._probes):
            self._probes.remove(running)  # a probe that fails closes itself
            self._ask(running, fresh=fresh)
        now = self._runtime.clock.monotonic()
        known = self._more.union(*(running.silent for running in self._probes))
        due = [split for split_id, split in splits.items() if split_id not in known]
        due = [split for split in due if fresh or self._rests.get(split.id, now) <= now]
        if not due:
            return
        duration = self._options.max_batch_duration.total_seconds()
        patience = duration if fresh else (_GRACE if busy or self._more else _PATIENCE)
        probe = RecordProbe(self._source, due, self._options, self._runtime)
        self._ask(probe, patience, patience if fresh else _GRACE, fresh=fresh)
        if fresh and probe.silent:
            _log.warning(
                "%s: %d splits gave no record within %g s, so this run does not read them; one of them is %r",
                self._source.name,
                len(probe.silent),
                patience,
                min(probe.silent),
            )

    def _ask(self, probe: RecordProbe, patience: float = 0.0, grace: float = 0.0, *, fresh: bool) -> None:
        """Collect the answers of a probe, waiting as in `RecordProbe.poll`.

        If the probe fails, its splits are probed again after a growing pause.

        Raises:
            RetriableError: The probe failed, and `fresh` is set.
        """
        try:
            probe.poll(patience, grace)
        except RetriableError as error:
            if fresh:  # an AvailableNow run must not end because of an outage
                raise
            self._take_in(probe)
            pause = self.failures.fail(error)
            self._rests |= dict.fromkeys(probe.silent, self._runtime.clock.monotonic() + pause)
            _log.warning(
                "%s: looking for new records failed and is retried in %.1f s: %s", self._source.name, pause, error
            )
            return
        self._take_in(probe)
        if probe.silent:
            self._probes.append(probe)

    def _take_in(self, probe: RecordProbe) -> None:
        something, nothing = probe.answers()
        for split_id in something:
            self._rests.pop(split_id, None)
        self._more |= something
        until = self._runtime.clock.monotonic() + self._options.poll_interval.total_seconds()
        self._rests |= dict.fromkeys(nothing, until)
        if something or nothing:
            self.failures.succeed()

    def admit(self, available: Sequence[Planned]) -> tuple[list[Planned], list[Planned]]:
        """Return the splits of a micro-batch with limits, as two lists: those without a known end, and those with one.

        One list is empty: a limit cannot be divided over both kinds, because nobody knows how much the splits without a
        known end will read. The first split, which has waited longest, decides which list. Limits are applied here only
        to the splits without a known end.
        """
        if not available or available[0].to is not UnknownEnd.NEGOTIATED:
            return [], [planned for planned in available if planned.to is not UnknownEnd.NEGOTIATED]
        negotiated = [planned for planned in available if planned.to is UnknownEnd.NEGOTIATED]
        limits = (self._limits.rows, self._limits.byte_budget, self._limits.files)
        return negotiated[: min((limit for limit in limits if limit is not None), default=len(negotiated))], []

    def shares(self, offset: Offset) -> dict[str, BatchLimits]:
        """Return the limits of a micro-batch for its splits without a known end, by id; empty if all ends are known.

        Raises:
            ConfigurationError: The claims of this micro-batch are not below `stateLocation`.
        """
        ids = [planned.split.id for planned in offset.splits if planned.to is UnknownEnd.NEGOTIATED]
        if not ids:
            return {}
        self._check_begun(offset)
        limits = BatchLimits() if offset.unlimited else self._limits
        rows = _evenly(limits.rows, len(ids))
        byte_budget = _evenly(limits.byte_budget, len(ids))
        return {split_id: BatchLimits(*budget) for split_id, *budget in zip(ids, rows, byte_budget, strict=True)}

    def begin(self, query: str, n: int, taken: Sequence[Planned]) -> None:
        """Write the marker file of micro-batch `n`, which shows that its claims are below this `stateLocation`.

        Another directory, or an old copy, lacks that file. Nothing is written if all ends in `taken` are known.
        """
        if not any(planned.to is UnknownEnd.NEGOTIATED for planned in taken):
            return
        self._planned_at = self._runtime.clock.monotonic()
        mark = self._source.name.encode()
        self._calls.call("writing claims (stateLocation)", lambda: self._store.put_if_absent(begun_of(query, n), mark))
        self._begun = (query, n)

    def resolved(self, offset: Offset) -> Offset:
        """Return the offset of a committed micro-batch with the ends that its tasks negotiated.

        The first call writes a last claim for each split that has none, so that no late attempt of a task can go on.

        Raises:
            ConfigurationError: The claims of this micro-batch are not below `stateLocation`, or are damaged.
            RetriableError: The store at `stateLocation` did not answer.
        """
        done = self._resolved
        if done is not None and (done.query, done.n) == (offset.query, offset.n):
            return done
        self._check_begun(offset)
        splits = [self._sealed(each, offset) if each.to is UnknownEnd.NEGOTIATED else each for each in offset.splits]
        self._resolved = dataclasses.replace(offset, splits=splits)
        return self._resolved

    def forget(self, offset: Offset) -> None:
        """Delete claims of micro-batches at least `KEPT` before that of `offset`. Called when it is committed."""
        if self._begun is None or self._begun[0] != offset.query:
            return
        last = offset.n - KEPT
        first = max(0, self._swept + 1, last - _SWEPT)
        for n in range(first, last + 1):
            prefix = claims_of(offset.query, n)
            names = self._calls.call("listing claims (stateLocation)", partial(self._store.names, prefix))
            self._calls.call("deleting claims (stateLocation)", partial(self._store.delete, names))
            self._swept = n

    def _sealed(self, planned: Planned, offset: Offset) -> Planned:
        split = planned.split
        claim = ClaimChain(self._store, self._calls, offset.query, offset.n, split).seal()
        self._more.discard(split.id)
        self._rests.pop(split.id, None)
        if claim.caught_up or claim.end == split.position:  # or no task read it
            # The interval begins when the micro-batch was planned, so a rare trigger is followed by a probe at once.
            self._rests[split.id] = self._planned_at + self._options.poll_interval.total_seconds()
        else:
            self._more.add(split.id)
        return Planned(split, claim.end)

    def _check_begun(self, offset: Offset) -> None:
        query, n = offset.query, offset.n
        if self._begun == (query, n):
            return
        if self._calls.call("reading claims (stateLocation)", lambda: self._store.get(begun_of(query, n))) is None:
            raise ConfigurationError(
                f"the files of micro-batch {n} are not below {self._store.location}: stateLocation was changed, or "
                "they were deleted",
                source=self._source.name,
                option="stateLocation",
                advice="set stateLocation to its earlier value, or copy the files from there; without them, rows would "
                "be read twice",
            )
        self._begun = (query, n)


def _evenly(total: int | None, count: int) -> list[int | None]:
    """Divide a limit into `count` even shares of at least 1; the first ones get the remainder. None = no limit."""
    if total is None:
        return [None] * count
    each, left = divmod(total, count)
    return [max(1, each + (index < left)) for index in range(count)]
