# SPDX-License-Identifier: Apache-2.0
"""Runs the generators of a `SimpleSource` on daemon threads, so that a blocked generator can be abandoned."""

from __future__ import annotations

import heapq
import logging
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import pyarrow as pa

from forebay.errors import ContractError, FatalError, ForebayError, RetriableError
from forebay.framework.arrow.casting import resolved_schema
from forebay.framework.arrow.row_packer import Batch, Packed, RowPacker, Rows
from forebay.framework.reader import SourceReaderContext
from forebay.framework.runtime.connector_errors import connector_error, wrap_errors
from forebay.framework.runtime.runtime import Next, Signal, WorkerHandle
from forebay.framework.split import Position, Split, before
from forebay.framework.split_reader import Fetched, SplitReader

_UNBOUNDED_WORKERS = 8
"""Maximum splits of an unbounded source that one reader reads at the same time; more splits take turns."""
_TURN = 5.0
"""Seconds after which a worker must make room for a waiting split, because some generators never return."""


class GeneratorSplitReader(SplitReader):
    """The split reader of every `SimpleSource`: workers run the generators; `fetch` returns their record batches."""

    def __init__(self, source: GeneratorSource, context: SourceReaderContext) -> None:
        self._source = source
        self._context = context
        self._clock = context.runtime.clock
        self._ready = context.runtime.signal()
        self._schema: pa.Schema | None = None
        self._max_workers = 1 if source.bounded else _UNBOUNDED_WORKERS
        self._scheduler = SplitScheduler()
        self._workers: dict[str, tuple[GeneratorWorker, WorkerHandle]] = {}
        self._failed: deque[tuple[GeneratorWorker, BaseException]] = deque()

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Schedule splits for the workers."""
        for split in splits:
            self._scheduler.add(split)

    def fetch(self) -> Sequence[Fetched]:
        """Return the record batches of the workers; if there are none, first wait for one, or for `wake_up`."""
        self._start_workers()
        fetched = self._collect()
        if not fetched:
            self._ready.wait(self._next_event_in())
            self._ready.clear()
            self._start_workers()
            fetched = self._collect()
        return fetched

    def wake_up(self) -> None:
        """End the wait of `fetch`."""
        self._ready.set()

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> bool:
        """Pause and resume splits: the workers of paused splits wait once they have packed a few batches."""
        self._scheduler.pause(pause, resume)
        return True

    def close(self) -> None:
        """End all workers.

        Raises:
            FatalError: A generator is still blocked; its daemon thread is abandoned.
        """
        for worker, _ in self._workers.values():
            worker.close()
        # Less time than the fetcher has, so that this error, which names the split, comes first.
        deadline = self._clock.monotonic() + 0.8 * self._context.options.close_timeout.total_seconds()
        blocked = [
            split_id
            for split_id, (_, handle) in self._workers.items()
            if not handle.join(max(0.0, deadline - self._clock.monotonic()))
        ]
        self._workers.clear()
        if blocked:
            raise FatalError(
                "read() did not return within 80 % of closeTimeout; its thread was abandoned",
                source=self._source.name,
                split=", ".join(blocked),
                rule="RDR-9",
                advice="give the connector's network calls a shorter time-out, or raise the option closeTimeout",
            )

    def _start_workers(self) -> None:
        now = self._clock.monotonic()
        while self._has_free_worker() or self._preempt(now):
            if self._schema is None:
                self._schema = resolved_schema(self._source)
            split = self._scheduler.take(now)
            if split is None:
                return
            worker = GeneratorWorker(self._source, split, self._schema, self._context, self._ready)
            name = f"forebay-{self._source.name}-generator-{split.id}"
            self._workers[split.id] = (worker, self._context.runtime.start(name, worker))

    def _preempt(self, now: float) -> bool:
        """If a split waits, end the oldest worker that has run for `_TURN` seconds; return whether there was one."""
        oldest = next(self._running(), None)
        if oldest is None or self._source.bounded or now < oldest.began + _TURN or not self._scheduler.has_next(now):
            return False
        oldest.preempt()
        return True

    def _running(self) -> Iterator[GeneratorWorker]:
        """Return the workers that count against the maximum, oldest first: all except preempted and paused ones."""
        paused = self._scheduler.paused
        return (
            worker for worker, _ in self._workers.values() if worker.split.id not in paused and not worker.preempted
        )

    def _has_free_worker(self) -> bool:
        return sum(1 for _ in self._running()) < self._max_workers

    def _collect(self) -> list[Fetched]:
        self._raise_failure()
        fetched: list[Fetched] = []
        for split_id, (worker, _) in list(self._workers.items()):
            if split_id in self._scheduler.paused:
                continue
            packed, ended, error = worker.take()
            if ended and (error is None or not packed):
                del self._workers[split_id]
            fetched.extend(Fetched(split_id, part.batch, part.position) for part in packed)
            if packed:
                worker.split = worker.split.at(packed[-1].position)
            elif error is not None:
                self._failed.append((worker, error))
            if ended and error is None:
                if worker.preempted:
                    self._scheduler.add(worker.split)
                else:
                    fetched.append(self._end_of_run(worker))
        if not fetched:
            self._raise_failure()
        return fetched

    def _raise_failure(self) -> None:
        """Raise the error of a failed worker, if there is one whose batches were all returned.

        After a retriable error, the split is scheduled again.

        Batches of other workers in the same fetch are returned first, because raising would lose them.
        """
        if self._failed:
            worker, error = self._failed.popleft()
            if isinstance(error, RetriableError):
                self._scheduler.add(worker.split)
            raise error

    def _end_of_run(self, worker: GeneratorWorker) -> Fetched:
        """Report the split of a worker that has returned: as finished, or as caught up, to be read again later."""
        split = worker.split.at(worker.position())
        if self._source.bounded or (split.end is not None and split.position == split.end):
            self._scheduler.paused.discard(split.id)  # a later split may have its id
            return Fetched(split.id, position=split.position, finished=True)
        not_before = self._clock.monotonic() + self._context.options.poll_interval.total_seconds()
        self._scheduler.add(split, until=not_before)
        return Fetched(split.id, position=split.position, caught_up=True)

    def _next_event_in(self) -> float | None:
        """Return the seconds after which `fetch` has work even if nothing wakes it; None = never."""
        now = self._clock.monotonic()
        waits = [wait for worker, _ in self._workers.values() if (wait := worker.due_in()) is not None]
        due = now if self._scheduler.has_next(now) else self._scheduler.next_due()
        if due is not None and not self._has_free_worker():
            oldest = None if self._source.bounded else next(self._running(), None)
            due = None if oldest is None else max(due, oldest.began + _TURN)
        if due is not None:
            waits.append(max(0.0, due - now))
        return min(waits, default=None)


# -- Runs a `SimpleSource`'s generator on its own daemon thread.


_log = logging.getLogger(__name__)

_ITEMS_PER_STEP = 64
_MAX_PACKED = 2


@cache
def _warn_of_missing(source: str, missing: tuple[str, ...]) -> None:
    """Warn of columns that are null in every row, once per process, not for each split and micro-batch."""
    _log.warning(
        "%s: no row of a read() had the key %s, so this column is null in every row: in read(), use the names of "
        "schema() as keys; if rows may omit columns, set partial_rows = True on the class",
        source,
        ", ".join(map(repr, missing)),
    )


class GeneratorSource(Protocol):
    """The methods of `SimpleSource` that a generator worker uses."""

    @property
    def name(self) -> str: ...  # noqa: D102 - see Source
    @property
    def bounded(self) -> bool: ...  # noqa: D102 - see Source
    @property
    def positions_are_rows(self) -> bool: ...  # noqa: D102 - see SimpleSource
    @property
    def partial_rows(self) -> bool: ...  # noqa: D102 - see SimpleSource
    @property
    def extra_keys(self) -> bool: ...  # noqa: D102 - see SimpleSource
    def schema(self) -> pa.Schema: ...  # noqa: D102 - see Source
    def read(self, split: Split) -> Iterable[Rows | Batch]: ...  # noqa: D102 - see SimpleSource
    def latest(self, split: Split) -> Position | None: ...  # noqa: D102 - see SimpleSource
    def order_key(self, position: Position) -> Any: ...  # noqa: ANN401, D102 - see Source


class GeneratorWorker:
    """Runs `read(split)` once and packs its rows, at most `_MAX_PACKED` record batches ahead of the fetcher.

    If the split has no planned end, the source's `latest` gives an end. With `ends_are_promises`, the next read starts
    at the planned end, so a generator must not return before it. The worker sets `ready` when `take` has a result.
    """

    def __init__(
        self,
        source: GeneratorSource,
        split: Split,
        schema: pa.Schema,
        context: SourceReaderContext,
        ready: Signal,
    ) -> None:
        runtime = context.runtime
        self.signal: Signal = runtime.signal()
        self.split = split
        self._source = source
        self._schema = schema
        self._context = context
        self._ready = ready
        self._promised = context.ends_are_promises and split.end is not None
        self.began = runtime.clock.monotonic()
        self.preempted = False
        """Whether the worker must end because another split waits for it."""
        self._lock = runtime.lock()
        self._packer: RowPacker | None = None
        self._rows: Iterator[object] | None = None
        self._packed: deque[Packed] = deque()
        self._ended = False
        self._error: BaseException | None = None
        self._closing = False

    # ---- called on the fetcher thread

    def take(self) -> tuple[list[Packed], bool, BaseException | None]:
        """Remove and return the packed batches; also return whether the worker has ended, and its error or None."""
        with self._lock:
            if not self._packed and self._packer is not None and not self._ended:
                due = self._packer.take_due()
                if due is not None:
                    self._packed.append(due)
            packed = list(self._packed)
            self._packed.clear()
            ended, error = self._ended, self._error
        if packed:
            self.signal.set()
        return packed, ended, error

    def due_in(self) -> float | None:
        """Return the seconds until an incomplete record batch is due; None if no rows wait."""
        with self._lock:
            return None if self._packer is None else self._packer.due_in()

    def position(self) -> Position | None:
        """Return the position after all rows that the generator has yielded."""
        with self._lock:
            return self.split.position if self._packer is None else self._packer.position

    def close(self) -> None:
        """End the worker at its next step. Rows that are not packed yet are dropped."""
        with self._lock:
            self._closing = True
        self.signal.set()

    def preempt(self) -> None:
        """End the worker: it takes at most one more item from the generator, and delivers all that it has taken."""
        self.preempted = True
        self.close()

    # ---- called on the worker thread

    def step(self) -> Next:
        """Take some items from the generator and pack them; keep an error for `take`."""
        with self._lock:
            closing, full = self._closing, len(self._packed) >= _MAX_PACKED
        if full and not closing:
            return Next.WAIT
        try:
            more = not closing and self._run()
        except BaseException as error:  # noqa: BLE001 - the fetcher raises it
            return self._end(self._connector_error(error))
        return Next.AGAIN if more else self._end(None)

    def _run(self) -> bool:
        """Take up to `_ITEMS_PER_STEP` items from the generator; return whether there may be more."""
        if self._rows is None:
            split = self._with_end()
            if self._is_empty(split):
                return False
            with self._lock:
                self._packer = RowPacker(
                    self._schema,
                    split,
                    self._context.runtime.clock,
                    self._context.options,
                    source=self._source.name,
                    order_key=self._source.order_key,
                    extra_keys=self._source.extra_keys,
                )
            self._rows = self._iterator(self._source.read(split))
        packer = self._packer
        assert packer is not None  # noqa: S101 - made with the iterator
        for _ in range(_ITEMS_PER_STEP):
            try:
                item = next(self._rows)
            except StopIteration:
                if self._promised:
                    packer.check_complete(counted=self._source.positions_are_rows)
                return False
            with self._lock:
                first = packer.due_in() is None
                packed = packer.add(item)
                if packed is not None:
                    self._packed.append(packed)
                at_end = packer.at_end
            if packed is not None or first:
                self._ready.set()
            if at_end:
                return False
            if packed is not None or self._closing:
                return True
        return True

    def _iterator(self, rows: object) -> Iterator[object]:
        """Return an iterator over the result of `read()`; refuse a single batch, dict or text, though iterable."""
        single = (Batch, Mapping, pa.RecordBatch, pa.Table, str, bytes)
        if isinstance(rows, Iterable) and not isinstance(rows, single):
            return iter(rows)
        raise ContractError(
            f"read() returned {'None' if rows is None else f'a {type(rows).__name__}'}, not an iterable of rows",
            source=self._source.name,
            split=self.split.id,
            rule="SR-2",
            advice="let read() `yield` rows, or return a list or a generator of rows; without rows, `return []`, or "
            "`yield from ()` in a generator",
        )

    def _with_end(self) -> Split:
        split = self.split
        if split.end is None:
            with wrap_errors(self._source.name, "latest()", split.id):
                latest = self._source.latest(split)
            if latest is not None:
                split = split.slice(split.position, latest)
        return split

    def _is_empty(self, split: Split) -> bool:
        """Whether there is nothing to read: the end is the position, or before it because `latest` is outdated."""
        if split.end is None:
            return False
        if split.position is None:
            return bool(split.end == 0)  # None is the start
        return split.position == split.end or before(self._source, split.end, split.position, split.id)

    def _end(self, error: BaseException | None) -> Next:
        close = getattr(self._rows, "close", None)
        if close is not None:
            try:
                close()
            except BaseException as late:  # noqa: BLE001 - the fetcher raises it
                error = error or self._connector_error(late)
        with self._lock:
            try:
                takes_tail = self.preempted or not self._closing  # without these rows a slow generator never progresses
                tail = self._packer.take() if self._packer is not None and takes_tail else None
            except ForebayError as late:
                tail, error = None, error or late
            if tail is not None:
                self._packed.append(tail)
            missing = self._packer.never_given() if self._packer is not None and error is None else []
        if missing and not self._source.partial_rows:
            _warn_of_missing(self._source.name, tuple(missing))
        with self._lock:  # last: the fetcher may drop this worker at once
            self._ended, self._error = True, error
        self._ready.set()
        return Next.DONE

    def _connector_error(self, error: BaseException) -> ForebayError:
        return connector_error(
            error, source=self._source.name, doing="read()", split=self.split.id, position=self.position()
        )


# -- Decides which split of a `SimpleSource` the next free generator worker reads.


@dataclass(slots=True, eq=False)
class _Entry:
    split: Split


class SplitScheduler:
    """The splits that no generator worker reads now: ready, delayed or paused. Used on the fetcher thread only.

    The cost of one `take` does not depend on the number of splits.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}  # an entry of the collections below is valid only if it is in here
        self._ready: deque[_Entry] = deque()
        self._timers: list[tuple[float, int, _Entry]] = []
        self._held: dict[str, _Entry] = {}
        self._count = 0
        self.paused: set[str] = set()
        """The ids of the paused splits, with or without a worker."""

    def add(self, split: Split, *, until: float | None = None) -> None:
        """Add a split, or replace the one with the same id. It is not ready before the monotonic time `until`."""
        entry = self._entries[split.id] = _Entry(split)
        if until is None:
            self._ready.append(entry)
        else:
            self._count += 1
            heapq.heappush(self._timers, (until, self._count, entry))

    def has_next(self, now: float) -> bool:
        """Whether a split is ready at the monotonic time `now`, and not paused."""
        while self._timers and self._timers[0][0] <= now:
            self._ready.append(heapq.heappop(self._timers)[2])
        while self._ready:
            entry = self._ready[0]
            if self._entries.get(entry.split.id) is entry:
                if entry.split.id not in self.paused:
                    return True
                self._held[entry.split.id] = entry
            self._ready.popleft()
        return False

    def take(self, now: float) -> Split | None:
        """Remove and return the ready split that has waited longest; None if no split is ready."""
        if not self.has_next(now):
            return None
        entry = self._ready.popleft()
        del self._entries[entry.split.id]
        return entry.split

    def next_due(self) -> float | None:
        """Return the monotonic time at which the first delayed split is ready; None if no split is delayed."""
        return self._timers[0][0] if self._timers else None

    def pause(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Pause some splits and resume others, given by id."""
        self.paused = (self.paused - set(resume)) | set(pause)
        self._ready.extend(self._held.pop(split_id) for split_id in resume if split_id in self._held)
