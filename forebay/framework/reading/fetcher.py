# SPDX-License-Identifier: Apache-2.0
"""A fetcher: runs one split reader on one thread, and passes the results to the source reader by a queue."""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from forebay.errors import ContractError, ForebayError, RetriableError
from forebay.framework.reading.queue import HandOver, HandOverQueue
from forebay.framework.runtime.clients import drop_clients
from forebay.framework.runtime.connector_errors import connector_error
from forebay.framework.runtime.runtime import Next, Runtime, Signal, WaitFor
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader, check_may_catch_up
from forebay.options import redact
from forebay.retry import RetryCount, RetryPolicy

_log = logging.getLogger(__name__)


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
        rest = max(
            self._retry_at - self._runtime.clock.monotonic(), self._runtime.service_pauses.remaining(self._source)
        )
        if rest > 0:
            self._end_call()
            return WaitFor(rest)
        try:
            fetched = self._reader.fetch()
        except RetriableError as error:
            return self._retry(error)
        if fetched:
            for split_id in (None, *(part.split_id for part in fetched)) if self._failures else ():
                self._failures.pop(split_id, None)
            self._pending = HandOver(list(self._checked(fetched)))
        return self._end_call()

    def _retry(self, error: RetriableError) -> WaitFor:
        # Counted per split: the success of one must not hide the failures of another.
        failed = error.split if error.split in self._assigned else None
        clock, policy = self._runtime.clock, self._retry_policy
        count = self._failures.setdefault(failed, RetryCount(policy, clock, self._runtime.random))
        drop_clients(self._source, error)
        self._runtime.service_pauses.note(self._source, error)
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
