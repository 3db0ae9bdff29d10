# SPDX-License-Identifier: Apache-2.0
"""Runs the generators of a `SimpleSource` on daemon pump threads, so that a blocked one can always be left behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa

from forebay.errors import FatalError, RetriableError
from forebay.framework.arrow.resolved_schema import resolved_schema
from forebay.framework.reader import SourceReaderContext
from forebay.framework.reading.generator_worker import GeneratorSource, GeneratorWorker
from forebay.framework.reading.split_scheduler import SplitScheduler
from forebay.framework.runtime.runtime import WorkerHandle
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader

_UNBOUNDED_PUMPS = 8
"""Splits of an unbounded source read at a time by one reader; the others take turns as these catch up."""
_TURN = 5.0
"""Seconds after which one of these gives way, if others wait: some generators are never caught up."""


class GeneratorSplitReader(SplitReader):
    """The split reader of every `SimpleSource`: pumps run the generators, a fetch collects what they packed.

    Args:
        source: Whose splits to read.
        context: The host's side.
    """

    def __init__(self, source: GeneratorSource, context: SourceReaderContext) -> None:
        self._source = source
        self._runtime = context.runtime
        self._options = context.options
        self._promised = context.ends_are_promises
        self._ready = context.runtime.signal()
        self._schema: pa.Schema | None = None
        self._slots = 1 if source.bounded else _UNBOUNDED_PUMPS
        self._parking = SplitScheduler()
        self._pumps: dict[str, tuple[GeneratorWorker, WorkerHandle]] = {}
        self._failed: deque[tuple[GeneratorWorker, BaseException]] = deque()

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Queue splits for a pump."""
        for split in splits:
            self._parking.park(split)

    def fetch(self) -> Sequence[Fetched]:
        """Collect what the pumps packed; wait for it if there is nothing, at most until woken."""
        self._start_pumps()
        fetched = self._collect()
        if not fetched:
            self._ready.wait(self._patience())
            self._ready.clear()
            self._start_pumps()
            fetched = self._collect()
        return fetched

    def wake_up(self) -> None:
        """End the wait of a fetch."""
        self._ready.set()

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> bool:
        """Leave paused splits' pumps alone: they fill up and wait."""
        self._parking.pause(pause, resume)
        return True

    def close(self) -> None:
        """End all pumps.

        Raises:
            FatalError: A generator is still blocked; it has been abandoned on its daemon thread.
        """
        for pump, _ in self._pumps.values():
            pump.close()
        clock = self._runtime.clock
        # A little less than the fetcher itself is given, so that this error, which names the split, comes first.
        deadline = clock.monotonic() + 0.8 * self._options.close_timeout.total_seconds()
        blocked = [
            split_id
            for split_id, (_, handle) in self._pumps.items()
            if not handle.join(max(0.0, deadline - clock.monotonic()))
        ]
        self._pumps.clear()
        if blocked:
            raise FatalError(
                "read() did not come back while closing; its thread has been abandoned",
                source=self._source.name,
                split=", ".join(blocked),
                rule="RDR-9",
                advice="give the connector's network calls a time-out shorter than closeTimeout",
            )

    def _start_pumps(self) -> None:
        now = self._runtime.clock.monotonic()
        while self._free_slots() or self._make_way(now):
            if self._schema is None:
                self._schema = resolved_schema(self._source)
            split = self._parking.take(now)
            if split is None:
                return
            pump = GeneratorWorker(
                self._source,
                split,
                self._schema,
                self._runtime,
                self._options,
                self._ready,
                promised=self._promised,
            )
            self._pumps[split.id] = (pump, self._runtime.start(f"forebay-{self._source.name}-pump-{split.id}", pump))

    def _make_way(self, now: float) -> bool:
        """End the turn of the pump that has run for longest, if another split waits for it; return whether."""
        oldest = next(self._running(), None)
        if oldest is None or self._source.bounded or now < oldest.began + _TURN or not self._parking.has_next(now):
            return False
        oldest.give_way()
        return True

    def _running(self) -> Iterator[GeneratorWorker]:
        """Return the pumps that take a slot, the oldest first; a blocked one gives way all the same."""
        paused = self._parking.paused
        return (pump for pump, _ in self._pumps.values() if pump.split.id not in paused and not pump.gives_way)

    def _free_slots(self) -> int:
        return max(0, self._slots - sum(1 for _ in self._running()))

    def _collect(self) -> list[Fetched]:
        self._raise_failed()
        fetched: list[Fetched] = []
        for split_id, (pump, _) in list(self._pumps.items()):
            if split_id in self._parking.paused:
                continue
            packed, ended, error = pump.take()
            if ended and (error is None or not packed):
                del self._pumps[split_id]
            fetched.extend(Fetched(split_id, part.batch, part.position) for part in packed)
            if packed:
                pump.split = pump.split.at(packed[-1].position)
            elif error is not None:
                self._failed.append((pump, error))
            if ended and error is None:
                if pump.gives_way:
                    self._parking.park(pump.split)
                else:
                    fetched.append(self._ended(pump))
        if not fetched:
            self._raise_failed()
        return fetched

    def _raise_failed(self) -> None:
        """Raise what ended a run, when all that it packed before was taken; a retriable one begins again from there.

        What was taken from other pumps in the same fetch goes out first: raising would lose it.
        """
        if self._failed:
            pump, error = self._failed.popleft()
            if isinstance(error, RetriableError):
                self._parking.park(pump.split)
            raise error

    def _ended(self, pump: GeneratorWorker) -> Fetched:
        """Say what the end of a run means for its split."""
        split = pump.split.at(pump.position())
        # read() of an unbounded source returns when it is caught up; a split with an end is finished there, not before.
        if self._source.bounded or (split.end is not None and split.position == split.end):
            self._parking.paused.discard(split.id)  # a later split may have its id
            return Fetched(split.id, position=split.position, finished=True)
        not_before = self._runtime.clock.monotonic() + self._options.poll_interval.total_seconds()
        self._parking.park(split, until=not_before)
        return Fetched(split.id, position=split.position, caught_up=True)

    def _patience(self) -> float | None:
        """Return how long a fetch may wait before something is due without being woken."""
        now = self._runtime.clock.monotonic()
        dues = [due for pump, _ in self._pumps.values() if (due := pump.due_in()) is not None]
        due = now if self._parking.has_next(now) else self._parking.next_due()
        if due is not None and not self._free_slots():
            oldest = None if self._source.bounded else next(self._running(), None)
            due = None if oldest is None else max(due, oldest.began + _TURN)
        if due is not None:
            dues.append(max(0.0, due - now))
        return min(dues, default=None)
