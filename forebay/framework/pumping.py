# SPDX-License-Identifier: Apache-2.0
"""Runs the generators of a `SimpleSource` on daemon pump threads, so that a blocked one can always be left behind."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from forebay.errors import FatalError, ForebayError, RetriableError
from forebay.framework.connector_errors import connector_error
from forebay.framework.host_options import HostOptions
from forebay.framework.parking import Parking
from forebay.framework.reader import SourceReaderContext
from forebay.framework.rows import Packed, RowPacker
from forebay.framework.runtime import Next, Runtime, Signal, WorkerHandle
from forebay.framework.settled import settled_schema
from forebay.framework.split import Position, Split
from forebay.framework.split_reader import Fetched, SplitReader

if TYPE_CHECKING:
    from forebay.framework.simple import SimpleSource

_ITEMS_PER_STEP = 64
_PACKED_AHEAD = 2
_UNBOUNDED_PUMPS = 8
"""Splits of an unbounded source read at a time by one reader; the others take turns as these catch up."""


class Pump:
    """One run of `read(split)`: a worker that packs what the generator yields, a little ahead of the fetcher.

    Args:
        source: Whose generator to run.
        split: What to read; without an end, the source's `latest` is asked for one first.
        schema: The source's schema.
        runtime: Lock, signal and clock.
        options: Sizes and delay of record batches.
        ready: Set whenever there is something to take.
        promised: The split's end was promised to somebody, who goes on from there.
    """

    def __init__(
        self,
        source: SimpleSource,
        split: Split,
        schema: pa.Schema,
        runtime: Runtime,
        options: HostOptions,
        ready: Signal,
        *,
        promised: bool = False,
    ) -> None:
        self.signal: Signal = runtime.signal()
        self.split = split
        self._source = source
        self._schema = schema
        self._runtime = runtime
        self._options = options
        self._ready = ready
        self._promised = promised and split.end is not None
        self._lock = runtime.lock()
        self._packer: RowPacker | None = None
        self._rows: Iterator[object] | None = None
        self._packed: deque[Packed] = deque()
        self._ended = False
        self._error: BaseException | None = None
        self._closing = False

    # ---- called on the fetcher thread

    def take(self) -> tuple[list[Packed], bool, BaseException | None]:
        """Return what is packed or due, whether the run has ended, and with what error, each told once all is taken."""
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
        """Return the seconds until rows have waited long enough to go out unfilled; None if none wait."""
        with self._lock:
            return None if self._packer is None else self._packer.due_in()

    def position(self) -> Position | None:
        """Return the position after everything the generator has yielded."""
        with self._lock:
            return self.split.position if self._packer is None else self._packer.position

    def close(self) -> None:
        """Ask the run to end at its next step."""
        with self._lock:
            self._closing = True
        self.signal.set()

    # ---- called on the pump thread

    def step(self) -> Next:
        """Take some items from the generator; whatever it raises is kept for the fetcher."""
        with self._lock:
            closing, full = self._closing, len(self._packed) >= _PACKED_AHEAD
        if full and not closing:
            return Next.WAIT
        try:
            more = not closing and self._run()
        except BaseException as error:  # noqa: BLE001 - told to the fetcher, whatever it is
            return self._end(self._explained(error))
        return Next.AGAIN if more else self._end(None)

    def _run(self) -> bool:
        """Take up to so many items; return whether there may be more."""
        if self._rows is None:
            split = self._with_end()
            if self._nothing_left(split):
                return False
            with self._lock:
                self._packer = RowPacker(
                    self._schema,
                    split,
                    self._runtime.clock,
                    max_rows=self._options.max_rows_per_batch,
                    max_bytes=self._options.max_bytes_per_batch,
                    max_delay=self._options.max_batch_delay.total_seconds(),
                    source=self._source.name,
                    order_key=self._source.order_key,
                )
            self._rows = iter(self._source.read(split))
        packer = self._packer
        assert packer is not None  # noqa: S101 - made with the generator
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
            if packed is not None:
                return True
        return True

    def _with_end(self) -> Split:
        split = self.split
        if split.end is None:
            latest = self._source.latest(split)
            if latest is not None:
                split = split.slice(split.position, latest)
        return split

    def _nothing_left(self, split: Split) -> bool:
        """Whether the read would be empty; an end behind the position is a lagging look at the outside."""
        if split.end is None:
            return False
        if split.position is None:
            return bool(split.end == 0)  # None is the start
        key = self._source.order_key
        return bool(split.position == split.end or key(split.end) < key(split.position))

    def _end(self, error: BaseException | None) -> Next:
        close = getattr(self._rows, "close", None)
        if close is not None:
            try:
                close()
            except BaseException as late:  # noqa: BLE001 - told to the fetcher, whatever it is
                error = error or self._explained(late)
        with self._lock:
            try:
                tail = self._packer.take() if self._packer is not None and not self._closing else None
            except ForebayError as late:
                tail, error = None, error or late
            if tail is not None:
                self._packed.append(tail)
            self._ended, self._error = True, error
        self._ready.set()
        return Next.DONE

    def _explained(self, error: BaseException) -> ForebayError:
        return connector_error(
            error, source=self._source.name, doing="read()", split=self.split.id, position=self.position()
        )


class PumpingSplitReader(SplitReader):
    """The split reader of every `SimpleSource`: pumps run the generators, a fetch collects what they packed.

    Args:
        source: Whose splits to read.
        context: The host's side.
    """

    def __init__(self, source: SimpleSource, context: SourceReaderContext) -> None:
        self._source = source
        self._runtime = context.runtime
        self._options = context.options
        self._promised = context.ends_are_promises
        self._ready = context.runtime.signal()
        self._schema: pa.Schema | None = None
        self._slots = 1 if source.bounded else _UNBOUNDED_PUMPS
        self._parking = Parking()
        self._pumps: dict[str, tuple[Pump, WorkerHandle]] = {}
        self._failed: deque[tuple[Pump, BaseException]] = deque()

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
        for _ in range(self._free_slots()):
            if self._schema is None:
                self._schema = settled_schema(self._source)
            split = self._parking.take(now)
            if split is None:
                return
            pump = Pump(
                self._source,
                split,
                self._schema,
                self._runtime,
                self._options,
                self._ready,
                promised=self._promised,
            )
            self._pumps[split.id] = (pump, self._runtime.start(f"forebay-{self._source.name}-pump-{split.id}", pump))

    def _free_slots(self) -> int:
        paused = self._parking.paused
        return max(0, self._slots - sum(split_id not in paused for split_id in self._pumps))

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

    def _ended(self, pump: Pump) -> Fetched:
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
        due = self._parking.next_due()
        if due is not None and self._free_slots():
            dues.append(max(0.0, due - now))
        return min(dues, default=None)
