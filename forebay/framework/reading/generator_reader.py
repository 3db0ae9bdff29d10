# SPDX-License-Identifier: Apache-2.0
"""Runs the generators of a `SimpleSource` on daemon threads, so that a blocked generator can be abandoned."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa

from forebay.errors import FatalError, RetriableError
from forebay.framework.arrow.schemas import resolved_schema
from forebay.framework.reader import SourceReaderContext
from forebay.framework.reading.generator_worker import GeneratorSource, GeneratorWorker
from forebay.framework.reading.split_scheduler import SplitScheduler
from forebay.framework.runtime.runtime import WorkerHandle
from forebay.framework.split import Split
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
        return (one for one, _ in self._workers.values() if one.split.id not in paused and not one.preempted)

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
