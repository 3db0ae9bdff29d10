# SPDX-License-Identifier: Apache-2.0
"""The fetchers of a reader: threads that each run one split reader, and the queue to the reader."""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from forebay.errors import ContractError, FatalError, ForebayError, RetriableError
from forebay.framework.reader import SourceReaderContext
from forebay.framework.runtime.clients import drop_clients
from forebay.framework.runtime.connector_errors import connector_error
from forebay.framework.runtime.host_options import HostOptions
from forebay.framework.runtime.runtime import Next, Runtime, Signal, WaitFor, WorkerHandle
from forebay.framework.source import Source
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader, check_may_catch_up
from forebay.options import redact
from forebay.retry import RetryCount, RetryPolicy

# -- The queue between fetcher threads and the reader: bounded in hand-overs and in bytes.


@dataclass(slots=True)
class HandOver:
    """The result of one fetch, on its way from a fetcher to the source reader.

    `recycle` is called once, on the task thread, after the last part of the result was used (RB-4).
    """

    fetched: Sequence[Fetched]
    recycle: Callable[[], None] | None = None
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = sum(part.batch.nbytes for part in self.fetched if part.batch is not None)


class HandOverQueue:
    """A FIFO queue of hand-overs: many fetchers offer, one source reader polls, no call blocks (Q-1 … Q-4).

    Flink's queue blocks a fetcher while it is full. Here `offer` returns False, the fetcher keeps the hand-over, and
    its signal is set once there is room. An empty queue accepts a hand-over larger than `max_bytes`.

    Raises:
        ValueError: A bound is not positive.
    """

    def __init__(self, runtime: Runtime, capacity: int, max_bytes: int) -> None:
        if capacity < 1 or max_bytes < 1:
            raise ValueError(f"the bounds of a queue must be positive: capacity {capacity}, max_bytes {max_bytes}")
        self._lock = runtime.lock()
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._bytes = 0
        self._waiting: deque[HandOver] = deque()
        self._refused: list[Signal] = []
        self._available: Future[None] = Future()
        self._is_available = False
        self._notice: Future[None] = Future()

    def offer(self, hand_over: HandOver, signal: Signal) -> bool:
        """Add a hand-over and return True, or return False if the queue is full. Called by fetcher threads.

        A refused hand-over stays with the caller; `signal` is set once there is room.
        """
        with self._lock:
            full = len(self._waiting) >= self._capacity or self._bytes + hand_over.nbytes > self._max_bytes
            if full and self._waiting:
                if signal not in self._refused:
                    self._refused.append(signal)
                return False
            self._waiting.append(hand_over)
            self._bytes += hand_over.nbytes
            completed = self._mark_available()
        if completed is not None:
            completed.set_result(None)
        return True

    def poll(self) -> HandOver | None:
        """Remove and return the oldest hand-over, or return None. Called by the task thread; never blocks (Q-3)."""
        with self._lock:
            hand_over = self._waiting.popleft() if self._waiting else None
            if hand_over is not None:
                self._bytes -= hand_over.nbytes
            if not self._waiting and self._is_available:
                self._available = Future()
                self._is_available = False
            refused, self._refused = self._refused, []
        for signal in refused:
            signal.set()
        return hand_over

    def is_empty(self) -> bool:
        """Whether the queue is empty."""
        with self._lock:
            return not self._waiting

    def availability(self) -> Future[None]:
        """Return a future that is done while the queue is not empty; when it gets empty, a new future begins (Q-4)."""
        with self._lock:
            return self._available

    def notice(self) -> Future[None]:
        """Return a future that only `notify_available` completes, for a reader that has no room for a hand-over."""
        with self._lock:
            if self._notice.done():
                self._notice = Future()
            return self._notice

    def notify_available(self) -> None:
        """Complete the futures of `notice` and `availability` although no hand-over was added (Q-4)."""
        with self._lock:
            available = self._mark_available()
            # Replaced, so that two callers at once do not complete the same future.
            notice, self._notice = self._notice, done_future()
        if available is not None:
            available.set_result(None)
        if not notice.done():
            notice.set_result(None)

    def _mark_available(self) -> Future[None] | None:
        """Return the future to complete; the caller completes it outside the lock, because that runs callbacks."""
        if self._is_available:
            return None
        self._is_available = True
        return self._available


def done_future() -> Future[None]:
    """Return a completed future."""
    future: Future[None] = Future()
    future.set_result(None)
    return future


# -- A fetcher: runs one split reader on one thread, and passes the results to the source reader by a queue.


_log = logging.getLogger(__name__)

_TOLERANCE: Final = 0.001
"""Seconds by which a pause of another reader has to be longer than that of this one."""


class Fetcher:
    """A worker that calls the `fetch` of a split reader, and offers the results to the queue (FET-1 … FET-6).

    The task thread queues changes, such as new splits, and wakes the fetcher. Each step does the first of these that is
    possible: apply the oldest change, offer the result of the last fetch, fetch again. So a result that the full queue
    refused is never lost or repeated (FET-3). Consecutive retriable errors are counted per split if the error names
    one. With `until_caught_up`, for hosts that read once, a split is finished once it has caught up.
    """

    def __init__(
        self,
        source: str,
        split_reader: SplitReader,
        queue: HandOverQueue,
        runtime: Runtime,
        *,
        retry: RetryPolicy,
        until_caught_up: bool,
        on_error: Callable[[ForebayError], None],
    ) -> None:
        self.signal: Signal = runtime.signal()
        self._source = source
        self._reader = split_reader
        self._queue = queue
        self._runtime = runtime
        self._retry_policy = retry
        self._until_caught_up = until_caught_up
        self._on_error = on_error
        self._lock = runtime.lock()
        self._changes: deque[Callable[[], None]] = deque()
        self._assigned: dict[str, Split] = {}
        self._paused: set[str] = set()
        self._caught_up: set[str] = set()
        self._pending: HandOver | None = None
        self._busy = False
        self._closing = False
        self._draining: HandOver | None = None
        self._failures: dict[str | None, RetryCount] = {}  # by split
        self._retry_at = 0.0

    # ---- called on the task thread

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Queue splits for the split reader, behind earlier changes (FET-2)."""
        self._enqueue(lambda: self._add_splits(splits))

    def pause_or_resume(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Queue the pausing and resuming of splits of this fetcher, behind earlier changes (FET-2)."""
        change = frozenset(pause), frozenset(resume)
        self._enqueue(lambda: self._pause_or_resume(*change))

    def is_idle(self) -> bool:
        """Whether the fetcher has no split, no queued change and no running call (FET-5). A new fetcher is idle."""
        with self._lock:
            return not (self._busy or self._changes or self._assigned or self._pending)

    def close(self, *, after_recycling: bool = False) -> None:
        """End the fetcher, in any state (FET-6).

        With `after_recycling`, the split reader is closed only after the source reader has used all earlier hand-overs.
        """
        with self._lock:
            if after_recycling and not self._closing and self._draining is None:
                self._draining = HandOver((), recycle=self.close)
            elif not after_recycling:
                self._closing = True
            busy = self._busy
        if busy and not after_recycling:
            self._reader.wake_up()
        self.signal.set()

    def _enqueue(self, change: Callable[[], None]) -> None:
        with self._lock:
            self._changes.append(change)
            busy = self._busy
        if busy:
            self._reader.wake_up()
        self.signal.set()

    # ---- called on the fetcher thread

    def step(self) -> Next | WaitFor:
        """Apply one change, offer once or fetch once. An error ends the fetcher and closes the split reader."""
        try:
            return self._step()
        except BaseException as error:  # noqa: BLE001 - the task thread raises it
            self._report(error, "fetch()")
            self._end()
            return Next.DONE

    def _step(self) -> Next | WaitFor:
        with self._lock:
            closing = self._closing
            change = self._changes.popleft() if self._changes and not closing else None
            pending = self._pending
            readable = bool(self._assigned) and not self._paused.issuperset(self._assigned)
            self._busy = not closing and (change is not None or (pending is None and readable))
        if closing:
            self._end()
            return Next.DONE
        if change is not None:
            change()
            return self._end_call()
        if pending is not None:
            return self._offer(pending)
        if readable:
            return self._fetch()
        return self._drain_or_wait()

    def _add_splits(self, splits: Sequence[Split]) -> None:
        self._assigned.update((split.id, split) for split in splits)
        self._caught_up.difference_update(split.id for split in splits)
        self._reader.add_splits(splits)

    def _pause_or_resume(self, pause: frozenset[str], resume: frozenset[str]) -> None:
        # If the split reader cannot pause, fetching goes on, and the source reader buffers the records.
        if self._reader.pause_or_resume_splits(pause, resume):
            self._paused = (self._paused - resume) | (pause & self._assigned.keys())

    def _fetch(self) -> Next | WaitFor:
        pause = self._seconds_to_wait()
        if pause > 0:
            self._end_call()
            return WaitFor(pause)
        try:
            fetched = self._reader.fetch()
        except RetriableError as error:
            return self._retry(error)
        if fetched:
            for split_id in (None, *(part.split_id for part in fetched)) if self._failures else ():
                self._failures.pop(split_id, None)
            self._pending = HandOver(list(self._checked(fetched)))
        return self._end_call()

    def _seconds_to_wait(self) -> float:
        """Return the seconds until the next fetch: those of a retry, or those that the service asked another reader."""
        now = self._runtime.clock.monotonic()
        asked = self._runtime.service_pauses.remaining(self._source)
        if asked > max(self._retry_at - now, 0.0) + _TOLERANCE:
            _log.info("%s: fetch() waits %.1f s, as the service asked another reader", self._source, asked)
            self._retry_at = now + asked
        return self._retry_at - now

    def _retry(self, error: RetriableError) -> WaitFor:
        # Counted per split: the success of one must not hide the failures of another.
        failed = error.split if error.split in self._assigned else None
        clock, policy = self._runtime.clock, self._retry_policy
        count = self._failures.setdefault(failed, RetryCount(policy, clock, self._runtime.random))
        drop_clients(self._source, error)
        self._runtime.service_pauses.note(self._source, error, most=policy.timeout)
        pause = count.fail(error)
        if count.exhausted:
            raise count.last_error(error)
        _log.warning(
            "%s: fetch() failed (try %d) and is retried in %.1f s: %s",
            self._source,
            count.failures,
            pause,
            redact(str(error)),
        )
        self._retry_at = clock.monotonic() + pause
        self._end_call()
        return WaitFor(pause)

    def _checked(self, fetched: Iterable[Fetched]) -> Iterable[Fetched]:
        finished: set[str] = set()
        for part in fetched:
            if part.split_id not in self._assigned or part.split_id in finished:
                if part.split_id in self._caught_up:
                    continue  # finished below, because it had caught up; the split reader does not know that
                raise ContractError(
                    "fetch() returned records or an end for a split that the split reader does not hold",
                    split=part.split_id,
                    rule="RB-5",
                    advice="return only splits that were added and have not been finished",
                )
            if part.caught_up and not part.finished:
                check_may_catch_up(self._assigned[part.split_id])
            if self._until_caught_up and part.caught_up and not part.finished:
                part = dataclasses.replace(part, finished=True)  # noqa: PLW2901 - the same part, finished
                self._caught_up.add(part.split_id)
            if part.finished:
                finished.add(part.split_id)
            yield part

    def _offer(self, hand_over: HandOver) -> Next:
        if not self._queue.offer(hand_over, self.signal):
            return Next.WAIT
        with self._lock:
            # Finished splits are removed only now, when their last hand-over is in the queue (FET-4).
            for part in hand_over.fetched:
                if part.finished:
                    self._assigned.pop(part.split_id, None)
                    self._paused.discard(part.split_id)
            self._pending = None
        self._notify_if_idle()
        return Next.AGAIN

    def _drain_or_wait(self) -> Next:
        with self._lock:
            marker = self._draining
        if marker is not None and self._queue.offer(marker, self.signal):
            with self._lock:
                self._draining = marker = None
        if marker is None:
            self._notify_if_idle()
        return Next.WAIT

    def _end_call(self) -> Next:
        with self._lock:
            self._busy = False
        self._notify_if_idle()
        return Next.AGAIN

    def _notify_if_idle(self) -> None:
        if self.is_idle():
            self._queue.notify_available()

    def _end(self) -> None:
        with self._lock:
            self._closing = True
            self._busy = False
            self._changes.clear()
            self._assigned.clear()
            self._pending = None
        try:
            self._reader.close()
        except BaseException as error:  # noqa: BLE001 - the task thread raises it
            self._report(error, "close()")
        self._queue.notify_available()

    def _report(self, error: BaseException, doing: str) -> None:
        drop_clients(self._source, error)
        # Of several splits, only the error itself can name the one that failed.
        only = next(iter(self._assigned)) if len(self._assigned) == 1 else None
        self._on_error(connector_error(error, source=self._source, doing=doing, split=only))


# -- The fetchers of one reader: one for all splits, a fixed number, or one per split.


class _Running(NamedTuple):
    fetcher: Fetcher
    handle: WorkerHandle


class FetcherManager:
    """Starts fetchers, routes splits to them, ends idle fetchers and keeps the first error (FM-1 … FM-5).

    All methods are called on the task thread. Fetcher threads report their errors to it.
    """

    def __init__(
        self,
        source: Source,
        context: SourceReaderContext,
        queue: HandOverQueue,
        options: HostOptions,
        *,
        until_caught_up: bool = False,
    ) -> None:
        self._source = source
        self._context = context
        self._queue = queue
        self._runtime = context.runtime
        self._options = options
        self._until_caught_up = until_caught_up
        shared = (source.fetchers or 0) * context.fetcher_factor
        self._loads = {str(number): 0 for number in range(shared)}
        """The number of splits of each shared fetcher; empty if each split has a fetcher of its own."""
        self._routes: dict[str, str] = {}
        self._running: dict[str, _Running] = {}
        self._ending: list[_Running] = []
        self._lock = context.runtime.lock()
        self._error: ForebayError | None = None
        self._late: ForebayError | None = None
        self._closed = False

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Pass splits to their fetchers; start fetchers that do not run (FM-2).

        Raises:
            FatalError: The manager is closed (FM-3).
        """
        if self._closed:
            raise FatalError(
                f"splits were assigned to a closed reader of {self._source.name}",
                rule="FM-3",
                advice="report this as a bug",
            )
        routed: dict[str, list[Split]] = {}
        for split in splits:
            key = self._routes[split.id] = self._route(split.id)
            routed.setdefault(key, []).append(split)
        for key, group in routed.items():
            if key not in self._running:
                self._running[key] = self._start(key)
            self._running[key].fetcher.add_splits(group)

    def pause_or_resume_splits(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Pause and resume splits, given by id, in their fetchers (FM-4)."""
        # In the order of the splits, not of a set: a simulation must run alike in every process.
        keys = dict.fromkeys(self._routes.get(split_id, "") for split_id in (*pause, *resume))
        for key in (candidate for candidate in keys if candidate in self._running):
            self._running[key].fetcher.pause_or_resume(
                [split_id for split_id in pause if self._routes.get(split_id) == key],
                [split_id for split_id in resume if self._routes.get(split_id) == key],
            )

    def forget(self, split_ids: Iterable[str]) -> None:
        """Record that splits are finished, so that their fetchers have room for others."""
        for split_id in split_ids:
            key = self._routes.pop(split_id)
            if self._loads:
                self._loads[key] -= 1

    def check_errors(self) -> None:
        """Raise the first error of any fetcher, if there is one, at every call; later errors are its notes (FM-1)."""
        with self._lock:
            error = self._error
        if error is not None:
            raise error

    def shutdown_finished(self) -> bool:
        """End idle fetchers; return whether no fetcher is left (FM-2)."""
        for key, running in list(self._running.items()):
            if running.fetcher.is_idle():
                running.fetcher.close(after_recycling=True)
                self._ending.append(self._running.pop(key))
        return not self._running

    def close(self, timeout: float) -> list[str]:
        """End all fetchers within `timeout` seconds (FM-3); return the names of blocked threads, which are abandoned.

        A second call does nothing.
        """
        self._closed = True
        deadline = self._runtime.clock.monotonic() + timeout
        fetchers = [
            *self._running.items(),
            *((f"ended {number}", ending) for number, ending in enumerate(self._ending)),
        ]
        for _, running in fetchers:
            running.fetcher.close()
        while self._queue.poll() is not None:
            pass  # make room for fetchers that wait with a hand-over
        abandoned = []
        for key, running in fetchers:
            if not running.handle.join(max(0.0, deadline - self._runtime.clock.monotonic())):
                abandoned.append(f"{self._source.name} fetcher {key}")
        self._running.clear()
        self._ending.clear()
        return abandoned

    def late_error(self) -> ForebayError | None:
        """Return the first error since `close` began, such as that of a split reader's `close`."""
        with self._lock:
            return self._late

    def _route(self, split_id: str) -> str:
        """Return the fetcher of a new split: its own one, or the shared one with the fewest splits."""
        if not self._loads:
            return split_id
        key = min(self._loads, key=self._loads.__getitem__)
        self._loads[key] += 1
        return key

    def _start(self, key: str) -> _Running:
        fetcher = Fetcher(
            self._source.name,
            self._source.create_split_reader(self._context),
            self._queue,
            self._runtime,
            retry=RetryPolicy.of(self._options),
            until_caught_up=self._until_caught_up,
            on_error=self._keep_error,
        )
        self._ending = [running for running in self._ending if running.handle.alive()]
        return _Running(fetcher, self._runtime.start(f"forebay-{self._source.name}-fetcher-{key}", fetcher))

    def _keep_error(self, error: ForebayError) -> None:
        with self._lock:
            if self._closed and self._late is None:
                self._late = error
            if self._error is None:
                self._error = error
            elif error is not self._error:
                self._error.add_note(f"and then: {type(error).__name__}: {error}")
        self._queue.notify_available()
