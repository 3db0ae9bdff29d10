# SPDX-License-Identifier: Apache-2.0
"""The reader of a run: it is started, polled, and replaced after failures that may pass; its event time."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from forebay.clock import Clock
from forebay.errors import ContractError, FatalError, ForebayError, RetriableError
from forebay.framework.coordination.coordinator import Coordinator
from forebay.framework.enumerator import SourceEvent
from forebay.framework.inprocess.deliveries import DeliveryLog
from forebay.framework.reader import InputStatus, SourceReader
from forebay.framework.reading.reader_context import ReaderContext
from forebay.framework.reading.source_reader import create_reader
from forebay.framework.runtime.connector_errors import connector_error, is_programming_error
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Runtime
from forebay.framework.source import Source
from forebay.framework.split import Position, Split
from forebay.options import redact
from forebay.retry import RetryPolicy
from forebay.watermarks.event_time import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    EventTimes,
    check_drift,
    max_allowed,
    splits_ahead,
)
from forebay.watermarks.outputs import DEFAULT_EMIT_INTERVAL, SourceOutputs
from forebay.watermarks.strategy import WatermarkStrategy

# -- Event time of a run: the watermark over all splits of the reader, and alignment.


class PausedReader(Protocol):
    """A reader that can pause splits."""

    def pause_or_resume(self, pause: Sequence[str], resume: Sequence[str]) -> None:
        """Pause and resume splits, given by id (RDR-8)."""


class EventTime:
    """Watermark and alignment of a run. The consumer's thread calls all methods.

    The watermark is the minimum of those of the active splits, and never falls. A split holds it back from its
    assignment until it is finished, also before its first record (OUT-3, OUT-4) and while a failed reader is replaced.
    Splits that were never assigned do not count.

    Args:
        strategy: Generates watermarks and sets the limits of idleness and alignment.
        clock: The time of the run.
        silent: Takes a split id; returns whether the split has no more rows for now. Only such a split can become idle.
    """

    def __init__(self, strategy: WatermarkStrategy, clock: Clock, silent: Callable[[str], bool]) -> None:
        if strategy.max_drift is not None:
            check_drift(strategy.max_drift)
        self._max_drift = strategy.max_drift
        self._clock = clock
        self._outputs = SourceOutputs(strategy, clock, _Nowhere(), silent=silent)
        self._lost: set[str] = set()  # splits of the failed reader that its replacement has not got yet
        self._next_tick = clock.monotonic() + DEFAULT_EMIT_INTERVAL

    @property
    def watermark(self) -> int | None:
        """The watermark of the run, in microseconds since 1970; None before the first watermark."""
        return None if self._outputs.watermark == MIN_WATERMARK else self._outputs.watermark

    def add(self, split_id: str) -> None:
        """Record that the reader got a split, which holds back the watermark from now on (OUT-4)."""
        self._lost.discard(split_id)
        self._outputs.create(split_id)

    def release(self, split_id: str) -> None:
        """Record that a split is finished, so that it no longer holds back the watermark (OUT-3)."""
        self._outputs.release(split_id)

    def collect(self, split_id: str, batch: pa.RecordBatch, position: Position | None) -> None:
        """Pass a delivered record batch to the watermark generator of its split (OUT-2)."""
        self._outputs.of(split_id).collect(batch, position)
        if self._max_drift is not None:
            self._next_tick = self._clock.monotonic()  # pause a fast split before the next regular tick

    def reader_failed(self) -> None:
        """Record that the reader failed: its replacement has no paused splits."""
        self._lost.update(self._outputs.split_status())
        self._outputs.resume(self.paused())

    def consumer_busy(self, *, busy: bool) -> None:
        """Stop the idle time-outs while the consumer processes a batch (`busy`), and resume them afterwards (WM-4)."""
        self._outputs.set_backpressured(busy)

    def paused(self) -> list[str]:
        """Return the ids of the splits that alignment has paused."""
        return [split_id for split_id, status in self._outputs.split_status().items() if status.paused]

    def due_in(self) -> float:
        """Return the seconds until the next `tick` is due."""
        return max(0.0, self._next_tick - self._clock.monotonic())

    def tick(self, reader: PausedReader, alive: Callable[[], Collection[str]]) -> bool:
        """If a tick is due, combine the watermarks, and pause or resume splits of the reader; return whether it was.

        `alive` returns the ids of all splits that exist. It is called only after a failure of the reader: splits that
        discovery has dropped meanwhile no longer hold back the watermark.
        """
        if self.due_in() > 0:
            return False
        self._next_tick = self._clock.monotonic() + DEFAULT_EMIT_INTERVAL
        if self._lost:
            for split_id in self._lost - set(alive()):
                self._lost.discard(split_id)
                self._outputs.release(split_id)
        self._outputs.on_periodic_emit()
        if self._max_drift is not None:
            self._align(self._max_drift, reader)
        return True

    def end_of_input(self) -> None:
        """Record that all splits have been read, so that the watermark moves to the end of time (WM-1)."""
        self._outputs.finish()

    def _align(self, max_drift: float, reader: PausedReader) -> None:
        limit = max_allowed([MAX_WATERMARK if self._outputs.idle else self._outputs.report()], max_drift)
        # Without the splits of a failed reader: its replacement cannot pause what it has not got.
        statuses = self._outputs.split_status().items()
        status = {split_id: current for split_id, current in statuses if split_id not in self._lost}
        paused = set(self.paused())
        ahead = splits_ahead({split_id: current.watermark for split_id, current in status.items()}, limit)
        pause, resume = sorted(ahead - paused), sorted(paused - ahead)
        if pause or resume:
            reader.pause_or_resume(pause, resume)
            self._outputs.pause(pause)
            self._outputs.resume(resume)


class _Nowhere:
    """Takes what `SourceOutputs` sends on: the consumer has the batch already, and asks for the watermark."""

    def collect(self, split_id: str | None, batch: pa.RecordBatch, position: object, times: EventTimes | None) -> None:
        """Do nothing."""

    def emit_watermark(self, us: int) -> None:
        """Do nothing."""

    def mark_idle(self) -> None:
        """Do nothing."""

    def mark_active(self) -> None:
        """Do nothing."""


_log = logging.getLogger(__name__)

HOST = "localhost"
"""The host name of the reader."""

MAX_RESTARTS = 3
"""Maximum consecutive replacements of the reader without a delivered record batch of the split."""


# -- What a reader emits. An event takes effect when it is taken.


@dataclass(frozen=True, slots=True)
class Emitted:
    """The reader emitted a record batch of a split; `position` is the split's position after it."""

    split_id: str
    batch: pa.RecordBatch
    position: Position | None


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The reader has caught up with a split: it has no more rows for now."""

    split_id: str


@dataclass(frozen=True, slots=True)
class Released:
    """The reader has read a split to its end."""

    split_id: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The reader returned END_OF_INPUT."""


Event = Emitted | CaughtUp | Released | Ended


class EventQueue:
    """The `ReaderOutput` of the reader: checks what it emits, and queues it."""

    def __init__(self, source: str, schema: pa.Schema, deliveries: DeliveryLog, event_time: EventTime | None) -> None:
        self.events: deque[Event] = deque()
        self.collected = False
        """Whether the reader has emitted a record batch in this poll."""
        self._source = source
        self._schema = schema
        self._deliveries = deliveries
        self._event_time = event_time

    def collect(self, split_id: str, batch: pa.RecordBatch, position: Position | None) -> None:
        """Queue one record batch (RDR-2).

        Raises:
            ContractError: The reader may not emit it.
        """
        problem = self._problem(split_id, batch, position)
        if problem is not None:
            message, rule, advice = problem
            raise ContractError(
                message, source=self._source, split=split_id, position=position, rule=rule, advice=advice
            )
        self.collected = True
        self.events.append(Emitted(split_id, batch, position))

    def waiting(self) -> list[str]:
        """Return the ids of the splits whose record batches wait to be taken."""
        return [event.split_id for event in self.events if isinstance(event, Emitted)]

    def drop(self) -> None:
        """Drop the events of a failed reader: their rows are read again."""
        self.events.clear()

    def split_added(self, split: Split) -> None:
        """Let a split hold back the watermark."""
        if self._event_time is not None:
            self._event_time.add(split.id)

    def split_caught_up(self, split_id: str) -> None:
        """Queue the notice that a split has no more rows for now."""
        self._deliveries.check_may_catch_up(split_id, self._source)
        self.events.append(CaughtUp(split_id))

    def split_released(self, split_id: str) -> None:
        """Queue the notice that a split was read to its end."""
        self.events.append(Released(split_id))

    def _problem(self, split_id: str, batch: object, position: Position | None) -> tuple[str, str, str] | None:
        if not isinstance(batch, pa.RecordBatch):
            return (
                f"a reader emitted a {type(batch).__name__} instead of a record batch",
                "RDR-2",
                "emit pyarrow.RecordBatch objects",
            )
        if self.collected:
            advice = "emit one record batch, then return MORE_AVAILABLE"
            return "a reader emitted two record batches in one poll_next()", "RDR-2", advice
        if not self._deliveries.holds(split_id):
            emitted = "the reader emitted a record batch of a split that it does not have"
            return emitted, "RB-5", "emit only rows of splits that were added to this reader"
        if position is None:
            return "a reader emitted a record batch without a position", "RDR-4", "pass the position after the batch"
        if not batch.schema.equals(self._schema):
            return (
                f"a record batch has the schema {_columns(batch.schema)}, but schema() is {_columns(self._schema)}",
                "SR-2",
                "emit record batches with exactly the schema that schema() returns",
            )
        return None


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in schema)


# -- Failures of the reader: after which errors, and how often, it is replaced; the error that ends the run.


class ReaderFailures:
    """Counts failures in a row of each split, and of a reader without splits. Without `restarts`, none is replaced."""

    def __init__(self, source: str, options: HostOptions, deliveries: DeliveryLog, *, restarts: bool) -> None:
        self._source = source
        self._options = options
        self._deliveries = deliveries
        self._restarts = restarts
        self._in_a_row: dict[str, int] = {}
        """By split id; under "" those of a reader without splits."""

    def progressed(self, split_id: str) -> None:
        """Record that a batch of a split was delivered, or its end: its failures count from 0 again."""
        self._in_a_row.pop(split_id, None)
        self._in_a_row.pop("", None)

    def restart_pause(self, error: BaseException, chance: random.Random) -> float:
        """Count a failure; return the seconds until the reader may be replaced.

        `chance` makes the pause random, see `RetryPolicy`.

        Raises:
            BaseException: The reader must not be replaced. The error is `error`, with source, split and position.
        """
        held = self._deliveries.held()
        times = self._count(held, error)
        if self._restarts and may_restart(error, times, self._options.retries):
            return RetryPolicy.of(self._options).pause(times, chance, error)
        raise self._surfaced(held, error, times)

    def _count(self, held: Collection[str], error: BaseException) -> int:
        """Count a failure for the split that the error names, else for all splits of the reader, else for the reader.

        Returns:
            The highest of the counts that were increased.
        """
        named = getattr(error, "split", None)
        blamed = [named] if named is not None and named in held else held or [""]
        for split_id in blamed:
            self._in_a_row[split_id] = self._in_a_row.get(split_id, 0) + 1
        return max(self._in_a_row[split_id] for split_id in blamed)

    def _surfaced(self, held: Sequence[str], error: BaseException, times: int) -> BaseException:
        if isinstance(error, Exception):
            named = getattr(error, "split", None)
            split = named if named is not None else held[0] if len(held) == 1 else None
            position = None if split is None else self._deliveries.position(split)
            error = connector_error(error, source=self._source, doing="the reader", split=split, position=position)
        if times > MAX_RESTARTS:
            error.add_note(f"the reader failed again after it was replaced {MAX_RESTARTS} times in a row")
        return error


def may_pass(error: BaseException) -> bool:
    """Whether a new reader may succeed after this error.

    True for a `RetriableError` and for exceptions of client libraries, also if a `FatalError` wraps them. False for all
    other errors of forebay (options, data, contract, loss), and for mistakes in the connector's code.
    """
    if isinstance(error, FatalError) and error.__cause__ is not None:
        return may_pass(error.__cause__)  # the framework wrapped an exception of the connector
    if isinstance(error, ForebayError):
        return isinstance(error, RetriableError)
    return isinstance(error, Exception) and not is_programming_error(error)


def may_restart(error: BaseException, times: int, retries: int | None) -> bool:
    """Whether a reader is replaced after it has failed `times` times in a row, now with `error`.

    Each failure with a `RetriableError` counts as the `1 + retries` tries of its fetcher, and up to four tries are made
    in total, as for a Spark task. If `retries` is None, the fetcher has retried as long as `retryTimeout` allows.
    """
    if isinstance(error, RetriableError) and retries is None:
        return False
    rounds = (times + 1) * (1 + (retries or 0)) if isinstance(error, RetriableError) else times + 1
    return rounds <= 1 + MAX_RESTARTS and may_pass(error)


# -- The reader.


class RunReader:
    """The reader of a run, and after a failure its replacement. The consumer's thread calls all methods.

    It is what the coordinator assigns splits to. They reach the reader before its next poll.

    Args:
        source: Creates the readers.
        schema: The schema that every record batch must have.
        coordinator: Registers the readers.
        runtime: Threads, locks, time and random numbers.
        options: The host's options.
        fetcher_factor: How many times `Source.fetchers` the reader has fetchers.
        deliveries: Records which splits the reader has.
        event_time: The watermark of the run; None if event time is not processed.
        restarts: Whether failed readers are replaced.
    """

    def __init__(  # noqa: PLR0913 - the parts of a run, made by the engine alone
        self,
        source: Source,
        schema: pa.Schema,
        coordinator: Coordinator,
        runtime: Runtime,
        options: HostOptions,
        *,
        fetcher_factor: int,
        deliveries: DeliveryLog,
        event_time: EventTime | None,
        restarts: bool,
    ) -> None:
        self.start_at: float | None = runtime.clock.monotonic()
        """The monotonic time at which the reader, or its replacement, is due to start; None once it is."""
        self.ended = False
        """Whether the reader has returned END_OF_INPUT."""
        self._source = source
        self._coordinator = coordinator
        self._runtime = runtime
        self._options = options
        self._fetcher_factor = fetcher_factor
        self._deliveries = deliveries
        self._event_time = event_time
        self.failures = ReaderFailures(source.name, options, deliveries, restarts=restarts)
        self._output = EventQueue(source.name, schema, deliveries, event_time)
        self._messages: deque[Callable[[SourceReader], None]] = deque()
        self._context: ReaderContext | None = None
        self._reader: SourceReader | None = None
        self._awaited: Future[None] | None = None

    # ---- called by the coordinator

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Take assigned splits."""
        self._deliveries.give(splits)
        self._send(lambda reader: reader.add_splits(splits))

    def notify_no_more_splits(self) -> None:
        """Take the notice that no split follows."""
        self._send(lambda reader: reader.notify_no_more_splits())

    def handle_source_event(self, event: SourceEvent) -> None:
        """Take an event of the enumerator."""
        self._send(lambda reader: reader.handle_source_event(event))

    # ---- called by the engine

    def take(self) -> Event | None:
        """Remove and return the oldest event, or return None."""
        return self._output.events.popleft() if self._output.events else None

    def has_events(self) -> bool:
        """Whether an event waits to be taken."""
        return bool(self._output.events)

    def due_in(self) -> float | None:
        """Return the seconds until the reader starts or is replaced; None if it is running."""
        return None if self.start_at is None else max(0.0, self.start_at - self._runtime.clock.monotonic())

    def start_if_due(self) -> bool:
        """Create, register and start the reader if that is due (RDR-1); return whether it was.

        An error here counts as a failure of the reader (SRC-3).
        """
        if self.due_in() != 0:
            return False
        self.start_at = None
        self._guarded(self._start)
        return True

    def poll(self) -> bool:
        """Pass queued messages to the reader, then poll it, if that may help (RDR-3); return whether it did."""
        if not self._may_poll():
            return False
        self._guarded(self._poll)
        return self.has_events() or self._may_poll() or self.start_at is not None

    def pause_or_resume(self, pause: Sequence[str], resume: Sequence[str]) -> None:
        """Let the reader pause and resume splits, given by id (RDR-8)."""
        if self._reader is not None:
            self._reader.pause_or_resume_splits(pause, resume)

    def snapshot(self, checkpoint_id: int) -> list[Split]:
        """Return the splits of the reader, for a checkpoint of all that was acknowledged."""
        snapshots = [] if self._reader is None else self._reader.snapshot_state(checkpoint_id)
        return self._deliveries.checkpoint({split.id: split for split in snapshots}, self._output.waiting())

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Notify the reader of a durable checkpoint, even if it has returned END_OF_INPUT (RDR-10)."""
        if self._reader is not None:
            self._reader.notify_checkpoint_complete(checkpoint_id)

    def close(self, timeout: float, *, failed: bool) -> list[Exception]:
        """Close the reader within `timeout` seconds, and return its clients to the pool; return all errors.

        If `failed`, the clients are closed instead.
        """
        reader, self._reader = self._reader, None
        context, self._context = self._context, None
        self._messages.clear()
        if context is None:
            return []
        context.detach(timeout)
        errors: list[Exception] = []
        if reader is not None:
            try:
                reader.close()
            except Exception as error:  # noqa: BLE001 - returned after everything is closed
                errors.append(error)
        return errors + context.release(failed=failed or bool(errors))

    # ---- the reader

    def _send(self, message: Callable[[SourceReader], None]) -> None:
        # Not now: the coordinator must not see an error of the reader.
        self._messages.append(message)
        self._coordinator.signal.set()

    def _start(self) -> None:
        coordinator, queue = self._coordinator, self._coordinator.run_in_coordinator_thread
        self._awaited = None
        context = self._context = ReaderContext(
            self._source,
            self._options,
            self._runtime,
            fetcher_factor=self._fetcher_factor,
            request=lambda: queue(coordinator.request),
            send_event=lambda event: queue(lambda: coordinator.handle_source_event(event)),
        )
        self._reader = create_reader(self._source, context, self._options)
        queue(lambda: self._register(context))
        self._reader.start()

    def _register(self, context: ReaderContext) -> None:
        if context is self._context:  # not if it has failed meanwhile
            self._coordinator.register(self, HOST)

    def _may_poll(self) -> bool:
        return (
            self._reader is not None
            and not self.ended
            and (bool(self._messages) or self._awaited is None or self._awaited.done())
        )

    def _poll(self) -> None:
        reader = self._reader
        if reader is None:
            return
        while self._messages:
            self._messages.popleft()(reader)
        self._output.collected = False
        status = reader.poll_next(self._output)
        if status is InputStatus.NOTHING_AVAILABLE:
            self._await(reader.is_available())
        else:
            self._awaited = None
        if status is InputStatus.END_OF_INPUT:
            self.ended = True
            self._output.events.append(Ended())

    def _await(self, future: Future[None]) -> None:
        if future is not self._awaited:
            self._awaited = future
            future.add_done_callback(lambda _done: self._coordinator.signal.set())

    # ---- failures

    def _guarded(self, call: Callable[[], None]) -> None:
        """Call a method of the reader; if the call raises a transient error, replace the reader.

        Raises:
            BaseException: The error is not transient, or the reader has failed too often.
        """
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised again unless the reader is replaced
            self._replace(error)

    def _replace(self, error: BaseException) -> None:
        """Close the failed reader, return its splits to the enumerator, and schedule the start of a new reader.

        The splits are returned at their delivered positions.
        """
        self._output.drop()
        pause = self.failures.restart_pause(error, self._runtime.random)
        shown, source = redact(str(error)), self._source.name
        _log.warning("%s: the reader failed and is replaced in %.1f s: %s", source, pause, shown)
        self._coordinator.run_queued()  # the enumerator gets what the reader sent before its splits (COO-4)
        for late in self.close(self._options.close_timeout.total_seconds(), failed=True):
            _log.warning("%s: close() of the failed reader failed too: %s", source, redact(str(late)))
        if self._event_time is not None:
            self._event_time.reader_failed()
        self._coordinator.reader_failed(self._deliveries.take_back())
        self.start_at = self._runtime.clock.monotonic() + pause
