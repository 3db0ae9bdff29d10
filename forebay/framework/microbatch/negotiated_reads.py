# SPDX-License-Identifier: Apache-2.0
"""Reads, in a task, the splits whose ends are negotiated, several concurrently (S14)."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from forebay.clock import Clock
from forebay.errors import ConfigurationError, ContractError
from forebay.framework.microbatch.admission import BatchLimits
from forebay.framework.microbatch.end_negotiation import Claim, ClaimChain, FutureWaiter, OpenRead, begun_of
from forebay.framework.reading.reader_context import Delivered
from forebay.framework.runtime.clients import ConnectorCalls
from forebay.framework.runtime.host_options import HostOptions, state_store
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Position, Split, before
from forebay.framework.tasks.read_task import ReadTask
from forebay.options import ByteSize
from forebay.retry import RetryPolicy

_CONCURRENT: Final = 8
"""Maximum splits that a task reads at a time, each with its own reader, which can be reopened alone."""


@dataclass(frozen=True)
class Negotiation:
    """Reads splits to ends that all attempts of a task negotiate. Picklable.

    Args:
        query: The id of the query.
        n: The number of the micro-batch.
        limits: The limits of the splits, by id.
    """

    query: str
    n: int
    limits: Mapping[str, BatchLimits] = field(default_factory=dict)

    def __contains__(self, split_id: str) -> bool:
        return split_id in self.limits

    def read(self, task: ReadTask, slices: Sequence[Split], runtime: Runtime) -> Iterator[Delivered]:
        """Yield the record batches of slices, from where the micro-batch begins to their negotiated ends.

        Raises:
            ConfigurationError: `stateLocation` is not set, or is another directory than that of the planner.
            ForebayError: The source or the store at `stateLocation` failed, or the source broke a rule.
        """
        source, options = task.source, task.options
        store = state_store(options)
        if store is None:
            raise ConfigurationError(
                "this micro-batch has splits without a planned end, and its tasks need stateLocation to negotiate the "
                "ends",
                source=source.name,
                option="stateLocation",
                advice="set stateLocation to a directory or s3:// URL that the driver and all executors reach",
            )
        calls = ConnectorCalls(
            source.name, runtime, retry=RetryPolicy.of(options), timeout=options.planning_timeout.total_seconds()
        )
        if calls.call("reading stateLocation", lambda: store.get(begun_of(self.query, self.n))) is None:
            raise _elsewhere(source, store.location)

        def reader_of(split: Split) -> ChunkReader:
            return ChunkReader(
                source,
                split,
                chain=ClaimChain(store, calls, self.query, self.n, split),
                limits=self.limits[split.id],
                options=options,
                open_read=lambda part, bounds: OpenRead(
                    source, [part], bounds, runtime, index=task.index, count=task.count
                ),
                clock=runtime.clock,
            )

        rounds = -(-len(slices) // _CONCURRENT)
        yield from _read_concurrently(
            [reader_of(split) for split in slices],
            options.max_batch_duration.total_seconds() / rounds,
            FutureWaiter(runtime),
        )


def _read_concurrently(reads: Sequence[ChunkReader], seconds: float, waiter: FutureWaiter) -> Iterator[Delivered]:
    waiting = deque(reads)
    active: list[ChunkReader] = []
    try:
        while waiting or active:
            while waiting and len(active) < _CONCURRENT:
                active.append(waiting.popleft())
                active[-1].start(seconds)
            for reader in list(active):
                yield from reader.step()
                if reader.done:
                    active.remove(reader)
            if len(active) == _CONCURRENT or (active and not waiting):
                waiter.wait([reader.available() for reader in active], min(reader.due_in() for reader in active))
    except BaseException as error:
        with ExitStack() as stack:
            for reader in active:
                stack.callback(reader.close, error)
        raise


def _elsewhere(source: Source, location: str) -> ConfigurationError:
    return ConfigurationError(
        f"this task does not find the planner's files below stateLocation {location!r}: on the task's machine, this is "
        "another directory",
        source=source.name,
        option="stateLocation",
        advice="give the full path of a directory that is mounted on the machines of the driver and of all executors, "
        "or s3://bucket/prefix",
    )


# -- Reads one split to a negotiated end, in chunks. The end of a chunk is claimed before its rows are delivered (S14).


CHUNK: Final = 8 << 20
"""Maximum bytes of a chunk, unless one record batch of the source is larger."""

_BATCH: Final = 1 << 20
"""Maximum bytes of a record batch: smaller batches let a chunk end closer to its limits."""

SHORT_WHILE: Final = 0.5
"""Maximum seconds that rows are held back. After that, the chunk ends with the rows that the source has given."""


class ChunkReader:
    """Reads one split of a micro-batch, chunk by chunk, to the end in its last claim. Stepped by one thread.

    If a chunk has no claim yet, a `_Leader` reads it and proposes its end. If another attempt of the task has claimed
    an end, a `_Follower` reads exactly up to that end.

    Args:
        source: The source.
        split: The split, at the position where the micro-batch begins.
        chain: The claims of the split in this micro-batch.
        limits: The maximum rows and bytes of the split in this micro-batch.
        options: The host's options.
        open_read: Opens a reader of a slice of the split, with options that bound its record batches.
        clock: The time.
    """

    def __init__(
        self,
        source: Source,
        split: Split,
        *,
        chain: ClaimChain,
        limits: BatchLimits,
        options: HostOptions,
        open_read: Callable[[Split, HostOptions], OpenRead],
        clock: Clock,
    ) -> None:
        self._source = source
        self._split = split
        self._chain = chain
        self._options = options
        self._open_read = open_read
        self._clock = clock
        self._k = 0
        self._position: Position | None = split.position  # everything before it is delivered
        self._budget = _Budget(limits)
        self._role: _Leader | _Follower | None = None
        self._row_by_row = False
        self._stops_at = float("inf")
        self._gives_up_at = float("inf")
        self.done = False

    def start(self, seconds: float) -> None:
        """Set the deadline: `seconds` from now, or `planningTimeout` if that is longer and no row has come yet."""
        now = self._clock.monotonic()
        self._stops_at = now + seconds
        self._gives_up_at = now + max(seconds, self._options.planning_timeout.total_seconds())

    def step(self) -> Sequence[Delivered]:
        """Continue reading without blocking on the source; return the record batches to deliver, maybe none.

        Raises:
            ContractError: The source gave other positions than in an earlier attempt of the task (S14).
            ForebayError: The source or the store failed.
        """
        if isinstance(self._role, _Leader):
            return self._lead(self._role)
        if isinstance(self._role, _Follower):
            return self._follow(self._role)
        newest = self._chain.newest(self._k - 1)
        if newest is not None:
            self._obey(*newest)
        elif self._budget.is_spent():
            self._propose(Claim(self._position, last=True))
        else:
            split = self._split.at(self._position)
            self._role = _Leader(split, self._open_read(split, self._bounds()), self._budget, self._clock)
        return ()

    def available(self) -> Future[None]:
        """Return a future that completes when the next step has work."""
        if self._role is not None:
            return self._role.read.available()
        ready: Future[None] = Future()
        ready.set_result(None)
        return ready

    def due_in(self) -> float:
        """Return the seconds after which `step` must be called even if no data has come."""
        held = isinstance(self._role, _Leader) and self._role.held
        due = self._role.since + SHORT_WHILE if isinstance(self._role, _Leader) and held else float("inf")
        return max(0.0, min(due, self._deadline()) - self._clock.monotonic())

    def close(self, error: BaseException | None = None) -> None:
        """Stop reading. If `error` is given, errors of closing become notes of it, else they are raised."""
        role, self._role = self._role, None
        if role is not None:
            role.read.close(error)

    def _lead(self, leader: _Leader) -> Sequence[Delivered]:
        delivered = leader.read.poll()
        if delivered is not None and not self._budget.fits(delivered.batch):
            if not self._has_rows():
                self._reopen_row_by_row(delivered)
                return ()
            claim: Claim | None = Claim(leader.end, last=True)  # the next micro-batch begins with this batch
        else:
            claim = leader.take(delivered, self._deadline)
        if claim is None or not self._propose(claim):
            return ()
        held, leader.held = leader.held, []
        return held

    def _follow(self, follower: _Follower) -> Sequence[Delivered]:
        delivered = follower.read.poll()
        if follower.take(delivered):
            self.close()
            self._arrive(self._k, follower.claim)
        return () if delivered is None else (delivered,)

    def _propose(self, claim: Claim) -> bool:
        """Propose the end of a chunk; return whether it became the claim. If another attempt was first, follow it."""
        self._check_forward(claim.end)
        winner = self._chain.propose(self._k, claim)
        if winner.end != claim.end:
            if isinstance(self._role, _Leader):
                self._budget.give_back(self._role.held)
            self._obey(self._k, winner)
            return False
        self._arrive(self._k, winner)
        if claim.last:
            self.close()
        return True

    def _obey(self, k: int, claim: Claim) -> None:
        """Read up to the end in claim number `k`, which another attempt of the task has written."""
        self.close()
        if claim.end == self._position:
            self._arrive(k, claim)
            return
        self._check_forward(claim.end)
        self._k = k
        split = self._split.slice(self._position, claim.end)
        self._role = _Follower(self._source, split, claim, self._open_read(split, self._bounds()), self._budget)

    def _arrive(self, k: int, claim: Claim) -> None:
        self._k, self._position = k + 1, claim.end
        if claim.last:
            self.close()
            self.done = True

    def _has_rows(self) -> bool:
        """Return whether the source has given rows of the split in this micro-batch."""
        return (isinstance(self._role, _Leader) and bool(self._role.held)) or self._position != self._split.position

    def _deadline(self) -> float:
        return self._stops_at if self._has_rows() else self._gives_up_at

    def _reopen_row_by_row(self, delivered: Delivered) -> None:
        """Start the read again with one row per record batch, because the first batch exceeds the split's row limit.

        That batch may have been packed from several smaller ones.

        Raises:
            ConfigurationError: The read has one row per batch already: `read()` itself yields too large batches.
        """
        if not self._row_by_row:
            self._row_by_row = True
            self.close()
            return
        rows, most = delivered.batch.num_rows, self._budget.limits.rows
        raise ConfigurationError(
            f"maxRowsPerTrigger is too small: read() yields {rows} rows at once, and this split's share is {most}",
            source=self._source.name,
            split=self._split.id,
            position=self._position,
            option="maxRowsPerTrigger",
            advice=f"set maxRowsPerTrigger to at least {rows} times the number of splits; or, in the connector, yield "
            "smaller batches",
        )

    def _bounds(self) -> HostOptions:
        options, limits = self._options, self._budget.limits
        rows = 1 if self._row_by_row else min(options.max_rows_per_batch, limits.rows or options.max_rows_per_batch)
        return dataclasses.replace(
            options,
            max_rows_per_batch=rows,
            max_bytes_per_batch=ByteSize(min(options.max_bytes_per_batch, limits.byte_budget or _BATCH, _BATCH)),
            queue_bytes=ByteSize(min(options.queue_bytes, CHUNK)),
        )

    def _check_forward(self, end: Position | None) -> None:
        """Check that the end of a chunk is at or after the current position: readers compare positions to find it.

        Raises:
            ContractError: The end is neither at the position nor after it.
        """
        position = self._position
        if end == position or position is None:
            return
        if end is None or not before(self._source, position, end, self._split.id):
            raise ContractError(
                f"read() moved the position from {position!r} to {end!r}, which is not after it",
                source=self._source.name,
                split=self._split.id,
                position=position,
                rule="S14",
                advice="in the connector, use positions in ascending order, such as (count of rows, token) instead of "
                "a token alone; or override order_key(position)",
            )


class _Budget:
    """Counts the rows and bytes of a split that were delivered or are held back, and compares them with the limits."""

    def __init__(self, limits: BatchLimits) -> None:
        self.limits = limits
        self._rows = 0
        self._bytes = 0

    def take(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        self._bytes += batch.nbytes

    def give_back(self, deliveries: Sequence[Delivered]) -> None:
        self._rows -= sum(each.batch.num_rows for each in deliveries)
        self._bytes -= sum(each.batch.nbytes for each in deliveries)

    def is_spent(self) -> bool:
        rows, byte_budget = self.limits.rows, self.limits.byte_budget
        return (rows is not None and self._rows >= rows) or (byte_budget is not None and self._bytes >= byte_budget)

    def fits(self, batch: pa.RecordBatch) -> bool:
        """Return whether one more record batch is within the limits. The first batch may exceed the byte limit."""
        rows, byte_budget = self.limits.rows, self.limits.byte_budget
        if rows is not None and self._rows + batch.num_rows > rows:
            return False
        return byte_budget is None or not self._bytes or self._bytes + batch.nbytes <= byte_budget


class _Leader:
    """Reads a new chunk, and holds its record batches back until its end is claimed."""

    def __init__(self, split: Split, read: OpenRead, budget: _Budget, clock: Clock) -> None:
        self.read = read
        self.held: list[Delivered] = []
        self.end = split.position
        """The position after the record batches that are held back."""
        self.since = 0.0
        self._split_id = split.id
        self._budget = budget
        self._clock = clock

    def take(self, delivered: Delivered | None, deadline: Callable[[], float]) -> Claim | None:
        """Hold back a record batch, if there is one; return the claim to propose if the chunk ends here, else None.

        `deadline` returns the monotonic time at which the micro-batch must end.
        """
        if delivered is not None:
            if not self.held:
                self.since = self._clock.monotonic()
            self.held.append(delivered)
            self.end = delivered.position
            self._budget.take(delivered.batch)
        now = self._clock.monotonic()
        if self._split_id in self.read.caught_up or self._split_id in self.read.finished:
            return Claim(self.read.position(self._split_id), last=True, caught_up=True)
        if self._budget.is_spent():
            return Claim(self.end, last=True)
        if now >= deadline():
            return Claim(self.read.position(self._split_id), last=True)
        full = sum(each.batch.nbytes for each in self.held) > CHUNK - _BATCH
        if self.held and (full or now >= self.since + SHORT_WHILE):
            return Claim(self.end)
        return None


class _Follower:
    """Reads exactly up to the end that another attempt of the task has claimed."""

    def __init__(self, source: Source, split: Split, claim: Claim, read: OpenRead, budget: _Budget) -> None:
        self.claim = claim
        self.read = read
        self._source = source
        self._split = split
        self._budget = budget

    def take(self, delivered: Delivered | None) -> bool:
        """Check a record batch, if there is one; return whether the claimed end is reached.

        Raises:
            ContractError: The source gave other positions than in the attempt that wrote the claim.
        """
        split, end = self._split, self.claim.end
        if delivered is not None:
            self._check_within(delivered.position)
            self._budget.take(delivered.batch)
        if (delivered is not None and delivered.position == end) or split.id in self.read.finished:
            reached = self.read.position(split.id)
            if reached != end:
                raise self._differs(f"ended at {reached!r}")
            return True
        if split.id in self.read.caught_up:
            raise self._differs(f"found no more rows at {self.read.position(split.id)!r}")
        return False

    def _check_within(self, position: Position | None) -> None:
        end = self.claim.end
        if position is None or end is None or position == end:
            return
        if before(self._source, end, position, self._split.id):
            raise self._differs(f"went on to {position!r}")

    def _differs(self, what: str) -> ContractError:
        return ContractError(
            f"read() from {self._split.position!r} {what}, but an earlier attempt of this task read up to "
            f"{self.claim.end!r}",
            source=self._source.name,
            split=self._split.id,
            position=self._split.position,
            rule="S14",
            advice="in the connector, let read(split) give the same rows between two positions in every call, and stop "
            "exactly at split.end; if data can be read only once, as from a queue, store it before it is read",
        )
