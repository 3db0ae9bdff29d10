# SPDX-License-Identifier: Apache-2.0
"""One fetcher: drives one split reader on one thread and hands over what it fetches."""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from forebay.errors import ContractError, ForebayError, RetriableError
from forebay.framework.reading.queue import HandOver, HandOverQueue
from forebay.framework.runtime.clients import drop_clients
from forebay.framework.runtime.connector_errors import connector_error
from forebay.framework.runtime.retry import RetryCount, RetryPolicy
from forebay.framework.runtime.runtime import Next, Runtime, Signal, WaitFor
from forebay.framework.split import Split
from forebay.framework.split_reader import Fetched, SplitReader
from forebay.options import redact

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _AddSplits:
    splits: Sequence[Split]


@dataclass(frozen=True, slots=True)
class _PauseOrResume:
    pause: frozenset[str]
    resume: frozenset[str]


class Fetcher:
    """A worker that fetches from its splits and offers the result to the queue (FET-1 … FET-6).

    The task thread enqueues changes and wakes; the fetcher thread steps: changes first, in order, then a hand-over
    that found no room, then the next fetch. A hand-over refused by the queue is offered again before any new fetch,
    so nothing is lost or doubled (FET-3).

    Args:
        source: The name of the source, for errors.
        split_reader: The reader to drive; used and closed on the fetcher thread only, except `wake_up`.
        queue: Where hand-overs go.
        runtime: Lock, signal, clock and chance.
        retry: How retriable errors in a row, of one split or of none that is named, are tried again.
        until_caught_up: Finish a split, with an end or without, once it says that it is caught up.
        on_error: Told the error that ends this fetcher.
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
        self._tasks: deque[_AddSplits | _PauseOrResume] = deque()
        self._assigned: dict[str, Split] = {}
        self._paused: set[str] = set()
        self._caught_up: set[str] = set()
        self._pending: HandOver | None = None
        self._busy = False
        self._closing = False
        self._draining: HandOver | None = None
        self._failures: dict[str | None, RetryCount] = {}  # by split
        self._retry_at: float | None = None

    # ---- called on the task thread

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Give the reader more splits, after the changes queued before (FET-2)."""
        self._enqueue(_AddSplits(splits))

    def pause_or_resume(self, pause: Collection[str], resume: Collection[str]) -> None:
        """Pause and resume some of this fetcher's splits, after the changes queued before (FET-2)."""
        self._enqueue(_PauseOrResume(frozenset(pause), frozenset(resume)))

    def is_idle(self) -> bool:
        """Whether there is no split, no change and nothing running (FET-5). A new fetcher is idle."""
        with self._lock:
            return not (self._busy or self._tasks or self._assigned or self._pending)

    def close(self, *, after_recycling: bool = False) -> None:
        """Ask the fetcher to end, from whatever state (FET-6).

        Args:
            after_recycling: Close the split reader only when everything handed over before has been used.
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

    def _enqueue(self, task: _AddSplits | _PauseOrResume) -> None:
        with self._lock:
            self._tasks.append(task)
            busy = self._busy
        if busy:
            self._reader.wake_up()
        self.signal.set()

    # ---- called on the fetcher thread

    def step(self) -> Next | WaitFor:
        """Run one change, one offer or one fetch. An error ends the fetcher, is told once, and closes the reader."""
        try:
            return self._step()
        except BaseException as error:  # noqa: BLE001 - whatever it is must reach the task thread
            self._tell(error, "fetch()")
            self._end()
            return Next.DONE

    def _step(self) -> Next | WaitFor:
        with self._lock:
            closing = self._closing
            task = self._tasks.popleft() if self._tasks and not closing else None
            pending = self._pending
            readable = bool(self._assigned) and not self._paused.issuperset(self._assigned)
            self._busy = not closing and (task is not None or (pending is None and readable))
        if closing:
            self._end()
            return Next.DONE
        if task is not None:
            self._change(task)
            return self._settle()
        if pending is not None:
            return self._offer(pending)
        if readable:
            return self._fetch()
        return self._drain_or_wait()

    def _change(self, task: _AddSplits | _PauseOrResume) -> None:
        match task:
            case _AddSplits(splits):
                self._assigned.update((split.id, split) for split in splits)
                self._caught_up.difference_update(split.id for split in splits)
                self._reader.add_splits(splits)
            case _PauseOrResume(pause, resume):
                # A split reader that cannot pause leaves it to the reader's gate; then fetching goes on.
                if self._reader.pause_or_resume_splits(pause, resume):
                    self._paused = (self._paused - resume) | (pause & self._assigned.keys())

    def _fetch(self) -> Next | WaitFor:
        if self._retry_at is not None:
            rest = self._retry_at - self._runtime.clock.monotonic()
            if rest > 0:
                self._settle()
                return WaitFor(rest)
            self._retry_at = None
        held = self._runtime.service_pauses.remaining(self._source)
        if held > 0:
            self._settle()
            return WaitFor(held)
        try:
            fetched = self._reader.fetch()
        except RetriableError as error:
            return self._retry(error)
        if fetched:
            for split_id in (None, *(part.split_id for part in fetched)) if self._failures else ():
                self._failures.pop(split_id, None)
            self._pending = HandOver(list(self._checked(fetched)))
        return self._settle()

    def _retry(self, error: RetriableError) -> WaitFor:
        # By split: one that delivers must not hide another one that never does.
        failed = error.split if error.split in self._assigned else None
        clock, policy = self._runtime.clock, self._retry_policy
        count = self._failures.setdefault(failed, RetryCount(policy, clock, self._runtime.random))
        drop_clients(self._source, error)
        self._runtime.service_pauses.note(self._source, error)
        pause = count.fail(error)
        if count.exhausted:
            raise count.last_error(error)
        _log.warning(
            "%s: fetch %d of %d failed, again in %.1f s: %s",
            self._source,
            count.failures,
            policy.retries + 1,
            pause,
            redact(str(error)),
        )
        self._retry_at = clock.monotonic() + pause
        self._settle()
        return WaitFor(pause)

    def _checked(self, fetched: Iterable[Fetched]) -> Iterable[Fetched]:
        finished: set[str] = set()
        for part in fetched:
            if part.split_id not in self._assigned or part.split_id in finished:
                if part.split_id in self._caught_up:
                    continue  # it was finished here, by being caught up; its reader need not know
                raise ContractError(
                    "a fetch returned records or an end for a split that this reader does not hold",
                    split=part.split_id,
                    rule="RB-5",
                    advice="return only splits that were added and have not been finished",
                )
            caught_up = self._until_caught_up and part.caught_up and not part.finished
            out = dataclasses.replace(part, finished=True) if caught_up else part
            if out.finished:
                finished.add(out.split_id)
            if caught_up:
                self._caught_up.add(out.split_id)
            yield out

    def _offer(self, hand_over: HandOver) -> Next:
        if not self._queue.offer(hand_over, self.signal):
            return Next.WAIT
        with self._lock:
            # Only now do finished splits leave: the hand-over that says so is in the queue (FET-4).
            for part in hand_over.fetched:
                if part.finished:
                    self._assigned.pop(part.split_id, None)
                    self._paused.discard(part.split_id)
            self._pending = None
        self._tell_if_idle()
        return Next.AGAIN

    def _drain_or_wait(self) -> Next:
        with self._lock:
            marker = self._draining
        if marker is not None:
            if not self._queue.offer(marker, self.signal):
                return Next.WAIT
            with self._lock:
                self._draining = None
        self._tell_if_idle()
        return Next.WAIT

    def _settle(self) -> Next:
        with self._lock:
            self._busy = False
        self._tell_if_idle()
        return Next.AGAIN

    def _tell_if_idle(self) -> None:
        if self.is_idle():
            self._queue.notify_available()

    def _end(self) -> None:
        with self._lock:
            self._closing = True
            self._busy = False
            self._tasks.clear()
            self._assigned.clear()
            self._pending = None
        try:
            self._reader.close()
        except BaseException as error:  # noqa: BLE001 - told to the task thread, which decides
            self._tell(error, "close()")
        self._queue.notify_available()

    def _tell(self, error: BaseException, doing: str) -> None:
        drop_clients(self._source, error)
        # Of several splits nobody knows which one failed, unless the error itself says so.
        only = next(iter(self._assigned)) if len(self._assigned) == 1 else None
        self._on_error(connector_error(error, source=self._source, doing=doing, split=only))
